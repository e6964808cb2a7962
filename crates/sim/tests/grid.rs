//! Simulated grids: some seeds in every test run; `consort sim --grid` runs as many as you like.

use consort_grid::CacheMode;
use consort_sim::Mix;
use consort_sim::grid::{Plan, WorkloadMix, run};

/// A plan of members whose clients do only what they did when a seed broke a rule.
fn plain(members: usize) -> Plan {
    Plan::new("tcp.xml", members).with_workload(WorkloadMix::NONE)
}

#[test]
fn grids_keep_their_guarantees() {
    for members in [2, 4, 6] {
        let plan = Plan::new("tcp.xml", members);
        for seed in 0..8 {
            if let Err(violation) = run(&plan, seed) {
                panic!("{members} members: {violation}");
            }
        }
    }
}

#[test]
fn grids_keep_their_guarantees_over_udp() {
    let plan = Plan::new("udp.xml", 4);
    for seed in 0..3 {
        run(&plan, seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// Members and seeds that have broken a rule: a removal came back after a merge; a member could not leave; a joiner sent
/// before other members knew it, and lacked credits for that; entries of segments that the preferred partition had lost were
/// not merged; a write that was done was reported as refused; and a cache stayed degraded though enough of its members were
/// back.
#[test]
fn seeds_that_broke_a_guarantee_pass() {
    for (members, seed) in
        [(4, 1_010), (3, 4_058), (4, 30_164), (3, 568), (4, 1_780), (5, 70_430), (2, 70_639)]
    {
        run(&plain(members).without_listeners().without_stores(), seed)
            .unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// As above. A member that a merge had drawn in and then removed refused the next merges. A merge used a view's number in the
/// name of a member that had given it up. A member that had missed its removal stayed alone. A write whose end its caller did
/// not know stayed with some of its owners. A merge's entries counted as changes at the next merge.
#[test]
fn partitions_that_merge_in_any_order_keep_their_guarantees() {
    for (members, seed) in [(3, 401), (3, 80_276), (4, 3_350), (6, 80_188), (6, 80_005), (4, 80_817)] {
        run(&plain(members).without_listeners().without_stores(), seed)
            .unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// As above, with stores. The causes were: a partition that did not know yet that the other members had gone on; a response
/// to a request that was sent again; entries for which no member was read; the records of a partition that was merged before;
/// and a segment that was transferred to an owner that still had its own partition's entries.
#[test]
fn partitions_that_split_again_or_lost_segments_keep_their_guarantees() {
    for (members, seed) in [(4, 1_271), (3, 2_196), (3, 3_188), (6, 3_447), (5, 3_460), (6, 7_128)] {
        run(&plain(members), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// As above: a listener ended while its member was parted from the primary of a write, and could not receive the gap that
/// follows the merge.
#[test]
fn listeners_that_end_while_members_are_parted_keep_their_guarantees() {
    for (members, seed) in [(4, 21_040_001), (3, 21_030_006), (5, 21_050_014)] {
        run(&Plan::new("tcp.xml", members).parted(), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
    run(&Plan::new("tcp.xml", 6), 22_060_008).unwrap_or_else(|violation| panic!("{violation}"));
}

/// As above: a listener ended after the views of two partitions had merged, and before their caches' topologies had, or
/// before its member had the merged topology.
#[test]
fn listeners_that_end_between_the_merges_of_views_and_topologies_keep_their_guarantees() {
    for (members, seed) in [(4, 30_000_000), (4, 30_000_138), (4, 30_000_149), (3, 31_000_026)] {
        run(&Plan::new("tcp.xml", members).parted(), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// As above: a partition parts once more before it is merged. A value that one part had replaced came back with the other
/// part, or was removed with a value that a third partition had taken over.
#[test]
fn subgroups_of_a_partition_merged_in_turn_keep_their_guarantees() {
    for (members, seed) in [(6, 820_386), (6, 820_461), (5, 821_090), (4, 842_250), (3, 842_139)] {
        run(&plain(members), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
    for (members, seed) in [(5, 830_123), (6, 830_060), (2, 834_026)] {
        run(&Plan::new("tcp.xml", members), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// As above: a member parted from the members that transferred its segments to it. A third partition that merged the
/// transferred part took its own older entries for newer than the entries that had not arrived.
#[test]
fn partition_that_splits_before_its_segments_arrive_keeps_its_guarantees() {
    let plan = Plan::new("tcp.xml", 4).parted();
    run(&plan, 7_865_123).unwrap_or_else(|violation| panic!("{violation}"));
}

/// As above: a call of an unreachable member was carried out again, because the topology of its own coordinator had the same
/// number; and a listener received the event of a merged entry that was sent again.
#[test]
fn topologies_of_one_number_and_merges_under_way_keep_their_guarantees() {
    for seed in [110_196, 110_348] {
        run(&plain(5).without_stores(), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// As above: of two topologies of one number, the primary's was without a member with listeners that it had found
/// unresponsive.
#[test]
fn listener_served_by_another_owner_is_awaited_after_the_primary_dropped_it() {
    run(&plain(3), 841_036).unwrap_or_else(|violation| panic!("{violation}"));
}

/// As above: a member that had never learned of its own membership counted as one that had lost the information it had
/// received.
#[test]
fn member_that_missed_its_join_response_joins() {
    for seed in [1_576, 1_650, 6_010, 6_595] {
        run(&plain(3).without_stores(), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// As above: an owner that did not know of a rebalance yet transferred a segment to its new owner. It went on without the new
/// owner under a topology of the same number.
#[test]
fn write_before_a_rebalance_is_known_survives_it() {
    run(&plain(3).without_stores(), 130_183).unwrap_or_else(|violation| panic!("{violation}"));
}

/// As above: a member that had pulled a segment had an entry and no record of the write, and as the next primary carried it
/// out again.
#[test]
fn repeated_write_is_applied_once_by_the_new_owner() {
    run(&plain(4), 820_372).unwrap_or_else(|violation| panic!("{violation}"));
}

/// Seeds in which the checkers asked for more than is guaranteed: for two counters with the same value after a merge, for
/// members outside another topology of the same number, for removals and writes that went on after their callers, and for
/// events that a listener received before the gap that it was owed.
#[test]
fn seeds_that_broke_no_guarantee_pass() {
    for (members, seed) in [(6, 190), (6, 505), (4, 80_008), (6, 80_003), (6, 80_540), (5, 80_336)] {
        run(&plain(members).without_listeners().without_stores(), seed)
            .unwrap_or_else(|violation| panic!("{violation}"));
    }
    for (members, seed) in [(2, 99), (5, 3_175)] {
        run(&plain(members), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// Expired entries stayed in memory or in a store while a member listened, because the primary had never had them. Entries
/// that they had replaced came back at a merge, or with a segment in transfer. Listeners did not receive the expiration of an
/// entry that only a store had, or of one whose segment had to be requested again. Or they received it without the previous
/// value, because the primary's own topology of that number was without them.
#[test]
fn seeds_with_late_expiry_pass() {
    let workload = WorkloadMix { lifespans: true, ..WorkloadMix::NONE };
    let before = [(3, 830_006), (2, 830_033), (4, 830_050), (3, 830_019), (3, 830_035)];
    for (members, seed) in before.into_iter().chain([(4, 830_055), (4, 830_071), (3, 830_116), (4, 830_088)])
    {
        let plan = Plan::new("tcp.xml", members).with_workload(workload);
        run(&plan, seed).unwrap_or_else(|violation| panic!("{members} members: {violation}"));
    }
}

/// Entries with max-idle. Entries that they had replaced came back at a merge, because the primary that had removed the
/// expired ones did not remember that; and a primary was lost that alone knew of an entry's last use.
#[test]
fn used_entry_stays_and_idle_entry_expires() {
    let workload = WorkloadMix { idle: true, ..WorkloadMix::NONE };
    for (members, seed) in
        [(2, 0), (3, 1), (4, 2), (5, 3), (3, 860_107), (5, 860_107), (6, 860_114), (6, 862_045)]
    {
        let plan = Plan::new("tcp.xml", members).with_workload(workload);
        run(&plan, seed).unwrap_or_else(|violation| panic!("{members} members: {violation}"));
    }
}

/// A write before all members were killed had not reached all owners, and had expired when they came back: one owner took the
/// entry that it had replaced for removed, and another one had that entry.
#[test]
fn returning_owners_agree_on_entries_replaced_by_expired_ones() {
    run(
        &Plan::new("tcp.xml", 6).with_workload(WorkloadMix {
            idle: false,
            listeners_end: false,
            backpressure: false,
            ..WorkloadMix::ALL
        }),
        833_040,
    )
    .unwrap_or_else(|violation| panic!("{violation}"));
}

/// Calls wait until other members may send more, and reads wait at owners until there is room for their responses.
#[test]
fn values_of_other_members_are_bounded_and_arrive_under_backpressure() {
    let workload = WorkloadMix { backpressure: true, ..WorkloadMix::NONE };
    let modes = [CacheMode::Distributed { owners: 1 }, CacheMode::Distributed { owners: 2 }];
    let (mut waited, mut held) = (0, 0);
    for (mode, seed) in modes.into_iter().flat_map(|mode| (0..6).map(move |seed| (mode, seed))) {
        let plan = Plan::new("tcp.xml", 3 + (seed as usize) % 3).with_workload(workload).with_mode(mode);
        let report = run(&plan, seed).unwrap_or_else(|violation| panic!("{mode:?}: {violation}"));
        waited += report.waited;
        held += report.held;
    }
    assert!(waited > 0 && held > 0, "{waited} calls waited at callers, {held} reads at owners");
}

#[test]
fn all_operations_succeed_without_faults() {
    let plan = plain(4).with_faults(Mix::NONE);
    for seed in 0..3 {
        let report = run(&plan, seed).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(report.succeeded, report.operations, "seed {seed}");
        assert!(report.operations > 1_000, "{report:?}");
    }
}

#[test]
fn half_of_the_seeds_have_iterating_clients() {
    let quiet = plain(3).with_faults(Mix::NONE).without_stores();
    let (mut walking, mut iterations) = (0, 0);
    for seed in 0..8 {
        let report = run(&quiet, seed).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(report.refused_iterations, 0, "seed {seed}");
        walking += usize::from(report.iterations > 0);
        iterations += report.iterations;
    }
    assert!(
        (2..=6).contains(&walking) && iterations > 100 * walking,
        "{walking} seeds with {iterations} walks"
    );
}

#[test]
fn two_of_five_seeds_have_listeners() {
    let quiet = plain(3).with_faults(Mix::NONE);
    let (mut listening, mut events) = (0, 0);
    for seed in 0..10 {
        let report = run(&quiet, seed).unwrap_or_else(|violation| panic!("{violation}"));
        listening += usize::from(report.events > 0);
        events += report.events;
        assert_eq!(run(&quiet.clone().without_listeners(), seed).map(|report| report.events), Ok(0));
    }
    assert!(
        (2..=6).contains(&listening) && events > 500 * listening,
        "{listening} seeds with {events} events"
    );
}

#[test]
fn two_of_five_seeds_have_stores() {
    let quiet = plain(3).with_faults(Mix::NONE);
    let (mut kept, mut beginnings, mut loads) = (0, 0, 0);
    for seed in 0..15 {
        let report = run(&quiet, seed).unwrap_or_else(|violation| panic!("{violation}"));
        let without =
            run(&quiet.clone().without_stores(), seed).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!((without.loads, without.beginnings), (0, 0));
        kept += usize::from(report != without);
        beginnings += report.beginnings;
        loads += report.loads;
    }
    assert!((3..=9).contains(&kept), "{kept} seeds with stores");
    assert!(beginnings >= 3 && loads > 1_000, "{beginnings} beginnings, {loads} loads");
}

/// Members and seeds with stores that have broken a rule. With passivation a backup learned that a write was superseded,
/// because its primary had the value only in its store. A cluster that was killed while members joined waited for members
/// that no node had ever been. One waited for members of a topology before its last life. A write that waited for a value was
/// done twice. A write that a member had under way when it left was not handed over, because the member had given it up and
/// counted it as finished.
#[test]
fn seeds_that_lost_stored_entries_pass() {
    for (members, seed) in
        [(5, 28), (4, 28), (4, 21), (3, 1_016), (4, 1_274), (6, 2_000), (5, 1_622), (6, 510_119)]
    {
        run(&plain(members), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// Records of callers that had gone stayed with owners whose primaries knew that they were finished, or had reported so under
/// another topology.
#[test]
fn records_of_departed_callers_are_removed() {
    run(&plain(4).without_stores(), 510_062).unwrap_or_else(|violation| panic!("{violation}"));
    for (members, seed) in [(4, 700_013), (5, 700_013), (6, 700_033)] {
        run(&plain(members), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// A cache went on from a topology before its degradation, and a member that had been unreachable received no gap. A removal
/// was undone with its primary after its event. Another removal was lost with a link, and had no event. A change was undone
/// after its event, because the primary and the member that had sent the event were removed at once. The same happened when
/// the primary was lost and the owner that had sent the event was an owner no more.
#[test]
fn seeds_that_lost_listener_events_pass() {
    for (members, seed) in [(6, 90_028), (5, 700_104)] {
        run(&plain(members).without_stores(), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
    for (members, seed) in [(3, 6_572), (6, 131_061)] {
        run(&plain(members), seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
    run(&plain(4).with_stores(), 5_020).unwrap_or_else(|violation| panic!("{violation}"));
}

/// Listeners of a local cache end, entries are written while no listener is there, and others begin: they received a gap.
#[test]
fn listeners_come_and_go_in_every_cache_mode_without_a_gap() {
    let modes = [
        CacheMode::Local,
        CacheMode::Invalidation,
        CacheMode::Replicated,
        CacheMode::Distributed { owners: 1 },
        CacheMode::Distributed { owners: 2 },
    ];
    let workload = WorkloadMix { listeners_end: true, ..WorkloadMix::NONE };
    for mode in modes {
        let plan = Plan::new("tcp.xml", 3).with_workload(workload).with_mode(mode);
        for seed in 0..3 {
            run(&plan, seed).unwrap_or_else(|violation| panic!("{mode:?}: {violation}"));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let plan = plain(3);
    let first = run(&plan, 7).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(Ok(first.clone()), run(&plan, 7));
    let other = run(&plan, 8).unwrap_or_else(|violation| panic!("{violation}"));
    assert_ne!(first.trace, other.trace);
}
