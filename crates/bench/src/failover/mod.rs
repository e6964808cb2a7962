//! How long after `kill -9` of a server clients are answered as before: Consort with its own client and with the official Java
//! client, Infinispan with the Java client, and Hazelcast with its own.
//!
//! 20,000 values of 1 KB with two owners, 100 callers of one client, 80 % reads. Each position of the view is killed in turn, and
//! the server starts again before the next kill.

mod client;
mod cluster;

use std::time::Duration;

use anyhow::Context;
use consort_procstat::recovery::{Samples, Spread, ViewOrder};
use consort_testbed::Jar;
use serde::Serialize;
use serde_json::Value;

use self::client::JavaClient;
use self::cluster::{Cluster, Product};
use crate::java;
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::sample::Runs;
use crate::targets::{Rival, Row, Target};
use crate::tools;

const KEYS: u32 = 20_000;
const SIZE: usize = 1_000;
const CALLERS: usize = 100;
const READS: f64 = 0.8;

const FIRST_ANSWER: &str = "first answer, ms";
const PREVIOUS_RATE: &str = "previous rate, ms";
const WORST: &str = "previous rate, worst, ms";

/// The targets of `consort demo --kills 20` (issue 39, part 2): from the kill to the previous rate.
const MEDIAN_MS_MAX: f64 = 100.0;
const WORST_MS_MAX: f64 = 250.0;

/// A kill after which the rate does not come back counts as this time.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(30);

/// With starts of a JVM and a rebalance.
const KILL_TIME: Duration = Duration::from_secs(20);

#[derive(Clone, Serialize)]
struct Kill {
    is_coordinator: bool,
    rate_before: f64,
    /// `None` if it did not happen within `RECOVERY_TIME_MAX`.
    first_answer_ms: Option<f64>,
    previous_rate_ms: Option<f64>,
}

impl Kill {
    fn of(is_coordinator: bool, samples: &Samples) -> Self {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        Self {
            is_coordinator,
            rate_before: samples.before,
            first_answer_ms: samples.until_answered().map(milliseconds),
            previous_rate_ms: samples.until_previous_rate().map(milliseconds),
        }
    }
}

/// The kills of one product with one client in clusters of one size.
#[derive(Serialize)]
struct Series {
    servers: usize,
    product: &'static str,
    client: String,
    /// Requests with an error, also writes whose result is unknown.
    failed: u64,
    /// The failed writes whose result is unknown, as far as the client reports them: Java clients repeat writes instead.
    uncertain: u64,
    kills: Vec<Kill>,
}

impl Series {
    fn runs(&self, of: fn(&Kill) -> Option<f64>) -> Runs {
        let longest = RECOVERY_TIME_MAX.as_secs_f64() * 1e3;
        Runs(self.kills.iter().map(|kill| of(kill).unwrap_or(longest)).collect())
    }

    fn spread(&self) -> Spread {
        let times = self.runs(|kill| kill.previous_rate_ms).0;
        Spread::of(times.into_iter().map(|ms| Duration::from_secs_f64(ms / 1e3)).collect())
    }

    /// Failures that Consort promises not to have. A write whose result is unknown is the answer that the Rust client promises,
    /// and failures of other products are figures.
    fn unexpected_failures(&self) -> u64 {
        if self.product == Product::Consort.name() { self.failed - self.uncertain } else { 0 }
    }

    fn worst(&self) -> Runs {
        Runs(vec![self.spread().worst.as_secs_f64() * 1e3])
    }
}

pub(crate) fn failover(options: &Options, jar: Option<&Jar>, results: &mut Results<'_>) {
    let (mut all, mut outcome) = (Vec::<Series>::new(), Outcome::default());
    let products: &[Product] = if jar.is_some() { &Product::ALL } else { &[] };
    let each = KILL_TIME * options.kills() as u32;
    let clusters = (options.failover_servers().len() * (products.len() + 1)) as u32;
    let mut progress = Progress::new(each * clusters);
    for &servers in options.failover_servers() {
        progress.step(&format!("{servers} servers: Consort with its own client"));
        let mut measured = vec![own_client(servers, options)];
        progress.finish(each);
        for &product in products {
            progress.step(&format!("{servers} servers: {} with a Java client", product.name()));
            measured.push(java_client(product, servers, jar, options));
            progress.finish(each);
        }
        for series in measured {
            match series {
                Ok(series) => {
                    let Spread { median, worst } = series.spread();
                    Progress::result(&format!(
                        "{}, {}: previous rate after {median:.0?} in the median, {worst:.0?} at worst; {} failed, \
                         {} of them with an unknown result",
                        series.product, series.client, series.failed, series.uncertain
                    ));
                    all.push(series);
                }
                Err(error) => outcome.failures.push(error.context(format!("{servers} servers"))),
            }
        }
        results.keep("failover", &all);
    }
    outcome.errors = all.iter().map(Series::unexpected_failures).sum();
    outcome.rows = options.failover_servers().iter().flat_map(|&servers| rows(servers, &all)).collect();
    report::print_rows(&outcome.rows);
    results.add("failover", outcome);
}

fn own_client(servers: usize, options: &Options) -> anyhow::Result<Series> {
    let arguments = ["demo", "--json"].map(str::to_owned).into_iter();
    let arguments: Vec<String> =
        arguments.chain([format!("--kills={}", options.kills()), format!("--servers={servers}")]).collect();
    let figures = tools::kills(&arguments)?;
    let kill = |kill: &Value| Kill {
        is_coordinator: kill["coordinator"] == true,
        rate_before: kill["requests_per_second"].as_f64().unwrap_or_default(),
        first_answer_ms: kill["first_answer_ms"].as_f64(),
        previous_rate_ms: kill["previous_rate_ms"].as_f64(),
    };
    // The Java clients report a write whose result is unknown as failed, too.
    let count =
        |name: &str| figures[name].as_u64().with_context(|| format!("no {name} in the demo's results"));
    let kills = figures["kills"].as_array().context("no kills in the demo's results")?;
    Ok(Series {
        servers,
        product: Product::Consort.name(),
        client: OWN_CLIENT.to_owned(),
        failed: count("failed")? + count("uncertain")?,
        uncertain: count("uncertain")?,
        kills: kills.iter().map(kill).collect(),
    })
}

const OWN_CLIENT: &str = "Rust client";

fn java_client(
    product: Product,
    servers: usize,
    jar: Option<&Jar>,
    options: &Options,
) -> anyhow::Result<Series> {
    let jar = jar.context("no Java")?;
    let jdk = java::find()?;
    let mut cluster = Cluster::start(product, servers, jar, &jdk, options)?;
    let mut client = JavaClient::start(product, servers, jar, &jdk, options)?;
    client.settle(servers)?;
    client.warm_up(options)?;
    let (mut order, mut kills) = (ViewOrder::new(servers), Vec::new());
    for nth in 0..options.kills() {
        let (victim, is_coordinator) = order.next_victim(nth);
        let samples = client.sample_kill(|| cluster.kill(victim), RECOVERY_TIME_MAX)?;
        kills.push(Kill::of(is_coordinator, &samples));
        cluster.start_again(victim)?;
        client.settle(servers)?;
    }
    Ok(Series {
        servers,
        product: product.name(),
        client: client.version.clone(),
        failed: client.failed()?,
        uncertain: 0,
        kills,
    })
}

type FigureOf = fn(&Series) -> Runs;

const FIGURES: [(&str, FigureOf); 3] = [
    (FIRST_ANSWER, |series| series.runs(|kill| kill.first_answer_ms)),
    (PREVIOUS_RATE, |series| series.runs(|kill| kill.previous_rate_ms)),
    (WORST, Series::worst),
];

fn rows(servers: usize, all: &[Series]) -> Vec<Row> {
    let of = |product: Product, is_own: bool| {
        all.iter().find(|series| {
            series.servers == servers
                && series.product == product.name()
                && (series.client == OWN_CLIENT) == is_own
        })
    };
    let mut rows = Vec::new();
    if let Some(own) = of(Product::Consort, true) {
        let targets = [None, Some(Target::AtMost(MEDIAN_MS_MAX)), Some(Target::AtMost(WORST_MS_MAX))];
        for ((figure, runs), target) in FIGURES.into_iter().zip(targets) {
            rows.push(Row::alone((format!("{servers} servers, {OWN_CLIENT}"), figure), &runs(own), target));
        }
    }
    let Some(ours) = of(Product::Consort, false) else { return rows };
    for (rival, product) in [(Rival::Infinispan, Product::Infinispan), (Rival::Grids, Product::Hazelcast)] {
        let Some(theirs) = of(product, false) else { continue };
        for (figure, runs) in FIGURES {
            let subject = format!("{servers} servers, Java client");
            let target = (figure != FIRST_ANSWER).then_some(Target::AtMost(1.0));
            rows.push(Row::beside(rival, (subject, figure), &runs(ours), Some(&runs(theirs)), target));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(product: Product, client: &str, ms: &[Option<f64>]) -> Series {
        let kill = |&previous_rate_ms: &Option<f64>| Kill {
            is_coordinator: false,
            rate_before: 1.0,
            first_answer_ms: previous_rate_ms,
            previous_rate_ms,
        };
        let kills = ms.iter().map(kill).collect();
        Series {
            servers: 3,
            product: product.name(),
            client: client.to_owned(),
            failed: 0,
            uncertain: 0,
            kills,
        }
    }

    #[test]
    fn rate_that_never_comes_back_counts_as_the_longest_time() {
        let series = series(Product::Infinispan, "Java", &[Some(50.0), None, Some(70.0)]);
        assert_eq!(series.worst().0, [30_000.0]);
        assert_eq!(series.spread().median, Duration::from_millis(70));
    }

    #[test]
    fn writes_with_unknown_results_and_failures_of_other_products_are_expected() {
        let all = [(Product::Consort, 5), (Product::Infinispan, 0)].map(|(product, expected)| {
            let series = Series { failed: 12, uncertain: 7, ..series(product, OWN_CLIENT, &[]) };
            (series.unexpected_failures(), expected)
        });
        assert!(all.iter().all(|(found, expected)| found == expected), "{all:?}");
    }

    #[test]
    fn rows_compare_the_clients_in_java_and_judge_ours_by_the_target() {
        let all = [
            series(Product::Consort, OWN_CLIENT, &[Some(90.0), Some(300.0)]),
            series(Product::Consort, "Java", &[Some(100.0)]),
            series(Product::Infinispan, "Java", &[Some(400.0)]),
        ];
        let rows = rows(3, &all);
        assert_eq!(rows.len(), 6);
        // The median is 195 ms, and the worst 300 ms.
        assert_eq!(rows.iter().filter(|row| row.is_met() == Some(false)).count(), 2);
    }
}
