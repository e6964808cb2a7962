//! A client in a JVM (`consort.bench.Recovery`) that counts its answers each millisecond.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use consort_procstat::recovery::{LOOK_INTERVAL, Samples};
use consort_testbed::{HotRodClient, Jar, JavaGrid};
use serde_json::Value;

use super::cluster::Product;
use super::{CALLERS, KEYS, READS, SIZE};
use crate::hotrod::PORT;
use crate::java::{HAZELCAST_OPENS, Jdk, Jvm, Jvms};
use crate::options::Options;

/// The rate before a kill is that of this time.
const CALM: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A JVM starts and receives its entries meanwhile.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(120);
/// The compilers of a JVM that has just started take a CPU.
const WARM_UP: Duration = Duration::from_secs(10);

const HAZELCAST_PORT: u16 = 5_701;

pub(super) struct JavaClient {
    jvm: Jvm,
    pub(super) version: String,
}

impl JavaClient {
    pub(super) fn start(
        product: Product,
        servers: usize,
        jar: &Jar,
        jdk: &Jdk,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let addresses = |first: u16, separator: &str| {
            let one = |nth| format!("127.0.0.1:{}", first + nth as u16);
            (0..servers).map(one).collect::<Vec<_>>().join(separator)
        };
        let (program, classpath, at) = if product == Product::Hazelcast {
            let classpath = JavaGrid::Hazelcast.classpath(jar);
            ("consort.grid.HazelcastRecovery", classpath, addresses(HAZELCAST_PORT, ","))
        } else {
            ("consort.served.HotRodRecovery", HotRodClient::prepare_load()?, addresses(PORT, ";"))
        };
        let jvms = Jvms { jdk, jar, classpath, heap: &options.java_heap, members: 1 };
        let mut properties = vec!["-Djava.net.preferIPv4Stack=true"];
        if product == Product::Hazelcast {
            properties.extend(HAZELCAST_OPENS);
        }
        let log = format!("failover-{}-{servers}.log", product.name());
        let mut jvm = Jvm::start(&jvms, &properties, &[program, &at], &log)?;
        let version = jvm.release()?;
        jvm.say(&format!("begin threads={CALLERS} keys={KEYS} size={SIZE} reads={READS}"))?;
        jvm.answer()?;
        Ok(Self { jvm, version })
    }

    pub(super) fn warm_up(&mut self, options: &Options) -> anyhow::Result<()> {
        std::thread::sleep(if options.quick { CALM } else { WARM_UP });
        self.new_samples().map(drop)
    }

    /// Waits until as many servers own their share, as the client knows. Hazelcast's backups may move for longer: its client cannot
    /// ask whether the cluster is safe.
    pub(super) fn settle(&mut self, servers: usize) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            self.jvm.say("servers")?;
            let owners = self.jvm.answer()?["servers"].as_u64().context("no number of servers")?;
            if owners == servers as u64 {
                break;
            }
            ensure!(begin.elapsed() < SETTLE_TIME_MAX, "only {owners} of {servers} servers own entries");
            std::thread::sleep(POLL_INTERVAL);
        }
        std::thread::sleep(CALM);
        Ok(())
    }

    /// Samples from the kill until the previous rate is reached, or the time is over.
    pub(super) fn sample_kill(&mut self, kill: impl FnOnce(), longest: Duration) -> anyhow::Result<Samples> {
        self.new_samples()?;
        std::thread::sleep(CALM);
        let calm = self.new_samples()?;
        let (first, last) = calm.first().zip(calm.last()).context("the client has no samples")?;
        ensure!(last.0 > first.0, "the client has one sample");
        let before = (last.1 - first.1) as f64 * 1e6 / (last.0 - first.0) as f64;
        self.jvm.say("now")?;
        let killed = self.jvm.answer()?["now_us"].as_u64().context("the client has no time")?;
        let begin = Instant::now();
        kill();
        let mut samples = Samples::new(before);
        while begin.elapsed() < longest {
            std::thread::sleep(LOOK_INTERVAL);
            for (at_us, answered) in self.new_samples()? {
                if let Some(after) = at_us.checked_sub(killed) {
                    samples.add(Duration::from_micros(after), answered);
                }
            }
            if samples.until_previous_rate().is_some() {
                break;
            }
        }
        Ok(samples)
    }

    pub(super) fn failed(&mut self) -> anyhow::Result<u64> {
        self.jvm.say("failed")?;
        self.jvm.answer()?["failed"].as_u64().context("no number of failures")
    }

    /// Microseconds of the client's monotonic clock, and the requests answered until then.
    fn new_samples(&mut self) -> anyhow::Result<Vec<(u64, u64)>> {
        self.jvm.say("samples")?;
        let answer = self.jvm.answer()?;
        let numbers = |name: &str| {
            let all =
                answer[name].as_array().with_context(|| format!("no {name} in an answer of a client"))?;
            Ok::<_, anyhow::Error>(all.iter().filter_map(Value::as_u64).collect::<Vec<_>>())
        };
        Ok(numbers("at_us")?.into_iter().zip(numbers("answered")?).collect())
    }
}
