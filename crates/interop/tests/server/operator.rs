//! The first questions of an operator, to three servers: `consort cluster`, `consort clients`, `consort cache describe` and `config`.

use consort_interop::{Tool, eventually, in_own_network};
use serde_json::Value;

use super::{cache, done, user};

const PORTS: [&str; 3] = ["11222", "11322", "11422"];

/// Three servers with these further options.
fn three_servers(cluster: &str, options: &[&str]) -> Vec<Tool> {
    let begin = |(name, port): (&str, &str)| {
        let hosts = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]";
        let (cluster, name) = (format!("--cluster={cluster}"), format!("--name={name}"));
        let own = ["server", &cluster, "--bind=127.0.0.1", hosts, &name, "--port", port];
        let mut server = Tool::consort(&[&own[..], options].concat());
        server.wait_for(&["Hot Rod on"]);
        server
    };
    ["A", "B", "C"].into_iter().zip(PORTS).map(begin).collect()
}

/// Returns the output, the errors and the exit code of a command.
fn run(arguments: &[&str]) -> (String, String, i32) {
    let run = Tool::run_consort(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(run.stdout), text(run.stderr), run.status.code().expect("an exit code"))
}

/// The output of a command that succeeds.
fn answered(arguments: &[&str]) -> String {
    let (out, message, code) = run(arguments);
    assert_eq!((&message[..], code), ("", 0), "{arguments:?}");
    out
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&answered(&[arguments, &["--json"]].concat())).expect("JSON")
}

/// The lines of a table that begin with this.
fn lines<'o>(out: &'o str, start: &str) -> Vec<Vec<&'o str>> {
    out.lines().filter(|line| line.starts_with(start)).map(|line| line.split_whitespace().collect()).collect()
}

fn segments_of_members(cache: &Value) -> Vec<(String, u64)> {
    let members = cache["segments"]["members"].as_array().expect("members");
    let of = |member: &Value| {
        let owned =
            member["primary"].as_u64().unwrap_or_default() + member["backup"].as_u64().unwrap_or_default();
        (member["name"].as_str().expect("a name").to_owned(), owned)
    };
    members.iter().map(of).collect()
}

fn fits_a_terminal(out: &str) {
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn members_segments_and_definitions_of_three_servers_are_shown() {
    in_own_network("operator::members_segments_and_definitions_of_three_servers_are_shown", async {
        let _servers = three_servers("shown", &[]);
        done(&[
            "create",
            "shop",
            r#"{"distributed-cache": {"owners": 2, "segments": 30, "memory": {"max-count": 9}}}"#,
        ]);
        done(&["alias", "stock", "shop"]);
        done(&["put", "shop", "apples", "3"]);

        let members = answered(&["cluster", "members", "--at=127.0.0.1:11322"]);
        fits_a_terminal(&members);
        assert!(members.starts_with("cluster shown, view 2, 3 members\n\n"), "{members}");
        let of = |name| lines(&members, name).concat().join(" ");
        assert_eq!(of("A "), "A 127.0.0.1:11222 coordinator");
        assert_eq!(of("B "), "B 127.0.0.1:11322 this server");
        assert_eq!(of("C "), "C 127.0.0.1:11422");
        assert_eq!(json(&["cluster", "members"])["members"][2]["port"], 11422);

        let segments = answered(&["cluster", "segments", "shop"]);
        fits_a_terminal(&segments);
        assert!(segments.starts_with("shop\n  30 segments, 2 owners, topology "), "{segments}");
        let primaries: u32 =
            lines(&segments, "  ").iter().filter_map(|row| row.get(1)?.parse::<u32>().ok()).sum();
        assert_eq!(primaries, 30, "{segments}");
        let all = json(&["cluster", "segments"]);
        let shop =
            all.as_array().and_then(|all| all.iter().find(|one| one["cache"] == "shop")).expect("the cache");
        assert_eq!(segments_of_members(shop).iter().map(|(_, owned)| owned).sum::<u64>(), 60);
        assert_eq!(
            (&shop["segments"]["without_owner"], &shop["segments"]["with_fewer_owners"]),
            (&0.into(), &0.into())
        );

        let described = answered(&["cache", "describe", "stock"]);
        fits_a_terminal(&described);
        for line in [
            "name              shop",
            "aliases           stock",
            "memory.max-count  9",
            "status            RUNNING",
        ] {
            assert!(described.lines().any(|own| own == line), "{line}: {described}");
        }
        assert_eq!(json(&["cache", "describe", "shop"])["definition"]["distributed-cache"]["owners"], 2);

        // Each form creates the same cache again.
        for form in [&["cache", "config", "shop"][..], &["cache", "config", "shop", "--json"]] {
            let config = answered(form);
            let config = config.replace(" aliases=\"stock\"", "").replace("\"stock\"", "");
            done(&["create", "other", &config.replace("name=\"shop\" ", "")]);
            let shown = json(&["cache", "describe", "other"]);
            assert_eq!(shown["definition"]["distributed-cache"]["memory"]["max-count"], 9, "{config}");
            done(&["drop", "other"]);
        }
        for unknown in [
            &["cache", "describe", "none"][..],
            &["cache", "config", "none"],
            &["cluster", "segments", "none"],
            &["cluster", "rebalance", "--cache", "none", "off"],
            &["cache", "config", "___protobuf_metadata"],
        ] {
            let (out, message, code) = run(unknown);
            assert!(
                out.is_empty() && code == 2 && message.contains("ISPN000436"),
                "{unknown:?}: {code}: {message}"
            );
        }
    });
}

#[test]
fn servers_that_join_own_nothing_until_rebalancing_is_on() {
    in_own_network("operator::servers_that_join_own_nothing_until_rebalancing_is_on", async {
        let mut servers = three_servers("kept", &[]);
        done(&["create", "shop", r#"{"distributed-cache": {"owners": 2, "segments": 30}}"#]);
        for key in 0..50 {
            done(&["put", "shop", &key.to_string(), "value"]);
        }
        let state = answered(&["cluster", "rebalance"]);
        assert!(
            state.starts_with("rebalancing on\n") && lines(&state, "shop ")[0][1..3] == ["on", "idle"],
            "{state}"
        );
        let off = answered(&["cluster", "rebalance", "--cache", "shop", "off"]);
        assert!(
            off.starts_with("rebalancing on\n") && lines(&off, "shop ")[0][1..3] == ["off", "idle"],
            "{off}"
        );

        // A graceful end moves nothing, because each segment has another owner.
        servers.remove(2).terminate();
        let of_shop = || json(&["cluster", "segments", "shop"])[0].clone();
        let shop = of_shop();
        assert_eq!(segments_of_members(&shop).iter().map(|(_, owned)| owned).sum::<u64>(), 40, "{shop}");
        assert_eq!(shop["segments"]["with_fewer_owners"], 20, "{shop}");
        let hosts = "-Djgroups.tcpping.initial_hosts=127.0.0.1[7800]";
        let own = ["server", "--cluster=kept", "--bind=127.0.0.1", hosts, "--name=D", "--port=11522"];
        let mut late = Tool::consort(&own);
        late.wait_for(&["Hot Rod on"]);
        let shop = of_shop();
        assert!(segments_of_members(&shop).contains(&("D".to_owned(), 0)), "{shop}");
        assert_eq!(done(&["--at=127.0.0.1:11522", "size", "shop"]).0, "50\n");

        answered(&["cluster", "--at=127.0.0.1:11522", "rebalance", "--cache", "shop", "on"]);
        eventually("the entries have moved", async || {
            let shop = of_shop();
            shop["segments"]["phase"] == "NO_REBALANCE" && shop["segments"]["with_fewer_owners"] == 0
        })
        .await;
        let moved = of_shop();
        assert_eq!(segments_of_members(&moved).iter().map(|(_, owned)| owned).sum::<u64>(), 60, "{moved}");
        assert_eq!(done(&["size", "shop"]).0, "50\n");
    });
}

#[test]
fn users_without_permission_are_refused_within_tls() {
    in_own_network("operator::users_without_permission_are_refused_within_tls", async {
        let path = |name: &str| {
            let path = std::env::temp_dir().join(format!("consort-operator-{}-{name}", std::process::id()));
            path.display().to_string()
        };
        let (users, cert, key, alice, mona) =
            (path("users"), path("cert"), path("key"), path("alice"), path("mona"));
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        for (file, text) in [
            (&users, [user("alice", "admin", "rabbit hole"), user("mona", "monitor", "secret")].join("\n")),
            (&cert, made.cert.pem()),
            (&key, made.signing_key.serialize_pem()),
            (&alice, "rabbit hole".to_owned()),
            (&mona, "secret".to_owned()),
        ] {
            std::fs::write(file, text).expect("a file");
        }
        use std::os::unix::fs::PermissionsExt;
        for secret in [&users, &key, &alice, &mona] {
            std::fs::set_permissions(secret, std::fs::Permissions::from_mode(0o600)).expect("permissions");
        }
        let _servers = three_servers("guarded", &["--users", &users, "--tls-cert", &cert, "--tls-key", &key]);
        let at = format!("--at=hotrods://localhost?trust_store_file_name={cert}");
        let alice = [&at[..], "--user=alice", "--password-file", &alice];
        let mona = [&at[..], "--user=mona", "--password-file", &mona];
        let with = |command: &[&'static str], login: [&str; 4]| -> (String, String, i32) {
            run(&[command, &login].concat())
        };
        let (_, message, code) = cache(&[&alice[..], &["create", "shop"]].concat());
        assert_eq!((&message[..], code), ("", 0));
        for permitted in [
            &["cluster", "members"][..],
            &["cluster", "segments"],
            &["cluster", "rebalance"],
            &["cache", "describe", "shop"],
            &["cache", "config", "shop"],
        ] {
            let (out, message, code) = with(permitted, mona);
            assert!(!out.is_empty() && message.is_empty() && code == 0, "{permitted:?}: {code}: {message}");
        }
        for refused in [&["clients"][..], &["cluster", "rebalance", "off"]] {
            let (_, message, code) = with(refused, mona);
            let expected = "user 'mona' lacks 'ADMIN' permission";
            assert!(code == 2 && message.contains(expected), "{refused:?}: {code}: {message}");
        }
        let (out, message, code) = run(&["cluster", "members", &at]);
        assert!(
            out.is_empty() && code == 2 && message.contains("requires authentication"),
            "{code}: {message}"
        );
        let (out, message, code) = with(&["cluster", "rebalance", "off"], alice);
        assert!(
            out.starts_with("rebalancing off\n") && message.is_empty() && code == 0,
            "{code}: {message}{out}"
        );

        let (out, message, code) = with(&["clients"], alice);
        fits_a_terminal(&out);
        assert_eq!((&message[..], code), ("", 0));
        // The connection of this command to each server.
        for port in PORTS {
            assert!(out.contains(&format!(" (127.0.0.1:{port}): 1 client\n")), "{out}");
        }
        assert!(lines(&out, "127.0.0.1:").iter().all(|row| row[1] == "alice"), "{out}");
        let (out, message, code) = with(&["clients", "--json", "--this-server"], alice);
        assert_eq!((&message[..], code), ("", 0));
        let shown: Value = serde_json::from_str(&out).expect("JSON");
        let client = &shown[0]["clients"][0];
        assert_eq!((&client["user"], &client["protocol"]), (&"alice".into(), &"4.1".into()), "{shown}");
        assert!(
            client["requests"].as_u64() > Some(0) && client["received_bytes"].as_u64() > Some(0),
            "{shown}"
        );
        assert_eq!(shown.as_array().map(Vec::len), Some(1));
        for file in [&users, &cert, &key, alice[3], mona[3]] {
            let _ = std::fs::remove_file(file);
        }
    });
}
