//! A driver leaves no resources. A program of its own, because descriptors are counted per process.

mod member;

use consort_net::{EdgeKind, TransportConfig};
use member::{Member, bind_addr, tcp};
use tokio::runtime::Handle;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// S000-16: shutting down 1,000 times in a row leaves no task, no socket and no timer.
#[tokio::test]
async fn a_thousand_members_leave_nothing_behind() {
    let udp = TransportConfig { bind_addr: bind_addr("127.0.0.1"), ..TransportConfig::udp() };
    let receivers = TransportConfig { ucast_receiver_threads: 2, ..udp.clone() };
    let shared = TransportConfig { kind: EdgeKind::SharedLoopback, ..tcp() };
    // The runtime's own descriptors are opened once.
    Member::start(&tcp()).handle.shutdown().await;
    tokio::task::spawn_blocking(|| ()).await.unwrap();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = (descriptors(), tasks());
    for round in 0..1000 {
        let config = [&tcp(), &udp, &shared, &receivers][round % 4].clone();
        let (a, mut b) = (Member::start(&config), Member::start(&config));
        a.send(b.phys, "hello");
        b.packet().await;
        a.handle.shutdown().await;
        b.handle.shutdown().await;
        assert_eq!((descriptors(), tasks()), before, "round {round}, {:?}", config.kind);
    }
}
