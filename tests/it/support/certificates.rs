//! Authorities and certificates of a test's own.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

/// Signs certificates. Its own stands in a file that goes with it.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// What a server shows, in PEM, and its key.
pub struct Certificate {
    pub chain: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut wishes = CertificateParams::default();
        wishes.distinguished_name.push(DnType::CommonName, name);
        wishes.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(wishes, KeyPair::generate().expect("a key")).expect("a certificate");
        let folder = std::env::temp_dir().join(format!("monalisa-tls-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).expect("a folder");
        let authority = Authority { issuer, folder };
        authority.file("authority.crt", &authority.issuer.pem());
        authority
    }

    /// A certificate for this host, good for some years.
    pub fn certificate(&self, host: &str) -> Certificate {
        self.sign(wishes(host))
    }

    /// One whose time is over.
    pub fn expired(&self, host: &str) -> Certificate {
        let mut wishes = wishes(host);
        wishes.not_before = date_time_ymd(2019, 1, 1);
        wishes.not_after = date_time_ymd(2020, 1, 1);
        self.sign(wishes)
    }

    fn sign(&self, wishes: CertificateParams) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let signed = wishes.signed_by(&key, &self.issuer).expect("a certificate");
        Certificate { chain: signed.pem(), key: key.serialize_pem() }
    }

    /// The path of a file with its own certificate.
    pub fn path(&self) -> String {
        self.folder.join("authority.crt").display().to_string()
    }

    /// Writes a file beside it; its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("it is written");
        path.display().to_string()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A self-signed certificate that is an authority too, as the simplest recipes make it.
pub fn self_signed(host: &str) -> Certificate {
    let mut wishes = wishes(host);
    wishes.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let signed = wishes.self_signed(&key).expect("a certificate");
    Certificate { chain: signed.pem(), key: key.serialize_pem() }
}

fn wishes(host: &str) -> CertificateParams {
    let mut wishes = CertificateParams::new([host.to_owned()]).expect("a host");
    wishes.distinguished_name.push(DnType::CommonName, host);
    wishes
}
