//! Counters and fork channels of Java and Consort members in one cluster.

use consort_interop::cluster::{everything_came, exit, join_all, reset, same_view, two_and_two};
use consort_interop::{Member, Setting, in_own_network};
use serde_json::json;

/// The end of `tcp.xml`, above which further protocols stand.
const TOP: &str = "<pbcast.STATE_TRANSFER/>";

fn setting(protocol: &str) -> Setting {
    Setting::edited("tcp.xml", &[(TOP, &format!("{TOP}{protocol}"))])
}

async fn counter(member: &mut Member, command: &str) -> i64 {
    let answer = member.run(&format!("counter {command}")).await;
    answer["value"].as_i64().unwrap_or_else(|| panic!("{command}: {answer}"))
}

/// Every member adds 1 at the same time, and all see the sum.
async fn all_count(members: &mut [Member], expected: &mut i64) {
    let adding = members.iter_mut().map(|member| counter(member, "add total 1 200"));
    let last = join_all(adding).await;
    *expected += 200 * members.len() as i64;
    assert!(last.contains(expected), "{last:?} of {expected}");
    for member in members {
        assert_eq!(counter(member, "get total").await, *expected, "at {}", member.name());
    }
}

/// Waits until a new coordinator serves and all members have repeated the operations that it discarded. A member of JGroups
/// repeats every operation without a response when the coordinator has collected the counters, so that one that is begun just
/// before may count twice. The coordinator's multicast follows that request to repeat them.
async fn is_reconciled(members: &mut [Member]) {
    for member in members.iter_mut() {
        counter(member, "get total").await;
    }
    reset(members).await;
    let coordinator = members[0].name().to_owned();
    members[0].run("send 1 10").await;
    everything_came(members, &[coordinator], 1).await;
}

/// Coordinators of both kinds hold the counters in turn: each is killed, the next one leaves.
async fn counters_survive(java_first: bool) {
    let setting = setting("<COUNTER num_backups=\"1\" timeout=\"30s\"/>");
    let mut members = two_and_two(&setting, java_first).await;
    let mut expected = 7;
    for member in &mut members {
        assert_eq!(counter(member, "create total 7").await, 7);
    }
    all_count(&mut members, &mut expected).await;
    // Operations of each kind of member with a coordinator of each kind.
    for member in &mut members[..2] {
        let name = member.name().to_owned();
        assert_eq!(counter(member, &format!("create {name} -3")).await, -3);
        assert_eq!(counter(member, &format!("swap {name} 0 1")).await, -3, "the value is another one");
        assert_eq!(counter(member, &format!("swap {name} -3 9000000000")).await, -3);
        assert_eq!(counter(member, &format!("add {name} -1")).await, 8_999_999_999);
        assert_eq!(counter(member, &format!("set {name} 5")).await, 5);
        assert_eq!(counter(member, &format!("get {name}")).await, 5);
    }
    assert_eq!(members[1].run("counter delete B").await, json!({}));
    assert_eq!(counter(&mut members[1], "create B 1").await, 1);
    // The caller is the backup. One of JGroups keeps the new value only if it has got it before the response.
    assert_eq!(counter(&mut members[1], &format!("swap total {expected} 10000")).await, expected);
    expected = 10_000;
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    is_reconciled(&mut members).await;
    all_count(&mut members, &mut expected).await;
    members.remove(0).kill();
    same_view(&mut members, "(2) [C, D]").await;
    is_reconciled(&mut members).await;
    all_count(&mut members, &mut expected).await;
    members.remove(0).exit().await;
    same_view(&mut members, "(1) [D]").await;
    is_reconciled(&mut members).await;
    all_count(&mut members, &mut expected).await;
    assert_eq!(counter(&mut members[0], "create A 0").await, 5);
    exit(members).await;
}

#[test]
fn counters_with_a_java_coordinator() {
    in_own_network("counters_with_a_java_coordinator", counters_survive(true));
}

#[test]
fn counters_with_a_consort_coordinator() {
    in_own_network("counters_with_a_consort_coordinator", counters_survive(false));
}

/// Members count while their coordinator is killed. Each operation is answered; one that the coordinator has carried out
/// without its response counts twice, so that the value may be higher by one for each caller.
async fn counting_while_the_coordinator_is_killed(java_first: bool) {
    let setting = setting("<COUNTER timeout=\"60s\"/>");
    let mut members = two_and_two(&setting, java_first).await;
    for member in &mut members {
        assert_eq!(counter(member, "create total 0").await, 0);
    }
    let killed = members.remove(0);
    let mut expected = 0;
    all_count(&mut members, &mut expected).await;
    let adding = join_all(members.iter_mut().map(|member| counter(member, "add total 1 2000")));
    // The members have their commands before the coordinator is killed.
    tokio::join!(adding, async { killed.kill() });
    expected += 6_000;
    let value = counter(&mut members[2], "get total").await;
    assert!((expected..=expected + 3).contains(&value), "{value} of {expected}");
    for member in &mut members {
        assert_eq!(counter(member, "get total").await, value, "at {}", member.name());
    }
    exit(members).await;
}

#[test]
fn counting_while_a_java_coordinator_is_killed() {
    in_own_network(
        "counting_while_a_java_coordinator_is_killed",
        counting_while_the_coordinator_is_killed(true),
    );
}

#[test]
fn counting_while_a_consort_coordinator_is_killed() {
    in_own_network(
        "counting_while_a_consort_coordinator_is_killed",
        counting_while_the_coordinator_is_killed(false),
    );
}

async fn received(member: &mut Member, fork: &str, count: usize) -> Vec<String> {
    let answer = member.run(&format!("fork expect {fork} {count} 20000")).await;
    let mut texts: Vec<String> = serde_json::from_value(answer["texts"].clone()).expect("texts");
    texts.sort();
    texts
}

/// Fork channels of both kinds of members reach those with their ids only. The state of the channel passes between members
/// of both kinds: STATE transfers it with those of fork channels, STATE_TRANSFER alone.
async fn forked(java_first: bool, state_protocol: &str) {
    let setting = Setting::edited("tcp.xml", &[(TOP, &format!("{state_protocol}<FORK/>"))]);
    let mut members = two_and_two(&setting, java_first).await;
    for member in &mut members {
        member.run("fork open s one").await;
        member.run("fork open s two").await;
    }
    for from in 0..4 {
        members[from].run(&format!("fork send s one multicast-{from}")).await;
        let to = members[(from + 1) % 4].name().to_owned();
        members[from].run(&format!("fork send s one unicast-{from} to {to}")).await;
    }
    members[0].run("fork send s two other").await;
    let names = ["A", "B", "C", "D"];
    for (at, member) in members.iter_mut().enumerate() {
        let mut expected: Vec<String> =
            names.iter().enumerate().map(|(from, name)| format!("multicast-{from}@{name}")).collect();
        let before = (at + 3) % 4;
        expected.push(format!("unicast-{before}@{}", names[before]));
        expected.sort();
        assert_eq!(received(member, "s one", 5).await, expected, "at {}", member.name());
        assert_eq!(received(member, "s two", 1).await, ["other@A"]);
        let view = member.run("fork view s one").await;
        assert!(view["view"].as_str().is_some_and(|view| view.contains("(4) [A, B, C, D]")), "{view}");
    }
    for (provider, requester) in [(0, 1), (1, 0)] {
        let name = members[provider].name().to_owned();
        members[provider].run(&format!("state set of-{name}")).await;
        let fetched = members[requester].run(&format!("state fetch {name}")).await;
        assert_eq!(fetched, json!({ "state": format!("of-{name}") }));
    }
    // A closed fork channel gets nothing, and the others go on without the coordinator.
    members[1].run("fork close s two").await;
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    members[1].run("fork send s two later").await;
    for member in &mut members[1..] {
        assert_eq!(received(member, "s two", 2).await, ["later@C", "other@A"], "at {}", member.name());
    }
    // The member without the fork channel has discarded the message when it gets the next one of the same sender.
    members[1].run("fork send s one after").await;
    assert!(received(&mut members[0], "s one", 6).await.contains(&"after@C".to_owned()));
    members[0].run("fork open s two").await;
    members[2].run("fork send s two last").await;
    assert_eq!(received(&mut members[0], "s two", 1).await, ["last@D"]);
    exit(members).await;
}

#[test]
fn fork_channels_with_a_java_coordinator() {
    in_own_network("fork_channels_with_a_java_coordinator", forked(true, "<pbcast.STATE/>"));
}

#[test]
fn fork_channels_with_a_consort_coordinator() {
    in_own_network("fork_channels_with_a_consort_coordinator", forked(false, TOP));
}
