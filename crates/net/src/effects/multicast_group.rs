use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use consort_group::{Outcome, PhysAddr, Time, Token};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;

use super::Outcomes;
use crate::signals::{Key, Owner, Signals, SourceWaker};
use crate::udp::{MulticastOptions, group_socket, interface_index, unicast_socket};
use crate::warnings::RateLimitedWarnings;

/// Discovery requests have a few hundred bytes.
const DATAGRAM_LEN_MAX: usize = 64 * 1024;

/// A flood must not starve the driver.
const DATAGRAMS_PER_CYCLE: usize = 16;

pub(super) struct Group {
    token: Token,
    receiver: UdpSocket,
    /// A socket of tokio's would refuse the first request, perhaps the only one, until it is seen ready.
    sender: std::net::UdpSocket,
    group: SocketAddr,
    waker: Waker,
    has_more: bool,
    buffer: Vec<u8>,
    warnings: RateLimitedWarnings,
}

impl Group {
    /// The group is on the transport's interface.
    pub(super) fn join(
        signals: &Arc<Signals>,
        token: Token,
        group: PhysAddr,
        ttl: u32,
        phys: PhysAddr,
    ) -> io::Result<Self> {
        let interface = phys.ip.unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let index = interface_index(interface);
        let receiver = group_socket(group, interface, index)?;
        let from = match (group.ip, interface) {
            (Some(IpAddr::V4(_)), IpAddr::V6(_)) => IpAddr::from([0, 0, 0, 0]),
            (Some(IpAddr::V6(_)), IpAddr::V4(_)) => IpAddr::from([0; 16]),
            _ => interface,
        };
        let sender = unicast_socket(from, index, 0, MulticastOptions { ttl, is_looped: true })?;
        Ok(Self {
            receiver: UdpSocket::from_std(receiver.into())?,
            sender: sender.into(),
            group: group.socket_addr(),
            waker: SourceWaker::waker(signals, Key { owner: Owner::EffectGroup(token.layer()), index: 0 }),
            token,
            has_more: true,
            buffer: vec![0; DATAGRAM_LEN_MAX],
            warnings: RateLimitedWarnings::default(),
        })
    }

    /// The datagram is lost if the system does not take it now.
    pub(super) fn send(&mut self, now: Time, datagram: Bytes) {
        if let Err(error) = self.sender.send_to(&datagram, self.group) {
            self.warnings.count(now, "group_send_failed", || format!("{}: {error}", self.group));
        }
    }

    /// True if [`Group::receive`] stopped before the socket was empty.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    pub(super) fn receive(&mut self, now: Time, outcomes: &mut Outcomes) {
        self.has_more = false;
        for _ in 0..DATAGRAMS_PER_CYCLE {
            let mut buffer = ReadBuf::new(&mut self.buffer);
            match self.receiver.poll_recv_from(&mut Context::from_waker(&self.waker), &mut buffer) {
                Poll::Ready(Ok(from)) => {
                    let datagram = Bytes::copy_from_slice(buffer.filled());
                    outcomes.push_back((self.token, Outcome::Datagram { from: from.into(), datagram }));
                }
                Poll::Ready(Err(error)) => {
                    self.warnings.count(now, "group_receive_failed", || error.to_string());
                    return;
                }
                Poll::Pending => return,
            }
        }
        self.has_more = true;
    }
}
