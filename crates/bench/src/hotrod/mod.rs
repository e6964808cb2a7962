//! Our Hot Rod server and client: beside Infinispan's server under the same Java client, beside a bare socket, beside
//! redis-server, with many connections, with large values, beside unauthenticated clients, and beside clients with connection
//! pools.

mod hostile;
mod idle;
mod java_client;
mod pool;
mod redis;
mod server;
mod server_process;
mod streams;

pub(crate) use self::hostile::hostile;
pub(crate) use self::idle::{PING, PONG, check, idle};
pub(crate) use self::pool::pool;
pub(crate) use self::server::server;
pub(crate) use self::streams::streams;

use consort_testbed::{HotRodClient, InfinispanServer, JarError};
use serde::Serialize;

pub(crate) use self::server_process::ServerProcess;
use crate::options::Options;
use crate::sample::{Both, Runs};
use crate::session::shown;
use crate::tools::{self, Calling};

/// Bytes of a value.
const SIZE: usize = 1_000;

/// Keys that are read and written.
const KEYS: u32 = 10_000;

/// The part of the requests that read.
const READS: f64 = 0.8;

/// The port of our first server.
const PORT: u16 = 11_222;

/// Fetches and compiles the Java parts: Infinispan's server, and the class path of its client.
pub(crate) fn prepare() -> Result<(InfinispanServer, String), JarError> {
    Ok((InfinispanServer::prepare()?, HotRodClient::prepare_load()?))
}

/// Several runs of a client and its servers.
#[derive(Default, Serialize)]
struct Pairs {
    /// Requests per second while JVMs warmed up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warmup: Vec<f64>,
    samples: Vec<Both>,
}

/// A figure of one run.
type Figure = fn(&Both) -> Option<f64>;

const RATE: Figure = |both| Some(both.server.rate);
const SERVER_CPU_US: Figure = |both| Some(both.server.cpu_us);
const CLIENT_CPU_US: Figure = |both| Some(both.client_cpu_us);
const SYSTEM_CPU_US: Figure = |both| Some(both.system_cpu_us());
const MEMORY: Figure = |both| Some(both.server.rss_mb);
const P50: Figure = |both| Some(both.server.latency?.p50);
const P99: Figure = |both| Some(both.server.latency?.p99);
const P999: Figure = |both| Some(both.server.latency?.p999);

impl Pairs {
    fn runs(&self, of: Figure) -> Runs {
        Runs(self.samples.iter().filter_map(of).collect())
    }

    fn errors(&self) -> u64 {
        self.samples.iter().map(|both| both.server.errors).sum()
    }

    /// Prints one more run, and keeps it.
    fn push(&mut self, both: Both) {
        shown(both.server.clone());
        self.samples.push(both);
    }
}

/// Runs our client with `callers` callers on one connection, at one server.
fn own_client(server: &ServerProcess, callers: usize, options: &Options) -> anyhow::Result<Both> {
    let (at, pids) = (server.at(), [server.pid()]);
    let load =
        Calling { at: &at, pids: &pids, clients: 1, callers, is_pooled: false, keys: KEYS, reads: READS };
    tools::calling(&load, options)
}
