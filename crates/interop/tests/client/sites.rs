//! Two sites, each a server of its own: one is killed under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use consort_client::{Client, DEFAULT_CLUSTER, Event, EventKind, NearCacheConfig};
use consort_interop::{PATIENCE, Tool, eventually, in_own_network};
use tokio::time::timeout;

const REPLICATED: &str = r#"{"replicated-cache": {}}"#;

/// A server at this port, with a cache in which it has left its name.
async fn site(port: u16, name: &'static str) -> (Tool, Client) {
    let mut server = Tool::consort(&["server", "--port", &port.to_string()]);
    server.wait_for(&["Hot Rod"]);
    let client = Client::connect(&format!("127.0.0.1:{port}")).await.expect("a connection");
    client.administration().create("c", REPLICATED).await.unwrap();
    client.raw("c").put(&b"site"[..], name.as_bytes()).await.unwrap();
    (server, client)
}

#[test]
fn clients_fail_over_to_another_site_when_one_is_killed() {
    in_own_network("sites::clients_fail_over_to_another_site_when_one_is_killed", async {
        let ((lon, _lon), (_nyc, nyc)) = (site(11222, "LON").await, site(11322, "NYC").await);
        let client = Client::connect("hotrod://127.0.0.1?cluster.NYC=127.0.0.1:11322").await.unwrap();
        let cache = client.raw("c");
        let near = cache.near(NearCacheConfig::default()).await.unwrap();
        let mut events = cache.listen().kinds([EventKind::Removed]).start().await.unwrap();
        assert_eq!(near.get(&b"site"[..]).await.unwrap().unwrap(), "LON");

        let (ends, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = (0..20_u8)
            .map(|writer| {
                let (cache, ends, written) = (cache.clone(), ends.clone(), written.clone());
                tokio::spawn(async move {
                    let mut last = 0;
                    for n in 0_u64.. {
                        if ends.load(Ordering::Relaxed) {
                            break;
                        }
                        match cache.put(&[writer][..], &n.to_be_bytes()[..]).await {
                            Ok(()) => {
                                last = n;
                                written.fetch_add(1, Ordering::Relaxed);
                            }
                            // It is unknown whether the killed server applied the write.
                            Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
                        }
                    }
                    (writer, last)
                })
            })
            .collect();
        let more = async || {
            let before = written.load(Ordering::Relaxed);
            eventually("writers continue", async || written.load(Ordering::Relaxed) > before + 1_000).await;
        };
        more().await;
        assert_eq!(client.cluster(), DEFAULT_CLUSTER);
        lon.signal("KILL");
        eventually("the client is elsewhere", async || client.cluster() == "NYC").await;
        more().await;
        ends.store(true, Ordering::Relaxed);
        for writer in writers {
            let (writer, last) = writer.await.unwrap();
            let found = nyc.raw("c").get(&[writer][..]).await.unwrap();
            assert_eq!(
                found.as_deref(),
                Some(&last.to_be_bytes()[..]),
                "what was acknowledged last is there"
            );
        }
        assert_eq!(near.get(&b"site"[..]).await.unwrap().unwrap(), "NYC");
        assert_eq!(timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap(), Event::Gap);
        eventually("the near cache receives events again", async || near.near_stats().unwrap().is_on).await;
        nyc.raw("c").put(&b"site"[..], &b"New York"[..]).await.unwrap();
        eventually("the event arrives", async || {
            near.get(&b"site"[..]).await.unwrap().unwrap() == "New York"
        })
        .await;
    });
}
