//! Servers in this process, and a client that can send arbitrary bytes.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use consort_cache::{CacheManager, Channel};
use consort_conf::{Variables, parse_stack};
use consort_hotrod::ops::{map, server, task};
use consort_hotrod::{
    Expiration, Incoming, Output, ProtocolVersion, Request, RequestBody, RequestContext, RequestHeader,
    Response, ResponseBody, ResponseDecoder, Status,
};
use consort_server::{Server, ServerBuilder, ServerError, UsersHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A timeout at least ten times as long as any step of these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Failure detection within one to two seconds.
pub(crate) const DETECTION: &str =
    "<FD_ALL3 timeout=\"1500\" interval=\"200\"/><VERIFY_SUSPECT2 timeout=\"300\"/>";

fn stack(join_timeout: Duration, detection: &str) -> String {
    format!(
        "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/>{detection}<NAKACK2/><UNICAST3/><STABLE/>\
         <GMS join_timeout=\"{}\"/><UFC/><MFC/><FRAG4/></config>",
        join_timeout.as_millis()
    )
}

/// Connects a member to a cluster in this process, which waits this long for other members.
pub(crate) async fn member(cluster: &str, join_timeout: Duration, detection: &str) -> CacheManager {
    let stack = parse_stack("server", &stack(join_timeout, detection), &Variables::new()).unwrap();
    CacheManager::from_channel(Channel::from_config(stack.config)).connect(cluster).await.unwrap()
}

pub(crate) struct RunningServer {
    pub(crate) at: std::net::SocketAddr,
    pub(crate) end: oneshot::Sender<()>,
    pub(crate) serving: JoinHandle<()>,
    /// The handle that replaces the users, if the server has users.
    pub(crate) users: Option<UsersHandle>,
}

impl RunningServer {
    /// Starts the first server of a cluster, which waits for no other.
    pub(crate) async fn start(cluster: &str) -> Self {
        Self::secured(cluster, Server::builder()).await
    }

    /// Starts the first server of a cluster with these settings.
    pub(crate) async fn secured(cluster: &str, builder: ServerBuilder) -> Self {
        Self::connect(cluster, Duration::from_millis(10), "", builder).await
    }

    /// Starts another server, which has to find the first.
    pub(crate) async fn join(cluster: &str) -> Self {
        Self::connect(cluster, PATIENCE / 4, "", Server::builder()).await
    }

    /// Starts two servers, one of which can be killed.
    pub(crate) async fn two(cluster: &str) -> [Self; 2] {
        let begin = |patience| Self::connect(cluster, patience, DETECTION, Server::builder());
        [begin(Duration::from_millis(10)).await, begin(PATIENCE / 4).await]
    }

    /// Starts three servers.
    pub(crate) async fn three(cluster: &str) -> [Self; 3] {
        let [first, second] = Self::two(cluster).await;
        [first, second, Self::connect(cluster, PATIENCE / 4, DETECTION, Server::builder()).await]
    }

    /// Ends the server at once, without a leave.
    pub(crate) async fn kill(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }

    /// Starts another server with these settings, which has to find the first.
    pub(crate) async fn joining(cluster: &str, builder: ServerBuilder) -> Self {
        Self::connect(cluster, PATIENCE / 4, "", builder).await
    }

    /// Returns the error of a server that does not start.
    pub(crate) async fn refused(cluster: &str, builder: ServerBuilder) -> ServerError {
        let started = Self::begin(cluster, PATIENCE / 4, "", builder).await;
        started.map(drop).expect_err("a server that does not start")
    }

    async fn begin(
        cluster: &str,
        join_timeout: Duration,
        detection: &str,
        builder: ServerBuilder,
    ) -> Result<Server, ServerError> {
        builder.port(0).start(member(cluster, join_timeout, detection).await).await
    }

    async fn connect(cluster: &str, join_timeout: Duration, detection: &str, builder: ServerBuilder) -> Self {
        let server = Self::begin(cluster, join_timeout, detection, builder).await.unwrap();
        let (at, users) = (server.address(), server.users());
        let (end, ends) = oneshot::channel::<()>();
        let ended = async move {
            let _ = ends.await;
        };
        let serving = tokio::spawn(async move { server.serve_until(ended).await.unwrap() });
        Self { at, end, serving, users }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.at).await
    }

    /// Starts a server with a cache of this name, and connects a client.
    pub(crate) async fn with_cache(cluster: &str, cache: &str) -> (Self, Client) {
        let running = Self::start(cluster).await;
        let mut client = running.client().await;
        client.create(cache).await;
        (running, client)
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    input: BytesMut,
    decoder: ResponseDecoder,
}

pub(crate) fn request(id: u64, cache: &str, body: RequestBody) -> Request {
    let header = RequestHeader { cache: cache.into(), ..RequestHeader::new(id, ProtocolVersion::V4_1) };
    Request { header, body }
}

impl Client {
    pub(crate) async fn connect(at: std::net::SocketAddr) -> Self {
        Self::by(TcpStream::connect(at).await.unwrap())
    }

    /// Returns a client on this socket.
    pub(crate) fn by(stream: TcpStream) -> Self {
        Self { stream, input: BytesMut::new(), decoder: ResponseDecoder::default() }
    }

    /// Creates a cache of this name.
    pub(crate) async fn create(&mut self, cache: &str) {
        let created = self.ask("", exec("@@cache@create", cache)).await;
        assert_eq!(created.status, Status::Success, "{created:?}");
    }

    pub(crate) async fn send(&mut self, requests: &[Request]) {
        let mut out = Output::new();
        requests.iter().for_each(|request| request.encode(&mut out));
        self.stream.write_all(&out.into_bytes()).await.unwrap();
    }

    /// Returns the next response, decoded for this request; `None` if the server closed the connection.
    pub(crate) async fn next(&mut self, asked: RequestContext) -> Option<Response> {
        self.next_of(|_| asked).await
    }

    /// Returns the next response, decoded for the request of its id.
    pub(crate) async fn next_of(&mut self, asked: impl Fn(u64) -> RequestContext) -> Option<Response> {
        match self.incoming(|id| Some(asked(id))).await? {
            Incoming::Response(response) => Some(response),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next response or event; `None` if the connection is closed or reset.
    pub(crate) async fn incoming(
        &mut self,
        asked: impl Fn(u64) -> Option<RequestContext>,
    ) -> Option<Incoming> {
        loop {
            if let Some(incoming) = self.decoder.decode(&mut self.input, &asked).unwrap() {
                return Some(incoming);
            }
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.input)).await.unwrap();
            if matches!(read, Ok(0) | Err(_)) {
                return None;
            }
        }
    }

    pub(crate) async fn ask(&mut self, cache: &str, body: RequestBody) -> Response {
        self.send_request(request(1, cache, body)).await
    }

    /// Sends a request unchanged. Returns its response.
    pub(crate) async fn send_request(&mut self, request: Request) -> Response {
        self.send(std::slice::from_ref(&request)).await;
        self.next(request.context()).await.expect("an answer")
    }

    /// Creates a cache with these settings.
    pub(crate) async fn create_with(&mut self, cache: &str, settings: &'static str) {
        let name = Bytes::copy_from_slice(cache.as_bytes());
        let params = vec![("name".into(), name), ("configuration".into(), settings.into())];
        let create = RequestBody::Task(task::Request::Exec("@@cache@create".into(), params));
        let created = self.ask("", create).await;
        assert_eq!(created.status, Status::Success, "{created:?}");
    }

    /// Sends these bytes. Returns the error response.
    pub(crate) async fn refused(&mut self, bytes: &[u8]) -> Option<Response> {
        self.stream.write_all(bytes).await.unwrap();
        let ping = request(0, "", RequestBody::Server(server::Request::Ping));
        let error = self.next(ping.context()).await;
        assert_eq!(self.next(ping.context()).await, None, "the connection stays open");
        error
    }
}

/// Returns a request for a task on a cache.
pub(crate) fn exec(task: &str, cache: &str) -> RequestBody {
    let params = vec![("name".into(), Bytes::copy_from_slice(cache.as_bytes()))];
    RequestBody::Task(task::Request::Exec(task.into(), params))
}

pub(crate) fn put(key: &'static str, value: impl Into<Bytes>) -> RequestBody {
    let assignment =
        map::Assignment { key: key.into(), expiration: Expiration::INFINITE, value: value.into() };
    RequestBody::Map(map::Request::Put(assignment))
}

pub(crate) fn get(key: &'static str) -> RequestBody {
    RequestBody::Map(map::Request::Get(key.into()))
}

/// Returns the text of an error response.
pub(crate) fn error(response: &Response) -> &str {
    match &response.body {
        ResponseBody::Error(text) => text.as_str(),
        other => panic!("{other:?}"),
    }
}
