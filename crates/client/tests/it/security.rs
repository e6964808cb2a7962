//! Authentication and TLS.

use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_client::{
    Client, ClientBuilder, ClientError, ConnectError, ConnectionError, Hash, LoginError, Mechanism,
    ServerAddress, Tls,
};
use consort_server::{ClientCertificates, Server, ServerBuilder, Tokens, Users};
use consort_testkit::{Authority, Files};
use consort_tls::ProtocolSettings;
use rcgen::{DistinguishedName, DnType};
use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::ask_by;
use crate::servers::{DISTRIBUTED, PATIENCE, Running, eventually};

const USERS: &str = "admin admin password:secret\n\
    reader observer password:\"p@ss w:rd/\"\n\
    \"Order Service\" application\n";

pub(crate) fn users() -> ServerBuilder {
    Server::builder().users(Users::parse("users", USERS).unwrap())
}

pub(crate) fn to(server: &Running) -> ClientBuilder {
    let address = ServerAddress { host: server.at.ip().to_string().into(), port: server.at.port() };
    Client::builder().server(address)
}

/// Returns an authority's own certificate as a server certificate.
fn own_certificate(authority: &Authority) -> Files {
    let key = authority.directory.join("ca-key.pem");
    std::fs::write(&key, authority.issuer.key().serialize_pem()).unwrap();
    Files { cert: authority.file(), key }
}

/// Creates a client certificate with two common names in its subject.
fn certify_two_names(authority: &Authority, names: [&str; 2]) -> Files {
    let mut both = DistinguishedName::new();
    both.push(DnType::CommonName, names[0]);
    // The attribute by its number, because rcgen allows one of each type.
    both.push(DnType::CustomDnType(vec![2, 5, 4, 3]), names[1]);
    authority.certify_subject(both, &names.join("-"), &[])
}

/// Why the only server was unusable.
fn cause(error: ConnectError) -> ConnectionError {
    match error {
        ConnectError::Unreachable(mut causes) if causes.len() == 1 => causes.remove(0).1,
        error => panic!("{error}"),
    }
}

async fn login_error(builder: ClientBuilder) -> LoginError {
    match cause(builder.connect().await.unwrap_err()) {
        ConnectionError::Login(error) => error,
        cause => panic!("{cause}"),
    }
}

pub(crate) async fn works(client: &Client) {
    client.administration().get_or_create("c", DISTRIBUTED).await.unwrap();
    let cache = client.cache::<String, u32>("c");
    cache.put("apples", &3).await.unwrap();
    assert_eq!(cache.get("apples").await.unwrap(), Some(3));
}

#[tokio::test]
async fn a_user_is_known_by_every_mechanism_of_passwords() {
    let server = Running::secured("passwords", "A", users().allow_cleartext()).await;
    works(&to(&server).user("admin", "secret").connect().await.unwrap()).await;
    for mechanism in [Mechanism::Scram(Hash::Sha256), Mechanism::Scram(Hash::Sha512), Mechanism::Plain] {
        works(&to(&server).user("admin", "secret").mechanism(mechanism).connect().await.unwrap()).await;
        let error = login_error(to(&server).user("admin", "wrong").mechanism(mechanism)).await;
        let LoginError::Rejected { mechanism: refused, message } = error else { panic!("{error}") };
        let expected = "java.lang.SecurityException: ISPN006024: Invalid credentials";
        assert_eq!((refused, &message[..]), (mechanism, expected));
    }
    works(&Client::connect(&format!("hotrod://admin:secret@{}", server.at)).await.unwrap()).await;
    let reader = Client::connect(&format!("hotrod://reader:p%40ss%20w%3Ard%2F@{}", server.at)).await.unwrap();
    assert_eq!(reader.cache::<String, u32>("c").get("apples").await.unwrap(), Some(3));
}

/// SASLprep removes the soft hyphen and maps the Roman numeral nine to two letters.
#[tokio::test]
async fn names_and_passwords_are_the_same_in_all_forms_that_saslprep_makes_one() {
    let lines = "IX admin password:secret-IX\n\"no\u{ad}hyphen\" admin password:secret-\u{2168}\n";
    let builder = Server::builder().users(Users::parse("users", lines).unwrap()).allow_cleartext();
    let server = Running::secured("saslprep", "A", builder).await;
    for mechanism in [Mechanism::Scram(Hash::Sha256), Mechanism::Scram(Hash::Sha512), Mechanism::Plain] {
        for (name, password) in [
            ("IX", "secret-IX"),
            ("\u{2168}", "secret-\u{2168}"),
            ("I\u{ad}X", "sec\u{ad}ret-IX"),
            ("nohyphen", "secret-IX"),
            ("no\u{ad}hyphen", "secret-\u{2168}"),
        ] {
            let login = to(&server).user(name, password).mechanism(mechanism).connect().await;
            assert!(login.is_ok(), "{mechanism}: {name:?} with {password:?}: {:?}", login.err());
        }
        let error = login_error(to(&server).user("ix", "secret-IX").mechanism(mechanism)).await;
        assert!(matches!(error, LoginError::Rejected { .. }), "letters keep their case: {error}");
    }
}

#[tokio::test]
async fn an_operation_without_permission_is_denied() {
    let server = Running::secured("denied", "A", users()).await;
    works(&to(&server).user("admin", "secret").connect().await.unwrap()).await;
    let reader = to(&server).user("reader", "p@ss w:rd/").connect().await.unwrap();
    let cache = reader.cache::<String, u32>("c");
    assert_eq!(cache.get("apples").await.unwrap(), Some(3));
    let error = cache.put("apples", &4).await.unwrap_err();
    let ClientError::Denied { message, .. } = &error else { panic!("{error}") };
    assert!(message.contains("user 'reader' lacks 'WRITE' permission, which PUT needs"), "{message}");
    assert!(!error.is_outcome_unknown());
    assert_eq!(cache.get("apples").await.unwrap(), Some(3));
    // Without authentication a client can detect the server, and nothing else.
    let stranger = to(&server).connect().await.unwrap();
    let error = stranger.cache::<String, u32>("c").get("apples").await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Denied { message, .. } if message.contains("requires authentication"))
    );
}

#[tokio::test]
async fn credentials_are_checked_before_any_are_sent() {
    let server = Running::secured("cannot", "A", users()).await;
    let error = login_error(to(&server).token("a.b.c")).await;
    assert!(
        matches!(&error, LoginError::NoMechanism { offered, .. } if offered == "SCRAM-SHA-512, SCRAM-SHA-384, SCRAM-SHA-256")
    );
    let error = login_error(to(&server).user("admin", "secret").mechanism(Mechanism::Plain)).await;
    assert!(matches!(error, LoginError::NoMechanism { .. }), "{error}");
    let error = login_error(to(&server).user("admin", "\u{7}")).await;
    assert_eq!(error, LoginError::InvalidNameOrPassword);
    let open = Running::start("cannot-open", "A").await;
    let error = login_error(to(&open).user("admin", "secret")).await;
    assert!(matches!(error, LoginError::NotAsked(_)), "{error}");
}

/// Also connections to learnt servers, and reconnections.
#[tokio::test]
async fn every_connection_is_authenticated() {
    let a = Running::secured("every-connection", "A", users()).await;
    let client = to(&a).user("admin", "secret").connect().await.unwrap();
    works(&client).await;
    let b = Running::secured("every-connection", "B", users()).await;
    let c = Running::secured("every-connection", "C", users()).await;
    let cache = client.raw("c");
    eventually("the client knows all servers", async || {
        cache.put(&b"k"[..], &b"v"[..]).await.unwrap();
        client.servers().len() == 3
    })
    .await;
    a.owners.are(3).await;
    drop(a);
    let write = async |n: u32| cache.put(&n.to_be_bytes()[..], &b"v"[..]).await;
    eventually("the other servers own everything", async || {
        let mut all_done = true;
        for n in 0..20 {
            all_done &= write(n).await.is_ok();
        }
        all_done && client.servers().len() == 2
    })
    .await;
    assert!([b, c].iter().all(|server| client.servers().contains(&server.at.to_string())));
}

fn within_tls(authority: &Authority, clients: ClientCertificates) -> ServerBuilder {
    Server::builder().tls(authority.certify("server", &["127.0.0.1", "localhost"]).identity(), clients)
}

#[tokio::test]
async fn values_of_all_sizes_go_through_tls() {
    let authority = Authority::new("sizes");
    let server =
        Running::secured("tls-sizes", "A", within_tls(&authority, ClientCertificates::NotAsked)).await;
    let uri = format!("hotrods://{}?trust_store_file_name={}", server.at, authority.file().display());
    let client = Client::connect(&uri).await.unwrap();
    works(&client).await;
    let cache = client.raw("c");
    let mut writing = tokio::task::JoinSet::new();
    for n in 0..32_u32 {
        let cache = cache.clone();
        writing.spawn(async move {
            let value = Bytes::from(vec![n as u8; 1 << (n % 24)]);
            cache.put(&n.to_be_bytes()[..], &value).await.unwrap();
            assert_eq!(cache.get(&n.to_be_bytes()[..]).await.unwrap(), Some(value));
        });
    }
    while let Some(written) = writing.join_next().await {
        written.unwrap();
    }
}

#[tokio::test]
async fn untrusted_certificates_are_refused() {
    let (authority, other) = (Authority::new("right"), Authority::new("wrong"));
    let server =
        Running::secured("tls-believed", "A", within_tls(&authority, ClientCertificates::NotAsked)).await;
    works(&to(&server).tls(Tls::new(authority.roots())).connect().await.unwrap()).await;
    let refused = cause(to(&server).tls(Tls::new(other.roots())).connect().await.unwrap_err());
    assert!(matches!(&refused, ConnectionError::Tls(text) if text.contains("UnknownIssuer")), "{refused}");
    let named = Tls::new(authority.roots()).server_name("elsewhere.example");
    let refused = cause(to(&server).tls(named).connect().await.unwrap_err());
    assert!(matches!(refused, ConnectionError::Tls(_)), "{refused}");
    let named = Tls::new(authority.roots()).server_name("localhost");
    works(&to(&server).tls(named).connect().await.unwrap()).await;
}

/// The server's certificate is renewed while it runs.
#[tokio::test]
async fn a_new_certificate_is_served_to_new_connections_and_open_ones_continue() {
    let (before, after) = (Authority::new("before"), Authority::new("after"));
    let asked = |authority: &Authority| ClientCertificates::Asked(authority.roots());
    let server = Running::secured("tls-renewed", "A", within_tls(&before, asked(&before))).await;
    let trusting = |authority: &Authority| to(&server).tls(Tls::new(authority.roots()));
    let there = trusting(&before).connect().await.unwrap();
    works(&there).await;
    let handle = server.tls.clone().unwrap();
    let renewed = || after.certify("renewed", &["127.0.0.1"]).identity();
    // The offered mechanisms are fixed at the start.
    let error = handle.replace(renewed(), ClientCertificates::NotAsked).unwrap_err().to_string();
    assert!(error.contains("can only be changed by a restart"), "{error}");
    works(&trusting(&before).connect().await.unwrap()).await;

    handle.replace(renewed(), asked(&after)).unwrap();
    works(&trusting(&after).connect().await.unwrap()).await;
    let refused = cause(trusting(&before).connect().await.unwrap_err());
    assert!(matches!(&refused, ConnectionError::Tls(text) if text.contains("UnknownIssuer")), "{refused}");
    // Client certificates are checked against the new roots.
    let own =
        |authority: &Authority| Tls::new(after.roots()).identity(authority.certify("c", &[]).identity());
    works(&to(&server).tls(own(&after)).connect().await.unwrap()).await;
    cause(to(&server).tls(own(&before)).connect().await.unwrap_err());
    works(&there).await;
}

/// In a resumed session the server sends no certificate: a client would continue to trust the old one.
#[tokio::test]
async fn sessions_are_resumed_until_the_certificate_is_renewed_and_not_after_that() {
    let authority = Authority::new("resumed");
    let server =
        Running::secured("tls-resumed", "A", within_tls(&authority, ClientCertificates::NotAsked)).await;
    for version in ["TLSv1.2", "TLSv1.3"] {
        let protocols = ProtocolSettings::by_names(&[version], &[""; 0]).unwrap();
        let settings = consort_tls::client_with_protocols(&protocols, authority.roots(), None).unwrap();
        let is_resumed =
            async || ask_by(&server, settings.clone(), "/health", "").await.1 == HandshakeKind::Resumed;
        assert!(!is_resumed().await && is_resumed().await, "{version}");
        let renewed = authority.certify("renewed", &["localhost"]).identity();
        server.tls.as_ref().unwrap().replace(renewed, ClientCertificates::NotAsked).unwrap();
        assert!(!is_resumed().await, "{version}: a session from before the renewal");
        assert!(is_resumed().await, "{version}");
    }
}

#[tokio::test]
async fn the_certificate_of_an_authority_is_refused_as_that_of_a_server() {
    let authority = Authority::new("authority");
    let builder = Server::builder().tls(own_certificate(&authority).identity(), ClientCertificates::NotAsked);
    let server = Running::secured("tls-authority", "A", builder).await;
    let refused = cause(to(&server).tls(Tls::new(authority.roots())).connect().await.unwrap_err());
    assert!(
        matches!(&refused, ConnectionError::Tls(text) if text.contains("that of an authority (CA:TRUE)")),
        "{refused}"
    );
}

#[tokio::test]
async fn a_peer_without_tls_is_reported() {
    let authority = Authority::new("one-side");
    let server =
        Running::secured("tls-one-side", "A", within_tls(&authority, ClientCertificates::NotAsked)).await;
    let refused = cause(to(&server).connect().await.unwrap_err());
    assert!(matches!(&refused, ConnectionError::Refused(text) if text.contains("TLS only")), "{refused}");
    let open = Running::start("tls-open", "A").await;
    let refused = cause(to(&open).tls(Tls::new(authority.roots())).connect().await.unwrap_err());
    assert!(matches!(refused, ConnectionError::Tls(_)), "{refused}");
}

#[tokio::test]
async fn over_tls_plain_and_external_authenticate() {
    let authority = Authority::new("external");
    let builder = within_tls(&authority, ClientCertificates::Asked(authority.roots()));
    let builder = builder.users(Users::parse("users", USERS).unwrap());
    let server = Running::secured("tls-external", "A", builder).await;
    let tls = || Tls::new(authority.roots());
    works(&to(&server).tls(tls()).user("admin", "secret").connect().await.unwrap()).await;
    let plain = to(&server).tls(tls()).user("admin", "secret").mechanism(Mechanism::Plain);
    works(&plain.connect().await.unwrap()).await;

    let shown = tls().identity(authority.certify("Order Service", &[]).identity());
    let orders = to(&server).tls(shown).mechanism(Mechanism::External).connect().await.unwrap();
    let cache = orders.cache::<String, u32>("c");
    cache.put("apples", &5).await.unwrap();
    assert_eq!(cache.get("apples").await.unwrap(), Some(5));
    let error = orders.administration().create("d", DISTRIBUTED).await.unwrap_err();
    assert!(matches!(&error, ClientError::Denied { message, .. } if message.contains("'Order Service'")));

    let both = authority.certify_in_one("nobody", &[]);
    let uri = format!(
        "hotrods://{}?sasl_mechanism=EXTERNAL&trust_store_file_name={}&key_store_file_name={}",
        server.at,
        authority.file().display(),
        both.display()
    );
    let refused = cause(Client::connect(&uri).await.unwrap_err());
    assert!(matches!(refused, ConnectionError::Login(LoginError::Rejected { .. })), "{refused}");
    let without = login_error(to(&server).tls(tls()).mechanism(Mechanism::External)).await;
    assert!(matches!(without, LoginError::NoMechanism { .. }), "{without}");
}

/// Otherwise an authority that checks only one of the names would vouch for the other.
#[tokio::test]
async fn a_client_certificate_with_two_common_names_is_that_of_no_user() {
    let authority = Authority::new("two-names");
    let builder = within_tls(&authority, ClientCertificates::Asked(authority.roots()));
    let server = Running::secured("tls-two-names", "A", builder.users(Users::parse("users", USERS).unwrap()));
    let server = server.await;
    let external = |shown: &Files| {
        let tls = Tls::new(authority.roots()).identity(shown.identity());
        to(&server).tls(tls).mechanism(Mechanism::External)
    };
    assert!(external(&authority.certify("Order Service", &[])).connect().await.is_ok());
    for names in [["Order Service", "another"], ["another", "Order Service"]] {
        let error = login_error(external(&certify_two_names(&authority, names))).await;
        assert!(matches!(error, LoginError::NoMechanism { .. }), "{names:?}: {error}");
    }
}

#[tokio::test]
async fn a_connection_without_a_required_certificate_is_refused() {
    let (authority, other) = (Authority::new("needed"), Authority::new("needed-not"));
    let builder = within_tls(&authority, ClientCertificates::Needed(authority.roots()));
    let server = Running::secured("tls-needed", "A", builder).await;
    let tls = || Tls::new(authority.roots());
    let shown = tls().identity(authority.certify("anybody", &[]).identity());
    works(&to(&server).tls(shown).connect().await.unwrap()).await;
    let refused = cause(to(&server).tls(tls()).connect().await.unwrap_err());
    assert!(matches!(refused, ConnectionError::Tls(_)), "{refused}");
    let shown = tls().identity(other.certify("anybody", &[]).identity());
    let refused = cause(to(&server).tls(shown).connect().await.unwrap_err());
    assert!(matches!(refused, ConnectionError::Tls(_)), "{refused}");
}

#[tokio::test]
async fn a_token_authenticates_its_user_until_it_expires() {
    const MINUTE: i64 = 60;
    let (authority, other) = (Authority::new("tokens"), Authority::new("tokens-of-others"));
    let ((key, token), (_, forged)) = (authority.tokens(), other.tokens());
    let builder = within_tls(&authority, ClientCertificates::NotAsked);
    let builder = builder.users(Users::parse("users", USERS).unwrap());
    let builder = builder.tokens(Tokens::from_file(key, "shop").unwrap());
    let server = Running::secured("tokens", "A", builder).await;
    let with = |token: &str| to(&server).tls(Tls::new(authority.roots())).token(token);
    works(&with(&token("shop", "admin", MINUTE)).connect().await.unwrap()).await;
    let reader = with(&token("shop", "reader", MINUTE)).connect().await.unwrap();
    assert!(matches!(reader.raw("c").clear().await, Err(ClientError::Denied { .. })));
    for (token, expected) in [
        (token("bank", "admin", MINUTE), "it is for another audience"),
        (forged("shop", "admin", MINUTE), "its signature is invalid"),
        (token("shop", "nobody", MINUTE), "ISPN006024: Invalid credentials"),
        (token("shop", "admin", -MINUTE), "it has expired"),
    ] {
        let error = login_error(with(&token)).await;
        assert!(
            matches!(&error, LoginError::Rejected { message, .. } if message.ends_with(expected)),
            "{error}"
        );
    }
    // Without TLS the token is not sent.
    let open = Server::builder().users(Users::parse("users", USERS).unwrap()).allow_cleartext();
    let open = Running::secured("tokens-open", "A", open.mechanisms([Mechanism::Plain])).await;
    let error = login_error(to(&open).token("a.b.c")).await;
    assert!(matches!(error, LoginError::NoMechanism { .. }), "{error}");
}

#[tokio::test]
async fn a_connection_lasts_after_its_token_has_expired() {
    /// The tolerated difference of clocks, in seconds.
    const LEEWAY: i64 = 30;
    let authority = Authority::new("tokens-expired");
    let (key, token) = authority.tokens();
    let builder = within_tls(&authority, ClientCertificates::NotAsked);
    let builder = builder.users(Users::parse("users", USERS).unwrap());
    let builder = builder.tokens(Tokens::from_file(key, "shop").unwrap());
    let server = Running::secured("tokens-expired", "A", builder).await;
    let with = |token: &str| to(&server).tls(Tls::new(authority.roots())).token(token);
    // The token is valid until the end of this second. If the second ends before the login, make another
    // token.
    let (there, token) = loop {
        let token = token("shop", "admin", -LEEWAY);
        if let Ok(client) = with(&token).connect().await {
            break (client, token);
        }
    };
    eventually("the token has expired", async || with(&token).connect().await.is_err()).await;
    let error = login_error(with(&token)).await;
    assert!(error.to_string().contains("it has expired"), "{error}");
    works(&there).await;
}

#[tokio::test]
async fn a_token_issuer_changes_its_key_while_both_keys_are_accepted() {
    const MINUTE: i64 = 60;
    let (authority, next) = (Authority::new("tokens-changed"), Authority::new("tokens-next"));
    let ((key, token), (next_key, next_token)) = (authority.tokens(), next.tokens());
    let builder = within_tls(&authority, ClientCertificates::NotAsked);
    let builder = builder.users(Users::parse("users", USERS).unwrap());
    let server =
        Running::secured("tokens-changed", "A", builder.tokens(Tokens::from_file(&key, "shop").unwrap()))
            .await;
    let with = |token: &str| to(&server).tls(Tls::new(authority.roots())).token(token);
    let both = authority.file().with_file_name("both.pem");
    std::fs::write(&both, [&key, &next_key].map(|file| std::fs::read_to_string(file).unwrap()).concat())
        .unwrap();
    let (old, new) = (token("shop", "admin", MINUTE), next_token("shop", "admin", MINUTE));
    let lasts = with(&old).connect().await.unwrap();
    for (file, good, bad) in
        [(&key, &[&old][..], &[&new][..]), (&both, &[&old, &new], &[]), (&next_key, &[&new], &[&old])]
    {
        server.tokens.as_ref().expect("it has some").replace(Tokens::from_file(file, "shop").unwrap());
        for token in good {
            works(&with(token).connect().await.unwrap()).await;
        }
        for token in bad {
            let error = login_error(with(token)).await;
            assert!(error.to_string().contains("its signature is invalid"), "{error}");
        }
    }
    works(&lasts).await;
    std::fs::write(&both, std::fs::read_to_string(&key).unwrap().repeat(9)).unwrap();
    let error = Tokens::from_file(&both, "shop").unwrap_err().to_string();
    assert!(error.contains("it has more than 8 keys"), "{error}");
}

/// An incomplete handshake costs the server little and other clients nothing.
#[tokio::test]
async fn incomplete_handshakes_do_not_delay_other_connections() {
    let authority = Authority::new("half");
    let patience = Duration::from_millis(400);
    let builder = within_tls(&authority, ClientCertificates::NotAsked).handshake_timeout(patience);
    let server = Running::secured("tls-half", "A", builder).await;
    let client = to(&server).tls(Tls::new(authority.roots())).connect().await.unwrap();
    works(&client).await;
    // The header of a TLS record of 512 bytes without its content; and bytes that are no TLS record.
    let begun = Instant::now();
    for (request, is_waited_for) in
        [(&b"\x16\x03\x01\x02\x00"[..], true), (b"", true), (b"GET / HTTP/1.1\r\n\r\n", false)]
    {
        let mut stream = TcpStream::connect(server.at).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut sink = Vec::new();
        // An alert may come first.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut sink)).await.expect("it is closed");
        assert!(!is_waited_for || begun.elapsed() >= patience);
    }
    works(&client).await;
}
