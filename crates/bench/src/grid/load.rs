//! Reads and writes as IspnPerfTest's: 100,000 keys of 1 KB with two owners.

use consort_testbed::{Jar, JavaGrid};

use super::contest::{CPU, Compared, Contest, MEMORY, RATE, comparison_table};
use super::{populate, start};
use crate::java::JavaCluster;
use crate::options::{Options, Threads};
use crate::progress::Progress;
use crate::report;
use crate::results::{Outcome, Results};
use crate::session::{CONSORT_OVERHEAD, shown, warm_up};
use crate::targets::{CPU_PER_REQUEST, Target};
use crate::tools;

const SIZE: usize = 1_000;

/// Hazelcast's own IspnPerfTest has platform threads only.
fn others(options: &Options) -> Vec<(JavaGrid, Threads)> {
    let mut others: Vec<_> =
        options.java_threads.iter().map(|&threads| (JavaGrid::Infinispan, threads)).collect();
    others.push((JavaGrid::Hazelcast, Threads::Platform));
    others
}

fn name((grid, threads): (JavaGrid, Threads)) -> String {
    match (grid, threads) {
        (JavaGrid::Hazelcast, _) => "Hazelcast".to_owned(),
        (JavaGrid::Infinispan, Threads::Platform) => "Infinispan, platform threads".to_owned(),
        (JavaGrid::Infinispan, Threads::Virtual) => "Infinispan, virtual threads".to_owned(),
    }
}

fn figures(members: usize) -> Vec<Compared> {
    // With two members every read is local, so there is no network to do better at.
    let is_local = members == 2;
    let at_most = |bound| (!is_local).then_some(Target::AtMost(bound));
    vec![
        Compared::gain("requests/s/member", RATE, Some(Target::AtLeast(if is_local { 2.0 } else { 5.0 }))),
        Compared::cost(CPU_PER_REQUEST, CPU, at_most(0.2)),
        Compared::cost("p50 us", |sample| Some(sample.latency?.p50), None),
        Compared::cost("p99 us", |sample| Some(sample.latency?.p99), at_most(0.2)),
        Compared::cost("p99.9 us", |sample| Some(sample.latency?.p999), at_most(0.2)),
        Compared::cost("peak MB/member", MEMORY, at_most(0.2)),
    ]
}

pub(crate) fn measure(options: &Options, jar: Option<&Jar>, results: &mut Results<'_>) {
    let mut contests: Vec<(usize, Contest)> = Vec::new();
    let mut outcome = Outcome::default();
    let jar = jar.filter(|_| options.needs_java_grids());
    for &members in &options.grid_members {
        let measured = cluster(members, options, jar, |contest| {
            contests.push((members, contest));
            results.keep("grid", &contests.iter().map(|(_, contest)| contest).collect::<Vec<_>>());
        });
        if let Err(error) = measured {
            outcome.failures.push(error.context(format!("{members} members")));
        }
    }
    outcome.errors = contests.iter().map(|(_, contest)| contest.errors()).sum();
    outcome.rows = contests.iter().flat_map(|(members, contest)| contest.rows(&figures(*members))).collect();
    let all: Vec<Contest> = contests.into_iter().map(|(_, contest)| contest).collect();
    println!("\n{}", comparison_table(&all, &figures(4)));
    report::print_rows(&outcome.rows);
    results.add("grid", outcome);
}

/// JVMs stay up, and are stopped while other contestants have their turn.
fn cluster(
    members: usize,
    options: &Options,
    jar: Option<&Jar>,
    mut keep: impl FnMut(Contest),
) -> anyhow::Result<()> {
    let mut clusters: Vec<(JavaGrid, JavaCluster)> = Vec::new();
    if let Some(jar) = jar {
        for grid in JavaGrid::ALL {
            Progress::result(&format!("{members} JVMs with {}", grid.name()));
            let mut cluster = start(grid, members, jar, options)?;
            Progress::result(&cluster.version);
            populate(&mut cluster, options.keys, SIZE)?;
            clusters.push((grid, cluster));
        }
    }
    let others = if jar.is_some() { others(options) } else { Vec::new() };
    let reads = options.reads.iter().copied().filter(|reads| members > 2 || *reads >= 1.0);
    let mut progress = Progress::new(planned(options, others.len()) * reads.clone().count() as u32);
    for reads in reads {
        let subject = format!("grid, {members} members, {:.0} % reads", reads * 100.0);
        let mut contest = Contest::new(subject.clone(), others.iter().copied().map(name));
        let slice = |threads| {
            format!(
                "run threads={} size={SIZE} keys={} reads={reads} virtual={} warmup_ms={} time_ms={}",
                options.invokers,
                options.keys,
                threads == Threads::Virtual,
                options.lead().as_millis(),
                options.time().as_millis()
            )
        };
        for (of, other) in others.iter().zip(&mut contest.others) {
            if !options.quick {
                progress.step(&format!("{subject}: {} warms up", other.name));
                let (cluster, slice) = (of_grid(&mut clusters, of.0)?, slice(of.1));
                other.samples.warmup = warm_up(options, || Ok(cluster.run(&slice)?.rate))?;
            }
        }
        for run in 1..=options.runs() {
            progress.step(&format!("{subject}: run {run} of {}", options.runs()));
            contest.consort.samples.push(shown(tools::perf(members, reads, options)?));
            for (of, other) in others.iter().zip(&mut contest.others) {
                let sample = of_grid(&mut clusters, of.0)?.run(&slice(of.1))?;
                other.samples.samples.push(shown(sample));
            }
        }
        progress.finish(planned(options, others.len()));
        keep(contest);
    }
    Ok(())
}

fn of_grid(clusters: &mut [(JavaGrid, JavaCluster)], grid: JavaGrid) -> anyhow::Result<&mut JavaCluster> {
    let cluster = clusters.iter_mut().find(|(own, _)| *own == grid);
    cluster.map(|(_, cluster)| cluster).ok_or_else(|| anyhow::anyhow!("no {}", grid.name()))
}

fn planned(options: &Options, others: usize) -> std::time::Duration {
    let sample = options.lead() + options.time();
    let warmup = if options.quick { 0.0 } else { options.java_warmup * 0.67 };
    let runs = (sample * (1 + others as u32) + CONSORT_OVERHEAD) * options.runs() as u32;
    runs + std::time::Duration::from_secs_f64(warmup.max(0.0)) * others as u32
}
