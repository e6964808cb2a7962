//! Connections: responses, and reasons for their end.

use bytes::Bytes;
use consort_hotrod::ops::{bulk, map, server};
use consort_hotrod::{
    Expiration, Flags, Intelligence, ProtocolVersion, Request, RequestBody, ResponseBody, Span, Status,
    TimeUnit,
};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::client::{Client, PATIENCE, RunningServer, get, put, request};

#[tokio::test]
async fn pipelined_requests_are_all_answered() {
    let (_server, mut client) = RunningServer::with_cache("together", "c").await;
    let requests: Vec<Request> = (0..2_000_u64)
        .map(|id| request(id, "c", if id % 2 == 0 { put("key", "value") } else { get("key") }))
        .collect();
    client.send(&requests).await;
    let mut answered = vec![false; requests.len()];
    for _ in &requests {
        let response = client.next_of(|id| requests[id as usize].context()).await.unwrap();
        assert_eq!(response.status, Status::Success);
        assert!(!std::mem::replace(&mut answered[response.id as usize], true), "answered twice");
    }
    assert!(answered.iter().all(|is| *is));
}

/// Clients usually begin with a ping, but need not.
#[tokio::test]
async fn first_request_of_a_connection_may_be_large() {
    let (server, _) = RunningServer::with_cache("first-large", "values").await;
    let mut client = server.client().await;
    let value = Bytes::from(vec![7; 1024 * 1024]);
    assert_eq!(client.ask("values", put("k", value.clone())).await.status, Status::Success);
    let response = client.ask("values", get("k")).await;
    let ResponseBody::Map(map::Response::Value(read)) = response.body else { panic!("{response:?}") };
    assert_eq!(read, value);
}

#[tokio::test]
async fn statuses_and_previous_values_of_conditional_writes_are_those_of_infinispan() {
    let (_server, mut client) = RunningServer::with_cache("conditions", "c").await;
    let status = async |client: &mut Client, flags, body| {
        let mut request = request(1, "c", body);
        request.header.flags = flags;
        client.send(std::slice::from_ref(&request)).await;
        let response = client.next(request.context()).await.unwrap();
        let previous = match response.body {
            ResponseBody::Map(map::Response::Previous(previous)) => {
                Some(previous.map(|previous| previous.value))
            }
            _ => None,
        };
        (response.status, previous)
    };
    let assignment = |value: &'static str| map::Assignment {
        key: "k".into(),
        expiration: Expiration::INFINITE,
        value: value.into(),
    };
    let map = |request| RequestBody::Map(request);
    let (none, force) = (Flags::NONE, Flags::FORCE_RETURN_PREVIOUS);
    let c = &mut client;
    // Facts 2.3, row by row.
    let absent = status(c, force, map(map::Request::Replace(assignment("1")))).await;
    assert_eq!(absent, (Status::NotExecuted, None));
    assert_eq!(status(c, none, map(map::Request::Remove("k".into()))).await, (Status::NotFound, None));
    let absent = status(c, none, map(map::Request::ReplaceIfUnmodified(assignment("1"), 1))).await;
    assert_eq!(absent, (Status::NotFound, None));
    let absent = status(c, none, map(map::Request::RemoveIfUnmodified("k".into(), 1))).await;
    assert_eq!(absent, (Status::NotFound, None));
    let inserted = status(c, force, map(map::Request::PutIfAbsent(assignment("1")))).await;
    assert_eq!(inserted, (Status::Success, None));
    let present = status(c, none, map(map::Request::PutIfAbsent(assignment("2")))).await;
    assert_eq!(present, (Status::NotExecuted, None));
    let present = status(c, force, map(map::Request::PutIfAbsent(assignment("2")))).await;
    assert_eq!(present, (Status::NotExecutedWithPrevious, Some(Some("1".into()))));
    let put = status(c, force, map(map::Request::Put(assignment("3")))).await;
    assert_eq!(put, (Status::SuccessWithPrevious, Some(Some("1".into()))));
    let other = status(c, force, map(map::Request::ReplaceIfUnmodified(assignment("4"), 1))).await;
    assert_eq!(other, (Status::NotExecutedWithPrevious, Some(Some("3".into()))));
    let other = status(c, none, map(map::Request::RemoveIfUnmodified("k".into(), 1))).await;
    assert_eq!(other, (Status::NotExecuted, None));
    let removed = status(c, force, map(map::Request::Remove("k".into()))).await;
    assert_eq!(removed, (Status::SuccessWithPrevious, Some(Some("3".into()))));
    let put = status(c, force, map(map::Request::Put(assignment("5")))).await;
    assert_eq!(put, (Status::SuccessWithPrevious, Some(None)), "forced also of nothing");
}

#[tokio::test]
async fn entry_with_a_time_of_zero_is_absent_at_once() {
    let (_server, mut client) = RunningServer::with_cache("zero", "c").await;
    let zero = Span::Of(0, TimeUnit::Milliseconds);
    let ends = Expiration { lifespan: zero, max_idle: Span::Default };
    let idles = Expiration { lifespan: Span::Infinite, max_idle: zero };
    for (expiration, status) in
        [(ends, Status::NotFound), (idles, Status::NotFound), (Expiration::default(), Status::Success)]
    {
        let to = map::Assignment { key: "k".into(), expiration, value: "v".into() };
        let put = client.ask("c", RequestBody::Map(map::Request::Put(to))).await;
        assert_eq!(put.status, Status::Success);
        assert_eq!(client.ask("c", get("k")).await.status, status, "{expiration:?}");
    }
}

#[tokio::test]
async fn error_of_an_unknown_cache_is_that_of_infinispan() {
    let server = RunningServer::start("missing").await;
    let mut client = server.client().await;
    for body in [RequestBody::Server(server::Request::Ping), get("k"), RequestBody::Bulk(bulk::Request::Size)]
    {
        let response = client.ask("missing", body).await;
        assert_eq!(response.status, Status::ParseError);
        let ResponseBody::Error(text) = response.body else { panic!("{:?}", response.body) };
        assert!(text.as_str().contains("CacheNotFoundException"), "{text}");
    }
    let without_cache = client.ask("", RequestBody::Server(server::Request::Ping)).await;
    assert_eq!(without_cache.status, Status::Success);
}

#[tokio::test]
async fn unreadable_request_is_answered_with_an_error_and_ends_the_connection() {
    let server = RunningServer::start("nonsense").await;
    let cases: [(&[u8], Status); 3] = [
        (b"\xa1\x07\x29\x17", Status::InvalidMagic),
        (b"\xa0\x07\x83\x03", Status::UnknownVersion),
        (b"\xa0\x07\x14\x03\x00\x00\x01\x00\xff\xff\xff\xff\x07", Status::ParseError),
    ];
    for (bytes, status) in cases {
        let error = server.client().await.refused(bytes).await.expect("an error");
        assert_eq!(error.status, status);
    }
}

#[tokio::test]
async fn unknown_operation_is_answered_with_an_error_and_the_connection_stays_open() {
    let server = RunningServer::start("unknown").await;
    let mut client = server.client().await;
    let ping = request(9, "", RequestBody::Server(server::Request::Ping));
    for begins in [b"\xa0\x07\x29\x02", b"\xa0\x07\x2a\xf1"] {
        client.stream.write_all(&[&begins[..], b"\0\0\x01\0\0\0\0"].concat()).await.unwrap();
        client.send(std::slice::from_ref(&ping)).await;
        let error = client.next(ping.context()).await.expect("an error");
        assert_eq!((error.id, error.status), (7, Status::UnknownOpcode));
        let pong = client.next(ping.context()).await.expect("the connection is open");
        assert_eq!((pong.id, pong.status), (9, Status::Success));
    }
}

#[tokio::test]
async fn ping_of_a_later_version_is_answered_with_the_newest() {
    let server = RunningServer::start("later").await;
    let mut client = server.client().await;
    client.stream.write_all(b"\xa0\x07\x2a\x17\0\0\x01\0\0\0\0").await.unwrap();
    let ping = request(7, "", RequestBody::Server(server::Request::Ping));
    let pong = client.next(ping.context()).await.expect("an answer");
    let ResponseBody::Server(server::Response::Pong(pong)) = pong.body else { panic!("{pong:?}") };
    assert_eq!(pong.newest, ProtocolVersion::NEWEST.byte());
}

#[tokio::test]
async fn pending_request_is_answered_before_the_server_stops() {
    let (server, mut client) = RunningServer::with_cache("drained", "c").await;
    let large = Bytes::from(vec![7; 8 * 1024 * 1024]);
    assert_eq!(client.ask("c", put("large", large.clone())).await.status, Status::Success);
    let request = request(9, "c", get("large"));
    client.send(std::slice::from_ref(&request)).await;
    // Until the response has begun, so that the request was read.
    client.stream.readable().await.unwrap();
    server.end.send(()).unwrap();
    let response = client.next(request.context()).await.expect("an answer");
    assert_eq!(response.body, ResponseBody::Map(map::Response::Value(large)));
    assert_eq!(client.next(request.context()).await, None);
    timeout(PATIENCE, server.serving).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn created_cache_is_open_on_all_servers_when_its_creation_is_answered() {
    let [_first, second, _third] = RunningServer::three("arrival").await;
    let mut client = second.client().await;
    for n in 0..8_u64 {
        let name = format!("c{n}");
        client.create(&name).await;
        let mut get = request(n, &name, get("k"));
        get.header.intelligence = Intelligence::Hash;
        client.send(std::slice::from_ref(&get)).await;
        let topology = client.next(get.context()).await.unwrap().topology.expect("a topology");
        assert_eq!(topology.servers.len(), 3, "{name}: {topology:?}");
    }
}

#[tokio::test]
async fn topology_updates_follow_joining_and_leaving_servers() {
    let (first, mut client) = RunningServer::with_cache("topologies", "c").await;
    let mut servers_told = async |count: usize| {
        timeout(PATIENCE, async {
            loop {
                let mut get = request(1, "c", get("k"));
                get.header.intelligence = Intelligence::Hash;
                client.send(std::slice::from_ref(&get)).await;
                let topology = client.next(get.context()).await.unwrap().topology.unwrap();
                if topology.servers.len() == count {
                    return topology;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("a topology")
    };
    assert_eq!(servers_told(1).await.servers[0].port, first.at.port());
    let second = RunningServer::join("topologies").await;
    let both = servers_told(2).await;
    assert!(both.servers.iter().any(|server| server.port == second.at.port()));
    second.end.send(()).unwrap();
    second.serving.await.unwrap();
    assert_eq!(servers_told(1).await.servers[0].port, first.at.port());
}
