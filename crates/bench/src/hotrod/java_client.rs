//! The official Java Hot Rod client.

use std::path::Path;

use anyhow::Context;
use consort_procstat::process;
use consort_testbed::Jar;

use super::server_process::ServerProcess;
use super::{KEYS, READS, SIZE};
use crate::java::{Jdk, Jvm, Jvms, add_latencies, histogram};
use crate::options::Options;
use crate::sample::{Both, Latency, Sample};
use crate::session::warm_up;

pub(super) struct JavaClient {
    jvm: Jvm,
    server: u32,
    pub(super) version: String,
}

impl JavaClient {
    pub(super) fn start(
        (directory, classpath): (&Path, &str),
        jdk: &Jdk,
        server: &ServerProcess,
        options: &Options,
    ) -> anyhow::Result<Self> {
        let (jar, heap) = (Jar::in_directory(directory), &options.java_heap);
        let jvms = Jvms { jdk, jar: &jar, classpath: classpath.to_owned(), heap, members: 1 };
        let at = server.at();
        let log = format!("hotrod-{}.log", at.replace(':', "-"));
        let properties = ["-Djava.net.preferIPv4Stack=true"];
        let mut jvm = Jvm::start(&jvms, &properties, &["consort.served.Load", &at], &log)?;
        let version = jvm.release()?;
        jvm.say(&format!("populate keys={KEYS} size={SIZE}"))?;
        let answer = jvm.answer()?;
        anyhow::ensure!(answer["size"] == KEYS, "{} of {KEYS} keys were put", answer["size"]);
        Ok(Self { jvm, server: server.pid(), version })
    }

    pub(super) fn warm_up(&mut self, threads: usize, options: &Options) -> anyhow::Result<Vec<f64>> {
        warm_up(options, || Ok(self.run(threads, options)?.server.rate))
    }

    pub(super) fn run(&mut self, threads: usize, options: &Options) -> anyhow::Result<Both> {
        self.jvm.say(&format!(
            "run threads={threads} keys={KEYS} size={SIZE} reads={READS} server={} warmup_ms={} time_ms={}",
            self.server,
            options.lead().as_millis(),
            options.time().as_millis()
        ))?;
        let answer = self.jvm.answer()?;
        let number = |name: &str| {
            answer[name].as_f64().with_context(|| format!("no {name} in an answer of the Java client"))
        };
        let operations = number("operations")?;
        anyhow::ensure!(operations > 0.0, "the Java client did nothing");
        let mut latencies = histogram();
        add_latencies(&answer, &mut latencies)?;
        Ok(Both {
            server: Sample {
                rate: operations / number("seconds")?,
                cpu_us: number("server_cpu_s")? * 1e6 / operations,
                latency: Some(Latency::of(&latencies)),
                rss_mb: process::peak_memory_mb_of(self.server),
                errors: number("errors")? as u64,
            },
            client_cpu_us: number("cpu_s")? * 1e6 / operations,
        })
    }
}
