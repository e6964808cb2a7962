//! Tests of members that find each other through a shared directory.

mod cluster;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::stallable_member::StallableMember;
use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::Message;

/// Stock TCP with discovery through files.
fn cluster(directory: &Path) -> Cluster {
    let plain = Cluster::new("tcp.xml");
    let from = plain.text.find("<TCPPING").expect("TCPPING");
    let to = from + plain.text[from..].find("/>").expect("its end") + 2;
    let tcpping = plain.text[from..to].to_owned();
    plain.edited(&[
        (&*tcpping, &*format!("<FILE_PING location=\"{}\"/>", directory.display())),
        // Its discoveries remove files of killed members.
        (
            "<MERGE3 min_interval=\"10s\" max_interval=\"30s\"/>",
            "<MERGE3 min_interval=\"300\" max_interval=\"900\"/>",
        ),
    ])
}

struct Shared(PathBuf);

impl Shared {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("consort-file-ping-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    /// Waits until the content of the cluster's files fulfils the condition.
    async fn until(&self, cluster: &Cluster, is_so: impl Fn(&str) -> bool) {
        let directory = self.0.join(&cluster.name);
        let content = || {
            let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            let lists = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "list"));
            lists.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect::<String>()
        };
        let wait = async {
            while !is_so(&content()) {
                tokio::task::yield_now().await;
            }
        };
        let outcome = tokio::time::timeout(PATIENCE, wait).await;
        assert!(outcome.is_ok(), "{:?}", content());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn members_find_each_other_through_a_shared_directory() {
    let shared = Shared::new("find");
    let cluster = cluster(&shared.0);
    let inboxes: Vec<Arc<Inbox>> = (0..3).map(|_| Arc::default()).collect();
    let a = cluster.join("A", inboxes[0].clone()).await;
    shared.until(&cluster, |content| content.starts_with("A ") && content.contains("\tT")).await;
    let b = cluster.join("B", inboxes[1].clone()).await;
    one_view(&[&a, &b]).await;
    // A admitted B at once: B has not begun a cluster of its own that is merged later.
    assert!(a.view_text().ends_with("|1] (2) [A, B]"), "{}", a.view_text());
    for channel in [&a, &b] {
        channel.send(Message::bytes(None, vec![7; 1_000])).await.unwrap();
    }
    for inbox in &inboxes[..2] {
        for channel in [&a, &b] {
            assert_eq!(inbox.from(channel.address(), 1).await, [vec![7; 1_000]]);
        }
    }
    // A member that starts after the first has left finds the present coordinator.
    a.close().await;
    shared.until(&cluster, |content| content.starts_with("B ") && !content.contains("A ")).await;
    let c = cluster.join("C", inboxes[2].clone()).await;
    one_view(&[&b, &c]).await;
    assert!(c.view_text().ends_with("(2) [B, C]"), "{}", c.view_text());
    b.close().await;
    c.close().await;
}

/// The file of the killed coordinator names the address at which the new process listens.
#[tokio::test]
async fn killed_coordinator_that_starts_again_at_its_address_joins_the_others() {
    let shared = Shared::new("restart");
    let cluster = cluster(&shared.0);
    let killed = StallableMember::join(&cluster, "A", Inbox::default()).await;
    let b = cluster.join("B", Inbox::default()).await;
    one_view(&[&killed.channel, &b]).await;
    // The coordinator writes its file after the view. A member that is killed before names no survivor to its successor.
    shared.until(&cluster, |content| content.starts_with("A ") && content.contains("B ")).await;
    let port = killed.channel.physical_address().port;
    // The handle keeps the member from leaving in order.
    let handle = killed.channel.clone();
    drop(killed);
    let is_free = async {
        while std::net::TcpListener::bind(("127.0.0.1", port)).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, is_free).await.expect("the port is free");
    let a = cluster.join("A", Inbox::default()).await;
    assert_eq!(a.physical_address().port, port);
    one_view(&[&b, &a]).await;
    // B admitted A: A has not begun a cluster of its own that is merged later.
    assert!(a.view_text().ends_with("(2) [B, A]"), "{}", a.view_text());
    shared.until(&cluster, |content| content.matches('A').count() == 1).await;
    drop(handle);
    a.close().await;
    b.close().await;
}
