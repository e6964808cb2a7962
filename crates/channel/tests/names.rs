//! Tests of members that find each other by a DNS name of all of them (DNS_PING).

mod cluster;

use std::sync::Arc;

use cluster::{Cluster, Inbox, one_view};
use consort_channel::Message;

/// Stock TCP whose members have this name's addresses, at the ports that the transport may bind.
fn cluster(name: &str) -> Cluster {
    let routers = "<TCPGOSSIP initial_hosts=\"${jgroups.tcpgossip.initial_hosts:localhost[12001]}\"/>";
    Cluster::new("tcpgossip.xml").edited(&[(routers, "<DNS_PING/>")]).with("jgroups.dns.dns_query", name)
}

#[tokio::test]
async fn members_find_each_other_by_a_name() {
    let cluster = cluster("no.such.host.invalid,localhost");
    let inboxes: Vec<Arc<Inbox>> = (0..3).map(|_| Arc::default()).collect();
    let a = cluster.join("A", inboxes[0].clone()).await;
    let b = cluster.join("B", inboxes[1].clone()).await;
    let c = cluster.join("C", inboxes[2].clone()).await;
    one_view(&[&a, &b, &c]).await;
    // Each was admitted at once: none has begun a cluster of its own that is merged later.
    assert!(a.view_text().ends_with("|2] (3) [A, B, C]"), "{}", a.view_text());
    c.send(Message::bytes(None, vec![7; 1_000])).await.unwrap();
    assert_eq!(inboxes[0].from(c.address(), 1).await, [vec![7; 1_000]]);
    for channel in [a, b, c] {
        channel.close().await;
    }
}

#[tokio::test]
async fn a_member_with_unresolvable_names_forms_its_own_cluster() {
    let cluster = cluster("no.such.host.invalid");
    let a = cluster.join("A", Inbox::default()).await;
    assert!(a.view_text().ends_with("(1) [A]"), "{}", a.view_text());
    a.close().await;
}
