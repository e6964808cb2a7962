//! The tools of both sides, each with the other's members.

use std::net::{Ipv4Addr, TcpStream, UdpSocket};

use consort_interop::{Network, Setting, Tool, in_network, in_own_network};

/// `consort chat` and org.jgroups.demos.Chat talk.
#[test]
fn the_chats_talk() {
    in_own_network("the_chats_talk", async {
        for config in ["tcp.xml", "udp.xml", "tcp-new.xml"] {
            chats(&Setting::new(config));
        }
    });
}

fn chats(setting: &Setting) {
    let config = setting.config.display().to_string();
    let mut theirs = Tool::java(setting, "org.jgroups.demos.Chat", &["-props", &config, "-name", "Java"]);
    theirs.wait_for(&["view", "(1) [Java]"]);
    // The default cluster is that of the demo.
    let mut ours = Tool::consort_member(setting, &["chat", "--name=Consort"]);
    ours.wait_for(&["-- view: [Java|1] (2) [Java, Consort]"]);
    theirs.wait_for(&["[Java|1] (2) [Java, Consort]"]);
    ours.type_line("hello from here");
    theirs.wait_for(&["Consort", "hello from here"]);
    theirs.type_line("hello from there");
    ours.wait_for(&["Java: hello from there"]);
}

/// The example of a member in a cluster of Java: strings go both ways, and its end shrinks the view.
#[test]
fn the_example_of_a_jgroups_member_talks_to_the_chat() {
    in_own_network("the_example_of_a_jgroups_member_talks_to_the_chat", async {
        let setting = Setting::new("tcp.xml");
        let config = setting.config.display().to_string();
        let mut theirs =
            Tool::java(&setting, "org.jgroups.demos.Chat", &["-props", &config, "-name", "Java"]);
        theirs.wait_for(&["view", "(1) [Java]"]);
        let mut ours = Tool::example(&setting, "jgroups_member", &["Rust", "chat", &config]);
        ours.wait_for(&["view: [Java|1] (2) [Java, Rust]"]);
        theirs.wait_for(&["[Java|1] (2) [Java, Rust]"]);
        ours.type_line("from Rust");
        theirs.wait_for(&["Rust", "from Rust"]);
        // The demo sends lower case.
        theirs.type_line("from java");
        ours.wait_for(&["string: from java"]);
        ours.close_input();
        ours.wait_for_end();
        theirs.wait_for(&["[Java|2] (1) [Java]"]);
    });
}

/// A chat that is alone says how to find out why.
#[test]
fn a_chat_without_other_members_names_the_doctor() {
    in_own_network("a_chat_without_other_members_names_the_doctor", async {
        let mut chat = Tool::consort(&["chat", "--bind=127.0.0.1"]);
        chat.wait_for(&["no other member responds", "consort doctor --config tcp.xml --cluster chat"]);
        chat.close_input();
        chat.wait_for_end();
    });
}

/// A member that waits to join can be stopped.
#[test]
fn a_signal_ends_a_member_before_it_has_joined() {
    in_own_network("a_signal_ends_a_member_before_it_has_joined", async {
        // There is no other member, and it waits for one for an hour.
        let setting = Setting::edited("tcp.xml", &[("join_timeout=\"2s\"", "join_timeout=\"1h\"")]);
        let stack = format!("--config={}", setting.config.display());
        let mut chat = Tool::consort_with_log(&["chat", &stack, "--bind=127.0.0.1"]);
        let mut server = Tool::consort_with_log(&["server", &stack, "--bind=127.0.0.1", "--cluster=served"]);
        for port in [7800, 7801] {
            // It listens for signals before it listens for members.
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                std::thread::yield_now();
            }
        }
        chat.signal("TERM");
        chat.wait_for(&["SIGTERM before cluster chat was joined"]);
        chat.wait_for_death();
        server.signal("TERM");
        server.wait_for_end();
    });
}

/// JGroups' Probe reads a Consort member, by multicast and over TCP.
#[test]
fn jgroups_probe_reads_consort() {
    in_own_network("jgroups_probe_reads_consort", async {
        probe_consort("udp.xml", &["-timeout", "3000"], "UFC.max_credits");
        probe_consort("tcp.xml", &["-tcp", "true", "-addr", "127.0.0.1"], "UFC.max_credits");
        probe_consort("tcp-new.xml", &["-tcp", "true", "-addr", "127.0.0.1"], "NAKACK4.capacity");
    });
}

fn probe_consort(config: &str, arguments: &[&str], attribute: &str) {
    let setting = Setting::new(config);
    let mut member = Tool::consort_member(&setting, &["chat", "--cluster=probed", "--name=Consort"]);
    member.wait_for(&["-- view"]);
    let probe =
        |asked: &[&str]| Tool::java(&setting, "org.jgroups.tests.Probe", &[arguments, asked].concat());
    let mut plain = probe(&[]);
    plain.wait_for(&["Consort"]);
    plain.wait_for(&["view=[Consort|0] (1) [Consort]"]);
    plain.wait_for(&["cluster=probed"]);
    let (layer, name) = attribute.split_once('.').expect("an attribute of a layer");
    probe(&[&format!("jmx={attribute}")]).wait_for(&[&format!("{layer}={{{name}=")]);
}

/// `consort probe` reads a Java member, by multicast and over TCP.
#[test]
fn consort_probe_reads_jgroups() {
    in_own_network("consort_probe_reads_jgroups", async {
        probe_java("udp.xml", &[]).await;
        probe_java("tcp.xml", &["--addr=127.0.0.1"]).await;
        probe_java("tcp-new.xml", &["--addr=127.0.0.1"]).await;
    });
}

async fn probe_java(config: &str, arguments: &[&str]) {
    let setting = Setting::new(config);
    let member = setting.java("Java").await;
    let mut plain = Tool::consort(&[&["probe", "--timeout=3000"], arguments].concat());
    plain.wait_for(&["Java"]);
    plain.wait_for(&["view=[Java|0] (1) [Java]"]);
    plain.wait_for(&["1 responses (1 matches, 0 non matches)"]);
    let mut attribute =
        Tool::consort(&[&["probe", "--timeout=3000"], arguments, &["jmx=GMS.num_views"]].concat());
    attribute.wait_for(&["GMS", "num_views"]);
    drop(member);
}

/// S000-29: without multicast, the probe asks one member for all addresses, and then each member.
#[test]
fn without_multicast_probe_queries_one_member_for_all() {
    in_network(Network::WithoutMulticast, "without_multicast_probe_queries_one_member_for_all", async {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let joined = socket.join_multicast_v4(&Ipv4Addr::new(224, 0, 75, 75), &Ipv4Addr::LOCALHOST);
        joined.expect_err("no member can join a group");
        let setting = Setting::new("tcp.xml");
        let mut members = Vec::new();
        for name in ["A", "B", "C", "D"] {
            members.push(setting.consort(name).await);
        }
        Tool::consort(&["probe"]).wait_for(&["0 responses (0 matches, 0 non matches)"]);
        let mut probe = Tool::consort(&["probe", "--addr=localhost"]);
        probe.wait_for(&["4 responses (4 matches, 0 non matches)"]);
        let requests = probe.output.iter().filter(|line| line.starts_with("-- "));
        let wanted =
            [7500, 7501, 7502, 7503].map(|port| format!("-- sending probe request to /127.0.0.1:{port}"));
        assert!(requests.eq(&wanted), "{:?}", probe.output);
        for (nth, name) in ["A", "B", "C", "D"].iter().enumerate() {
            let head = format!("#{} (", nth + 1);
            let at = probe.output.iter().position(|line| line.starts_with(&head)).expect("an answer");
            assert!(
                probe.output[at + 1].starts_with(&format!("{name} (ip=127.0.0.1:")),
                "{:?}",
                probe.output
            );
            assert_eq!(probe.output[at + 2], "view=[A|3] (4) [A, B, C, D]");
        }
        drop(members);
    });
}

/// S000-33: the menu shows member and view, sets what the next test does, and starts it on all members.
#[test]
fn the_menu_of_the_rpc_test_is_used_through_a_pipe() {
    in_own_network("the_menu_of_the_rpc_test_is_used_through_a_pipe", async {
        let mut menu = Tool::consort(&["uperf", "--menu", "--members=2", "--time=0.2", "--warmup=0"]);
        menu.wait_for(&["[1] Start test [2] View [4] Threads (100)"]);
        menu.wait_for(&["[v] Version [x] Exit"]);
        menu.type_line("2");
        let local = menu.wait_for(&["-- "]);
        assert!(local.starts_with("-- local: A ("), "{local}");
        assert_eq!(menu.wait_for(&["-- "]), "-- view: [A|1] (2) [A, B]");
        menu.type_line("4 3");
        menu.wait_for(&["[4] Threads (3)"]);
        menu.type_line("7");
        menu.type_line("5000");
        menu.wait_for(&["[7] Message size (5000)"]);
        menu.type_line("9");
        menu.wait_for(&["no key `9`"]);
        menu.type_line("r 2");
        menu.wait_for(&["Read percentage: `2` is not from 0 to 1"]);
        for _ in 0..2 {
            menu.type_line("1");
            for member in ["A ", "B ", "all "] {
                assert!(menu.wait_for(&[member, " 0"]).starts_with(member), "{:?}", menu.output);
            }
        }
        menu.type_line("x");
        menu.wait_for_end();
    });
}

/// S001-1, S003-13: a multicast test that ends when every message of every member has come to all.
#[test]
fn multicasts_reach_all_members() {
    in_own_network("multicasts_reach_all_members", async {
        for config in ["tcp.xml", "udp.xml"] {
            let mut run = Tool::consort(&[
                "mperf",
                "--config",
                config,
                "--members=4",
                "--threads=7",
                "--messages=5000",
                "--json",
            ]);
            let line = run.wait_for(&["\"mperf\""]);
            for wanted in ["\"messages\":5000", "\"lost\":0", "\"duplicated\":0", "\"reordered\":0"] {
                assert!(line.contains(wanted), "{config}, {wanted}: {line}");
            }
            assert!(!line.contains("\"msgs_sec_node\":0.0"), "{config}: {line}");
        }
    });
}

/// S001-5, S003-15: an RPC test that ends when every member has made its calls, be it one, to itself, or several.
#[test]
fn a_number_of_calls_is_made_by_every_member() {
    in_own_network("a_number_of_calls_is_made_by_every_member", async {
        for members in ["--members=1", "--members=4", "--members=9"] {
            let mut run = Tool::consort(&[
                "uperf",
                members,
                "--threads=25",
                "--requests=2010",
                "--size=1000",
                "--json",
            ]);
            let line = run.wait_for(&["\"uperf\""]);
            for wanted in ["\"requests\":2010", "\"threads\":25", "\"errors\":0"] {
                assert!(line.contains(wanted), "{members}, {wanted}: {line}");
            }
        }
        let mut table = Tool::consort(&["uperf", "--members=2", "--threads=25", "--requests=20000"]);
        table.wait_for(&["20,000 calls of every member in "]);
    });
}
