//! Datagrams to a multicast group, within a window that receivers acknowledge.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Instant;

use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Protocol, Socket, Type};

use crate::memory::Memory;
use crate::meter::Meter;
use crate::{Moved, Test};

/// As `max_bundle_size` in udp.xml.
pub(crate) const DATAGRAM_MAX: usize = 64_000;

const GROUP: Ipv4Addr = Ipv4Addr::new(228, 8, 8, 9);

/// A sender's lead over its slowest receiver: windows of four senders fit a receive buffer of 4 MB.
const WINDOW: u64 = 1_000_000;

const ACKNOWLEDGED_BYTES: u64 = WINDOW / 4;

/// As in udp.xml; the system may give less.
const BUFFER_SIZE: usize = 25_000_000;

const HEAD: usize = 12;

const READS_MAX: usize = 8;

/// Unacknowledged datagrams are lost after this time without any acknowledgement.
const LOST_AFTER_MS: u128 = 200;

struct Member {
    test: Test,
    group: UdpSocket,
    own: UdpSocket,
    datagram: Vec<u8>,
    incoming: Memory,
    sent: u64,
    /// The number of this member's datagrams at each member.
    acknowledged: Vec<u64>,
    /// The next number of each member, and the last acknowledged one.
    expected: Vec<u64>,
    answered: Vec<u64>,
    progress: Instant,
}

pub(crate) fn run(test: Test) -> anyhow::Result<Moved> {
    let mut group = group_socket(test.port)?;
    let mut own = own_socket(unicast_address(&test, test.own))?;
    let mut poll = Poll::new()?;
    poll.registry().register(&mut group, Token(0), Interest::READABLE)?;
    poll.registry().register(&mut own, Token(1), Interest::READABLE)?;
    crate::wait_for_all()?;
    let messages = (DATAGRAM_MAX / test.size).max(1);
    let mut datagram = vec![1_u8; (messages * test.size).max(HEAD)];
    datagram[..4].copy_from_slice(&(test.own as u32).to_be_bytes());
    let mut member = Member {
        test,
        group,
        own,
        datagram,
        incoming: Memory::new(test.memory, DATAGRAM_MAX),
        sent: 0,
        acknowledged: vec![0; test.members],
        expected: vec![0; test.members],
        answered: vec![0; test.members],
        progress: Instant::now(),
    };
    let mut events = Events::with_capacity(2);
    let mut meter = Meter::start(test);
    loop {
        let is_idle = !member.turn(&mut meter)?;
        if let Some(moved) = meter.tick() {
            return Ok(moved);
        }
        if is_idle {
            poll.poll(&mut events, Some(Meter::PATIENCE))?;
        }
    }
}

fn unicast_address(test: &Test, member: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, test.port + 1 + member as u16))
}

fn group_socket(port: u16) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(BUFFER_SIZE)?;
    socket.bind(&SocketAddrV4::new(GROUP, port).into())?;
    socket.join_multicast_v4(&GROUP, &Ipv4Addr::LOCALHOST)?;
    Ok(UdpSocket::from_std(socket.into()))
}

fn own_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.set_send_buffer_size(BUFFER_SIZE)?;
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
    socket.bind(&address.into())?;
    Ok(UdpSocket::from_std(socket.into()))
}

impl Member {
    fn turn(&mut self, meter: &mut Meter) -> io::Result<bool> {
        let mut has_moved = false;
        for _ in 0..READS_MAX {
            let Some((_, from, number)) = read(&self.own, &mut [0; HEAD])? else { break };
            has_moved = true;
            self.progress = Instant::now();
            if let Some(acknowledged) = self.acknowledged.get_mut(from) {
                *acknowledged = number.max(*acknowledged);
            }
        }
        for _ in 0..READS_MAX {
            let Some((count, from, number)) = read(&self.group, self.incoming.place())? else { break };
            self.incoming.filled(count);
            has_moved = true;
            if from < self.expected.len() {
                meter.bytes += count as u64;
                self.received(from, number, meter)?;
            }
        }
        Ok(self.send()? || has_moved)
    }

    fn received(&mut self, from: usize, number: u64, meter: &mut Meter) -> io::Result<()> {
        meter.lost += number.saturating_sub(self.expected[from]);
        self.expected[from] = number + 1;
        let unanswered = (number + 1 - self.answered[from]) * self.datagram.len() as u64;
        if from != self.test.own && unanswered >= ACKNOWLEDGED_BYTES {
            self.answered[from] = number + 1;
            let mut acknowledgement = [0; HEAD];
            acknowledgement[..4].copy_from_slice(&(self.test.own as u32).to_be_bytes());
            acknowledgement[4..].copy_from_slice(&(number + 1).to_be_bytes());
            ready(self.own.send_to(&acknowledgement, unicast_address(&self.test, from)))?;
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<bool> {
        let others = (0..self.test.members).filter(|&member| member != self.test.own);
        let slowest = others.map(|member| self.acknowledged[member]).min().unwrap_or(self.sent);
        if (self.sent + 1 - slowest) * self.datagram.len() as u64 > WINDOW {
            if self.progress.elapsed().as_millis() > LOST_AFTER_MS {
                self.acknowledged.fill(self.sent);
                self.progress = Instant::now();
            }
            return Ok(false);
        }
        self.datagram[4..HEAD].copy_from_slice(&self.sent.to_be_bytes());
        let group = SocketAddr::from((GROUP, self.test.port));
        let is_sent = ready(self.own.send_to(&self.datagram, group))?.is_some();
        self.sent += u64::from(is_sent);
        Ok(is_sent)
    }
}

fn read(socket: &UdpSocket, into: &mut [u8]) -> io::Result<Option<(usize, usize, u64)>> {
    let Some(count) = ready(socket.recv(into))? else { return Ok(None) };
    let head: [u8; HEAD] = into[..HEAD].try_into().expect("a buffer beyond the head");
    let (from, number) = head.split_at(4);
    let from = u32::from_be_bytes(from.try_into().unwrap_or_default()) as usize;
    Ok(Some((count, from, u64::from_be_bytes(number.try_into().unwrap_or_default()))))
}

fn ready(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Ok(count) => Ok(Some(count)),
        Err(error) => match error.kind() {
            // Connection refused: a member that measured a little earlier is gone.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}
