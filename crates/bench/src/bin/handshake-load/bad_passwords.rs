use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::BytesMut;
use clap::Args;
use consort_hotrod::ops::auth;
use consort_hotrod::{
    Incoming, Output, ProtocolVersion, Request, RequestBody, RequestHeader, Response, ResponseBody,
    ResponseDecoder, Status,
};
use consort_sasl::scram::{self, Hash, Keys};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::SetOnce;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::{Ending, connect, ready};

const HASH: Hash = Hash::Sha512;
const PASSWORD: &str = "a wrong one";

#[derive(Args)]
pub(crate) struct BadPasswords {
    /// The user of every other guess; the other guesses name users that do not exist.
    #[arg(long)]
    user: String,
    /// Connections that guess by SCRAM-SHA-512.
    #[arg(long, default_value_t = 16)]
    scram: usize,
    /// Connections that guess by PLAIN, each as fast as the server responds.
    #[arg(long, default_value_t = 16)]
    plain: usize,
    /// Guesses per second by SCRAM; by default as fast as the server responds.
    #[arg(long)]
    rate: Option<f64>,
}

struct Shared {
    server: SocketAddr,
    begun: Instant,
    rate: Option<f64>,
    turns: AtomicU64,
    scram: Refused,
    plain: Refused,
    connections: AtomicU64,
}

#[derive(Default)]
struct Refused {
    count: AtomicU64,
    first: SetOnce<()>,
}

impl Refused {
    fn one(&self) {
        self.count.fetch_add(1, Relaxed);
        let _ = self.first.set(());
    }
}

impl BadPasswords {
    pub(crate) async fn run(self, server: SocketAddr, mut ending: Ending) -> anyhow::Result<Value> {
        let shared = Arc::new(Shared {
            server,
            begun: Instant::now(),
            rate: self.rate,
            turns: AtomicU64::new(0),
            scram: Refused::default(),
            plain: Refused::default(),
            connections: AtomicU64::new(0),
        });
        let mut guessing = JoinSet::new();
        for nth in 0..self.scram + self.plain {
            let name = if nth % 2 == 0 { self.user.clone() } else { format!("nobody-{nth}") };
            guessing.spawn(guess(shared.clone(), name, nth < self.scram));
        }
        // The guessing tasks may have no free CPU for a while, and each derives keys before its first guess.
        let all_have_begun = async {
            for (connections, refused) in [(self.scram, &shared.scram), (self.plain, &shared.plain)] {
                if connections > 0 {
                    refused.first.wait().await;
                }
            }
        };
        tokio::select! {
            () = all_have_begun => {}
            Some(ended) = guessing.join_next() => ended??,
        }
        ready()?;
        tokio::select! {
            _ = ending.wait_for(|is_over| *is_over) => {}
            // A guessing task ends only with a result that must not occur.
            Some(ended) = guessing.join_next() => ended??,
        }
        let seconds = shared.begun.elapsed().as_secs_f64();
        let each = |count: &AtomicU64| count.load(Relaxed) as f64 / seconds;
        Ok(json!({
            "scram_sec": each(&shared.scram.count),
            "plain_sec": each(&shared.plain.count),
            "connections_sec": each(&shared.connections),
        }))
    }
}

async fn guess(shared: Arc<Shared>, name: String, by_scram: bool) -> anyhow::Result<()> {
    // Deriving keys is the cost of a guess. It is done once for a password, because the server is under test.
    let mut keys = None;
    // A turn on a connection that the server had closed is repeated.
    let mut has_turn = false;
    loop {
        shared.connections.fetch_add(1, Relaxed);
        let mut line = Line::to(shared.server).await?;
        loop {
            if by_scram && !std::mem::replace(&mut has_turn, true) {
                shared.wait().await;
            }
            let answer = if by_scram {
                line.scram(&name, &mut keys).await?
            } else {
                line.auth("PLAIN", format!("\0{name}\0{PASSWORD}").into_bytes()).await?
            };
            match answer {
                None => break,
                Some(Response { status: Status::ServerError, .. }) => {
                    has_turn = false;
                    if by_scram { &shared.scram } else { &shared.plain }.one();
                }
                Some(other) => bail!("a wrong password is answered by {other:?}"),
            }
        }
    }
}

impl Shared {
    async fn wait(&self) {
        let Some(rate) = self.rate else { return };
        let turn = self.turns.fetch_add(1, Relaxed) as f64;
        sleep_until((self.begun + Duration::from_secs_f64(turn / rate)).into()).await;
    }
}

struct Line {
    stream: TcpStream,
    input: BytesMut,
    decoder: ResponseDecoder,
}

impl Line {
    async fn to(server: SocketAddr) -> anyhow::Result<Self> {
        let stream = connect(server).await.context("connecting")?;
        Ok(Self { stream, input: BytesMut::new(), decoder: ResponseDecoder::default() })
    }

    /// `None` if the server has closed the connection.
    async fn auth(&mut self, mechanism: &str, message: Vec<u8>) -> anyhow::Result<Option<Response>> {
        let body = RequestBody::Auth(auth::Request::Step(mechanism.into(), message.into()));
        let request = Request { header: RequestHeader::new(1, ProtocolVersion::V4_1), body };
        let mut output = Output::new();
        request.encode(&mut output);
        if self.stream.write_all(&output.into_bytes()).await.is_err() {
            return Ok(None);
        }
        loop {
            match self.decoder.decode(&mut self.input, |_| Some(request.context()))? {
                Some(Incoming::Response(response)) => return Ok(Some(response)),
                Some(other) => bail!("unexpected {other:?}"),
                None => {}
            }
            if matches!(self.stream.read_buf(&mut self.input).await, Ok(0) | Err(_)) {
                return Ok(None);
            }
        }
    }

    /// Salts and iterations of a name are always the same.
    async fn scram(&mut self, name: &str, keys: &mut Option<Keys>) -> anyhow::Result<Option<Response>> {
        let (first, message) = scram::client::First::begin(HASH, name, "guess");
        let Some(answer) = self.auth(HASH.mechanism(), message).await? else { return Ok(None) };
        let ResponseBody::Auth(auth::Response::Challenge(challenge)) = &answer.body else {
            bail!("no challenge: {answer:?}");
        };
        let challenged = first.challenged(challenge)?;
        let keys = keys
            .get_or_insert_with(|| Keys::derive(HASH, PASSWORD, challenged.salt(), challenged.iterations()));
        let (_, message) = challenged.prove(keys);
        self.auth("", message).await
    }
}
