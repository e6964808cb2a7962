//! Iteration over entries.

use consort_hotrod::ops::iteration::{Batch, Request as Iteration, Response as Walked, Start};
use consort_hotrod::ops::listener::Factory;
use consort_hotrod::{BitSet, RequestBody, ResponseBody, Status, Text};
use consort_server::KEY_PREFIX;
use consort_server::limits::ITERATIONS_MAX;

use crate::client::{Client, RunningServer, put};

fn walk(batch: u32) -> Start {
    Start { segments: None, filter: None, batch, with_metadata: false }
}

async fn begun(client: &mut Client, start: Start) -> Text {
    let response = client.ask("c", RequestBody::Iteration(Iteration::Start(start))).await;
    let ResponseBody::Iteration(Walked::Started(id)) = response.body else { panic!("{response:?}") };
    id
}

async fn next(client: &mut Client, id: &Text) -> (Status, Batch) {
    let response = client.ask("c", RequestBody::Iteration(Iteration::Next(id.clone()))).await;
    let ResponseBody::Iteration(Walked::Batch(batch)) = response.body else { panic!("{response:?}") };
    (response.status, batch)
}

async fn end(client: &mut Client, id: &Text) -> Status {
    client.ask("c", RequestBody::Iteration(Iteration::End(id.clone()))).await.status
}

async fn filled(cluster: &str) -> (RunningServer, Client) {
    let (server, mut client) = RunningServer::with_cache(cluster, "c").await;
    for key in ["a1", "a2", "a3", "b1", "b2"] {
        client.ask("c", put(key, key)).await;
    }
    (server, client)
}

#[tokio::test]
async fn iteration_returns_each_entry_once_and_finishes_each_segment_once() {
    let (_server, mut client) = filled("walk").await;
    let id = begun(&mut client, walk(2)).await;
    let (mut keys, mut finished) = (Vec::new(), Vec::new());
    loop {
        let (status, batch) = next(&mut client, &id).await;
        assert_eq!(status, Status::Success);
        finished.extend(batch.finished.iter());
        assert!(batch.entries.len() <= 2);
        if batch.entries.is_empty() {
            break;
        }
        keys.extend(batch.entries.into_iter().map(|entry| entry.key));
    }
    keys.sort();
    assert_eq!(keys, ["a1", "a2", "a3", "b1", "b2"]);
    finished.sort_unstable();
    assert_eq!(finished, (0..256).collect::<Vec<_>>());
    assert_eq!(end(&mut client, &id).await, Status::Success);
    assert_eq!(end(&mut client, &id).await, Status::InvalidIteration);
    assert_eq!(next(&mut client, &id).await.0, Status::InvalidIteration);
}

#[tokio::test]
async fn iteration_returns_only_the_requested_segments_and_entries() {
    let (_server, mut client) = filled("walk-part").await;
    let filter = Some(Factory { name: KEY_PREFIX.into(), params: vec!["a".into()] });
    let mut found = Vec::new();
    for odd in [0, 1] {
        let segments: BitSet = (0..1_000).filter(|segment| segment % 2 == odd).collect();
        let start =
            Start { segments: Some(segments), filter: filter.clone(), batch: 100, with_metadata: true };
        let id = begun(&mut client, start).await;
        for entry in next(&mut client, &id).await.1.entries {
            assert!(
                entry.metadata.is_some_and(|metadata| metadata.version != 0 && metadata.lifespan.is_none())
            );
            assert_eq!(entry.values[0], entry.key);
            found.push(entry.key);
        }
    }
    found.sort();
    assert_eq!(found, ["a1", "a2", "a3"]);
    let filter = Some(Factory { name: "mine".into(), params: Vec::new() });
    let start = Start { filter, ..walk(1) };
    let refused = client.ask("c", RequestBody::Iteration(Iteration::Start(start))).await;
    assert_eq!(refused.status, Status::ServerError);
}

#[tokio::test]
async fn iterations_of_a_connection_are_bounded_and_belong_to_it() {
    let (server, mut client) = filled("walk-bound").await;
    let mut last = Text::EMPTY;
    for _ in 0..ITERATIONS_MAX {
        last = begun(&mut client, walk(1)).await;
    }
    let refused = client.ask("c", RequestBody::Iteration(Iteration::Start(walk(1)))).await;
    assert_eq!(refused.status, Status::ServerError);
    let mut other = server.client().await;
    assert_eq!(next(&mut other, &last).await.0, Status::InvalidIteration);
    assert_eq!(end(&mut client, &last).await, Status::Success);
    begun(&mut client, walk(1)).await;
}
