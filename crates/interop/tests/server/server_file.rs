//! Servers with a whole file of Infinispan's server (`--config`), and `--check`.

use std::fs;

use consort_client::{Client, CounterKind};
use consort_interop::{Tool, in_own_network};

use super::directory::Directory;
use super::{cache, done};

/// As in Infinispan's distribution.
const DISTRIBUTION: &str = include_str!("../../../server/tests/infinispan.xml");

/// Two servers find each other on this host. Readers may use `orders` and `open`, and only bosses `secret`.
const CLUSTER: &str = r#"<infinispan xmlns="urn:infinispan:config:16.0">
  <jgroups>
    <stack name="own" extends="tcp">
      <TCP bind_port="7900" bind_addr="127.0.0.1" port_range="2"/>
      <TCPPING initial_hosts="127.0.0.1[7900]" port_range="2" stack.combine="REPLACE" stack.position="MPING"/>
    </stack>
  </jgroups>
  <cache-container default-cache="orders">
    <transport stack="own" cluster="shop" node-name="${node}" initial-cluster-size="${size:1}"/>
    <security><authorization>
      <role name="reader" permissions="ALL_READ"/><role name="boss" permissions="ALL"/>
    </authorization></security>
    <distributed-cache-configuration name="base" owners="2"><security><authorization/></security></distributed-cache-configuration>
    <distributed-cache name="orders" configuration="base"/>
    <replicated-cache name="open"/>
    <replicated-cache name="secret" aliases="other"><security><authorization roles="boss"/></security></replicated-cache>
    <counters><strong-counter name="hits" initial-value="5"/></counters>
  </cache-container>
  <server>
    <interfaces><interface name="public"><loopback/></interface></interfaces>
    <socket-bindings default-interface="public" port-offset="${offset:0}">
      <socket-binding name="default" port="11222"/>
    </socket-bindings>
    <security><security-realms><security-realm name="default"><properties-realm>
      <user-properties path="users.properties"/><group-properties path="groups.properties"/>
    </properties-realm></security-realm></security-realms></security>
    <endpoints socket-binding="default" security-realm="default"/>
  </server>
</infinispan>"#;

struct ServerFiles(Directory);

impl ServerFiles {
    fn new(name: &str, text: &str) -> Self {
        let files = Self(Directory::new(name));
        fs::create_dir_all(files.0.of("")).expect("a directory");
        fs::write(files.path("infinispan.xml"), text).expect("a file");
        fs::write(files.path("users.properties"), "#$REALM_NAME=default$\nalice=wonderland\nbob=secret\n")
            .expect("a file");
        fs::write(files.path("groups.properties"), "alice=boss,admin\nbob=reader\n").expect("a file");
        files
    }

    fn path(&self, file: &str) -> String {
        self.0.of(file)
    }
}

/// The exit code and the output of a check.
fn check(arguments: &[&str]) -> (Option<i32>, String) {
    let run = Tool::run_consort(&[&["server", "--check"], arguments].concat());
    (run.status.code(), String::from_utf8(run.stdout).expect("text"))
}

#[test]
fn servers_of_a_file_have_its_cluster_caches_users_and_roles() {
    in_own_network("server_file::servers_of_a_file_have_its_cluster_caches_users_and_roles", async {
        let files = ServerFiles::new("cluster", CLUSTER);
        let config = files.path("infinispan.xml");
        let mut first = Tool::consort(&["server", "--config", &config, "-Dnode=A"]);
        first.wait_for(&["Hot Rod on 127.0.0.1:11222, cluster shop", "[A]"]);
        let second = ["server", "--config", &config, "-Dnode=B", "-Doffset=1", "-Dsize=2"];
        let mut second = Tool::consort(&second);
        second.wait_for(&["Hot Rod on 127.0.0.1:11223, cluster shop", "(2) [A, B]"]);
        let (alice, bob) = ("--at=alice:wonderland@127.0.0.1", "--at=bob:secret@127.0.0.1");
        assert_eq!(done(&[alice, "ls"]).0, "open\norders\nsecret\n");
        for name in ["orders", "open", "secret"] {
            assert_eq!(done(&[alice, "put", name, "apples", "3"]).1, 0, "{name}");
        }
        assert_eq!(done(&[bob, "get", "orders", "apples"]).0, "3");
        assert_eq!(done(&[bob, "put", "open", "apples", "4"]).1, 0);
        for refused in [
            &[bob, "put", "orders", "apples", "4"][..],
            &[bob, "get", "secret", "apples"],
            &[bob, "get", "other", "apples"],
            &[bob, "ls", "other"],
        ] {
            let (out, message, code) = cache(refused);
            assert!(out.is_empty() && code == 2 && message.contains("ISPN000287"), "{refused:?}: {message}");
        }
        assert_eq!(done(&[alice, "get", "other", "apples"]).0, "3");
        second.terminate();
        first.terminate();
    });
}

#[test]
fn file_of_the_distribution_starts_when_it_has_users() {
    in_own_network("server_file::file_of_the_distribution_starts_when_it_has_users", async {
        let files = ServerFiles::new("distribution", DISTRIBUTION);
        let config = files.path("infinispan.xml");
        let (code, text) = check(&[&config]);
        assert_eq!(code, Some(0), "{text}");
        for expected in ["cluster          cluster", "clients          127.0.0.1:11222", "0 refused"] {
            assert!(text.contains(expected), "{text}");
        }
        let mut server = Tool::consort(&["server", "--config", &config, "-Djgroups.bind.address=127.0.0.1"]);
        server.wait_for(&["Hot Rod on 127.0.0.1:11222, cluster cluster"]);
        let alice = "--at=alice:wonderland@127.0.0.1";
        assert_eq!(done(&[alice, "create", "shop"]).1, 0);
        server.terminate();
        fs::write(files.path("users.properties"), "#$REALM_NAME=default$\n").expect("a file");
        let (code, text) = check(&[&config]);
        assert!(
            code == Some(1) && text.contains(":43:19: refused: ") && text.contains("has no users"),
            "{text}"
        );
    });
}

#[test]
fn check_lists_all_problems_and_a_server_does_not_start_with_them() {
    in_own_network("server_file::check_lists_all_problems_and_a_server_does_not_start_with_them", async {
        let text = CLUSTER
            .replace("<replicated-cache name=\"open\"/>", "<replicated-cache name=\"open\" owners=\"2\"/>");
        let text = text.replace("</cache-container>", "<jmx/></cache-container>");
        let text = text.replace("<properties-realm>", "<ldap-realm/><properties-realm>");
        let files = ServerFiles::new("problems", &text);
        let config = files.path("infinispan.xml");
        let (code, text) = check(&[&config, "-Dnode=A"]);
        assert_eq!(code, Some(1), "{text}");
        for expected in [
            "15:35: refused: cache `open`: owners of replicated-cache cannot be 2",
            "18:3: warning: jmx",
            "<ldap-realm>: there is no LDAP",
            "3 refused",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let run = Tool::run_consort(&["server", "--config", &config]);
        let message = String::from_utf8_lossy(&run.stderr);
        let all = ["variable `node` is not set", "owners of replicated-cache", "LDAP"];
        assert!(!run.status.success() && all.iter().all(|part| message.contains(part)), "{message}");
    });
}

#[test]
fn clients_of_rejected_networks_get_no_connection() {
    in_own_network("server_file::clients_of_rejected_networks_get_no_connection", async {
        let text = CLUSTER
            .replace(
                "security-realm=\"default\"/>",
                "><endpoint><ip-filter><reject from=\"127.0.0.0/8\"/></ip-filter>\
                     <hotrod-connector/></endpoint></endpoints>",
            )
            .replace("<authorization>", "<authorization enabled=\"false\">")
            .replace("<security><authorization/></security>", "")
            .replace("<security><authorization roles=\"boss\"/></security>", "");
        let files = ServerFiles::new("filter", &text);
        let config = files.path("infinispan.xml");
        let mut server = Tool::consort(&["server", "--config", &config, "-Dnode=A"]);
        server.wait_for(&["Hot Rod on"]);
        let (_, message, code) = cache(&["ls"]);
        assert!(code == 2 && !message.is_empty(), "{code}: {message}");
        server.terminate();
    });
}

#[test]
fn clients_use_counters_and_templates_of_a_file() {
    in_own_network("server_file::clients_use_counters_and_templates_of_a_file", async {
        let counters = "<counters><strong-counter name=\"hits\" initial-value=\"5\"><lower-bound value=\"0\"/></strong-counter>\
                        <weak-counter name=\"visits\" initial-value=\"1\" concurrency-level=\"2\"/></counters>";
        let own = "<counters><strong-counter name=\"hits\" initial-value=\"5\"/></counters>";
        let files = ServerFiles::new("counters", &CLUSTER.replace(own, counters));
        let config = files.path("infinispan.xml");
        let mut server = Tool::consort(&["server", "--config", &config, "-Dnode=A"]);
        server.wait_for(&["Hot Rod on"]);
        let client = Client::connect("hotrod://alice:wonderland@127.0.0.1:11222").await.expect("a client");
        let mut names = client.counter_names().await.expect("names");
        names.sort();
        assert_eq!(names, ["hits", "visits"]);
        let hits = client.counter("hits");
        let config = hits.config().await.expect("a configuration");
        assert_eq!((config.kind, config.initial), (CounterKind::Bounded { lower: 0, upper: i64::MAX }, 5));
        assert_eq!(hits.add(2).await.expect("a value"), 7);
        assert!(hits.add(-8).await.is_err(), "below its bound");
        let visits = client.counter("visits");
        visits.add(3).await.expect("an addition");
        assert_eq!(visits.get().await.expect("a value"), 4);
        let admin = client.administration();
        admin.create_from("later", "base").await.expect("a cache of the template");
        let later = client.cache::<String, String>("later");
        later.put(&"apples".to_owned(), &"3".to_owned()).await.expect("a write");
        assert_eq!(later.get(&"apples".to_owned()).await.expect("a read").as_deref(), Some("3"));
        assert!(admin.create_from("another", "unknown").await.is_err());
        client.close().await;
        server.terminate();
    });
}

#[test]
fn users_of_a_file_are_read_again_at_sighup() {
    in_own_network("server_file::users_of_a_file_are_read_again_at_sighup", async {
        let files = ServerFiles::new("sighup", CLUSTER);
        let config = files.path("infinispan.xml");
        let mut server = Tool::consort_with_log(&["server", "--config", &config, "-Dnode=A"]);
        server.wait_for(&["Hot Rod on"]);
        let carol = "--at=carol:garden@127.0.0.1";
        assert_eq!(cache(&[carol, "ls"]).2, 2, "an unknown user");
        let users = "#$REALM_NAME=default$\nalice=wonderland\ncarol=garden\n";
        fs::write(files.path("users.properties"), users).expect("a file");
        fs::write(files.path("groups.properties"), "alice=boss,admin\ncarol=reader\n").expect("a file");
        server.signal("HUP");
        server.wait_for(&["users reloaded"]);
        assert_eq!(done(&[carol, "get", "orders", "apples"]).1, 1, "a reader");
        assert_eq!(cache(&[carol, "put", "orders", "apples", "3"]).2, 2, "no writer");
        assert_eq!(cache(&["--at=bob:secret@127.0.0.1", "ls"]).2, 2, "a removed user");
        // A file with an error changes nothing.
        fs::write(files.path("users.properties"), "").expect("a file");
        server.signal("HUP");
        server.wait_for(&["users not reloaded"]);
        assert_eq!(done(&["--at=alice:wonderland@127.0.0.1", "put", "orders", "apples", "3"]).1, 0);
        server.signal("TERM");
        server.wait_for(&["INFO", "ended"]);
        server.wait_for_end();
    });
}
