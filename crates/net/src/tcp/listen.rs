//! Listening sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// A large cluster may join at once.
const BACKLOG: i32 = 1024;

/// Takes the first free port; IPv6's wildcard accepts IPv4 too.
pub(crate) fn listen(
    ip: IpAddr,
    scope_id: u32,
    ports: impl IntoIterator<Item = u16>,
    recv_buf: Option<usize>,
) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no port to listen on");
    for port in ports {
        match listen_on(ip, scope_id, port, recv_buf) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn listen_on(ip: IpAddr, scope_id: u32, port: u16, recv_buf: Option<usize>) -> io::Result<TcpListener> {
    let addr = with_scope(ip, scope_id, port);
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if ip.is_ipv6() && ip.is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // A member that restarts must get its port back although old connections linger.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if let Some(size) = recv_buf {
        socket.set_recv_buffer_size(size)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

pub(crate) fn with_scope(ip: IpAddr, scope_id: u32, port: u16) -> SocketAddr {
    let mut addr = SocketAddr::new(ip, port);
    if let (SocketAddr::V6(v6), IpAddr::V6(ip)) = (&mut addr, ip)
        && ip.is_unicast_link_local()
    {
        v6.set_scope_id(scope_id);
    }
    addr
}

/// Returns `first` and `range` ports after it; any port if `first` is 0.
pub(crate) fn port_range(first: u16, range: u16) -> impl Iterator<Item = u16> {
    let last = if first == 0 { 0 } else { first.saturating_add(range) };
    first..=last
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_next_port_is_taken_if_one_is_in_use() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let first = listen(ip, 0, [0], None).unwrap();
        let used = first.local_addr().unwrap().port();
        let second = listen(ip, 0, [used, 0], None).unwrap();
        assert_ne!(second.local_addr().unwrap().port(), used);
        assert_eq!(listen(ip, 0, [used], None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_range_ends_with_the_last_port() {
        assert_eq!(port_range(7800, 2).collect::<Vec<_>>(), [7800, 7801, 7802]);
        assert_eq!(port_range(0, 10).collect::<Vec<_>>(), [0]);
        assert_eq!(port_range(65535, 10).collect::<Vec<_>>(), [65535]);
    }
}
