//! Tasks that answer an operator's questions.

use bytes::Bytes;
use consort_hotrod::ops::{map, task};
use consort_hotrod::{RequestBody, ResponseBody, Status};
use consort_server::Server;
use serde_json::Value;
use tokio::time::timeout;

use crate::client::{Client, PATIENCE, RunningServer, error, exec, get, put};

async fn run(client: &mut Client, task: &str, params: &[(&'static str, &str)]) -> Value {
    let params = params
        .iter()
        .map(|(name, value)| ((*name).into(), Bytes::copy_from_slice(value.as_bytes())))
        .collect();
    let response = client.ask("", RequestBody::Task(task::Request::Exec(task.into(), params))).await;
    match &response.body {
        ResponseBody::Result(text) => serde_json::from_slice(text).expect("JSON"),
        other => panic!("{task}: {other:?}"),
    }
}

/// Asks until the answer is as expected: other servers take part in it.
async fn eventually(
    client: &mut Client,
    (task, cache): (&str, &str),
    is_expected: impl Fn(&Value) -> bool,
) -> Value {
    let asking = async {
        loop {
            let answer = run(client, task, &[("name", cache)]).await;
            if is_expected(&answer) {
                return answer;
            }
        }
    };
    timeout(PATIENCE, asking).await.expect("the expected answer")
}

#[tokio::test]
async fn connected_clients_are_listed_with_their_counts() {
    let (server, mut client) = RunningServer::with_cache("operator-clients", "c").await;
    let mut other = server.client().await;
    for _ in 0..3 {
        other.ask("c", get("k")).await;
    }
    let listed = run(&mut client, "@@server@clients", &[]).await;
    let rows = listed.as_array().expect("a list");
    assert_eq!(rows.len(), 2, "{listed}");
    let address = other.stream.local_addr().unwrap().to_string();
    let row = rows.iter().find(|row| row["address"] == *address).expect("the other client");
    assert_eq!(
        (&row["requests"], &row["listeners"], &row["protocol"]),
        (&3.into(), &0.into(), &"4.1".into())
    );
    assert!(row["received_bytes"].as_u64() > Some(0) && row["sent_bytes"].as_u64() > Some(0), "{row}");
    assert!(row["user"].is_null(), "there are no users");
    let last = rows.last().and_then(|row| row["id"].as_u64()).expect("an id").to_string();
    assert_eq!(run(&mut client, "@@server@clients", &[("after", &last)]).await, Value::Array(Vec::new()));
    let wrong = [("after".into(), Bytes::from_static(b"x"))].into();
    let refused =
        client.ask("", RequestBody::Task(task::Request::Exec("@@server@clients".into(), wrong))).await;
    assert!(error(&refused).contains("after cannot be x"), "{refused:?}");
    // The value is not repeated as a whole: it may have 64 MiB.
    let long = vec![b'x'; 1024 * 1024].into();
    let params = vec![("after".into(), long)];
    let refused =
        client.ask("", RequestBody::Task(task::Request::Exec("@@server@clients".into(), params))).await;
    assert!(error(&refused).starts_with("after cannot be xxx") && error(&refused).ends_with('…'));
    assert!(error(&refused).len() <= 64 * 1024, "{}", error(&refused).len());
    drop(other);
    eventually(&mut client, ("@@server@clients", ""), |rows| rows.as_array().map(Vec::len) == Some(1)).await;
}

#[tokio::test]
async fn definition_is_shown_in_either_form_and_creates_a_cache() {
    let server = RunningServer::start("operator-config").await;
    let mut client = server.client().await;
    client.create_with("c", r#"{"distributed-cache": {"segments": 7, "memory": {"max-count": 5}}}"#).await;
    let shown = run(&mut client, "@@cache@config", &[("name", "c")]).await;
    assert_eq!(shown["distributed-cache"]["memory"]["max-count"], 5, "{shown}");
    let params = vec![("name".into(), "c".into()), ("format".into(), "XML".into())];
    let xml = client.ask("", RequestBody::Task(task::Request::Exec("@@cache@config".into(), params))).await;
    let ResponseBody::Result(xml) = xml.body else { panic!("{xml:?}") };
    let params = vec![("name".into(), "d".into()), ("configuration".into(), xml)];
    let created =
        client.ask("", RequestBody::Task(task::Request::Exec("@@cache@create".into(), params))).await;
    assert_eq!(created.status, Status::Success, "{created:?}");
    assert_eq!(run(&mut client, "@@cache@config", &[("name", "d")]).await, shown);
    let described = run(&mut client, "@@cache@describe", &[("name", "c")]).await;
    assert_eq!((&described["lifecycle"], &described["status"]), (&"PERMANENT".into(), &"RUNNING".into()));
    for name in ["none", "___consort_caches", "___protobuf_metadata"] {
        for task in
            ["@@cache@config", "@@cache@describe", "@@cluster@segments", "@@cluster@disablerebalancing"]
        {
            let refused = client.ask("", exec(task, name)).await;
            assert!(error(&refused).contains("ISPN000436"), "{task} {name}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn rebalancing_is_disabled_and_enabled_on_all_servers() {
    let [first, second] = RunningServer::two("operator-rebalancing").await;
    let [mut client, mut other] = [first.client().await, second.client().await];
    client.create("c").await;
    let state = run(&mut client, "@@cluster@rebalancing", &[("name", "c")]).await;
    assert_eq!(
        (&state["is_enabled"], &state["caches"][0]["rebalancing"]["is_enabled"]),
        (&true.into(), &true.into())
    );
    // Of all caches, by a server that is not the coordinator.
    let state = run(&mut other, "@@cluster@disablerebalancing", &[]).await;
    assert_eq!(state["is_enabled"], false);
    let third = RunningServer::join("operator-rebalancing").await;
    let mut late = third.client().await;
    let segments = ("@@cluster@segments", "c");
    let shown = eventually(&mut late, segments, |answer| owned(answer).len() == 3).await;
    assert_eq!(owned(&shown), [256, 256, 0], "{shown}");
    let state = run(&mut late, "@@cluster@enablerebalancing", &[]).await;
    assert_eq!(state["is_enabled"], true);
    eventually(&mut late, segments, |answer| owned(answer).iter().all(|owned| *owned > 0)).await;
    // A later cache of the same name is another one.
    run(&mut late, "@@cluster@disablerebalancing", &[("name", "c")]).await;
    assert_eq!(late.ask("", exec("@@cache@remove", "c")).await.status, Status::Success);
    late.create("c").await;
    let state = run(&mut late, "@@cluster@rebalancing", &[("name", "c")]).await;
    assert_eq!(state["caches"][0]["rebalancing"]["is_enabled"], true, "{state}");
}

/// Servers' segments, in the order of the members.
fn owned(answer: &Value) -> Vec<u64> {
    let members = answer[0]["segments"]["members"].as_array().cloned().unwrap_or_default();
    let count = |member: &Value, name: &str| member[name].as_u64().unwrap_or_default();
    members.iter().map(|member| count(member, "primary") + count(member, "backup")).collect()
}

#[tokio::test]
async fn next_coordinator_keeps_rebalancing_disabled_and_confirms_changes() {
    const CLUSTER: &str = "operator-coordinator";
    let segments = ("@@cluster@segments", "c");
    let [first, second] = RunningServer::two(CLUSTER).await;
    first.client().await.create("c").await;
    let mut client = second.client().await;
    eventually(&mut client, segments, |answer| owned(answer) == [256, 256]).await;
    run(&mut client, "@@cluster@disablerebalancing", &[]).await;
    first.end.send(()).unwrap();
    first.serving.await.unwrap();
    eventually(&mut client, segments, |answer| owned(answer) == [256]).await;
    let third = RunningServer::join(CLUSTER).await;
    let mut late = third.client().await;
    eventually(&mut late, segments, |answer| owned(answer) == [256, 0]).await;
    // The mark of the former coordinator does not confirm it.
    let state = run(&mut late, "@@cluster@enablerebalancing", &[]).await;
    assert_eq!(state["is_enabled"], true);
    eventually(&mut late, segments, |answer| owned(answer) == [256, 256]).await;
}

#[tokio::test]
async fn all_servers_end_when_an_operator_stops_the_cluster() {
    const CLUSTER: &str = "operator-stop";
    let directory = std::env::temp_dir().join(format!("consort-operator-stop-{}", std::process::id()));
    let data = |name: &str| Server::builder().data(directory.join(name));
    let first = Box::pin(RunningServer::secured(CLUSTER, data("first"))).await;
    let second = Box::pin(RunningServer::joining(CLUSTER, data("second"))).await;
    let mut client = first.client().await;
    let definition = br#"{"distributed-cache": {"owners": 1, "persistence": {"file-store": {}}}}"#;
    let params = vec![("name".into(), "c".into()), ("configuration".into(), Bytes::from_static(definition))];
    let created =
        client.ask("", RequestBody::Task(task::Request::Exec("@@cache@create".into(), params))).await;
    assert_eq!(created.status, Status::Success, "{created:?}");
    const KEYS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    for key in KEYS {
        assert_eq!(client.ask("c", put(key, "v")).await.status, Status::Success);
    }
    // By a server that is not the coordinator.
    let mut other = second.client().await;
    let members = run(&mut other, "@@cluster@stop", &[]).await;
    assert_eq!(members["members"].as_array().map(Vec::len), Some(2), "{members}");
    for server in [first, second] {
        timeout(PATIENCE, server.serving).await.expect("its end").expect("no panic");
    }

    // Each waits for the other one, which may have later entries.
    let starting = async {
        tokio::join!(
            Box::pin(RunningServer::secured(CLUSTER, data("first"))),
            Box::pin(RunningServer::joining(CLUSTER, data("second")))
        )
    };
    let (first, second) = timeout(PATIENCE, starting).await.expect("their start");
    let mut client = second.client().await;
    for key in KEYS {
        let found = client.ask("c", get(key)).await;
        assert!(
            matches!(&found.body, ResponseBody::Map(map::Response::Value(value)) if value == "v"),
            "{key}: {found:?}"
        );
    }
    drop((first, second));
    let _ = std::fs::remove_dir_all(&directory);
}

#[tokio::test]
async fn members_are_shown_with_their_addresses_for_clients() {
    let [first, second] = RunningServer::two("operator-members").await;
    let mut client = second.client().await;
    let shown = run(&mut client, "@@cluster@members", &[]).await;
    assert_eq!(
        (&shown["cluster"], shown["members"].as_array().map(Vec::len)),
        (&"operator-members".into(), Some(2))
    );
    let of = |at: usize, name: &str| shown["members"][at][name].clone();
    assert_eq!([of(0, "port"), of(1, "port")], [first.at.port(), second.at.port()].map(Value::from));
    assert_eq!([of(0, "coordinator"), of(1, "coordinator")], [true, false].map(Value::from));
    assert_eq!([of(0, "asked"), of(1, "asked")], [false, true].map(Value::from));
}
