//! Failover of a client between independent clusters.

use std::time::Duration;

use consort_client::{
    Client, ClientError, ConnectError, DEFAULT_CLUSTER, EntryEvent, Event, EventKind, Events,
    NearCacheConfig, ServerAddress,
};
use consort_hotrod::{RequestBody, Response, ResponseBody, Status};
use tokio::time::timeout;

use crate::scripted_server::{ScriptedServer, begin, topology, value};
use crate::servers::{PATIENCE, Running, eventually};

/// A server with the cache `c`, whose entry `where` is this number.
async fn site(cluster: &'static str, number: u32) -> (Running, Client) {
    let (server, client) = Running::with_cache(cluster, "c").await;
    client.cache::<String, u32>("c").put("where", &number).await.unwrap();
    (server, client)
}

fn address(server: &Running) -> ServerAddress {
    ServerAddress { host: server.at.ip().to_string().into(), port: server.at.port() }
}

/// A client of the first cluster with the second as NYC.
async fn client(first: &Running, second: &Running) -> Client {
    let uri = format!("{}?cluster.NYC={}", first.uri(), second.at);
    Client::connect(&uri).await.unwrap()
}

async fn next(events: &mut Events<String>) -> Event<String> {
    timeout(PATIENCE, events.next()).await.expect("an event").expect("no end").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_fails_over_to_the_next_site_and_returns_manually() {
    let ((lon, _lon), (nyc, there)) = (site("lost-lon", 1).await, site("lost-nyc", 2).await);
    let client = client(&lon, &nyc).await;
    let cache = client.cache::<String, u32>("c").with_timeout(PATIENCE);
    let near = cache.near(NearCacheConfig::default()).await.unwrap();
    let mut events = cache.listen().start().await.unwrap();
    assert_eq!(client.cluster(), DEFAULT_CLUSTER);
    for _ in 0..2 {
        assert_eq!(near.get("where").await.unwrap(), Some(1));
    }
    assert_eq!(near.near_stats().unwrap().hits, 1);
    drop(lon);
    eventually("the client has switched", async || client.cluster() == "NYC").await;
    assert_eq!(cache.get("where").await.unwrap(), Some(2));
    assert_eq!(near.get("where").await.unwrap(), Some(2), "the near cache was emptied");
    cache.put("written", &7).await.unwrap();
    assert_eq!(there.cache::<String, u32>("c").get("written").await.unwrap(), Some(7));
    assert_eq!(next(&mut events).await, Event::Gap);
    let writer = there.cache::<String, u32>("c");
    eventually("events of the second cluster arrive", async || {
        writer.put("told", &1).await.unwrap();
        let event = timeout(Duration::from_millis(100), events.next()).await;
        matches!(event, Ok(Some(Ok(Event::Entry(EntryEvent { key, .. })))) if key == "told")
    })
    .await;
    eventually("the near cache is on again", async || near.near_stats().unwrap().is_on).await;
    writer.put("where", &3).await.unwrap();
    eventually("the event arrives", async || near.get("where").await.unwrap() == Some(3)).await;
    // An unreachable cluster is left again.
    client.switch_to_default_cluster();
    assert_eq!(client.cluster(), DEFAULT_CLUSTER);
    assert_eq!(cache.get("where").await.unwrap(), Some(3));
    assert_eq!(client.cluster(), "NYC");
}

#[tokio::test]
async fn a_client_switches_manually_between_reachable_sites() {
    let ((lon, _lon), (nyc, _nyc)) = (site("hand-lon", 1).await, site("hand-nyc", 2).await);
    let client = client(&lon, &nyc).await;
    let cache = client.cache::<String, u32>("c");
    let near = cache.near(NearCacheConfig::default()).await.unwrap();
    let mut events = cache.listen().with_state().start().await.unwrap();
    let existing = |event: &Event<String>| matches!(event, Event::Entry(EntryEvent { kind: EventKind::Existing, key, .. }) if key == "where");
    assert!(existing(&next(&mut events).await));
    assert_eq!(next(&mut events).await, Event::Complete);
    let unknown = client.switch_to_cluster("SYD").unwrap_err();
    assert!(matches!(&unknown, ClientError::NoSuchCluster(name) if name == "SYD"), "{unknown}");
    client.switch_to_default_cluster();
    for (name, number) in [("NYC", 2), (DEFAULT_CLUSTER, 1), ("NYC", 2)] {
        client.switch_to_cluster(name).unwrap();
        assert_eq!(client.cluster(), name);
        assert_eq!(cache.get("where").await.unwrap(), Some(number));
        assert_eq!(near.get("where").await.unwrap(), Some(number));
        assert_eq!(client.states().len(), 1);
        let mut event = next(&mut events).await;
        while event == Event::Gap {
            event = next(&mut events).await;
        }
        assert!(existing(&event), "{event:?} in {name}");
        assert_eq!(next(&mut events).await, Event::Complete);
    }
    client.close().await;
}

#[tokio::test]
async fn an_iteration_does_not_continue_on_another_site() {
    let ((lon, _lon), (nyc, _nyc)) = (site("walk-lon", 1).await, site("walk-nyc", 2).await);
    let client = client(&lon, &nyc).await;
    let cache = client.cache::<String, u32>("c");
    for n in 0..100 {
        cache.put(&n.to_string(), &n).await.unwrap();
    }
    let mut stream = cache.entries().batch(4);
    stream.next().await.unwrap().unwrap();
    client.switch_to_cluster("NYC").unwrap();
    let end = loop {
        match stream.next().await.unwrap() {
            // An entry from before the switch.
            Ok((_, number)) => assert_ne!(number, 2),
            Err(error) => break error,
        }
    };
    assert!(matches!(&end, ClientError::IterationInterrupted { cache } if cache == "c"), "{end}");
    assert!(stream.next().await.is_none());
    assert_eq!(cache.entries().next().await.unwrap().unwrap(), ("where".to_owned(), 2));
}

#[tokio::test]
async fn a_client_connects_to_another_site_if_the_first_is_unreachable() {
    let (nyc, _nyc) = site("begin-nyc", 2).await;
    let closed = ScriptedServer::listen().await.address();
    let builder = Client::builder().server(closed.clone());
    let client = builder.clone().cluster("SYD", [closed.clone()]).cluster("NYC", [address(&nyc)]);
    let client = client.connect().await.unwrap();
    assert_eq!(client.cluster(), "NYC");
    assert_eq!(client.cache::<String, u32>("c").get("where").await.unwrap(), Some(2));
    let error = builder.cluster("SYD", [closed]).connect().await.unwrap_err();
    let ConnectError::Unreachable(causes) = error else { panic!("{error}") };
    assert_eq!(causes.len(), 2);
}

/// Requests in flight are still answered, and the topologies in these responses are ignored.
#[tokio::test]
async fn responses_of_the_previous_site_are_returned_and_their_topologies_are_ignored() {
    let (lon, nyc) = (ScriptedServer::listen().await, ScriptedServer::listen().await);
    let builder = Client::builder().server(lon.address()).cluster("NYC", [nyc.address()]);
    let (client, mut there) = tokio::join!(builder.connect(), lon.accept());
    let client = client.unwrap();
    let cache = client.raw("c");
    let read = begin(&cache, |cache| async move { cache.get(&b"key1"[..]).await });
    let request = there.next().await.unwrap();
    assert_eq!(request.header.topology_id, -1);
    client.switch_to_cluster("NYC").unwrap();
    let mut response = Response::new(request.header.id, Status::Success, value("from LON"));
    response.topology = Some(topology(7, &[&lon], 0).into());
    there.send(&request, response).await;
    assert_eq!(read.await.unwrap().unwrap().unwrap(), "from LON");
    assert!(there.next().await.is_none(), "the connection is closed");

    let mut here = nyc.accept().await;
    let read = begin(&cache, |cache| async move { cache.get(&b"key1"[..]).await });
    let request = here.next().await.unwrap();
    assert_eq!(request.header.topology_id, -2, "as Java's clients say that they have switched");
    here.reply(&request, value("from NYC")).await;
    assert_eq!(read.await.unwrap().unwrap().unwrap(), "from NYC");
    assert_eq!(client.states().len(), 1);
}

/// A restarted cluster does not count as lost.
#[tokio::test]
async fn a_client_fails_over_only_after_the_configured_attempts() {
    let (lon, nyc) = (ScriptedServer::listen().await, ScriptedServer::listen().await);
    let builder = Client::builder().server(lon.address()).cluster("NYC", [nyc.address()]).switch_after(2);
    let (client, there) = tokio::join!(builder.connect(), lon.accept());
    let client = client.unwrap();
    let answering = tokio::spawn(async move {
        let mut here = nyc.accept().await;
        while let Some(request) = here.next().await {
            here.reply(&request, ResponseBody::Empty).await;
        }
        nyc
    });
    drop(there);
    // The connection closes before the PING is answered, like that of a stopping server.
    drop(lon.accept_without_pong().await);
    let mut again = lon.accept().await;
    let write = begin(&client.raw("c"), |cache| async move { cache.put(&b"k"[..], &b"v"[..]).await });
    let request = again.next().await.unwrap();
    assert!(matches!(request.body, RequestBody::Map(_)));
    again.reply(&request, ResponseBody::Empty).await;
    write.await.unwrap().unwrap();
    assert_eq!(client.cluster(), DEFAULT_CLUSTER);
    // The cluster was reachable meanwhile, so the attempts count from zero.
    drop((again, lon));
    eventually("the client has switched", async || client.cluster() == "NYC").await;
    answering.abort();
}
