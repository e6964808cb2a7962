//! Buffer sizes of sockets.

use std::io;

use socket2::Socket;

/// The sizes are in bytes; 0 leaves the default. With `CAP_NET_ADMIN` (on Linux) a member exceeds the system's limit
/// (`net.core.rmem_max`); others get the limit and a warning, because a larger burst is lost and retransmitted. Linux counts
/// losses in `RcvbufErrors` (of `Udp:` in `/proc/net/snmp`); other counters include own multicasts
/// ([`drop_own`](super::own_filter::drop_own)).
pub(super) fn ask(socket: &Socket, receive: usize, send: usize) {
    if receive > 0 {
        let asked = force(socket, receive).or_else(|_| socket.set_recv_buffer_size(receive));
        let granted = granted(socket.recv_buffer_size().unwrap_or(0));
        if asked.is_err() || granted < receive {
            tracing::warn!(
                "a receive buffer of {receive} bytes was asked for, the system gives {granted}: bursts may be lost \
                 (on Linux, raise net.core.rmem_max; RcvbufErrors in /proc/net/snmp counts losses, \
                 InErrors and drops count our own multicasts as well)"
            );
        }
    }
    if send > 0 {
        // A smaller send buffer only makes the sender wait.
        let _ = socket.set_send_buffer_size(send);
    }
}

/// Linux reports twice the requested size, half of it for bookkeeping.
fn granted(reported: usize) -> usize {
    if cfg!(target_os = "linux") { reported / 2 } else { reported }
}

#[cfg(target_os = "linux")]
fn force(socket: &Socket, size: usize) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, size)?)
}

#[cfg(not(target_os = "linux"))]
fn force(_socket: &Socket, _size: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_buffer_grows_to_the_requested_size() {
        let socket = Socket::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        ask(&socket, 100_000, 50_000);
        assert!(granted(socket.recv_buffer_size().unwrap()) >= 100_000);
        assert!(granted(socket.send_buffer_size().unwrap()) >= 50_000);
    }
}
