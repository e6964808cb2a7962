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

const SIZE: usize = 1_000;

const KEYS: u32 = 10_000;

const READS: f64 = 0.8;

pub(crate) const PORT: u16 = 11_222;

pub(crate) fn prepare() -> Result<(InfinispanServer, String), JarError> {
    Ok((InfinispanServer::prepare()?, HotRodClient::prepare_load()?))
}

#[derive(Default, Serialize)]
struct Pairs {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warmup: Vec<f64>,
    samples: Vec<Both>,
}

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

    fn push(&mut self, both: Both) {
        shown(both.server.clone());
        self.samples.push(both);
    }
}

fn own_client(server: &ServerProcess, callers: usize, options: &Options) -> anyhow::Result<Both> {
    let (at, pids) = (server.at(), [server.pid()]);
    let load =
        Calling { at: &at, pids: &pids, clients: 1, callers, is_pooled: false, keys: KEYS, reads: READS };
    tools::calling(&load, options)
}
