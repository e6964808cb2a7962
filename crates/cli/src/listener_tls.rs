//! The TLS options of commands that listen.

use std::path::PathBuf;

use clap::Args;
use consort_server::{IdentityFiles, ListenerFiles, ProtocolSettings, TrustFile};

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
    tls_client_ca: Option<PathBuf>,
    /// Refuse clients without such a certificate
    #[arg(long, requires = "tls_client_ca")]
    tls_client_required: bool,
}

impl ListenerTls {
    /// Returns the files; `None` without TLS.
    pub(crate) fn files(&self) -> Option<ListenerFiles> {
        let (certificate, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        let client_ca = self.tls_client_ca.clone().map(TrustFile::Pem);
        let (needs_clients, protocols) = (self.tls_client_required, ProtocolSettings::default());
        Some(ListenerFiles {
            identity: IdentityFiles::Pem { certificate, key },
            client_ca,
            needs_clients,
            protocols,
        })
    }
}
