//! Scripted servers: a test determines each response.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use consort_client::{
    Client, ClientBuilder, ClientError, ConnectError, ConnectionError, RawCache, ServerAddress,
};
use consort_hotrod::ops::event::Event;
use consort_hotrod::ops::{map, server};
use consort_hotrod::{
    CacheTopology, Output, Owners, Request, RequestBody, RequestDecoder, Response, ResponseBody, Status,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::servers::{PATIENCE, eventually};

/// A server scripted by a test.
pub(crate) struct ScriptedServer(TcpListener);

impl ScriptedServer {
    pub(crate) async fn listen() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn at(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub(crate) fn address(&self) -> ServerAddress {
        ServerAddress { host: "127.0.0.1".into(), port: self.at().port() }
    }

    /// Accepts the next connection, without a response.
    pub(crate) async fn accept_without_pong(&self) -> ScriptedConnection {
        let (stream, _) = timeout(PATIENCE, self.0.accept()).await.expect("a connection").unwrap();
        ScriptedConnection { stream, input: BytesMut::new(), decoder: RequestDecoder::default() }
    }

    /// Accepts the next connection and answers its first PING.
    pub(crate) async fn accept(&self) -> ScriptedConnection {
        let mut conversation = self.accept_without_pong().await;
        let ping = conversation.next().await.expect("a ping");
        conversation.reply(&ping, pong(41)).await;
        conversation
    }

    /// Connects a client.
    pub(crate) async fn client(&self) -> (Client, ScriptedConnection) {
        self.client_of(Client::builder()).await
    }

    /// Connects a client with these settings.
    pub(crate) async fn client_of(&self, builder: ClientBuilder) -> (Client, ScriptedConnection) {
        let (client, conversation) = tokio::join!(builder.server(self.address()).connect(), self.accept());
        (client.unwrap(), conversation)
    }
}

pub(crate) fn pong(newest: u8) -> ResponseBody {
    ResponseBody::Server(server::Response::Pong(server::Pong::untyped(newest, Vec::new())))
}

pub(crate) fn value(value: &'static str) -> ResponseBody {
    ResponseBody::Map(map::Response::Value(value.into()))
}

/// The server's end of a connection.
pub(crate) struct ScriptedConnection {
    stream: TcpStream,
    input: BytesMut,
    decoder: RequestDecoder,
}

impl ScriptedConnection {
    /// Returns the next request; `None` if the client has closed the connection.
    pub(crate) async fn next(&mut self) -> Option<Request> {
        loop {
            if let Some(request) = self.decoder.decode(&mut self.input).unwrap() {
                return Some(request);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.input)).await.expect("a request");
            if read.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn send(&mut self, request: &Request, response: Response) {
        let mut out = Output::new();
        response.encode(request.context(), &mut out);
        self.stream.write_all(&out.into_bytes()).await.unwrap();
    }

    pub(crate) async fn reply(&mut self, request: &Request, body: ResponseBody) {
        self.send(request, Response::new(request.header.id, Status::Success, body)).await;
    }

    /// Sends an event.
    pub(crate) async fn send_event(&mut self, event: &Event) {
        let mut out = Output::new();
        event.encode(&mut out);
        self.write(&out.into_bytes()).await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn refuse(&mut self, request: &Request, status: Status, text: &str) {
        self.send(request, Response::error(request.header.id, status, text)).await;
    }
}

fn key_of(request: &Request) -> &Bytes {
    match &request.body {
        RequestBody::Map(request) => request.key(),
        other => panic!("{other:?}"),
    }
}

/// Runs an operation in the background.
pub(crate) fn begin<T: Send + 'static, R: Future<Output = T> + Send + 'static>(
    cache: &RawCache,
    operation: impl FnOnce(RawCache) -> R,
) -> JoinHandle<T> {
    tokio::spawn(operation(cache.clone()))
}

async fn get(cache: RawCache) -> Result<Option<Bytes>, ClientError> {
    cache.get(&b"key1"[..]).await
}

async fn put(cache: RawCache) -> Result<(), ClientError> {
    cache.put(&b"key1"[..], &b"value"[..]).await
}

#[tokio::test]
async fn a_write_that_was_sent_before_the_end_is_uncertain_and_a_read_is_repeated() {
    let played = ScriptedServer::listen().await;
    let (client, mut first) = played.client().await;
    let cache = client.raw("c");
    let (write, read) = (begin(&cache, put), begin(&cache, get));
    for _ in 0..2 {
        first.next().await.expect("both are sent");
    }
    drop(first);
    let error = write.await.unwrap().unwrap_err();
    assert!(matches!(&error, ClientError::Uncertain { .. }) && error.is_outcome_unknown(), "{error}");
    let mut second = played.accept().await;
    let again = second.next().await.expect("the read again");
    second.reply(&again, value("here")).await;
    assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&b"here"[..]));
}

#[tokio::test]
async fn a_write_that_was_not_sent_waits_for_the_next_connection() {
    let played = ScriptedServer::listen().await;
    let (client, first) = played.client().await;
    drop(first);
    eventually("the loss is detected", async || client.servers().is_empty()).await;
    let write = begin(&client.raw("c"), put);
    let mut second = played.accept().await;
    let request = second.next().await.expect("the write");
    second.reply(&request, ResponseBody::Empty).await;
    write.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_operation_ends_at_its_deadline_and_the_connection_continues() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c").with_timeout(Duration::from_millis(200));
    let (write, read) = (begin(&cache, put), begin(&cache, get));
    let mut requests = Vec::new();
    for _ in 0..2 {
        requests.push(server.next().await.unwrap());
    }
    let (write, read) = (write.await.unwrap().unwrap_err(), read.await.unwrap().unwrap_err());
    assert!(matches!(write, ClientError::TimedOut { is_outcome_unknown: true, .. }), "{write}");
    assert!(matches!(read, ClientError::TimedOut { is_outcome_unknown: false, .. }), "{read}");
    // Late responses are ignored.
    for request in &requests {
        let is_read = matches!(request.body, RequestBody::Map(map::Request::Get(_)));
        server.reply(request, if is_read { value("late") } else { ResponseBody::Empty }).await;
    }
    let read = begin(&client.raw("c"), get);
    let request = server.next().await.unwrap();
    server.reply(&request, value("in time")).await;
    assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&b"in time"[..]));
}

#[tokio::test]
async fn timeout_of_a_client_is_that_of_its_handles_without_one_of_their_own() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client_of(Client::builder().timeout(Duration::from_millis(50))).await;
    let short = begin(&client.raw("c"), get);
    let long = begin(&client.raw("c").with_timeout(PATIENCE), get);
    let mut requests = Vec::new();
    for _ in 0..2 {
        requests.push(server.next().await.unwrap());
    }
    let error = short.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
    for request in &requests {
        server.reply(request, value("late")).await;
    }
    assert_eq!(long.await.unwrap().unwrap().as_deref(), Some(&b"late"[..]));
}

#[tokio::test]
async fn without_a_server_operations_end_at_their_deadline_and_nothing_was_done() {
    let played = ScriptedServer::listen().await;
    let (client, server) = played.client().await;
    drop((server, played));
    eventually("the loss is detected", async || client.servers().is_empty()).await;
    let begun = Instant::now();
    let cache = client.raw("c").with_timeout(Duration::from_millis(300));
    let error = put(cache).await.unwrap_err();
    assert!(matches!(&error, ClientError::Unreachable { cause: Some(_), .. }), "{error}");
    assert!(!error.is_outcome_unknown());
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn connecting_to_a_closed_port_fails_at_once() {
    let closed = ScriptedServer::listen().await.at();
    let error = timeout(PATIENCE, Client::connect(&format!("hotrod://{closed}"))).await.unwrap().unwrap_err();
    let ConnectError::Unreachable(causes) = error else { panic!("{error}") };
    assert_eq!(causes.len(), 1);
    assert!(matches!(&causes[0].1, ConnectionError::Io(_)), "{}", causes[0].1);
}

/// S002-21.
#[tokio::test]
async fn s002_21_a_server_of_2_x_is_refused_by_name() {
    let played = ScriptedServer::listen().await;
    // Without the feature `legacy` this version is the oldest one.
    let uri = format!("hotrod://{}?protocol_version=3.0", played.at());
    let serving = async {
        let mut conversation = played.accept_without_pong().await;
        let ping = conversation.next().await.unwrap();
        conversation.reply(&ping, pong(29)).await;
        assert!(conversation.next().await.is_none(), "the client goes");
    };
    let (client, ()) = tokio::join!(Client::connect(&uri), serving);
    let text = client.unwrap_err().to_string();
    assert!(text.ends_with("the server supports versions up to 2.9; 3.0 is needed"), "{text}");
}

#[tokio::test]
async fn callers_wait_while_a_connection_has_no_room() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c").with_timeout(PATIENCE);
    let large = Bytes::from(vec![7; 1_000_000]);
    // Each request takes a quarter of the room; the server does not answer.
    let putting: Vec<_> = (0..8_u8)
        .map(|n| {
            let large = large.clone();
            begin(&cache, move |cache: RawCache| async move { cache.put(&[n][..], &large).await })
        })
        .collect();
    let mut requests = Vec::new();
    for _ in 0..4 {
        requests.push(server.next().await.unwrap());
    }
    let hurried = client.raw("c").with_timeout(Duration::from_millis(100));
    let error = hurried.put(&b"k"[..], &large).await.unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { is_outcome_unknown: false, .. }), "{error}");
    assert_eq!(client.traffic().requests, 1 + 4, "a ping, and what there is room for");
    for answered in 0..8 {
        let request = match requests.pop() {
            Some(request) => request,
            None => server.next().await.unwrap_or_else(|| panic!("{answered} requests")),
        };
        server.reply(&request, ResponseBody::Empty).await;
    }
    for put in putting {
        put.await.unwrap().unwrap();
    }
}

pub(crate) fn topology(id: i32, servers: &[&ScriptedServer], primary_of_46: u32) -> CacheTopology {
    let mut owners: Vec<Owners> = vec![Owners::from_slice(&[0]); 256];
    owners[46] = Owners::from_slice(&[primary_of_46]);
    let servers = servers.iter().map(|server| server.address()).collect();
    CacheTopology { id, servers, owners: Some(owners) }
}

/// Facts 4.2: `key1` is in segment 46 of 256.
#[tokio::test]
async fn requests_go_to_the_owner_and_to_other_servers_without_it() {
    let (one, two) = (ScriptedServer::listen().await, ScriptedServer::listen().await);
    let (client, mut first) = one.client().await;
    let cache = client.raw("c");
    let read = begin(&cache, get);
    let request = first.next().await.unwrap();
    assert_eq!((request.header.topology_id, request.header.intelligence as u8), (-1, 3));
    let mut response = Response::new(request.header.id, Status::Success, value("from one"));
    response.topology = Some(topology(7, &[&one, &two], 1).into());
    first.send(&request, response).await;
    assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&b"from one"[..]));

    let mut second = two.accept().await;
    eventually("both are known", async || client.servers().len() == 2).await;
    let read = begin(&cache, get);
    let request = second.next().await.unwrap();
    assert_eq!((request.header.topology_id, &key_of(&request)[..]), (7, &b"key1"[..]));
    second.reply(&request, value("from two")).await;
    assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&b"from two"[..]));

    // Another server serves other keys, and this one once its owner is lost.
    drop((second, two));
    eventually("the loss is detected", async || client.servers().len() == 1).await;
    let read = begin(&cache, get);
    let request = first.next().await.unwrap();
    first.reply(&request, value("from one again")).await;
    assert_eq!(read.await.unwrap().unwrap().as_deref(), Some(&b"from one again"[..]));
}

#[tokio::test]
async fn a_removed_server_is_disconnected_after_its_last_response() {
    let (one, two) = (ScriptedServer::listen().await, ScriptedServer::listen().await);
    let (client, mut first) = one.client().await;
    let cache = client.raw("c");
    let (slow, quick) = (begin(&cache, get), begin(&cache, get));
    let kept = first.next().await.unwrap();
    let request = first.next().await.unwrap();
    let mut response = Response::new(request.header.id, Status::Success, value("moved"));
    response.topology = Some(topology(8, &[&two], 0).into());
    first.send(&request, response).await;
    quick.await.unwrap().unwrap();
    let mut second = two.accept().await;
    eventually("both are there", async || client.servers().len() == 2).await;
    let read = begin(&cache, get);
    let request = second.next().await.unwrap();
    second.reply(&request, value("from two")).await;
    read.await.unwrap().unwrap();
    assert_eq!(client.servers(), [format!("127.0.0.1:{}", two.at().port())]);
    first.reply(&kept, value("after all")).await;
    assert_eq!(slow.await.unwrap().unwrap().as_deref(), Some(&b"after all"[..]));
    assert!(first.next().await.is_none(), "the connection is closed");
}

#[tokio::test]
async fn a_server_with_an_unreachable_advertised_name_is_used_by_its_configured_address() {
    let (one, closed) = (ScriptedServer::listen().await, ScriptedServer::listen().await);
    let (client, mut server) = one.client().await;
    let update = topology(9, &[&closed], 0);
    drop(closed);
    let cache = client.raw("c");
    for _ in 0..3 {
        let read = begin(&cache, get);
        let request = server.next().await.unwrap();
        let mut response = Response::new(request.header.id, Status::Success, value("v"));
        response.topology = Some(update.clone().into());
        server.send(&request, response).await;
        read.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_server_error_decides_whether_other_servers_are_tried() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let cache = client.raw("c");
    let refused = async |server: &mut ScriptedConnection, operation: JoinHandle<ClientError>, status| {
        let request = server.next().await.unwrap();
        server.refuse(&request, status, "no").await;
        operation.await.unwrap()
    };
    let failed_put = |cache: RawCache| async move { put(cache).await.unwrap_err() };
    let error = refused(&mut server, begin(&cache, failed_put), Status::ServerError).await;
    assert!(matches!(&error, ClientError::Server { status: Status::ServerError, .. }), "{error}");
    assert!(error.is_outcome_unknown());
    // The server lost another owner: the outcome of the write is unknown.
    let error = refused(&mut server, begin(&cache, failed_put), Status::NodeSuspected).await;
    assert!(matches!(error, ClientError::Uncertain { .. }), "{error}");
    // There is no other server to try.
    let error = refused(&mut server, begin(&cache, failed_put), Status::IllegalLifecycle).await;
    assert!(matches!(&error, ClientError::Server { status: Status::IllegalLifecycle, .. }), "{error}");
    assert!(!error.is_outcome_unknown());
}

#[tokio::test]
async fn an_answer_of_another_kind_is_the_servers_fault() {
    let played = ScriptedServer::listen().await;
    let (client, mut server) = played.client().await;
    let read = begin(&client.raw("c"), get);
    let request = server.next().await.unwrap();
    server.send(&request, Response::new(request.header.id, Status::NotExecuted, ResponseBody::Empty)).await;
    let error = read.await.unwrap().unwrap_err();
    assert!(matches!(&error, ClientError::ProtocolViolation { operation: "GET", .. }), "{error}");
}

#[tokio::test]
async fn garbage_costs_the_connection_and_nothing_else() {
    let played = ScriptedServer::listen().await;
    let (client, mut first) = played.client().await;
    let write = begin(&client.raw("c"), put);
    first.next().await.unwrap();
    first.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").await.unwrap();
    let error = write.await.unwrap().unwrap_err();
    let ClientError::Uncertain { cause: ConnectionError::Unreadable(_), .. } = &error else {
        panic!("{error}")
    };
    let mut second = played.accept().await;
    let read = begin(&client.raw("c"), get);
    let request = second.next().await.unwrap();
    second.reply(&request, value("v")).await;
    assert!(read.await.unwrap().unwrap().is_some());
}
