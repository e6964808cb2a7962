//! Java and Consort members in one cluster (issue: Java interop, automated).

use consort_interop::cluster::{
    MUCH, everybody_multicasts, everything_came, exit, join_all, reset, same_view, two_and_two,
};
use consort_interop::{Kind, Member, Setting, in_own_network};
use serde_json::json;

macro_rules! for_each_stack {
    ($test:ident: $($name:ident $config:literal $java_first:literal),+ $(,)?) => {
        $(#[test]
        fn $name() {
            in_own_network(stringify!($name), $test($config, $java_first));
        })+
    };
}

/// 16 GB are delivered.
async fn multicasts(config: &str, java_first: bool) {
    let mut setting = Setting::new(config);
    if config == "tcp-new.xml" {
        // NAKACK4 counts messages, not bytes: 8,192 pieces of each of four members, of 50 KB on average, may lie in
        // one. That is 1.6 GB.
        setting.heap_mb = 2_500;
    }
    let mut members = two_and_two(&setting, java_first).await;
    for size in [1, 1_000, 100_000] {
        everybody_multicasts(&mut members, 10_000, size).await;
    }
    exit(members).await;
}

for_each_stack! { multicasts:
    multicasts_over_tcp_with_a_java_coordinator "tcp.xml" true,
    multicasts_over_tcp_with_a_consort_coordinator "tcp.xml" false,
    multicasts_over_udp_with_a_java_coordinator "udp.xml" true,
    multicasts_over_udp_with_a_consort_coordinator "udp.xml" false,
    multicasts_over_tcp_new_with_a_java_coordinator "tcp-new.xml" true,
    multicasts_over_tcp_new_with_a_consort_coordinator "tcp-new.xml" false,
}

/// Multicasts that are out of band come once to all, from either kind.
async fn out_of_band_multicasts(members: &mut [Member]) {
    for sender in [0, 1] {
        let name = members[sender].name().to_owned();
        reset(members).await;
        members[sender].run("send 1000 100 oob").await;
        everything_came(members, &[name], 1_000).await;
    }
}

/// Unicasts, OOB, RPC and state in all directions.
async fn one_to_one(config: &str, java_first: bool) {
    let setting = Setting::new(config);
    let mut members = two_and_two(&setting, java_first).await;
    for (from, to) in [(0, 1), (1, 0), (0, 2), (1, 3)] {
        let (from_name, to_name) = (members[from].name().to_owned(), members[to].name().to_owned());
        members[to].run("reset").await;
        members[from].run(&format!("send 1000 100 to {to_name}")).await;
        let seen = members[to].run(&format!("expect {from_name} 1000 20000")).await;
        assert_eq!(
            seen,
            json!({ "received": 1000, "duplicates": 0, "out_of_order": 0 }),
            "{from_name} to {to_name}"
        );
        members[to].run("reset").await;
        members[from].run(&format!("send 1000 100 to {to_name} oob")).await;
        let seen = members[to].run(&format!("expect {from_name} 1000 20000")).await;
        assert_eq!(
            seen,
            json!({ "received": 1000, "duplicates": 0, "out_of_order": 0 }),
            "OOB from {from_name} to {to_name}"
        );
    }
    out_of_band_multicasts(&mut members).await;
    for at in 0..2 {
        let own = members[at].name().to_owned();
        let other = members[1 - at].name().to_owned();
        let answer = members[at].run(&format!("rpc {other} hello 10000")).await;
        assert_eq!(answer, json!({ other.clone(): format!("hello@{other}") }), "from {own}");
        let all = members[at].run("rpc all hi 10000").await;
        assert_eq!(all, json!({ "A": "hi@A", "B": "hi@B", "C": "hi@C", "D": "hi@D" }), "from {own}");
        let failure = members[at].run(&format!("rpc {other} fail 10000")).await;
        let text = failure["exception"].as_str().unwrap_or_default();
        assert!(text.contains("requested failure"), "from {own}: {failure}");
    }
    members[0].run("state set of-A").await;
    assert_eq!(members[1].run("state fetch").await, json!({ "state": "of-A" }));
    members[1].run("state set of-B").await;
    assert_eq!(members[0].run("state fetch B").await, json!({ "state": "of-B" }));
    exit(members).await;
}

for_each_stack! { one_to_one:
    one_to_one_over_tcp_java_first "tcp.xml" true,
    one_to_one_over_tcp_consort_first "tcp.xml" false,
    one_to_one_over_udp_java_first "udp.xml" true,
    one_to_one_over_udp_consort_first "udp.xml" false,
    one_to_one_over_tcp_new_java_first "tcp-new.xml" true,
    one_to_one_over_tcp_new_consort_first "tcp-new.xml" false,
}

/// The coordinator is killed (`kill -9`), then the next one leaves; the others agree and go on.
async fn coordinators_go(config: &str, java_first: bool) {
    let setting = Setting::new(config);
    let mut members = two_and_two(&setting, java_first).await;
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    members.remove(0).exit().await;
    same_view(&mut members, "(2) [C, D]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    members.remove(0).kill();
    same_view(&mut members, "(1) [D]").await;
    exit(members).await;
}

for_each_stack! { coordinators_go:
    coordinators_go_over_tcp_java_first "tcp.xml" true,
    coordinators_go_over_tcp_consort_first "tcp.xml" false,
    coordinators_go_over_udp_java_first "udp.xml" true,
    coordinators_go_over_udp_consort_first "udp.xml" false,
    coordinators_go_over_tcp_new_java_first "tcp-new.xml" true,
    coordinators_go_over_tcp_new_consort_first "tcp-new.xml" false,
}

/// Consort's coordinator removes killed members of both kinds by proof: the verification would end after the test.
async fn crashes_are_proven(config: &str, java_first: bool) {
    assert!(!java_first, "JGroups waits for its verification");
    let setting =
        Setting::edited(config, &[("<VERIFY_SUSPECT2 timeout=\"1.5s\"", "<VERIFY_SUSPECT2 timeout=\"1h\"")]);
    let mut members = two_and_two(&setting, java_first).await;
    // Each has a connection to or from the coordinator: JGroups does not tell how a connection ended.
    members.remove(1).kill();
    same_view(&mut members, "(3) [A, C, D]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    members.remove(2).kill();
    same_view(&mut members, "(2) [A, C]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    members.remove(1).kill();
    same_view(&mut members, "(1) [A]").await;
    exit(members).await;
}

for_each_stack! { crashes_are_proven:
    crashes_are_proven_over_tcp "tcp.xml" false,
    crashes_are_proven_over_udp "udp.xml" false,
}

/// Merges soon enough to wait for.
const MERGED_SOON: [(&str, &str); 2] = [
    ("min_interval=\"10s\"", "min_interval=\"1s\""),
    ("max_interval=\"30s\"", "max_interval=\"3s\" check_interval=\"4s\""),
];

/// Failure detection and merging fast enough to wait for.
fn fast(config: &str) -> Setting {
    // Properties that JGroups' udp.xml leaves at their defaults.
    let detector = match config {
        "udp.xml" => "<FD_ALL3/>",
        _ => "<FD_ALL3 timeout=\"40s\" interval=\"5s\" />",
    };
    let detected_soon = [(detector, "<FD_ALL3 timeout=\"3s\" interval=\"500ms\" />")];
    Setting::edited(config, &[&detected_soon[..], &MERGED_SOON].concat())
}

/// Two coordinators of different kinds, each with a member of the other kind, merge back.
async fn partition(config: &str, java_first: bool) {
    let mut members = two_and_two(&fast(config), java_first).await;
    // A and B are of different kinds, and so are the members on their sides of the partition.
    members.swap(1, 3);
    for (member, ignored) in [(0, "B C"), (1, "B C"), (2, "A D"), (3, "A D")] {
        members[member].run(&format!("ignore {ignored}")).await;
    }
    same_view(&mut members[..2], "(2) [A, D]").await;
    same_view(&mut members[2..], "(2) [B, C]").await;
    for member in &mut members {
        member.run("ignore none").await;
    }
    same_view(&mut members, "(4) [").await;
    let text = members[0].view().await;
    assert!(text.starts_with("MergeView::") && text.contains("2 subgroups"), "{text}");
    everybody_multicasts(&mut members, 1_000, 100).await;
    exit(members).await;
}

for_each_stack! { partition:
    partition_over_tcp_java_first "tcp.xml" true,
    partition_over_tcp_consort_first "tcp.xml" false,
    partition_over_udp_java_first "udp.xml" true,
    partition_over_udp_consort_first "udp.xml" false,
    partition_over_tcp_new_java_first "tcp-new.xml" true,
    partition_over_tcp_new_consort_first "tcp-new.xml" false,
}

/// A tenth of a Java member's messages is dropped in both directions, and the rest is reordered.
async fn loss(config: &str, java_first: bool) {
    // A lost last message is found by the announcement that follows it; if that is lost too, by stability.
    let setting = match config {
        "tcp-new.xml" => Setting::new(config),
        _ => Setting::edited(config, &[("desired_avg_gossip=\"50s\"", "desired_avg_gossip=\"3s\"")]),
    };
    let mut members = two_and_two(&setting, java_first).await;
    for member in members.iter_mut().filter(|member| member.kind() == Kind::Java) {
        member.run("discard 0.1 0.1").await;
        member.run("shuffle on").await;
    }
    everybody_multicasts(&mut members, 2_000, 500).await;
    for member in members.iter_mut().filter(|member| member.kind() == Kind::Java) {
        member.run("shuffle off").await;
        member.run("discard 0 0").await;
    }
    exit(members).await;
}

for_each_stack! { loss:
    loss_over_tcp_java_first "tcp.xml" true,
    loss_over_tcp_consort_first "tcp.xml" false,
    loss_over_udp_java_first "udp.xml" true,
    loss_over_udp_consort_first "udp.xml" false,
    loss_over_tcp_new_java_first "tcp-new.xml" true,
    loss_over_tcp_new_consort_first "tcp-new.xml" false,
}

/// Messages of 1 KB, far more than may lie before a receiver: credits for 4 MB in any stock stack, or NAKACK4's window of
/// 8,192, and as many again that a Java member has taken out of it and not yet delivered.
const TOO_MANY: u32 = 30_000;

/// A slow receiver of either kind throttles senders of either kind, and nothing is lost.
async fn slow_receiver(config: &str, java_first: bool) {
    let setting = Setting::new(config);
    let mut members = two_and_two(&setting, java_first).await;
    // One of each kind.
    let senders = ["C", "D"].map(str::to_owned);
    for slow in [0, 1] {
        reset(&mut members).await;
        members[slow].run("slow 100").await;
        let command = format!("send {TOO_MANY} 1000");
        join_all(members[2..].iter_mut().map(|sender| sender.run_within(&command, MUCH))).await;
        for sender in &senders {
            let seen = members[slow].run(&format!("expect {sender} 0 0")).await;
            let received = seen["received"].as_u64().expect("a count");
            assert!(
                received > u64::from(TOO_MANY / 3),
                "{sender} has sent all when {} has {received}",
                members[slow].name()
            );
        }
        members[slow].run("slow 0").await;
        everything_came(&mut members, &senders, TOO_MANY).await;
    }
    exit(members).await;
}

for_each_stack! { slow_receiver:
    slow_receivers_over_tcp_java_first "tcp.xml" true,
    slow_receivers_over_tcp_consort_first "tcp.xml" false,
    slow_receivers_over_udp_java_first "udp.xml" true,
    slow_receivers_over_udp_consort_first "udp.xml" false,
    slow_receivers_over_tcp_new_java_first "tcp-new.xml" true,
    slow_receivers_over_tcp_new_consort_first "tcp-new.xml" false,
}

/// With RSVP in the stack, a send returns when all members of both kinds have the message.
async fn acknowledged_sends(config: &str, java_first: bool) {
    let above_frag = [("<pbcast.STATE_TRANSFER", "<RSVP/><pbcast.STATE_TRANSFER")];
    let setting = Setting::edited(config, &above_frag);
    let mut members = two_and_two(&setting, java_first).await;
    for sender in 0..2 {
        let name = members[sender].name().to_owned();
        for member in &mut members {
            member.run("reset").await;
        }
        members[sender].run("send 100 1000 rsvp").await;
        for member in &mut members {
            // Acknowledged means received: there is nothing to wait for.
            let seen = member.run(&format!("expect {name} 100 0")).await;
            assert_eq!(seen["received"], 100, "{} from {name}", member.name());
        }
    }
    exit(members).await;
}

for_each_stack! { acknowledged_sends:
    acknowledged_sends_over_tcp_java_first "tcp.xml" true,
    acknowledged_sends_over_tcp_consort_first "tcp.xml" false,
    acknowledged_sends_over_udp_java_first "udp.xml" true,
    acknowledged_sends_over_udp_consort_first "udp.xml" false,
    acknowledged_sends_over_tcp_new_java_first "tcp-new.xml" true,
    acknowledged_sends_over_tcp_new_consort_first "tcp-new.xml" false,
}

/// Members of both kinds find each other through files that either kind writes. A Java member that joins a Java member that way
/// may stand alone for a moment on a busy machine: then they merge, and soon.
async fn files(config: &str, java_first: bool) {
    let shared = std::env::temp_dir().join(format!("consort-files-{}-{java_first}", std::process::id()));
    let file_ping = format!("<FILE_PING location=\"{}\"", shared.display());
    let found_through_files = [
        ("<TCPPING", &*file_ping),
        ("initial_hosts=\"${jgroups.tcpping.initial_hosts:localhost[7800]}\"", ""),
        ("port_range=\"${jgroups.tcp.port_range:2}\"/>", "/>"),
    ];
    let setting = Setting::edited(config, &[&found_through_files[..], &MERGED_SOON].concat());
    let mut members = Vec::new();
    for (name, is_java) in [("A", java_first), ("B", !java_first), ("C", java_first), ("D", !java_first)] {
        members.push(if is_java { setting.java(name).await } else { setting.consort(name).await });
    }
    same_view(&mut members, "(4) [").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    // The next coordinator writes files, too, and A removes its own.
    members.remove(0).exit().await;
    same_view(&mut members, "(3) [").await;
    members.push(if java_first { setting.java("E").await } else { setting.consort("E").await });
    same_view(&mut members, "(4) [").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    exit(members).await;
    std::fs::remove_dir_all(&shared).expect("members have written files");
}

for_each_stack! { files:
    files_with_a_java_coordinator "tcp.xml" true,
    files_with_a_consort_coordinator "tcp.xml" false,
}

/// Coordinators of which each knows only a Consort member that starts later learn of each other through that.
async fn known_by_a_third(config: &str, java_first: bool) {
    let third_only = [
        (
            "initial_hosts=\"${jgroups.tcpping.initial_hosts:localhost[7800]}\"",
            "initial_hosts=\"127.0.0.1[7802]\"",
        ),
        ("port_range=\"${jgroups.tcp.port_range:2}\"/>", "port_range=\"0\"/>"),
    ];
    let setting = Setting::edited(config, &[&third_only[..], &MERGED_SOON].concat());
    let first = if java_first { setting.java("A").await } else { setting.consort("A").await };
    let mut members = vec![first, setting.java("B").await];
    for (at, alone) in [(0, "(1) [A]"), (1, "(1) [B]")] {
        same_view(&mut members[at..=at], alone).await;
    }
    members.push(setting.consort("C").await);
    same_view(&mut members, "(3) [").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    exit(members).await;
}

for_each_stack! { known_by_a_third:
    two_java_coordinators_known_by_a_third_member_merge "tcp.xml" true,
    coordinators_of_both_kinds_known_by_a_third_member_merge "tcp.xml" false,
}

/// A check of the harness: JGroups with JGroups must pass the tests that Consort has to pass.
async fn java_alone(config: &str, _: bool) {
    let setting = Setting::new(config);
    let mut members = vec![setting.java("A").await, setting.java("B").await];
    // Where B has not heard of A in time, each is alone until they merge, and either may come first.
    same_view(&mut members, "(2) [").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    exit(members).await;
}

for_each_stack! { java_alone:
    java_alone_over_tcp "tcp.xml" true,
    java_alone_over_udp "udp.xml" true,
}
