//! The JSON that travels. A worker trusts only `runId`, `generation` and `deadLetter.generation`; the rest is for people.

use serde::Deserialize;
use uuid::Uuid;

/// What a worker reads of a message body.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The run it is about.
    pub run_id: Uuid,
    /// The generation it was sent for.
    pub generation: i32,
    /// Present in a dead letter; in a message on a main queue it is an operator's redrive.
    #[serde(default)]
    pub dead_letter: Option<DeadLetter>,
}

/// What a worker reads of a dead letter that came back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DeadLetter {
    /// The generation that failed.
    pub generation: i32,
}

/// What of a dead letter is repeated as message attributes, for people.
const ATTRIBUTES: [&str; 6] = ["generation", "code", "text", "attempt", "worker", "at"];

/// The attributes of a dead letter; `None` for any other envelope, whatever it looks like.
pub(crate) fn dead_letter(envelope: &str) -> Option<Vec<(&'static str, String)>> {
    if !envelope.contains("\"deadLetter\"") {
        return None;
    }
    let mut envelope: serde_json::Map<String, serde_json::Value> = serde_json::from_str(envelope).ok()?;
    let letter = envelope.remove("deadLetter").filter(|letter| !letter.is_null())?;
    let text = |name| match letter.get(name)? {
        serde_json::Value::String(text) if !text.is_empty() => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    Some(ATTRIBUTES.into_iter().filter_map(|name| Some((name, text(name)?))).collect())
}

impl Envelope {
    /// Reads a message body; the error says in words why it is not ours, without quoting it.
    pub fn read(body: &str) -> Result<Envelope, String> {
        let envelope: Envelope = serde_json::from_str(body).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => "the body is JSON, but not an envelope with runId and generation".to_owned(),
            _ => format!("the body is not JSON (line {}, column {})", error.line(), error.column()),
        })?;
        if envelope.generation < 1 || envelope.mark() < 0 {
            return Err("the generation of the envelope is not 1 or more".to_owned());
        }
        Ok(envelope)
    }

    /// The generation a redriven dead letter was made for, 0 without one.
    pub fn mark(&self) -> i32 {
        self.dead_letter.as_ref().map_or(0, |letter| letter.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_trusts_and_ignores_the_rest() {
        let read = Envelope::read(r#"{"v":1,"runId":"01a22cd2-23e0-7839-a807-d1bcc76c81c6","generation":2,"tenantId":"x"}"#);
        assert_eq!(read.map(|envelope| (envelope.generation, envelope.mark())), Ok((2, 0)));
    }

    #[test]
    fn a_dead_letter_is_told_by_its_mark_alone() {
        assert_eq!(dead_letter(r#"{"runId":"x","unit":"deadLetter"}"#), None);
        assert_eq!(dead_letter(r#"{"deadLetter":null}"#), None);
        assert_eq!(dead_letter(r#"{"deadLetter":true}"#), Some(vec![]));
        let letter = dead_letter(r#"{"deadLetter":{"generation":2,"code":"NOT_FOUND","text":"","x":1}}"#);
        assert_eq!(letter, Some(vec![("generation", "2".to_owned()), ("code", "NOT_FOUND".to_owned())]));
    }

    #[test]
    fn says_why_a_foreign_body_is_refused() {
        for body in ["hello", "[]", "null", "", r#"{"run_id":42}"#, r#"{"runId":"x","generation":1}"#] {
            assert!(Envelope::read(body).is_err(), "{body}");
        }
        let zero = r#"{"runId":"01a22cd2-23e0-7839-a807-d1bcc76c81c6","generation":0}"#;
        assert_eq!(Envelope::read(zero), Err("the generation of the envelope is not 1 or more".to_owned()));
        let below = r#"{"runId":"01a22cd2-23e0-7839-a807-d1bcc76c81c6","generation":1,"deadLetter":{"generation":-1}}"#;
        assert!(Envelope::read(below).is_err());
    }
}
