//! The files of TLS for `papilio serve`.

use anyhow::Context as _;
use std::fmt;
use std::path::{Path, PathBuf};

/// The options of TLS, for NBD and HTTP.
#[derive(Debug, clap::Args)]
pub struct TlsArgs {
    /// NBD, HTTP: the certificate of the server with its chain, in PEM; clients must use TLS
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "nfs", value_hint = clap::ValueHint::FilePath)]
    tls_cert: Option<PathBuf>,
    /// NBD, HTTP: the private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", conflicts_with = "nfs", value_hint = clap::ValueHint::FilePath)]
    tls_key: Option<PathBuf>,
    /// NBD: serve only clients with a certificate of one of these authorities, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", conflicts_with_all = ["nfs", "http"], value_hint = clap::ValueHint::FilePath)]
    tls_client_ca: Option<PathBuf>,
}

/// The content of the files of TLS, all in PEM.
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificate of the server with its chain.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The authorities of clients' certificates, if clients need any.
    pub client_authorities: Option<Vec<u8>>,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret.
        f.write_str("TlsFiles")
    }
}

impl TlsArgs {
    /// Reads the files, if TLS was chosen.
    pub fn read(&self) -> anyhow::Result<Option<TlsFiles>> {
        let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        Ok(Some(TlsFiles {
            certificate: read(certificate)?,
            key: read(key)?,
            client_authorities: self.tls_client_ca.as_deref().map(read).transpose()?,
        }))
    }
}
