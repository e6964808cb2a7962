//! A client with TLS and a password: the server shows a certificate, and the client authenticates with SCRAM.
//!
//! `cargo run -p consort-examples --bin client_tls`
//!
//! For a server of its own: `Client::connect("hotrods://alice:secret@host?trust_store_file_name=ca.pem")`.

use consort::client::{ServerAddress, Tls};
use consort::server::{ClientCertificates, Users};
use consort::tls::{Identity, Roots};
use consort::{Client, Server};
use consort_examples::{Failure, Served};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Makes a certificate authority, and a certificate for a server on the loopback address.
fn certificates() -> Result<(Roots, Identity), Failure> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
    let identity = Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes())?;
    Ok((Roots::from_pem(authority.as_bytes())?, identity))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (roots, identity) = certificates()?;
    // In production a file of `consort user`, which has verifiers instead of passwords.
    let users = Users::parse("users", "alice admin password:secret\n")?;
    let settings = Server::builder().tls(identity, ClientCertificates::NotAsked).users(users);
    let served = Served::start(settings).await?;
    let address =
        || ServerAddress { host: served.address.ip().to_string().into(), port: served.address.port() };
    let to_server = || Client::builder().server(address()).tls(Tls::new(roots.clone()));

    let client = to_server().user("alice", "secret").connect().await?;
    client.administration().get_or_create("stock", r#"{"local-cache": {}}"#).await?;
    let stock = client.cache::<String, u32>("stock");
    stock.put("apples", &3).await?;
    println!("apples: {:?}", stock.get("apples").await?);
    client.close().await;

    let refused = to_server().user("alice", "wrong").connect().await;
    println!("a wrong password is refused: {}", refused.is_err());
    served.stop().await
}
