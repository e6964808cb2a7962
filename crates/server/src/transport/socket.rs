//! A client's byte stream; a silent client costs no buffer in either direction.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncBufRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::task::coop::consume_budget;
use tokio_rustls::server::TlsStream;

type Tls = TlsStream<TcpStream>;

pub(crate) enum Stream {
    Plain(TcpStream),
    /// Both directions need the whole TLS state, in one task that never waits while it holds the lock.
    Tls(Box<Mutex<Tls>>),
}

pub(crate) enum Incoming<'a> {
    Plain(ReadHalf<'a>),
    Tls(&'a Mutex<Tls>),
}

pub(crate) enum Outgoing<'a> {
    Plain(WriteHalf<'a>),
    /// The flag: bytes have been written to TLS and not flushed.
    Tls(&'a Mutex<Tls>, bool),
}

impl Stream {
    pub(crate) fn split(&mut self) -> (Incoming<'_>, Outgoing<'_>) {
        match self {
            Self::Plain(stream) => {
                let (from, to) = stream.split();
                (Incoming::Plain(from), Outgoing::Plain(to))
            }
            Self::Tls(stream) => (Incoming::Tls(stream), Outgoing::Tls(stream, false)),
        }
    }
}

fn step<T>(stream: &Mutex<Tls>, step: impl FnOnce(Pin<&mut Tls>) -> T) -> T {
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    step(Pin::new(&mut *stream))
}

impl Incoming<'_> {
    /// Waits for bytes, and takes about `at_once` of them; false at the end of the stream. Cancel-safe.
    pub(crate) async fn take(&mut self, input: &mut BytesMut, at_once: usize) -> io::Result<bool> {
        match self {
            Self::Plain(stream) => {
                // A client that sends all the time must not keep others from their turn. Tokio's budget makes such a read
                // pending, which looks like a read without bytes.
                consume_budget().await;
                stream.readable().await?;
                input.reserve(at_once);
                // Unlike `try_read_buf`, this remembers that the socket is empty after a short read, which saves a system
                // call.
                let mut reading = pin!(stream.read_buf(input));
                poll_fn(|cx| match reading.as_mut().poll(cx) {
                    Poll::Ready(read) => Poll::Ready(read.map(|count| count > 0)),
                    Poll::Pending => Poll::Ready(Ok(true)),
                })
                .await
            }
            Self::Tls(stream) => {
                poll_fn(|cx| {
                    step(stream, |mut stream| {
                        let come = ready!(stream.as_mut().poll_fill_buf(cx))?;
                        let count = come.len().min(at_once);
                        input.extend_from_slice(&come[..count]);
                        stream.consume(count);
                        Poll::Ready(Ok(count > 0))
                    })
                })
                .await
            }
        }
    }
}

impl Outgoing<'_> {
    pub(crate) fn has_to_write(&self, output: &impl Buf) -> bool {
        output.has_remaining() || matches!(self, Self::Tls(_, true))
    }

    /// Writes some of the output. Cancel-safe: bytes that have left the output are written later.
    pub(crate) async fn write(&mut self, output: &mut impl Buf) -> io::Result<()> {
        match self {
            Self::Plain(stream) => match stream.write_buf(output).await? {
                0 => Err(io::ErrorKind::WriteZero.into()),
                _ => Ok(()),
            },
            Self::Tls(stream, is_within) => {
                poll_fn(|cx| step(stream, |stream| write_within(stream, output, is_within, cx))).await
            }
        }
    }

    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.shutdown().await,
            Self::Tls(stream, _) => poll_fn(|cx| step(stream, |stream| stream.poll_shutdown(cx))).await,
        }
    }
}

fn write_within(
    mut stream: Pin<&mut Tls>,
    output: &mut impl Buf,
    is_within: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let mut has_written = false;
    while output.has_remaining() {
        match stream.as_mut().poll_write(cx, output.chunk()) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(count)) => {
                output.advance(count);
                (has_written, *is_within) = (true, true);
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => break,
        }
    }
    match stream.as_mut().poll_flush(cx) {
        Poll::Ready(flushed) => {
            *is_within = false;
            Poll::Ready(flushed)
        }
        Poll::Pending if has_written => Poll::Ready(Ok(())),
        Poll::Pending => Poll::Pending,
    }
}
