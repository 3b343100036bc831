//! Payloads from text and outcomes to text. What does not fit is named by its field, and never quoted.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use serde_path_to_error::Segment;

use crate::failure::TaskError;

/// Fields that are tried for the one that does not fit, and how deep.
const MOST_FIELDS: usize = 100;
const DEEPEST: usize = 8;

/// Reads a payload; what does not fit is permanent and names the field, never the value.
#[doc(hidden)]
pub fn decode<P: DeserializeOwned>(text: &str) -> Result<P, TaskError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let problem = complaint(error.inner());
        let mut place = error.path().to_string();
        if !problem.contains(" field `") {
            for field in hidden_fields::<P>(text, error.path().iter(), &problem) {
                place = if place == "." { field } else { format!("{place}.{field}") };
            }
        }
        let place = if place == "." { String::new() } else { format!(" at {place}") };
        TaskError::permanent("PAYLOAD_UNDECODABLE", format!("the payload does not fit{place}: {problem}"))
    })
}

/// What serde says may quote the value it met: only its kind of complaint is kept.
fn complaint(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    if ["missing field", "unknown field", "duplicate field", "data did not match any variant"].iter().any(|start| text.starts_with(start)) {
        return text.split(", ").next().unwrap_or_default().to_owned();
    }
    text.rsplit_once(", expected ").map_or_else(|| "not readable".to_owned(), |(_, expected)| format!("expected {expected}"))
}

/// Where serde keeps fields back to look at them later (flattened ones, those of tagged enums), its path ends above them. The field is found
/// by trying: without it serde's complaint is another one, and with most other values in its place it is the same. Where that is true of
/// several, none is named.
fn hidden_fields<'a, P: DeserializeOwned>(text: &str, path: impl Iterator<Item = &'a Segment>, problem: &str) -> Vec<String> {
    let Ok(mut root) = serde_json::from_str::<Value>(text) else { return Vec::new() };
    let mut pointer = String::new();
    for segment in path {
        pointer += &match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } => step(key),
            Segment::Enum { variant } => step(variant),
            Segment::Unknown => return Vec::new(),
        };
    }
    let complains = |root: &Value| P::deserialize(root).err().is_some_and(|error| complaint(&error) == problem);
    let mut found = Vec::new();
    while found.len() < DEEPEST && complains(&root) {
        let Some(Value::Object(fields)) = root.pointer(&pointer).cloned() else { break };
        let mut complains_with = |name: &str, value: Option<Value>| {
            let mut changed = fields.clone();
            match value {
                Some(value) => drop(changed.insert(name.to_owned(), value)),
                None => drop(changed.remove(name)),
            }
            put(&mut root, &pointer, changed);
            complains(&root)
        };
        let mut guilty = fields.keys().take(MOST_FIELDS).filter(|name| {
            let others = [Value::Null, json!(true), json!(""), json!([[]]), json!({"": []})];
            !complains_with(name, None) && others.into_iter().filter(|other| complains_with(name, Some(other.clone()))).count() >= 3
        });
        let (Some(name), None) = (guilty.next(), guilty.next()) else { break };
        pointer += &step(name);
        found.push(name.clone());
        put(&mut root, pointer.rsplit_once('/').map_or("", |(above, _)| above), fields.clone());
    }
    found
}

/// A step of a JSON pointer.
fn step(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn put(root: &mut Value, pointer: &str, fields: Map<String, Value>) {
    if let Some(place) = root.pointer_mut(pointer) {
        *place = Value::Object(fields);
    }
}

/// What a handler returned, as JSON text; `()` is nothing.
#[doc(hidden)]
pub fn encode<T: Serialize, E: Into<TaskError>>(result: Result<T, E>) -> Result<Option<String>, TaskError> {
    let outcome = result.map_err(Into::into)?;
    let text = serde_json::to_string(&outcome)
        .map_err(|error| TaskError::permanent("OUTCOME_INVALID", format!("the outcome cannot be written as JSON: {error}")))?;
    Ok((text != "null").then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_does_not_fit_names_the_field_and_not_the_value() {
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Card {
            number: u32,
        }
        let error = decode::<Vec<Card>>(r#"[{"number":"SECRET-4111"}]"#).expect_err("a string");
        assert!(error.is_permanent());
        assert_eq!(error.text(), "the payload does not fit at [0].number: expected u32");
        assert!(decode::<Card>("{}").expect_err("missing").text().contains("missing field `number`"));
    }

    #[test]
    fn whatever_does_not_fit_is_named_with_its_place_and_never_quoted() {
        use std::collections::BTreeMap;

        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Order {
            lines: Vec<Line>,
            #[serde(default)]
            tags: BTreeMap<String, u8>,
            #[serde(flatten)]
            address: Address,
            means: Option<Means>,
            strict: Option<Strict>,
            either: Option<Either>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Line {
            price: Price,
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Price {
            currency: Currency,
            cents: u32,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "UPPERCASE")]
        enum Currency {
            Eur,
            Usd,
        }
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Address {
            street: String,
            number: u32,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        #[allow(dead_code)]
        enum Means {
            Card { number: u64 },
            Cash,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Strict {
            a: u8,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(untagged)]
        #[allow(dead_code)]
        enum Either {
            Number(u8),
            Many(Vec<u8>),
        }
        let rest = r#""street": "S", "number": 1"#;
        for (payload, expected) in [
            (
                format!(r#"{{"lines": [{{"price": {{"currency": "SECRET", "cents": 1}}}}], {rest}}}"#),
                " at lines[0].price.currency: expected `EUR` or `USD`",
            ),
            (
                format!(r#"{{"lines": [{{"price": {{"currency": "EUR", "cents": "SECRET"}}}}], {rest}}}"#),
                " at lines[0].price.cents: expected u32",
            ),
            (
                format!(r#"{{"lines": [{{"price": {{"currency": "EUR", "cents": -4111}}}}], {rest}}}"#),
                " at lines[0].price.cents: expected u32",
            ),
            (format!(r#"{{"lines": [{{"price": {{"currency": "EUR"}}}}], {rest}}}"#), " at lines[0].price: missing field `cents`"),
            (format!(r#"{{"lines": "SECRET", {rest}}}"#), " at lines: expected a sequence"),
            (format!(r#"{{{rest}}}"#), ": missing field `lines`"),
            (format!(r#"{{"lines": [], "tags": {{"red": 300}}, {rest}}}"#), " at tags.red: expected u8"),
            (r#"{"lines": [], "street": "S"}"#.to_owned(), ": missing field `number`"),
            (r#"{"lines": [], "street": "S", "number": "SECRET"}"#.to_owned(), " at number: expected u32"),
            (format!(r#"{{"lines": [], "means": {{"kind": "card"}}, {rest}}}"#), " at means: missing field `number`"),
            (format!(r#"{{"lines": [], "means": {{"kind": "SECRET"}}, {rest}}}"#), " at means.kind: expected `card` or `cash`"),
            (format!(r#"{{"lines": [], "means": {{"kind": "card", "number": "SECRET"}}, {rest}}}"#), " at means.number: expected u64"),
            (format!(r#"{{"lines": [], "means": {{}}, {rest}}}"#), " at means: missing field `kind`"),
            (format!(r#"{{"lines": [], "strict": {{"a": 1, "b": "SECRET"}}, {rest}}}"#), " at strict.b: unknown field `b`"),
            (
                format!(r#"{{"lines": [], "either": "SECRET", {rest}}}"#),
                " at either: data did not match any variant of untagged enum Either",
            ),
            (format!(r#"{{"lines": [], {rest}, {rest}}}"#), ": duplicate field `street`"),
        ] {
            let error = decode::<Order>(&payload).expect_err("it does not fit");
            println!("{}", error.text());
            assert_eq!(error.text(), format!("the payload does not fit{expected}"), "{payload}");
        }
    }
}
