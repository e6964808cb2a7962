//! Tests of `enable_suspect_events`: a member is suspected as soon as its connection breaks.

mod cluster;

use cluster::stallable_member::StallableMember;
use cluster::{Cluster, Inbox, one_view};

/// Stock TCP without FD_SOCK2, whose heartbeats detect nothing for longer than a test waits.
fn cluster(transport: &str, config: &'static str) -> Cluster {
    let cluster = Cluster::new(config).transport(transport, "enable_suspect_events=\"true\"");
    let from = cluster.text.find("<FD_SOCK2").expect("FD_SOCK2");
    let to = from + cluster.text[from..].find("/>").expect("its end") + 2;
    let fd_sock2 = cluster.text[from..to].to_owned();
    cluster.edited(&[(&fd_sock2, "")]).with("consort.suspect_after", "1h")
}

#[tokio::test]
async fn crashed_member_is_removed_without_fd_sock2_although_its_heartbeats_are_not_missed_yet() {
    for (transport, config) in [("TCP", "tcp.xml"), ("TCP_NIO2", "tcp-nio.xml")] {
        let cluster = cluster(transport, config);
        let crashing = StallableMember::join(&cluster, "A", Inbox::default()).await;
        let b = cluster.join("B", Inbox::default()).await;
        let c = cluster.join("C", Inbox::default()).await;
        one_view(&[&crashing.channel, &b, &c]).await;
        // The handle keeps the member from closing its connections in order.
        let handle = crashing.channel.clone();
        drop(crashing);
        one_view(&[&b, &c]).await;
        assert!(b.view_text().ends_with("(2) [B, C]"), "{}", b.view_text());
        drop(handle);
        b.close().await;
        c.close().await;
    }
}
