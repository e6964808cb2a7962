//! The TLS options of commands that listen.

use std::path::{Path, PathBuf};

use clap::Args;

/// Files of certificates and keys, and whether peers need certificates of their own.
#[derive(Args, Clone)]
pub(crate) struct ListenerTls {
    /// Accept TLS only, with the certificate chain in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Request certificates of clients, and accept those issued by the CAs in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Refuse clients without such a certificate
    #[arg(long, requires = "tls_client_ca")]
    pub(crate) tls_client_required: bool,
}

impl ListenerTls {
    /// Returns the files of the certificate chain and of its key; `None` without TLS.
    pub(crate) fn files(&self) -> Option<(&Path, &Path)> {
        self.tls_cert.as_deref().zip(self.tls_key.as_deref())
    }
}
