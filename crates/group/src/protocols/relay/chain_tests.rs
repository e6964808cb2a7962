//! RELAY3's chains of sites, changes of site masters, and hostile peers.

use std::sync::{Arc, Mutex};

use super::relay3_tests::{
    arrives, arrives_from, data, in_view, kinds, layer_with, master_with, names, own, view_of, visited, with,
};
use super::tests::{Queues, bridge_view, from_bridge, header, relay_events, remote, sent};
use super::*;
use crate::config::{Position, ProtocolConfig};
use crate::harness::Harness;
use crate::protocols::registry;
use crate::{BridgeSend, Cx, DropReason, Flags, Message, Object, RelayHeader, ViewId, relay_kind};

/// A layer below that counts returned credit.
struct Returned(Arc<Mutex<u64>>);

impl Protocol for Returned {
    fn name(&self) -> &'static str {
        "UFC"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId::UFC
    }
    fn consumed(&mut self, _cx: &mut Cx<'_>, _src: &Address, _is_multicast: bool, credit: u64) {
        *self.0.lock().unwrap() += credit;
    }
}

fn sites(kind: u8, sites: &[&str], from: Option<Address>) -> Message {
    let mut header = RelayHeader::new(kind, None, from);
    header.sites = sites.iter().map(|site| Some((*site).to_owned())).collect();
    Message::empty(None).with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header)))
}

/// A member of this site announces.
fn hears(harness: &mut Harness, kind: u8, of: &[&str], from: Option<Address>) -> Vec<RelayEvent> {
    let message = sites(kind, of, from).with_flags(Flags::NO_RELAY);
    harness.up(Message { src: Some(own(2)), ..message });
    relay_events(harness)
}

fn down(sites: &[&str]) -> Vec<RelayEvent> {
    vec![RelayEvent::SitesDown(sites.iter().map(|site| (*site).into()).collect())]
}

fn announced(sends: &[BridgeSend], kind: u8) -> Vec<(&str, Vec<&str>)> {
    let messages = sends.iter().filter(|send| header(&send.message).kind == kind);
    messages
        .map(|send| {
            (send.message.dest.as_ref().unwrap().site().unwrap(), names(&header(&send.message).sites))
        })
        .collect()
}

#[test]
fn sites_of_a_chain_go_with_the_first_one() {
    let mut harness = in_view(&[2, 1]);
    hears(&mut harness, relay_kind::SITES_UP, &["nyc"], None);
    hears(&mut harness, relay_kind::SITES_UP, &["hf"], Some(remote(8, "nyc")));
    hears(&mut harness, relay_kind::SITES_UP, &["sfo"], Some(remote(9, "hf")));
    hears(&mut harness, relay_kind::SITES_UP, &["sea"], Some(remote(9, "sfo")));
    assert_eq!(
        hears(&mut harness, relay_kind::SITES_DOWN, &["sfo"], Some(remote(9, "hf"))),
        down(&["sea", "sfo"])
    );
    hears(&mut harness, relay_kind::SITES_UP, &["sfo"], Some(remote(9, "hf")));
    assert_eq!(hears(&mut harness, relay_kind::SITES_DOWN, &["nyc"], None), down(&["hf", "nyc", "sfo"]));
}

/// A site master of `lon` and a member that receives what the site master multicasts.
struct Lon {
    master: Harness,
    member: Harness,
}

impl Lon {
    fn with(masters: &[Address]) -> Self {
        let mut lon = Self { master: in_view(&[1, 2]), member: in_view(&[2, 1]) };
        lon.member.take_down();
        lon.bridge_has(masters);
        lon
    }

    /// Returns the changes of sites, which both see.
    fn bridge_has(&mut self, masters: &[Address]) -> Vec<RelayEvent> {
        bridge_view(&mut self.master, masters);
        let announced = self.master.take_down();
        self.changes(announced)
    }

    /// An announcement of a site's master comes over the bridge from this neighbour.
    fn hears(&mut self, kind: u8, of: &[&str], from: &str, over: &str) -> Vec<RelayEvent> {
        let message = visited(sites(kind, of, Some(remote(7, from))), &[from, over, "lon"]);
        let announced = arrives_from(&mut self.master, remote(8, over), message);
        self.changes(announced)
    }

    fn changes(&mut self, announced: Vec<Message>) -> Vec<RelayEvent> {
        for message in announced {
            self.member.up(Message { src: Some(own(2)), ..message.clone() });
            self.master.up(Message { src: Some(own(1)), ..message });
        }
        let mut events = relay_events(&mut self.master);
        events.retain(|event| matches!(event, RelayEvent::SitesUp(_) | RelayEvent::SitesDown(_)));
        assert_eq!(relay_events(&mut self.member), events);
        events
    }
}

#[test]
fn sites_of_a_mesh_behind_a_gateway_go_alone_or_with_the_gateway() {
    // nyc, sea and hf have one bridge, and announce each other.
    let mut lon = Lon::with(&[remote(8, "nyc")]);
    lon.hears(relay_kind::SITES_UP, &["hf", "sea"], "nyc", "nyc");
    lon.hears(relay_kind::SITES_UP, &["hf", "nyc"], "sea", "nyc");
    lon.hears(relay_kind::SITES_UP, &["nyc", "sea"], "hf", "nyc");
    assert_eq!(lon.hears(relay_kind::SITES_DOWN, &["sea"], "nyc", "nyc"), down(&["sea"]));
    assert_eq!(lon.hears(relay_kind::SITES_DOWN, &["sea"], "hf", "nyc"), []);
    assert_eq!(lon.bridge_has(&[]), down(&["hf", "nyc"]));
}

#[test]
fn site_is_up_while_a_neighbour_or_a_bridge_has_it() {
    let mut lon = Lon::with(&[remote(8, "nyc"), remote(9, "sfo")]);
    lon.hears(relay_kind::SITES_UP, &["hf"], "nyc", "nyc");
    lon.hears(relay_kind::SITES_UP, &["hf", "nyc"], "sfo", "sfo");
    assert_eq!(lon.bridge_has(&[remote(9, "sfo")]), [], "sfo has both");
    assert_eq!(lon.hears(relay_kind::SITES_DOWN, &["nyc"], "sfo", "sfo"), down(&["nyc"]));
    assert_eq!(lon.hears(relay_kind::SITES_DOWN, &["hf"], "sfo", "sfo"), down(&["hf"]));
}

#[test]
fn site_that_a_bridge_has_now_stays_up_without_its_former_neighbour() {
    let mut lon = Lon::with(&[remote(8, "nyc")]);
    lon.hears(relay_kind::SITES_UP, &["hf"], "nyc", "nyc");
    assert_eq!(lon.bridge_has(&[remote(9, "hf")]), down(&["nyc"]));
    assert_eq!(lon.bridge_has(&[]), down(&["hf"]));
}

#[test]
fn announcements_of_sites_need_a_neighbour() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    for master in [crate::harness::member(8), own(2), remote(8, &"x".repeat(SITE_NAME_BYTES_MAX + 1))] {
        let message = sites(relay_kind::SITES_UP, &["hf"], Some(remote(8, "nyc")));
        assert_eq!(arrives_from(&mut harness, master, message), []);
    }
    assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 3);
}

#[test]
fn ways_to_a_site_are_bounded() {
    let mut harness = in_view(&[2, 1]);
    for n in 0..=WAYS_MAX {
        hears(&mut harness, relay_kind::SITES_UP, &["hf"], Some(remote(8, &format!("s{n:02}"))));
    }
    for n in 0..WAYS_MAX - 1 {
        let gone = hears(&mut harness, relay_kind::SITES_DOWN, &["hf"], Some(remote(8, &format!("s{n:02}"))));
        assert_eq!(gone, []);
    }
    let last = format!("s{:02}", WAYS_MAX - 1);
    assert_eq!(hears(&mut harness, relay_kind::SITES_DOWN, &["hf"], Some(remote(8, &last))), down(&["hf"]));
}

#[test]
fn other_sites_hear_of_all_sites_that_went_with_one() {
    let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo")]);
    hears(&mut harness, relay_kind::SITES_UP, &["hf"], Some(remote(8, "nyc")));
    bridge_view(&mut harness, &[remote(9, "sfo")]);
    let events = relay_events(&mut harness);
    assert_eq!(events[..1], down(&["hf", "nyc"]));
    let sends: Vec<BridgeSend> = events
        .into_iter()
        .filter_map(|event| if let RelayEvent::Send(send) = event { Some(send) } else { None })
        .collect();
    assert_eq!(announced(&sends, relay_kind::SITES_DOWN), [("sfo", vec!["hf", "nyc"])]);
    let [multicast] = &harness.take_down()[..] else { panic!("one message") };
    assert_eq!(names(&header(multicast).sites), ["hf", "nyc"]);
}

#[test]
fn new_first_site_master_and_sites_that_are_known_exchange_their_members() {
    let mut harness = in_view(&[2, 1]);
    hears(&mut harness, relay_kind::SITES_UP, &["nyc"], None);
    harness.raise(Event::View(view_of(2, &[1])));
    bridge_view(&mut harness, &[remote(8, "nyc")]);
    let sends = sent(&mut harness);
    let nyc = |kind| ("nyc".to_owned(), kind);
    assert_eq!(kinds(&sends), [nyc(relay_kind::TOPO_REQ), nyc(relay_kind::TOPO_RSP)]);
    bridge_view(&mut harness, &[remote(8, "nyc"), remote(9, "nyc")]);
    assert_eq!(sent(&mut harness), [], "it has had a route");
}

#[test]
fn joiner_that_is_the_second_site_master_asks_the_first_one() {
    let config = Relay3Config { max_site_masters: 2, ..Relay3Config::default() };
    let mut joiner = Harness::with_address(1, own(1), vec![Box::new(layer_with(config))]);
    joiner.raise(Event::View(view_of(1, &[2, 1])));
    let [request] = &joiner.take_down()[..] else { panic!("one message") };
    assert_eq!((&request.dest, header(request).kind), (&Some(own(2)), relay_kind::TOPO_REQ));
}

#[test]
fn message_for_the_masters_of_all_sites_goes_on_once() {
    for kind in [relay_kind::TOPO_REQ, relay_kind::DATA] {
        let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo")]);
        let message = with(kind, Message::empty(None), Some(Address::all_site_masters()), remote(80, "nyc"));
        let [here] = &arrives(&mut harness, visited(message, &["nyc"]))[..] else { panic!("one message") };
        assert_eq!(kinds(&sent(&mut harness)), [("sfo".to_owned(), kind)]);
        harness.up(Message { src: Some(own(1)), ..here.clone() });
        let again = sent(&mut harness).into_iter().filter(|send| header(&send.message).kind == kind);
        assert_eq!(again.count(), 0);
    }
}

#[test]
fn notice_without_a_route_returns_its_credit() {
    let credit = Arc::new(Mutex::new(0));
    let layers: Vec<Box<dyn Protocol>> =
        vec![Box::new(Returned(credit.clone())), Box::new(layer_with(Relay3Config::default()))];
    let mut harness = Harness::with_address(1, own(1), layers);
    harness.raise(Event::View(view_of(1, &[1, 2])));
    let report =
        with(relay_kind::SITE_UNREACHABLE, Message::empty(Some(own(1))), Some(remote(80, "nyc")), own(2));
    harness.up(Message { src: Some(own(2)), credit: 7, ..report });
    assert_eq!(*credit.lock().unwrap(), 7);
}

#[test]
fn members_are_reported_by_their_own_site_and_sites_one_at_a_time() {
    let mut harness = in_view(&[2, 1]);
    let mut reports = |member: Address, from: Address| {
        let payload = Message::object(Some(own(1)), Object::Address(member));
        let report = with(relay_kind::MEMBER_UNREACHABLE, payload, Some(own(1)), from);
        harness.up(Message { src: Some(own(2)), ..report });
        relay_events(&mut harness)
    };
    assert_eq!(reports(remote(80, "nyc"), remote(9, "sfo")), []);
    assert_eq!(reports(own(2), remote(8, "nyc")), []);
    assert_eq!(reports(own(2), own(1)), [], "it is a member");
    let long = remote(80, "nyc").in_site("nyc", Some(&"x".repeat(ADDRESS_BYTES_MAX)));
    assert_eq!(reports(long, remote(8, "nyc")), []);
    let left = remote(80, "nyc");
    assert_eq!(reports(left.clone(), remote(8, "nyc")), [RelayEvent::MemberUnreachable(left)]);

    let mut report = |of: &[&str]| {
        let report = sites(relay_kind::SITE_UNREACHABLE, of, Some(remote(8, "nyc")));
        harness.up(Message { src: Some(own(2)), dest: Some(own(1)), ..report });
        relay_events(&mut harness)
    };
    assert_eq!(report(&["hf", "sfo"]), [RelayEvent::SiteUnreachable("hf".into())]);
    assert_eq!(report(&[&"x".repeat(SITE_NAME_BYTES_MAX + 1)]), []);
}

#[test]
fn sender_hears_of_a_unicast_that_comes_back() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    let back = |sender: u64, over: &[&str]| visited(data(Some(remote(90, "hf")), own(sender)), over);
    let [report] = &arrives(&mut harness, back(2, &["nyc"]))[..] else { panic!("one message") };
    assert_eq!((&report.dest, header(report).kind), (&Some(own(2)), relay_kind::SITE_UNREACHABLE));
    assert_eq!(names(&header(report).sites), ["hf"]);
    assert_eq!(arrives(&mut harness, back(2, &[])), [], "it has crossed no site");
    assert_eq!(arrives(&mut harness, back(5, &["nyc"])), [], "there is no such member");
    assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 3);
}

#[test]
fn header_of_another_site_goes_on_with_what_its_kind_needs() {
    let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo")]);
    let with_sites = |kind, names: Vec<Option<String>>| {
        let mut message = with(kind, Message::empty(None), None, remote(80, "nyc"));
        if let Some(HeaderBody::Relay(mut header)) = message.headers.take(ProtocolId::RELAY3) {
            header.sites = names;
            header.return_entire_cache = true;
            message.headers.put(ProtocolId::RELAY3, HeaderBody::Relay(header));
        }
        message
    };
    let some = || vec![Some("hf".to_owned())];
    for (kind, has_sites) in [(relay_kind::DATA, false), (relay_kind::SITES_UP, true)] {
        let here = arrives(&mut harness, visited(with_sites(kind, some()), &["nyc"])).pop().unwrap();
        let [on] = &sent(&mut harness)[..] else { panic!("one message") };
        for message in [&here, &on.message] {
            let header = header(message);
            assert_eq!((header.sites.is_empty(), header.return_entire_cache), (!has_sites, false));
        }
    }
    let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
    for names in [vec![Some(long.clone())], vec![Some("a".to_owned()); SITES_MAX + 1]] {
        assert_eq!(arrives(&mut harness, with_sites(relay_kind::SITES_UP, names)), []);
    }
    let large = remote(80, "nyc").in_site("nyc", Some(&"x".repeat(ADDRESS_BYTES_MAX)));
    let many: Vec<String> =
        (0..200).map(|n| format!("{}{n:03}", "x".repeat(SITE_NAME_BYTES_MAX - 3))).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let all = [
        data(Some(remote(1, &long)), remote(80, "nyc")),
        data(None, large),
        visited(data(None, remote(80, "nyc")), &many),
    ];
    for message in all {
        assert_eq!(arrives(&mut harness, message), []);
    }
    assert_eq!(sent(&mut harness), []);
    assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 5);
}

#[test]
fn message_that_has_visited_too_many_sites_for_a_header_is_delivered_and_not_sent_on() {
    let mut harness = master_with(&[remote(8, "nyc"), remote(9, "sfo")]);
    let names: Vec<String> = (0..SITES_MAX).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut counts = |dest: Option<Address>, visited_sites: &[&str]| {
        let visited_sites = [visited_sites, &["nyc"]].concat();
        let here = arrives(&mut harness, visited(data(dest, remote(80, "nyc")), &visited_sites)).len();
        let sends = sent(&mut harness);
        let on = sends.iter().filter(|send| header(&send.message).kind == relay_kind::DATA).count();
        (here, on, harness.stack.shared().drops.total(DropReason::QueueFull))
    };
    // With lon, nyc and sfo, which has the route.
    assert_eq!(counts(None, &names[3..]), (1, 1, 0));
    assert_eq!(counts(None, &names[2..]), (1, 0, 1));
    let sfo = || Some(remote(90, "sfo"));
    assert_eq!(counts(sfo(), &names[2..]), (0, 1, 1));
    assert_eq!(counts(sfo(), &names[1..]), (0, 0, 1));
    let long: Vec<String> = (0..SITE_LIST_BYTES_MAX / SITE_NAME_BYTES_MAX)
        .map(|n| format!("{n:0SITE_NAME_BYTES_MAX$}"))
        .collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    let rest = "y".repeat(SITE_LIST_BYTES_MAX % SITE_NAME_BYTES_MAX - "lonnycsfo".len());
    assert_eq!(counts(None, &[&long[..], &[&rest]].concat()), (1, 1, 1));
    assert_eq!(counts(None, &[&long[..], &[&*(rest + "y")]].concat()), (1, 0, 2));
    assert_eq!(harness.stack.shared().drops.total(DropReason::UnknownAddress), 1, "for the unicast");
}

#[test]
fn site_masters_of_sites_beyond_the_limits_get_no_route_and_are_counted() {
    let mut harness = in_view(&[1, 2]);
    let masters: Vec<Address> =
        (0..SITES_MAX as u64 + 3).map(|n| remote(n + 10, &format!("{n:04}"))).collect();
    bridge_view(&mut harness, &masters);
    assert_eq!(harness.stack.attribute("RELAY3", "routes").unwrap().lines().count(), SITES_MAX - 1);
    assert_eq!(harness.stack.shared().drops.total(DropReason::QueueFull), 1);
    sent(&mut harness);
    harness.up(Message { src: Some(own(2)), ..Message::bytes(None, "x") });
    assert_eq!(sent(&mut harness).len(), SITES_MAX - 1, "the header has room for all");
}

#[test]
fn announced_sites_beyond_the_limits_are_counted() {
    let mut harness = in_view(&[2, 1]);
    let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
    let [RelayEvent::SitesUp(up)] = &hears(&mut harness, relay_kind::SITES_UP, &["hf", &long], None)[..]
    else {
        panic!("one event")
    };
    assert_eq!(up.len(), 1);
    assert_eq!(harness.stack.shared().drops.total(DropReason::QueueFull), 1);
}

#[test]
fn rules_are_not_matched_with_long_names() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    from_bridge(&mut harness, BridgeInput::Forwards(vec![ForwardRule::new(".*", "nyc").unwrap()]));
    let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
    harness.send(Message::bytes(Some(remote(90, &long)), "x"));
    assert_eq!(relay_events(&mut harness), [RelayEvent::SiteUnreachable(long.into())]);
    harness.send(Message::bytes(Some(remote(90, "hf")), "x"));
    assert_eq!(sent(&mut harness).len(), 1);
}

#[test]
fn answers_go_to_members_only() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    let mut ask = |from: Address| {
        let dest = Some(Address::site_master("lon"));
        harness.up(Message {
            src: Some(own(2)),
            ..with(relay_kind::TOPO_REQ, Message::empty(Some(own(1))), dest, from)
        });
        harness.take_down().len()
    };
    assert_eq!((ask(own(2)), ask(own(5))), (1, 0));
    for (queued, answers) in [(INBOUND_BYTES_MAX - 1, 1), (INBOUND_BYTES_MAX, 0)] {
        let layers: Vec<Box<dyn Protocol>> = vec![
            Box::new(Queues(vec![(Some(own(2)), queued)])),
            Box::new(layer_with(Relay3Config::default())),
        ];
        let mut harness = Harness::with_address(1, own(1), layers);
        harness.raise(Event::View(view_of(1, &[1, 2])));
        let request = request_of_all(Address::site_master("lon"), own(2));
        harness.up(Message { src: Some(own(2)), ..request });
        assert_eq!(harness.take_down().len(), answers);
    }
    // A member invents the sender.
    let mut harness = master_with(&[]);
    let mut send = |from: Address| {
        let message = data(Some(remote(80, "nyc")), from);
        harness.up(Message { src: Some(own(2)), dest: Some(own(1)), ..message });
        harness.take_down().len()
    };
    assert_eq!((send(own(2)), send(own(5))), (1, 0));
}

#[test]
fn sites_go_down_at_once_without_the_delay_or_their_views() {
    for (delay, views) in [("true", "true"), ("false", "true"), ("true", "false")] {
        let attributes = [
            ("site", "lon"),
            ("config", "relay.xml"),
            ("delay_sites_down", delay),
            ("topo.global_views", views),
        ];
        let mut harness = Harness::with_address(1, own(1), vec![layer_of(&attributes)]);
        harness.raise(Event::View(view_of(1, &[1, 2])));
        bridge_view(&mut harness, &[remote(8, "nyc")]);
        harness.up(Message { src: Some(own(2)), ..topology_of_nyc(remote(80, "nyc")) });
        relay_events(&mut harness);
        bridge_view(&mut harness, &[]);
        let expected = if (delay, views) == ("true", "true") { vec![] } else { down(&["nyc"]) };
        assert_eq!(relay_events(&mut harness), expected);
    }
}

fn topology_of_nyc(from: Address) -> Message {
    let members = vec![remote(80, "nyc"), remote(81, "nyc")];
    let view = View::new(ViewId { creator: members[0].clone(), id: 1 }, members);
    let mut header = RelayHeader::new(relay_kind::TOPO_RSP, None, Some(from));
    header.sites = vec![Some("nyc".to_owned())];
    Message::object(None, Object::View(view))
        .with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header)))
}

#[test]
fn views_of_a_site_come_from_itself_or_from_members_of_this_one() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    let mut keeps = |from: Address| {
        harness.up(Message { src: Some(own(2)), ..topology_of_nyc(from) });
        !harness.stack.attribute("RELAY3", "topology").unwrap().is_empty()
    };
    assert_eq!((keeps(remote(9, "sfo")), keeps(own(2))), (false, true));
    assert_eq!(harness.stack.shared().drops.total(DropReason::Unexpected), 1);
    let mut harness = master_with(&[remote(8, "nyc")]);
    harness.up(Message { src: Some(own(2)), ..topology_of_nyc(remote(80, "nyc")) });
    assert_ne!(harness.stack.attribute("RELAY3", "topology").unwrap(), "");
}

#[test]
fn another_site_gets_the_view_of_this_one_only() {
    let mut harness = master_with(&[remote(8, "nyc")]);
    harness.up(Message { src: Some(own(2)), ..topology_of_nyc(remote(80, "nyc")) });
    let mut request = request_of_all(Address::all_site_masters(), remote(90, "nyc"));
    request = visited(request, &["nyc"]);
    let [here] = &arrives(&mut harness, request)[..] else { panic!("one message") };
    assert!(!header(here).return_entire_cache);
    harness.up(Message { src: Some(own(1)), ..here.clone() });
    let sends = sent(&mut harness);
    let answers = sends.iter().map(|send| names(&header(&send.message).sites));
    assert_eq!(answers.collect::<Vec<_>>(), [["lon"]]);
}

/// RELAY3 as the stack's file has it.
fn layer_of(attributes: &[(&str, &str)]) -> Box<dyn Protocol> {
    let attribute = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned(), Position::default());
    let config = ProtocolConfig {
        name: "relay.RELAY3".to_owned(),
        attributes: attributes.iter().map(attribute).collect(),
        position: Position::default(),
    };
    registry::layer(&config, &mut |_: &str| Ok(Vec::new())).unwrap().unwrap()
}

/// A request for the views of all sites.
fn request_of_all(dest: Address, from: Address) -> Message {
    let mut header = RelayHeader::new(relay_kind::TOPO_REQ, Some(dest), Some(from));
    header.return_entire_cache = true;
    Message::empty(Some(own(1))).with_header(ProtocolId::RELAY3, HeaderBody::Relay(Box::new(header)))
}

#[test]
fn sites_without_global_views_exchange_none() {
    let attributes = [("site", "lon"), ("config", "relay.xml"), ("topo.global_views", "false")];
    let mut harness = Harness::with_address(1, own(1), vec![layer_of(&attributes)]);
    harness.raise(Event::View(view_of(1, &[1, 2])));
    bridge_view(&mut harness, &[remote(8, "nyc")]);
    harness.raise(Event::View(view_of(2, &[1, 2, 3])));
    assert_eq!(sent(&mut harness), []);
    harness.up(Message { src: Some(own(2)), ..topology_of_nyc(remote(80, "nyc")) });
    assert_eq!(harness.stack.attribute("RELAY3", "topology").unwrap(), "");
    harness.take_down();
    for (dest, from) in
        [(Address::site_master("lon"), own(2)), (Address::all_site_masters(), remote(80, "nyc"))]
    {
        harness.up(Message { src: Some(own(2)), ..visited(request_of_all(dest, from), &["nyc", "lon"]) });
        assert_eq!((harness.take_down(), sent(&mut harness)), (vec![], vec![]));
    }
}

#[test]
fn site_masters_are_members_that_can_be_and_at_least_the_ratio() {
    let config = Relay3Config { site_masters_ratio: 0.5, ..Relay3Config::default() };
    let mut harness = Harness::with_address(1, own(1), vec![Box::new(layer_with(config))]);
    let other = |n, can| Address::of_site(crate::Uuid { most: n, least: n }, "lon", "A", can);
    let members = vec![other(5, false), other(4, true), own(1), other(3, true)];
    harness.raise(Event::View(View::new(ViewId { creator: members[0].clone(), id: 1 }, members)));
    assert_eq!(relay_events(&mut harness), [RelayEvent::OpenBridges], "the second of two");
    let attribute = |name| harness.stack.attribute("RELAY3", name).unwrap();
    assert_eq!(attribute("site_masters").split(", ").count(), 2);
}
