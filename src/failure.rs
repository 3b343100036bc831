//! What a handler answers when it cannot do its work, and what of it may be written down.

use std::{any::Any, borrow::Cow, error::Error as StdError, time::Duration};

use crate::error::{postgres_text, session_is_gone};

/// Bytes of error text that are kept; the dead letter repeats them, so they stay far below what a message may hold.
const TEXT_LIMIT: usize = 4_096;

/// Why an attempt failed. Any error converts into a transient one with `?`; a permanent one is said.
///
/// ```
/// use monalisa::TaskError;
///
/// fn find(id: i64) -> Result<&'static str, TaskError> {
///     let text = std::str::from_utf8(b"report")?; // any error: transient, tried again later
///     if id == 0 {
///         return Err(TaskError::not_found("there is no report 0")); // permanent: failed at once
///     }
///     Ok(text)
/// }
/// assert!(find(0).unwrap_err().is_permanent());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    code: Cow<'static, str>,
    text: String,
    permanent: bool,
    retry_after: Option<Duration>,
    session_gone: bool,
}

impl TaskError {
    fn new(code: impl Into<Cow<'static, str>>, text: impl Into<String>, permanent: bool) -> Self {
        TaskError { code: code.into(), text: text.into(), permanent, retry_after: None, session_gone: false }
    }

    /// Tried again after a backoff, at most five attempts in all.
    pub fn transient(text: impl Into<String>) -> Self {
        TaskError::new("TRANSIENT", text, false)
    }

    /// Fails the run at once. `code` is made of capital letters, digits and underscores, such as `CARD_EXPIRED`.
    pub fn permanent(code: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Self {
        TaskError::new(code, text, true)
    }

    /// Permanent: the payload or the state of things makes the work impossible.
    pub fn validation(text: impl Into<String>) -> Self {
        TaskError::permanent("VALIDATION", text)
    }

    /// Permanent: it is not allowed.
    pub fn forbidden(text: impl Into<String>) -> Self {
        TaskError::permanent("FORBIDDEN", text)
    }

    /// Permanent: what it is about does not exist.
    pub fn not_found(text: impl Into<String>) -> Self {
        TaskError::permanent("NOT_FOUND", text)
    }

    /// For a transient error: the wait before the next attempt, instead of the backoff; at most a year.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Gives it a code of your own: capital letters, digits and underscores.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.code = code.into();
        self
    }

    /// Whether the run fails at once.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// The wait that was asked for.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The code, made safe: capital letters, digits and underscores, at most 64.
    pub fn code(&self) -> String {
        let code: String =
            self.code.chars().take(64).map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        if code.starts_with(|c: char| c.is_ascii_uppercase()) { code } else { format!("E_{code}") }
    }

    /// The text, cut to 4 KiB on a character boundary and marked as cut, without characters that jsonb or SQS refuse.
    pub fn text(&self) -> String {
        // Errors of our own functions begin with their code, which stands before the text already.
        let text = self.text.strip_prefix(&*self.code).and_then(|text| text.strip_prefix(": ")).unwrap_or(&self.text);
        storable(text, TEXT_LIMIT)
    }

    /// Whether the database session of the attempt was lost, which is not the handler's failure.
    pub(crate) fn session_gone(&self) -> bool {
        self.session_gone
    }

    /// A failure that means the effect session was lost.
    pub(crate) fn interrupted(text: impl Into<String>) -> Self {
        TaskError { session_gone: true, ..TaskError::new("INTERRUPTED", text, false) }
    }
}

// `TaskError` is no `std::error::Error` itself, so that this conversion may take any error that is.
impl<E: StdError + Send + Sync + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        let mut text = String::new();
        let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
        while let Some(error) = cause {
            let (part, last) = match error.downcast_ref::<tokio_postgres::Error>() {
                // The detail of a database error may quote a row, so the message alone is kept.
                Some(database) => (postgres_text(database), true),
                None => (error.to_string(), false),
            };
            if !text.contains(&part) {
                if !text.is_empty() {
                    text.push_str(": ");
                }
                text.push_str(&part);
            }
            if let Some(database) = error.downcast_ref::<tokio_postgres::Error>() {
                let code = database.code().map_or(Cow::Borrowed("DATABASE"), |state| Cow::Owned(format!("SQL_{}", state.code())));
                return TaskError { session_gone: session_is_gone(database), ..TaskError::new(code, text, false) };
            }
            cause = if last { None } else { error.source() };
        }
        TaskError::new("ERROR", text, false)
    }
}

/// What a panic says, without the error that an `unwrap` or `expect` met: that may quote a row.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no text");
    let end = ["` value: ", "Error { kind: ", "DbError {", "DETAIL: "].into_iter().filter_map(|mark| text.find(mark)).min();
    end.map_or_else(|| text.to_owned(), |end| format!("{}…", &text[..end]))
}

/// Text that jsonb and SQS take: no NUL, no control characters but tab and line ends, no U+FFFE or U+FFFF; cut to `limit` bytes.
pub(crate) fn storable(text: &str, limit: usize) -> String {
    const CUT: &str = "… (cut)";
    let clean = |c: char| match c {
        '\t' | '\n' | '\r' => c,
        c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    let mut kept: String = text.chars().take(limit + 1).map(clean).collect();
    if kept.len() > limit {
        kept.truncate(kept.floor_char_boundary(limit - CUT.len()));
        kept.push_str(CUT);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_is_transient_and_keeps_its_causes() {
        let error: TaskError = std::io::Error::other("the server hung up").into();
        assert!(!error.is_permanent());
        assert_eq!((error.code().as_str(), error.text().as_str()), ("ERROR", "the server hung up"));
    }

    #[test]
    fn text_is_cut_on_a_character_boundary_and_cleaned() {
        let text = storable(&"é😀".repeat(5_000), TEXT_LIMIT);
        assert!(text.len() <= TEXT_LIMIT && text.ends_with("… (cut)"), "{} bytes", text.len());
        assert_eq!(storable("a\0b\u{ffff}c\nd", 100), "a\u{fffd}b\u{fffd}c\nd");
        assert_eq!(storable("short", 100), "short");
    }

    #[test]
    fn a_panic_tells_nothing_of_the_error_it_met() {
        let told = |text: &str| panic_text(&text.to_owned());
        assert_eq!(
            told("called `Result::unwrap()` on an `Err` value: Error { kind: Db, detail: \"SECRET\" }"),
            "called `Result::unwrap()` on an `Err…"
        );
        assert_eq!(told("it is stored: Error { kind: Db, cause: Some(DbError { detail: Some(\"SECRET\") }) }"), "it is stored: …");
        assert_eq!(panic_text(&"no such account"), "no such account");
    }

    #[test]
    fn codes_are_made_safe() {
        assert_eq!(TaskError::permanent("card expired!", "").code(), "CARD_EXPIRED_");
        assert_eq!(TaskError::permanent("404", "").code(), "E_404");
    }
}
