//! Sites with Java and Consort members: bridges of RELAY2 and RELAY3 between site masters of both kinds.

use consort_interop::cluster::{exit, join_all, same_view};
use consort_interop::{Member, PATIENCE, Setting, Tool, in_own_network};
use serde_json::{Value, json};

/// Ports of each cluster. FD_SOCK2 listens 100 above.
const LON: u16 = 7800;
const NYC: u16 = 8200;
const BRIDGE: u16 = 8600;

fn stack(port: u16, top: &str) -> String {
    format!(
        "<config xmlns=\"urn:org:jgroups\"><TCP bind_addr=\"127.0.0.1\" bind_port=\"{port}\" diag.enabled=\"false\"/>\
         <TCPPING initial_hosts=\"127.0.0.1[{port}]\" port_range=\"8\"/><MERGE3 min_interval=\"1s\" max_interval=\"3s\"/>\
         <FD_SOCK2/><FD_ALL3 timeout=\"10s\" interval=\"2s\"/><VERIFY_SUSPECT2 timeout=\"1s\"/><BARRIER/>\
         <pbcast.NAKACK2 use_mcast_xmit=\"false\"/><UNICAST3/><pbcast.STABLE/><pbcast.GMS join_timeout=\"1s\"/>\
         <MFC max_credits=\"2M\"/><UFC max_credits=\"2M\"/><FRAG2 frag_size=\"60K\"/>{top}</config>"
    )
}

/// The two sites of a test. Java wants the path of the bridge's stack.
struct Sites {
    lon: Setting,
    nyc: Setting,
}

fn sites(protocol: &str, masters: usize) -> Sites {
    let bridge = Setting::from_text("bridge.xml", &stack(BRIDGE, "")).config.display().to_string();
    let site = |name: &str| {
        format!(
            "<site name=\"{name}\"><bridges><bridge name=\"global\" config=\"{bridge}\"/></bridges></site>"
        )
    };
    let file = format!(
        "<RelayConfiguration xmlns=\"urn:jgroups:relay:1.0\"><sites>{}{}</sites></RelayConfiguration>",
        site("lon"),
        site("nyc")
    );
    let relay = Setting::from_text("relay.xml", &file).config.display().to_string();
    let top = |site: &str| {
        format!("<relay.{protocol} site=\"{site}\" config=\"{relay}\" max_site_masters=\"{masters}\"/>")
    };
    Sites {
        lon: Setting::from_text("lon.xml", &stack(LON, &top("lon"))),
        nyc: Setting::from_text("nyc.xml", &stack(NYC, &top("nyc"))),
    }
}

async fn member(setting: &Setting, name: &str, is_java: bool) -> Member {
    if is_java { setting.java(name).await } else { setting.consort(name).await }
}

/// Waits until the member knows that the site is up.
async fn knows(member: &mut Member, site: &str) {
    let known = async {
        while !member.run("sites").await["sites"].as_array().expect("sites").contains(&json!(site)) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    let outcome = tokio::time::timeout(PATIENCE, known).await;
    assert!(outcome.is_ok(), "{} does not know {site}", member.name());
}

async fn expect(member: &mut Member, sender: &str, count: u32) {
    let got: Value = member.run(&format!("expect {sender} {count} 30000")).await;
    let wanted = json!({ "received": count, "duplicates": 0, "out_of_order": 0 });
    assert_eq!(got, wanted, "{} from {sender}", member.name());
}

async fn reset(all: &mut [Member]) {
    for member in all {
        member.run("reset").await;
    }
}

/// All members multicast, and members of both sites get everything once and in order.
async fn multicasts_reach_both_sites(lon: &mut [Member], nyc: &mut [Member]) {
    reset(lon).await;
    reset(nyc).await;
    join_all(lon.iter_mut().chain(nyc.iter_mut()).map(|member| member.run("send 500 300"))).await;
    for (own, others, site) in [(0, 1, "lon"), (1, 0, "nyc")] {
        let names: [Vec<String>; 2] =
            [&*lon, &*nyc].map(|site| site.iter().map(|member| member.name().to_owned()).collect());
        let here = if own == 0 { &mut *lon } else { &mut *nyc };
        for member in here {
            for name in &names[own] {
                expect(member, name, 500).await;
            }
            let other = if site == "lon" { "nyc" } else { "lon" };
            for name in &names[others] {
                expect(member, &format!("{name}:{other}"), 500).await;
            }
        }
    }
}

/// Site masters of one kind at one side, and of the other kind at the other side; each site has members of both kinds.
async fn sites_of_both_kinds(protocol: &str, java_first: bool) {
    let Sites { lon, nyc } = sites(protocol, 1);
    let mut lon = vec![member(&lon, "A", java_first).await, member(&lon, "B", !java_first).await];
    let mut nyc = vec![member(&nyc, "X", !java_first).await, member(&nyc, "Y", java_first).await];
    same_view(&mut lon, "(2) [A, B]").await;
    same_view(&mut nyc, "(2) [X, Y]").await;
    knows(&mut lon[0], "nyc").await;
    knows(&mut nyc[0], "lon").await;
    assert_eq!(lon[0].run("sites").await["master"], true);
    assert_eq!(nyc[1].run("sites").await["master"], false);
    multicasts_reach_both_sites(&mut lon, &mut nyc).await;

    // To the site masters, and answers to the senders' addresses.
    reset(&mut lon).await;
    reset(&mut nyc).await;
    join_all(lon.iter_mut().map(|member| member.run("send 200 2000 site nyc"))).await;
    expect(&mut nyc[0], "A:lon", 200).await;
    expect(&mut nyc[0], "B:lon", 200).await;
    for sender in ["A:lon", "B:lon"] {
        nyc[0].run(&format!("send 100 100000 to {sender}")).await;
    }
    for member in &mut lon {
        expect(member, "X:nyc", 100).await;
    }
    // Calls of the site master and of a member that has sent a message.
    for caller in &mut lon {
        assert_eq!(
            caller.run("rpc @nyc hello 20000").await,
            json!({ "@nyc": "hello@X" }),
            "{}",
            caller.name()
        );
    }
    nyc[1].run("send 1 100").await;
    for caller in &mut lon {
        expect(caller, "Y:nyc", 1).await;
        assert_eq!(
            caller.run("rpc Y:nyc hello 20000").await,
            json!({ "Y:nyc": "hello@Y" }),
            "{}",
            caller.name()
        );
        let failed = caller.run("rpc Y:nyc fail 20000").await;
        assert!(
            failed["exception"].as_str().is_some_and(|text| text.contains("requested failure")),
            "{failed}"
        );
        let nowhere =
            caller.run("rpc @sfo hello 20000").await["exception"].as_str().unwrap_or_default().to_lowercase();
        assert!(["unreachable", "cannot be reached"].iter().any(|text| nowhere.contains(text)), "{nowhere}");
    }
    reset(&mut lon).await;
    // A site that does not exist.
    for member in &mut lon {
        member.run("send 1 100 site sfo").await;
        while member.run("sites").await["unreachable"] != json!(["sfo"]) {
            tokio::task::yield_now().await;
        }
    }

    // The other member becomes site master.
    nyc.remove(0).kill();
    same_view(&mut nyc, "(1) [Y]").await;
    lon.remove(0).kill();
    same_view(&mut lon, "(1) [B]").await;
    knows(&mut nyc[0], "lon").await;
    knows(&mut lon[0], "nyc").await;
    routes_are_new(&mut lon, &mut nyc).await;
    multicasts_reach_both_sites(&mut lon, &mut nyc).await;
    exit(lon).await;
    exit(nyc).await;
}

/// A member may know a site by its former site master: messages show that the new ones have routes.
async fn routes_are_new(lon: &mut [Member], nyc: &mut [Member]) {
    for (from, to, sender, site) in [(0, 1, "B:lon", "nyc"), (1, 0, "Y:nyc", "lon")] {
        let mut pair = [&mut lon[0], &mut nyc[0]];
        let arrives = async {
            loop {
                pair[from].run(&format!("send 1 100 site {site}")).await;
                if pair[to].run(&format!("expect {sender} 1 500")).await["received"] != json!(0) {
                    return;
                }
            }
        };
        let outcome = tokio::time::timeout(PATIENCE, arrives).await;
        assert!(outcome.is_ok(), "no message of {sender} arrives");
    }
}

#[test]
fn sites_with_a_java_and_a_consort_site_master() {
    in_own_network("sites_with_a_java_and_a_consort_site_master", sites_of_both_kinds("RELAY2", true));
}

#[test]
fn sites_with_a_consort_and_a_java_site_master() {
    in_own_network("sites_with_a_consort_and_a_java_site_master", sites_of_both_kinds("RELAY2", false));
}

#[test]
fn relay3_sites_with_a_java_and_a_consort_site_master() {
    in_own_network("relay3_sites_with_a_java_and_a_consort_site_master", sites_of_both_kinds("RELAY3", true));
}

#[test]
fn relay3_sites_with_a_consort_and_a_java_site_master() {
    in_own_network(
        "relay3_sites_with_a_consort_and_a_java_site_master",
        sites_of_both_kinds("RELAY3", false),
    );
}

/// S000-61: unicasts of a member keep their order over two site masters, also to a Java site and from it.
async fn order_with_several_site_masters(protocol: &str) {
    let Sites { lon, nyc } = sites(protocol, 2);
    let mut consort = Vec::new();
    for name in ["A", "B", "C"] {
        consort.push(lon.consort(name).await);
    }
    let mut java = Vec::new();
    for name in ["X", "Y", "Z"] {
        java.push(nyc.java(name).await);
    }
    same_view(&mut consort, "(3) [A, B, C]").await;
    same_view(&mut java, "(3) [X, Y, Z]").await;
    for master in &mut consort[..2] {
        knows(master, "nyc").await;
    }
    for master in &mut java[..2] {
        knows(master, "lon").await;
    }
    // Senders are known by their messages.
    java[2].run("send 1 100 site lon").await;
    let mut known = false;
    for member in &mut consort[..2] {
        known |= member.run("expect Z:nyc 1 2000").await["received"] == json!(1);
    }
    assert!(known, "the message of Z has arrived at a site master");
    join_all(consort.iter_mut().map(|member| member.run("send 2000 300 site nyc"))).await;
    let mut total = 0;
    for name in ["A", "B", "C"] {
        for master in &mut java[..2] {
            let got = master.run(&format!("expect {name}:lon 2000 3000")).await;
            total += got["received"].as_u64().expect("a count");
            assert_eq!((&got["duplicates"], &got["out_of_order"]), (&json!(0), &json!(0)), "{name}: {got}");
        }
    }
    assert_eq!(total, 6_000);
    exit(consort).await;
    exit(java).await;
}

#[test]
fn order_holds_from_several_consort_site_masters_to_java() {
    in_own_network(
        "order_holds_from_several_consort_site_masters_to_java",
        order_with_several_site_masters("RELAY2"),
    );
}

#[test]
fn order_holds_with_relay3_from_several_consort_site_masters_to_java() {
    in_own_network(
        "order_holds_with_relay3_from_several_consort_site_masters_to_java",
        order_with_several_site_masters("RELAY3"),
    );
}

/// `consort relay` and org.jgroups.demos.RelayDemo talk.
#[test]
fn relay_demos_talk() {
    in_own_network("relay_demos_talk", demos_talk("RELAY2"));
}

#[test]
fn relay_demos_talk_with_relay3() {
    in_own_network("relay_demos_talk_with_relay3", demos_talk("RELAY3"));
}

async fn demos_talk(protocol: &'static str) {
    let Sites { lon, nyc } = sites(protocol, 1);
    let config = nyc.config.display().to_string();
    let mut theirs = Tool::java(&nyc, "org.jgroups.demos.RelayDemo", &["-props", &config, "-name", "Java"]);
    theirs.wait_for(&["Local view", "[Java]"]);
    let mut ours = Tool::consort_member(&lon, &["relay", "--name=Consort"]);
    ours.wait_for(&["-- site: lon"]);
    ours.wait_for(&["** up: nyc"]);
    // The demo has its own view of the bridge.
    theirs.wait_for(&[": UP(", "lon"]);
    ours.type_line("hello from here");
    theirs.wait_for(&["<< hello from here from Consort:lon"]);
    ours.wait_for(&["<< response from Java:nyc"]);
    theirs.type_line("hello from there");
    ours.wait_for(&["<< hello from there from Java:nyc"]);
    theirs.wait_for(&["<< response from Consort:lon"]);
    ours.type_line("to sfo hello");
    ours.wait_for(&["** unreachable: sfo"]);
    if protocol == "RELAY3" {
        ours.type_line("topo");
        ours.wait_for(&["nyc: ", "Java"]);
    }
}
