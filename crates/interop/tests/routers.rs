//! Members of both kinds that find each other through routers of both kinds (TCPGOSSIP), and JGroups' members whose messages
//! go through ours (TUNNEL).

use std::time::Instant;

use consort_interop::cluster::{everybody_multicasts, exit, same_view};
use consort_interop::{PATIENCE, Setting, Tool, in_own_network};

/// Where the router of a test is: each test has a network of its own.
const ROUTER: &str = "127.0.0.1:12001";

/// Our router.
fn ours() -> Tool {
    let mut router = Tool::consort_with_log(&["router"]);
    router.wait_for(&["-- router: members connect to 127.0.0.1:12001"]);
    router
}

/// JGroups' router.
fn theirs() -> Tool {
    let arguments = ["-bind_addr", "127.0.0.1", "-port", "12001", "-diag_enabled", "false"];
    let mut router = Tool::java(&Setting::new("tcp.xml"), "org.jgroups.stack.GossipRouter", &arguments);
    router.wait_for(&["GossipRouter started in", "listening on"]);
    router
}

/// JGroups' tcp.xml with a router instead of a list of hosts.
fn setting() -> Setting {
    Setting::edited(
        "tcp.xml",
        &[
            (
                "<TCPPING",
                "<TCPGOSSIP initial_hosts=\"127.0.0.1[12001]\" reconnect_interval=\"500\"/>\n    <!--",
            ),
            ("port_range=\"${jgroups.tcp.port_range:2}\"/>", "-->"),
            ("min_interval=\"10s\"", "min_interval=\"1s\""),
            ("max_interval=\"30s\"", "max_interval=\"3s\""),
        ],
    )
}

/// Returns the output of `consort router --members`, which is shown with errors of tests.
fn registered(setting: &Setting) -> Vec<String> {
    let output = Tool::run_consort(&["router", "--members", ROUTER]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let rows = text.lines().filter(|line| line.starts_with(&setting.cluster));
    let names = rows.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned);
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Waits until these are registered: routers hear of it by connections, which may begin and end after the views.
fn until_registered(setting: &Setting, expected: &[&str]) {
    let until = Instant::now() + PATIENCE;
    while registered(setting) != expected {
        assert!(Instant::now() < until, "{:?} instead of {expected:?}", registered(setting));
        std::thread::yield_now();
    }
}

/// Four members, two of each kind, find each other through a router.
async fn find_each_other(router: &mut Tool, java_first: bool) {
    let setting = setting();
    let mut members = Vec::new();
    for (name, is_java) in [("A", java_first), ("B", !java_first), ("C", java_first), ("D", !java_first)] {
        members.push(if is_java { setting.java(name).await } else { setting.consort(name).await });
    }
    same_view(&mut members, "(4) [").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    assert_eq!(registered(&setting), ["A", "B", "C", "D"]);
    let doctor = Tool::run_consort(&[
        "doctor",
        &format!("--config={}", setting.config.display()),
        &format!("--cluster={}", setting.cluster),
        "--bind=127.0.0.1",
    ]);
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(found.contains("router 127.0.0.1:12001") && found.contains("A at 127.0.0.1:780"), "{found}");
    // One leaves in order, the first of all, and one is killed.
    members.remove(0).exit().await;
    members.pop().expect("D").kill();
    same_view(&mut members, "(2) [").await;
    until_registered(&setting, &["B", "C"]);
    members.push(if java_first { setting.consort("E").await } else { setting.java("E").await });
    same_view(&mut members, "(3) [").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    exit(members).await;
    until_registered(&setting, &[]);
    router.signal("TERM");
}

/// S003-4
#[test]
fn members_of_both_kinds_find_each_other_through_our_router() {
    in_own_network("members_of_both_kinds_find_each_other_through_our_router", async {
        for java_first in [true, false] {
            let mut router = ours();
            find_each_other(&mut router, java_first).await;
            router.wait_for_end();
            assert!(
                router.output.iter().any(|line| line.contains("D is no longer registered in ")),
                "{:?}",
                router.output
            );
        }
    });
}

/// S003-4
#[test]
fn members_of_both_kinds_find_each_other_through_gossip_router() {
    in_own_network("members_of_both_kinds_find_each_other_through_gossip_router", async {
        for java_first in [true, false] {
            let mut router = theirs();
            find_each_other(&mut router, java_first).await;
            router.wait_for_death();
        }
    });
}

/// All messages between JGroups members with TUNNEL pass through our router. The captured session
/// (`crates/router/src/routes.rs`) shows that the router reports members that have gone.
#[test]
fn members_with_tunnels_talk_through_our_router() {
    in_own_network("members_with_tunnels_talk_through_our_router", async {
        let mut router = ours();
        let mut setting = Setting::new("tunnel.xml");
        setting
            .properties
            .push(("jgroups.tunnel.gossip_router_hosts".to_owned(), "127.0.0.1[12001]".to_owned()));
        let mut members = Vec::new();
        for name in ["A", "B", "C"] {
            members.push(setting.java(name).await);
        }
        same_view(&mut members, "(3) [").await;
        everybody_multicasts(&mut members, 1_000, 1_000).await;
        everybody_multicasts(&mut members, 10, 1_000_000).await;
        assert_eq!(registered(&setting), ["A", "B", "C"]);
        members.remove(1).kill();
        same_view(&mut members, "(2) [A, C]").await;
        exit(members).await;
        router.signal("TERM");
        router.wait_for_end();
        assert!(router.output.iter().all(|line| !line.contains("WARN")), "{:?}", router.output);
    });
}

/// Members go on without their router, and are known to the next one.
#[test]
fn members_register_again_at_a_restarted_router() {
    in_own_network("members_register_again_at_a_restarted_router", async {
        let setting = setting();
        let mut first = ours();
        let mut members = vec![setting.java("A").await, setting.consort("B").await];
        same_view(&mut members, "(2) [").await;
        first.signal("KILL");
        first.wait_for_death();
        everybody_multicasts(&mut members, 100, 1_000).await;
        let mut second = theirs();
        until_registered(&setting, &["A", "B"]);
        members.push(setting.consort("C").await);
        same_view(&mut members, "(3) [").await;
        exit(members).await;
        second.signal("TERM");
        second.wait_for_death();
    });
}
