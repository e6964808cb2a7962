//! Servers with a whole file of Infinispan's server (`--config`), and `--check`.

use std::fs;

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
            "2 refused",
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
