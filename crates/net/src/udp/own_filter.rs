//! A kernel filter that drops own multicasts before they are queued.
//!
//! A group returns datagrams to all its members on this host, the sender included. Of four equal senders, each would receive and
//! discard a quarter of all datagrams, which fill its buffer. A classic BPF filter compares source address and port; without it,
//! the edge does.
//!
//! Linux counts filtered datagrams as socket errors (measured with 6.18): in `drops` of `/proc/net/udp`, and in `InErrors` of
//! `Udp:` in `/proc/net/snmp`. Datagrams that do not fit a buffer count there too, and alone in `RcvbufErrors`.

use std::net::SocketAddr;

use socket2::Socket;

/// `own` has the group socket's address family.
#[cfg(target_os = "linux")]
pub(super) fn drop_own(group: &Socket, own: SocketAddr) {
    if own.ip().is_unspecified() {
        return;
    }
    if let Err(error) = group.attach_filter(&program(own)) {
        tracing::debug!(%error, "own multicasts are not filtered by the system");
    }
}

/// This system has no such filters.
#[cfg(not(target_os = "linux"))]
pub(super) fn drop_own(_group: &Socket, _own: SocketAddr) {}

/// Compares each word of the source address, then the port. If all are equal, it keeps no byte; else all.
#[cfg(target_os = "linux")]
fn program(own: SocketAddr) -> Vec<socket2::SockFilter> {
    use socket2::SockFilter;

    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // Offsets count from the UDP header, whose first field is the source port; this one leads to the IP header.
    const IP_HEADER: u32 = libc::SKF_NET_OFF as u32;

    let (source_at, octets) = match own {
        SocketAddr::V4(own) => (12, own.ip().octets().to_vec()),
        SocketAddr::V6(own) => (8, own.ip().octets().to_vec()),
    };
    let words = octets.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let words = words.zip((IP_HEADER + source_at..).step_by(4)).map(|(word, at)| (LOAD_WORD, at, word));
    let loads: Vec<_> = words.chain([(LOAD_HALF, 0, u32::from(own.port()))]).collect();
    let mut program = Vec::new();
    for (nth, &(load, at, wanted)) in loads.iter().enumerate() {
        // Jumps past the other comparisons and the first return, to the second.
        let to_keep = 2 * (loads.len() - nth - 1) + 1;
        program.push(SockFilter::new(load, 0, 0, at));
        program.push(SockFilter::new(JUMP_IF_EQUAL, 0, to_keep as u8, wanted));
    }
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    program
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

    use super::*;

    #[test]
    fn only_datagrams_of_that_address_and_port_are_dropped() {
        for host in [Ipv4Addr::LOCALHOST.into(), std::net::IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let bind = || UdpSocket::bind((host, 0)).unwrap();
            let (own, other, receiver) = (bind(), bind(), Socket::from(bind()));
            drop_own(&receiver, own.local_addr().unwrap());
            let receiver = UdpSocket::from(receiver);
            let to = receiver.local_addr().unwrap();
            for number in 0..3 {
                own.send_to(&[number], to).unwrap();
                other.send_to(&[10 + number], to).unwrap();
            }
            let mut seen = Vec::new();
            let mut buffer = [0; 8];
            while seen.len() < 3 {
                let (length, from) = receiver.recv_from(&mut buffer).unwrap();
                assert_eq!((length, from), (1, other.local_addr().unwrap()));
                seen.push(buffer[0]);
            }
            assert_eq!(seen, [10, 11, 12]);
            receiver.set_nonblocking(true).unwrap();
            assert!(receiver.recv_from(&mut buffer).is_err(), "nothing else waits");
        }
    }
}
