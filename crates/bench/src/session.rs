//! JVMs are warmed up, then runs of all contestants alternate.

use std::time::{Duration, Instant};

use consort_testbed::Jar;

use crate::java::{self, JavaCluster, Jdk, Jvms};
use crate::options::{Options, Threads};
use crate::plan::{Group, Load, groups};
use crate::progress::Progress;
use crate::record::{Point, Record};
use crate::results::Outcome;
use crate::sample::{Sample, Samples};
use crate::{report, targets, tools};

pub(crate) const CONSORT_OVERHEAD: Duration = Duration::from_secs(3);
const JAVA_START: Duration = Duration::from_secs(12);

const NEW_BEST: f64 = 1.03;

const FLAT_SLICES: usize = 3;

pub(crate) struct Session<'a> {
    options: &'a Options,
    groups: Vec<Group>,
    java: Option<(Jar, Jdk)>,
    progress: Progress,
}

impl<'a> Session<'a> {
    pub(crate) fn new(options: &'a Options, jar: Option<Jar>) -> anyhow::Result<Self> {
        let java = jar.map(|jar| java::find().map(|jdk| (jar, jdk))).transpose()?;
        let mut session =
            Self { options, groups: groups(options), java, progress: Progress::new(Duration::ZERO) };
        let total = session.groups.iter().map(|group| session.planned(group)).sum();
        session.progress = Progress::new(total);
        Ok(session)
    }

    /// Calls `keep` with all results so far after each group. A failure does not stop the following groups.
    pub(crate) fn run(mut self, mut keep: impl FnMut(&Record)) -> Outcome {
        if let Some((_, jdk)) = &self.java {
            eprintln!("JGroups runs on the JDK {} in {}", jdk.version, jdk.java.display());
        }
        let mut record = Record {
            java: None,
            members: self.options.members,
            runs: self.options.runs(),
            seconds: self.options.time().as_secs_f64(),
            quick: self.options.quick,
            points: Vec::new(),
        };
        let mut failures = Vec::new();
        for group in std::mem::take(&mut self.groups) {
            if let Err(error) = self.group(&group, &mut record) {
                failures.push(error.context(format!("{} over {}", group.test, group.config)));
            }
            keep(&record);
        }
        report::print(&record);
        let rows = targets::rows(&record.points);
        report::print_rows(&rows);
        Outcome {
            rows,
            errors: record.points.iter().map(Point::errors).sum(),
            failures,
            ..Outcome::default()
        }
    }

    fn group(&mut self, group: &Group, record: &mut Record) -> anyhow::Result<()> {
        let mut cluster = None;
        if let Some((jar, jdk)) = self.java.as_ref().filter(|_| group.with_java) {
            self.progress.step(&format!(
                "starting {} JVMs, {} over {}",
                self.options.members, group.test, group.config
            ));
            let jvms = Jvms {
                jdk,
                jar,
                classpath: jar.classpath(),
                heap: &self.options.java_heap,
                members: self.options.members,
            };
            let started = JavaCluster::start(&jvms, group.test, &group.config)?;
            record.java = Some(started.version.clone());
            cluster = Some(started);
            self.progress.finish(JAVA_START);
        }
        for load in &group.loads {
            let mut point =
                Point { load: load.clone(), consort: Samples::default(), jgroups: None, sockets: None };
            let measured = self.load(group, cluster.as_mut(), &mut point);
            // The measurements so far, if the load did not complete.
            if !point.consort.samples.is_empty() {
                record.points.push(point);
            }
            measured?;
        }
        Ok(())
    }

    fn load(
        &mut self,
        group: &Group,
        mut cluster: Option<&mut JavaCluster>,
        point: &mut Point,
    ) -> anyhow::Result<()> {
        let load = &point.load;
        if let Some(cluster) = cluster.as_deref_mut() {
            let jgroups = point.jgroups.insert(Samples::default());
            if !self.options.quick {
                self.progress.step(&format!("{}: JGroups warms up", load.name()));
                let slice = self.slice(load, self.options.time());
                jgroups.warmup = warm_up(self.options, || Ok(cluster.run(&slice)?.rate))?;
                self.progress.finish(self.planned_warmup());
            }
        }
        if group.with_sockets {
            point.sockets = Some(Samples::default());
        }
        for run in 1..=self.options.runs() {
            let runs = self.options.runs();
            let name = load.name();
            self.progress.step(&format!("{name}: Consort, run {run} of {runs}"));
            let sample = tools::consort(load, self.options.members, self.options, &[])?;
            point.consort.samples.push(shown(sample));
            self.progress.finish(self.planned_sample() + CONSORT_OVERHEAD);
            if let Some((cluster, jgroups)) = cluster.as_deref_mut().zip(point.jgroups.as_mut()) {
                self.progress.step(&format!("{name}: JGroups, run {run} of {runs}"));
                jgroups.samples.push(shown(cluster.run(&self.slice(load, self.options.time()))?));
                self.progress.finish(self.planned_sample());
            }
            if let Some(sockets) = point.sockets.as_mut() {
                self.progress.step(&format!("{name}: bare sockets, run {run} of {runs}"));
                sockets.samples.push(shown(tools::bare_sockets(load, self.options)?));
                self.progress.finish(self.planned_sample());
            }
        }
        Ok(())
    }

    fn slice(&self, load: &Load, time: Duration) -> String {
        let options = self.options;
        let times = format!("warmup_ms={} time_ms={}", options.lead().as_millis(), time.as_millis());
        match load {
            Load::Uperf { callers, java_threads } => format!(
                "run threads={callers} size=1000 virtual={} oob={} {times}",
                *java_threads == Some(Threads::Virtual),
                options.oob
            ),
            Load::Mperf { size, .. } => format!("run threads={} size={size} {times}", options.senders),
        }
    }

    fn planned_sample(&self) -> Duration {
        self.options.lead() + self.options.time()
    }

    /// Two thirds of the longest warm-up, by experience.
    fn planned_warmup(&self) -> Duration {
        let slice = self.planned_sample();
        if self.options.quick {
            slice
        } else {
            slice.max(Duration::from_secs_f64(self.options.java_warmup * 0.67))
        }
    }

    fn planned(&self, group: &Group) -> Duration {
        let (with_java, with_sockets) = (self.java.is_some() && group.with_java, group.with_sockets);
        let contestants = 1 + u32::from(with_java) + u32::from(with_sockets);
        let run = self.planned_sample() * contestants + CONSORT_OVERHEAD;
        let warmup = if with_java { self.planned_warmup() } else { Duration::ZERO };
        let load = run * self.options.runs() as u32 + warmup;
        load * group.loads.len() as u32 + if with_java { JAVA_START } else { Duration::ZERO }
    }
}

pub(crate) fn warm_up(
    options: &Options,
    mut slice: impl FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<f64>> {
    let (begun, longest) = (Instant::now(), Duration::from_secs_f64(options.java_warmup.max(0.0)));
    let (mut rates, mut best, mut flat) = (Vec::new(), 0.0, 0);
    loop {
        let rate = slice()?;
        rates.push(rate.round());
        flat = if rate > best * NEW_BEST { 0 } else { flat + 1 };
        best = rate.max(best);
        if flat >= FLAT_SLICES || begun.elapsed() >= longest {
            let text: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
            Progress::result(&format!("{} a second and member", text.join(", ")));
            return Ok(rates);
        }
    }
}

pub(crate) fn shown(sample: Sample) -> Sample {
    let latency =
        sample.latency.map_or_else(String::new, |latency| format!(", p99.9 {:.0} us", latency.p999));
    let errors = if sample.errors == 0 { String::new() } else { format!(", {} ERRORS", sample.errors) };
    Progress::result(&format!(
        "{:.0} a second and member, CPU {:.2} us each{latency}, {:.0} MB{errors}",
        sample.rate, sample.cpu_us, sample.rss_mb
    ));
    sample
}
