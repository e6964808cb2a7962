//! TLS of a connection to a database.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use consort_group::database::{JdbcUrl, TlsMode};
use consort_tls::{Identity, Roots, ServerCheck, TlsError, client_with_check};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// Returns the settings of TLS. `None`: the URL wants no TLS. Reads files.
pub(super) fn settings(url: &JdbcUrl) -> Result<Option<Arc<ClientConfig>>, TlsError> {
    let roots = || match &url.root_certificates {
        Some(path) => Roots::from_file(path),
        None => Roots::from_system(),
    };
    let check = match url.tls {
        TlsMode::Disable => return Ok(None),
        TlsMode::Prefer | TlsMode::Require => ServerCheck::Nothing,
        TlsMode::VerifyCa => ServerCheck::AnyName(roots()?),
        TlsMode::VerifyFull => ServerCheck::Full(roots()?),
    };
    let identity = match url.certificate.as_ref().zip(url.key.as_ref()) {
        Some((certificate, key)) => Some(Identity::from_files(certificate, key)?),
        None => None,
    };
    client_with_check(check, identity).map(Some)
}

/// Begins TLS on a connection to this host.
pub(super) struct HostTls {
    pub(super) config: Option<Arc<ClientConfig>>,
    pub(super) host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for HostTls {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let config = self.config.ok_or_else(|| io::Error::other("the URL wants no TLS"))?;
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            TlsConnector::from(config).connect(name, stream).await.map(Encrypted)
        })
    }
}

pub(super) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, out)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
