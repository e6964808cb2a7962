//! Network namespaces for tests and benches, with different reachability and address families.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// The content of a network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// A loopback with multicast.
    Loopback,
    /// A loopback on which no program can join a group.
    WithoutMulticast,
    /// An interface `eth0` with multicast, and a loopback, both with IPv4 addresses only.
    Ipv4,
    /// The same with IPv6 addresses only.
    Ipv6,
    /// The same with both.
    Dual,
}

/// A usual interface. Its other end reads nothing, and multicasts are looped back on this host.
const ETH0: &str = "ip link set lo up && ip link add eth0 type veth peer name far && ip link set far up && \
    ip link set eth0 up";

/// Duplicate address detection would delay the use of an address by a second.
const ADDRESS_V6: &str = "ip addr add fd00::1/64 dev eth0 nodad";
const ADDRESS_V4: &str = "ip addr add 10.0.0.1/24 dev eth0 && ip route add 224.0.0.0/4 dev eth0";

impl Network {
    /// Returns the commands that set the namespace up.
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

/// Returns a command that runs in a network namespace of its own; the caller adds a program and its arguments. Ports,
/// multicast groups and discovery of other programs on this machine are isolated, and no packet leaves it.
///
/// It needs `unshare` of util-linux and `ip` of iproute2.
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
