//! Simulated sites: a few seeds in every test run.

use consort_sim::sites::{Plan, run};

fn seeds(plan: &Plan, seeds: std::ops::Range<u64>) -> u64 {
    let mut failovers = 0;
    for seed in seeds {
        let report = run(plan, seed).unwrap_or_else(|violation| panic!("{plan:?}: {violation}"));
        assert!(report.relayed > 0, "{report:?}");
        failovers += report.failovers as u64;
    }
    failovers
}

#[test]
fn sites_without_faults_lose_nothing() {
    seeds(&Plan::new(2, 3, 1).without_faults(), 0..5);
    seeds(&Plan::new(3, 3, 2).without_faults(), 0..5);
}

#[test]
fn two_sites_survive_cut_bridges_and_lost_site_masters() {
    assert!(seeds(&Plan::new(2, 3, 1), 0..10) > 0);
}

/// S000-61: a member's messages keep their site master and their order.
#[test]
fn order_holds_with_several_site_masters() {
    assert!(seeds(&Plan::new(2, 4, 2), 0..10) > 0);
    assert!(seeds(&Plan::new(3, 3, 2), 0..10) > 0);
}

#[test]
fn sites_with_relay3_without_faults_lose_nothing() {
    seeds(&Plan::new(2, 3, 1).with_relay3().without_faults(), 0..5);
    seeds(&Plan::new(3, 3, 2).with_relay3().without_faults(), 0..5);
}

#[test]
fn sites_with_relay3_survive_cut_bridges_and_lost_site_masters() {
    assert!(seeds(&Plan::new(2, 3, 1).with_relay3(), 0..10) > 0);
}

#[test]
fn order_holds_with_relay3_and_several_site_masters() {
    assert!(seeds(&Plan::new(2, 4, 2).with_relay3(), 0..10) > 0);
    assert!(seeds(&Plan::new(3, 3, 2).with_relay3(), 0..10) > 0);
}

#[test]
fn a_run_is_repeatable() {
    let plan = Plan::new(2, 3, 2);
    assert_eq!(run(&plan, 3).map(|report| report.trace), run(&plan, 3).map(|report| report.trace));
}
