//! TLS of the server, by rustls.

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// A certificate and a key that the server cannot use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// Returns the configuration of a server with a chain of certificates and its key, both in PEM.
///
/// # Errors
/// One of them cannot be read, or they do not belong together.
pub fn tls_config(certificates: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| TlsError(format!("{what}: {error}"));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
    let chain = chain.map_err(|error| failed("the certificate cannot be read", &error))?;
    if chain.is_empty() {
        return Err(TlsError("the file of the certificate has none in PEM".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| failed("the private key cannot be read", &error))?;
    let wrong = |error: rustls::Error| failed("TLS cannot use certificate and key", &error);
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(wrong)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
