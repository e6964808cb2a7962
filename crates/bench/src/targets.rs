use serde::Serialize;

use crate::options::Threads;
use crate::plan::Load;
use crate::record::Point;
use crate::sample::{Figure, Runs, Samples};

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Rival {
    #[serde(rename = "JGroups")]
    Jgroups,
    #[serde(rename = "bare sockets")]
    Sockets,
    /// The figure has a bound of its own.
    #[serde(rename = "alone")]
    Alone,
    #[serde(rename = "the wire")]
    Wire,
    #[serde(rename = "other grids")]
    Grids,
    #[serde(rename = "Infinispan")]
    Infinispan,
    #[serde(rename = "Java client")]
    JavaClient,
    #[serde(rename = "redis-server")]
    Redis,
    #[serde(rename = "without")]
    Without,
    #[serde(rename = "pooled")]
    Pooled,
    #[serde(rename = "at once")]
    AtOnce,
}

impl Rival {
    pub(crate) const ALL: [Self; 11] = [
        Self::Jgroups,
        Self::Infinispan,
        Self::JavaClient,
        Self::Redis,
        Self::Sockets,
        Self::Wire,
        Self::Grids,
        Self::Without,
        Self::Pooled,
        Self::AtOnce,
        Self::Alone,
    ];

    pub(crate) const fn name(self) -> Option<&'static str> {
        match self {
            Self::Jgroups => Some("JGroups"),
            Self::Sockets => Some("bare sockets"),
            Self::Wire => Some("the wire"),
            Self::Grids => Some("best other grid"),
            Self::Infinispan => Some("Infinispan"),
            Self::JavaClient => Some("Java client"),
            Self::Redis => Some("redis-server"),
            Self::Without => Some("without"),
            Self::Pooled => Some("pooled"),
            Self::AtOnce => Some("at once"),
            Self::Alone => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
}

impl Target {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bound) => ratio <= bound,
            Self::Below(bound) => ratio < bound,
            Self::AtLeast(bound) => ratio >= bound,
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Self::AtMost(bound) => format!("≤ {bound:.2}"),
            Self::Below(bound) => format!("< {bound:.2}"),
            Self::AtLeast(bound) => format!("≥ {bound:.2}"),
        }
    }
}

#[derive(Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) subject: String,
    pub(crate) figure: &'static str,
    pub(crate) rival: Rival,
    pub(crate) consort: Option<f64>,
    /// In percent of the median.
    pub(crate) consort_spread: Option<f64>,
    pub(crate) other: Option<f64>,
    pub(crate) other_spread: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) target: Option<Target>,
    pub(crate) met: Option<bool>,
}

impl Row {
    /// `None` without a target or a measurement of both.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.met
    }

    pub(crate) fn beside(
        rival: Rival,
        (subject, figure): (String, &'static str),
        consort: &Runs,
        other: Option<&Runs>,
        target: Option<Target>,
    ) -> Self {
        let (ours, theirs) = (consort.median(), other.and_then(Runs::median));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        let compared = if rival == Rival::Alone { ours } else { ratio };
        Self {
            subject,
            figure,
            rival,
            consort: ours,
            consort_spread: consort.spread(),
            other: theirs,
            other_spread: other.and_then(Runs::spread),
            ratio,
            target,
            met: target.zip(compared).map(|(target, compared)| target.holds(compared)),
        }
    }

    pub(crate) fn alone(of: (String, &'static str), consort: &Runs, target: Option<Target>) -> Self {
        Self::beside(Rival::Alone, of, consort, None, target)
    }
}

pub(crate) const CPU_PER_CALL: &str = "CPU us/call";
pub(crate) const CPU_PER_MESSAGE: &str = "CPU us/message";
pub(crate) const CPU_PER_REQUEST: &str = "CPU us/request";
pub(crate) const CPU_PER_ENTRY: &str = "CPU us/entry";
pub(crate) const SERVER_CPU: &str = "server CPU us/request";
pub(crate) const SYSTEM_CPU: &str = "CPU us/request, client and server";
pub(crate) const NANOS_PER_MESSAGE: &str = "ns/message";

/// A difference of two measurements has its own bound. It is no cost, because a change in percent means nothing
/// near zero.
pub(crate) const NANOS_ADDED: &str = "ns added/message";

/// Costs are independent of the machine's other load.
pub(crate) fn is_cost(figure: &str) -> bool {
    [CPU_PER_CALL, CPU_PER_MESSAGE, CPU_PER_REQUEST, CPU_PER_ENTRY, SERVER_CPU, SYSTEM_CPU, NANOS_PER_MESSAGE]
        .contains(&figure)
}

pub(crate) fn rows(points: &[Point]) -> Vec<Row> {
    points.iter().flat_map(rows_of).collect()
}

fn rows_of(point: &Point) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |rival, other: &Option<Samples>, figure, of: Figure, target| {
        rows.push(row(point, rival, other.as_ref(), figure, of, target));
    };
    match &point.load {
        Load::Uperf { java_threads, .. } => {
            let cpu = match java_threads {
                Some(Threads::Virtual) => 1.0 / 3.0,
                Some(Threads::Platform) | None => 1.0 / 5.0,
            };
            let mut add = |figure, of, target| add(Rival::Jgroups, &point.jgroups, figure, of, target);
            add(CPU_PER_CALL, |sample| Some(sample.cpu_us), Some(Target::AtMost(cpu)));
            add("p50 us", |sample| Some(sample.latency?.p50), None);
            add("p99 us", |sample| Some(sample.latency?.p99), None);
            add("p99.9 us", |sample| Some(sample.latency?.p999), Some(Target::Below(1.0)));
            add("peak MB/member", |sample| Some(sample.rss_mb), Some(Target::AtMost(0.1)));
            add("calls/s/member", |sample| Some(sample.rate), Some(Target::AtLeast(1.0)));
        }
        Load::Mperf { config, size } => {
            if point.jgroups.is_some() || point.sockets.is_none() {
                // From 5 KB on copying prevails, for every contestant.
                let cpu = match (*size <= 1_000, config.starts_with("udp")) {
                    (true, false) => Target::AtMost(0.6),
                    (true, true) => Target::AtMost(0.7),
                    (false, _) => Target::Below(1.0),
                };
                let mut add = |figure, of, target| add(Rival::Jgroups, &point.jgroups, figure, of, target);
                add(CPU_PER_MESSAGE, |sample| Some(sample.cpu_us), Some(cpu));
                add("messages/s/member", |sample| Some(sample.rate), Some(Target::AtLeast(1.0)));
                add("peak MB/member", |sample| Some(sample.rss_mb), None);
            }
            if point.sockets.is_some() {
                let cpu = Some(Target::AtMost(1.5));
                add(Rival::Sockets, &point.sockets, CPU_PER_MESSAGE, |sample| Some(sample.cpu_us), cpu);
                add(Rival::Sockets, &point.sockets, "messages/s/member", |sample| Some(sample.rate), None);
            }
        }
    }
    rows
}

fn row(
    point: &Point,
    rival: Rival,
    other: Option<&Samples>,
    figure: &'static str,
    of: Figure,
    target: Option<Target>,
) -> Row {
    let consort = point.consort.runs(of);
    let other = other.map(|other| other.runs(of));
    Row::beside(rival, (point.load.name(), figure), &consort, other.as_ref(), target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn samples(cpu_us: f64) -> Samples {
        let sample = Sample { rate: 1_000.0, cpu_us, latency: None, rss_mb: 10.0, errors: 0 };
        Samples { warmup: Vec::new(), samples: vec![sample] }
    }

    fn cost(load: Load, consort: f64, jgroups: Option<f64>) -> Row {
        let point = Point { load, consort: samples(consort), jgroups: jgroups.map(samples), sockets: None };
        rows(&[point]).into_iter().find(|row| is_cost(row.figure)).expect("a row of CPU time")
    }

    #[test]
    fn a_call_may_cost_a_fifth_or_a_third() {
        let load = |threads| Load::Uperf { callers: 25, java_threads: Some(threads) };
        assert_eq!(cost(load(Threads::Platform), 6.0, Some(30.0)).is_met(), Some(true));
        assert_eq!(cost(load(Threads::Platform), 6.1, Some(30.0)).is_met(), Some(false));
        assert_eq!(cost(load(Threads::Virtual), 6.1, Some(30.0)).is_met(), Some(true));
    }

    #[test]
    fn small_multicasts_have_bounds_by_transport_and_large_ones_have_to_be_below() {
        let load = |config: &str, size| Load::Mperf { config: config.to_owned(), size };
        assert_eq!(cost(load("tcp.xml", 1_000), 0.65, Some(1.0)).is_met(), Some(false));
        assert_eq!(cost(load("udp.xml", 1_000), 0.65, Some(1.0)).is_met(), Some(true));
        assert_eq!(cost(load("udp.xml", 5_000), 0.99, Some(1.0)).is_met(), Some(true));
        assert_eq!(cost(load("tcp.xml", 20_000), 1.0, Some(1.0)).is_met(), Some(false));
    }

    #[test]
    fn without_the_other_nothing_is_met_or_missed() {
        let load = Load::Mperf { config: "tcp.xml".to_owned(), size: 1_000 };
        assert_eq!(cost(load, 0.1, None).is_met(), None);
    }
}
