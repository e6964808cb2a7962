//! Errors of opening an edge.

use std::io;
use std::net::IpAddr;

/// Opening failed; no socket is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The host's interfaces cannot be listed.
    #[error("the interfaces of this host cannot be listed: {0}")]
    Interfaces(io::Error),
    /// No selector matched.
    #[error("bind_addr {bind_addr:?} finds none of this host's addresses ({found})")]
    NoAddress {
        /// The selectors.
        bind_addr: String,
        /// The host's addresses.
        found: String,
    },
    /// The system refused a socket.
    #[error("{ip} port {port}: {error}")]
    Socket {
        /// The address.
        ip: IpAddr,
        /// The first port.
        port: u16,
        /// The system's error.
        error: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl BindError {
    pub(crate) fn socket(ip: IpAddr, port: u16, error: io::Error) -> Self {
        Self::Socket { ip, port, error }
    }
}

/// TLS cannot be set up; no socket is open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// This build has no TLS.
    #[error("tls.enabled is set, but this program was built without the feature \"tls\"")]
    NotBuilt,
    /// A file is not configured.
    #[error("tls.enabled needs {0}, the path of a PEM file with our certificate and its private key")]
    Missing(&'static str),
    /// No file with trusted certificates is configured.
    #[error(
        "tls.enabled needs tls.truststore_path, the path of a PEM file with the authorities of routers' certificates"
    )]
    NoRoots,
    /// A private key without its certificate.
    #[error("tls.key_path needs tls.keystore_path, the path of a PEM file with the certificate of this key")]
    KeyAlone,
    /// The files or names are unusable.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Unfit(#[from] consort_tls::TlsError),
    /// The server name is invalid.
    #[error("tls.server_name: {0}")]
    Name(String),
}
