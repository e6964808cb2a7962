//! HTTP within TLS, on the port of Hot Rod's clients.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use consort_server::{ClientCertificates, Server, Tokens, Users};
use consort_tls::{Identity, Roots};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::certificates::Authority;
use crate::servers::{PATIENCE, Running};

const USERS: &str = "admin admin password:secret\nscraper monitor\n\"somebody else\" application\n";

/// What is answered within TLS to a client that may show a certificate.
async fn ask(server: &Running, roots: Roots, identity: Option<Identity>, path: &str, fields: &str) -> String {
    ask_by(server, consort_tls::client(roots, identity).unwrap(), path, fields).await.0
}

/// The same with these settings, which know the sessions of before, and whether a session was resumed.
pub(crate) async fn ask_by(
    server: &Running,
    settings: Arc<ClientConfig>,
    path: &str,
    fields: &str,
) -> (String, HandshakeKind) {
    let connector = TlsConnector::from(settings);
    let stream = TcpStream::connect(server.at).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut told = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut told)).await.expect("an answer").unwrap();
    (told, stream.get_ref().1.handshake_kind().expect("a handshake"))
}

/// What is answered to a client without TLS.
async fn ask_plainly(at: SocketAddr, path: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut told = String::new();
    // What the server has not read is a reset here, after what it says.
    let _ = timeout(PATIENCE, stream.read_to_string(&mut told)).await.expect("an answer");
    told
}

#[tokio::test]
async fn within_tls_health_is_open_and_users_show_themselves_in_every_way() {
    let authority = Authority::new("http-ca");
    let server = authority.certify("server", &["localhost"]);
    let (scraper, stranger) = (authority.certify("scraper", &[]), authority.certify("stranger", &[]));
    let builder = Server::builder()
        .users(Users::parse("users", USERS).unwrap())
        .tls(server.identity(), ClientCertificates::Asked(authority.roots()));
    let server = Running::secured("http within tls", "A", builder).await;
    let told = ask(&server, authority.roots(), None, "/health", "").await;
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n") && told.ends_with("\r\n\r\nHEALTHY"), "{told}");
    let told = ask(&server, authority.roots(), None, "/metrics", "").await;
    assert!(told.starts_with("HTTP/1.1 401 ") && told.contains("\r\nWWW-Authenticate: Basic "), "{told}");
    let password = format!("Authorization: Basic {}\r\n", STANDARD.encode("admin:secret"));
    for (identity, fields) in [(None, &*password), (Some(scraper.identity()), "")] {
        let told = ask(&server, authority.roots(), identity, "/metrics", fields).await;
        assert!(
            told.starts_with("HTTP/1.1 200 OK\r\n") && told.contains("\nconsort_connections 1\n"),
            "{told}"
        );
        let until =
            told.lines().find_map(|line| line.strip_prefix("consort_tls_certificate_not_after_seconds "));
        let until: u64 = until.expect("until when the certificate is good").parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(until > now, "{until} after {now}");
    }
    let told = ask(&server, authority.roots(), Some(stranger.identity()), "/metrics", "").await;
    assert!(told.starts_with("HTTP/1.1 401 "), "a certificate of nobody here: {told}");
}

#[tokio::test]
async fn without_tls_it_is_told_that_there_is_only_tls() {
    let authority = Authority::new("http-only-tls");
    let server = authority.certify("server", &["localhost"]);
    let builder = Server::builder().tls(server.identity(), ClientCertificates::NotAsked);
    let server = Running::secured("http without tls", "A", builder).await;
    let told = ask_plainly(server.at, "/health", "").await;
    assert!(
        told.starts_with("HTTP/1.1 400 ")
            && told.ends_with("this server speaks TLS only: ask with https://\n"),
        "{told}"
    );
}

#[tokio::test]
async fn without_tls_no_password_is_taken_unless_that_is_allowed() {
    let server = Running::secured(
        "http in the open",
        "A",
        Server::builder().users(Users::parse("users", USERS).unwrap()),
    )
    .await;
    let told = ask_plainly(server.at, "/metrics", "").await;
    assert!(told.starts_with("HTTP/1.1 403 ") && told.contains("that needs TLS"), "{told}");
}

#[tokio::test]
async fn within_tls_a_token_shows_a_user_of_http() {
    const MINUTE: i64 = 60;
    let authority = Authority::new("http-tokens");
    let (key, token) = authority.tokens();
    let server = authority.certify("server", &["localhost"]);
    let builder = Server::builder()
        .users(Users::parse("users", USERS).unwrap())
        .tokens(Tokens::from_file(key, "shop").unwrap())
        .tls(server.identity(), ClientCertificates::NotAsked);
    let server = Running::secured("http with tokens", "A", builder).await;
    let told = ask(&server, authority.roots(), None, "/metrics", "").await;
    assert!(told.starts_with("HTTP/1.1 401 ") && told.contains("Bearer realm="), "{told}");
    for (token, code) in [
        (token("shop", "scraper", MINUTE), 200),
        (token("shop", "admin", MINUTE), 200),
        (token("bank", "scraper", MINUTE), 401),
        (token("shop", "stranger", MINUTE), 401),
        (token("shop", "scraper", -MINUTE), 401),
    ] {
        let field = format!("Authorization: Bearer {token}\r\n");
        let told = ask(&server, authority.roots(), None, "/metrics", &field).await;
        assert!(told.starts_with(&format!("HTTP/1.1 {code} ")), "{told}");
        assert_eq!(told.contains("\nconsort_connections 1\n"), code == 200, "{told}");
    }
}

#[tokio::test]
async fn the_port_for_health_has_no_tls_and_tells_a_user_no_more_than_others() {
    let authority = Authority::new("health-port");
    let identity = authority.certify("server", &["localhost"]);
    let password = format!("Authorization: Basic {}\r\n", STANDARD.encode("admin:secret"));
    for (cluster, has_open_metrics) in [("health port", false), ("health port and metrics", true)] {
        let builder = Server::builder()
            .users(Users::parse("users", USERS).unwrap())
            .tls(identity.identity(), ClientCertificates::NotAsked)
            .health_port(0);
        let builder = if has_open_metrics { builder.open_metrics() } else { builder };
        let server = Running::secured(cluster, "A", builder).await;
        let at = server.health.expect("a port for health");
        for path in ["/health/live", "/health/started", "/health/ready", "/health"] {
            let told = ask_plainly(at, path, "").await;
            assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {told}");
        }
        for fields in ["", &*password] {
            for (path, is_open) in [("/metrics", has_open_metrics), ("/rest/v2/container/health", false)] {
                let told = ask_plainly(at, path, fields).await;
                assert!(told.starts_with(if is_open { "HTTP/1.1 200 " } else { "HTTP/1.1 403 " }), "{told}");
                let refusal = "this port answers requests for health only: ask on the port of clients\n";
                assert_eq!(told.ends_with(refusal), !is_open, "{path}: {told}");
            }
        }
    }
}
