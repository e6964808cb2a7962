//! Who comes before a server serves: it may have to wait for others of its cluster. What watches it in HTTP is answered, so that
//! it is not taken for dead and ended; clients wait until it serves.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::head::{Head, Method};
use super::health::Health;
use super::reply::{Code, Reply, TEXT};
use super::{Resource, begins_with, unreadable};
use crate::bounds::{ACCEPT_AGAIN_AFTER, CONNECTING_MAX, CREDENTIALS_BYTES_MAX, HTTP_LINGER_MAX};

/// Those that are here: as many as may wait to be accepted, and more wait for that.
const EARLY_MAX: usize = CONNECTING_MAX as usize;

/// Connections that have come before the server serves.
#[derive(Default)]
pub(crate) struct Early {
    /// Clients, and those that have said nothing yet.
    guests: Vec<Guest>,
    answering: JoinSet<()>,
}

struct Guest {
    stream: TcpStream,
    /// It has begun with what is no HTTP.
    is_client: bool,
}

impl Early {
    /// Receives whoever comes, until this is dropped. TLS tells nothing before the server takes part in it: where that is
    /// spoken, everybody waits.
    pub(crate) async fn attend(&mut self, listener: &TcpListener, has_tls: bool) -> Infallible {
        let Self { guests, answering } = self;
        loop {
            tokio::select! {
                accepted = listener.accept(), if guests.len() + answering.len() < EARLY_MAX => match accepted {
                    Ok((stream, _)) => guests.push(Guest { stream, is_client: has_tls }),
                    Err(error) => {
                        tracing::warn!(%error, "a client cannot be accepted");
                        sleep(ACCEPT_AGAIN_AFTER).await;
                    }
                },
                nth = poll_fn(|cx| poll_visitor(guests, cx)) => {
                    answering.spawn(attend_to(guests.swap_remove(nth).stream));
                }
                Some(_) = answering.join_next() => {}
            }
        }
    }

    /// Those that are to be served, once that is possible. Nothing has been read of them.
    pub(crate) fn into_guests(self) -> impl Iterator<Item = TcpStream> {
        self.guests.into_iter().map(|guest| guest.stream)
    }
}

/// Somebody who speaks HTTP, or has gone.
fn poll_visitor(guests: &mut [Guest], cx: &mut Context<'_>) -> Poll<usize> {
    for (nth, guest) in guests.iter_mut().enumerate().filter(|(_, guest)| !guest.is_client) {
        let mut first = [0];
        match guest.stream.poll_peek(cx, &mut ReadBuf::new(&mut first)) {
            Poll::Ready(Ok(1..)) if !begins_with(first[0]) => guest.is_client = true,
            Poll::Ready(_) => return Poll::Ready(nth),
            Poll::Pending => {}
        }
    }
    Poll::Pending
}

/// Answers one request, which takes no longer than it may.
async fn attend_to(mut stream: TcpStream) {
    if let Ok(Err(error)) = timeout(HTTP_LINGER_MAX, answer(&mut stream)).await {
        tracing::debug!(%error, "a connection in HTTP has ended");
    }
}

async fn answer(stream: &mut TcpStream) -> io::Result<()> {
    let mut input = BytesMut::new();
    let (reply, with_content) = loop {
        match Head::read(&input) {
            Ok(Some((head, _))) => break (reply(&head), head.method != Method::Head),
            Ok(None) if input.len() > CREDENTIALS_BYTES_MAX => return Ok(()),
            Ok(None) => {
                if stream.read_buf(&mut input).await? == 0 {
                    return Ok(());
                }
            }
            Err(wrong) => break (unreadable(wrong), true),
        }
    };
    stream.write_all(&reply.into_bytes(with_content, true)).await?;
    stream.shutdown().await?;
    // With something unread the connection would be reset, and the answer might not arrive.
    while stream.read(&mut [0; 512]).await? > 0 {}
    Ok(())
}

fn reply(head: &Head) -> Reply {
    if head.method == Method::Other {
        return super::only_read();
    }
    match Resource::at(&head.path) {
        None => super::unknown(),
        Some(Resource::Live) => Reply::text(Code::Ok, "live"),
        Some(Resource::Status) => Reply::new(Code::Ok, TEXT, Health::Initializing.name()),
        Some(Resource::Ready) => Reply::text(Code::Unavailable, Health::Initializing.name()),
        Some(Resource::Started | Resource::Detail | Resource::Metrics) => {
            Reply::text(Code::Unavailable, "not serving yet: the server's log says what it waits for")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    async fn asked(at: SocketAddr, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn who_watches_is_answered_and_clients_wait_with_what_they_have_said() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut early = Early::default();
        let coming = async {
            let mut client = TcpStream::connect(at).await.unwrap();
            client.write_all(&[0xa0, 1, 40, 0x17]).await.unwrap();
            let silent = TcpStream::connect(at).await.unwrap();
            drop(TcpStream::connect(at).await.unwrap());
            for (path, code) in [
                ("/health/live", "200 OK"),
                ("/health/ready", "503 Service Unavailable"),
                ("/health/started", "503 Service Unavailable"),
                ("/rest/v2/container/health/status", "200 OK"),
                ("/metrics", "503 Service Unavailable"),
                ("/nothing", "404 Not Found"),
            ] {
                let answer = asked(at, "GET", path).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {code}\r\n")), "{path}: {answer}");
            }
            assert!(asked(at, "GET", "/health").await.ends_with("\r\n\r\nINITIALIZING"));
            assert!(
                asked(at, "HEAD", "/health").await.ends_with("\r\n\r\n"),
                "its content was not asked for"
            );
            assert!(asked(at, "POST", "/health").await.starts_with("HTTP/1.1 405 "));
            let wrong = asked(at, "GET", "no path").await;
            assert!(wrong.starts_with("HTTP/1.1 505 "), "{wrong}");
            (client, silent)
        };
        let (client, silent) = tokio::select! {
            clients = coming => clients,
            never = early.attend(&listener, false) => match never {},
        };
        let mut guests: Vec<TcpStream> = early.into_guests().collect();
        let of = |client: &TcpStream| client.local_addr().unwrap();
        assert!(guests.iter().any(|guest| guest.peer_addr().unwrap() == of(&silent)));
        let at = guests.iter().position(|guest| guest.peer_addr().is_ok_and(|peer| peer == of(&client)));
        let mut said = [0; 4];
        guests[at.expect("it is there")].read_exact(&mut said).await.unwrap();
        assert_eq!(said, [0xa0, 1, 40, 0x17]);
    }
}
