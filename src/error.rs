//! Errors, named by what the caller does next.

use std::{error::Error as StdError, fmt::Write as _, time::Duration};

use tokio_postgres::error::{DbError, SqlState};

use crate::tls;

/// SQLSTATEs that `work.succeed` raises; `docs/errors.md` lists them.
const TRANSACTION_ENDED: &str = "ML010";
const LEASE_LOST: &str = "ML011";
const READ_ONLY: &str = "ML032";
/// What a server answers that can do no work just now: its disk is full, or it has no memory left. Class 58 is the same of its files.
const EXHAUSTED: [&str; 2] = ["53100", "53200"];
/// Where PostgreSQL finds that what a session has prepared, itself or in PL/pgSQL, fits a table no more that was altered since. It fails
/// for as long as the session lasts, and has no SQLSTATE of its own.
const STALE_PLAN: [&str; 3] = ["RevalidateCachedQuery", "plpgsql_param_eval_recfield", "ExecEvalParamExtern"];

/// What went wrong at the edge to PostgreSQL, SQS or Valkey.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// PostgreSQL answered with an error, or the connection failed.
    #[error("{}: {}", .statement, postgres_text(.source))]
    Postgres {
        /// Name of the statement.
        statement: &'static str,
        /// What the driver said.
        source: tokio_postgres::Error,
    },
    /// PostgreSQL did not answer in time; what became of the statement is unknown.
    #[error("{statement}: no answer in {} s", .limit.as_secs())]
    Unanswered {
        /// Name of the statement.
        statement: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// No connection to PostgreSQL could be had in time.
    #[error("no connection to PostgreSQL: {0}")]
    Pool(String),
    /// SQS refused a call, or did not answer in time.
    #[error("SQS {action} failed: {text}")]
    Sqs {
        /// The action, such as `SendMessageBatch`.
        action: &'static str,
        /// Code and text, without any message body.
        text: String,
    },
    /// Valkey refused a command, or did not answer in time.
    #[error("Valkey: {0}; without it rows go out at the next sweep")]
    Valkey(String),
    /// The configuration cannot be used; every problem on a line of its own.
    #[error("the configuration cannot be used:\n{0}")]
    Config(String),
    /// Somebody holds what is needed; try again later.
    #[error("{0}")]
    Busy(String),
    /// Anything else, in words that say what to do.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// Wraps what the driver said of a statement.
    pub(crate) fn postgres(statement: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Error {
        move |source| Error::Postgres { statement, source }
    }

    /// The SQLSTATE, where PostgreSQL answered with one.
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match self {
            Error::Postgres { source, .. } => source.code(),
            _ => None,
        }
    }

    fn is(&self, code: &str) -> bool {
        self.sqlstate().is_some_and(|state| state.code() == code)
    }

    /// Whether a finish was refused because the lease is not ours any more.
    pub fn is_lease_lost(&self) -> bool {
        self.is(LEASE_LOST)
    }

    /// Whether a finish was refused because the handler ended the effect transaction.
    pub fn is_transaction_ended(&self) -> bool {
        self.is(TRANSACTION_ENDED)
    }

    /// Whether somebody else held a lock for too long.
    pub fn is_locked(&self) -> bool {
        self.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Whether it took longer than its limit, and was ended for that.
    pub fn is_out_of_time(&self) -> bool {
        self.sqlstate() == Some(&SqlState::QUERY_CANCELED)
    }

    /// Whether PostgreSQL gave up, or was not waited for any longer.
    pub fn took_too_long(&self) -> bool {
        self.is_out_of_time() || matches!(self, Error::Unanswered { .. })
    }

    /// Whether PostgreSQL could not be reached at all.
    pub fn is_out_of_reach(&self) -> bool {
        matches!(self, Error::Unanswered { .. } | Error::Pool(_))
    }

    /// Whether the session itself is gone or of no use any more: lost, shut down, on a server that is now read-only or out of disk or memory,
    /// or with prepared statements that fit no more.
    pub fn session_is_gone(&self) -> bool {
        match self {
            Error::Postgres { source, .. } => session_is_gone(source),
            Error::Unanswered { .. } | Error::Pool(_) => true,
            _ => false,
        }
    }
}

/// Whether an error of the driver means that the session is gone, rather than that a statement was refused.
pub(crate) fn session_is_gone(error: &tokio_postgres::Error) -> bool {
    if error.is_closed() {
        return true;
    }
    if error.as_db_error().and_then(DbError::routine).is_some_and(|routine| STALE_PLAN.contains(&routine)) {
        return true;
    }
    match error.code() {
        Some(code) => {
            let code = code.code();
            ["08", "57P", "58"].iter().any(|class| code.starts_with(class))
                || ["25006", "25P03", "25P04", READ_ONLY].contains(&code)
                || EXHAUSTED.contains(&code)
        }
        // Without an SQLSTATE the error came from the connection, or from reading a value (a bug of the caller).
        None => error.source().is_some_and(|source| source.is::<std::io::Error>()),
    }
}

/// The message, SQLSTATE and hint of an error; never its detail, which may quote a row, nor a value that the message quotes.
pub(crate) fn postgres_text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => {
            let code = db.code().code();
            // What a value is made of that cannot be read: class 22 quotes it in the message itself.
            let message = if code.starts_with("22") { unquoted(db.message()) } else { db.message().to_owned() };
            let mut text = format!("{message} (SQLSTATE {code})");
            if let Some(hint) = db.hint() {
                let _ = write!(text, "; {hint}");
            }
            text
        }
        None => explained(error),
    }
}

/// Without what stands between the first quotation mark and the last.
fn unquoted(message: &str) -> String {
    let mut marks = message.char_indices().filter(|(_, c)| QUOTATION_MARKS.contains(c));
    match (marks.next(), marks.next_back()) {
        (Some((first, _)), Some((last, mark))) => format!("{}\"…\"{}", &message[..first], &message[last + mark.len_utf8()..]),
        _ => message.to_owned(),
    }
}

/// Those of the languages that PostgreSQL speaks (lc_messages).
const QUOTATION_MARKS: [char; 9] = ['"', '«', '»', '„', '“', '”', '‚', '‘', '’'];

/// An error with its causes, in one line, and what to do where that is known.
pub(crate) fn explained(error: &(dyn StdError + 'static)) -> String {
    let text = chain(error);
    match tls::advice(error) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            let _ = write!(text, ": {part}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_told_without_what_it_quotes_in_any_language() {
        for (message, told) in [
            ("invalid input syntax for type integer: \"SECRET\"", "invalid input syntax for type integer: \"…\""),
            ("ungültige Eingabesyntax für Typ integer: »SECRET«", "ungültige Eingabesyntax für Typ integer: \"…\""),
            ("syntaxe en entrée invalide pour le type integer : « SEC«RET »", "syntaxe en entrée invalide pour le type integer : \"…\""),
            ("„SECRET“ is out of range", "\"…\" is out of range"),
            ("division by zero", "division by zero"),
        ] {
            assert_eq!(unquoted(message), told);
        }
    }
}
