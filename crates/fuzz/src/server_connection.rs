use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use consort_cache::{CacheManager, Channel};
use consort_conf::{Variables, parse_stack};
use consort_server::{Budget, Server};

use crate::seen::Seen;
use crate::{hotrod, server};

/// One member, which does not search for others.
const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
                     <GMS join_timeout=\"10\"/><UFC/><MFC/><FRAG4/></config>";

/// The budget for memory that clients make a server hold.
const MEMORY: u64 = 256 * 1024 * 1024;

/// The server closes a connection this soon after its client has closed its half.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(30);

/// Response bytes for a connection, and for each byte of its requests: a few bytes ask for all metrics or for the definition of a
/// cache.
const OUT: (usize, usize) = (64 * 1024, 2048);

const PING: &[u8] = b"\xa0\x01\x1e\x17\x00\x00\x01\x00\x00\x00";

static PANICS: AtomicU64 = AtomicU64::new(0);

/// The server starts with the first input and ends with the process.
fn address() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(panic);
        }));
        let (started, starts) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let stack = parse_stack("fuzz", STACK, &Variables::new()).expect("a stack");
                let manager = CacheManager::from_channel(Channel::from_config(stack.config));
                let manager = manager.connect("fuzz").await.expect("a cluster of one");
                let budget = Budget::new("process", MEMORY);
                let server = Server::builder().port(0).memory(budget).start(manager).await.expect("a server");
                started.send(server.address()).expect("it is waited for");
                server.serve_until(std::future::pending::<()>()).await.expect("it serves");
            });
        });
        starts.recv().expect("a server")
    })
}

/// Requests of Hot Rod, alone and several on one connection, requests in HTTP, and a beginning of TLS.
pub(crate) fn connections() -> Vec<Vec<u8>> {
    let mut all = hotrod::requests();
    let pipelined: Vec<u8> = all.iter().step_by(7).take(20).flatten().copied().collect();
    all.push(pipelined);
    all.push(PING.repeat(100));
    all.extend(server::requests());
    all.push(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03".to_vec());
    all
}

/// Panics if the server does not close the connection in time.
fn exchange(bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address()).expect("the server accepts");
    stream.set_read_timeout(Some(CLOSE_TIME_MAX)).expect("a socket");
    stream.set_write_timeout(Some(CLOSE_TIME_MAX)).expect("a socket");
    let cut = bytes.len() / 2;
    // The server may have closed the connection because of the first part.
    let is_sent = stream.write_all(&bytes[..cut]).and_then(|()| stream.write_all(&bytes[cut..]));
    let is_shut = is_sent.and_then(|()| stream.shutdown(Shutdown::Write));
    let mut responses = Vec::new();
    match stream.read_to_end(&mut responses) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the server neither answers nor closes: {} bytes came, {is_shut:?}", responses.len());
        }
        _ => responses,
    }
}

/// The server answers, closes the connection and goes on serving others, without a panic.
pub(crate) fn connection(bytes: &[u8]) -> Seen {
    address();
    let panics = PANICS.load(Ordering::Relaxed);
    let responses = exchange(bytes);
    let limit = OUT.0 + OUT.1 * bytes.len();
    assert!(responses.len() <= limit, "{} bytes of response to {}", responses.len(), bytes.len());
    let ping = exchange(PING);
    assert!(ping.starts_with(b"\xa1\x01\x18\x00"), "a ping was answered {ping:02x?}");
    assert_eq!(PANICS.load(Ordering::Relaxed), panics, "a task of the server panicked");
    Seen::one(!responses.is_empty(), 0)
}
