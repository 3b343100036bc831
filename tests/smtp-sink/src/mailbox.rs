//! The folder of stored mails: `<number>-<subject>.eml`, numbered in order of arrival.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How much of a subject a file name shows.
const NAME: usize = 60;

/// A folder of mails.
#[derive(Debug)]
pub(crate) struct Mailbox {
    directory: PathBuf,
    next: AtomicU64,
}

impl Mailbox {
    /// Opens the folder, made where missing; numbers go on after the highest one there.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let mut highest = 0;
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.split('-').next()).and_then(|number| number.parse().ok());
            highest = highest.max(number.unwrap_or(0));
        }
        Ok(Self { directory: directory.to_owned(), next: AtomicU64::new(highest + 1) })
    }

    /// Stores a mail; a file that has its name is complete.
    pub(crate) fn store(&self, mail: &[u8]) -> io::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.directory.join(format!(".{number}.part"));
        fs::write(&unfinished, mail)?;
        fs::rename(&unfinished, self.directory.join(format!("{number}-{}.eml", title(mail))))
    }
}

/// What to call a mail: its subject, or its message id where the subject is missing or encoded.
fn title(mail: &[u8]) -> String {
    let text = String::from_utf8_lossy(mail);
    let header = |wanted: &str| {
        let mut lines = text.lines().take_while(|line| !line.is_empty());
        let value = lines.find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case(wanted)))?.1;
        Some(value).filter(|value| !value.contains("=?")).map(sanitise).filter(|title| !title.is_empty())
    };
    header("Subject").or_else(|| header("Message-ID")).unwrap_or_else(|| "mail".to_owned())
}

/// Keeps letters, digits, dots and underscores; whatever else becomes one hyphen.
fn sanitise(value: &str) -> String {
    let kept = value.trim().chars().map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' });
    let mut name = String::new();
    for c in kept.take(NAME) {
        if c != '-' || !name.ends_with('-') {
            name.push(c);
        }
    }
    name.trim_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::title;

    #[test]
    fn a_mail_is_called_by_its_subject_or_else_by_its_message_id() {
        assert_eq!(title(b"Subject: New sign-in: \"Ana\" / Lisboa\r\n\r\nbody"), "New-sign-in-Ana-Lisboa");
        assert_eq!(title(b"subject: =?utf-8?b?T2zDoQ==?=\r\nMessage-ID: <a1@b>\r\n\r\n"), "a1-b");
        assert_eq!(title(b"To: x\r\n\r\nSubject: in the body"), "mail");
        assert_eq!(title(b"Subject: ../../etc/passwd\r\n\r\n"), "etc-passwd");
    }
}
