//! Probes of ports: whether a process listens there (FD_SOCK2). A connection is opened and closed at once, without a byte.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use consort_group::{Outcome, PhysAddr, PortState, Token};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::Outcomes;
use crate::signals::{Key, Owner, Signals, SourceWaker};

/// A suspect has a few ports, and layers bound the suspects that they probe at a time.
const PROBES_MAX: usize = 128;

struct Probe {
    token: Token,
    answer: Pin<Box<dyn Future<Output = PortState> + Send>>,
}

pub(super) struct PortProbes {
    running: Vec<Probe>,
    waker: Waker,
}

impl PortProbes {
    pub(super) fn new(signals: &Arc<Signals>) -> Self {
        let waker = SourceWaker::waker(signals, Key { owner: Owner::PortProbes, index: 0 });
        Self { running: Vec::new(), waker }
    }

    pub(super) fn add(&mut self, token: Token, to: PhysAddr, within: Duration, outcomes: &mut Outcomes) {
        if to.ip.is_none() || self.running.len() >= PROBES_MAX {
            return outcomes.push_back((token, Outcome::Port(PortState::Unknown)));
        }
        self.running.push(Probe { token, answer: Box::pin(probe(to.socket_addr(), within)) });
        self.poll(outcomes);
    }

    pub(super) fn poll(&mut self, outcomes: &mut Outcomes) {
        let Self { running, waker } = self;
        running.retain_mut(|Probe { token, answer }| {
            match answer.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => true,
                Poll::Ready(state) => {
                    outcomes.push_back((*token, Outcome::Port(state)));
                    false
                }
            }
        });
    }

    pub(super) fn clear(&mut self) {
        self.running.clear();
    }
}

async fn probe(to: SocketAddr, within: Duration) -> PortState {
    match timeout(within, connect(to)).await {
        Ok(Ok(())) => PortState::Open,
        // The host itself refuses. Without a way there the error is another one.
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => PortState::Refused,
        // The connection waited for a process, which closed its socket or died before it accepted.
        Ok(Err(error))
            if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
        {
            PortState::Open
        }
        Ok(Err(error)) => {
            tracing::debug!(%to, %error, "no answer of the port");
            PortState::Unknown
        }
        Err(_) => PortState::Unknown,
    }
}

async fn connect(to: SocketAddr) -> io::Result<()> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let stream = socket.connect(to).await?;
    if stream.local_addr()? == to {
        // This host has connected the socket to itself: it had chosen the port, which was free.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::net::TcpListener;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);

    async fn state_of(to: PhysAddr) -> PortState {
        let (mut probes, mut outcomes) =
            (PortProbes::new(&Arc::new(Signals::default())), Outcomes::default());
        probes.add(Token::new(3, 1), to, WITHIN, &mut outcomes);
        loop {
            match outcomes.pop_front() {
                Some((_, Outcome::Port(state))) => return state,
                Some(other) => panic!("{other:?}"),
                None => {
                    tokio::task::yield_now().await;
                    probes.poll(&mut outcomes);
                }
            }
        }
    }

    #[tokio::test]
    async fn port_is_open_while_a_process_listens_and_refused_afterwards() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = PhysAddr::from(listener.local_addr().unwrap());
        assert_eq!(state_of(at).await, PortState::Open);
        drop(listener);
        assert_eq!(state_of(at).await, PortState::Refused);
    }

    #[tokio::test]
    async fn port_whose_process_ends_before_it_accepts_is_open_for_the_last_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = PhysAddr::from(listener.local_addr().unwrap());
        let (mut probes, mut outcomes) =
            (PortProbes::new(&Arc::new(Signals::default())), Outcomes::default());
        probes.add(Token::new(3, 1), at, WITHIN, &mut outcomes);
        assert_eq!(outcomes, [], "the connection is in the listener's queue");
        drop(listener);
        while outcomes.is_empty() {
            tokio::task::yield_now().await;
            probes.poll(&mut outcomes);
        }
        assert_eq!(outcomes.pop_front(), Some((Token::new(3, 1), Outcome::Port(PortState::Open))));
        assert_eq!(state_of(at).await, PortState::Refused);
    }

    #[tokio::test]
    async fn host_without_a_way_to_it_is_unknown() {
        // No connection leads to the broadcast address.
        let nowhere = PhysAddr::new(IpAddr::V4(Ipv4Addr::BROADCAST), 7800);
        assert_eq!(state_of(nowhere).await, PortState::Unknown);
        assert_eq!(state_of(PhysAddr { ip: None, ..nowhere }).await, PortState::Unknown);
    }

    #[tokio::test]
    async fn probes_at_a_time_are_bounded() {
        let (mut probes, mut outcomes) =
            (PortProbes::new(&Arc::new(Signals::default())), Outcomes::default());
        let pending = || Probe { token: Token::new(3, 1), answer: Box::pin(std::future::pending()) };
        probes.running = std::iter::repeat_with(pending).take(PROBES_MAX).collect();
        probes.add(Token::new(3, 2), PhysAddr::new(Ipv4Addr::LOCALHOST.into(), 1), WITHIN, &mut outcomes);
        assert_eq!(outcomes, [(Token::new(3, 2), Outcome::Port(PortState::Unknown))]);
    }
}
