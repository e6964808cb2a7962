use std::path::Path;

use clap::Parser;
use consort_conf::load_stack;
use consort_server::Severity;

use super::*;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    server: ServerCommand,
}

/// With these arguments.
fn detection(arguments: &[&str]) -> (String, String) {
    let mut server = Arguments::parse_from(["server", "--cluster=a"].iter().chain(arguments)).server;
    assert!(server.read_file().unwrap().is_none());
    let join = server.join("a");
    let stack = load_stack(&join.config, &join.variables().unwrap()).unwrap();
    let layer = stack.config.protocols.iter().find(|layer| layer.short_name() == "FD_ALL3").unwrap();
    let of = |name| layer.get(name).unwrap().to_owned();
    (of("timeout"), of("interval"))
}

#[test]
fn a_stock_stack_of_a_server_suspects_silent_members_after_ten_seconds() {
    for stack in [
        "tcp.xml",
        "tcp-nio.xml",
        "udp.xml",
        "sequencer.xml",
        "tcpgossip.xml",
        "tunnel.xml",
        "kubernetes.xml",
    ] {
        for option in ["--stack", "--config"] {
            let option = format!("{option}={stack}");
            assert_eq!(detection(&[&option]), ("10s".to_owned(), "1250ms".to_owned()), "{option}");
        }
    }
    let jgroups = ["-Dconsort.suspect_after=40s", "-Dconsort.heartbeat_interval=5s"];
    assert_eq!(detection(&jgroups), ("40s".to_owned(), "5s".to_owned()));
}

fn has_probe(arguments: &[&str]) -> bool {
    let arguments = [&["consort", "--cluster", "shop"], arguments].concat();
    let mut server = Arguments::parse_from(arguments).server;
    assert!(server.read_file().unwrap().is_none());
    let join = server.join("shop");
    let stack = load_stack(&join.config, &join.variables().unwrap()).unwrap().config;
    stack.protocols[0].get("diag.enabled") == Some("true")
}

#[test]
fn probe_is_off_unless_it_is_enabled() {
    for stock in ["tcp.xml", "udp.xml", "tcp-nio.xml"] {
        assert!(!has_probe(&["--config", stock]), "{stock}");
        assert!(has_probe(&["--config", stock, "--diagnostics"]), "{stock}");
        assert!(has_probe(&["--config", stock, "-Djgroups.diag.enabled=true"]), "{stock}");
    }
    let own = std::env::temp_dir().join(format!("consort-{}-diag.xml", std::process::id()));
    std::fs::write(&own, r#"<config><TCP diag.enabled="true"/></config>"#).unwrap();
    assert!(has_probe(&["--config", own.to_str().unwrap()]), "the stack's own attribute counts");
    std::fs::remove_file(&own).unwrap();
}

async fn refusal(arguments: &[&str]) -> Option<String> {
    let server = Arguments::parse_from([&["consort"], arguments].concat()).server;
    server.check_authentication(None).await.err().map(|error| error.to_string())
}

#[tokio::test]
async fn a_server_that_other_hosts_reach_needs_users_or_no_auth() {
    for host in ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"] {
        let refused = refusal(&["--host", host]).await.expect(host);
        assert!(refused.contains("--users") && refused.contains("--no-auth"), "{refused}");
        assert_eq!(refusal(&["--host", host, "--no-auth"]).await, None);
        assert_eq!(refusal(&["--host", host, "--users", "users"]).await, None);
    }
    for host in ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"] {
        assert_eq!(refusal(&["--host", host]).await, None, "{host}");
    }
    assert_eq!(refusal(&[]).await, None);
    assert!(Arguments::try_parse_from(["consort", "--no-auth", "--users", "users"]).is_err());
}

/// A directory with a server's file, users and a file of caches.
struct Files(PathBuf);

impl Files {
    fn new(test: &str, container: &str, endpoints: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("consort-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let files = Self(directory);
        files.write("users.properties", "alice=wonderland\n");
        files.write("users", "bob admin password:secret\ncarol admin password:secret\n");
        files.write(
            "infinispan.xml",
            &format!(
                "<infinispan><cache-container default-cache=\"stock\">{container}<local-cache name=\"stock\"/></cache-container><server>\
                 <interfaces><interface name=\"i\"><loopback/></interface></interfaces>\
                 <socket-bindings default-interface=\"i\"><socket-binding name=\"b\" port=\"11222\"/></socket-bindings>\
                 <security><security-realms><security-realm name=\"r\"><properties-realm>\
                 <user-properties path=\"users.properties\"/></properties-realm></security-realm></security-realms></security>\
                 <endpoints socket-binding=\"b\" security-realm=\"r\"><endpoint><hotrod-connector>{endpoints}</hotrod-connector>\
                 </endpoint></endpoints></server></infinispan>"
            ),
        );
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The effective settings, and the problems of the options.
    async fn check(&self, arguments: &[&str]) -> (String, Vec<String>) {
        let option = format!("--check={}", self.path("infinispan.xml"));
        let mut server = Arguments::parse_from([&["consort", &option], arguments].concat()).server;
        let file = server.read_file().unwrap().unwrap();
        let check = server.check_file(&file).await;
        assert_eq!(check.is_startable(false), check.others.is_empty(), "{:?}", check.problems);
        assert!(!check.is_startable(true), "without --data there is a warning: {:?}", check.problems);
        assert!(check.problems.iter().all(|problem| problem.severity == Severity::Warning));
        (check.effective, check.others)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn line<'t>(text: &'t str, name: &str) -> &'t str {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).trim()
}

#[tokio::test]
async fn check_shows_the_settings_of_the_file_with_those_of_the_options() {
    let files = Files::new("merged", "", "");
    let (text, others) = files.check(&[]).await;
    assert_eq!(others, [] as [String; 0]);
    for (name, value) in [
        ("cluster", "none, the server runs alone"),
        ("clients", "127.0.0.1:11222"),
        ("default cache", "stock"),
        ("users", &format!("1 of {}", files.path("users.properties"))),
    ] {
        assert_eq!(line(&text, name), value);
    }
    let users = files.path("users");
    let options = [
        "--cluster=shop",
        "--name=A",
        "--rack=r1",
        "--host=localhost",
        "--port=1234",
        "--advertise=grid",
        "--advertise-port=443",
        "--default-cache=none",
        "--mechanisms=SCRAM-SHA-256",
        "--users",
        &users,
        "--open-metrics",
    ];
    let (text, others) = files.check(&options).await;
    assert_eq!(others, [] as [String; 0]);
    for (name, value) in [
        ("cluster", "shop"),
        ("member", "A"),
        ("rack", "r1"),
        ("clients", "localhost:1234"),
        ("advertised host", "grid"),
        ("advertised port", "443"),
        ("default cache", "none"),
        ("mechanisms", "SCRAM-SHA-256"),
        ("users", &format!("2 of {users}")),
        ("metrics", "for all clients"),
    ] {
        assert_eq!(line(&text, name), value);
    }
    assert!(line(&text, "stack").starts_with("TCP "), "{text}");
}

/// PLAIN needs TLS, so that a server with the file's mechanisms only does not start.
#[tokio::test]
async fn mechanisms_of_the_file_are_those_of_users_of_the_options() {
    let plain = "<authentication><sasl mechanisms=\"PLAIN\"/></authentication>";
    let files = Files::new("mechanisms", "", plain);
    let (text, others) = files.check(&["--users", &files.path("users")]).await;
    assert_eq!(line(&text, "mechanisms"), "PLAIN");
    assert!(others.len() == 1 && others[0].contains("PLAIN sends a password"), "{others:?}");
    let (_, others) = files.check(&["--users", &files.path("users"), "--mechanisms=SCRAM-SHA-512"]).await;
    assert_eq!(others, [] as [String; 0], "options take precedence");
}

#[tokio::test]
async fn caches_of_both_files_are_created() {
    let files = Files::new("caches", "", "");
    files.write("caches.yaml", "caches:\n  orders:\n    localCache: {}\n");
    let caches = format!("--caches={}", files.path("caches.yaml"));
    let (text, others) = files.check(&[&caches]).await;
    assert_eq!(others, [] as [String; 0]);
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("cache ")?.trim_start().split(' ').next()).collect();
    assert_eq!(names, ["stock", "orders"], "{text}");
    files.write("caches.yaml", "caches:\n  stock:\n    localCache: {}\n");
    let (_, others) = files.check(&[&caches]).await;
    assert!(
        others.len() == 1
            && others[0].contains("cache 'stock': it is defined in")
            && others[0].contains("infinispan.xml, too"),
        "{others:?}"
    );
}

#[test]
fn options_of_a_cluster_need_one() {
    let files = Files::new("no-transport", "", "");
    let config = format!("--config={}", files.path("infinispan.xml"));
    for option in ["--bind=127.0.0.1", "--name=A", "--rack=r", "--stack=tcp.xml", "--diagnostics"] {
        let refusal = |more: &[&str]| {
            let mut server = Arguments::parse_from([&["consort", &config, option], more].concat()).server;
            server.read_file().err().map(|error| error.to_string())
        };
        let name = option.split('=').next().unwrap();
        let expected = format!("{name}: the server runs alone, because the file has no <transport>");
        assert!(refusal(&[]).is_some_and(|text| text.starts_with(&expected)), "{option}: {:?}", refusal(&[]));
        assert_eq!(refusal(&["--cluster=shop"]), None, "{option}");
    }
    let files = Files::new("transport", "<transport cluster=\"shop\"/>", "");
    let config = format!("--config={}", files.path("infinispan.xml"));
    let mut server = Arguments::parse_from(["consort", &config, "--bind=127.0.0.1"]).server;
    assert!(server.read_file().is_ok() && server.cluster.as_deref() == Some("shop"));
}

#[test]
fn variables_without_an_effect_are_refused_by_their_whole_name() {
    let files = Files::new("variables", "<local-cache name=\"${some.cache,other:c}\"/>", "");
    let config = format!("--config={}", files.path("infinispan.xml"));
    let read = |define: &str| {
        let mut server = Arguments::parse_from(["consort", &config, "-D", define]).server;
        server.read_file().map(|file| file.unwrap()).map_err(|error| error.to_string())
    };
    for unused in ["some=x", "cache=x", "user-properties=x", "infinispan.server.config=x", "c=x"] {
        let error = read(unused).unwrap_err();
        assert!(error.contains("the file does not use the variable"), "{unused}: {error}");
    }
    for used in ["some.cache=x", "other=x", "infinispan.server.data.path=/x"] {
        assert!(read(used).is_ok(), "{used}");
    }
    // The paths of the realm begin there, although the file does not name the variable.
    let realm = read("infinispan.server.config.path=/elsewhere").unwrap().realm_files().unwrap();
    assert_eq!(realm.users(), Some(Path::new("/elsewhere/users.properties")));
}

#[tokio::test]
async fn errors_of_all_files_are_listed_at_once() {
    let files = Files::new("errors", "", "");
    let none = |option: &str, name: &str| format!("--{option}={}", files.path(name));
    let options = [
        none("caches", "none.yaml"),
        none("users", "no-users"),
        none("tls-cert", "none.pem"),
        none("tls-key", "none.key"),
    ];
    let options: Vec<&str> = options.iter().map(|option| &option[..]).collect();
    let (_, others) = files.check(&options).await;
    assert_eq!(others.len(), 3, "{others:?}");
    for (other, name) in others.iter().zip(["none.yaml", "no-users", "none.pem"]) {
        assert!(other.contains(name), "{name}: {other}");
    }
}

#[test]
fn missing_file_is_named() {
    let mut server = Arguments::parse_from(["consort", "--config=none/infinispan.xml"]).server;
    let error = server.read_file().unwrap_err();
    assert!(format!("{error:#}").starts_with("--config: cannot read none/infinispan.xml: "), "{error:#}");
}

/// At SIGHUP.
#[test]
fn users_of_the_file_are_read_again_unless_there_are_others() {
    let files = Files::new("hangup", "", "");
    let config = format!("--config={}", files.path("infinispan.xml"));
    let reread = |more: &[&str]| {
        let mut server = Arguments::parse_from([&["consort", &config[..]], more].concat()).server;
        let file = server.read_file().unwrap();
        server.files(file.as_ref()).users
    };
    let Some(UsersFile::Realm(realm)) = reread(&[]) else { panic!("the realm's") };
    assert_eq!(realm.users(), Some(Path::new(&files.path("users.properties"))));
    let users = files.path("users");
    assert!(
        matches!(reread(&["--users", &users]), Some(UsersFile::Own(file, Some(_))) if file == Path::new(&users))
    );
}

#[tokio::test]
async fn start_waits_for_the_members_of_the_file() {
    let manager = ServerCommand::alone().unwrap().connect("wait-for-members").await.unwrap();
    let wait = async |size| server_config::wait_for_members(&manager, (size, Duration::ZERO)).await;
    assert!(wait(1).await.is_ok());
    let error = wait(2).await.unwrap_err().to_string();
    assert_eq!(error, "initial-cluster-size: the cluster has 1 of 2 members after 0 s");
    manager.close().await.unwrap();
}
