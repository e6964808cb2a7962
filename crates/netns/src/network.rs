//! Network namespaces with different reachability and address families.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// The content of a network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// A loopback with multicast.
    Loopback,
    /// A loopback without multicast groups.
    WithoutMulticast,
    /// A loopback, and an `eth0` with multicast, with IPv4 only.
    Ipv4,
    /// As `Ipv4`, with IPv6 only.
    Ipv6,
    /// As `Ipv4`, with both.
    Dual,
}

/// Its other end reads nothing, and multicasts are looped back on this host.
const ETH0: &str = "ip link set lo up && ip link add eth0 type veth peer name far && ip link set far up && \
    ip link set eth0 up";

/// Duplicate address detection would delay the use of an address by a second.
const ADDRESS_V6: &str = "ip addr add fd00::1/64 dev eth0 nodad";
const ADDRESS_V4: &str = "ip addr add 10.0.0.1/24 dev eth0 && ip route add 224.0.0.0/4 dev eth0";

impl Network {
    fn setup(self) -> String {
        let commands = match self {
            Self::Loopback => &["ip link set lo up multicast on", "ip route add 224.0.0.0/4 dev lo"][..],
            Self::WithoutMulticast => {
                &["ip link set lo up", "echo 0 > /proc/sys/net/ipv4/igmp_max_memberships"]
            }
            Self::Ipv4 => &[ETH0, ADDRESS_V4, "ip -6 addr flush dev eth0", "ip -6 addr flush dev lo"],
            Self::Ipv6 => &[ETH0, ADDRESS_V6, "ip -4 addr flush dev lo"],
            Self::Dual => &[ETH0, ADDRESS_V4, ADDRESS_V6],
        };
        commands.join(" && ")
    }
}

/// Returns a command in a network namespace of its own, to which the caller adds a program: no packet leaves it.
///
/// Needs `unshare` of util-linux and `ip` of iproute2.
pub fn own_network(network: Network) -> Command {
    let mut command = Command::new("unshare");
    // Without root, a user namespace makes this process root in it. The shell executes its arguments.
    let enter = format!("{} && exec \"$@\"", network.setup());
    command.arg(if is_root() { "-n" } else { "-rn" }).args(["sh", "-c", &enter, "sh"]);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
