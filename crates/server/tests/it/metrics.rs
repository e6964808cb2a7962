//! Metrics change when the counted event happens, and the document names all metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use consort_cache::CacheConfig;
use consort_hotrod::ops::listener::{Interests, Listener, Request as Listening};
use consort_hotrod::ops::map::{self, Request as Map};
use consort_hotrod::ops::transaction::{Modification, Prepare, Recovery, Request as Transaction, Seen, Xid};
use consort_hotrod::{Expiration, RequestBody, Span, Status, TimeUnit};
use tokio::time::{Instant, sleep};

use crate::client::{Client, DETECTION, PATIENCE, RunningServer, get, member, put, request};
use crate::http::ask;

/// Returns all values by their names and labels as they are exposed.
async fn values(server: &RunningServer) -> BTreeMap<String, f64> {
    let metrics = ask(server, "/metrics", "").await.content;
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Waits until a value is as expected. A missing value counts as 0.
async fn until(server: &RunningServer, series: &str, is_expected: impl Fn(f64) -> bool) -> f64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let values = values(server).await;
        let value = values.get(series).copied().unwrap_or_default();
        if is_expected(value) {
            return value;
        }
        assert!(Instant::now() < deadline, "{series} is {value}: {values:#?}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn at_least(least: f64) -> impl Fn(f64) -> bool {
    move |value| value >= least
}

fn exactly(wanted: f64) -> impl Fn(f64) -> bool {
    move |value| (value - wanted).abs() < f64::EPSILON
}

fn mortal(key: &'static str) -> RequestBody {
    let lifespan = Span::Of(1, TimeUnit::Milliseconds);
    let expiration = Expiration { lifespan, max_idle: Span::Infinite };
    RequestBody::Map(Map::Put(map::Assignment { key: key.into(), expiration, value: "1".into() }))
}

fn xid(n: u8) -> Xid {
    Xid { format: 1, global: vec![n; 8].into(), branch: vec![n; 8].into() }
}

fn prepare(n: u8, is_one_phase: bool) -> RequestBody {
    let change = Some((Expiration::default(), "2".into()));
    let modifications = vec![Modification { key: "locked".into(), seen: Seen::NotRead, change }];
    let prepare = Prepare { xid: xid(n), is_one_phase, modifications };
    let recovery = Recovery { is_recoverable: false, timeout: 60_000 };
    RequestBody::Transaction(Transaction::Prepare(prepare, Some(recovery)))
}

async fn send(client: &mut Client, cache: &str, body: RequestBody) {
    let answered = client.ask(cache, body).await;
    assert_eq!(answered.status, Status::Success, "{answered:?}");
}

#[tokio::test]
async fn limits_evictions_and_expirations_are_exposed_by_cache() {
    let (server, mut client) = RunningServer::with_cache("metrics of entries", "plain").await;
    client.create_with("small", r#"{"distributed-cache": {"memory": {"max-count": 2}}}"#).await;
    client.create_with("sized", r#"{"distributed-cache": {"memory": {"max-size": "1MB"}}}"#).await;
    let before = values(&server).await;
    for (series, value) in [
        ("consort_cache_limit_entries{cache=\"small\"}", 2.0),
        ("consort_cache_limit_bytes{cache=\"sized\"}", 1_000_000.0),
        ("consort_cache_evictions_total{cache=\"small\"}", 0.0),
        ("consort_cache_expirations_total{cache=\"plain\"}", 0.0),
        ("consort_cache_primary_entries{cache=\"plain\"}", 0.0),
    ] {
        assert!(exactly(value)(before[series]), "{series}: {before:#?}");
    }
    for series in
        ["consort_cache_limit_entries{cache=\"plain\"}", "consort_cache_limit_bytes{cache=\"small\"}"]
    {
        assert!(!before.contains_key(series), "{series}: {before:#?}");
    }
    for key in ["1", "2", "3", "4", "5"] {
        send(&mut client, "small", put(key, "value")).await;
        send(&mut client, "plain", put(key, "value")).await;
    }
    until(&server, "consort_cache_evictions_total{cache=\"small\"}", exactly(3.0)).await;
    until(&server, "consort_cache_primary_entries{cache=\"plain\"}", exactly(5.0)).await;
    for key in ["6", "7"] {
        send(&mut client, "plain", mortal(key)).await;
    }
    until(&server, "consort_cache_expirations_total{cache=\"plain\"}", exactly(2.0)).await;
    until(&server, "consort_cache_primary_entries{cache=\"plain\"}", exactly(5.0)).await;
}

#[tokio::test]
async fn listeners_and_near_caches_are_exposed_by_cache_until_they_are_removed() {
    let (server, mut client) = RunningServer::with_cache("metrics of listeners", "c").await;
    let listener = |id: &'static str| {
        let interests = Interests::ALL;
        let listener = Listener {
            id: id.into(),
            includes_state: false,
            filter: None,
            converter: None,
            is_raw: false,
            interests,
        };
        RequestBody::Listener(Listening::Add(listener))
    };
    let (listeners, near) =
        ("consort_cache_listeners{cache=\"c\"}", "consort_cache_near_caches{cache=\"c\"}");
    until(&server, listeners, exactly(0.0)).await;
    send(&mut client, "c", listener("one")).await;
    send(&mut client, "c", listener("two")).await;
    until(&server, listeners, exactly(2.0)).await;
    let mut other = server.client().await;
    send(&mut other, "c", RequestBody::Listener(Listening::AddBloom("near".into(), 4_000))).await;
    until(&server, listeners, exactly(3.0)).await;
    until(&server, near, exactly(1.0)).await;
    send(&mut client, "c", RequestBody::Listener(Listening::Remove("one".into()))).await;
    drop(other);
    until(&server, listeners, exactly(1.0)).await;
    until(&server, near, exactly(0.0)).await;
}

#[tokio::test]
async fn errors_are_exposed_by_cache_and_status_and_clients_cannot_add_caches() {
    let (server, mut client) = RunningServer::with_cache("metrics of errors", "c").await;
    let of_c = "consort_cache_errors_total{cache=\"c\",status=\"ServerError\"}";
    let of_none = "consort_cache_errors_total{cache=\"\",status=\"ParseError\"}";
    assert!(!values(&server).await.contains_key(of_c));
    // The cache is not transactional.
    for _ in 0..2 {
        assert_eq!(client.ask("c", prepare(1, false)).await.status, Status::ServerError);
    }
    for cache in ["missing", "other", "___consort_caches"] {
        assert_eq!(client.ask(cache, get("k")).await.status, Status::ParseError, "{cache}");
    }
    let values = values(&server).await;
    assert!(exactly(2.0)(values[of_c]) && exactly(3.0)(values[of_none]), "{values:#?}");
    assert!(exactly(5.0)(values["consort_errors_total"]), "{values:#?}");
    let of_errors = values.keys().filter(|series| series.starts_with("consort_cache_errors_total"));
    assert_eq!(of_errors.count(), 2, "{values:#?}");
}

#[tokio::test]
async fn transactions_and_requests_that_wait_for_their_locks_are_exposed() {
    let (server, mut client) = RunningServer::with_cache("metrics of transactions", "plain").await;
    let of = |outcome: &str| format!("consort_transactions_total{{outcome=\"{outcome}\"}}");
    assert!(!values(&server).await.contains_key(&of("prepared")), "no cache has transactions yet");
    client.create_with("t", r#"{"distributed-cache": {"transaction": {"mode": "NON_XA"}}}"#).await;
    send(&mut client, "t", prepare(1, false)).await;
    until(&server, &of("prepared"), exactly(1.0)).await;
    until(&server, "consort_transactions_recorded", exactly(1.0)).await;
    // Writes of the key wait for the transaction, each for a second; one of them is seen waiting.
    let in_flight = "consort_requests_in_flight";
    let mut writer = server.client().await;
    let write = request(1, "t", put("locked", "3"));
    loop {
        writer.send(std::slice::from_ref(&write)).await;
        let seen = tokio::select! {
            _ = until(&server, in_flight, exactly(1.0)) => true,
            answered = writer.next(write.context()) => {
                assert_eq!(answered.unwrap().status, Status::TimedOut);
                false
            }
        };
        if seen {
            break;
        }
    }
    send(&mut client, "t", RequestBody::Transaction(Transaction::Rollback(xid(1)))).await;
    until(&server, &of("rolled_back"), exactly(1.0)).await;
    until(&server, in_flight, exactly(0.0)).await;
    send(&mut client, "t", prepare(2, false)).await;
    send(&mut client, "t", RequestBody::Transaction(Transaction::Commit(xid(2)))).await;
    send(&mut client, "t", prepare(3, true)).await;
    until(&server, &of("committed"), exactly(2.0)).await;
    until(&server, &of("prepared"), exactly(2.0)).await;
}

#[tokio::test]
async fn rebalances_credits_and_suspicions_are_exposed_when_servers_join_and_leave() {
    let [first, second, third] = RunningServer::three("metrics of a cluster").await;
    let mut client = first.client().await;
    client.create("c").await;
    for server in [&first, &second, &third] {
        until(server, "consort_cache_members{cache=\"c\"}", exactly(3.0)).await;
        until(server, "consort_cache_rebalancing{cache=\"c\"}", exactly(0.0)).await;
    }
    let keys: Vec<&'static str> = vec!["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];
    for key in &keys {
        send(&mut client, "c", put(key, "x".repeat(1_000))).await;
    }
    let (mut primary, mut copies) = (0.0, 0.0);
    for server in [&first, &second, &third] {
        let values = values(server).await;
        primary += values["consort_cache_primary_entries{cache=\"c\"}"];
        copies += values["consort_cache_entries{cache=\"c\"}"];
    }
    assert!(exactly(keys.len() as f64)(primary), "each entry has one primary: {primary}");
    assert!(exactly(2.0 * keys.len() as f64)(copies), "and two owners: {copies}");
    until(&first, "consort_cluster_credit_outstanding_bytes{protocol=\"UFC\"}", at_least(1_000.0)).await;
    until(&first, "consort_cluster_credit_waiting_bytes{protocol=\"UFC\"}", exactly(0.0)).await;
    let (moved, last) =
        ("consort_cache_rebalances_total{cache=\"c\"}", "consort_cache_rebalance_last_seconds{cache=\"c\"}");
    let before = values(&first).await[moved];
    third.end.send(()).unwrap();
    third.serving.await.unwrap();
    until(&first, moved, at_least(before + 1.0)).await;
    until(&first, "consort_cache_rebalance_running_seconds{cache=\"c\"}", exactly(0.0)).await;
    let after = values(&first).await;
    assert!(after[last] > 0.0 && after["consort_cache_rebalance_seconds_total{cache=\"c\"}"] >= after[last]);
    until(&first, "consort_cluster_members", exactly(2.0)).await;
    until(&first, "consort_cache_members{cache=\"c\"}", exactly(2.0)).await;
    let suspicions = "consort_cluster_suspicions_total{protocol=\"FD_ALL3\"}";
    let before = values(&first).await[suspicions];
    // A member that has the cache open crashes. Writes wait until its failure is detected.
    let crashing = member("metrics of a cluster", PATIENCE / 4, DETECTION).await;
    let _cache = crashing.open(CacheConfig::new("c")).raw().await.unwrap();
    until(&first, "consort_cache_members{cache=\"c\"}", exactly(3.0)).await;
    until(&first, "consort_cache_rebalancing{cache=\"c\"}", exactly(0.0)).await;
    crashing.abort().await;
    let writes: Vec<_> = (1..).zip(&keys).map(|(id, key)| request(id, "c", put(key, "y"))).collect();
    client.send(&writes).await;
    until(&first, "consort_cluster_operations_in_flight", at_least(1.0)).await;
    until(&first, suspicions, at_least(before + 1.0)).await;
    until(&first, "consort_cluster_members", exactly(2.0)).await;
    until(&first, "consort_cluster_operations_in_flight", exactly(0.0)).await;
    drop(second);
}

/// A metric in the document or on a server: its type and its labels.
type MetricDescriptions = BTreeMap<String, (String, BTreeSet<String>)>;

fn documented() -> MetricDescriptions {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let document = std::fs::read_to_string(document).unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = columns[2].split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
        (columns[0].trim_end_matches('`').to_owned(), (columns[1].to_owned(), labels))
    })
    .collect()
}

fn labels_of(series: &str) -> BTreeSet<String> {
    let Some((_, labels)) = series.trim_end_matches('}').split_once('{') else { return BTreeSet::new() };
    let names = labels.split("\",").map(|label| label.split_once('=').unwrap().0.to_owned());
    names.filter(|name| name != "le").collect()
}

#[tokio::test]
async fn document_names_exactly_the_exposed_metrics() {
    let (server, mut client) = RunningServer::with_cache("documented metrics", "c").await;
    client.create_with("small", r#"{"distributed-cache": {"memory": {"max-count": 2}}}"#).await;
    client.create_with("t", r#"{"distributed-cache": {"transaction": {"mode": "NON_XA"}}}"#).await;
    client.ask("missing", get("k")).await;
    let metrics = ask(&server, "/metrics", "").await.content;
    let (documented, mut exposed) = (documented(), BTreeMap::new());
    for line in metrics.lines() {
        if let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            exposed.insert(family.to_owned(), kind.to_owned());
        }
    }
    let kinds: BTreeMap<String, String> =
        documented.iter().map(|(name, (kind, _))| (name.clone(), kind.clone())).collect();
    assert_eq!(kinds, exposed, "docs/metrics.md and /metrics differ");
    for series in values(&server).await.into_keys() {
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end));
        let family = family.filter(|family| documented.contains_key(*family)).unwrap_or(name);
        assert_eq!(labels_of(&series), documented[family].1, "{series}");
    }
}
