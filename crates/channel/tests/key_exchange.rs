//! Tests of SSL_KEY_EXCHANGE: members get the group's key over TLS, and others do not.

mod cluster;

use std::net::IpAddr;
use std::sync::Arc;

use cluster::{Cluster, Inbox, PATIENCE, members, one_view};
use consort_channel::{Channel, IgnoringReceiver, Message};
use consort_keystore::{Limits, Opening, certificates};
use consort_testkit::{Authority, Log};
use consort_tls::{Identity, ServerCheck, client_with_check};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Key stores by Java 17: `certificates.p12` has a certificate of the authority in `trusted.p12`.
const STORES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keystore/tests/data");

const ABOVE: &str = "<pbcast.NAKACK2";

/// A cluster, and the port at which its coordinator serves the key.
struct Place {
    base: Cluster,
    port: u16,
}

impl Place {
    fn new() -> Self {
        let base = Cluster::new("tcp.xml").edited(&[("join_timeout=\"2s\"", "join_timeout=\"300ms\"")]);
        let first: u16 = base.name.trim_start_matches("cluster-").parse().expect("a port");
        Self { base, port: first + 12 }
    }

    fn cluster(&self, stores: &str) -> Cluster {
        let Cluster { name, config, text, variables } = &self.base;
        let same = Cluster { name: name.clone(), config, text: text.clone(), variables: variables.clone() };
        let layers = format!(
            "<SSL_KEY_EXCHANGE port=\"{}\" {stores}/>\
             <ASYM_ENCRYPT use_external_key_exchange=\"true\" change_key_on_leave=\"true\" \
             sym_algorithm=\"AES/CBC/PKCS5Padding\" sym_iv_length=\"16\"/>{ABOVE}",
            self.port
        );
        same.edited(&[(ABOVE, &layers)])
    }

    async fn join(&self, name: &str, stores: &str) -> (Channel, Arc<Inbox>) {
        let inbox: Arc<Inbox> = Arc::default();
        (self.cluster(stores).join(name, inbox.clone()).await, inbox)
    }
}

fn stores(keys: &str, trusted: &str) -> String {
    format!("keystore_name=\"{STORES}/{keys}\" truststore_name=\"{STORES}/{trusted}\"")
}

fn trusted() -> String {
    stores("certificates.p12", "trusted.p12")
}

async fn all_read_each_other(members: &[&(Channel, Arc<Inbox>)], text: &str) {
    for (channel, _) in members {
        channel.send(Message::bytes(None, text.to_owned())).await.unwrap();
    }
    for (_, inbox) in members {
        for (channel, _) in members {
            let sent = channel.address();
            let mut count = 1;
            while inbox.from(sent, count).await.last().expect("a message") != text.as_bytes() {
                count += 1;
            }
        }
    }
}

/// S000-57
#[tokio::test]
async fn members_get_each_key_of_each_coordinator_over_tls() {
    let (log, _guard) = Log::begin("consort_net=warn,consort_group=warn");
    let place = Place::new();
    let a = place.join("A", &trusted()).await;
    let b = place.join("B", &trusted()).await;
    let c = place.join("C", &trusted()).await;
    one_view(&[&a.0, &b.0, &c.0]).await;
    all_read_each_other(&[&a, &b, &c], "three").await;
    c.0.close().await;
    one_view(&[&a.0, &b.0]).await;
    all_read_each_other(&[&a, &b], "two").await;
    let d = place.join("D", &trusted()).await;
    a.0.close().await;
    one_view(&[&b.0, &d.0]).await;
    all_read_each_other(&[&b, &d], "of the second coordinator").await;
    let e = place.join("E", &trusted()).await;
    one_view(&[&b.0, &d.0, &e.0]).await;
    all_read_each_other(&[&b, &d, &e], "again three").await;
    for (channel, _) in [b, d, e] {
        channel.close().await;
    }
    assert_eq!(log.take(), "", "nothing is complained of");
}

/// As in JGroups' demonstration: all members have one store with one certificate, without an authority.
#[tokio::test]
async fn one_self_signed_certificate_of_all_members_is_enough() {
    let place = Place::new();
    let store = format!("keystore_name=\"{STORES}/self-signed.p12\"");
    for version in ["", "ssl_protocol=\"TLSv1.2\"", "ssl_protocol=\"TLSv1.3\""] {
        let store = format!("{store} {version}");
        let (a, b) = (place.join("A", &store).await, place.join("B", &store).await);
        one_view(&[&a.0, &b.0]).await;
        all_read_each_other(&[&a, &b], "both").await;
        b.0.close().await;
        a.0.close().await;
    }
}

/// Its own store does not have the authority of the others.
#[tokio::test]
async fn member_that_does_not_trust_the_server_gets_no_key() {
    let (log, _guard) = Log::begin("consort_group=warn,consort_net=warn");
    let place = Place::new();
    let a = place.join("A", &trusted()).await;
    let stranger = place.cluster(&stores("certificates.p12", "self-signed.p12"));
    let stranger = stranger.edited(&[("<pbcast.GMS", "<pbcast.GMS max_join_attempts=\"1\"")]);
    let stranger = stranger.join("X", IgnoringReceiver).await;
    assert_eq!(members(&stranger, 1).await.len(), 1);
    let logged = log.take();
    assert!(logged.contains("its certificate is not in our truststore_name"), "{logged}");
    stranger.close().await;
    a.0.close().await;
}

/// Returns the answer to a program that asks the coordinator for the key, with these certificates.
async fn asked(place: &Place, identity: Option<Identity>) -> std::io::Result<Vec<u8>> {
    asked_at([127, 0, 0, 1].into(), place, identity).await
}

async fn asked_at(server: IpAddr, place: &Place, identity: Option<Identity>) -> std::io::Result<Vec<u8>> {
    let client = client_with_check(ServerCheck::Nothing, identity).unwrap();
    let stream = TcpStream::connect((server, place.port)).await?;
    let name = rustls::pki_types::ServerName::from(server);
    let connected = tokio_rustls::TlsConnector::from(client).connect(name, stream);
    let mut stream = timeout(PATIENCE, connected).await.expect("in time")?;
    stream.write_all(&[0]).await?;
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("in time")?;
    Ok(answer)
}

fn identity(store: &str) -> Identity {
    let bytes = std::fs::read(format!("{STORES}/{store}")).unwrap();
    let own =
        certificates(&bytes, &Opening { password: "changeit", ..Opening::default() }, &Limits::default())
            .unwrap();
    Identity::from_der(own.chain().to_vec(), own.private_key().unwrap().to_vec())
}

/// S000-57: with the right certificate the same program gets the key.
#[tokio::test]
async fn program_without_a_trusted_certificate_gets_no_key() {
    let (log, _guard) = Log::begin("consort_net=warn");
    let place = Place::new();
    let a = place.join("A", &trusted()).await;
    let answer = asked(&place, Some(identity("certificates.p12"))).await.expect("an answer");
    assert_eq!(
        (answer.len(), &answer[..5], &answer[21..25]),
        (41, &[1, 0, 0, 0, 16][..], &[0, 0, 0, 16][..])
    );
    assert_eq!(log.take(), "");
    let other = Authority::new("other").certify("X", &[]).identity();
    for (rogue, why) in [
        (None, "it has no certificate, and require_client_authentication is set here"),
        (Some(identity("self-signed.p12")), "its certificate is not in our truststore_name"),
        (Some(other), "its certificate is not in our truststore_name"),
    ] {
        let answer = asked(&place, rogue).await;
        assert!(answer.as_ref().is_err() || answer.as_ref().is_ok_and(Vec::is_empty), "{answer:?}");
        // Warnings of one cause are one line a minute.
        let logged = log.take();
        assert!(logged.is_empty() || logged.contains(why), "{logged}");
    }
    a.0.close().await;
}

/// Returns whether a program gets the key before its certificate is in the trust store, and afterwards.
async fn gets_key(reload_threshold: &str) -> (bool, bool) {
    let place = Place::new();
    let store = std::env::temp_dir().join(format!("{}-trusted.p12", place.base.name));
    let trust = |name: &str| std::fs::copy(format!("{STORES}/{name}"), &store).unwrap();
    trust("trusted.p12");
    let stores = format!(
        "keystore_name=\"{STORES}/certificates.p12\" truststore_name=\"{}\" reload_threshold=\"{reload_threshold}\"",
        store.display()
    );
    let a = place.join("A", &stores).await;
    let gets =
        async || asked(&place, Some(identity("self-signed.p12"))).await.is_ok_and(|key| key.len() == 41);
    let before = gets().await;
    trust("self-signed.p12");
    let after = gets().await;
    a.0.close().await;
    std::fs::remove_file(store).unwrap();
    (before, after)
}

#[tokio::test]
async fn certificates_are_read_again_after_the_set_time() {
    assert_eq!(gets_key("0").await, (false, true));
    assert_eq!(gets_key("1h").await, (false, false));
}

#[tokio::test]
async fn server_listens_at_the_set_address() {
    let place = Place::new();
    let stores = format!("{} bind_addr=\"127.0.0.2\"", trusted());
    let (a, b) = (place.join("A", &stores).await, place.join("B", &stores).await);
    one_view(&[&a.0, &b.0]).await;
    all_read_each_other(&[&a, &b], "both").await;
    let own = || Some(identity("certificates.p12"));
    assert!(asked(&place, own()).await.is_err());
    assert_eq!(asked_at([127, 0, 0, 2].into(), &place, own()).await.expect("an answer").len(), 41);
    b.0.close().await;
    a.0.close().await;
}

/// One sends no TLS, and 300 others send nothing at all.
#[tokio::test]
async fn garbage_and_silence_at_the_port_hold_up_no_member() {
    let place = Place::new();
    let a = place.join("A", &trusted()).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(("127.0.0.1", place.port)).await.unwrap());
    }
    let mut garbage = TcpStream::connect(("127.0.0.1", place.port)).await.unwrap();
    garbage.write_all(&[0; 1_000]).await.unwrap();
    let b = place.join("B", &trusted()).await;
    one_view(&[&a.0, &b.0]).await;
    all_read_each_other(&[&a, &b], "both").await;
    for mut stream in silent.into_iter().chain([garbage]) {
        let mut bytes = Vec::new();
        let closed = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the member closes it");
        // The end of the stream, a reset, or an alert about bytes that are no TLS.
        assert!(closed.is_err() || bytes.len() < 10, "{bytes:?}");
    }
    b.0.close().await;
    a.0.close().await;
}

/// Every program that connects gets the key, and the operator is warned.
#[tokio::test]
async fn certificates_of_members_may_be_optional() {
    let (log, _guard) = Log::begin("consort_group=warn");
    let place = Place::new();
    let a = place.join("A", &format!("{} require_client_authentication=\"false\"", trusted())).await;
    assert_eq!(asked(&place, None).await.expect("an answer").len(), 41);
    assert!(log.take().contains("require_client_authentication"));
    a.0.close().await;
}
