use super::token::as_in_java;
use super::*;
use crate::harness::{Harness, member, phys, view};
use crate::protocols::encrypt::{KeyPair, tests::Counting};
use crate::vectors::vector;
use crate::{PhysAddr, config::Properties as _};
use std::net::IpAddr;

fn with(attributes: &[(&str, &str)]) -> Result<Auth, (&'static str, String)> {
    let (mut config, mut token) = (AuthConfig::default(), AuthTokenConfig::default());
    for (name, value) in attributes {
        let set = config.set(name, value).or_else(|| token.set(name, value));
        assert_eq!(set, Some(Ok(())), "{name}");
    }
    Auth::new(config, token, &mut Sources)
}

struct Sources;

impl TokenSources for Sources {
    fn hosts(&mut self, host: &str) -> Result<Vec<IpAddr>, String> {
        match host {
            "localhost" => Ok(vec![[127, 0, 0, 1].into()]),
            _ => Err(format!("no address of {host}")),
        }
    }

    /// Each store has its own key.
    fn certificate_key(&mut self, config: &TokenConfig) -> Result<CertificateKey, String> {
        let store = config.keystore_path.as_bytes()[0];
        Ok((KeyPair::generate(1_024, &mut Counting(store))?, Box::new(Counting(1))))
    }
}

const FIXED: (&str, &str) = ("auth_class", "org.jgroups.auth.FixedMembershipToken");
const REGEX: (&str, &str) = ("auth_class", "org.jgroups.auth.RegexMembership");

/// It admits only member 2 on port 7802.
fn fixed() -> Harness {
    let auth = with(&[FIXED, ("auth_token.fixed_members_value", "localhost/7801, 127.0.0.1/7802")]);
    let mut harness = Harness::new(auth.unwrap());
    harness.learn(2).learn(3).install(view(1, &[1])).take_up_events();
    harness
}

fn gms(kind: GmsKind) -> HeaderBody {
    HeaderBody::Gms(Box::new(GmsHeader { kind, member: None, merge_id: None, merge_rejected: false }))
}

fn request(n: u64, kind: GmsKind, token: Option<AuthHeader>) -> Message {
    let mut message = Message::bytes(Some(member(1)), "request").with_header(ProtocolId::GMS, gms(kind));
    if let Some(token) = token {
        message.headers.put(ProtocolId::AUTH, HeaderBody::Auth(Box::new(token)));
    }
    message.src = Some(member(n));
    message
}

fn empty_token() -> Option<AuthHeader> {
    Some(AuthHeader::FixedMembership(Some("emptyToken".to_owned())))
}

fn kind(message: &Message) -> GmsKind {
    match message.headers.get(ProtocolId::GMS) {
        Some(HeaderBody::Gms(header)) => header.kind,
        other => panic!("{other:?}"),
    }
}

fn reason(message: &Message) -> String {
    assert_eq!(kind(message), GmsKind::JoinRsp);
    wire::decode_join_rsp(message.payload_bytes().unwrap()).unwrap().fail_reason.unwrap()
}

const REQUESTS: [GmsKind; 3] = [GmsKind::JoinReq, GmsKind::JoinReqWithStateTransfer, GmsKind::MergeReq];
const ANSWERS: [GmsKind; 3] = [GmsKind::JoinRsp, GmsKind::MergeRsp, GmsKind::InstallMergeView];

#[test]
fn requests_and_answers_carry_the_token_and_other_messages_do_not() {
    let mut harness = fixed();
    for sent in [GmsKind::View, GmsKind::ViewAck, GmsKind::LeaveReq].iter().chain(&REQUESTS).chain(&ANSWERS) {
        let message = Message::bytes(Some(member(2)), "x").with_header(ProtocolId::GMS, gms(*sent));
        let sent_down = harness.send(message).take_down().remove(0);
        let has_token = sent_down.headers.get(ProtocolId::AUTH).is_some();
        assert_eq!(has_token, REQUESTS.contains(sent) || ANSWERS.contains(sent), "{sent:?}");
    }
    let mut harness =
        Harness::new(with(&[REGEX, ("auth_token.match_string", ".*"), ("auth_coord", "false")]).unwrap());
    for (sent, has_token) in [(GmsKind::JoinReq, true), (GmsKind::JoinRsp, false), (GmsKind::MergeRsp, false)]
    {
        let message = Message::bytes(Some(member(2)), "x").with_header(ProtocolId::GMS, gms(sent));
        let sent_down = harness.send(message).take_down().remove(0);
        assert_eq!(sent_down.headers.get(ProtocolId::AUTH).is_some(), has_token, "{sent:?}");
    }
}

/// A regular expression's header equals JGroups' (vectors 07).
#[test]
fn tokens_equal_those_of_jgroups() {
    let mut harness = Harness::new(with(&[REGEX, ("auth_token.match_string", ".*")]).unwrap());
    let message = Message::empty(Some(member(2))).with_header(ProtocolId::GMS, gms(GmsKind::JoinReq));
    let sent = harness.send(message).take_down().remove(0);
    let body = wire::encode_body(&sent);
    let wanted = vector("07-headers", "auth.regex");
    assert!(body.windows(wanted.len()).any(|window| window == &wanted[..]), "{body:?}");
}

#[test]
fn a_listed_member_passes_without_its_token() {
    let mut harness = fixed();
    for sent in REQUESTS.iter().chain(&ANSWERS) {
        let received = harness.up(request(2, *sent, empty_token())).take_up();
        assert_eq!(received, [request(2, *sent, None)], "{sent:?}");
    }
    assert!(harness.take_down().is_empty());
}

/// As in JGroups, requests get the reason; answers and views are dropped.
#[test]
fn an_unlisted_member_is_refused_with_the_reason() {
    let mut harness = fixed();
    for sent in [GmsKind::JoinReq, GmsKind::JoinReqWithStateTransfer] {
        assert_eq!(harness.up(request(3, sent, empty_token())).take_up(), []);
        let answer = harness.take_down().remove(0);
        assert_eq!((reason(&answer), answer.dest), (FAILED.to_owned(), Some(member(3))));
    }
    assert_eq!(harness.up(request(3, GmsKind::MergeReq, empty_token())).take_up(), []);
    let answer = harness.take_down().remove(0);
    assert_eq!((kind(&answer), answer.flags), (GmsKind::MergeRsp, Flags::OOB));
    assert!(matches!(
        answer.headers.get(ProtocolId::GMS), Some(HeaderBody::Gms(header)) if header.merge_rejected
    ));
    assert!(answer.headers.get(ProtocolId::AUTH).is_some());
    for sent in ANSWERS {
        assert_eq!(harness.up(request(3, sent, empty_token())).take_up(), [], "{sent:?}");
        assert_eq!(harness.take_down(), [], "{sent:?}");
    }
    assert_eq!(harness.stack.shared().drops.total(DropReason::NotAuthenticated), 6);
    assert_eq!(harness.stack.attribute("AUTH", "num_refused").as_deref(), Some("6"));
    assert_eq!(harness.count(StackCount::RejectedMessages), 6);
}

#[test]
fn a_member_without_a_token_with_another_one_or_without_an_address_is_refused() {
    let mut harness = fixed();
    assert_eq!(harness.up(request(2, GmsKind::JoinReq, None)).take_up(), []);
    assert_eq!(reason(&harness.take_down()[0]), NO_HEADER);
    let other = AuthHeader::Class("org.jgroups.auth.RegexMembership".to_owned());
    for (n, token) in [(2, other), (2, AuthHeader::None), (4, empty_token().unwrap())] {
        assert_eq!(harness.up(request(n, GmsKind::JoinReq, Some(token))).take_up(), [], "{n}");
        assert_eq!(reason(&harness.take_down()[0]), FAILED);
    }
}

const X509: (&str, &str) = ("auth_class", "org.jgroups.auth.X509Token");

const X509_STORE: [(&str, &str); 5] = [
    X509,
    ("auth_token.keystore_path", "members.p12"),
    ("auth_token.keystore_password", "changeit"),
    ("auth_token.cert_alias", "members"),
    ("auth_token.auth_value", "chris"),
];

#[test]
fn members_with_the_certificate_and_the_value_pass_and_others_are_refused() {
    let layer = |changes: &[(&'static str, &'static str)]| {
        let mut attributes = X509_STORE.to_vec();
        for (name, value) in changes {
            attributes.iter_mut().find(|(own, _)| own == name).unwrap().1 = value;
        }
        Harness::new(with(&attributes).unwrap())
    };
    let token_of = |harness: &mut Harness| {
        let message = Message::empty(Some(member(2))).with_header(ProtocolId::GMS, gms(GmsKind::JoinReq));
        match harness.send(message).take_down().remove(0).headers.take(ProtocolId::AUTH) {
            Some(HeaderBody::Auth(header)) => *header,
            other => panic!("{other:?}"),
        }
    };
    let mut harness = layer(&[]);
    harness.install(view(1, &[1])).take_up_events();
    let good = token_of(&mut layer(&[("auth_token.auth_value", "CHRIS")]));
    let received = harness.up(request(2, GmsKind::JoinReq, Some(good))).take_up();
    assert_eq!(received, [request(2, GmsKind::JoinReq, None)]);
    for other in [
        token_of(&mut layer(&[("auth_token.auth_value", "bela")])),
        token_of(&mut layer(&[("auth_token.keystore_path", "others.p12")])),
        AuthHeader::X509(None),
        AuthHeader::FixedMembership(None),
    ] {
        assert_eq!(harness.up(request(2, GmsKind::JoinReq, Some(other))).take_up(), []);
        assert_eq!(reason(&harness.take_down()[0]), FAILED);
    }
    let shown = harness.stack.attribute("AUTH", "auth_token.auth_value");
    assert_eq!(shown.as_deref(), Some("(not shown)"));
}

#[test]
fn member_with_an_unknown_token_among_too_many_is_not_answered() {
    let mut harness = Harness::new(with(&X509_STORE).unwrap());
    harness.install(view(1, &[1])).take_up_events();
    let mut refused = 0;
    for n in 0..500_u64 {
        let forged = [&n.to_be_bytes()[..], &[0; 120]].concat();
        harness.up(request(2, GmsKind::JoinReq, Some(AuthHeader::X509(Some(forged.into())))));
        refused += harness.take_down().len();
    }
    assert_eq!(refused, 200, "the others ask again");
    assert_eq!(harness.stack.attribute("AUTH", "num_refused").as_deref(), Some("500"));
}

#[test]
fn a_batch_loses_only_its_unauthenticated_messages() {
    let mut harness = fixed();
    let data = |text: &'static str| {
        let mut message = Message::bytes(Some(member(1)), text);
        message.src = Some(member(3));
        message
    };
    let batch = vec![data("first"), request(3, GmsKind::JoinReq, empty_token()), data("second")];
    assert_eq!(harness.up_batch(batch).take_up(), [data("first"), data("second")]);
}

#[test]
fn a_refusal_passes_without_a_token() {
    let mut harness = fixed();
    let rsp = JoinRsp { view: None, digest: None, fail_reason: Some(FAILED.to_owned()) };
    let mut message = request(3, GmsKind::JoinRsp, None);
    message.payload = Payload::Bytes(Some(wire::encode_join_rsp(&rsp)));
    assert_eq!(harness.up(message.clone()).take_up(), [message]);
}

#[test]
fn a_regular_expression_matches_whole_addresses_or_names() {
    let passes = |attributes: &[(&str, &str)]| {
        let auth = with(&[&[REGEX][..], attributes].concat()).unwrap();
        let mut harness = Harness::new(auth);
        harness.learn(2).install(view(1, &[1])).take_up_events();
        let token = AuthHeader::Class("org.jgroups.auth.RegexMembership".to_owned());
        !harness.up(request(2, GmsKind::JoinReq, Some(token))).take_up().is_empty()
    };
    let pattern = |pattern: &'static str| ("auth_token.match_string", pattern);
    assert!(passes(&[pattern(r"127\.0\.0\.\d{1,3}(:\d{1,5})?")]));
    assert!(!passes(&[pattern(r"127\.0\.0\.1")]), "the port is a part of the address");
    assert!(!passes(&[pattern("7802")]), "a part does not match");
    assert!(!passes(&[
        pattern("127.*|10"),
        ("auth_token.match_ip_address", "false"),
        ("auth_token.match_logical_name", "true")
    ]));
    assert!(passes(&[pattern("10|127.*"), ("auth_token.match_logical_name", "true")]));
}

#[test]
fn addresses_are_matched_as_java_prints_them() {
    assert_eq!(as_in_java(phys(2)), "127.0.0.1:7802");
    let six = PhysAddr { ip: Some("fe80::1".parse().unwrap()), scope_id: 2, port: 7800 };
    assert_eq!(as_in_java(six), "fe80:0:0:0:0:0:0:1%2:7800");
}

#[test]
fn settings_that_cannot_be_used_name_their_attribute_and_an_alternative() {
    for (attributes, attribute, text) in [
        (vec![], "auth_class", "auth_class is missing"),
        (vec![("auth_class", "org.jgroups.auth.MD5Token")], "auth_class", "SYM_ENCRYPT"),
        (vec![("auth_class", "org.jgroups.auth.Krb5Token")], "auth_class", "tls.client_auth"),
        (vec![X509], "auth_token.keystore_path", "is missing"),
        ([&X509_STORE[..], &[("auth_token.cipher_type", "AES")]].concat(), "auth_token.cipher_type", "RSA"),
        (
            [&X509_STORE[..], &[("auth_token.keystore_type", "BKS")]].concat(),
            "auth_token.keystore_type",
            "PKCS12",
        ),
        (
            [&X509_STORE[..], &[("auth_token.match_string", ".*")]].concat(),
            "auth_token.match_string",
            "RegexMembership, and auth_class is org.jgroups.auth.X509Token",
        ),
        (vec![("auth_class", "org.example.Mine")], "auth_class", "Java classes are not supported"),
        (vec![FIXED], "auth_token.fixed_members_value", "name the addresses"),
        (
            vec![FIXED, ("auth_token.fixed_members_value", "nowhere")],
            "auth_token.fixed_members_value",
            "no address",
        ),
        (vec![FIXED, ("auth_token.fixed_members_value", "::1/x")], "auth_token.fixed_members_value", "::1/x"),
        (vec![REGEX], "auth_token.match_string", "is missing"),
        (
            vec![REGEX, ("auth_token.match_string", "(?=x)")],
            "auth_token.match_string",
            "not a regular expression",
        ),
        (
            vec![REGEX, ("auth_token.match_ip_address", "false")],
            "auth_token.match_ip_address",
            "has to be true",
        ),
    ] {
        let (name, why) = with(&attributes).err().unwrap();
        assert!(name == attribute && why.contains(text), "{attributes:?}: {name}: {why}");
    }
}

#[test]
fn members_are_separated_by_the_configured_characters() {
    let auth = with(&[
        FIXED,
        ("auth_token.fixed_members_seperator", ";|"),
        ("auth_token.fixed_members_value", "10.0.0.1; 10.0.0.2/7800|::1/0;"),
    ]);
    let AuthToken::FixedMembership(members) = auth.unwrap().token else { panic!() };
    let wanted: [(IpAddr, Option<u16>); 3] =
        [([10, 0, 0, 1].into(), None), ([10, 0, 0, 2].into(), Some(7800)), ("::1".parse().unwrap(), None)];
    assert_eq!(members, wanted);
}
