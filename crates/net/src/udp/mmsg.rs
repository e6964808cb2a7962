//! Many datagrams per system call: `recvmmsg`, which socket2 and rustix lack, and `sendmmsg`, for which rustix needs
//! an address and a control buffer per datagram.
//!
//! Each `unsafe` block states why it is sound. All rely on this: the kernel's arrays live on the function's stack or
//! in the caller's buffers and do not move between taking pointers and the call, and the kernel keeps no pointer
//! after it.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use bytes::BytesMut;
use socket2::SockAddr;

/// The kernel's arrays for 32 fit the stack and make the call's cost per datagram small.
pub(super) const BATCH_MAX: usize = 32;

/// Each datagram goes into a buffer's spare capacity, at most [`BATCH_MAX`]; a longer one is truncated. Returns the sources in
/// order.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffers: &mut [BytesMut],
    sources: &mut Vec<Option<SocketAddr>>,
) -> io::Result<usize> {
    let count = buffers.len().min(BATCH_MAX);
    // SAFETY: these C structures are plain data, for which all zeroes is a valid value.
    let mut names: [libc::sockaddr_storage; BATCH_MAX] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut vectors: [libc::iovec; BATCH_MAX] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; BATCH_MAX] = unsafe { mem::zeroed() };
    for at in 0..count {
        let room: &mut [MaybeUninit<u8>] = buffers[at].spare_capacity_mut();
        vectors[at] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let header = &mut headers[at].msg_hdr;
        header.msg_name = (&raw mut names[at]).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &raw mut vectors[at];
        header.msg_iovlen = 1;
    }
    // SAFETY: `headers` has at least `count` valid entries. Each points to one name and one vector, and through it to
    // the exclusively borrowed spare capacity of one buffer, with the stated lengths. The descriptor is open while
    // borrowed.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for at in 0..received {
        let length = buffers[at].len() + headers[at].msg_len as usize;
        // SAFETY: the kernel has written `msg_len` bytes from the start of the spare capacity, and without MSG_TRUNC
        // among the flags of the call never reports more than that capacity.
        unsafe { buffers[at].set_len(length) };
        sources.push(source(&names[at]));
    }
    Ok(received)
}

/// Sends up to [`BATCH_MAX`]. Returns how many the kernel took; an error concerns the first.
pub(super) fn send(socket: BorrowedFd<'_>, datagrams: &[(SockAddr, &[u8])]) -> io::Result<usize> {
    let count = datagrams.len().min(BATCH_MAX);
    // SAFETY: plain C data, for which all zeroes is a valid value.
    let mut vectors: [libc::iovec; BATCH_MAX] = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; BATCH_MAX] = unsafe { mem::zeroed() };
    for (at, (to, bytes)) in datagrams[..count].iter().enumerate() {
        vectors[at] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let header = &mut headers[at].msg_hdr;
        header.msg_name = to.as_ptr().cast_mut().cast();
        header.msg_namelen = to.len();
        header.msg_iov = &raw mut vectors[at];
        header.msg_iovlen = 1;
    }
    // SAFETY: `headers` has at least `count` valid entries, each pointing to an address and to bytes that are borrowed
    // for this call; sending only reads them. The descriptor is open while borrowed.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn source(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: for this family the kernel writes a `sockaddr_in`, which is smaller than the storage and has no
            // stricter alignment; any bit pattern of it is valid.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for `sockaddr_in6`.
            let name = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, name.sin6_scope_id)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    fn pair(host: &str) -> (UdpSocket, UdpSocket) {
        (UdpSocket::bind((host, 0)).unwrap(), UdpSocket::bind((host, 0)).unwrap())
    }

    #[test]
    fn a_batch_arrives_with_sources_and_lengths() {
        for host in ["127.0.0.1", "::1"] {
            let (a, b) = pair(host);
            let to = SockAddr::from(b.local_addr().unwrap());
            let payloads = [vec![1u8; 1], vec![2; 5000], vec![], vec![3; 60_000]];
            let datagrams: Vec<_> = payloads.iter().map(|bytes| (to.clone(), &bytes[..])).collect();
            assert_eq!(send(a.as_fd(), &datagrams).unwrap(), 4);
            let mut buffers: Vec<BytesMut> = (0..8).map(|_| BytesMut::with_capacity(65_536)).collect();
            let mut sources = Vec::new();
            assert_eq!(receive(b.as_fd(), &mut buffers, &mut sources).unwrap(), 4);
            assert_eq!(sources, [Some(a.local_addr().unwrap()); 4]);
            for (buffer, payload) in buffers.iter().zip(&payloads) {
                assert_eq!(buffer[..], payload[..]);
            }
            let error = receive(b.as_fd(), &mut buffers, &mut sources).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn a_datagram_that_is_too_long_is_cut_at_the_room() {
        let (a, b) = pair("127.0.0.1");
        a.send_to(&[7; 100], b.local_addr().unwrap()).unwrap();
        let mut buffers = [BytesMut::with_capacity(10)];
        let room = buffers[0].capacity();
        receive(b.as_fd(), &mut buffers, &mut Vec::new()).unwrap();
        assert_eq!(buffers[0].len(), room.min(100));
    }

    #[test]
    fn more_than_a_batch_is_left_for_the_next_call() {
        let (a, b) = pair("127.0.0.1");
        let to = SockAddr::from(b.local_addr().unwrap());
        let datagrams: Vec<_> = (0..BATCH_MAX + 3).map(|_| (to.clone(), &b"x"[..])).collect();
        assert_eq!(send(a.as_fd(), &datagrams).unwrap(), BATCH_MAX);
        assert_eq!(send(a.as_fd(), &datagrams[BATCH_MAX..]).unwrap(), 3);
    }

    #[test]
    fn an_error_concerns_the_first_datagram() {
        let (a, b) = pair("127.0.0.1");
        let to = SockAddr::from(b.local_addr().unwrap());
        let too_long = vec![0; 70_000];
        let datagrams = [(to.clone(), &b"x"[..]), (to.clone(), &too_long[..]), (to, &b"y"[..])];
        assert_eq!(send(a.as_fd(), &datagrams).unwrap(), 1);
        assert_eq!(send(a.as_fd(), &datagrams[1..]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    }
}
