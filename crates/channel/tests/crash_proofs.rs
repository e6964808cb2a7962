//! Members that die are removed by a proof: the verification by timeouts would end after the test.

mod cluster;

use cluster::stallable_member::StallableMember;
use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::Channel;
use tokio::time::timeout;

fn cluster(config: &'static str) -> Cluster {
    Cluster::new(config)
        .with("consort.suspect_after", "1h")
        .edited(&[("<VERIFY_SUSPECT2 timeout=\"1.5s\"/>", "<VERIFY_SUSPECT2 timeout=\"1h\"/>")])
}

/// Waits until each member of a view watches the next one. A crash before leaves no end of a connection as evidence.
async fn ring_is_closed(members: &[&Channel]) {
    let view = members[0].view().expect("a view");
    for (nth, member) in view.members().iter().enumerate() {
        let next = view.members()[(nth + 1) % view.len()].to_string();
        let member = members.iter().find(|channel| channel.address() == member).expect("its channel");
        let watches = async {
            loop {
                let next = next.clone();
                let is_watching = member.with_stack(move |stack, _| {
                    stack.attribute("FD_SOCK2", "is_watching").as_deref() == Some("true")
                        && stack.attribute("FD_SOCK2", "ping_dest") == Some(next)
                });
                if is_watching.await.expect("an open channel") {
                    break;
                }
            }
        };
        timeout(PATIENCE, watches).await.unwrap_or_else(|_| panic!("{member:?} does not watch {next}"));
    }
}

/// One of five ends as a crash does. With the others before and after it in the view, its neighbour, the coordinator and
/// a member that is both have to act.
async fn member_is_removed(config: &'static str, victim: usize) {
    const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];
    let cluster = cluster(config);
    let (mut others, mut crashing) = (Vec::new(), None);
    for (nth, name) in NAMES.into_iter().enumerate() {
        if nth == victim {
            crashing = Some(StallableMember::join(&cluster, name, Inbox::default()).await);
        } else {
            others.push(cluster.join(name, Inbox::default()).await);
        }
    }
    let crashing = crashing.expect("the victim");
    let all: Vec<_> = others.iter().chain([&crashing.channel]).collect();
    one_view(&all).await;
    ring_is_closed(&all).await;
    // The handle keeps the member from closing its connections in order.
    let handle = crashing.channel.clone();
    drop(crashing);
    one_view(&others.iter().collect::<Vec<_>>()).await;
    assert!(others[0].view_text().contains("(4)"), "{}", others[0].view_text());
    drop(handle);
    for other in others {
        other.close().await;
    }
}

#[tokio::test]
async fn crash_of_the_coordinator_is_proven() {
    member_is_removed("tcp.xml", 0).await;
}

#[tokio::test]
async fn crash_of_the_coordinators_neighbour_is_proven() {
    member_is_removed("tcp.xml", 1).await;
}

#[tokio::test]
async fn crash_of_a_member_without_a_connection_to_the_coordinator_is_proven() {
    member_is_removed("tcp.xml", 2).await;
}

#[tokio::test]
async fn crash_over_udp_is_proven_by_the_port_of_fd_sock2() {
    member_is_removed("udp.xml", 4).await;
}
