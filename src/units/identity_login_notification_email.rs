//! `identity.login_notification_email`: the "new sign-in" mail, for each `identity.session_started`.
//!
//! Mail is outside the effect transaction: a worker that dies between the send and the commit sends it again. Both copies carry the
//! same `Message-ID`, made from the run's id, so that mail systems can tell.

use chrono::{DateTime, FixedOffset};
use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    address::AddressError,
    message::{Mailbox, MultiPart},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{address, config::SmtpConfig, error::chain, failure::TaskError, payload::Event, run::TaskRun};

/// Somebody signed in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionStarted {
    /// Whom to tell.
    pub email: String,
    /// How to greet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// From which address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// With which program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// When.
    pub occurred_at: DateTime<FixedOffset>,
    /// `pt…` for Portuguese; anything else is English.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
}

impl Event for SessionStarted {
    const TYPE: &'static str = "identity.session_started";
}

crate::subscriber! {
    event: SessionStarted,
    handler: send,
    name: "identity.login_notification_email",
    queue: "critical",
}

/// The mail server as configured; handlers share it.
pub(crate) struct Mailer(Option<(AsyncSmtpTransport<Tokio1Executor>, Mailbox)>);

impl Mailer {
    /// Reads the settings; connects at the first mail. The error quotes no password.
    pub(crate) fn new(config: &SmtpConfig) -> Result<Mailer, String> {
        let (Some(url), Some(from)) = (&config.url, &config.from) else {
            if config.url.is_some() || config.from.is_some() {
                return Err("MONALISA_SMTP_URL and MONALISA_SMTP_FROM go together: one of them is not set".to_owned());
            }
            return Ok(Mailer(None));
        };
        let transport = address::parse(url.expose(), &["smtp", "smtps"])
            .ok()
            .and_then(|url| AsyncSmtpTransport::<Tokio1Executor>::from_url(url.as_str()).ok())
            .ok_or_else(|| format!("MONALISA_SMTP_URL is not of the form smtp://user:password@host:587?tls=required; {}", address::ENCODE))?
            .timeout(Some(std::time::Duration::from_secs(20)))
            .build();
        let from = from.parse().map_err(|error: AddressError| format!("MONALISA_SMTP_FROM is not a mail address: {error}"))?;
        Ok(Mailer(Some((transport, from))))
    }

    pub(crate) fn is_configured(&self) -> bool {
        self.0.is_some()
    }
}

async fn send(event: SessionStarted, run: &TaskRun) -> Result<(), TaskError> {
    let mailer = run.state::<Mailer>()?;
    let Some((transport, from)) = &mailer.0 else {
        return Err(TaskError::permanent(
            "SMTP_NOT_CONFIGURED",
            "no mail server is configured: set MONALISA_SMTP_URL and MONALISA_SMTP_FROM",
        ));
    };
    let mail = mail(&event, run.run_id(), from)?;
    transport.send(mail).await.map(drop).map_err(|error| match error.status() {
        // The words of a reply quote the address.
        Some(code) if error.is_permanent() && !OF_THE_ACCOUNT.contains(&u16::from(code)) => {
            TaskError::permanent("MAIL_REFUSED", format!("the mail server refused the mail: {code}"))
        }
        Some(code) => not_sent(&code.to_string()),
        None => not_sent(&chain(&error)),
    })
}

/// Replies about our own account: a password that was changed is no mistake of the mail.
const OF_THE_ACCOUNT: [u16; 4] = [530, 534, 535, 538];

fn not_sent(reason: &str) -> TaskError {
    TaskError::transient(format!("the mail server did not take the mail: {reason}")).with_code("MAIL_NOT_SENT")
}

fn mail(event: &SessionStarted, run_id: Uuid, from: &Mailbox) -> Result<Message, TaskError> {
    let address = event.email.parse().map_err(|_| TaskError::validation("email is not a mail address"))?;
    let words =
        if event.locale.as_deref().is_some_and(|locale| locale.to_ascii_lowercase().starts_with("pt")) { &PORTUGUESE } else { &ENGLISH };
    let (text, html) = words.bodies(event);
    Message::builder()
        .from(from.clone())
        .to(Mailbox::new(event.name.clone().map(|name| name.replace(char::is_control, " ")), address))
        .subject(words.subject)
        .message_id(Some(format!("<{run_id}@{}>", from.email.domain())))
        .multipart(MultiPart::alternative_plain_html(text, html))
        .map_err(|error| TaskError::validation(format!("the mail cannot be made: {error}")))
}

struct Words {
    subject: &'static str,
    greeting: &'static str,
    intro: &'static str,
    time: &'static str,
    place: &'static str,
    device: &'static str,
    advice: &'static str,
    date: &'static str,
}

const ENGLISH: Words = Words {
    subject: "New sign-in to your account",
    greeting: "Hello",
    intro: "There was a new sign-in to your account.",
    time: "Time",
    place: "IP address",
    device: "Device",
    advice: "If this was you, there is nothing to do. If not, change your password now.",
    date: "%Y-%m-%d %H:%M (UTC%:z)",
};

const PORTUGUESE: Words = Words {
    subject: "Novo login na sua conta",
    greeting: "Olá",
    intro: "Houve um novo login na sua conta.",
    time: "Horário",
    place: "Endereço IP",
    device: "Dispositivo",
    advice: "Se foi você, não é preciso fazer nada. Se não foi, troque sua senha agora.",
    date: "%d/%m/%Y %H:%M (UTC%:z)",
};

impl Words {
    /// The same as plain text and as HTML.
    fn bodies(&self, event: &SessionStarted) -> (String, String) {
        let greeting = event.name.as_ref().map_or_else(|| format!("{},", self.greeting), |name| format!("{} {name},", self.greeting));
        let when = event.occurred_at.format(self.date).to_string();
        let facts: Vec<(&str, &str)> =
            [(self.time, Some(when.as_str())), (self.place, event.ip.as_deref()), (self.device, event.user_agent.as_deref())]
                .into_iter()
                .filter_map(|(label, value)| Some((label, value?)))
                .collect();
        let lines: Vec<String> = facts.iter().map(|(label, value)| format!("{label}: {value}")).collect();
        let rows: Vec<String> =
            facts.iter().map(|(label, value)| format!("<tr><td>{label}</td><td>{}</td></tr>", escaped(value))).collect();
        (
            format!("{greeting}\n\n{}\n\n{}\n\n{}\n", self.intro, lines.join("\n"), self.advice),
            format!(
                "<!doctype html><html><body><p>{}</p><p>{}</p><table>{}</table><p>{}</p></body></html>\n",
                escaped(&greeting),
                self.intro,
                rows.concat(),
                self.advice
            ),
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> SessionStarted {
        serde_json::from_str(json).expect("an event")
    }

    fn sent(event: &SessionStarted) -> String {
        let from = "Monalisa <no-reply@example.org>".parse().expect("an address");
        String::from_utf8_lossy(&mail(event, Uuid::nil(), &from).expect("a mail").formatted()).into_owned()
    }

    #[test]
    fn the_message_id_is_made_from_the_run() {
        let mail = sent(&event(r#"{"email":"ana@example.org","occurred_at":"2026-01-02T03:04:05Z"}"#));
        assert!(mail.contains("Message-ID: <00000000-0000-0000-0000-000000000000@example.org>"), "{mail}");
        assert!(mail.contains("New sign-in") && mail.contains("2026-01-02 03:04 (UTC+00:00)"), "{mail}");
        assert!(mail.contains("text/plain") && mail.contains("text/html"), "{mail}");
    }

    #[test]
    fn portuguese_by_locale_and_html_is_escaped() {
        let event = event(r#"{"email":"a@b.example","name":"<b>","locale":"pt-BR","occurred_at":"2026-01-02T03:04:05-03:00"}"#);
        let (text, html) = PORTUGUESE.bodies(&event);
        assert!(
            text.starts_with("Olá <b>,") && html.contains("&lt;b&gt;") && text.contains("02/01/2026 03:04 (UTC-03:00)"),
            "{text}{html}"
        );
        assert!(sent(&event).contains("Novo login na sua conta"));
    }

    #[test]
    fn a_bad_address_is_permanent_and_is_not_quoted() {
        let error = mail(
            &event(r#"{"email":"SECRET","occurred_at":"2026-01-02T03:04:05Z"}"#),
            Uuid::nil(),
            &"a@b.example".parse().expect("an address"),
        )
        .expect_err("refused");
        assert!(error.is_permanent() && !error.text().contains("SECRET"));
    }

    #[test]
    fn both_settings_or_none() {
        assert!(!Mailer::new(&SmtpConfig::default()).expect("none is fine").is_configured());
        let half = SmtpConfig { url: Some(crate::secret::Secret::new("smtp://h")), from: None };
        assert!(Mailer::new(&half).is_err_and(|problem| problem.contains("go together")));
    }
}
