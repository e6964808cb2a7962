//! Unauthenticated clients, and the resources that they use.

use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_hotrod::ops::server;
use consort_hotrod::{RequestBody, Status};
use consort_server::limits::{CREDENTIALS_BYTES_MAX, PREAUTH_BYTES_MAX};
use consort_server::{Role, Server, Users, line_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::authentication::{refusal, users};
use crate::client::{Client, PATIENCE, RunningServer, get, put};

/// Reads until the server closes the connection.
async fn closed(mut stream: TcpStream) {
    let mut sink = Vec::new();
    // Unread input on the server's side causes a reset here.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut sink)).await.expect("it is closed");
}

/// Returns the beginning of AUTH with PLAIN and a message of this many bytes.
fn auth_of(length: usize) -> Vec<u8> {
    let mut bytes = b"\xa0\x01\x1f\x23\x00\x00\x01\x00\x00\x00\x05PLAIN".to_vec();
    let mut rest = length;
    while rest >= 0x80 {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

#[tokio::test]
async fn unauthenticated_connection_ends_after_its_timeout() {
    let patience = Duration::from_millis(400);
    let server = RunningServer::secured("patience", users().handshake_timeout(patience)).await;
    let begun = Instant::now();
    // One client sends nothing, one a half request, one begins an authentication, and one only sends pings.
    let silent = server.client().await.stream;
    let mut half = server.client().await.stream;
    half.write_all(b"\xa0\x01\x1f").await.unwrap();
    let mut begins = server.client().await;
    let response = begins.auth("SCRAM-SHA-256", &b"n,,n=alice,r=abc"[..]).await;
    assert_eq!(response.status, Status::Success);
    let mut pings = server.client().await;
    let pinging = async {
        let ping = crate::client::request(1, "", RequestBody::Server(server::Request::Ping));
        loop {
            let mut out = consort_hotrod::Output::new();
            ping.encode(&mut out);
            if pings.stream.write_all(&out.into_bytes()).await.is_err()
                || pings.next(ping.context()).await.is_none()
            {
                break;
            }
        }
    };
    timeout(PATIENCE, async { tokio::join!(closed(silent), closed(half), closed(begins.stream), pinging) })
        .await
        .expect("they are closed");
    assert!(begun.elapsed() >= patience);
    // An authenticated client may be silent for longer.
    let mut alice = server.client().await;
    assert_eq!(alice.plain("alice", "wonderland").await.status, Status::Success);
    let begun = Instant::now();
    closed(server.client().await.stream).await;
    assert!(begun.elapsed() >= patience);
    assert_eq!(alice.ask("", RequestBody::Server(server::Request::Ping)).await.status, Status::Success);
}

/// The client would occupy the thread, and its timeout would never be checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_client_that_sends_without_pause_does_not_delay_others() {
    let patience = Duration::from_millis(400);
    let server = RunningServer::secured("sender", users().handshake_timeout(patience)).await;
    let mut sender = server.client().await.stream;
    let asking = tokio::spawn(async move {
        let ping = crate::client::request(1, "", RequestBody::Server(server::Request::Ping));
        let mut out = consort_hotrod::Output::new();
        (0..1_000).for_each(|_| ping.encode(&mut out));
        let pings = out.into_bytes();
        let (mut from, mut to) = sender.split();
        let mut sink = tokio::io::sink();
        // Until the server closes the connection, which is a reset if input was unread.
        let writing = async { while to.write_all(&pings).await.is_ok() {} };
        tokio::select! {
            () = writing => {}
            _ = tokio::io::copy(&mut from, &mut sink) => {}
        }
    });
    let mut alice = server.client().await;
    assert_eq!(alice.plain("alice", "wonderland").await.status, Status::Success);
    timeout(PATIENCE, asking).await.expect("it is turned away").unwrap();
}

#[tokio::test]
async fn request_of_an_unauthenticated_client_is_bounded() {
    let server = RunningServer::secured("small", users()).await;
    for length in [CREDENTIALS_BYTES_MAX, PREAUTH_BYTES_MAX, 1 << 30] {
        let error = server.client().await.refused(&auth_of(length)).await.expect("an error");
        assert_eq!(error.status, Status::ParseError, "{length}");
    }
    // A long cache name, and a large count of other parameters.
    for bytes in [
        &b"\xa0\x01\x29\x17\xff\xff\xff\xff\x07"[..],
        b"\xa0\x01\x29\x17\x00\x00\x01\x00\x00\x00\xff\xff\x7f",
    ] {
        let error = server.client().await.refused(bytes).await.expect("an error");
        assert_eq!(error.status, Status::ParseError);
    }
    // An authenticated client may send larger requests.
    let mut admin = server.client().await;
    admin.plain("admin", "admin").await;
    admin.create("c").await;
    let large = Bytes::from(vec![7; 4 * PREAUTH_BYTES_MAX]);
    assert_eq!(admin.ask("c", put("large", large)).await.status, Status::Success);
}

/// Returns the resident memory of this process (Linux).
fn resident_bytes() -> usize {
    let table = std::fs::read_to_string("/proc/self/statm").unwrap();
    table.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn unauthenticated_connection_holds_at_most_64_kib() {
    const CLIENTS: usize = 400;
    let server = RunningServer::secured("held", users().handshake_timeout(PATIENCE)).await;
    let mut message = auth_of(CREDENTIALS_BYTES_MAX - 64);
    message.resize(CREDENTIALS_BYTES_MAX - 64, 0);
    let mut clients = Vec::new();
    let before = resident_bytes();
    for _ in 0..CLIENTS {
        let mut client = server.client().await;
        // An incomplete request after an answered one, so that the server has read it.
        client.ask("", RequestBody::Server(server::Request::Ping)).await;
        client.stream.write_all(&message).await.unwrap();
        clients.push(client);
    }
    // Other clients are served meanwhile, and after the incomplete requests were received.
    let mut admin = server.client().await;
    admin.plain("admin", "admin").await;
    admin.create("c").await;
    assert_eq!(admin.ask("c", put("k", "v")).await.status, Status::Success);
    let held = resident_bytes().saturating_sub(before) / CLIENTS;
    assert!(held <= PREAUTH_BYTES_MAX, "{held} bytes each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessed_passwords_do_not_delay_other_clients() {
    const GUESSING: usize = 32;
    const READS: usize = 20_000;
    // The verifiers have production cost.
    let line = line_for("alice", &[Role::Admin], Some("wonderland")).unwrap();
    let builder = Server::builder().users(Users::parse("users", &line).unwrap()).allow_cleartext();
    let server = RunningServer::secured("guesses", builder).await;
    let mut alice = server.client().await;
    alice.plain("alice", "wonderland").await;
    alice.create("c").await;
    alice.ask("c", put("k", "v")).await;
    let quiet = reads(&mut alice, READS).await;
    let at = server.at;
    let mut guesses = tokio::task::JoinSet::new();
    for n in 0..GUESSING {
        guesses.spawn(async move {
            let name = if n % 2 == 0 { "alice" } else { "nobody" };
            loop {
                let mut client = Client::connect(at).await;
                refusal(&client.plain(name, "guess").await);
            }
        });
    }
    let disturbed = reads(&mut alice, READS).await;
    guesses.shutdown().await;
    println!("p50 and p99 without guesses {quiet:?}, with them {disturbed:?}");
    // Hashing a password takes tens of milliseconds, and never blocks this client.
    assert!(disturbed[1] < Duration::from_millis(250), "{disturbed:?} after {quiet:?}");
}

/// Reads sequentially. Returns the 50th and the 99th percentile of the latency.
async fn reads(client: &mut Client, count: usize) -> [Duration; 2] {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        assert_eq!(client.ask("c", get("k")).await.status, Status::Success);
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    [times[count / 2], times[count * 99 / 100]]
}
