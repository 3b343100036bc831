//! `workers new`: a crate for units of one's own, as `tests/example` is one.

use std::{
    io::Write,
    path::{Component, Path, PathBuf},
};

use crate::error::Error;

/// The crate that is copied, and its name.
const NAME: &str = "example-workers";
const FILES: [(&str, &str); 6] = [
    ("src/main.rs", include_str!("../tests/example/src/main.rs")),
    ("src/reports.rs", include_str!("../tests/example/src/reports.rs")),
    ("src/sessions.rs", include_str!("../tests/example/src/sessions.rs")),
    ("schema.sql", include_str!("../tests/example/schema.sql")),
    ("README.md", include_str!("../tests/example/README.md")),
    (".gitignore", include_str!("../tests/example/.gitignore")),
];
/// How the files of the example name the clone that they lie in.
const CLONE: &str = "../../";

/// Makes the crate and says what comes next. Nothing that is there is overwritten.
pub(crate) fn make(path: &Path, clone: Option<PathBuf>, mut say: impl FnMut(&str)) -> Result<(), Error> {
    let clone = clone.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    let clone = clone
        .canonicalize()
        .ok()
        .filter(|clone| clone.join("src/new.rs").is_file())
        .ok_or_else(|| Error::Other(format!("{} is no clone of monalisa: say where there is one with --monalisa", clone.display())))?;
    let name = name_of(path)?;
    if path.is_dir() && path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) || path.is_file() {
        return Err(Error::Other(format!("{} is there already; nothing was written", path.display())));
    }
    std::fs::create_dir_all(path.join("src")).map_err(failed(path))?;
    let here = path.canonicalize().map_err(failed(path))?;
    let clone = way(&here, &clone);
    write(&here.join("Cargo.toml"), &manifest(&name, &clone))?;
    for (file, text) in FILES {
        write(&here.join(file), &text.replace(NAME, &name).replace(CLONE, &format!("{clone}/")))?;
    }
    // The same versions as there: they are at hand without a network.
    if let Ok(lock) = std::fs::read_to_string(here.join(&clone).join("Cargo.lock")) {
        write(&here.join("Cargo.lock"), &lock)?;
    }
    say(&format!("made {}: a task and a subscriber with their tests; README.md there has the commands that come next", path.display()));
    Ok(())
}

fn manifest(name: &str, clone: &str) -> String {
    format!(
        r#"[package]
name = "{name}"
version = "0.1.0"
edition = "2024"
publish = false

[dependencies]
monalisa = {{ path = "{clone}" }}
serde = {{ version = "1", features = ["derive"] }}

[dev-dependencies]
monalisa = {{ path = "{clone}", features = ["testing"] }}
tokio = {{ version = "1", features = ["macros", "rt"] }}

[profile.dev]
debug = "line-tables-only"

# Whatever folder it lies in.
[workspace]
"#
    )
}

/// The name of the crate is that of its folder.
fn name_of(path: &Path) -> Result<String, Error> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_right = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_'));
    if !is_right || name == "monalisa" {
        return Err(Error::Other(format!(
            "{:?} cannot be the name of a crate: give the path of a new folder whose name is made of a to z, digits, - and _, such as \
             ../my-workers",
            path.display()
        )));
    }
    Ok(name.to_owned())
}

/// How to go from one folder to another: by their common parent where that is near, so that both may be moved together.
fn way(from: &Path, to: &Path) -> String {
    let shared = from.components().zip(to.components()).take_while(|(one, other)| one == other).count();
    let up = from.components().count() - shared;
    if up > 3 {
        return to.display().to_string();
    }
    let down = to.components().skip(shared);
    let steps: PathBuf = std::iter::repeat_n(Component::ParentDir, up).chain(down).collect();
    steps.display().to_string()
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Other(format!("{} cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_clone_is_short_or_absolute() {
        for (from, to, expected) in [
            ("/home/ana/my-workers", "/home/ana/monalisa", "../monalisa"),
            ("/home/ana/monalisa/mine", "/home/ana/monalisa", ".."),
            ("/home/ana/code/work/mine", "/home/ana/monalisa", "../../../monalisa"),
            ("/tmp/a/b/c/mine", "/home/ana/monalisa", "/home/ana/monalisa"),
        ] {
            assert_eq!(way(Path::new(from), Path::new(to)), expected);
        }
    }

    #[test]
    fn a_folder_whose_name_is_no_crate_is_refused() {
        for name in ["../My-Workers", "..", "", "../7up", "../a b", "/x/monalisa"] {
            assert!(name_of(Path::new(name)).is_err(), "{name}");
        }
        assert_eq!(name_of(Path::new("../my-workers/")).expect("a name"), "my-workers");
    }
}
