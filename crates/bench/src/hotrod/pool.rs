//! One connection to each server for all callers of a client, beside one for each caller, as clients with pools
//! have (S002-3 to S002-7, S002-10).

use serde::Serialize;

use super::server_process::ServerProcess;
use super::{KEYS, P99, Pairs, RATE, READS, SERVER_CPU_US, SYSTEM_CPU_US};
use crate::options::Options;
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::session::CONSORT_OVERHEAD;
use crate::targets::{Rival, Row, SERVER_CPU, SYSTEM_CPU, Target};
use crate::tools::{self, Calling};

#[derive(Clone, Copy, Serialize)]
struct Load {
    clients: usize,
    servers: u16,
    callers: usize,
}

/// Sharing is to be at least as fast; two clients of half the callers stand for several connections of one application.
const LOADS: [Load; 7] = [
    Load { clients: 1, servers: 1, callers: 1 },
    Load { clients: 1, servers: 1, callers: 22 },
    Load { clients: 1, servers: 1, callers: 100 },
    Load { clients: 2, servers: 1, callers: 50 },
    Load { clients: 1, servers: 3, callers: 1 },
    Load { clients: 1, servers: 3, callers: 100 },
    Load { clients: 3, servers: 3, callers: 100 },
];

impl Load {
    fn name(self) -> String {
        let plural =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (clients, servers) = (plural(self.clients, "client"), plural(self.servers.into(), "server"));
        format!("{clients}, {servers}, {}", plural(self.callers, "caller"))
    }
}

#[derive(Serialize)]
struct Point {
    load: Load,
    shared: Pairs,
    pooled: Pairs,
}

pub(crate) fn pool(options: &Options, results: &mut Results<'_>) {
    let (mut points, mut outcome) = (Vec::new(), Outcome::default());
    let mut progress = Progress::new(planned(options) * LOADS.len() as u32);
    let mut servers = Vec::new();
    for load in LOADS {
        let mut point = Point { load, shared: Pairs::default(), pooled: Pairs::default() };
        let measured = measure(&mut point, &mut servers, &mut progress, options);
        points.push(point);
        results.keep("pool", &points);
        progress.finish(planned(options));
        if let Err(error) = measured {
            outcome.failures.push(error.context(load.name()));
        }
    }
    outcome.errors = points.iter().map(|point| point.shared.errors() + point.pooled.errors()).sum();
    outcome.rows = points.iter().flat_map(Point::rows).collect();
    report::print_rows(&outcome.rows);
    results.add("pool", outcome);
}

/// Servers stay up for the next load of as many.
fn measure(
    point: &mut Point,
    servers: &mut Vec<ServerProcess>,
    progress: &mut Progress,
    options: &Options,
) -> anyhow::Result<()> {
    let load = point.load;
    if servers.len() != usize::from(load.servers) {
        servers.clear();
        *servers = match load.servers {
            1 => vec![ServerProcess::consort()?],
            count => ServerProcess::cluster(count)?,
        };
    }
    let pids: Vec<u32> = servers.iter().map(ServerProcess::pid).collect();
    let at = servers.iter().map(ServerProcess::at).collect::<Vec<_>>().join(",");
    for run in 1..=options.runs() {
        progress.step(&format!("{}: run {run} of {}: shared, pooled", load.name(), options.runs()));
        for is_pooled in [false, true] {
            let Load { clients, callers, .. } = load;
            let calling =
                Calling { at: &at, pids: &pids, clients, callers, is_pooled, keys: KEYS, reads: READS };
            let both = tools::calling(&calling, options)?;
            if is_pooled { &mut point.pooled } else { &mut point.shared }.push(both);
        }
    }
    Ok(())
}

fn planned(options: &Options) -> std::time::Duration {
    (options.lead() + options.time() + CONSORT_OVERHEAD) * 2 * options.runs() as u32
}

impl Point {
    fn rows(&self) -> Vec<Row> {
        let figures = [
            ("requests/s", RATE, Some(Target::AtLeast(1.0))),
            (SYSTEM_CPU, SYSTEM_CPU_US, None),
            (SERVER_CPU, SERVER_CPU_US, None),
            ("p99 us", P99, None),
        ];
        let row = |(figure, of, target)| {
            let (shared, pooled) = (self.shared.runs(of), self.pooled.runs(of));
            Row::beside(Rival::Pooled, (self.load.name(), figure), &shared, Some(&pooled), target)
        };
        figures.map(row).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_have_names_of_their_own() {
        let names: std::collections::BTreeSet<String> = LOADS.map(Load::name).into();
        assert_eq!(names.len(), LOADS.len());
        assert!(names.contains("1 client, 3 servers, 100 callers"));
    }
}
