//! A packet is sent and has to come back.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use consort_net::Interface;
use socket2::{Domain, Protocol, Socket, Type};

use super::findings::Findings;

const WORDS: &[u8] = b"consort doctor";

pub(super) fn check(group: IpAddr, interface: &Interface, time_limit: Duration, findings: &mut Findings) {
    let checked = format!("multicast to {group} on {}", interface.name);
    let advice = format!(
        "allow it (ip link set {0} multicast on; ip route add 224.0.0.0/4 dev {0}), or use a stack with a list of hosts (tcp.xml): \
         most clouds have no multicast",
        interface.name
    );
    match receives_own_multicast(group, interface, time_limit) {
        Ok(true) => findings.good(checked, "a sent packet is received"),
        Ok(false) => {
            findings.bad(checked, format!("a sent packet is not received within {time_limit:?}"), advice);
        }
        Err(error) => findings.bad(checked, error.to_string(), advice),
    }
}

fn receives_own_multicast(group: IpAddr, interface: &Interface, time_limit: Duration) -> io::Result<bool> {
    let any =
        SocketAddr::new(if group.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) }, 0);
    let socket = Socket::new(Domain::for_address(any), Type::DGRAM, Some(Protocol::UDP))?;
    socket.bind(&any.into())?;
    match (group, interface.ip) {
        (IpAddr::V4(group), IpAddr::V4(own)) => {
            socket.join_multicast_v4(&group, &own)?;
            socket.set_multicast_if_v4(&own)?;
            socket.set_multicast_loop_v4(true)?;
        }
        (IpAddr::V6(group), IpAddr::V6(_)) => {
            socket.join_multicast_v6(&group, interface.index)?;
            socket.set_multicast_if_v6(interface.index)?;
            socket.set_multicast_loop_v6(true)?;
        }
        (group, own) => {
            let text = format!("the group {group} and the address {own} are not of one family, IPv4 or IPv6");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    }
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(time_limit))?;
    socket.send_to(WORDS, (group, socket.local_addr()?.port()))?;
    let mut buffer = [0; 64];
    match socket.recv_from(&mut buffer) {
        Ok((length, _)) => Ok(&buffer[..length] == WORDS),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_another_family_is_an_error() {
        let interface = Interface { name: "lo".to_owned(), ip: IpAddr::from([127, 0, 0, 1]), index: 1 };
        let group = "ff0e::8:8:8".parse().unwrap();
        let error = receives_own_multicast(group, &interface, Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("not of one family"), "{error}");
    }
}
