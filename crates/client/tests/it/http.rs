//! HTTP within TLS, on the port of Hot Rod's clients.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use consort_server::{ClientCertificates, Server, Users};
use consort_tls::{Identity, Roots};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::certificates::Authority;
use crate::servers::{PATIENCE, Running};

const USERS: &str = "admin admin password:secret\nscraper monitor\n\"somebody else\" application\n";

/// What is answered within TLS to a client that may show a certificate.
async fn ask(server: &Running, roots: Roots, identity: Option<Identity>, path: &str, fields: &str) -> String {
    let connector = TlsConnector::from(consort_tls::client(roots, identity).unwrap());
    let stream = TcpStream::connect(server.at).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut told = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut told)).await.expect("an answer").unwrap();
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
    let mut stream = TcpStream::connect(server.at).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut told = String::new();
    // What was not read there is a reset here, after what it says.
    let _ = timeout(PATIENCE, stream.read_to_string(&mut told)).await.expect("an answer");
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
    let mut stream = TcpStream::connect(server.at).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut told = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut told)).await.expect("an answer").unwrap();
    assert!(told.starts_with("HTTP/1.1 403 ") && told.contains("that needs TLS"), "{told}");
}
