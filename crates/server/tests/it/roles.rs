//! Every operation, tried with every role.

use bytes::Bytes;
use consort_hotrod::ops::{
    auth, bulk, counter, iteration, listener, map, multimap, server, stream, task, transaction,
};
use consort_hotrod::{BitSet, Expiration, Opcode, RequestBody, ResponseBody, Status};
use consort_server::Role;

use crate::authentication::users;
use crate::client::{Client, RunningServer, exec};

fn key() -> Bytes {
    Bytes::from_static(b"k")
}

fn assignment() -> map::Assignment {
    map::Assignment { key: key(), expiration: Expiration::INFINITE, value: key() }
}

fn map_requests() -> Vec<map::Request> {
    use map::Request::{
        ContainsKey, Get, GetWithMetadata, GetWithVersion, Put, PutIfAbsent, Remove, RemoveIfUnmodified,
        Replace, ReplaceIfUnmodified,
    };
    vec![
        Get(key()),
        ContainsKey(key()),
        GetWithVersion(key()),
        GetWithMetadata(key()),
        Put(assignment()),
        PutIfAbsent(assignment()),
        Replace(assignment()),
        ReplaceIfUnmodified(assignment(), 1),
        Remove(key()),
        RemoveIfUnmodified(key(), 1),
    ]
}

fn bulk_requests() -> Vec<bulk::Request> {
    use bulk::Request::{BulkGet, BulkGetKeys, Clear, GetAll, PutAll, Size};
    let entries = vec![(key(), key())];
    vec![Size, BulkGet(1), BulkGetKeys(0), GetAll(vec![key()]), PutAll(Expiration::INFINITE, entries), Clear]
}

fn listener_requests() -> Vec<listener::Request> {
    let id = || Bytes::from_static(b"listener");
    let added = listener::Listener {
        id: id(),
        includes_state: false,
        filter: None,
        converter: None,
        is_raw: false,
        interests: listener::Interests::ALL,
    };
    use listener::Request::{Add, AddBloom, Remove, UpdateBloom};
    vec![Add(added), Remove(id()), AddBloom(id(), 64), UpdateBloom(BitSet::default())]
}

fn stream_requests() -> Vec<stream::Request> {
    use stream::Request::{EndGet, EndPut, Get, NextGet, NextPut, Put, StartGet, StartPut};
    let target = || stream::Target { key: key(), expiration: Expiration::INFINITE, version: 0 };
    vec![
        Get(key(), 0),
        Put(target(), vec![key()]),
        StartGet(key(), 8),
        NextGet(1),
        EndGet(1),
        StartPut(target()),
        NextPut(1, true, key()),
        EndPut(1),
    ]
}

fn transaction_requests() -> Vec<transaction::Request> {
    use transaction::Request::{Commit, FetchRecovery, Forget, Prepare, Rollback};
    let xid = || transaction::Xid { format: 1, global: key(), branch: key() };
    let prepare = || transaction::Prepare { xid: xid(), is_one_phase: false, modifications: Vec::new() };
    let recovery = transaction::Recovery { is_recoverable: false, timeout: 1_000 };
    vec![
        Prepare(prepare(), None),
        Prepare(prepare(), Some(recovery)),
        Commit(xid()),
        Rollback(xid()),
        Forget(xid()),
        FetchRecovery,
    ]
}

fn counter_requests() -> Vec<counter::Request> {
    use counter::Action::{
        AddAndGet, AddListener, CompareAndSwap, Configuration, Create, Get, GetAndSet, IsDefined, Remove,
        RemoveListener, Reset,
    };
    let config =
        counter::CounterConfig { kind: counter::CounterKind::Strong, is_persistent: false, initial: 0 };
    let id = || Bytes::from_static(b"counting");
    let actions = [
        Create(config),
        Configuration,
        IsDefined,
        AddAndGet(1),
        Reset,
        Get,
        CompareAndSwap(0, 1),
        AddListener(id()),
        RemoveListener(id()),
        Remove,
        GetAndSet(2),
    ];
    let of = |action| counter::Request::Of("counter".into(), action);
    actions.map(of).into_iter().chain([counter::Request::Names]).collect()
}

fn multimap_requests() -> Vec<multimap::Request> {
    use multimap::Action::{
        ContainsEntry, ContainsKey, ContainsValue, Get, GetWithMetadata, Put, RemoveEntry, RemoveKey, Size,
    };
    let actions = [
        Get(key()),
        GetWithMetadata(key()),
        Put(assignment()),
        RemoveKey(key()),
        RemoveEntry(assignment()),
        Size,
        ContainsEntry(assignment()),
        ContainsKey(key()),
        ContainsValue(Expiration::INFINITE, key()),
    ];
    actions.map(|action| multimap::Request { action, allows_duplicates: false }).to_vec()
}

/// Returns every operation, once.
pub(crate) fn every_operation() -> Vec<RequestBody> {
    let start = iteration::Start { segments: None, filter: None, batch: 10, with_metadata: false };
    let mut all = vec![
        RequestBody::Server(server::Request::Ping),
        RequestBody::Server(server::Request::Stats),
        RequestBody::Auth(auth::Request::Mechanisms),
        RequestBody::Auth(auth::Request::Step("".into(), Bytes::new())),
        RequestBody::Task(task::Request::Exec("a-script".into(), Vec::new())),
        RequestBody::Task(task::Request::Query(key())),
        RequestBody::Iteration(iteration::Request::Start(start)),
        RequestBody::Iteration(iteration::Request::Next("1".into())),
        RequestBody::Iteration(iteration::Request::End("1".into())),
    ];
    all.extend(map_requests().into_iter().map(RequestBody::Map));
    all.extend(bulk_requests().into_iter().map(RequestBody::Bulk));
    all.extend(listener_requests().into_iter().map(RequestBody::Listener));
    all.extend(stream_requests().into_iter().map(RequestBody::Stream));
    all.extend(transaction_requests().into_iter().map(RequestBody::Transaction));
    all.extend(counter_requests().into_iter().map(RequestBody::Counter));
    all.extend(multimap_requests().into_iter().map(RequestBody::Multimap));
    let mut opcodes: Vec<Opcode> = all.iter().map(RequestBody::opcode).collect();
    opcodes.sort_unstable();
    let mut expected = Opcode::ALL.to_vec();
    expected.sort_unstable();
    assert_eq!(opcodes, expected, "every operation, once");
    all
}

/// Tasks that create, change and remove caches.
const MAKING: [&str; 7] = [
    "@@cache@create",
    "@@cache@getorcreate",
    "@@cache@updateConfigurationAttribute",
    "@@cache@assignAlias",
    "@@template@create",
    "@@template@remove",
    "@@cache@remove",
];

/// Tasks that show the state of caches and the cluster.
const SHOWING: [&str; 5] = [
    "@@cache@config",
    "@@cache@describe",
    "@@cluster@members",
    "@@cluster@segments",
    "@@cluster@rebalancing",
];

/// Tasks for administrators.
const OPERATING: [&str; 4] =
    ["@@server@clients", "@@cluster@enablerebalancing", "@@cluster@disablerebalancing", STOP];

/// The server ends.
const STOP: &str = "@@cluster@stop";

/// Returns the permission that an operation needs, from its name and Infinispan's security guide for the methods of caches.
fn needed(body: &RequestBody) -> Option<&'static str> {
    let name = match body {
        RequestBody::Task(task::Request::Exec(name, _)) => name.as_str(),
        body => body.opcode().name(),
    };
    Some(match name {
        "PING" | "AUTH" | "AUTH_MECH_LIST" => return None,
        "a-script" => "EXEC",
        "STATS" | "@@cache@names" | "@@cache@templates" => "MONITOR",
        name if SHOWING.contains(&name) => "MONITOR",
        name if OPERATING.contains(&name) => "ADMIN",
        "COUNTER_CREATE" => "CREATE",
        name if MAKING.contains(&name) => "CREATE",
        "@@logging@set" | "@@cache@reindex" | "@@unknown@task" => "ADMIN",
        "CLEAR" => "BULK_WRITE",
        "SIZE"
        | "BULK_GET"
        | "BULK_GET_KEYS"
        | "GET_ALL"
        | "QUERY"
        | "MULTIMAP_SIZE"
        | "MULTIMAP_CONTAINS_VALUE" => "BULK_READ",
        name if name.starts_with("ITERATION") => "BULK_READ",
        name if name.contains("LISTENER") || name.contains("BLOOM") => "LISTEN",
        name if name.contains("_TX") => "WRITE",
        name if name.contains("GET_AND_SET") || name.contains("ADD_AND_GET") => "WRITE",
        name if name.contains("GET") || name.contains("CONTAINS") || name.contains("IS_DEFINED") => "READ",
        _ => "WRITE",
    })
}

fn is_permitted(role: Role, needed: &str) -> bool {
    match role {
        Role::Admin => true,
        Role::Deployer => needed != "ADMIN",
        Role::Application => !matches!(needed, "ADMIN" | "CREATE"),
        Role::Observer => matches!(needed, "READ" | "BULK_READ" | "MONITOR"),
        Role::Monitor => needed == "MONITOR",
    }
}

async fn authenticated_as(server: &RunningServer, role: Role) -> Client {
    let mut client = server.client().await;
    let known = client.plain(role.name(), role.name()).await;
    assert_eq!(known.body, ResponseBody::Auth(auth::Response::Done));
    client
}

/// Sends a request, and checks that it is done or denied as expected.
async fn try_one(client: &mut Client, role: Role, body: RequestBody) {
    let operation = match &body {
        RequestBody::Task(task::Request::Exec(name, _)) => format!("EXEC of {}", name.as_str()),
        body => body.opcode().name().to_owned(),
    };
    let needed = needed(&body);
    let response = client.ask("c", body).await;
    let text = match &response.body {
        ResponseBody::Error(text) => text.as_str(),
        _ => "",
    };
    match needed.filter(|needed| !is_permitted(role, needed)) {
        None => assert!(!text.contains("SecurityException"), "{role} may {operation}: {text}"),
        Some(needed) => {
            assert_eq!(response.status, Status::ServerError, "{role} may not {operation}: {response:?}");
            let expected = format!(
                "java.lang.SecurityException: ISPN000287: Unauthorized access: user '{role}' lacks '{needed}' \
                 permission, which {operation} needs"
            );
            assert_eq!(text, expected);
        }
    }
}

#[tokio::test]
async fn every_operation_is_checked_against_every_role() {
    let server = RunningServer::secured("every-role", users()).await;
    authenticated_as(&server, Role::Admin).await.create("c").await;
    for role in Role::ALL {
        let mut client = authenticated_as(&server, role).await;
        for body in every_operation() {
            try_one(&mut client, role, body).await;
        }
        for task in MAKING.into_iter().chain(["@@cache@names", "@@cache@templates"]) {
            try_one(&mut client, role, exec(task, "made")).await;
        }
        let others = ["@@logging@set", "@@cache@reindex", "@@unknown@task"];
        for task in others.into_iter().chain(SHOWING).chain(OPERATING).filter(|task| *task != STOP) {
            try_one(&mut client, role, exec(task, "made")).await;
        }
    }
    // The last one succeeds.
    let others = Role::ALL.into_iter().filter(|role| *role != Role::Admin);
    for role in others.chain([Role::Admin]) {
        try_one(&mut authenticated_as(&server, role).await, role, exec(STOP, "made")).await;
    }
    server.serving.await.unwrap();
}

#[tokio::test]
async fn unauthenticated_client_gets_a_response_to_ping_only() {
    let server = RunningServer::secured("strangers", users()).await;
    authenticated_as(&server, Role::Admin).await.create("c").await;
    let mut stranger = server.client().await;
    for body in every_operation() {
        let operation = body.opcode();
        if operation == Opcode::Auth {
            continue;
        }
        let response = stranger.ask("c", body).await;
        if matches!(operation, Opcode::Ping | Opcode::AuthMechList) {
            assert_eq!(response.status, Status::Success);
            continue;
        }
        assert_eq!(response.status, Status::ServerError);
        let ResponseBody::Error(text) = &response.body else { panic!("{response:?}") };
        let expected = format!(
            "java.lang.SecurityException: ISPN006017: Operation '{}' requires authentication",
            operation.name()
        );
        assert_eq!(text.as_str(), expected);
    }
}
