//! Internal caches, and the internal entries among the definitions, under names that clients may try.

use bytes::Bytes;
use consort_hotrod::ops::{counter, map, task};
use consort_hotrod::{RequestBody, Response, ResponseBody, Status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::authentication::users;
use crate::client::{Client, RunningServer, error, exec, put};
use crate::roles::every_operation;

const SCHEMAS: &str = "___protobuf_metadata";

/// Internal caches, a template, an alias, and caches that Infinispan reserves.
const INTERNAL: [&str; 15] = [
    "___template mine",
    "___alias other",
    "___consort_caches",
    "___consort_volatile_caches",
    "___consort_servers",
    "___consort_statistics",
    "___consort_counters",
    "___consort_persistent_counters",
    "___consort_transactions",
    "___consort_locks",
    "___script_cache",
    "___counter_configuration",
    "___hotRodTopologyCache_hotrod",
    "___",
    "___anything",
];

const UNKNOWN: &str = "no-such-cache";

async fn run(client: &mut Client, task: &str, params: &[(&'static str, &'static str)]) -> Response {
    let params = params.iter().map(|(name, value)| ((*name).into(), Bytes::from_static(value.as_bytes())));
    client.ask("", RequestBody::Task(task::Request::Exec(task.into(), params.collect()))).await
}

/// Starts a server on which all internal caches are open and have entries.
async fn with_everything(cluster: &str) -> RunningServer {
    let server = RunningServer::start(cluster).await;
    let mut client = server.client().await;
    client.create_with("c", r#"{"local-cache": {"aliases": ["other"]}}"#).await;
    client.create_with("t", r#"{"distributed-cache": {"transaction": {"mode": "NON_XA"}}}"#).await;
    let template = [("name", "mine"), ("configuration", "<local-cache/>")];
    assert_eq!(run(&mut client, "@@template@create", &template).await.status, Status::Success);
    let kind = counter::CounterKind::Strong;
    let config = counter::CounterConfig { kind, is_persistent: false, initial: 0 };
    let create = counter::Request::Of("counted".into(), counter::Action::Create(config));
    assert_eq!(client.ask("", RequestBody::Counter(create)).await.status, Status::Success);
    server
}

/// Returns whether an operation applies to the cache in its header. Counters and tasks do not.
const fn is_of_cache(body: &RequestBody) -> bool {
    !matches!(
        body,
        RequestBody::Counter(_) | RequestBody::Auth(_) | RequestBody::Task(task::Request::Exec(..))
    )
}

/// Returns the response on a new connection, without the cache's name.
async fn answered(server: &RunningServer, cache: &str, body: &RequestBody) -> (Status, String) {
    let response = server.client().await.ask(cache, body.clone()).await;
    assert!(response.topology.is_none(), "{response:?}");
    (response.status, format!("{:?}", response.body).replace(cache, "NAME"))
}

#[tokio::test]
async fn each_operation_on_an_internal_name_is_answered_as_on_an_unknown_cache() {
    let server = with_everything("internal-operations").await;
    for body in every_operation().iter().filter(|body| is_of_cache(body)) {
        let unknown = answered(&server, UNKNOWN, body).await;
        for name in INTERNAL {
            assert_eq!(answered(&server, name, body).await, unknown, "{} of {name}", body.opcode().name());
        }
    }
}

fn reserved(name: &str) -> String {
    format!("org.infinispan.commons.CacheConfigurationException: cache name '{name}' is reserved")
}

#[tokio::test]
async fn administration_does_not_open_or_change_an_internal_cache() {
    let server = with_everything("internal-administration").await;
    let mut client = server.client().await;
    for name in INTERNAL.into_iter().chain([SCHEMAS]) {
        for task in ["@@cache@create", "@@cache@getorcreate", "@@cache@remove"] {
            let refused = client.ask("", exec(task, name)).await;
            assert_eq!(error(&refused), reserved(name), "{task}");
        }
        let attribute = [("name", name), ("attribute", "expiration.lifespan"), ("value", "1h")];
        let refused = run(&mut client, "@@cache@updateConfigurationAttribute", &attribute).await;
        assert_eq!(error(&refused), reserved(name));
        let alias = [("alias", "way-in"), ("name", name)];
        let refused = run(&mut client, "@@cache@assignAlias", &alias).await;
        assert!(error(&refused).contains("ISPN000436"), "{refused:?}");
        if name != SCHEMAS {
            let refused = client.ask("", exec("@@cache@reindex", name)).await;
            assert!(error(&refused).contains("ISPN000436"), "{refused:?}");
        }
    }
    let names = run(&mut client, "@@cache@names", &[]).await;
    assert_eq!(names.body, ResponseBody::Result(r#"["___protobuf_metadata","c","t"]"#.into()));
}

/// Making a cache available changes the state of its members and reads no entries. So an administrator may name any internal
/// cache.
#[tokio::test]
async fn administrator_can_make_an_internal_cache_available() {
    let server = RunningServer::secured("internal-available", users()).await;
    let [mut admin, mut deployer] = [server.client().await, server.client().await];
    for (client, role) in [(&mut admin, "admin"), (&mut deployer, "deployer")] {
        assert_eq!(client.plain(role, role).await.status, Status::Success);
    }
    let count = |action| RequestBody::Counter(counter::Request::Of("counted".into(), action));
    let kind = counter::CounterKind::Strong;
    let config = counter::CounterConfig { kind, is_persistent: false, initial: 5 };
    assert_eq!(admin.ask("", count(counter::Action::Create(config))).await.status, Status::Success);
    for task in ["@@cache@makeavailable", "@@cache@losses"] {
        for name in ["___consort_caches", "___consort_counters", SCHEMAS] {
            let made = run(&mut admin, task, &[("name", name)]).await;
            assert_eq!(made.body, ResponseBody::Result("[]".into()), "{task} {name}: it is not degraded");
            let denied = run(&mut deployer, task, &[("name", name)]).await;
            assert!(error(&denied).contains("lacks 'ADMIN'"), "{denied:?}");
        }
        for name in ["___anything", "___template mine"] {
            let none = run(&mut admin, task, &[("name", name)]).await;
            assert!(error(&none).contains("ISPN000436"), "{task} {none:?}");
        }
    }
    let value = admin.ask("", count(counter::Action::Get)).await.body;
    assert_eq!(value, ResponseBody::Counter(counter::Response::Value(5)));
}

#[tokio::test]
async fn clients_can_use_the_cache_of_schemas() {
    let server = with_everything("internal-schemas").await;
    let mut client = server.client().await;
    let read = RequestBody::Map(map::Request::Get("none.proto".into()));
    assert_eq!(client.ask(SCHEMAS, read).await.status, Status::NotFound);
    // The target of an alias can only be reached by the alias.
    assert_eq!(client.ask("other", put("k", "v")).await.status, Status::Success);
}

#[tokio::test]
async fn health_and_metrics_name_no_internal_cache() {
    let server = with_everything("internal-health").await;
    for path in ["/rest/v2/container/health", "/metrics"] {
        let mut stream = tokio::net::TcpStream::connect(server.at).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200") && response.contains('c'), "{response}");
        assert!(!response.contains("___"), "{response}");
    }
}
