use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use mio::{Events, Interest, Poll, Token};

use crate::memory::Memory;
use crate::meter::Meter;
use crate::{Moved, Test};

/// Calls are few beside their copying.
const CALL_SIZE: usize = 128 * 1_024;

struct Peer {
    stream: mio::net::TcpStream,
    at: usize,
}

pub(crate) fn run(test: Test) -> anyhow::Result<Moved> {
    let address = |member: usize| SocketAddr::from((Ipv4Addr::LOCALHOST, test.port + member as u16));
    let listener = TcpListener::bind(address(test.own))?;
    crate::wait_for_all()?;
    // The later of two members connects.
    let mut streams =
        (0..test.own).map(|member| TcpStream::connect(address(member))).collect::<io::Result<Vec<_>>>()?;
    while streams.len() + 1 < test.members {
        streams.push(listener.accept()?.0);
    }
    let mut poll = Poll::new()?;
    let mut peers = Vec::new();
    for (token, stream) in streams.into_iter().enumerate() {
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(token), Interest::READABLE | Interest::WRITABLE)?;
        peers.push(Peer { stream, at: 0 });
    }
    exchange(test, &mut poll, &mut peers)
}

fn exchange(test: Test, poll: &mut Poll, peers: &mut [Peer]) -> anyhow::Result<Moved> {
    let outgoing = vec![1_u8; (CALL_SIZE / test.size).max(1) * test.size];
    let mut incoming = Memory::new(test.memory, CALL_SIZE);
    let mut events = Events::with_capacity(peers.len());
    let (mut written, others) = (0, peers.len() as u64);
    let mut meter = Meter::start(test);
    loop {
        let mut is_idle = true;
        for peer in &mut *peers {
            if let Some(count) = ready(peer.stream.read(incoming.place()))? {
                is_idle = false;
                incoming.filled(count);
                meter.bytes += count as u64;
            }
            if let Some(count) = ready(peer.stream.write(&outgoing[peer.at..]))? {
                is_idle = false;
                peer.at = (peer.at + count) % outgoing.len();
                written += count as u64;
            }
        }
        // Bytes that were sent to all others are delivered here, too.
        meter.bytes += written / others;
        written %= others;
        if let Some(moved) = meter.tick() {
            return Ok(moved);
        }
        if is_idle {
            poll.poll(&mut events, Some(Meter::PATIENCE))?;
        }
    }
}

/// The end of a peer that measured a little earlier is no error.
fn ready(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Ok(0) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => Ok(None),
            _ => Err(error),
        },
    }
}
