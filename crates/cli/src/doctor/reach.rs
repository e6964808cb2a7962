//! Whether ports accept connections, refuse them, or do not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    Listening,
    /// The host answers, and no program listens.
    Refused,
    /// No answer within the time: a firewall drops packets, or the host is down.
    Silent,
    /// This host knows no way there, or it may not use it.
    Unreachable,
}

/// Connections at a time, of which each takes a descriptor.
const AT_ONCE: usize = 256;

/// Connects to the addresses, many at a time, and closes the connections.
pub(super) async fn reach(
    addresses: BTreeSet<SocketAddr>,
    time_limit: Duration,
) -> BTreeMap<SocketAddr, Reach> {
    let all: Vec<SocketAddr> = addresses.into_iter().collect();
    let mut reached = BTreeMap::new();
    for part in all.chunks(AT_ONCE) {
        reached.extend(reach_at_once(part, time_limit).await);
    }
    reached
}

async fn reach_at_once(addresses: &[SocketAddr], time_limit: Duration) -> Vec<(SocketAddr, Reach)> {
    let connecting = addresses.iter().copied().map(|address| async move {
        let reach = match timeout(time_limit, TcpStream::connect(address)).await {
            Ok(Ok(_)) => Reach::Listening,
            Ok(Err(error)) => match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Reach::Refused,
                ErrorKind::TimedOut => Reach::Silent,
                _ => Reach::Unreachable,
            },
            Err(_) => Reach::Silent,
        };
        (address, reach)
    });
    connecting.collect::<JoinSet<_>>().join_all().await
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::{Domain, Socket, Type};

    use super::*;

    const TIME_LIMIT: Duration = Duration::from_millis(300);

    /// A port whose queue of connections is full: the system drops requests for further ones, as a firewall does.
    pub(in super::super) struct SilentPort {
        pub(in super::super) address: SocketAddr,
        _listener: Socket,
        _queued: Vec<TcpStream>,
    }

    impl SilentPort {
        pub(in super::super) fn open() -> Self {
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
            listener.bind(&any.into()).expect("a port");
            listener.listen(0).expect("a listener");
            let address = listener.local_addr().expect("an address").as_socket().expect("of a family");
            let connect = || TcpStream::connect_timeout(&address, TIME_LIMIT).ok();
            let queued = std::iter::from_fn(connect).take(16).collect();
            Self { address, _listener: listener, _queued: queued }
        }
    }

    #[tokio::test]
    async fn listening_refused_and_silent_ports_are_distinguished() {
        let listening = TcpListener::bind("127.0.0.1:0").expect("a port");
        let refused =
            TcpListener::bind("127.0.0.1:0").and_then(|closed| closed.local_addr()).expect("a port");
        let silent = SilentPort::open();
        let listening = listening.local_addr().map(|address| (address, listening)).expect("an address");
        let addresses = [listening.0, refused, silent.address];
        let reached = reach(addresses.into(), TIME_LIMIT).await;
        let found = addresses.map(|address| reached[&address]);
        assert_eq!(found, [Reach::Listening, Reach::Refused, Reach::Silent]);
    }
}
