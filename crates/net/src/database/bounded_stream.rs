//! Connections of which a bounded number of bytes is read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The bytes that several connections may still read together.
#[derive(Clone)]
pub(super) struct ByteRoom(Arc<AtomicUsize>);

impl ByteRoom {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes_max)))
    }

    /// Takes bytes. Returns whether there was room for them.
    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(bytes)).is_ok()
    }
}

/// Fails once more bytes arrive than it has room for, because responses are kept in memory until they are complete.
pub(super) struct BoundedStream<S> {
    stream: S,
    room: ByteRoom,
}

impl<S> BoundedStream<S> {
    pub(super) fn new(stream: S, room: &ByteRoom) -> Self {
        Self { stream, room: room.clone() }
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
        if self.room.take(out.filled().len() - before) {
            return Poll::Ready(Ok(()));
        }
        // An error comes without bytes.
        out.set_filled(before);
        let why = "the response has too many bytes";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, why)))
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
    async fn bytes_of_all_connections_beyond_the_bound_are_an_error() {
        let (mut content, room) = (Vec::new(), ByteRoom::new(200));
        for _ in 0..2 {
            BoundedStream::new(&[7; 100][..], &room).read_to_end(&mut content).await.unwrap();
        }
        assert_eq!(content.len(), 200);
        let error = BoundedStream::new(&[7; 1][..], &room).read_to_end(&mut content).await.unwrap_err();
        assert_eq!((error.kind(), content.len()), (io::ErrorKind::FileTooLarge, 200));
    }
}
