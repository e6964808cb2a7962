//! Tests of members that find each other through a shared directory.

mod cluster;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::{Cluster, Inbox, PATIENCE, one_view};
use consort_channel::Message;

/// Stock TCP with discovery through files.
fn cluster(directory: &Path) -> Cluster {
    let plain = Cluster::new("tcp.xml");
    let from = plain.text.find("<TCPPING").expect("TCPPING");
    let to = from + plain.text[from..].find("/>").expect("its end") + 2;
    let tcpping = plain.text[from..to].to_owned();
    plain.edited(&[(&*tcpping, &*format!("<FILE_PING location=\"{}\"/>", directory.display()))])
}

struct Shared(PathBuf);

impl Shared {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("consort-file-ping-{}", std::process::id()));
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
    let shared = Shared::new();
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
