use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};

use super::retransmit_limits;
use crate::tcp::tls::Tls;

/// An attempt, or the TLS handshake of an accepted connection.
pub(crate) type Opening = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SocketOptions {
    pub(crate) keep_alive: bool,
    pub(crate) nodelay: bool,
    pub(crate) linger: Option<Duration>,
    pub(crate) recv_buf: Option<usize>,
    pub(crate) send_buf: Option<usize>,
}

impl SocketOptions {
    /// An option that the system refuses is ignored.
    fn apply(self, stream: &TcpStream) {
        let socket = SockRef::from(stream);
        let results = [
            socket.set_keepalive(self.keep_alive),
            socket.set_tcp_nodelay(self.nodelay),
            if self.linger.is_some() { socket.set_linger(self.linger) } else { Ok(()) },
            retransmit_limits::set_retransmit_limits(&socket),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "socket option refused");
        }
    }
}

pub(crate) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

impl Stream {
    /// A connection to the own socket is an error.
    pub(crate) fn connect(to: SocketAddr, options: SocketOptions, tls: Option<Tls>) -> Opening {
        Box::pin(async move {
            let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Before connecting, because the window scale is agreed in the handshake.
            if let Some(size) = options.recv_buf {
                socket.set_recv_buffer_size(u32::try_from(size).unwrap_or(u32::MAX))?;
            }
            if let Some(size) = options.send_buf {
                socket.set_send_buffer_size(u32::try_from(size).unwrap_or(u32::MAX))?;
            }
            let stream = socket.connect(to).await?;
            if stream.local_addr()? == to {
                return Err(io::Error::other("connected to itself"));
            }
            options.apply(&stream);
            match tls {
                #[cfg(feature = "tls")]
                Some(tls) => Ok(Self::Tls(Box::new(tls.connect(to, stream).await?))),
                #[cfg(not(feature = "tls"))]
                Some(tls) => match tls {},
                None => Ok(Self::Plain(stream)),
            }
        })
    }

    /// The TLS handshake comes first.
    pub(crate) fn accepted(
        stream: TcpStream,
        options: SocketOptions,
        tls: Option<Tls>,
    ) -> Result<Self, Opening> {
        options.apply(&stream);
        if let Some(size) = options.send_buf {
            let _ = SockRef::from(&stream).set_send_buffer_size(size);
        }
        match tls {
            #[cfg(feature = "tls")]
            Some(tls) => Err(Box::pin(async move { Ok(Self::Tls(Box::new(tls.accept(stream).await?))) })),
            #[cfg(not(feature = "tls"))]
            Some(tls) => match tls {},
            None => Ok(Self::Plain(stream)),
        }
    }

    pub(crate) fn peer(&self) -> String {
        let tcp = match self {
            Self::Plain(stream) => stream,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.get_ref().0,
        };
        tcp.peer_addr().map_or_else(|_| "an unknown peer".to_owned(), |peer| peer.to_string())
    }

    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<io::Result<usize>> {
        // The futures are cancel safe: dropped while pending, they have read nothing and leave their waker
        // registered.
        match self {
            Self::Plain(stream) => pin!(stream.read_buf(buf)).poll(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => pin!(stream.read_buf(buf)).poll(cx),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, slices),
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
