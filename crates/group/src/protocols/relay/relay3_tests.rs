//! Behaviour of RELAY3 beyond that of RELAY2.

use std::time::Duration;

use super::tests::{bridge_view, from_bridge, header, relay_events, remote, sent};
use super::*;
use crate::harness::Harness;
use crate::{
    BridgeSend, DropReason, Flags, Header, Message, Object, Payload, RelayHeader, Uuid, ViewId, relay_kind,
};

pub(super) fn own(n: u64) -> Address {
    Address::of_site(Uuid { most: n, least: n }, "lon", "A", true)
}

pub(super) fn view_of(id: u64, members: &[u64]) -> View {
    let members: Vec<Address> = members.iter().map(|&n| own(n)).collect();
    View::new(ViewId { creator: members[0].clone(), id }, members)
}

pub(super) fn layer_with(config: Relay3Config) -> Relay {
    let config = Relay3Config { site: "lon".into(), config: "relay.xml".into(), ..config };
    Relay::relay3(&config, &TopologyConfig::default())
}

fn layer() -> Relay {
    layer_with(Relay3Config::default())
}

/// Member 1 in this view.
pub(super) fn in_view(members: &[u64]) -> Harness {
    let mut harness = Harness::with_address(1, own(1), vec![Box::new(layer())]);
    harness.raise(Event::View(view_of(1, members)));
    harness
}

/// Member 1 is site master, and these are those of other sites.
pub(super) fn master_with(others: &[Address]) -> Harness {
    let mut harness = in_view(&[1, 2]);
    bridge_view(&mut harness, others);
    relay_events(&mut harness);
    harness.take_down();
    harness
}

pub(super) fn with(kind: u8, message: Message, dest: Option<Address>, sender: Address) -> Message {
    let header = RelayHeader::new(kind, dest, Some(sender));
    message.with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header)))
}

pub(super) fn data(dest: Option<Address>, sender: Address) -> Message {
    with(relay_kind::DATA, Message::bytes(Some(remote(7, "lon")), "x"), dest, sender)
}

pub(super) fn visited(mut message: Message, sites: &[&str]) -> Message {
    if let Some(HeaderBody::Relay(mut header)) = message.headers.take(ProtocolId::RELAY3) {
        header.visited = sites.iter().map(|site| Some((*site).to_owned())).collect();
        message.headers.put(ProtocolId::RELAY3, HeaderBody::Relay(header));
    }
    message
}

pub(super) fn arrives(harness: &mut Harness, message: Message) -> Vec<Message> {
    arrives_from(harness, remote(8, "nyc"), message)
}

pub(super) fn arrives_from(harness: &mut Harness, master: Address, message: Message) -> Vec<Message> {
    let message = Message { src: Some(master), ..message };
    from_bridge(harness, BridgeInput::Message { bridge: 0, message });
    harness.take_down()
}

pub(super) fn kinds(sent: &[BridgeSend]) -> Vec<(String, u8)> {
    let site = |send: &BridgeSend| send.message.dest.as_ref().unwrap().site().unwrap().to_owned();
    sent.iter().map(|send| (site(send), header(&send.message).kind)).collect()
}

pub(super) fn names(sites: &[Option<String>]) -> Vec<&str> {
    sites.iter().flatten().map(String::as_str).collect()
}

#[test]
fn messages_within_the_site_have_no_header_and_those_of_jgroups_are_taken_with_it() {
    let mut harness = in_view(&[2, 1]);
    harness.take_down();
    harness.send(Message::bytes(Some(own(2)), "x")).send(Message::bytes(None, "y"));
    let down = harness.take_down();
    assert_eq!(down.len(), 2);
    assert!(down.iter().all(|message| message.headers.get(ProtocolId::RELAY3).is_none()));
    assert_eq!((&down[0].dest, &down[1].dest), (&Some(own(2)), &None));
    let sent_by = |message: Message| Message { src: Some(own(2)), ..message };
    let unicast = Message { dest: Some(own(1)), ..data(Some(own(1)), own(2)) };
    let multicast = Message { dest: None, ..data(None, own(2)) };
    for message in [unicast, multicast] {
        let dest = message.dest.clone();
        let [got] = &harness.up(sent_by(message)).take_up()[..] else { panic!("one message") };
        assert_eq!((&got.src, &got.dest), (&Some(own(2)), &dest));
        assert!(got.headers.0.is_empty());
    }
}

#[test]
fn multicasts_go_to_all_sites_with_the_visited_ones_and_those_of_jgroups_only_once() {
    let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo")]);
    harness.up(Message { src: Some(own(2)), ..Message::bytes(None, "x") });
    let sends = sent(&mut harness);
    assert_eq!(kinds(&sends), [("nyc".to_owned(), relay_kind::DATA), ("sfo".to_owned(), relay_kind::DATA)]);
    for send in &sends {
        let header = header(&send.message);
        assert_eq!((&header.final_dest, &header.original_sender), (&None, &Some(own(2))));
        assert_eq!(names(&header.visited), ["lon", "nyc", "sfo"]);
    }
    // JGroups' members put the header on multicasts of the site.
    let of_java = Message { dest: None, src: Some(own(2)), ..data(None, own(2)) };
    harness.up(of_java.clone());
    assert_eq!(sent(&mut harness).len(), 2);
    harness.up(of_java.with_flags(Flags::NO_RELAY));
    assert_eq!(sent(&mut harness), []);
}

#[test]
fn multicast_of_another_site_goes_on_to_sites_that_it_has_not_visited_and_to_the_own_members() {
    let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo"), remote(10, "hf")]);
    let down = arrives(&mut harness, visited(data(None, remote(80, "nyc")), &["nyc", "lon", "sfo"]));
    let sends = sent(&mut harness);
    assert_eq!(kinds(&sends), [("hf".to_owned(), relay_kind::DATA)]);
    let on = header(&sends[0].message);
    assert_eq!(
        (names(&on.visited), &on.original_sender),
        (vec!["hf", "lon", "nyc", "sfo"], &Some(remote(80, "nyc")))
    );
    let [here] = &down[..] else { panic!("one message") };
    assert_eq!(here.dest, None);
    assert!(here.flags.has(Flags::NO_RELAY), "no site master of JGroups sends it on");
    harness.up(Message { src: Some(own(1)), ..here.clone() });
    assert_eq!(sent(&mut harness), []);
    let back = arrives(&mut harness, data(None, own(2)));
    assert_eq!((back, sent(&mut harness)), (vec![], vec![]), "a message of the own site has come back");
}

#[test]
fn headers_and_flags_of_the_application_cross_the_bridge_in_the_header() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    let own_header = || Header { id: ProtocolId(200), body: HeaderBody::Batch2 };
    let mut message = Message::bytes(Some(remote(80, "nyc")), "x").with_flags(Flags::OOB);
    message.headers.put(own_header().id, own_header().body);
    harness.send(message);
    let [send] = &sent(&mut harness)[..] else { panic!("one message") };
    assert_eq!(send.message.headers.0.len(), 1);
    let crossing = header(&send.message);
    assert_eq!(crossing.original_headers, [own_header()]);
    assert_eq!(crossing.original_flags, Flags::OOB.0 as i16);

    let mut message = data(Some(own(2)), remote(80, "nyc")).with_flags(Flags::NO_RELIABILITY);
    if let Some(HeaderBody::Relay(mut header)) = message.headers.take(ProtocolId::RELAY3) {
        header.original_headers = vec![own_header()];
        header.original_flags = Flags::NO_FC.0 as i16;
        message.headers.put(ProtocolId::RELAY3, HeaderBody::Relay(header));
    }
    let [here] = &arrives(&mut harness, message.clone())[..] else { panic!("one message") };
    assert_eq!((here.flags, &here.dest), (Flags::NO_FC, &Some(own(2))));
    assert_eq!(here.headers.get(ProtocolId(200)), Some(&HeaderBody::Batch2));
    // A site whose UNICAST3 is above RELAY3 waits for an acknowledgement.
    if let Some(HeaderBody::Relay(mut header)) = message.headers.take(ProtocolId::RELAY3) {
        header.original_headers = vec![Header { id: ProtocolId::UNICAST3, body: HeaderBody::Batch2 }];
        message.headers.put(ProtocolId::RELAY3, HeaderBody::Relay(header));
    }
    assert_eq!(arrives(&mut harness, message), []);
    assert_eq!(harness.stack.shared().drops.total(DropReason::Unexpected), 1);
}

#[test]
fn unicasts_go_over_the_gateway_of_a_rule_and_not_in_circles() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    let rules = vec![ForwardRule::new("hf", "sfo").unwrap(), ForwardRule::new("h.*", "nyc").unwrap()];
    from_bridge(&mut harness, BridgeInput::Forwards(rules));
    harness.send(Message::bytes(Some(remote(90, "hf")), "x"));
    let [send] = &sent(&mut harness)[..] else { panic!("one message") };
    assert_eq!(send.message.dest, Some(remote(8, "nyc")), "the first rule's gateway has no route");
    assert_eq!(header(&send.message).final_dest, Some(remote(90, "hf")));

    let mut gateway = master_with(&[remote(8, "nyc"), remote(9, "hf")]);
    assert_eq!(arrives(&mut gateway, data(Some(remote(90, "hf")), remote(80, "nyc"))), []);
    let [send] = &sent(&mut gateway)[..] else { panic!("one message") };
    assert_eq!(send.message.dest, Some(remote(9, "hf")));
    assert_eq!(names(&header(&send.message).visited), ["lon"]);

    let circle = visited(data(Some(remote(90, "hf")), remote(80, "nyc")), &["lon", "nyc"]);
    arrives(&mut gateway, circle);
    assert_eq!(kinds(&sent(&mut gateway)), [("nyc".to_owned(), relay_kind::SITE_UNREACHABLE)]);
}

#[test]
fn sender_of_another_site_hears_that_a_site_or_a_member_is_unreachable() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    arrives(&mut harness, data(Some(remote(90, "hf")), remote(80, "nyc")));
    let [site] = &sent(&mut harness)[..] else { panic!("one message") };
    assert_eq!((header(&site.message).kind, names(&header(&site.message).sites)), (2, vec!["hf"]));
    assert_eq!(header(&site.message).final_dest, Some(remote(80, "nyc")));
    arrives(&mut harness, data(Some(own(5)), remote(80, "nyc")));
    let [member] = &sent(&mut harness)[..] else { panic!("one message") };
    assert_eq!(header(&member.message).kind, relay_kind::MEMBER_UNREACHABLE);
    assert_eq!(member.message.payload, Payload::Object(Box::new(Object::Address(own(5)))));
    // A report that does not arrive causes none.
    let report = with(relay_kind::SITE_UNREACHABLE, Message::empty(None), Some(own(5)), remote(8, "nyc"));
    assert_eq!(arrives(&mut harness, report), []);
    let report =
        with(relay_kind::SITE_UNREACHABLE, Message::empty(None), Some(remote(1, "hf")), remote(8, "nyc"));
    arrives(&mut harness, report);
    assert_eq!(sent(&mut harness), []);
}

#[test]
fn reports_reach_the_application_of_the_sender() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    let mut report = with(relay_kind::SITE_UNREACHABLE, Message::empty(None), Some(own(2)), remote(8, "nyc"));
    if let Some(HeaderBody::Relay(mut header)) = report.headers.take(ProtocolId::RELAY3) {
        header.sites = vec![Some("hf".to_owned())];
        report.headers.put(ProtocolId::RELAY3, HeaderBody::Relay(header));
    }
    let [passed] = &arrives(&mut harness, report)[..] else { panic!("one message") };
    assert_eq!(passed.dest, Some(own(2)));
    let mut sender = in_view(&[2, 1]);
    sender.up(Message { dest: Some(own(1)), src: Some(own(2)), ..passed.clone() });
    assert_eq!(relay_events(&mut sender), [RelayEvent::SiteUnreachable("hf".into())]);
    let payload = Message::object(Some(own(1)), Object::Address(remote(80, "nyc")));
    sender.up(Message {
        src: Some(own(2)),
        ..with(relay_kind::MEMBER_UNREACHABLE, payload, Some(own(1)), remote(8, "nyc"))
    });
    assert_eq!(relay_events(&mut sender), [RelayEvent::MemberUnreachable(remote(80, "nyc"))]);
    // A member of the own site that has left.
    sender.send(Message::bytes(Some(own(5)), "x"));
    assert_eq!(relay_events(&mut sender), [RelayEvent::MemberUnreachable(own(5))]);
}

#[test]
fn new_site_hears_of_all_others_and_of_the_members_and_the_others_hear_of_it() {
    let mut harness = in_view(&[1, 2]);
    bridge_view(&mut harness, &[remote(8, "nyc")]);
    let first = sent(&mut harness);
    let nyc = |kind| ("nyc".to_owned(), kind);
    assert_eq!(kinds(&first), [nyc(relay_kind::TOPO_REQ), nyc(relay_kind::TOPO_RSP)]);
    assert_eq!(first[1].message.payload, Payload::Object(Box::new(Object::View(view_of(1, &[1, 2])))));
    assert!(header(&first[1].message).final_dest.as_ref().unwrap().is_site_master());
    bridge_view(&mut harness, &[remote(8, "nyc"), remote(9, "sfo")]);
    let second = sent(&mut harness);
    let announced: Vec<(String, Vec<&str>)> = second
        .iter()
        .filter(|send| header(&send.message).kind == relay_kind::SITES_UP)
        .map(|send| {
            (
                send.message.dest.as_ref().unwrap().site().unwrap().to_owned(),
                names(&header(&send.message).sites),
            )
        })
        .collect();
    assert_eq!(announced, [("nyc".to_owned(), vec!["sfo"]), ("sfo".to_owned(), vec!["nyc"])]);
}

#[test]
fn sites_beyond_another_one_are_known_until_that_one_goes_or_takes_them_back() {
    let mut harness = in_view(&[2, 1]);
    let mut announce = |kind, sites: &[&str], from: Option<Address>| {
        let mut header = RelayHeader::new(kind, None, from);
        header.sites = sites.iter().map(|site| Some((*site).to_owned())).collect();
        let message =
            Message::empty(None).with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header)));
        harness.up(Message { src: Some(own(2)), ..message.with_flags(Flags::NO_RELAY) });
        relay_events(&mut harness)
    };
    let up = |sites: &[&str]| vec![RelayEvent::SitesUp(sites.iter().map(|site| (*site).into()).collect())];
    let down =
        |sites: &[&str]| vec![RelayEvent::SitesDown(sites.iter().map(|site| (*site).into()).collect())];
    assert_eq!(announce(relay_kind::SITES_UP, &["nyc"], None), up(&["nyc"]));
    assert_eq!(
        announce(relay_kind::SITES_UP, &["lon", "nyc", "hf", "sfo"], Some(remote(8, "nyc"))),
        up(&["hf", "sfo"])
    );
    assert_eq!(announce(relay_kind::SITES_DOWN, &["nyc", "sfo"], Some(remote(8, "hf"))), []);
    assert_eq!(announce(relay_kind::SITES_DOWN, &["nyc", "sfo"], Some(remote(8, "nyc"))), down(&["sfo"]));
    assert_eq!(announce(relay_kind::SITES_DOWN, &["nyc"], None), down(&["hf", "nyc"]));
}

#[test]
fn site_of_several_members_without_site_master_stays_up_for_a_time() {
    let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo")]);
    let members = vec![remote(80, "nyc"), remote(81, "nyc")];
    let view = View::new(ViewId { creator: members[0].clone(), id: 1 }, members);
    let mut header =
        RelayHeader::new(relay_kind::TOPO_RSP, Some(Address::all_site_masters()), Some(remote(80, "nyc")));
    header.sites = vec![Some("nyc".to_owned())];
    let topology = Message::object(None, Object::View(view))
        .with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header)));
    let here = arrives(&mut harness, topology).pop().unwrap();
    assert_eq!(here.dest, None, "all members hear of it");
    harness.up(Message { src: Some(own(1)), ..here });
    assert_eq!(harness.stack.attribute("RELAY3", "topology").unwrap(), "nyc: ?:nyc, ?:nyc");
    relay_events(&mut harness);

    bridge_view(&mut harness, &[]);
    assert_eq!(relay_events(&mut harness), [RelayEvent::SitesDown(vec!["sfo".into()])]);
    harness.advance(Duration::from_secs(5));
    bridge_view(&mut harness, &[remote(81, "nyc")]);
    harness.advance(Duration::from_secs(60));
    assert_eq!(
        relay_events(&mut harness).iter().filter(|event| !matches!(event, RelayEvent::Send(_))).count(),
        0
    );
    bridge_view(&mut harness, &[]);
    harness.advance(Duration::from_secs(5));
    assert_eq!(relay_events(&mut harness), []);
    harness.advance(Duration::from_secs(2));
    assert_eq!(relay_events(&mut harness), [RelayEvent::SitesDown(vec!["nyc".into()])]);
    assert_eq!(harness.stack.attribute("RELAY3", "topology").unwrap(), "");
}

#[test]
fn joiner_asks_its_site_master_for_the_members_of_all_sites_and_gets_one_answer_each() {
    let mut joiner = in_view(&[2, 1]);
    let [request] = &joiner.take_down()[..] else { panic!("one message") };
    assert_eq!((&request.dest, header(request).kind), (&Some(own(2)), relay_kind::TOPO_REQ));
    assert!(header(request).return_entire_cache);
    let mut master = in_view(&[1, 2]);
    let view = View::new(ViewId { creator: remote(80, "nyc"), id: 1 }, vec![remote(80, "nyc")]);
    let mut topology = RelayHeader::new(relay_kind::TOPO_RSP, None, Some(remote(80, "nyc")));
    topology.sites = vec![Some("nyc".to_owned())];
    let message = Message::object(None, Object::View(view));
    let message = message.with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(topology)));
    master.up(Message { src: Some(own(1)), ..message });
    let request =
        with(relay_kind::TOPO_REQ, Message::empty(Some(own(1))), header(request).final_dest.clone(), own(2));
    let mut all = request.clone();
    if let Some(HeaderBody::Relay(mut header)) = all.headers.take(ProtocolId::RELAY3) {
        header.return_entire_cache = true;
        all.headers.put(ProtocolId::RELAY3, HeaderBody::Relay(header));
    }
    master.take_down();
    master.up(Message { src: Some(own(2)), ..all });
    let answers = master.take_down();
    let sites: Vec<Vec<&str>> = answers.iter().map(|answer| names(&header(answer).sites)).collect();
    assert_eq!(sites, [vec!["lon"], vec!["nyc"]]);
    assert!(answers.iter().all(|answer| answer.dest == Some(own(2))));
}

#[test]
fn message_for_the_masters_of_all_sites_goes_to_each_site_and_to_the_own_master() {
    let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo")]);
    harness.send(Message::bytes(Some(Address::all_site_masters()), "x"));
    assert_eq!(sent(&mut harness).len(), 2);
    let [here] = &harness.take_down()[..] else { panic!("one message") };
    assert_eq!(here.dest, Some(own(1)));
    let got = harness.up(Message { src: Some(own(1)), ..here.clone() }).take_indications();
    let delivered = got.iter().filter(|one| matches!(one, crate::Indication::Batch(_))).count();
    let again = got.iter().filter(|one| matches!(one, crate::Indication::Event(_))).count();
    assert_eq!((delivered, again), (1, 0), "once");
    let there = visited(data(Some(Address::all_site_masters()), remote(80, "nyc")), &["nyc", "lon", "sfo"]);
    let [here] = &arrives(&mut harness, there)[..] else { panic!("one message") };
    assert_eq!(here.dest, Some(own(1)));
    assert_eq!(sent(&mut harness), []);
}

#[test]
fn limits_of_what_other_sites_send() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
    for message in [
        visited(data(None, remote(80, "nyc")), &[&long]),
        data(None, remote(80, &long)),
        visited(data(None, remote(80, "nyc")), &vec!["a"; SITES_MAX + 1]),
        with_application_header(data(None, remote(80, "nyc")), INBOUND_HEADERS_MAX),
    ] {
        assert_eq!(arrives(&mut harness, message), []);
    }
    assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 4);
    let short = with_application_header(data(None, remote(80, "nyc")), INBOUND_HEADERS_MAX - 100);
    assert_eq!(arrives(&mut harness, short).len(), 1);
}

/// With original headers of the sender's application.
fn with_application_header(mut message: Message, bytes: usize) -> Message {
    if let Some(HeaderBody::Relay(mut header)) = message.headers.take(ProtocolId::RELAY3) {
        let text = HeaderBody::Info(Box::new(vec![(Some("x".repeat(bytes)), None)]));
        header.original_headers = vec![Header { id: ProtocolId(200), body: text }];
        message.headers.put(ProtocolId::RELAY3, HeaderBody::Relay(header));
    }
    message
}
