//! Members of both kinds that find each other through routers of both kinds (TCPGOSSIP), or whose messages go through
//! them (TUNNEL), also within TLS.

use std::path::{Path, PathBuf};
use std::time::Instant;

use consort_interop::cluster::{everybody_multicasts, exit, same_view, two_and_two};
use consort_interop::{PATIENCE, Setting, Tool, in_own_network, java_program};
use consort_testkit::Authority;

/// Where the router of a test is: each test has a network of its own.
const ROUTER: &str = "127.0.0.1:12001";

/// Our router.
fn ours() -> Tool {
    ours_at(12001, &[])
}

fn ours_at(port: u16, options: &[&str]) -> Tool {
    let port = port.to_string();
    let mut router = Tool::consort_with_log(&[&["router", "--port", &port], options].concat());
    router.wait_for(&[&format!("-- router: members connect to 127.0.0.1:{port}")]);
    router
}

/// JGroups' router.
fn theirs() -> Tool {
    theirs_at(12001, &[])
}

fn theirs_at(port: u16, options: &[&str]) -> Tool {
    let port = port.to_string();
    let place = ["-bind_addr", "127.0.0.1", "-port", &port, "-diag_enabled", "false"];
    let arguments = [&place, options].concat();
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

/// JGroups' tunnel.xml with these routers.
fn tunnel(routers: &str, attributes: &str) -> Setting {
    let own = format!("<TUNNEL reconnect_interval=\"500\" bind_addr=\"127.0.0.1\" {attributes} ");
    let merging = "<MERGE3 min_interval=\"1s\" max_interval=\"3s\"/>";
    let mut setting = Setting::edited("tunnel.xml", &[("<TUNNEL", &own), ("<MERGE3/>", merging)]);
    setting.properties.push(("jgroups.tunnel.gossip_router_hosts".to_owned(), routers.to_owned()));
    setting
}

/// Two members of each kind talk through a router. One of each kind is killed, one leaves, and one joins.
async fn talk_through(java_first: bool) {
    let setting = tunnel("127.0.0.1[12001]", "");
    let mut members = two_and_two(&setting, java_first).await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    everybody_multicasts(&mut members, 10, 1_000_000).await;
    assert_eq!(registered(&setting), ["A", "B", "C", "D"]);
    // The router tells the others at once.
    members.remove(2).kill();
    same_view(&mut members, "(3) [A, B, D]").await;
    members.remove(2).kill();
    same_view(&mut members, "(2) [A, B]").await;
    members.push(if java_first { setting.consort("E").await } else { setting.java("E").await });
    same_view(&mut members, "(3) [A, B, E]").await;
    // The coordinator leaves in order.
    members.remove(0).exit().await;
    same_view(&mut members, "(2) [B, E]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    until_registered(&setting, &["B", "E"]);
    exit(members).await;
    until_registered(&setting, &[]);
}

#[test]
fn members_of_both_kinds_talk_through_our_router() {
    in_own_network("members_of_both_kinds_talk_through_our_router", async {
        for java_first in [true, false] {
            let mut router = ours();
            talk_through(java_first).await;
            router.signal("TERM");
            router.wait_for_end();
            assert!(router.output.iter().all(|line| !line.contains("WARN")), "{:?}", router.output);
        }
    });
}

#[test]
fn members_of_both_kinds_talk_through_gossip_router() {
    in_own_network("members_of_both_kinds_talk_through_gossip_router", async {
        for java_first in [true, false] {
            let mut router = theirs();
            talk_through(java_first).await;
            router.signal("TERM");
            router.wait_for_death();
        }
    });
}

/// Of a router of each kind, one is killed and starts again while members send.
#[test]
fn members_of_both_kinds_go_on_while_one_of_two_routers_is_killed() {
    in_own_network("members_of_both_kinds_go_on_while_one_of_two_routers_is_killed", async {
        let (mut first, mut second) = (ours(), theirs_at(12002, &[]));
        let setting = tunnel("127.0.0.1[12001],127.0.0.1[12002]", "");
        let mut members = two_and_two(&setting, false).await;
        everybody_multicasts(&mut members, 1_000, 100).await;
        first.signal("KILL");
        first.wait_for_death();
        everybody_multicasts(&mut members, 1_000, 100).await;
        let _first = ours();
        until_registered(&setting, &["A", "B", "C", "D"]);
        second.signal("KILL");
        second.wait_for_death();
        everybody_multicasts(&mut members, 1_000, 100).await;
        same_view(&mut members, "(4) [A, B, C, D]").await;
        exit(members).await;
    });
}

const PASSWORD: &str = "changeit";

/// A PKCS12 store with this certificate, its key, and the authority.
fn pkcs12(authority: &Authority, own: &Path) -> PathBuf {
    let store = own.with_extension("p12");
    let mut making = java_program("consort.interop.KeyStores");
    making.arg(own).arg(authority.file()).arg(PASSWORD).arg(&store);
    assert!(making.status().expect("Java runs").success(), "{making:?}");
    store
}

/// The setting of the cluster with this member's files.
fn with(setting: &mut Setting, own: &Path, roots: &Path) {
    setting.properties.retain(|(name, _)| !name.starts_with("members."));
    for (name, path) in [("members.own", own), ("members.roots", roots)] {
        setting.properties.push((name.to_owned(), path.display().to_string()));
    }
}

async fn talk_over_tls(java_router: bool, java_first: bool) {
    let authority = Authority::new("routers-tls");
    let own = authority.certify_in_one("router", &["127.0.0.1"]);
    let text = |path: &Path| path.display().to_string();
    let mut router = if java_router {
        let store = text(&pkcs12(&authority, &own));
        theirs_at(
            12001,
            &[
                "-tls_keystore_path",
                &store,
                "-tls_keystore_password",
                PASSWORD,
                "-tls_truststore_path",
                &store,
                "-tls_truststore_password",
                PASSWORD,
                "-tls_client_auth",
                "need",
            ],
        )
    } else {
        let (own, roots) = (text(&own), text(&authority.file()));
        let options =
            ["--tls-cert", &own, "--tls-key", &own, "--tls-client-ca", &roots, "--tls-client-required"];
        ours_at(12001, &options)
    };
    let mut setting = tunnel(
        "127.0.0.1[12001]",
        &format!(
            "tls.enabled=\"true\" tls.keystore_path=\"${{members.own}}\" tls.keystore_password=\"{PASSWORD}\" \
             tls.truststore_path=\"${{members.roots}}\" tls.truststore_password=\"{PASSWORD}\""
        ),
    );
    let mut members = Vec::new();
    for (name, is_java) in [("A", java_first), ("B", !java_first), ("C", java_first), ("D", !java_first)] {
        let own = authority.certify_in_one(name, &["127.0.0.1"]);
        members.push(if is_java {
            let store = pkcs12(&authority, &own);
            with(&mut setting, &store, &store);
            setting.java(name).await
        } else {
            with(&mut setting, &own, &authority.file());
            setting.consort(name).await
        });
    }
    same_view(&mut members, "(4) [A, B, C, D]").await;
    everybody_multicasts(&mut members, 1_000, 100).await;
    everybody_multicasts(&mut members, 10, 100_000).await;
    // A member with a certificate of another authority is refused by both kinds of routers.
    let stranger = Authority::new("routers-tls-stranger");
    with(&mut setting, &stranger.certify_in_one("X", &["127.0.0.1"]), &authority.file());
    let mut alone = setting.consort("X").await;
    assert!(alone.view().await.contains("(1) [X]"), "{}", alone.view().await);
    same_view(&mut members, "(4) [A, B, C, D]").await;
    alone.exit().await;
    members.pop().expect("D").kill();
    members.pop().expect("C").kill();
    same_view(&mut members, "(2) [A, B]").await;
    exit(members).await;
    router.signal("TERM");
    if java_router {
        router.wait_for_death();
    } else {
        router.wait_for_end();
        let refused =
            |line: &String| line.contains("no TLS with") && line.contains("--tls-client-ca has signed");
        assert!(router.output.iter().any(refused), "{:?}", router.output);
    }
}

#[test]
fn members_of_both_kinds_talk_through_routers_of_both_kinds_over_tls() {
    in_own_network("members_of_both_kinds_talk_through_routers_of_both_kinds_over_tls", async {
        for (java_router, java_first) in [(false, true), (false, false), (true, false), (true, true)] {
            talk_over_tls(java_router, java_first).await;
        }
    });
}
