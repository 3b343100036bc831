//! TLS, as PostgreSQL and Valkey share it: which authorities are trusted, and what to do about a certificate that is refused.

use std::{error::Error as StdError, io, sync::Arc};

use rustls::{
    CertificateError, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, pem::PemObject},
};

/// The parameter of a URL that names a file of authorities; `system` stands for those of the system.
pub(crate) const AUTHORITIES: &str = "sslrootcert";

/// The authorities of a PEM file, and the file as it is.
pub(crate) fn authorities(path: &str) -> Result<(RootCertStore, Vec<u8>), String> {
    let pem = std::fs::read(path).map_err(|error| format!("{AUTHORITIES} {path} cannot be read: {error}"))?;
    let mut store = RootCertStore::empty();
    let added = CertificateDer::pem_slice_iter(&pem).all(|read| read.is_ok_and(|certificate| store.add(certificate).is_ok()));
    if !added || store.is_empty() {
        return Err(format!(
            "{AUTHORITIES} {path} is not a file of certificates in PEM form: give the authorities that signed the server's"
        ));
    }
    Ok((store, pem))
}

/// Who takes the provider of the whole process gets ours, where the program has chosen none: else that would panic.
pub(crate) fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Another thread may have chosen meanwhile, which is as good.
        drop(ring::default_provider().install_default());
    }
}

/// What to do, where the server's certificate was refused or there is no TLS.
pub(crate) fn advice(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = rustls_error(error) {
            return of_rustls(error);
        }
        if error.to_string() == "server does not support TLS" {
            return Some("set ssl = on there, or sslmode=prefer or disable here");
        }
        cause = error.source();
    }
    None
}

/// The error itself, or the one that it carries.
fn rustls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
        return rustls_error(&**error);
    }
    match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref()?.downcast_ref(),
        None => error.downcast_ref(),
    }
}

fn of_rustls(error: &rustls::Error) -> Option<&'static str> {
    let rustls::Error::InvalidCertificate(problem) = error else { return None };
    Some(match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "renew the certificate of the server",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "compare the clocks, or wait",
        CertificateError::UnknownIssuer => "none of the trusted authorities signed it: name the file of the one that did in sslrootcert",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "connect by a name that the certificate is for, or make one for this name (in subjectAltName)"
        }
        CertificateError::Other(other) => match other.to_string().as_str() {
            "CaUsedAsEndEntity" => "the server shows an authority itself: give it a certificate that this authority signed",
            "UnsupportedCertVersion" => "the certificate is of X.509 version 1: make one of version 3, with subjectAltName",
            _ => return None,
        },
        _ => return None,
    })
}
