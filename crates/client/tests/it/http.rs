//! HTTP over TLS, on the Hot Rod port.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use consort_server::{ClientCertificates, Server, Tokens, Users};
use consort_testkit::Authority;
use consort_tls::{Identity, Roots};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, HandshakeKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::servers::{PATIENCE, Running};

const USERS: &str = "admin admin password:secret\nscraper monitor\n\"somebody else\" application\n";

/// Sends a request over TLS, optionally with a certificate.
async fn ask(server: &Running, roots: Roots, identity: Option<Identity>, path: &str, fields: &str) -> String {
    ask_by(server, consort_tls::client(roots, identity).unwrap(), path, fields).await.0
}

/// As `ask` with shared TLS settings, so that sessions can be resumed. Returns also the kind of the
/// handshake.
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
    let mut response = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut response)).await.expect("an answer").unwrap();
    (response, stream.get_ref().1.handshake_kind().expect("a handshake"))
}

/// Sends a request without TLS.
async fn ask_plainly(at: SocketAddr, path: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    // Unread input causes a reset after the response.
    let _ = timeout(PATIENCE, stream.read_to_string(&mut response)).await.expect("an answer");
    response
}

#[tokio::test]
async fn over_tls_health_is_public_and_metrics_accept_every_credential() {
    let authority = Authority::new("http-ca");
    let server = authority.certify("server", &["localhost"]);
    let (scraper, stranger) = (authority.certify("scraper", &[]), authority.certify("stranger", &[]));
    let builder = Server::builder()
        .users(Users::parse("users", USERS).unwrap())
        .tls(server.identity(), ClientCertificates::Asked(authority.roots()));
    let server = Running::secured("http within tls", "A", builder).await;
    let response = ask(&server, authority.roots(), None, "/health", "").await;
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nHEALTHY"),
        "{response}"
    );
    let response = ask(&server, authority.roots(), None, "/metrics", "").await;
    assert!(
        response.starts_with("HTTP/1.1 401 ") && response.contains("\r\nWWW-Authenticate: Basic "),
        "{response}"
    );
    let password = format!("Authorization: Basic {}\r\n", STANDARD.encode("admin:secret"));
    for (identity, fields) in [(None, &*password), (Some(scraper.identity()), "")] {
        let response = ask(&server, authority.roots(), identity, "/metrics", fields).await;
        assert!(
            response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("\nconsort_connections 1\n"),
            "{response}"
        );
        let until =
            response.lines().find_map(|line| line.strip_prefix("consort_tls_certificate_not_after_seconds "));
        let until: u64 = until.expect("the certificate's end of validity").parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(until > now, "{until} after {now}");
    }
    let response = ask(&server, authority.roots(), Some(stranger.identity()), "/metrics", "").await;
    assert!(response.starts_with("HTTP/1.1 401 "), "a certificate of an unknown user: {response}");
}

#[tokio::test]
async fn a_plain_http_request_to_a_tls_port_is_refused_with_a_hint() {
    let authority = Authority::new("http-only-tls");
    let server = authority.certify("server", &["localhost"]);
    let builder = Server::builder().tls(server.identity(), ClientCertificates::NotAsked);
    let server = Running::secured("http without tls", "A", builder).await;
    let response = ask_plainly(server.at, "/health", "").await;
    assert!(
        response.starts_with("HTTP/1.1 400 ")
            && response.ends_with("this server accepts TLS only; use https://\n"),
        "{response}"
    );
}

#[tokio::test]
async fn http_passwords_without_tls_are_refused_unless_allowed() {
    let server = Running::secured(
        "http in the open",
        "A",
        Server::builder().users(Users::parse("users", USERS).unwrap()),
    )
    .await;
    let response = ask_plainly(server.at, "/metrics", "").await;
    assert!(response.starts_with("HTTP/1.1 403 ") && response.contains("without TLS"), "{response}");
}

#[tokio::test]
async fn a_token_authenticates_http_requests_over_tls() {
    const MINUTE: i64 = 60;
    let authority = Authority::new("http-tokens");
    let (key, token) = authority.tokens();
    let server = authority.certify("server", &["localhost"]);
    let builder = Server::builder()
        .users(Users::parse("users", USERS).unwrap())
        .tokens(Tokens::from_file(key, "shop").unwrap())
        .tls(server.identity(), ClientCertificates::NotAsked);
    let server = Running::secured("http with tokens", "A", builder).await;
    let response = ask(&server, authority.roots(), None, "/metrics", "").await;
    assert!(response.starts_with("HTTP/1.1 401 ") && response.contains("Bearer realm="), "{response}");
    for (token, code) in [
        (token("shop", "scraper", MINUTE), 200),
        (token("shop", "admin", MINUTE), 200),
        (token("bank", "scraper", MINUTE), 401),
        (token("shop", "stranger", MINUTE), 401),
        (token("shop", "scraper", -MINUTE), 401),
    ] {
        let field = format!("Authorization: Bearer {token}\r\n");
        let response = ask(&server, authority.roots(), None, "/metrics", &field).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {code} ")), "{response}");
        assert_eq!(response.contains("\nconsort_connections 1\n"), code == 200, "{response}");
    }
}

#[tokio::test]
async fn the_health_port_has_no_tls_and_ignores_credentials() {
    let authority = Authority::new("health-port");
    let identity = authority.certify("server", &["localhost"]);
    let password = format!("Authorization: Basic {}\r\n", STANDARD.encode("admin:secret"));
    for (cluster, has_open_metrics) in [("health port", false), ("health port and metrics", true)] {
        let builder = Server::builder()
            .users(Users::parse("users", USERS).unwrap())
            .tls(identity.identity(), ClientCertificates::NotAsked)
            .health_port(0);
        let builder = if has_open_metrics { builder.public_metrics() } else { builder };
        let server = Running::secured(cluster, "A", builder).await;
        let at = server.health.expect("a port for health");
        for path in ["/health/live", "/health/started", "/health/ready", "/health"] {
            let response = ask_plainly(at, path, "").await;
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {response}");
        }
        for fields in ["", &*password] {
            for (path, is_open) in [("/metrics", has_open_metrics), ("/rest/v2/container/health", false)] {
                let response = ask_plainly(at, path, fields).await;
                assert!(
                    response.starts_with(if is_open { "HTTP/1.1 200 " } else { "HTTP/1.1 403 " }),
                    "{response}"
                );
                let refusal = "this port serves health only; use the client port\n";
                assert_eq!(response.ends_with(refusal), !is_open, "{path}: {response}");
            }
        }
    }
}
