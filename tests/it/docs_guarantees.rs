//! The table of guarantees names tests that exist, and invariants by their names.

use std::{collections::BTreeSet, path::Path};

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of each row of the tables, without their headings.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---") && !line.starts_with("| where |"));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Functions that are tests: the suite's, and those of the process's parts.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in ["tests/it", "src/process"].into_iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap()) {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for rest in text.split("test]\n").skip(1) {
            let line = rest.lines().map(str::trim_start).find(|line| !line.starts_with('#')).unwrap_or_default();
            let name = line.trim_start_matches("async ").strip_prefix("fn ").and_then(|rest| rest.split('(').next());
            found.extend(name.map(str::to_owned));
        }
    }
    found
}

#[test]
fn every_row_names_tests_that_exist() {
    let (page, tests) = (read("docs/guarantees.md"), tests());
    let rows = rows(&page);
    assert!(rows.len() > 40 && tests.len() > 100, "{} rows, {} tests", rows.len(), tests.len());
    for row in rows {
        assert!(row.len() == 5 && row.iter().all(|cell| !cell.is_empty()), "where, fault, what follows, invariant, test: {row:?}");
        let named: Vec<&str> = row[4].split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test: {row:?}");
        for name in named {
            assert!(tests.contains(name), "there is no test {name}");
        }
    }
}

#[test]
fn every_row_names_invariants_by_their_names() {
    let (page, architecture) = (read("docs/guarantees.md"), read("docs/architecture.md"));
    let invariants: BTreeSet<&str> =
        architecture.lines().filter(|line| line.starts_with("| I")).filter_map(|line| line.split('|').nth(1)).map(str::trim).collect();
    assert_eq!(invariants.len(), 11);
    for row in rows(&page) {
        for named in row[3].split(", ") {
            assert!(invariants.contains(named), "{named:?} is none of {invariants:?}");
        }
    }
}

#[test]
fn every_list_of_mutants_is_made_for_the_code_as_it_is() {
    let tests = tests();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/mutate.d")).unwrap() {
        let list = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for block in list.split("\n\n").filter(|block| block.contains("name ")) {
            let field = |name: &str| {
                let mut lines = block.lines().skip_while(|line| !line.starts_with(&format!("{name} ")));
                let first = lines.next().unwrap_or_else(|| panic!("no {name} in {block}"))[name.len() + 1..].to_owned();
                lines.map_while(|line| line.strip_prefix('\t')).fold(first, |text, line| text + "\n" + line)
            };
            assert_eq!(read(&field("file")).matches(&field("old")).count(), 1, "this stands once in the code: {block}");
            let name = field("test");
            assert!(name.ends_with("::") || tests.iter().any(|test| test.contains(&name)), "there is no test {name}");
        }
    }
}
