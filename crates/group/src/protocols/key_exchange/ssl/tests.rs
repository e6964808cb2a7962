use std::net::IpAddr;

use bytes::Bytes;

use super::*;
use crate::harness::{Harness, member, phys, view};
use crate::wire::{KEY_REQUEST, encode_key_response};
use crate::{
    Address, ConnId, DropReason, Effect, EncryptHeader, HeaderBody, KeyRequest, Message, PhysAddr, SecretKey,
};

const CONN: ConnId = ConnId(7);
const TIMEOUT: Duration = Duration::from_secs(1);

fn key(byte: u8) -> SecretKey {
    SecretKey::new("AES", vec![byte; 16])
}

fn response(key: &SecretKey) -> Bytes {
    encode_key_response(&key.version(), key.bytes())
}

fn harness() -> Harness {
    harness_of(SslKeyExchangeConfig::default())
}

fn harness_of(config: SslKeyExchangeConfig) -> Harness {
    Harness::new(SslKeyExchange::new(config, None))
}

fn effects(harness: &mut Harness) -> Vec<Effect> {
    harness.take_effects().into_iter().map(|(_, effect)| effect).collect()
}

fn port(n: u16) -> PhysAddr {
    PhysAddr { port: n, ..phys(1) }
}

/// A coordinator that listens at the first port, and the token of its listener.
fn coordinator() -> (Harness, Token) {
    let mut harness = harness();
    harness.install(view(1, &[1])).take_up_events();
    let [(token, Effect::ListenStreams { bind, ports, external, options })] = &harness.take_effects()[..]
    else {
        panic!("no listener")
    };
    assert_eq!((*bind, *external, *options), (None, None, OPTIONS));
    assert_eq!(*ports, [2157, 2158, 2159, 2160, 2161, 2162]);
    harness.done(*token, Outcome::Listening(port(2157)));
    harness.lower(Event::ServeSecretKey(key(5)));
    (harness, *token)
}

fn accept(harness: &mut Harness, listener: Token, conn: u64) -> ConnId {
    let conn = ConnId(conn);
    harness.done(listener, Outcome::Accepted { conn, peer: phys(9) });
    conn
}

fn fetch_message() -> Message {
    let header =
        EncryptHeader { kind: 2, needs_deserialization: false, version: None, server: None, iv: None };
    Message::bytes(None, "x").with_header(ProtocolId::ASYM_ENCRYPT, HeaderBody::Encrypt(Box::new(header)))
}

fn servers(harness: &mut Harness) -> Vec<Option<Address>> {
    let of = |message: Message| match message.headers.get(ProtocolId::ASYM_ENCRYPT) {
        Some(HeaderBody::Encrypt(header)) => header.server.clone(),
        _ => None,
    };
    harness.take_down().into_iter().map(of).collect()
}

#[test]
fn coordinator_gives_its_key_to_each_connection_that_asks() {
    let (mut one, listener) = coordinator();
    for (nth, byte) in [(1, 5), (2, 6)] {
        let conn = accept(&mut one, listener, nth);
        one.lower(Event::ServeSecretKey(key(byte)));
        one.done(listener, Outcome::Frame { conn, frame: Bytes::from_static(&[KEY_REQUEST]) });
        let written = Effect::Write { conn, frame: response(&key(byte)) };
        assert_eq!(effects(&mut one), [written, Effect::Close { conn, is_graceful: true }]);
    }
    assert_eq!(one.stack.attribute("SSL_KEY_EXCHANGE", "num_served_keys").as_deref(), Some("2"));
    assert_eq!(one.take_down_events(), [], "the key goes no further");
}

#[test]
fn message_waits_for_the_address_of_the_server_and_names_it() {
    let mut one = harness();
    one.install(view(1, &[1]));
    let (listener, _) = one.take_effects().remove(0);
    one.send(fetch_message()).send(Message::bytes(None, "plain"));
    assert_eq!(one.take_down().len(), 1, "only the message without a key to fetch");
    one.done(listener, Outcome::Listening(port(2158)));
    one.send(fetch_message());
    let named = Some(Address::Ip(port(2158)));
    assert_eq!(servers(&mut one), [named.clone(), named]);
}

#[test]
fn without_a_free_port_receivers_look_at_the_sender() {
    let mut one = harness();
    one.install(view(1, &[1]));
    let (listener, _) = one.take_effects().remove(0);
    one.send(fetch_message());
    one.done(listener, Outcome::Failed("in use".to_owned()));
    assert_eq!(servers(&mut one), [None]);
    one.install(view(2, &[1, 2]));
    assert!(matches!(effects(&mut one)[..], [Effect::ListenStreams { .. }]), "the next view tries again");
}

#[test]
fn address_of_another_server_stays() {
    let (mut one, _) = coordinator();
    let mut message = fetch_message();
    if let Some(HeaderBody::Encrypt(mut header)) = message.headers.take(ProtocolId::ASYM_ENCRYPT) {
        header.server = Some(Address::Ip(port(9)));
        message.headers.put(ProtocolId::ASYM_ENCRYPT, HeaderBody::Encrypt(header));
    }
    assert_eq!(servers(one.send(message)), [Some(Address::Ip(port(9)))]);
}

#[test]
fn bound_server_names_its_own_address() {
    let bind: IpAddr = [10, 0, 0, 7].into();
    let mut one = Harness::new(SslKeyExchange::new(SslKeyExchangeConfig::default(), Some(bind)));
    one.install(view(1, &[1]));
    let (listener, effect) = one.take_effects().remove(0);
    assert!(matches!(effect, Effect::ListenStreams { bind: own, .. } if own == Some(bind)));
    one.done(listener, Outcome::Listening(PhysAddr::new(bind, 2157)));
    assert_eq!(servers(one.send(fetch_message())), [Some(Address::Ip(PhysAddr::new(bind, 2157)))]);
}

/// The leader of a merge may have made the key, and another member is coordinator.
#[test]
fn former_coordinator_serves_for_a_minute_and_closes() {
    let (mut one, listener) = coordinator();
    one.install(view(2, &[2, 1]));
    let conn = accept(&mut one, listener, 1);
    one.done(listener, Outcome::Frame { conn, frame: Bytes::from_static(&[KEY_REQUEST]) });
    let written = Effect::Write { conn, frame: response(&key(5)) };
    assert_eq!(effects(&mut one), [written, Effect::Close { conn, is_graceful: true }]);
    assert_eq!(servers(one.send(fetch_message())), [Some(Address::Ip(port(2157)))]);
    one.install(view(3, &[2, 1, 3])).advance(Duration::from_secs(60) - TIMEOUT / 2);
    let conn = accept(&mut one, listener, 2);
    assert_eq!(effects(&mut one), []);
    one.advance(TIMEOUT / 2);
    assert_eq!(effects(&mut one), [Effect::CloseListener, Effect::Close { conn, is_graceful: false }]);
    assert_eq!(servers(one.send(fetch_message())), [None]);
    // A connection that came before the listener closed.
    let late = accept(&mut one, listener, 3);
    assert_eq!(effects(&mut one), [Effect::Close { conn: late, is_graceful: false }]);
}

#[test]
fn member_that_is_coordinator_again_does_not_close() {
    let (mut one, _) = coordinator();
    one.install(view(2, &[2, 1])).install(view(3, &[1])).advance(Duration::from_secs(120));
    assert_eq!(effects(&mut one), []);
    assert_eq!(one.stack.attribute("SSL_KEY_EXCHANGE", "actual_port").as_deref(), Some("2157"));
}

/// The handshake is over, so that the peer has a trusted certificate, or needs none.
#[test]
fn client_that_never_speaks_is_disconnected() {
    let (mut one, listener) = coordinator();
    let conn = accept(&mut one, listener, 1);
    one.advance(TIMEOUT - Duration::from_millis(1));
    assert_eq!(effects(&mut one), []);
    one.advance(Duration::from_millis(1));
    assert_eq!(effects(&mut one), [Effect::Close { conn, is_graceful: false }]);
}

#[test]
fn client_that_sends_other_bytes_gets_no_key() {
    let (mut one, listener) = coordinator();
    for (nth, bytes) in [&b"GET / HTTP/1.1"[..], &[1], &[255, 0]].into_iter().enumerate() {
        let conn = accept(&mut one, listener, nth as u64);
        one.done(listener, Outcome::Frame { conn, frame: Bytes::copy_from_slice(bytes) });
        assert_eq!(effects(&mut one), [Effect::Close { conn, is_graceful: false }]);
    }
}

#[test]
fn server_without_a_key_closes_the_connection() {
    let mut one = harness();
    one.install(view(1, &[1]));
    let (listener, _) = one.take_effects().remove(0);
    one.done(listener, Outcome::Listening(port(2157)));
    let conn = accept(&mut one, listener, 1);
    one.done(listener, Outcome::Frame { conn, frame: Bytes::from_static(&[KEY_REQUEST]) });
    assert_eq!(effects(&mut one), [Effect::Close { conn, is_graceful: false }]);
}

#[test]
fn oldest_of_too_many_silent_clients_is_disconnected() {
    let (mut one, listener) = coordinator();
    for nth in 0..64 {
        accept(&mut one, listener, nth);
    }
    assert_eq!(effects(&mut one), []);
    accept(&mut one, listener, 64);
    assert_eq!(effects(&mut one), [Effect::Close { conn: ConnId(0), is_graceful: false }]);
}

fn request(server: Option<PhysAddr>) -> Event {
    let request = KeyRequest { version: key(5).version(), server, sender: member(2), key_length: 16 };
    Event::FetchSecretKey(Box::new(request))
}

/// Where the member connects to, and the token.
fn connecting(harness: &mut Harness) -> (Token, PhysAddr) {
    match harness.take_effects().pop() {
        Some((token, Effect::ConnectStream { to, timeout, options })) => {
            assert_eq!((timeout, options), (TIMEOUT, OPTIONS));
            (token, to)
        }
        other => panic!("{other:?}"),
    }
}

/// The member's connection; it has asked for the key.
fn asking(harness: &mut Harness, server: Option<PhysAddr>) -> Token {
    harness.learn(2).lower(request(server));
    let (token, _) = connecting(harness);
    connected(harness, token);
    token
}

fn connected(harness: &mut Harness, token: Token) {
    harness.done(token, Outcome::Connected(CONN));
    let asked = Effect::Write { conn: CONN, frame: Bytes::from_static(&[KEY_REQUEST]) };
    assert_eq!(effects(harness), [asked]);
}

fn result(harness: &mut Harness) -> Result<SecretKey, String> {
    match harness.take_up_events().pop() {
        Some(Event::SecretKeyFetched { request, key: result }) => {
            assert_eq!(request.version, key(5).version());
            result
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn key_is_fetched_from_the_named_server() {
    let mut two = harness();
    two.lower(request(Some(port(2160))));
    let (token, to) = connecting(&mut two);
    assert_eq!(to, port(2160));
    connected(&mut two, token);
    // It may come in pieces.
    let bytes = response(&key(5));
    for piece in [bytes.slice(..3), bytes.slice(3..20), bytes.slice(20..)] {
        assert_eq!(two.take_up_events(), []);
        two.done(token, Outcome::Frame { conn: CONN, frame: piece });
    }
    assert_eq!(result(&mut two), Ok(key(5)));
    assert_eq!(effects(&mut two), [Effect::Close { conn: CONN, is_graceful: false }]);
}

#[test]
fn without_a_named_server_all_ports_of_the_sender_are_tried() {
    let mut two = harness();
    two.learn(2).lower(request(None));
    for n in 2157..2162 {
        let (token, to) = connecting(&mut two);
        assert_eq!(to, PhysAddr { port: n, ..phys(2) });
        two.done(token, Outcome::Failed("connection refused".to_owned()));
    }
    let (token, _) = connecting(&mut two);
    connected(&mut two, token);
    two.done(token, Outcome::Frame { conn: CONN, frame: response(&key(5)) });
    assert_eq!(result(&mut two), Ok(key(5)));
}

#[test]
fn both_sides_try_the_set_ports() {
    let config = SslKeyExchangeConfig { port: 3_000, port_range: 2, ..SslKeyExchangeConfig::default() };
    let mut one = harness_of(config.clone());
    one.install(view(1, &[1]));
    let asked = &effects(&mut one)[..];
    assert!(matches!(asked, [Effect::ListenStreams { ports, .. }] if *ports == [3_000, 3_001, 3_002]));
    let mut two = harness_of(config);
    two.learn(2).lower(request(None));
    for n in 3_000..=3_002 {
        let (token, to) = connecting(&mut two);
        assert_eq!(to.port, n);
        two.done(token, Outcome::Failed("connection refused".to_owned()));
    }
    assert!(result(&mut two).unwrap_err().contains("127.0.0.1:3002: connection refused"));
}

#[test]
fn set_timeout_is_that_of_connections_and_silent_peers() {
    let socket_timeout = Duration::from_secs(5);
    let config = SslKeyExchangeConfig { socket_timeout, ..SslKeyExchangeConfig::default() };
    let mut one = harness_of(config.clone());
    one.install(view(1, &[1]));
    let (listener, _) = one.take_effects().remove(0);
    one.done(listener, Outcome::Listening(port(2157)));
    let mut two = harness_of(config);
    two.lower(request(Some(port(2157))));
    let (token, effect) = two.take_effects().remove(0);
    assert!(matches!(effect, Effect::ConnectStream { timeout, .. } if timeout == socket_timeout));
    connected(&mut two, token);
    accept(&mut one, listener, CONN.0);
    for silent in [&mut one, &mut two] {
        silent.advance(socket_timeout - Duration::from_millis(1));
        assert_eq!(effects(silent), []);
        silent.advance(Duration::from_millis(1));
        assert_eq!(effects(silent), [Effect::Close { conn: CONN, is_graceful: false }]);
    }
}

/// Another cluster's server may listen at the first port of the host.
#[test]
fn key_of_another_version_is_none_and_the_next_port_is_tried() {
    let mut two = harness();
    let token = asking(&mut two, None);
    two.done(token, Outcome::Frame { conn: CONN, frame: response(&key(6)) });
    let (_, to) = connecting(&mut two);
    assert_eq!((to.port, two.take_up_events()), (2158, vec![]));
}

#[test]
fn every_failure_is_reported_once_with_its_reasons() {
    let forged = encode_key_response(&key(5).version(), key(6).bytes());
    let flood = Bytes::from(vec![1; 5_000]);
    for (frame, why) in [
        (forged, "its key does not have the version that it names"),
        (Bytes::from_static(b"HTTP/1.1 400 Bad Request"), "another program may listen"),
        (response(&key(7)), "another version"),
        (flood, "another program may listen"),
    ] {
        let mut two = harness();
        let token = asking(&mut two, Some(port(2157)));
        two.done(token, Outcome::Frame { conn: CONN, frame });
        let error = result(&mut two).unwrap_err();
        assert!(error.starts_with("127.0.0.1:2157: ") && error.contains(why), "{error}");
        assert_eq!(effects(&mut two), [Effect::Close { conn: CONN, is_graceful: false }]);
        assert_eq!(two.stack.shared().drops.total(DropReason::UnknownKey), 1);
    }
    let mut two = harness();
    let token = asking(&mut two, Some(port(2157)));
    two.done(token, Outcome::Closed { conn: CONN, is_graceful: true, is_reset: false });
    assert!(result(&mut two).unwrap_err().contains("it does not trust the certificate"));
}

/// It sends its response byte by byte, or nothing at all.
#[test]
fn server_that_is_too_slow_is_a_failure() {
    let mut two = harness();
    let token = asking(&mut two, Some(port(2157)));
    two.advance(TIMEOUT / 2);
    two.done(token, Outcome::Frame { conn: CONN, frame: response(&key(5)).slice(..1) });
    two.advance(TIMEOUT / 2);
    assert!(result(&mut two).unwrap_err().contains("no key in time"));
    assert_eq!(effects(&mut two), [Effect::Close { conn: CONN, is_graceful: false }]);
    two.done(token, Outcome::Frame { conn: CONN, frame: response(&key(5)) });
    assert_eq!(two.take_up_events(), []);
}

#[test]
fn key_without_a_known_server_or_beyond_the_bound_is_not_fetched() {
    let mut two = harness();
    two.lower(request(None));
    assert!(result(&mut two).unwrap_err().contains("physical address is unknown"));
    for _ in 0..8 {
        two.lower(request(Some(port(2157))));
    }
    assert_eq!((two.take_effects().len(), two.take_up_events()), (8, vec![]));
    two.lower(request(Some(port(2157))));
    assert!(result(&mut two).unwrap_err().contains("too many"), "the oldest ends");
    assert_eq!(two.take_effects().len(), 1);
}

#[test]
fn leaving_ends_all_connections() {
    let (mut one, listener) = coordinator();
    let served = accept(&mut one, listener, 1);
    let token = asking(&mut one, Some(port(2160)));
    one.lower(Event::Disconnect);
    let close = |conn| Effect::Close { conn, is_graceful: false };
    assert_eq!(effects(&mut one), [Effect::CloseListener, close(served), close(CONN)]);
    one.done(token, Outcome::Frame { conn: CONN, frame: response(&key(5)) });
    assert_eq!(one.take_up_events(), []);
}

#[test]
fn unusable_settings_are_refused() {
    let error = |config: SslKeyExchangeConfig| config.check().unwrap_err();
    let of = SslKeyExchangeConfig::default;
    assert_eq!(of().check(), Ok(()));
    assert_eq!(error(SslKeyExchangeConfig { port: 0, ..of() }).0, "port");
    assert_eq!(error(SslKeyExchangeConfig { port: 65_535, ..of() }).0, "port_range");
    assert_eq!(error(SslKeyExchangeConfig { socket_timeout: Duration::ZERO, ..of() }).0, "socket_timeout");
    let (name, why) = error(SslKeyExchangeConfig { keystore_type: "JCEKS".to_owned(), ..of() });
    assert!(name == "keystore_type" && why.contains("-deststoretype PKCS12"), "{why}");
    let trusted = SslKeyExchangeConfig { truststore_type: "JCEKS".to_owned(), ..of() };
    assert_eq!(error(trusted).0, "truststore_type");
    assert_eq!(error(SslKeyExchangeConfig { ssl_protocol: "SSLv3".to_owned(), ..of() }).0, "ssl_protocol");
    let des = SslKeyExchangeConfig { secret_key_algorithm: "DESede".to_owned(), ..of() };
    assert_eq!(error(des).0, "secret_key_algorithm");
    let some = SslKeyExchangeConfig {
        enabled_ciphers: "TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384".to_owned(),
        ssl_protocol: "TLSv1.3".to_owned(),
        ..of()
    };
    assert_eq!(some.ciphers(), ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"]);
    assert_eq!((some.versions(), of().versions()), (Some(vec!["TLSv1.3"]), Some(vec![])));
}
