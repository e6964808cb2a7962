//! Simulated clusters: a few seeds of every stack in every test run; `consort sim` runs as many as you like.

use consort_sim::{Plan, run};

fn seeds(stack: &str, members: usize, seeds: std::ops::Range<u64>) {
    let plan = Plan::new(stack, members);
    for seed in seeds {
        if let Err(violation) = run(&plan, seed) {
            panic!("{stack}, {members} members: {violation}");
        }
    }
}

#[test]
fn tcp_survives_faults() {
    seeds("tcp.xml", 4, 0..20);
}

#[test]
fn tcp_new_survives_faults() {
    seeds("tcp-new.xml", 4, 0..20);
}

#[test]
fn udp_survives_faults() {
    seeds("udp.xml", 4, 0..20);
}

#[test]
fn sequencer_survives_faults() {
    seeds("sequencer.xml", 4, 0..20);
}

#[test]
fn one_order_of_all_multicasts() {
    let plan = Plan::new("sequencer.xml", 4).without_faults();
    for seed in 0..5 {
        run(&plan, seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let plan = Plan::new("tcp.xml", 3);
    let first = run(&plan, 42).unwrap_or_else(|violation| panic!("{violation}"));
    let second = run(&plan, 42).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(first, second);
    let other = run(&plan, 43).unwrap_or_else(|violation| panic!("{violation}"));
    assert_ne!(first.trace, other.trace);
}
