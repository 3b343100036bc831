//! The folder `sql/`: nothing lies outside the catalogue of statements, and every header tells the truth.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use monalisa::sql::{ALL, INDEXES, ONE_SIGNATURE, REAPPLIED, ROLES, SCRIPTS, Statement};
use tokio_postgres::types::Type;

use crate::support::World;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn listed() -> impl Iterator<Item = Statement> {
    ALL.iter().chain(REAPPLIED).chain(SCRIPTS).copied().chain([ROLES, ONE_SIGNATURE]).chain(INDEXES.iter().map(|index| index.statement))
}

/// What a header says under each word; a line that is indented goes on with the line before.
pub fn header(statement: Statement) -> Vec<(String, String)> {
    let mut said: Vec<(String, String)> = Vec::new();
    for line in statement.text.lines().take_while(|line| line.starts_with("--")).skip(1) {
        let line = line.strip_prefix("-- ").unwrap_or_else(|| panic!("{}: {line:?}", statement.name));
        match line.strip_prefix("          ") {
            Some(more) => {
                let last = said.last_mut().unwrap_or_else(|| panic!("{}: {line:?} goes on with nothing", statement.name));
                last.1 = format!("{} {}", last.1, more.trim());
            }
            None => {
                let (word, text) = line.split_once(' ').unwrap_or_else(|| panic!("{}: {line:?}", statement.name));
                said.push((word.to_owned(), text.trim().to_owned()));
            }
        }
    }
    said
}

pub fn header_line(statement: Statement, word: &str) -> Option<String> {
    header(statement).into_iter().find(|(name, _)| name == word).map(|(_, text)| text)
}

#[test]
fn every_file_is_in_the_catalogue_once_and_back() {
    let mut files = BTreeSet::new();
    let mut folders = vec![root().join("sql")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "sql") {
                let name = path.strip_prefix(root().join("sql")).unwrap().with_extension("");
                files.insert(name.to_str().unwrap().to_owned());
            }
        }
    }
    let names: Vec<String> = listed().map(|statement| statement.name.to_owned()).collect();
    assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), files);
    assert_eq!(names.len(), files.len(), "a file is listed twice");
    for statement in listed() {
        let text = std::fs::read_to_string(root().join("sql").join(format!("{}.sql", statement.name))).unwrap();
        assert_eq!(text, statement.text, "{}", statement.name);
    }
}

#[test]
fn a_header_begins_with_the_name_and_is_short() {
    for statement in listed() {
        let name = match statement.name.strip_prefix("functions/") {
            // A function is known by the name it is called by.
            Some(function) => format!("work.{function}"),
            None => statement.name.to_owned(),
        };
        let first = statement.text.lines().next().unwrap();
        let sentence = first.strip_prefix(&format!("-- {name}: ")).unwrap_or_else(|| panic!("{first:?} does not begin with -- {name}:"));
        assert!(sentence.len() > 10 && !sentence.ends_with('.'), "{first}");
        let lines = statement.text.lines().take_while(|line| line.starts_with("--")).count();
        assert!(lines <= 12, "{}: a header of {lines} lines", statement.name);
        for (word, _) in header(statement) {
            let known = ["returns", "raises", "caller", "index", "locks", "plan", "note", "tune"];
            assert!(word.starts_with('$') || known.contains(&word.as_str()), "{}: {word}", statement.name);
        }
    }
}

#[test]
fn a_header_names_a_caller_that_is_there() {
    let words = |text: &str| text.split([' ', ',', ';', ':']).map(str::to_owned).collect::<Vec<_>>();
    for statement in listed() {
        let caller = header_line(statement, "caller").unwrap_or_default();
        if ALL.contains(&statement) || statement.name.starts_with("functions/") {
            assert!(!caller.is_empty(), "{} names no caller", statement.name);
        }
        for word in words(&caller) {
            if word.starts_with("src/") || word.starts_with("sql/") {
                assert!(root().join(&word).is_file(), "{}: {word} is not there", statement.name);
            }
            if let Some(function) =
                word.strip_prefix("work.").filter(|name| !name.starts_with("run_events") && !name.starts_with("task_runs"))
            {
                let called = statement.name.strip_prefix("functions/").unwrap();
                let text = std::fs::read_to_string(root().join(format!("sql/functions/{function}.sql"))).unwrap();
                assert!(text.contains(&format!("work.{called}(")), "work.{function} does not call {}", statement.name);
            }
        }
    }
}

#[test]
fn both_outboxes_have_the_same_statements() {
    let of = |folder: &str| -> BTreeMap<String, String> {
        let folder = format!("{folder}/");
        let files = listed().filter(|statement| statement.name.starts_with(&folder));
        files.map(|statement| (statement.name[folder.len()..].to_owned(), statement.text.to_owned())).collect()
    };
    let (tenant, platform) = (of("outbox"), of("platform_outbox"));
    assert_eq!(tenant.len(), 5);
    let renamed: BTreeMap<String, String> = platform
        .into_iter()
        .map(|(name, text)| (name, text.replace("platform_outbox", "outbox").replace("null::int8 as tenant_id", "o.tenant_id")))
        .collect();
    assert_eq!(renamed, tenant);
}

fn written(kind: &Type) -> String {
    kind.name().strip_prefix('_').map_or_else(|| kind.name().to_owned(), |element| format!("{element}[]"))
}

/// `name type, name type (remark); remark` as pairs.
fn typed(text: &str) -> Vec<(String, String)> {
    let mut plain = String::new();
    let mut depth = 0;
    for letter in text.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    let columns = plain.split([';', ':']).next().unwrap_or_default();
    columns
        .split(',')
        .map(|column| {
            let words: Vec<&str> = column.split_whitespace().collect();
            let [name, kind] = words[..] else { panic!("{column:?} in {text:?} is not a name and a type") };
            (name.to_owned(), kind.to_owned())
        })
        .collect()
}

#[tokio::test]
async fn every_statement_takes_and_returns_what_its_header_says() {
    let world = World::without_queues().await;
    let mut compared = 0;
    for statement in ALL {
        let prepared = world.db.prepare(statement.text).await.unwrap_or_else(|error| panic!("{}: {error:?}", statement.name));
        let parameters: Vec<(String, String)> = header(*statement)
            .into_iter()
            .filter(|(word, _)| word.starts_with('$'))
            .map(|(word, text)| (word, text.split_whitespace().nth(1).unwrap().trim_end_matches([',', ':', ';']).to_owned()))
            .collect();
        let actual: Vec<(String, String)> =
            prepared.params().iter().enumerate().map(|(place, kind)| (format!("${}", place + 1), written(kind))).collect();
        assert_eq!(parameters, actual, "parameters of {}", statement.name);

        let returns = header_line(*statement, "returns").unwrap_or_else(|| panic!("{} does not say what it returns", statement.name));
        let columns: Vec<(String, String)> =
            prepared.columns().iter().map(|column| (column.name().to_owned(), written(column.type_()))).collect();
        if returns.starts_with("nothing") {
            assert_eq!(columns, [], "{}", statement.name);
        } else if !returns.starts_with("one row") && !returns.starts_with("a row") {
            assert_eq!(typed(&returns), columns, "columns of {}", statement.name);
            compared += 1;
        }
    }
    assert!(compared >= 18, "only {compared} headers list their columns");
}

#[tokio::test]
async fn every_index_a_header_names_exists_as_it_says() {
    let world = World::without_queues().await;
    let rows = world.db.query("select indexname::text, indexdef from pg_indexes where schemaname = 'work'", &[]).await.unwrap();
    let plain = |text: &str| text.to_lowercase().replace(['(', ')'], "");
    let definitions: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), plain(row.get(1)))).collect();
    let mut named = BTreeSet::new();
    for statement in listed() {
        let Some(text) = header_line(statement, "index") else { continue };
        for part in text.split(';').map(str::trim) {
            // Either one index with its definition, or a list of names.
            let names = part.split_once(' ').filter(|(_, rest)| rest.starts_with('(')).map_or(part, |(name, _)| name);
            for name in names.split(',').map(str::trim) {
                let definition = definitions.get(name).unwrap_or_else(|| panic!("{}: there is no index {name}", statement.name));
                named.insert(name.to_owned());
                if names != part {
                    let said = plain(&part[names.len()..]);
                    assert!(definition.ends_with(said.trim()), "{}: {definition} is not {said}", statement.name);
                }
            }
        }
    }
    assert!(named.len() >= 10, "{named:?}");
}
