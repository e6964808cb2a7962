//! TLS of a router's connections: plain TLS around the same bytes, as with JGroups' GossipRouter.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use consort_tls::{ClientCertificates, Identity, Roots};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// TLS of a router.
#[derive(Clone, Debug)]
pub struct RouterTls {
    /// The router's certificate and key.
    pub identity: Identity,
    /// Whether members present certificates.
    pub clients: ClientCertificates,
}

impl RouterTls {
    pub(crate) fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let settings = consort_tls::server(self.identity.clone(), self.clients.clone());
        settings.map(TlsAcceptor::from).map_err(io::Error::other)
    }
}

/// TLS of a query to a router.
#[derive(Clone, Debug)]
pub struct RouterClientTls {
    /// The authorities of the router's certificate.
    pub roots: Roots,
    /// The certificate and key to present.
    pub identity: Option<Identity>,
    /// The name that the router's certificate must have; its address, if absent.
    pub server_name: Option<String>,
}

impl RouterClientTls {
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let settings = consort_tls::client(self.roots.clone(), self.identity.clone());
        let connector = TlsConnector::from(settings.map_err(io::Error::other)?);
        let name = match &self.server_name {
            Some(name) => ServerName::try_from(name.clone()).map_err(io::Error::other)?,
            None => ServerName::from(stream.peer_addr()?.ip()),
        };
        connector.connect(name, stream).await.map_err(|error| io::Error::new(error.kind(), reason(&error)))
    }
}

/// The peer of a failed handshake has this time to read the reason.
const ALERT_TIME: Duration = Duration::from_secs(1);

const ALERT_READS: usize = 64;

pub(crate) async fn accept(
    acceptor: Arc<TlsAcceptor>,
    stream: TcpStream,
) -> io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
    let peer = stream.peer_addr()?;
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            deliver_alert(stream).await;
            Err(io::Error::new(error.kind(), format!("no TLS with {peer}: {}", reason(&error))))
        }
    }
}

/// Reads what the peer has sent. Unread bytes would reset the connection, and the peer would not learn the reason.
async fn deliver_alert(mut stream: TcpStream) {
    let ending = async {
        let _ = stream.shutdown().await;
        let mut ignored = [0; 1024];
        for _ in 0..ALERT_READS {
            if !matches!(stream.read(&mut ignored).await, Ok(1..)) {
                return;
            }
        }
    };
    let _ = timeout(ALERT_TIME, ending).await;
}

/// Explains an error that a peer has sent after the handshake.
pub(crate) fn explained(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), reason(error))
}

/// Adds what to check.
fn reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let hint: &dyn fmt::Display = match inner {
        Some(Error::InvalidMessage(_)) => &"it does not send TLS: set tls.enabled there",
        Some(Error::NoCertificatesPresented) => {
            &"it presents no certificate, which this router requires: set tls.keystore_path there"
        }
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            &"no trusted authority has signed its certificate"
        }
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => &"its certificate has another name",
        Some(Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        )) => &"it refuses our certificate: check tls.truststore_path and tls.server_name there",
        Some(Error::AlertReceived(AlertDescription::CertificateRequired)) => &"it requires a certificate",
        _ => return error.to_string(),
    };
    format!("{error} ({hint})")
}
