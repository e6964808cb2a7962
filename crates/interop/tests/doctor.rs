//! `consort doctor` beside servers and members that are well, and beside those that are not.

use std::net::TcpListener;
use std::path::PathBuf;

use consort_interop::{Network, Tool, in_network, in_own_network};
use serde_json::Value;

/// Returns the doctor's output and exit code.
fn doctor(arguments: &[&str]) -> (String, i32) {
    let run = Tool::run_consort(&[&["doctor", "--timeout=1"], arguments].concat());
    let code = run.status.code().expect("an exit code");
    (String::from_utf8(run.stdout).expect("text") + &String::from_utf8_lossy(&run.stderr), code)
}

/// A look that finds these lines, and nothing bad or that.
#[track_caller]
fn finds(arguments: &[&str], code: i32, lines: &[&str]) -> String {
    let (output, own_code) = doctor(arguments);
    for line in lines {
        assert!(output.contains(line), "no `{line}` in\n{output}");
    }
    assert_eq!(own_code, code, "{output}");
    let bad = output.lines().filter(|line| line.starts_with("BAD")).count();
    assert_eq!(bad > 0, code == 1, "{output}");
    output
}

fn server(arguments: &[&str]) -> Tool {
    let mut server = Tool::consort(&[&["server"], arguments].concat());
    server.wait_for(&["Hot Rod on"]);
    server
}

fn done(arguments: &[&str]) {
    let run = Tool::run_consort(arguments);
    assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn doctor_accepts_a_healthy_server() {
    in_own_network("doctor_accepts_a_healthy_server", async {
        let _server = server(&[]);
        done(&["cache", "create", "shop"]);
        let lines = [
            "ok      port 127.0.0.1:11222: a program listens",
            "ok      protocol of 127.0.0.1:11222: Hot Rod, up to version 4.1, without TLS",
            "ok      authentication of 127.0.0.1:11222: not required",
            "ok      health of 127.0.0.1:11222: HEALTHY",
            "ok      clock of 127.0.0.1:11222: agrees with the local clock",
            "ok      caches: shop",
            "ok      server 127.0.0.1:11222 that clients are sent to: connected",
            "0 bad,",
        ];
        finds(&[], 0, &lines);
        let (output, code) = doctor(&["localhost", "--json"]);
        let report: Value = serde_json::from_str(&output).expect("JSON");
        assert_eq!((&report["is_well"], code), (&true.into(), 0), "{report}");
        let health = |one: &&Value| one["checked"] == "health of 127.0.0.1:11222";
        let health = report["findings"].as_array().expect("findings").iter().find(health).expect("health");
        assert_eq!((&health["verdict"], &health["found"]), (&"good".into(), &"HEALTHY".into()));
    });
}

#[test]
fn doctor_counts_the_servers_of_a_cache() {
    in_own_network("doctor_counts_the_servers_of_a_cache", async {
        let _server = server(&[]);
        finds(&["--servers=1"], 1, &["BAD     caches: none: no cache whose servers can be checked"]);
        done(&["cache", "create", "shop"]);
        finds(&["--servers=1"], 0, &["ok      servers of cache shop: 1 of 1"]);
        finds(&["--cache=shop", "--servers=2"], 1, &["BAD     servers of cache shop: 1 of 2"]);
        finds(&["--cache=stock"], 1, &["BAD     caches: shop: no cache whose servers can be checked"]);
    });
}

#[test]
fn doctor_distinguishes_a_closed_port_from_another_service() {
    in_own_network("doctor_distinguishes_a_closed_port_from_another_service", async {
        finds(&[], 1, &["BAD     port 127.0.0.1:11222: Connection refused", "-> no program listens there"]);
        finds(&["no.such.host.invalid"], 1, &["BAD     name no.such.host.invalid: "]);
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = silent.local_addr().expect("an address").to_string();
        finds(&[&at], 1, &["it accepts connections, and does not respond within 1s"]);
        let (output, code) = doctor(&["ftp://a"]);
        assert!(code == 2 && output.contains("ftp is neither hotrod nor hotrods"), "{output}");
    });
}

/// A certificate that vouches for itself, in files.
fn certificate() -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let file = |name: &str, text: String| {
        let path = std::env::temp_dir().join(format!("consort-doctor-{}-{name}.pem", std::process::id()));
        std::fs::write(&path, text).expect("a file");
        path
    };
    (file("cert", made.cert.pem()), file("key", made.signing_key.serialize_pem()))
}

#[test]
fn doctor_reports_tls_on_one_side_only() {
    in_own_network("doctor_reports_tls_on_one_side_only", async {
        let (cert, key) = certificate();
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        let _within = server(&["--tls-cert", &cert, "--tls-key", &key]);
        let _plain = server(&["--port=11223"]);
        finds(&[], 1, &["TLS only, and the client connects without TLS", "-> connect with hotrods://"]);
        finds(
            &["hotrods://127.0.0.1:11223"],
            1,
            &["Hot Rod without TLS, and TLS is expected", "-> connect with hotrod://"],
        );
        let trusting = format!("hotrods://localhost:11222?trust_store_file_name={cert}");
        finds(&[&trusting], 0, &["protocol of 127.0.0.1:11222: TLS", "client: connected"]);
        // Another name than that in the certificate.
        let other = format!("hotrods://127.0.0.1:11222?trust_store_file_name={cert}");
        finds(
            &[&other],
            1,
            &["BAD     client at 127.0.0.1:11222: TLS: ", "-> give the certificate to trust"],
        );
        for file in [cert, key] {
            let _ = std::fs::remove_file(file);
        }
    });
}

#[test]
fn doctor_reports_missing_or_wrong_credentials() {
    in_own_network("doctor_reports_missing_or_wrong_credentials", async {
        let users = std::env::temp_dir().join(format!("consort-doctor-users-{}", std::process::id()));
        std::fs::write(&users, "alice admin password:secret\n").expect("a file");
        let _server = server(&["--users", &users.display().to_string()]);
        let by = "authentication of 127.0.0.1:11222: by SCRAM-SHA-512, SCRAM-SHA-384, SCRAM-SHA-256";
        finds(&[], 1, &[by, "BAD     caches: ", "-> log in (hotrod://USER:PASSWORD@HOST)"]);
        finds(
            &["alice:wrong@127.0.0.1"],
            1,
            &[by, "BAD     client at 127.0.0.1:11222: ", "-> look at the user's name"],
        );
        finds(&["alice:secret@127.0.0.1"], 0, &[by, "ok      caches: none"]);
        let _ = std::fs::remove_file(users);
    });
}

#[test]
fn doctor_reports_an_unreachable_advertised_server() {
    in_own_network("doctor_reports_an_unreachable_advertised_server", async {
        let _server = server(&["--advertise=127.0.0.9", "--advertise-port=11999"]);
        done(&["cache", "create", "shop"]);
        let lines = [
            "BAD     server 127.0.0.9:11999 that clients are sent to: Connection refused",
            "-> let the server advertise a name that clients can reach (consort server --advertise HOST)",
        ];
        finds(&[], 1, &lines);
    });
}

/// The doctor's arguments for a member of this cluster.
fn member<'a>(cluster: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--config=tcp.xml", "--bind=127.0.0.1", "--cluster", cluster], more].concat()
}

#[test]
fn doctor_accepts_a_member_that_discovers_others() {
    in_own_network("doctor_accepts_a_member_that_discovers_others", async {
        let first = "no member responds: a member that starts now is the first";
        let missing = "warning hosts to ask (TCPPING): no member listens at any of localhost[7800]";
        finds(&member("shop", &[]), 0, &[missing, first, "port to bind to: 7800 is free"]);
        let _server = server(&["--cluster=shop", "--bind=127.0.0.1", "--name=A", "--diagnostics"]);
        let lines = [
            "ok      stack tcp.xml: TCP, TCPPING",
            "warning address to bind to: 127.0.0.1 of lo, packets of 65536 bytes",
            "port to bind to: 7800 is taken, by a member as a rule; 7801 is free",
            "ok      hosts to ask (TCPPING): a member listens at 127.0.0.1:7800",
            "ok      members of cluster shop: A at 127.0.0.1:7800",
            "ok      view of cluster shop: [A|0] (1) [A]",
            "ok      port of A: 127.0.0.1:7800 accepts connections",
            "ok      port of A for monitoring (FD_SOCK2): 127.0.0.1:7900 accepts connections",
        ];
        finds(&member("shop", &[]), 0, &lines);
        // Without a cluster, those that respond count.
        finds(&["--config=tcp.xml", "--bind=127.0.0.1"], 0, &lines[4..]);
    });
}

#[test]
fn doctor_reports_another_cluster_name_and_wrong_hosts() {
    in_own_network("doctor_reports_another_cluster_name_and_wrong_hosts", async {
        let _server = server(&["--cluster=shop", "--bind=127.0.0.1", "--name=A", "--diagnostics"]);
        let lines = [
            "BAD     members of cluster stop: no member responds; the members that respond (A at 127.0.0.1:7800) are of cluster shop",
            "-> members find only those with the same name: --cluster shop",
        ];
        finds(&member("stop", &[]), 1, &lines);
        let wrong = member("shop", &["-Djgroups.tcpping.initial_hosts=127.0.0.1[7950]"]);
        let lines = [
            "warning hosts to ask (TCPPING): no member listens at any of 127.0.0.1[7950], nor at the 2 ports after each",
            "BAD     hosts to ask (TCPPING): none of them is a member of cluster shop; its members have other addresses",
            "-> -D jgroups.tcpping.initial_hosts=127.0.0.1[7800]",
        ];
        finds(&wrong, 1, &lines);
        let v6 = member("shop", &["-Djgroups.tcpping.initial_hosts=[::1][7800]"]);
        finds(&v6, 1, &["::1 and our address 127.0.0.1 are not of one family"]);
        // One that has been started so is alone beside the other.
        let _alone = server(&[
            "--port=11223",
            "--cluster=shop",
            "--bind=127.0.0.1",
            "--name=B",
            "--diagnostics",
            "-Djgroups.bind_port=7860",
            "-Djgroups.tcpping.initial_hosts=127.0.0.1[7950]",
        ]);
        let lines = ["BAD     view of cluster shop: members have 2 views: [A|0] (1) [A]; [B|0] (1) [B]"];
        finds(&member("shop", &[]), 1, &lines);
    });
}

#[test]
fn doctor_reports_invalid_stacks() {
    in_own_network("doctor_reports_invalid_stacks", async {
        let unknown = ["--config=none.xml", "--cluster=shop"];
        finds(&unknown, 1, &["BAD     stack none.xml: "]);
        let nowhere = ["--config=tcp.xml", "--cluster=shop", "--bind=10.9.8.7"];
        finds(&nowhere, 1, &["BAD     address to bind to: ", "-> name an address of this host"]);
        // Multicasts come back on this loopback.
        let udp = ["--config=udp.xml", "--cluster=shop", "--bind=127.0.0.1"];
        let output =
            finds(&udp, 0, &[" on lo: a sent packet is received", "a member that starts now is the first"]);
        assert!(output.contains("receive buffers: "), "{output}");
    });
}

#[test]
fn doctor_reports_a_host_without_multicast() {
    in_network(Network::WithoutMulticast, "doctor_reports_a_host_without_multicast", async {
        let udp = ["--config=udp.xml", "--cluster=shop", "--bind=127.0.0.1"];
        finds(&udp, 1, &["BAD     multicast to ", "or use a stack with a list of hosts (tcp.xml)"]);
    });
}
