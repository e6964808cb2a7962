//! Stacks with protocols that the stock stacks lack, in clusters of Java and Consort members.

use consort_interop::cluster::{everybody_multicasts, exit, same_view, two_and_two};
use consort_interop::{Member, Setting, in_own_network};
use consort_testkit::kubernetes::{FakeKubernetes, pod, pod_list};
use serde_json::json;

/// The end of `tcp.xml`, above which further protocols stand.
const TOP: &str = "<pbcast.STATE_TRANSFER/>";

/// A unicast of each kind of member to the other, regular and out of band, and a call each way.
async fn one_to_one(members: &mut [Member], size: usize) {
    for (from, to) in [(0, 1), (1, 0)] {
        let (from_name, to_name) = (members[from].name().to_owned(), members[to].name().to_owned());
        for option in ["", " oob"] {
            members[to].run("reset").await;
            members[from].run(&format!("send 200 {size} to {to_name}{option}")).await;
            let seen = members[to].run(&format!("expect {from_name} 200 20000")).await;
            let wanted = json!({ "received": 200, "duplicates": 0, "out_of_order": 0 });
            assert_eq!(seen, wanted, "{from_name} to {to_name}{option}");
        }
        let text = "x".repeat(size);
        let answer = members[from].run(&format!("rpc {to_name} {text} 10000")).await;
        assert_eq!(answer, json!({ to_name.clone(): format!("{text}@{to_name}") }), "from {from_name}");
    }
}

/// Returns an attribute of a protocol at each member, as JGroups' own tool shows it to a Java member.
async fn attribute(java: &mut Member, protocol: &str, name: &str) -> Vec<u64> {
    let answer = java.run(&format!("probe -tcp true -addr 127.0.0.1 jmx={protocol}.{name}")).await;
    let text = answer["output"].as_str().expect("an output").to_owned();
    let start = format!("{{{name}=");
    let values = text.split(start.as_str()).skip(1).map(|rest| {
        let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == ',').collect();
        digits.replace(',', "").parse().unwrap_or_else(|_| panic!("{protocol}.{name}: {text}"))
    });
    values.collect()
}

/// COMPRESS and the protocols for diagnosis in all members: messages of each kind of member are compressed and reach
/// the members of the other kind.
async fn compressed_and_observed(java_first: bool) {
    let above = format!(
        "<COMPRESS min_size=\"300\" compression_level=\"6\" pool_size=\"1\"/><SIZE/><STATS/>\
         <HDRS print_up=\"false\" print_down=\"false\"/><PERF avg_size=\"100\"/><NON_BLOCKING_SENDS/>\
         <SIZE2 sizes=\"1,1000,1000000\"/><RATE/><RATE_LIMITER2 max_bytes=\"100M\"/>\
         <RATE_LIMITER max_bytes=\"4M\" time_period=\"100\"/><INJECT_VIEW/>{TOP}"
    );
    let setting = Setting::edited("tcp.xml", &[(TOP, &above)]);
    let mut members = two_and_two(&setting, java_first).await;
    for size in [100, 2_000, 200_000] {
        everybody_multicasts(&mut members, 200, size).await;
        one_to_one(&mut members, size.min(20_000)).await;
    }
    members[0].run("state set of-A").await;
    assert_eq!(members[1].run("state fetch").await, json!({ "state": "of-A" }));
    // Each member has compressed its own multicasts and decompressed those of all members.
    let java = &mut members[usize::from(!java_first)];
    for (name, least) in [("num_compressions", 400), ("num_uncompressions", 1_600)] {
        let counts = attribute(java, "COMPRESS", name).await;
        assert!(counts.len() == 4 && counts.iter().all(|&count| count >= least), "{name}: {counts:?}");
    }
    // All messages are within the ranges of SIZE2, but those without payload.
    let counts = attribute(java, "SIZE2", "num_up_samples").await;
    assert!(counts.len() == 4 && counts.iter().all(|&count| count >= 2_400), "{counts:?}");
    exit(members).await;
}

#[test]
fn compressed_messages_with_a_java_coordinator() {
    in_own_network("compressed_messages_with_a_java_coordinator", compressed_and_observed(true));
}

#[test]
fn compressed_messages_with_a_consort_coordinator() {
    in_own_network("compressed_messages_with_a_consort_coordinator", compressed_and_observed(false));
}

/// Fragmentation by FRAG or FRAG3, NAKACK3, the state in chunks, and a killed coordinator that FD_ALL or FD_ALL2 suspects.
async fn older_protocols(fragmentation: &str, detection: &str, java_first: bool) {
    let detection = format!("<{detection} timeout=\"3s\" interval=\"500ms\"/>");
    let fragmentation = format!("<{fragmentation} frag_size=\"60K\"");
    let setting = Setting::edited(
        "tcp.xml",
        &[
            ("<FD_SOCK2/>", ""),
            ("<FD_ALL3 timeout=\"40s\" interval=\"5s\" />", &detection),
            ("<pbcast.NAKACK2", "<NAKACK3"),
            ("<FRAG2 frag_size=\"60K\"", &fragmentation),
            (TOP, "<pbcast.STATE buffer_size=\"1000\"/>"),
        ],
    );
    let mut members = two_and_two(&setting, java_first).await;
    for size in [100, 200_000] {
        everybody_multicasts(&mut members, 200, size).await;
        one_to_one(&mut members, size.min(20_000)).await;
    }
    // A Java member describes a long state by its length and its CRC-32, here as zlib calculates it.
    for (provider, requester, crc32) in [(0, 1, 1_087_190_541_u32), (1, 0, 377_059_627)] {
        let (name, state) =
            (members[provider].name().to_owned(), format!("of-{provider}-{}", "x".repeat(5_000)));
        members[provider].run(&format!("state set {state}")).await;
        let fetched = members[requester].run(&format!("state fetch {name}")).await;
        let is_java = (requester == 0) == java_first;
        let expected = if is_java {
            json!({ "crc32": crc32, "length": state.len() })
        } else {
            json!({ "state": state })
        };
        assert_eq!(fetched, expected, "from {name}");
    }
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    everybody_multicasts(&mut members, 200, 100_000).await;
    exit(members).await;
}

#[test]
fn frag_and_fd_all_with_a_java_coordinator() {
    in_own_network("frag_and_fd_all_with_a_java_coordinator", older_protocols("FRAG", "FD_ALL", true));
}

#[test]
fn frag_and_fd_all_with_a_consort_coordinator() {
    in_own_network("frag_and_fd_all_with_a_consort_coordinator", older_protocols("FRAG", "FD_ALL", false));
}

#[test]
fn frag3_and_fd_all2_with_a_java_coordinator() {
    in_own_network("frag3_and_fd_all2_with_a_java_coordinator", older_protocols("FRAG3", "FD_ALL2", true));
}

#[test]
fn frag3_and_fd_all2_with_a_consort_coordinator() {
    in_own_network(
        "frag3_and_fd_all2_with_a_consort_coordinator",
        older_protocols("FRAG3", "FD_ALL2", false),
    );
}

/// Members of both kinds are found by the pods that the API of Kubernetes lists, also after the first one was killed.
async fn found_by_pods(java_first: bool) {
    let api = FakeKubernetes::start(|_| pod_list(vec![pod("grid", "127.0.0.1")]));
    let kube_ping = format!(
        "<org.jgroups.protocols.kubernetes.KUBE_PING masterHost=\"127.0.0.1\" masterPort=\"{}\" namespace=\"shop\" \
         labels=\"app=grid\" caCertFile=\"{}\" saTokenFile=\"{}\" async_discovery=\"true\"",
        api.port(),
        api.file("ca.crt"),
        api.file("token")
    );
    let hosts = "initial_hosts=\"${jgroups.tcpping.initial_hosts:localhost[7800]}\"";
    let replacements = [("<TCPPING async_discovery=\"true\"", &*kube_ping), (hosts, "")];
    let setting = Setting::edited("tcp.xml", &replacements);
    let mut members = two_and_two(&setting, java_first).await;
    // Each was admitted at once: none has begun a cluster of its own that is merged later.
    assert!(members[0].view().await.contains("|3] (4) [A, B, C, D]"));
    let requests = api.take_requests();
    assert!(requests.iter().all(|request| request.token.as_deref() == Some("token-1")), "{requests:?}");
    let place = "/api/v1/namespaces/shop/pods?";
    assert!(requests.iter().all(|request| request.target.starts_with(place)), "{requests:?}");
    let by_java = requests.iter().filter(|request| request.target.ends_with("?labelSelector=app%3Dgrid"));
    let by_consort = requests.iter().filter(|request| request.target.contains("limit=250"));
    assert!(by_java.count() >= 2 && by_consort.count() >= 2, "{requests:?}");
    everybody_multicasts(&mut members, 200, 100).await;
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    let e = if java_first { setting.java("E").await } else { setting.consort("E").await };
    members.push(e);
    same_view(&mut members, "(4) [B, C, D, E]").await;
    members.remove(0).exit().await;
    same_view(&mut members, "(3) [C, D, E]").await;
    exit(members).await;
}

#[test]
fn members_are_found_by_pods_with_a_java_coordinator() {
    in_own_network("members_are_found_by_pods_with_a_java_coordinator", found_by_pods(true));
}

#[test]
fn members_are_found_by_pods_with_a_consort_coordinator() {
    in_own_network("members_are_found_by_pods_with_a_consort_coordinator", found_by_pods(false));
}

/// FD_SOCK alone detects crashes: of a member of each kind, which a member of the other kind watches. A member that leaves
/// is not suspected.
async fn watched_through_fd_sock(java_first: bool) {
    let setting = Setting::edited(
        "tcp.xml",
        &[("<FD_SOCK2/>", "<FD_SOCK/>"), ("<FD_ALL3 timeout=\"40s\" interval=\"5s\" />", "")],
    );
    let mut members = two_and_two(&setting, java_first).await;
    members.pop().expect("D").exit().await;
    same_view(&mut members, "(3) [A, B, C]").await;
    let java = &mut members[usize::from(!java_first)];
    assert_eq!(attribute(java, "FD_SOCK", "num_suspect_events_generated").await, [0; 3]);
    let fourth = if java_first { setting.consort("D").await } else { setting.java("D").await };
    members.push(fourth);
    same_view(&mut members, "(4) [A, B, C, D]").await;
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    members.remove(0).kill();
    same_view(&mut members, "(2) [C, D]").await;
    everybody_multicasts(&mut members, 200, 2_000).await;
    exit(members).await;
}

#[test]
fn fd_sock_with_a_java_coordinator() {
    in_own_network("fd_sock_with_a_java_coordinator", watched_through_fd_sock(true));
}

#[test]
fn fd_sock_with_a_consort_coordinator() {
    in_own_network("fd_sock_with_a_consort_coordinator", watched_through_fd_sock(false));
}

/// The state of a member of each kind is read from its socket by a member of the other kind, also after the coordinator was
/// killed.
async fn state_over_sockets(java_first: bool) {
    let setting = Setting::edited("tcp.xml", &[(TOP, "<pbcast.STATE_SOCK/>")]);
    let mut members = two_and_two(&setting, java_first).await;
    // A Java member describes a long state by its length and its CRC-32, here as zlib calculates it.
    for (provider, requester, crc32) in
        [(0, 1, 1_087_190_541_u32), (1, 0, 377_059_627), (0, 1, 1_087_190_541)]
    {
        let (name, state) =
            (members[provider].name().to_owned(), format!("of-{provider}-{}", "x".repeat(5_000)));
        members[provider].run(&format!("state set {state}")).await;
        let fetched = members[requester].run(&format!("state fetch {name}")).await;
        let is_java = (requester == 0) == java_first;
        let expected = if is_java {
            json!({ "crc32": crc32, "length": state.len() })
        } else {
            json!({ "state": state })
        };
        assert_eq!(fetched, expected, "from {name}");
    }
    everybody_multicasts(&mut members, 200, 2_000).await;
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    members[0].run("state set after").await;
    assert_eq!(members[1].run("state fetch B").await, json!({ "state": "after" }));
    exit(members).await;
}

#[test]
fn state_sock_with_a_java_coordinator() {
    in_own_network("state_sock_with_a_java_coordinator", state_over_sockets(true));
}

#[test]
fn state_sock_with_a_consort_coordinator() {
    in_own_network("state_sock_with_a_consort_coordinator", state_over_sockets(false));
}
