//! Authentication of our client by Infinispan's server and by ours: by SCRAM, also in old versions, and within TLS.

use std::fs;
use std::path::Path;

use consort_client::{Client, ClientError};
use consort_interop::{Tool, in_own_network};
use consort_testbed::{InfinispanServer, InfinispanUsers};
use consort_testkit::{Authority, Files};

use crate::prepared;

/// Names, passwords and roles.
const USERS: [(&str, &str, &str); 2] = [("admin", "secret", "admin"), ("reader", "p@ss w:rd/", "observer")];

/// As they stand in an address.
const ADMIN: &str = "admin:secret";
const READER: &str = "reader:p%40ss%20w%3Ard%2F";

/// Roles are checked for each operation.
const SECURED: &str = r#"{"distributed-cache": {"mode": "SYNC", "owners": "2", "encoding": {"media-type": "application/octet-stream"}, "security": {"authorization": {}}}}"#;
/// Ours does so with every cache.
const OURS: &str = r#"{"distributed-cache": {"mode": "SYNC", "owners": "2", "encoding": {"media-type": "application/octet-stream"}}}"#;

async fn connected(uri: &str) -> Client {
    Client::connect(uri).await.unwrap_or_else(|error| panic!("{uri}: {error}"))
}

/// Why a server is not used.
async fn refused(uri: &str) -> String {
    match Client::connect(uri).await {
        Ok(_) => panic!("{uri}: it is used"),
        Err(error) => error.to_string(),
    }
}

async fn works(uri: &str, definition: &str) {
    let client = connected(uri).await;
    client.administration().get_or_create("secured", definition).await.unwrap();
    let cache = client.raw("secured");
    cache.put(&b"k"[..], &b"v"[..]).await.unwrap();
    assert_eq!(cache.get(&b"k"[..]).await.unwrap().unwrap(), "v", "{uri}");
    client.close().await;
}

/// The server's certificate is of this authority, and not of the other one.
async fn known(plain: &str, tls: &str, roots: [&Path; 2], definition: &str) {
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
        works(&format!("hotrod://{ADMIN}@{plain}?sasl_mechanism={mechanism}"), definition).await;
        let wrong = refused(&format!("hotrod://admin:wrong@{plain}?sasl_mechanism={mechanism}")).await;
        assert!(wrong.contains(&format!("authentication failed ({mechanism})")), "{wrong}");
        assert!(wrong.contains("ISPN006024"), "{wrong}");
    }
    // The strongest common mechanism, in the newest version and in older ones.
    works(&format!("hotrod://{ADMIN}@{plain}"), definition).await;
    for version in ["2.1", "2.5", "2.9", "3.0", "3.1", "4.0", "4.1"] {
        works(&format!("hotrod://{ADMIN}@{plain}?protocol_version={version}"), definition).await;
    }
    let unknown = refused(&format!("hotrod://nobody:secret@{plain}")).await;
    assert!(unknown.contains("authentication failed"), "{unknown}");

    // An operation without permission is denied, and later requests work.
    let reader = connected(&format!("hotrod://{READER}@{plain}")).await;
    let cache = reader.raw("secured");
    assert_eq!(cache.get(&b"k"[..]).await.unwrap().unwrap(), "v");
    let error = cache.put(&b"k"[..], &b"w"[..]).await.unwrap_err();
    assert!(matches!(error, ClientError::Denied { .. }) && !error.is_outcome_unknown(), "{error}");
    assert_eq!(cache.get(&b"k"[..]).await.unwrap().unwrap(), "v");
    let stranger = connected(&format!("hotrod://{plain}")).await;
    let error = stranger.raw("secured").get(&b"k"[..]).await.unwrap_err();
    assert!(matches!(error, ClientError::Denied { .. }), "{error}");

    let [own, other] = roots.map(|file| format!("trust_store_file_name={}", file.display()));
    for more in ["", "&sasl_mechanism=SCRAM-SHA-256", "&sasl_mechanism=PLAIN"] {
        works(&format!("hotrods://{ADMIN}@{tls}?{own}{more}"), definition).await;
        let wrong = refused(&format!("hotrods://admin:wrong@{tls}?{own}{more}")).await;
        assert!(wrong.contains("authentication failed"), "{wrong}");
    }
    let untrusted = refused(&format!("hotrods://{ADMIN}@{tls}?{other}")).await;
    assert!(untrusted.contains("TLS: "), "{untrusted}");
}

const PLAIN: &str = "127.0.0.1:11222";
const TLS: &str = "127.0.0.1:11322";

/// An authority with a server's certificate, and another one.
fn authorities() -> ([Authority; 2], Files) {
    let authorities = ["users-own", "users-other"].map(Authority::new);
    let shown = authorities[0].certify("server", &["127.0.0.1", "localhost"]);
    (authorities, shown)
}

#[test]
fn our_client_authenticates_at_infinispans_server() {
    let prepared = prepared();
    in_own_network("users::our_client_authenticates_at_infinispans_server", async move {
        let (authorities, shown) = authorities();
        let read = |file: &Path| fs::read_to_string(file).expect("a PEM file");
        let pem = read(&shown.cert) + &read(&shown.key);
        let secured = InfinispanUsers { users: &USERS, tls_port: 11322, pem: &pem };
        let command = prepared.secured("secured", 11222, &secured);
        let mut server = Tool::start(command.unwrap_or_else(|why| panic!("Infinispan's server: {why}")));
        server.wait_for(&[InfinispanServer::READY]);
        let roots = authorities.each_ref().map(Authority::file);
        known(PLAIN, TLS, [&roots[0], &roots[1]], SECURED).await;
    });
}

#[test]
fn our_client_authenticates_at_our_server() {
    in_own_network("users::our_client_authenticates_at_our_server", async {
        let (authorities, shown) = authorities();
        let lines = USERS.map(|(name, password, role)| format!("{name} {role} \"password:{password}\"\n"));
        let file = authorities[0].file().with_file_name("users");
        fs::write(&file, lines.concat()).expect("a file");
        let users = ["server", "--users", file.to_str().expect("text")];
        let [cert, key] = [&shown.cert, &shown.key].map(|file| file.to_str().expect("text"));
        let tls = [&users[..], &["--port=11322", "--tls-cert", cert, "--tls-key", key]].concat();
        let mut servers = [Tool::consort(&users), Tool::consort(&tls)];
        servers.iter_mut().for_each(|server| drop(server.wait_for(&["Hot Rod"])));
        let roots = authorities.each_ref().map(Authority::file);
        known(PLAIN, TLS, [&roots[0], &roots[1]], OURS).await;
    });
}
