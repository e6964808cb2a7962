//! In the words of IspnPerfTest.

use std::fmt;

use consort_procstat::grouped;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::settings::{Settings, bytes};
use crate::perf::report::{Counts, Percentiles, histogram};

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Extremes {
    pub(crate) count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Default for Extremes {
    fn default() -> Self {
        Self { count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Extremes {
    pub(crate) fn count(&mut self, nanos: u64) {
        self.count += 1;
        self.sum += nanos;
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
    }

    #[must_use]
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    pub(crate) fn mean_us(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64 / 1e3
    }

    fn min_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.min as f64 / 1e3 }
    }
}

/// Microseconds: `1 / 1,486.77 / 364,799.00` (S000-40).
impl fmt::Display for Extremes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, mean, max) = (self.min_us().floor(), self.mean_us(), self.max as f64 / 1e3);
        write!(f, "{} / {} / {}", grouped(min), decimals(mean), decimals(max))
    }
}

/// 1234.5 is 1,234.50.
fn decimals(number: f64) -> String {
    let hundredths = (number * 100.0).round();
    format!("{}.{:02}", grouped((hundredths / 100.0).floor()), hundredths % 100.0)
}

/// Of an invoker or of all (S000-40).
pub(crate) fn times(owner: &str, get: Extremes, put: Extremes) -> String {
    format!("{owner}: get {get}, put: {put}")
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) name: String,
    /// In milliseconds of the system's clock.
    pub(crate) started_ms: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    pub(crate) rss_mb: f64,
    pub(crate) errors: u64,
    /// Failed operations that may have been executed.
    pub(crate) uncertain: u64,
    pub(crate) missing: u64,
    pub(crate) get: Extremes,
    pub(crate) put: Extremes,
    pub(crate) gets: Counts,
    pub(crate) puts: Counts,
}

impl Figures {
    pub(crate) fn requests(&self) -> u64 {
        self.gets.total() + self.puts.total()
    }

    /// Requests without the promised result. Writes whose result is unknown are not among them.
    pub(crate) fn failed(&self) -> u64 {
        self.errors + self.missing - self.uncertain
    }
}

/// A member's line (S000-41).
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} reqs/sec ({} GETs, {} PUTs), avg RTT (us) = {} get, {} put",
            self.name,
            decimals(self.requests() as f64 / self.seconds),
            grouped(self.gets.total() as f64),
            grouped(self.puts.total() as f64),
            decimals(self.get.mean_us()),
            decimals(self.put.mean_us())
        )
    }
}

pub(crate) struct Total {
    pub(crate) members: usize,
    pub(crate) requests: u64,
    longest_s: f64,
    /// All operations by the sum of all times.
    pub(crate) reqs_sec_node: f64,
    /// All operations by the longest time.
    pub(crate) reqs_sec_cluster: f64,
    pub(crate) cpu_s: f64,
    pub(crate) rss_mb: f64,
    pub(crate) errors: u64,
    pub(crate) missing: u64,
    start_spread_ms: u64,
    get: Extremes,
    put: Extremes,
    gets: Histogram<u64>,
    puts: Histogram<u64>,
}

impl Total {
    pub(crate) fn of(all: &[Figures]) -> Self {
        let sum = |part: fn(&Figures) -> f64| all.iter().map(part).sum::<f64>();
        let most = |part: fn(&Figures) -> f64| all.iter().map(part).fold(0.0, f64::max);
        let requests = all.iter().map(Figures::requests).sum::<u64>();
        let (mut gets, mut puts) = (histogram(), histogram());
        for figures in all {
            figures.gets.add_to(&mut gets);
            figures.puts.add_to(&mut puts);
        }
        let first = all.iter().map(|one| one.started_ms).min().unwrap_or(0);
        let last = all.iter().map(|one| one.started_ms).max().unwrap_or(0);
        let rate = |seconds: f64| if seconds > 0.0 { requests as f64 / seconds } else { 0.0 };
        Self {
            members: all.len(),
            requests,
            longest_s: most(|one| one.seconds),
            reqs_sec_node: rate(sum(|one| one.seconds)),
            reqs_sec_cluster: rate(most(|one| one.seconds)),
            cpu_s: sum(|one| one.cpu_s),
            rss_mb: most(|one| one.rss_mb),
            errors: all.iter().map(|one| one.errors).sum(),
            missing: all.iter().map(|one| one.missing).sum(),
            start_spread_ms: last - first,
            get: all.iter().fold(Extremes::default(), |sum, one| sum.with(one.get)),
            put: all.iter().fold(Extremes::default(), |sum, one| sum.with(one.put)),
            gets,
            puts,
        }
    }

    pub(crate) fn cpu_us(&self) -> f64 {
        self.each_us(self.cpu_s)
    }

    /// Of all in seconds, per operation in microseconds.
    pub(crate) fn each_us(&self, seconds: f64) -> f64 {
        seconds * 1e6 / self.requests.max(1) as f64
    }

    /// The summary (S000-42, S000-43), with CPU and memory of the measured members or clients.
    pub(crate) fn text(&self, settings: &Settings, processes: &str) -> String {
        let rate = self.reqs_sec_node;
        let mut text = format!(
            "Throughput: {} reqs/sec/node ({}/sec) {} reqs/sec/cluster\n\
             Roundtrip: gets {}, puts {}\n\
             CPU: {:.2} us per request over all {processes}; at most {:.0} MB of memory in one; started within {} ms\n",
            grouped(rate),
            bytes(rate * settings.size as f64),
            grouped(self.reqs_sec_cluster),
            round_trips(self.get, &self.gets, settings.details),
            round_trips(self.put, &self.puts, settings.details),
            self.cpu_us(),
            self.rss_mb,
            self.start_spread_ms
        );
        if self.errors + self.missing > 0 {
            text += &format!(
                "{} operations failed, {} keys were not found\n",
                grouped(self.errors as f64),
                grouped(self.missing as f64)
            );
        }
        text
    }

    pub(crate) fn latency(&self) -> Option<Percentiles> {
        let mut all = self.gets.clone();
        all += &self.puts;
        (!all.is_empty()).then(|| Percentiles::of(&all))
    }

    pub(crate) fn summary(&self, settings: &Settings, owners: u16) -> Summary {
        Summary {
            test: "perf",
            members: self.members,
            threads: settings.threads,
            size: settings.size,
            keys: settings.keys,
            owners,
            reads: settings.read_percentage,
            seconds: settings.time,
            took_s: self.longest_s,
            reqs_sec_node: self.reqs_sec_node,
            reqs_sec_cluster: self.reqs_sec_cluster,
            cpu_s_per_mreq: self.cpu_us(),
            latency_us: self.latency().unwrap_or_default(),
            get_us: (!self.gets.is_empty()).then(|| Percentiles::of(&self.gets)),
            put_us: (!self.puts.is_empty()).then(|| Percentiles::of(&self.puts)),
            rss_mb: self.rss_mb,
            errors: self.errors,
            missing: self.missing,
            server_cpu_s_per_mreq: None,
            server_rss_mb: None,
            copies: None,
        }
    }
}

/// S000-43
fn round_trips(times: Extremes, histogram: &Histogram<u64>, has_details: bool) -> String {
    if histogram.is_empty() {
        return "n/a".to_owned();
    }
    if !has_details {
        return format!("avg = {} us", decimals(times.mean_us()));
    }
    let at = |percentile: f64| grouped(histogram.value_at_percentile(percentile) as f64 / 1e3);
    let percentiles: Vec<String> = ["50.0", "90.0", "95.0", "99.0", "99.9"]
        .map(|name| (name, name.parse().unwrap_or(0.0)))
        .iter()
        .map(|(name, value)| format!("{name}={}", at(*value)))
        .collect();
    format!(
        "min/avg/max = {}/{}/{} us ({} [percentile at mean: {:.2}])",
        grouped(times.min_us().floor()),
        decimals(times.mean_us()),
        decimals(times.max as f64 / 1e3),
        percentiles.join(" "),
        histogram.percentile_below((times.mean_us() * 1e3) as u64)
    )
}

#[derive(Serialize)]
pub(crate) struct Summary {
    test: &'static str,
    members: usize,
    threads: u32,
    size: usize,
    keys: u32,
    owners: u16,
    reads: f64,
    seconds: f64,
    took_s: f64,
    reqs_sec_node: f64,
    reqs_sec_cluster: f64,
    cpu_s_per_mreq: f64,
    latency_us: Percentiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    get_us: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    put_us: Option<Percentiles>,
    rss_mb: f64,
    errors: u64,
    missing: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_cpu_s_per_mreq: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_rss_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) copies: Option<super::copies::Verdict>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::grid::settings::tests::parsed;

    /// In nanoseconds.
    fn member(name: &str, seconds: f64, gets: &[u64], puts: &[u64]) -> Figures {
        let part = |times: &[u64]| {
            let (mut extremes, mut all) = (Extremes::default(), histogram());
            for &nanos in times {
                extremes.count(nanos);
                all.saturating_record(nanos);
            }
            (extremes, Counts::of(&all))
        };
        let ((get, gets), (put, puts)) = (part(gets), part(puts));
        Figures {
            name: name.to_owned(),
            started_ms: 0,
            seconds,
            cpu_s: 1.5,
            rss_mb: 60.0,
            errors: 0,
            uncertain: 0,
            missing: 0,
            get,
            put,
            gets,
            puts,
        }
    }

    #[test]
    fn failed_requests_are_those_with_a_known_result_that_is_not_the_promised_one() {
        let figures = Figures { errors: 9, uncertain: 7, missing: 3, ..member("A", 1.0, &[], &[]) };
        assert_eq!(figures.failed(), 5);
    }

    fn matches(pattern: &str, text: &str) -> bool {
        regex_lite::Regex::new(pattern).unwrap().is_match(text)
    }

    /// S000-40
    #[test]
    fn times_of_a_member_read_as_in_ispn_perf_test() {
        let get = Extremes { count: 1_000, sum: 1_486_770_000, min: 1_900, max: 364_799_000 };
        let text = times("all", get, Extremes::default());
        assert_eq!(text, "all: get 1 / 1,486.77 / 364,799.00, put: 0 / 0.00 / 0.00");
        assert_eq!(decimals(1_486.774), "1,486.77");
        assert_eq!(decimals(364_799.0), "364,799.00");
        assert_eq!(decimals(0.996), "1.00");
    }

    /// S000-41
    #[test]
    fn a_members_line_reads_as_in_ispn_perf_test() {
        let figures = member("host-27417", 2.0, &[1_000_000; 6_001], &[]);
        assert_eq!(
            figures.to_string(),
            "host-27417: 3,000.50 reqs/sec (6,001 GETs, 0 PUTs), avg RTT (us) = 1,000.00 get, 0.00 put"
        );
    }

    /// S000-42
    #[test]
    fn throughput_is_all_by_the_sum_of_times_and_by_the_longest() {
        let all = [member("A", 2.0, &[1_000; 1_000], &[]), member("B", 3.0, &[1_000; 900], &[2_000; 600])];
        let total = Total::of(&all);
        assert_eq!(total.requests, 2_500);
        assert!((total.reqs_sec_node - 500.0).abs() < 1e-9);
        assert!((total.reqs_sec_cluster - 2_500.0 / 3.0).abs() < 1e-9);
        assert!((total.cpu_us() - 3e6 / 2_500.0).abs() < 1e-9);
        let text = total.text(&parsed(&[]), "members");
        assert!(
            text.starts_with("Throughput: 500 reqs/sec/node (500.00KB/sec) 833 reqs/sec/cluster\n"),
            "{text}"
        );
    }

    /// S000-43
    #[test]
    fn round_trips_are_those_of_all_members_merged() {
        let slow: Vec<u64> = (1..=1_000).map(|micros| micros * 1_000).collect();
        let total = Total::of(&[member("A", 1.0, &[100_000; 1_000], &[]), member("B", 1.0, &slow, &[])]);
        let text = total.text(&parsed(&[]), "members");
        let line = text.lines().nth(1).unwrap();
        let wanted = r"^Roundtrip: gets min/avg/max = 1/300\.25/1,000\.00 us \(50\.0=100 90\.0=(799|800) 95\.0=900 99\.0=980 99\.9=99[89] \[percentile at mean: 6[45]\.\d\d\]\), puts n/a$";
        assert!(matches(wanted, line), "{line}");
        let text = total.text(&parsed(&["--details=false"]), "members");
        assert_eq!(text.lines().nth(1), Some("Roundtrip: gets avg = 300.25 us, puts n/a"));
    }

    #[test]
    fn the_summary_has_the_fields_of_the_rpc_tests() {
        let total = Total::of(&[member("A", 1.0, &[1_000; 10], &[])]);
        let json = serde_json::to_value(total.summary(&parsed(&[]), 2)).unwrap();
        for field in [
            "members",
            "reqs_sec_node",
            "reqs_sec_cluster",
            "cpu_s_per_mreq",
            "latency_us",
            "rss_mb",
            "errors",
        ] {
            assert!(json.get(field).is_some(), "{field}: {json}");
        }
        assert!(json.get("put_us").is_none() && json["get_us"]["p99.9"].is_number(), "{json}");
    }
}
