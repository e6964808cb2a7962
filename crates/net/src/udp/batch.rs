//! Batches of datagrams: `recvmmsg` and `sendmmsg` on Linux, else one by one.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tokio::net::UdpSocket;

const DATAGRAM_LEN_MAX: usize = 65_536;

/// A datagram up to this is copied into a buffer of its size; a longer one keeps its receive buffer, which must not
/// be much larger.
const COPY_LEN_MAX: usize = 16 * 1024;

pub(super) const BATCH_MAX: usize = system::BATCH_MAX;

/// The batch is small, so that large datagrams are in the CPU's cache when the stack reads them.
const RECEIVE_MAX: usize = 8;

pub(super) struct Receiver {
    buffers: Vec<BytesMut>,
    sources: Vec<Option<SocketAddr>>,
}

impl Receiver {
    pub(super) fn new() -> Self {
        // Untouched memory costs nothing: a quiet member uses the first buffer only.
        let buffers = (0..RECEIVE_MAX).map(|_| BytesMut::with_capacity(DATAGRAM_LEN_MAX)).collect();
        Self { buffers, sources: Vec::with_capacity(BATCH_MAX) }
    }

    /// Without a datagram, the waker is woken later.
    pub(super) fn poll_receive(
        &mut self,
        socket: &UdpSocket,
        waker: &Waker,
        take: impl FnMut(SocketAddr, Bytes),
    ) -> Poll<io::Result<usize>> {
        match socket.poll_recv_ready(&mut Context::from_waker(waker)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => match self.try_receive(socket, take) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Not ready after all. A second poll registers the waker.
                    match socket.poll_recv_ready(&mut Context::from_waker(waker)) {
                        Poll::Pending => Poll::Pending,
                        Poll::Ready(_) => Poll::Ready(Ok(0)),
                    }
                }
                result => Poll::Ready(result),
            },
        }
    }

    pub(super) fn try_receive(
        &mut self,
        socket: &UdpSocket,
        mut take: impl FnMut(SocketAddr, Bytes),
    ) -> io::Result<usize> {
        let Self { buffers, sources } = self;
        sources.clear();
        let received = system::receive(socket, buffers, sources)?;
        for (buffer, source) in buffers.iter_mut().zip(sources.iter()).take(received) {
            let datagram = if buffer.len() <= COPY_LEN_MAX {
                let copy = Bytes::copy_from_slice(buffer);
                buffer.clear();
                copy
            } else {
                let whole = buffer.split().freeze();
                buffer.reserve(DATAGRAM_LEN_MAX);
                whole
            };
            if let Some(source) = source {
                take(*source, datagram);
            }
        }
        Ok(received)
    }
}

/// A full socket's waker is woken later. An error concerns the first datagram.
pub(super) fn poll_send(
    socket: &UdpSocket,
    waker: &Waker,
    datagrams: &[(socket2::SockAddr, &[u8])],
) -> Poll<io::Result<usize>> {
    let mut cx = Context::from_waker(waker);
    loop {
        match socket.poll_send_ready(&mut cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => match system::send(socket, datagrams) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            },
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::net::SocketAddr;
    use std::os::fd::AsFd;

    use bytes::BytesMut;
    use socket2::SockAddr;
    use tokio::io::Interest;
    use tokio::net::UdpSocket;

    use crate::udp::mmsg;

    pub(super) const BATCH_MAX: usize = mmsg::BATCH_MAX;

    pub(super) fn receive(
        socket: &UdpSocket,
        buffers: &mut [BytesMut],
        sources: &mut Vec<Option<SocketAddr>>,
    ) -> io::Result<usize> {
        let mut received = 0;
        let result = socket.try_io(Interest::READABLE, || {
            received = mmsg::receive(socket.as_fd(), buffers, sources)?;
            // A batch that is not full has emptied the socket. Reporting it now saves a further call.
            if received < buffers.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match result {
            Err(error) if received == 0 => Err(error),
            _ => Ok(received),
        }
    }

    pub(super) fn send(socket: &UdpSocket, datagrams: &[(SockAddr, &[u8])]) -> io::Result<usize> {
        socket.try_io(Interest::WRITABLE, || mmsg::send(socket.as_fd(), datagrams))
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::net::SocketAddr;

    use bytes::BytesMut;
    use socket2::SockAddr;
    use tokio::net::UdpSocket;

    pub(super) const BATCH_MAX: usize = 1;

    pub(super) fn receive(
        socket: &UdpSocket,
        buffers: &mut [BytesMut],
        sources: &mut Vec<Option<SocketAddr>>,
    ) -> io::Result<usize> {
        let mut room = vec![0; super::DATAGRAM_LEN_MAX];
        let (length, source) = socket.try_recv_from(&mut room)?;
        buffers[0].extend_from_slice(&room[..length]);
        sources.push(Some(source));
        Ok(1)
    }

    pub(super) fn send(socket: &UdpSocket, datagrams: &[(SockAddr, &[u8])]) -> io::Result<usize> {
        let Some((to, bytes)) = datagrams.first() else { return Ok(0) };
        let to = to.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        socket.try_send_to(bytes, to).map(|_| 1)
    }
}
