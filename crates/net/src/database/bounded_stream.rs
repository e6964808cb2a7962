//! A connection of which a bounded number of bytes is read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Fails once more bytes arrive than it has room for, because responses are kept in memory until they are complete.
pub(super) struct BoundedStream<S> {
    stream: S,
    room: usize,
}

impl<S> BoundedStream<S> {
    pub(super) fn new(stream: S, bytes_max: usize) -> Self {
        Self { stream, room: bytes_max }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, out))?;
        match self.room.checked_sub(out.filled().len() - before) {
            Some(room) => {
                self.room = room;
                Poll::Ready(Ok(()))
            }
            None => {
                // An error comes without bytes.
                out.set_filled(before);
                let why = "the response has too many bytes";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, why)))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn bytes_beyond_the_bound_are_an_error() {
        let mut content = Vec::new();
        BoundedStream::new(&[7; 100][..], 100).read_to_end(&mut content).await.unwrap();
        assert_eq!(content.len(), 100);
        let error = BoundedStream::new(&[7; 101][..], 100).read_to_end(&mut content).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
