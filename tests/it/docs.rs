//! What the documentation says is what the code does.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::support::{World, connect};

/// The pages that are checked.
const PAGES: [&str; 9] = [
    "README.md",
    "sql/README.md",
    "docs/errors.md",
    "docs/architecture.md",
    "docs/guarantees.md",
    "docs/for-api-teams.md",
    "docs/for-dbas.md",
    "docs/for-handler-authors.md",
    "docs/schedules.md",
];
/// Where the Rust code of pages is compiled and run.
const COMPILED: [(&str, &[&str]); 3] = [
    ("README.md", &["tests/it/readme.rs", "tests/example/src/main.rs", "tests/example/src/reports.rs"]),
    ("docs/for-handler-authors.md", &["tests/it/handbook.rs"]),
    ("docs/schedules.md", &["tests/it/readme.rs"]),
];

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below a folder with this ending, relative to it.
fn files(folder: &Path, ending: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// The text below a heading, up to the next one of its level or above.
pub fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let level = heading.bytes().take_while(|byte| *byte == b'#').count();
    let begin = page.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("there is no heading {heading:?}")) + heading.len() + 2;
    let rest = &page[begin..];
    let end = (1..=level).filter_map(|level| rest.find(&format!("\n{} ", "#".repeat(level)))).min();
    &rest[..end.unwrap_or(rest.len())]
}

/// The code blocks of a page: what stands after the three marks, and the code.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(info), None) => open = Some((info.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, code))) => *code += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block is not closed");
    blocks
}

/// What stands between backticks in the first cell of each row of the tables.
fn first_cells(page: &str) -> Vec<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(cell, _)| cell.to_owned()));
    cells.collect()
}

/// As a set; a cell that stands twice is an error.
fn once(cells: Vec<String>) -> BTreeSet<String> {
    let set: BTreeSet<String> = cells.iter().cloned().collect();
    assert_eq!(set.len(), cells.len(), "a row stands twice: {cells:?}");
    set
}

/// Every text between double quotes that follows this in the code.
fn quoted_after<'a>(code: &'a str, start: &str) -> Vec<&'a str> {
    code.split(start).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

fn is_code(text: &str) -> bool {
    text.len() > 2 && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

#[tokio::test]
async fn the_states_of_the_readme_are_those_of_the_database() {
    let world = World::new().await;
    let rows = world.db.query("select name, coalesce(from_status, '[*]'), to_status from work.transitions()", &[]).await.unwrap();
    let allowed: BTreeSet<String> =
        rows.iter().map(|row| format!("{} --> {}: {}", row.get::<_, &str>(1), row.get::<_, &str>(2), row.get::<_, &str>(0))).collect();
    let readme = read("README.md");
    let states = section(&readme, "## The states of a run");
    let (_, picture) = blocks(states).into_iter().find(|(info, _)| info == "mermaid").expect("a picture");
    let drawn = once(picture.lines().filter(|line| line.contains("-->")).map(|line| line.trim().to_owned()).collect());
    assert_eq!(drawn, allowed);
    let named: BTreeSet<String> = rows.iter().map(|row| row.get(2)).collect();
    assert_eq!(once(first_cells(states)), named);
}

#[tokio::test]
async fn the_runnable_sql_of_the_readme_runs() {
    let world = World::new().await;
    let producer = connect(&world.url(Some("test_api"))).await;
    let mut ran = 0;
    for (info, code) in blocks(&read("README.md")) {
        let client = match info.as_str() {
            "sql run=owner" => &world.db,
            "sql run=producer" => &producer,
            other => {
                assert!(!other.starts_with("sql"), "say who runs it, or indent it: {other}");
                continue;
            }
        };
        client.batch_execute(&code).await.unwrap_or_else(|error| panic!("{code}\n{error:?}"));
        ran += 1;
    }
    assert!(ran >= 5, "{ran} blocks ran");
    let runs = world.count("select count(*) from work.task_runs").await;
    assert_eq!(runs, 4, "two dispatches and two publishes with a subscriber");
}

#[test]
fn the_rust_code_of_the_pages_is_compiled_and_run() {
    for (page, files) in COMPILED {
        let compiled: String = files.iter().map(read).collect();
        let rust: Vec<String> = blocks(&read(page)).into_iter().filter(|(info, _)| info == "rust").map(|(_, code)| code).collect();
        assert!(!rust.is_empty(), "{page} has no Rust");
        for code in rust {
            assert!(compiled.contains(code.trim()), "this is not in {files:?}:\n{code}");
        }
    }
}

#[test]
fn make_targets_that_are_named_exist() {
    let makefile = read("Makefile");
    let targets: BTreeSet<&str> = makefile.lines().filter_map(|line| line.split_once(": ").map(|(name, _)| name)).collect();
    let mut named = 0;
    for page in PAGES {
        let text = read(page);
        let shell = blocks(&text).into_iter().filter(|(info, _)| info == "sh").map(|(_, code)| code).collect::<String>();
        let spans = text.split('`').skip(1).step_by(2).chain(shell.lines());
        for target in spans.filter_map(|code| code.strip_prefix("make ")?.split_whitespace().next()) {
            assert!(targets.contains(target), "{page} names make {target}");
            named += 1;
        }
    }
    assert!(named > 8, "{named} are named");
}

#[test]
fn environment_variables_are_those_the_code_knows() {
    let config = read("src/config.rs");
    let list = config.split("const KNOWN: &[&str] = &[").nth(1).expect("the list").split("];").next().unwrap();
    let known: BTreeSet<String> =
        list.lines().filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).map(str::to_owned).collect();
    assert!(known.contains("DATABASE_URL"));
    let readme = read("README.md");
    assert_eq!(once(first_cells(section(&readme, "### Environment variables"))), known);
    // And nothing else is named anywhere.
    for page in PAGES {
        for word in read(page).split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("MONALISA_")) {
            assert!(known.contains(word) || word.ends_with('_'), "{page} names {word}");
        }
    }
}

#[test]
fn every_sql_file_has_its_row() {
    let rows = once(first_cells(section(&read("sql/README.md"), "## The files")));
    assert_eq!(rows, files(&root().join("sql"), ".sql"));
}

#[test]
fn rows_of_sql_files_name_their_indexes() {
    let page = read("sql/README.md");
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let file = line[3..].split('`').next().unwrap();
        let Some(path) = file.ends_with(".sql").then(|| format!("sql/{file}")) else { continue };
        let text = read(path);
        let header = text.lines().find_map(|line| line.strip_prefix("-- index ")).unwrap_or_default();
        let words = header.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|word| word.contains('_'));
        for index in words.filter(|word| ["_idx", "_pkey", "_key"].iter().any(|ending| word.ends_with(ending))) {
            assert!(line.contains(index), "the row of {file} does not name {index}");
        }
    }
}

/// Codes and names that the SQL raises, from the statements themselves.
fn raised() -> BTreeMap<String, String> {
    let mut raised = BTreeMap::new();
    for file in files(&root().join("sql"), ".sql") {
        let text = read(format!("sql/{file}"));
        for statement in text.split("raise exception '").skip(1) {
            let name = statement.split(':').next().unwrap();
            let code = statement.split("errcode = '").nth(1).expect("an errcode").split('\'').next().unwrap();
            let other = raised.insert(code.to_owned(), name.to_owned());
            assert!(other.is_none_or(|other| other == name), "{code} has two names");
        }
    }
    raised
}

#[test]
fn sqlstates_are_exactly_those_that_are_raised() {
    let page = read("docs/errors.md");
    let mut listed = BTreeMap::new();
    for line in section(&page, "## SQLSTATEs").lines().filter(|line| line.starts_with("| `ML")) {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        assert!(listed.insert(cells[1].to_owned(), cells[2].to_owned()).is_none(), "{} stands twice", cells[1]);
        assert!(cells.len() == 6 && cells[3..5].iter().all(|cell| !cell.is_empty()), "when, and what to do: {line}");
    }
    assert_eq!(listed, raised());
    // And those that are named beside a raise, in headers of callers.
    for file in files(&root().join("sql"), ".sql") {
        for word in read(format!("sql/{file}")).split(|c: char| !c.is_ascii_alphanumeric()) {
            if word.len() == 5 && word.starts_with("ML") {
                assert!(listed.contains_key(word), "{file} names {word}");
            }
        }
    }
}

#[test]
fn failure_codes_are_exactly_those_that_are_written() {
    let page = read("docs/errors.md");
    let listed = once(first_cells(section(&page, "## Failure codes")));
    let mut written = BTreeSet::new();
    for file in files(&root().join("src"), ".rs") {
        let text = read(format!("src/{file}"));
        // Without tests and doc comments.
        let code = text.split("#[cfg(test)]").next().unwrap().lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join("\n");
        for start in ["with_code(", "TaskError::permanent(", "TaskError::new(", "(hold, body, ", "Borrowed("] {
            written.extend(quoted_after(&code, start).into_iter().filter(|text| is_code(text)).map(str::to_owned));
        }
        if code.contains("\"SQL_{}\"") {
            written.insert("SQL_xxxxx".to_owned());
        }
    }
    let recorders = files(&root().join("sql/runs"), ".sql").into_iter().map(|file| format!("sql/runs/{file}"));
    for file in recorders.chain(["sql/functions/reissue.sql".to_owned()]) {
        let text = read(file);
        let names = text.split("'").skip(1).step_by(2).filter_map(|text| text.split_once(": ")).map(|(name, _)| name);
        written.extend(names.filter(|name| is_code(name)).map(str::to_owned));
    }
    assert_eq!(listed, written);
}

#[test]
fn links_lead_somewhere() {
    for page in PAGES {
        let text = read(page);
        let folder = root().join(page).parent().unwrap().to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { root().join(page) } else { folder.join(path) };
            assert!(file.exists(), "{page} links to {target}");
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&file).unwrap();
                assert!(text.lines().any(|line| line.starts_with('#') && slug(line) == anchor), "{page} links to {target}");
            }
        }
        // Paths of files in code spans.
        for span in text.split('`').skip(1).step_by(2).filter(|span| !span.contains(char::is_whitespace) && !span.contains('*')) {
            let rooted =
                ["src/", "sql/", "tests/it/", "docs/", "scripts/", "migrations/", "ops/"].iter().any(|start| span.starts_with(start));
            assert!(!rooted || root().join(span).exists() || folder.join(span).exists(), "{page} names {span}");
        }
    }
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).map(|c| if c == ' ' { '-' } else { c }).collect()
}
