//! How much TLS to PostgreSQL checks: the modes of libpq.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::tls;

/// How much of the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Nothing: `prefer`, `require`.
    Nothing,
    /// That a trusted authority signed it: `verify-ca`.
    Chain,
    /// Also that it is for this host: `verify-full`.
    Full,
}

/// A client configuration; `roots` is a PEM file of authorities, else those of the system are trusted.
pub(crate) fn client(verify: Verify, roots: Option<&str>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    let chain = match verify {
        Verify::Full => return Ok(builder.with_root_certificates(authorities(roots)?).with_no_client_auth()),
        Verify::Nothing => None,
        Verify::Chain => {
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities(roots)?), provider.clone());
            Some(verifier.build().map_err(|error| format!("sslrootcert: {error}"))?)
        }
    };
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { provider, chain })).with_no_client_auth())
}

fn authorities(roots: Option<&str>) -> Result<RootCertStore, String> {
    match roots {
        None | Some("system") => {
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Ok(store)
        }
        Some(path) => Ok(tls::authorities(path)?.0),
    }
}

/// Checks less than `verify-full`: without a chain only the signatures of the handshake, with one whose certificate it is, and never
/// the host's name.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
