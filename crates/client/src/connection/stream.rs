use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use consort_tls::{Identity, Roots, TlsError};
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::ConnectionError;

/// The TLS settings of a client.
#[derive(Clone, Debug)]
pub struct Tls {
    roots: Roots,
    identity: Option<Identity>,
    server_name: Option<String>,
}

impl Tls {
    /// Trusts servers with a certificate of these authorities.
    pub const fn new(roots: Roots) -> Self {
        Self { roots, identity: None, server_name: None }
    }

    /// Sets the certificate for servers that request one.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        Self { identity: Some(identity), ..self }
    }

    /// Sets the name that all servers' certificates must have; default: the host connected to, also from topologies.
    #[must_use]
    pub fn server_name(self, name: impl Into<String>) -> Self {
        Self { server_name: Some(name.into()), ..self }
    }

    pub(crate) fn connector(self) -> Result<Connector, TlsError> {
        let connector = TlsConnector::from(consort_tls::client(self.roots, self.identity)?);
        let named = |name: String| {
            let wrong = |error: rustls::pki_types::InvalidDnsNameError| TlsError::Unfit(error.to_string());
            ServerName::try_from(name).map_err(wrong)
        };
        let server_name = self.server_name.map(named).transpose()?;
        Ok(Connector { connector, server_name })
    }
}

#[derive(Clone)]
pub(crate) struct Connector {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

/// Rustls' text for a self-signed certificate of an authority, the default of `openssl req -x509`.
const AUTHORITY: &str = "CaUsedAsEndEntity";

impl Connector {
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<Stream, ConnectionError> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned())
                .map_err(|_| ConnectionError::Tls(format!("{host} is a name that no certificate has")))?,
        };
        let stream = self.connector.connect(name, stream).await.map_err(|error| {
            let rustls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match rustls {
                // The first bytes are no TLS record: usually a server without TLS.
                Some(rustls::Error::InvalidMessage(_)) => {
                    ConnectionError::Tls("the server's response is not TLS; it may run without TLS".to_owned())
                }
                Some(rustls::Error::InvalidCertificate(CertificateError::Other(other)))
                    if other.to_string().contains(AUTHORITY) =>
                {
                    ConnectionError::Tls(
                        "the server's certificate is that of an authority (CA:TRUE), and not a server's: let the authority \
                         sign one, or make one with basicConstraints=CA:FALSE"
                            .to_owned(),
                    )
                }
                _ => error.into(),
            }
        })?;
        Ok(Stream::Tls { stream: Box::new(stream), has_within: false })
    }
}

pub(crate) enum Stream {
    Plain(TcpStream),
    Tls {
        stream: Box<TlsStream<TcpStream>>,
        /// TLS has buffered output.
        has_within: bool,
    },
}

impl Stream {
    pub(crate) fn poll_within(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tls { stream, has_within: has_within @ true } => {
                let flushed = Pin::new(stream).poll_flush(cx);
                *has_within = flushed.is_pending();
                flushed
            }
            Self::Plain(_) | Self::Tls { .. } => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls { stream, .. } => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls { stream, has_within } => {
                *has_within = true;
                Pin::new(stream).poll_write(cx, bytes)
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls { stream, has_within } => {
                *has_within = true;
                Pin::new(stream).poll_write_vectored(cx, slices)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_within(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls { stream, .. } => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
