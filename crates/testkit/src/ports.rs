//! Ports that no other cluster of a test program uses.

use std::sync::atomic::{AtomicU16, Ordering};

use consort_conf::Variables;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Clusters of one program that have ports at a time.
const CLUSTERS: u16 = 20;

/// Returns the first of the 20 ports of a cluster's transports; FD_SOCK2 uses as many from 100 above. They are
/// below the ephemeral ports, and apart from those of the programs started next.
pub fn free_base() -> u16 {
    let nth = NEXT.fetch_add(1, Ordering::Relaxed) % CLUSTERS;
    let blocks = CLUSTERS / 5;
    let block = (std::process::id() % 15) as u16 * blocks + nth / 5;
    12_000 + block * 200 + nth % 5 * 20
}

/// Returns variables with which members of a stock stack on this host find each other from this port on.
pub fn members_from(base: u16) -> Variables {
    Variables::new()
        .with("jgroups.bind_addr", "127.0.0.1")
        .with("jgroups.bind_port", base.to_string())
        .with("jgroups.tcpping.initial_hosts", format!("127.0.0.1[{base}]"))
        .with("jgroups.tcp.port_range", "8")
        .with("jgroups.udp.mcast_port", (base + 11).to_string())
}
