//! TLS of the server, by rustls.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::sync::Arc;

/// A certificate and a key that the server cannot use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// Returns the configuration of a web server with a chain of certificates and its key, both in
/// PEM.
///
/// # Errors
/// One of them cannot be read, or they do not belong together.
pub fn tls_config(certificates: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = server_config(certificates, key, None)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// As [`tls_config`], for a server of disks. With `authorities`, clients need a certificate of one
/// of these.
///
/// # Errors
/// As [`tls_config`].
pub fn tls_config_for_disks(
    certificates: &[u8],
    key: &[u8],
    authorities: Option<&[u8]>,
) -> Result<Arc<ServerConfig>, TlsError> {
    server_config(certificates, key, authorities).map(Arc::new)
}

fn failed(what: &str, error: impl std::fmt::Display) -> TlsError {
    TlsError(format!("{what}: {error}"))
}

fn certificates_of(pem: &[u8], whose: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| failed(&format!("the certificate {whose} cannot be read"), error))?;
    if chain.is_empty() {
        return Err(TlsError(format!("the file of the certificate {whose} has none in PEM")));
    }
    Ok(chain)
}

fn server_config(
    certificates: &[u8],
    key: &[u8],
    authorities: Option<&[u8]>,
) -> Result<ServerConfig, TlsError> {
    let chain = certificates_of(certificates, "of the server")?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| failed("the private key cannot be read", error))?;
    let wrong = |error: rustls::Error| failed("TLS cannot use certificate and key", error);
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?;
    let config = match authorities {
        None => config.with_no_client_auth(),
        Some(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates_of(authorities, "of clients' authority")? {
                roots.add(authority).map_err(wrong)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier
                .build()
                .map_err(|error| failed("TLS cannot use the certificates of clients' authorities", error))?;
            config.with_client_cert_verifier(verifier)
        }
    };
    config.with_single_cert(chain, key).map_err(wrong)
}
