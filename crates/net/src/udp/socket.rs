use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use consort_group::PhysAddr;
use socket2::{Domain, Protocol, Socket, Type};

use crate::tcp::listen::with_scope;

#[derive(Clone, Copy, Debug)]
pub(crate) struct MulticastOptions {
    pub(crate) ttl: u32,
    /// Members on the same host receive the multicasts.
    pub(crate) is_looped: bool,
}

/// The socket also sends to groups.
pub(crate) fn unicast_socket(
    ip: IpAddr,
    scope_id: u32,
    port: u16,
    multicast: MulticastOptions,
) -> io::Result<Socket> {
    let addr = with_scope(ip, scope_id, port);
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    match ip {
        IpAddr::V4(ip) => {
            if !ip.is_unspecified() {
                socket.set_multicast_if_v4(&ip)?;
            }
            socket.set_multicast_ttl_v4(multicast.ttl)?;
            socket.set_multicast_loop_v4(multicast.is_looped)?;
        }
        IpAddr::V6(ip) => {
            socket.set_only_v6(!ip.is_unspecified())?;
            socket.set_multicast_if_v6(scope_id)?;
            socket.set_multicast_hops_v6(multicast.ttl)?;
            socket.set_multicast_loop_v6(multicast.is_looped)?;
        }
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

pub(crate) fn group_socket(group: PhysAddr, interface: IpAddr, index: u32) -> io::Result<Socket> {
    let not_a_group =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("{group} is no multicast group"));
    let ip = group.ip.filter(IpAddr::is_multicast).ok_or_else(not_a_group)?;
    let domain = if ip.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    // All members of this host receive on the same port.
    socket.set_reuse_address(true)?;
    let bound = bind_address(ip, index, group.port);
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&bound.into())?;
    match (ip, interface) {
        (IpAddr::V4(ip), IpAddr::V4(interface)) => socket.join_multicast_v4(&ip, &interface)?,
        (IpAddr::V4(ip), IpAddr::V6(_)) => socket.join_multicast_v4(&ip, &Ipv4Addr::UNSPECIFIED)?,
        (IpAddr::V6(ip), _) => socket.join_multicast_v6(&ip, index)?,
    }
    Ok(socket)
}

/// A socket bound to the group does not receive other groups' datagrams on its port; only Unix allows it.
fn bind_address(group: IpAddr, index: u32, port: u16) -> SocketAddr {
    if cfg!(unix) {
        let mut addr = SocketAddr::new(group, port);
        if let SocketAddr::V6(v6) = &mut addr {
            v6.set_scope_id(index);
        }
        addr
    } else {
        match group {
            IpAddr::V4(_) => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
            IpAddr::V6(_) => SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), port),
        }
    }
}

/// 0 is the system's choice.
pub(crate) fn interface_index(ip: IpAddr) -> u32 {
    let interfaces = crate::bind_addr::Interface::of_host().unwrap_or_default();
    interfaces.iter().find(|one| one.ip == ip).map_or(0, |one| one.index)
}
