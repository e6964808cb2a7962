//! TLS of a router's connections: plain TLS around the same bytes, as with JGroups' GossipRouter.

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
    /// The name that the router's certificate must have. If absent, the name by which the router is asked, or its address.
    pub server_name: Option<String>,
}

impl RouterClientTls {
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let settings = consort_tls::client(self.roots.clone(), self.identity.clone());
        let connector = TlsConnector::from(settings.map_err(io::Error::other)?);
        let name = match &self.server_name {
            Some(name) => ServerName::try_from(name.clone()).map_err(io::Error::other)?,
            None => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        connector.connect(name, stream).await.map_err(|error| explained(&error))
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
            Err(io::Error::new(error.kind(), format!("no TLS with {peer}: {}", reason(&error, of_member))))
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

/// Explains a router's error, which it may also send after the handshake.
pub(crate) fn explained(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), reason(error, of_router))
}

/// Adds what to check.
fn reason(error: &io::Error, hint: fn(&Error) -> Option<&'static str>) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.and_then(hint).map_or_else(|| error.to_string(), |hint| format!("{error} ({hint})"))
}

/// What to check at a member that connects to this router.
fn of_member(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidMessage(_) => "it does not send TLS: set tls.enabled there",
        Error::NoCertificatesPresented => {
            "it presents no certificate, which this router requires: set tls.keystore_path there"
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "no authority in --tls-client-ca has signed its certificate"
        }
        Error::AlertReceived(alert) if is_of_certificate(*alert) => {
            "it refuses our certificate: check tls.truststore_path and tls.server_name there"
        }
        _ => return None,
    })
}

/// What to check at a router, or at its client here.
fn of_router(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidMessage(_) => "it does not send TLS: a router with --tls-cert does",
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "no trusted authority has signed its certificate"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate has another name: give --tls-server-name, or tls.server_name of the stack",
        Error::AlertReceived(alert) if is_of_certificate(*alert) => {
            "it refuses our certificate: check its --tls-client-ca"
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it requires a certificate: give --tls-cert and --tls-key, or tls.keystore_path of the stack"
        }
        _ => return None,
    })
}

fn is_of_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
    )
}
