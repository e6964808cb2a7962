//! A network namespace with nothing but a loopback that multicasts.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Makes the namespace's loopback one that multicasts, then becomes what the other words say.
const ENTER: &str = "ip link set lo up multicast on && ip route add 224.0.0.0/4 dev lo && exec \"$@\"";

/// A command that runs in a network namespace of its own: the caller adds a program and its arguments. Ports,
/// multicast groups and discovery of others on this machine are out of its reach, and nothing leaves it.
///
/// It needs `unshare` of util-linux and `ip` of iproute2.
pub fn own_network() -> Command {
    let mut command = Command::new("unshare");
    // Without root a user namespace of our own makes us root in it.
    command.arg(if is_root() { "-n" } else { "-rn" }).args(["sh", "-c", ENTER, "sh"]);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
