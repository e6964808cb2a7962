//! Tests of members over TCP within TLS, with certificates on both sides, and of peers that are refused.

mod cluster;

use std::sync::Arc;

use cluster::{Cluster, Inbox, PATIENCE, members, one_view};
use consort_channel::{Channel, IgnoringReceiver, Message};
use consort_testkit::{Authority, Log};
use consort_tls::{Identity, Roots};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Attributes of a member with a certificate for this host that trusts this authority.
fn member(authority: &Authority, name: &str) -> String {
    member_at(authority, name, "127.0.0.1")
}

/// The same with a certificate for another host.
fn member_at(authority: &Authority, name: &str, host: &str) -> String {
    let (own, roots) = (authority.certify_in_one(name, &[host]), authority.file());
    format!(
        "tls.enabled=\"true\" tls.client_auth=\"need\" tls.keystore_path=\"{}\" tls.truststore_path=\"{}\"",
        own.display(),
        roots.display()
    )
}

/// A port range and a cluster whose members each have a transport of their own.
struct Place {
    base: Cluster,
    transport: &'static str,
}

impl Place {
    fn new() -> Self {
        Self { base: Cluster::new("tcp.xml"), transport: "TCP" }
    }

    /// One with the transport TCP_NIO2.
    fn of_tcp_nio2() -> Self {
        Self { base: Cluster::new("tcp-nio.xml"), transport: "TCP_NIO2" }
    }

    fn cluster(&self, attributes: &str) -> Cluster {
        let Cluster { name, config, text, variables } = &self.base;
        let same = Cluster { name: name.clone(), config, text: text.clone(), variables: variables.clone() };
        same.transport(self.transport, &format!("port_range=\"8\" {attributes}"))
    }

    async fn join(&self, name: &str, attributes: &str, inbox: Arc<Inbox>) -> Channel {
        self.cluster(attributes).join(name, inbox).await
    }
}

/// Each member multicasts messages of these sizes, and all members receive them.
async fn multicasts(channels: &[Channel], inboxes: &[Arc<Inbox>], sizes: &[usize]) {
    for channel in channels {
        for (nth, &size) in sizes.iter().enumerate() {
            channel.send(Message::bytes(None, vec![nth as u8; size])).await.unwrap();
        }
    }
    for inbox in inboxes {
        for channel in channels {
            let received = inbox.from(channel.address(), sizes.len()).await;
            for (nth, (bytes, &size)) in received.iter().zip(sizes).enumerate() {
                assert!(bytes.len() == size && bytes.iter().all(|&byte| byte == nth as u8), "{nth}");
            }
        }
    }
}

/// Members that have joined with these attributes, and their inboxes.
async fn joined(
    place: &Place,
    names: &[&str],
    attributes: impl Fn(&str) -> String,
) -> (Vec<Channel>, Vec<Arc<Inbox>>) {
    let (mut channels, mut inboxes) = (Vec::new(), Vec::new());
    for name in names {
        let inbox: Arc<Inbox> = Arc::default();
        channels.push(place.join(name, &attributes(name), inbox.clone()).await);
        inboxes.push(inbox);
    }
    (channels, inboxes)
}

async fn close(channels: Vec<Channel>) {
    for channel in channels {
        channel.close().await;
    }
}

const SIZES: [usize; 7] = [1, 100, 1_000, 16_384, 16_385, 100_000, 1_000_000];

#[tokio::test]
async fn members_with_certificates_of_one_authority_exchange_messages_of_all_sizes() {
    let (authority, place) = (Authority::new("sizes"), Place::new());
    let (log, _guard) = Log::begin("consort_net=warn");
    let (channels, inboxes) = joined(&place, &["A", "B", "C"], |name| member(&authority, name)).await;
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    multicasts(&channels, &inboxes, &SIZES).await;
    close(channels).await;
    assert_eq!(log.take(), "", "nothing is complained of");
}

/// With the value in capitals, as JGroups writes it.
#[tokio::test]
async fn members_of_tcp_nio2_that_want_certificates_exchange_messages_within_tls() {
    let (authority, place) = (Authority::new("nio"), Place::of_tcp_nio2());
    let (log, _guard) = Log::begin("consort_net=warn");
    let attributes = |name: &str| member(&authority, name).replace("\"need\"", "\"WANT\"");
    let (channels, inboxes) = joined(&place, &["A", "B"], attributes).await;
    one_view(&channels.iter().collect::<Vec<_>>()).await;
    multicasts(&channels, &inboxes, &[1, 100_000]).await;
    assert_eq!(log.take(), "", "nothing is complained of");
    // The connection uses TLS: the member reads a program's bytes within it.
    let _ = connect_and_read(&channels[0], &authority, None).await;
    let logged = log.take();
    assert!(logged.contains("wrong cookie"), "{logged}");
    close(channels).await;
}

/// Each member trusts its own certificate: the key store is the trust store as well.
#[tokio::test]
async fn the_key_store_is_the_trust_store_where_none_is_named() {
    let (authority, place) = (Authority::new("self"), Place::new());
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let store = authority.directory.join("self.pem");
    std::fs::write(&store, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
    let attributes =
        format!("tls.enabled=\"true\" tls.client_auth=\"need\" tls.keystore_path=\"{}\"", store.display());
    let a = place.join("A", &attributes, Arc::default()).await;
    let b = place.join("B", &attributes, Arc::default()).await;
    one_view(&[&a, &b]).await;
    close(vec![a, b]).await;
}

/// Otherwise a member could pose as another one, whose address it has obtained.
#[tokio::test]
async fn a_member_whose_certificate_is_for_another_address_is_not_connected_to() {
    let (log, _guard) = Log::begin("consort_net=warn");
    // Each is to form a cluster alone: short timeouts.
    let base = Cluster::new("tcp.xml").edited(&[("join_timeout=\"2s\"", "join_timeout=\"300ms\"")]);
    let (authority, place) = (Authority::new("elsewhere"), Place { base, transport: "TCP" });
    let a = place.join("A", &member_at(&authority, "A", "10.9.8.7"), Arc::default()).await;
    let b = place.join("B", &member(&authority, "B"), Arc::default()).await;
    assert_eq!((members(&a, 1).await.len(), members(&b, 1).await.len()), (1, 1));
    let logged = log.take();
    assert!(logged.contains("set tls.server_name to a name in its certificate"), "{logged}");
    close(vec![a, b]).await;
}

/// Only configured versions and suites are used.
#[tokio::test]
async fn versions_of_tls_are_chosen() {
    for (nth, settings) in [
        r#"tls.protocols="TLSv1.2""#,
        r#"tls.protocols="TLSv1.3" tls.cipher_suites="TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256""#,
    ]
    .iter()
    .enumerate()
    {
        let (authority, place) = (Authority::new(&format!("versions-{nth}")), Place::new());
        let inboxes: Vec<Arc<Inbox>> = (0..2).map(|_| Arc::default()).collect();
        let mut channels = Vec::new();
        for (name, inbox) in ["A", "B"].iter().zip(&inboxes) {
            let attributes = format!("{} {settings}", member(&authority, name));
            channels.push(place.join(name, &attributes, inbox.clone()).await);
        }
        one_view(&channels.iter().collect::<Vec<_>>()).await;
        multicasts(&channels, &inboxes, &[1, 100_000]).await;
        close(channels).await;
    }
}

/// One name for all members in place of their addresses.
#[tokio::test]
async fn certificates_may_have_one_name_for_all_members() {
    let (authority, place) = (Authority::new("names"), Place::new());
    let own = authority.certify_in_one("all", &["members.example"]);
    let attributes = format!(
        "tls.enabled=\"true\" tls.client_auth=\"need\" tls.keystore_path=\"{}\" tls.truststore_path=\"{}\" \
         tls.server_name=\"members.example\"",
        own.display(),
        authority.file().display()
    );
    let a = place.join("A", &attributes, Arc::default()).await;
    // As two files of a secret of Kubernetes.
    let text = std::fs::read_to_string(&own).unwrap();
    let key_at = text.find("-----BEGIN PRIVATE KEY").unwrap();
    let (chain, key) = (authority.directory.join("tls.crt"), authority.directory.join("tls.key"));
    std::fs::write(&chain, &text[..key_at]).unwrap();
    std::fs::write(&key, &text[key_at..]).unwrap();
    let store = format!("keystore_path=\"{}\"", own.display());
    let apart = format!("keystore_path=\"{}\" tls.key_path=\"{}\"", chain.display(), key.display());
    let b = place.join("B", &attributes.replace(&store, &apart), Arc::default()).await;
    one_view(&[&a, &b]).await;
    close(vec![a, b]).await;
}

/// Two members form a cluster; an intruder fails to join and stays alone. Returns the log.
async fn kept_out(authority: &Authority, intruder: &str) -> (String, Vec<Channel>) {
    let (log, _guard) = Log::begin("consort_net=warn");
    let place = Place::new();
    let inboxes: Vec<Arc<Inbox>> = (0..2).map(|_| Arc::default()).collect();
    let a = place.join("A", &member(authority, "A"), inboxes[0].clone()).await;
    let b = place.join("B", &member(authority, "B"), inboxes[1].clone()).await;
    one_view(&[&a, &b]).await;
    let _ = log.take();
    let intruder = place.cluster(intruder).join("X", IgnoringReceiver).await;
    assert_eq!(members(&intruder, 1).await.len(), 1);
    let members = [a, b];
    multicasts(&members, &inboxes, &[1, 100_000]).await;
    for member in &members {
        assert_eq!(member.view().expect("a view").len(), 2, "{}", member.view_text());
    }
    let logged = log.take();
    let [a, b] = members;
    // The log has both addresses, whichever side writes it.
    let addresses = [a.physical_address(), intruder.physical_address()].map(|phys| phys.to_string());
    assert!(logged.contains(&addresses[0]), "{addresses:?}: {logged}");
    (logged, vec![a, b, intruder])
}

#[tokio::test]
async fn a_member_without_tls_does_not_get_in() {
    let authority = Authority::new("plain");
    let (logged, channels) = kept_out(&authority, "").await;
    assert!(logged.contains("it does not send TLS: is tls.enabled set there?"), "{logged}");
    assert!(logged.contains("an alert of TLS: TLS is enabled at the peer, not here"), "{logged}");
    close(channels).await;
}

#[tokio::test]
async fn a_member_of_another_authority_does_not_get_in() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let (logged, channels) = kept_out(&authority, &member(&other, "X")).await;
    assert!(
        logged.contains("no authority in our tls.truststore_path has signed its certificate"),
        "{logged}"
    );
    close(channels).await;
}

/// The intruder trusts this authority, which does not trust it: with TLS 1.3 it learns that only after its first
/// write.
#[tokio::test]
async fn a_member_that_only_believes_us_does_not_get_in() {
    let (authority, other) = (Authority::new("believed"), Authority::new("believing"));
    let own = other.certify_in_one("X", &["127.0.0.1"]);
    let attributes = format!(
        "tls.enabled=\"true\" tls.keystore_path=\"{}\" tls.truststore_path=\"{}\"",
        own.display(),
        authority.file().display()
    );
    let (logged, channels) = kept_out(&authority, &attributes).await;
    assert!(
        logged.contains("no authority in our tls.truststore_path has signed its certificate"),
        "{logged}"
    );
    assert!(logged.contains("it does not trust our certificate"), "{logged}");
    close(channels).await;
}

/// A member without TLS is connected to by one with TLS.
#[tokio::test]
async fn a_member_without_tls_logs_a_peer_that_begins_tls() {
    let (log, _guard) = Log::begin("consort_net=warn");
    let (authority, place) = (Authority::new("begins"), Place::new());
    let a = place.cluster("").join("A", IgnoringReceiver).await;
    let b = place.cluster(&member(&authority, "B")).join("B", IgnoringReceiver).await;
    assert_eq!((members(&a, 1).await.len(), members(&b, 1).await.len()), (1, 1));
    let logged = log.take();
    assert!(logged.contains("the peer uses TLS, and tls.enabled is not set at this member"), "{logged}");
    assert!(logged.contains("is tls.enabled set there?"), "{logged}");
    close(vec![a, b]).await;
}

/// Connects to a member with this certificate. Returns the first bytes from the member.
async fn connect_and_read(
    member: &Channel,
    authority: &Authority,
    identity: Option<Identity>,
) -> std::io::Result<usize> {
    let client = consort_tls::client(Roots::from_file(authority.file()).unwrap(), identity).unwrap();
    let stream = TcpStream::connect(member.physical_address().socket_addr()).await.unwrap();
    let name = rustls::pki_types::ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
    let connected = tokio_rustls::TlsConnector::from(client).connect(name, stream);
    let mut stream = timeout(PATIENCE, connected).await.expect("in time")?;
    // Invalid set-up bytes, so that the member closes an accepted connection.
    stream.write_all(b"nobody").await?;
    let mut buffer = [0; 100];
    timeout(PATIENCE, stream.read(&mut buffer)).await.expect("in time")
}

#[tokio::test]
async fn a_client_without_certificate_is_refused_if_one_is_needed() {
    let (authority, place) = (Authority::new("none"), Place::new());
    let needed = member(&authority, "A");
    let (log, _guard) = Log::begin("consort_net=warn");
    let a = place.join("A", &needed, Arc::default()).await;
    let error = connect_and_read(&a, &authority, None).await.expect_err("it is refused").to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    let logged = log.take();
    assert!(logged.contains("tls.client_auth is need here"), "{logged}");
    a.close().await;

    // If no certificate is required, the handshake succeeds and the set-up bytes fail.
    for auth in ["none", "want"] {
        let place = Place::new();
        let attributes = needed.replace("\"need\"", &format!("\"{auth}\""));
        let a = place.join("A", &attributes, Arc::default()).await;
        let _ = connect_and_read(&a, &authority, None).await;
        let logged = log.take();
        assert!(logged.contains("wrong cookie") && !logged.contains("no TLS"), "{auth}: {logged}");
        // A presented certificate is checked if certificates are wanted, and only then.
        let other = Authority::new(&format!("others-{auth}"));
        let store = other.certify_in_one("X", &[]);
        let shown = Identity::from_files(&store, &store).unwrap();
        let error = connect_and_read(&a, &authority, Some(shown)).await.err().map(|error| error.to_string());
        let is_looked_at = error.as_ref().is_some_and(|error| error.contains("UnknownCA"));
        assert_eq!(is_looked_at, auth == "want", "{auth}: {error:?}");
        a.close().await;
    }
}

/// Returns the error of a member that cannot start.
async fn refused(attributes: &str) -> String {
    let cluster = Place::new().cluster(attributes);
    let connecting = cluster.builder("A").connect(&cluster.name);
    timeout(PATIENCE, connecting).await.expect("in time").expect_err("an error").to_string()
}

#[tokio::test]
async fn unusable_files_are_reported_before_sockets_are_opened() {
    let authority = Authority::new("files");
    let named = |path: &str| format!("tls.enabled=\"true\" tls.keystore_path=\"{path}\"");
    let error = refused("tls.enabled=\"true\"").await;
    assert!(error.contains("tls.enabled needs tls.keystore_path, the path of a PEM file"), "{error}");
    let error = refused(&named("members.p12")).await;
    assert!(error.contains("members.p12 looks like a PKCS12 or JKS store; give a PEM file"), "{error}");
    // Also under a name without an extension.
    let store = authority.directory.join("keystore");
    std::fs::write(&store, [0x30, 0x82, 0x0a, 0x10, 2, 1, 3, 0x30, 0x82]).unwrap();
    let error = refused(&named(&store.display().to_string())).await;
    assert!(error.contains("keystore looks like a PKCS12 or JKS store"), "{error}");
    let error = refused(&named("not-there.pem")).await;
    assert!(error.contains("not-there.pem: No such file"), "{error}");
    let error = refused(&named(&authority.file().display().to_string())).await;
    assert!(error.contains("ca.pem: no private key in it"), "{error}");
    let error = refused(&format!("{} tls.protocols=\"SSLv3\"", member(&authority, "A"))).await;
    assert!(error.contains("`SSLv3` is not supported, only TLSv1.3, TLSv1.2"), "{error}");
}
