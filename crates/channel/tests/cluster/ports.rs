//! Ports that no other cluster of a test program has.

use std::sync::atomic::{AtomicU16, Ordering};

use consort_conf::Variables;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// As many clusters of one program have ports of their own at a time.
const CLUSTERS: u16 = 20;

/// The first of the 20 ports of a cluster's transports; FD_SOCK2 takes as many from 100 above them. They are below those
/// that the system gives out itself, and apart from those of programs that were started next.
pub fn free_base() -> u16 {
    let nth = NEXT.fetch_add(1, Ordering::Relaxed) % CLUSTERS;
    let blocks = CLUSTERS / 5;
    let block = (std::process::id() % 15) as u16 * blocks + nth / 5;
    12_000 + block * 200 + nth % 5 * 20
}

/// What members on this host need to meet from this port on, with a stock stack.
pub fn meeting_at(base: u16) -> Variables {
    Variables::new()
        .with("jgroups.bind_addr", "127.0.0.1")
        .with("jgroups.bind_port", base.to_string())
        .with("jgroups.tcpping.initial_hosts", format!("127.0.0.1[{base}]"))
        .with("jgroups.tcp.port_range", "8")
        .with("jgroups.udp.mcast_port", (base + 11).to_string())
}
