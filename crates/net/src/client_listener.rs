use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// Listens at the host's first usable address; fails if there is no address or no free port. `waiting_max` connections may wait,
/// as far as the system allows. A closed listener's port is free at once.
pub async fn listen(host: &str, port: u16, waiting_max: u32) -> io::Result<TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::InvalidInput, "the host has no address");
    for address in lookup_host((host, port)).await? {
        match listen_at(address, waiting_max) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn listen_at(address: SocketAddr, waiting_max: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Otherwise the port stays taken while the system remembers earlier connections.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(waiting_max)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    const WAITING_MAX: u32 = 4_096;

    /// Linux limits waiting connections.
    fn allowed() -> usize {
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        allowed.trim().parse().unwrap()
    }

    #[tokio::test]
    async fn concurrent_clients_all_fit_the_backlog() {
        let listener = listen("127.0.0.1", 0, WAITING_MAX).await.unwrap();
        let at = listener.local_addr().unwrap();
        // No connection is accepted meanwhile: one above the backlog would never be connected.
        let connecting = async {
            let mut connected = Vec::new();
            for _ in 0..allowed().min(WAITING_MAX as usize).min(500) {
                connected.push(TcpStream::connect(at).await.unwrap());
            }
        };
        timeout(Duration::from_secs(60), connecting).await.expect("they are connected");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_an_error() {
        let listener = listen("localhost", 0, WAITING_MAX).await.unwrap();
        let at = listener.local_addr().unwrap();
        let taken = listen(&at.ip().to_string(), at.port(), WAITING_MAX).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(listen("no.such.host.invalid", 0, WAITING_MAX).await.is_err());
    }
}
