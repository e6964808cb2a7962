use super::*;
use crate::harness::{Harness, member, view};
use crate::{BridgeSend, DropReason, Flags, HeldCredit, Message, RelayHeader, Transient, relay_kind};

fn layer(max_site_masters: usize) -> Relay {
    Relay::relay2(&Relay2Config {
        site: "lon".into(),
        config: "relay.xml".into(),
        max_site_masters,
        ..Relay2Config::default()
    })
}

/// Member 1 in this view.
fn in_view(members: &[u64]) -> Harness {
    with_masters(1, members)
}

fn with_masters(max_site_masters: usize, members: &[u64]) -> Harness {
    let mut harness = Harness::new(layer(max_site_masters));
    harness.raise(Event::View(view(1, members)));
    harness
}

pub(super) fn remote(n: u64, site: &str) -> Address {
    member(n).in_site(site, None)
}

pub(super) fn from_bridge(harness: &mut Harness, input: BridgeInput) {
    harness.lower(Event::FromBridge(Box::new(input)));
}

/// Bridge 0 has these site masters.
pub(super) fn bridge_view(harness: &mut Harness, members: &[Address]) {
    from_bridge(harness, BridgeInput::View { bridge: 0, members: members.to_vec() });
}

pub(super) fn relay_events(harness: &mut Harness) -> Vec<RelayEvent> {
    let events = harness.take_up_events().into_iter();
    events.filter_map(|event| if let Event::Relay(event) = event { Some(*event) } else { None }).collect()
}

pub(super) fn sent(harness: &mut Harness) -> Vec<BridgeSend> {
    let events = relay_events(harness).into_iter();
    events.filter_map(|event| if let RelayEvent::Send(send) = event { Some(send) } else { None }).collect()
}

pub(super) fn header(message: &Message) -> &RelayHeader {
    match message.headers.get(ProtocolId::RELAY2).or_else(|| message.headers.get(ProtocolId::RELAY3)) {
        Some(HeaderBody::Relay(header)) => header,
        other => panic!("{other:?}"),
    }
}

fn relayed(message: Message, kind: u8, dest: Option<Address>, sender: Address) -> Message {
    let header = RelayHeader::new(kind, dest, Some(sender));
    message.with_header(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)))
}

#[test]
fn first_member_opens_the_bridges_and_closes_them_when_it_is_first_no_longer() {
    let mut harness = in_view(&[1, 2]);
    assert_eq!(relay_events(&mut harness), [RelayEvent::OpenBridges]);
    harness.raise(Event::View(view(2, &[1, 2, 3])));
    assert_eq!(relay_events(&mut harness), []);
    harness.raise(Event::View(view(3, &[4, 1, 2, 3])));
    assert_eq!(relay_events(&mut harness), [RelayEvent::CloseBridges]);
    assert_eq!(relay_events(&mut in_view(&[2, 1])), []);
    assert_eq!(relay_events(&mut with_masters(2, &[2, 1])), [RelayEvent::OpenBridges]);
}

#[test]
fn message_to_another_site_goes_to_the_site_master_with_its_destination_and_sender() {
    let mut harness = in_view(&[2, 1]);
    harness.send(Message::bytes(Some(Address::site_master("nyc")), "x").with_flags(Flags::DONT_BUNDLE));
    let [message] = &harness.take_down()[..] else { panic!("one message") };
    assert_eq!(message.dest, Some(member(2)));
    assert!(message.flags.has(Flags::DONT_BUNDLE));
    let header = header(message);
    assert_eq!((header.kind, &header.final_dest), (relay_kind::DATA, &Some(Address::site_master("nyc"))));
    let sender = header.original_sender.as_ref().unwrap();
    assert_eq!(sender.to_string(), "A:lon");
    assert_eq!(sender.uuid(), member(1).uuid());
}

#[test]
fn site_master_routes_to_the_other_sites_master_and_holds_the_senders_credit() {
    let mut harness = in_view(&[1, 2]);
    bridge_view(&mut harness, &[remote(7, "lon"), remote(8, "nyc")]);
    relay_events(&mut harness);
    let mut message =
        relayed(Message::bytes(Some(member(1)), "x"), 1, Some(remote(80, "nyc")), remote(2, "lon"));
    message.credit = 10;
    harness.up(message.sent_by(2));
    let [send] = &sent(&mut harness)[..] else { panic!("one message") };
    assert_eq!((send.bridge, &send.message.dest), (0, &Some(remote(8, "nyc"))));
    assert_eq!(send.credit, Some(HeldCredit { src: member(2), is_multicast: false, bytes: 10 }));
    let header = header(&send.message);
    assert_eq!(header.final_dest, Some(remote(80, "nyc")));
    assert_eq!(header.original_sender, Some(remote(2, "lon")));
    assert_eq!((send.message.credit, &send.message.src), (0, &None));
}

#[test]
fn multicasts_go_once_to_each_site_over_the_first_site_master() {
    let masters = [remote(8, "nyc"), remote(9, "nyc"), remote(10, "sfo")];
    let mut multicast = Message::bytes(None, "x").sent_by(2);
    multicast.credit = 30;
    let mut first = with_masters(2, &[1, 3, 2]);
    bridge_view(&mut first, &masters);
    relay_events(&mut first);
    first.up(multicast.clone());
    let mut sites = Vec::new();
    let mut here = Vec::new();
    for indication in first.take_indications() {
        match indication {
            crate::Indication::Batch(batch) => here.extend(batch.messages),
            crate::Indication::Event(Event::Relay(event)) => {
                let RelayEvent::Send(send) = *event else { panic!("{event:?}") };
                assert_eq!(header(&send.message).final_dest, None);
                assert_eq!(send.credit, Some(HeldCredit { src: member(2), is_multicast: true, bytes: 10 }));
                sites.push(send.message.dest.unwrap().site().unwrap().to_owned());
            }
            crate::Indication::Event(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(sites, ["nyc", "sfo"]);
    assert_eq!(here.iter().map(|message| message.credit).collect::<Vec<_>>(), [10]);

    first.up(Message::bytes(None, "local").with_flags(Flags::NO_RELAY).sent_by(2));
    assert_eq!(sent(&mut first), []);
    first.send(Message { transient: Transient::DONT_LOOPBACK, ..Message::bytes(None, "not looped back") });
    assert_eq!(sent(&mut first).len(), 2);
    assert_eq!(first.take_down().iter().filter(|message| message.is_multicast()).count(), 2, "with SITES_UP");

    let mut second = with_masters(2, &[3, 1, 2]);
    bridge_view(&mut second, &masters);
    second.up(multicast);
    assert_eq!(sent(&mut second), []);
}

#[test]
fn messages_of_a_batch_keep_their_order_and_only_those_for_sites_get_the_header() {
    let mut harness = in_view(&[2, 1]);
    let dests = [Some(member(2)), Some(remote(2, "lon")), Some(member(2)), None, Some(remote(80, "nyc"))];
    let own = [Some(member(1)), Some(Address::site_master("lon"))];
    let messages = dests.into_iter().chain(own).zip(0..);
    harness.send_batch(messages.map(|(dest, n)| Message::bytes(dest, n.to_string())).collect());
    let down = harness.take_down();
    let has_header = |message: &Message| message.headers.get(ProtocolId::RELAY2).is_some();
    let text = |message: &Message| str::from_utf8(message.payload_bytes().unwrap()).unwrap().to_owned();
    let texts: Vec<String> = down.iter().map(text).collect();
    assert_eq!(texts.join(" "), "0 1 2 3 4 5 6");
    let with_header: Vec<String> = down.iter().filter(|message| has_header(message)).map(text).collect();
    assert_eq!(with_header.join(" "), "1 4 6");
}

#[test]
fn without_relay_multicasts_no_multicast_leaves_the_site() {
    let mut relay = layer(1);
    relay.settings.relay_multicasts = false;
    let mut harness = Harness::new(relay);
    harness.raise(Event::View(view(1, &[1, 2])));
    bridge_view(&mut harness, &[remote(8, "nyc")]);
    relay_events(&mut harness);
    assert_eq!(harness.up(Message::bytes(None, "x").sent_by(2)).take_up().len(), 1);
    harness.send(Message::bytes(Some(remote(80, "nyc")), "unicast"));
    assert_eq!(sent(&mut harness).len(), 1);
}

#[test]
fn multicast_of_another_site_is_delivered_under_its_sender_and_its_credit_is_the_masters() {
    let mut harness = in_view(&[2, 1]);
    let mut message = relayed(Message::bytes(None, "x"), 1, None, remote(8, "nyc"));
    message.credit = 5;
    let [got] = &harness.up(message.sent_by(2)).take_up()[..] else { panic!("one message") };
    assert_eq!((&got.src, &got.dest), (&Some(remote(8, "nyc")), &None));
    assert_eq!(got.headers.get(ProtocolId::RELAY2), None);
    let mut relay = layer(1);
    relay.creditors[1].note(&remote(8, "nyc"), Some(&member(2)), 5);
    assert_eq!(relay.owed_below(&remote(8, "nyc"), true, 5).unwrap()[..], [(member(2), 5)]);
    assert_eq!(relay.owed_below(&remote(8, "nyc"), false, 5), None);
}

#[test]
fn messages_of_a_bridge_are_multicast_or_go_to_their_member() {
    let mut harness = in_view(&[1, 2]);
    relay_events(&mut harness);
    let mut input = |dest: Option<Address>, sender: Address| {
        let message = relayed(Message::bytes(Some(remote(7, "lon")), "x"), 1, dest, sender);
        from_bridge(&mut harness, BridgeInput::Message { bridge: 0, message: message.sent_by(8) });
        harness.take_down().pop().map(|message| (message.dest.clone(), header(&message).clone()))
    };
    let nyc = remote(80, "nyc");
    let (dest, header) = input(None, nyc.clone()).unwrap();
    assert_eq!((dest, header.final_dest, header.original_sender), (None, None, Some(nyc.clone())));
    let (dest, header) = input(Some(remote(2, "lon")), nyc.clone()).unwrap();
    assert_eq!((dest, header.final_dest), (Some(member(2)), Some(remote(2, "lon"))));
    let (dest, _) = input(Some(Address::site_master("lon")), nyc.clone()).unwrap();
    assert_eq!(dest, Some(member(1)), "through the own stack, which bounds what waits");
    assert_eq!(input(Some(remote(3, "lon")), nyc.clone()), None, "no member");
    assert_eq!(input(Some(remote(3, "sfo")), nyc), None, "no route");
    assert_eq!(input(None, remote(2, "lon")), None, "a sender of the own site is a forgery");
    assert_eq!(input(None, member(80)), None);
    assert_eq!(harness.stack.shared().drops.iter().map(|(_, _, count)| count).sum::<u64>(), 4);
    assert_eq!(relay_events(&mut harness), []);
}

/// Reports bytes that wait for destinations.
pub(super) struct Queues(pub(super) Vec<(Option<Address>, u64)>);

impl Protocol for Queues {
    fn name(&self) -> &'static str {
        "QUEUES"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::UFC
    }

    fn queued_bytes(&self, dest: Option<&Address>) -> u64 {
        self.0.iter().filter(|(of, _)| of.as_ref() == dest).map(|(_, bytes)| bytes).sum()
    }
}

#[test]
fn headers_of_messages_of_bridges_are_bounded() {
    let passes = |bytes: usize, dest: Option<Address>| {
        let mut harness = in_view(&[1, 2]);
        let text = HeaderBody::Info(Box::new(vec![(Some("x".repeat(bytes)), None)]));
        let message = Message::empty(Some(remote(7, "lon"))).with_header(ProtocolId(200), text).sent_by(8);
        let message = relayed(message, 1, dest, remote(80, "nyc"));
        from_bridge(&mut harness, BridgeInput::Message { bridge: 0, message });
        !harness.take_down().is_empty()
    };
    for dest in [None, Some(remote(2, "lon"))] {
        assert!(passes(INBOUND_HEADERS_MAX - 100, dest.clone()));
        assert!(!passes(INBOUND_HEADERS_MAX, dest));
    }
}

#[test]
fn messages_of_bridges_that_wait_are_bounded_for_each_destination_and_together() {
    let passes = |queued: &[(u64, u64)], multicasts: u64, dest: u64| {
        let mut queues: Vec<_> = queued.iter().map(|&(n, bytes)| (Some(member(n)), bytes)).collect();
        queues.push((None, multicasts));
        let mut harness = Harness::with_layers(1, vec![Box::new(Queues(queues)), Box::new(layer(1))]);
        harness.raise(Event::View(view(1, &[1, 2, 3, 4, 5, 6, 7])));
        let message = Message::bytes(Some(remote(7, "lon")), "x").sent_by(8);
        let message = relayed(message, 1, Some(remote(dest, "lon")), remote(80, "nyc"));
        from_bridge(&mut harness, BridgeInput::Message { bridge: 0, message });
        let passed = !harness.take_down().is_empty();
        assert_eq!(u64::from(!passed), harness.stack.shared().drops.total(DropReason::QueueFull));
        passed
    };
    const LAST: u64 = INBOUND_BYTES_MAX - 1;
    assert!(passes(&[(2, LAST)], 0, 2));
    assert!(!passes(&[(2, INBOUND_BYTES_MAX)], 0, 2));
    let long = [(2, LAST), (3, LAST), (4, LAST), (5, LAST)];
    assert!(passes(&long, 0, 5));
    assert!(!passes(&long, 4, 5), "INBOUND_TOTAL_MAX, multicasts included");
    assert!(passes(&long, 4, 6), "less than an equal part");
}

#[test]
fn sender_gets_an_event_if_a_site_is_unreachable() {
    let mut master = in_view(&[1, 2]);
    relay_events(&mut master);
    master.send(Message::bytes(Some(remote(80, "nyc")), "x"));
    assert_eq!(relay_events(&mut master), [RelayEvent::SiteUnreachable("nyc".into())]);
    let message = relayed(Message::bytes(Some(member(1)), "x"), 1, Some(remote(80, "nyc")), remote(2, "lon"));
    master.up(message.sent_by(2));
    let [answer] = &master.take_down()[..] else { panic!("one message") };
    assert_eq!((&answer.dest, answer.flags), (&Some(member(2)), Flags::OOB));
    let header = header(answer);
    assert_eq!(header.kind, relay_kind::SITE_UNREACHABLE);
    assert_eq!(header.final_dest, Some(Address::site_master("nyc")));

    let mut other = in_view(&[2, 1]);
    let mut answer = answer.clone();
    answer.dest = Some(member(1));
    other.up(answer.sent_by(2));
    assert_eq!(relay_events(&mut other), [RelayEvent::SiteUnreachable("nyc".into())]);
}

#[test]
fn members_hear_of_sites_once_and_joiners_of_those_that_are_up() {
    let mut master = in_view(&[1, 2]);
    relay_events(&mut master);
    bridge_view(&mut master, &[remote(7, "lon"), remote(8, "nyc")]);
    assert_eq!(relay_events(&mut master), [RelayEvent::SitesUp(vec!["nyc".into()])]);
    let announced = |master: &mut Harness| -> Vec<(Option<Address>, u8)> {
        master.take_down().iter().map(|message| (message.dest.clone(), header(message).kind)).collect()
    };
    assert_eq!(announced(&mut master), [(None, relay_kind::SITES_UP)]);
    bridge_view(&mut master, &[remote(7, "lon"), remote(8, "nyc"), remote(9, "nyc")]);
    assert_eq!((relay_events(&mut master), announced(&mut master)), (vec![], vec![]));
    master.raise(Event::View(view(2, &[1, 2, 3])));
    assert_eq!(announced(&mut master), [(Some(member(3)), relay_kind::SITES_UP)]);
    bridge_view(&mut master, &[]);
    assert_eq!(announced(&mut master), [(None, relay_kind::SITES_DOWN)]);
    assert_eq!(relay_events(&mut master), [RelayEvent::SitesDown(vec!["nyc".into()])]);

    let mut other = in_view(&[2, 1]);
    let mut announce = |kind, sites: &[&str]| {
        let mut header = RelayHeader::new(kind, None, None);
        header.sites = sites.iter().map(|site| Some((*site).to_owned())).collect();
        let message =
            Message::empty(None).with_header(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
        other.up(message.sent_by(2));
        relay_events(&mut other)
    };
    // JGroups announces the own site, too.
    let up = announce(relay_kind::SITES_UP, &["lon", "nyc"]);
    assert_eq!(up, [RelayEvent::SitesUp(vec!["nyc".into()])]);
    assert_eq!(announce(relay_kind::SITES_UP, &["nyc"]), []);
    assert_eq!(announce(relay_kind::SITES_DOWN, &["sfo"]), []);
    assert_eq!(announce(relay_kind::SITES_DOWN, &["nyc"]), [RelayEvent::SitesDown(vec!["nyc".into()])]);
    let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
    assert_eq!(announce(relay_kind::SITES_UP, &[&long]), []);
    let many: Vec<String> = (0..SITES_MAX + 5).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let [RelayEvent::SitesUp(up)] = &announce(relay_kind::SITES_UP, &many)[..] else { panic!("one event") };
    assert_eq!(up.len(), SITES_MAX);
}

#[test]
fn new_first_site_master_tells_all_members_which_sites_are_up_and_after_a_merge_it_does_so_again() {
    let mut harness = in_view(&[2, 1, 3]);
    let mut header = RelayHeader::new(relay_kind::SITES_UP, None, None);
    header.sites = vec![Some("nyc".to_owned())];
    let up = Message::empty(None).with_header(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
    harness.up(up.sent_by(2));
    let mut announced = |view: View| -> Vec<(Option<Address>, u8)> {
        harness.raise(Event::View(view));
        harness.take_down().iter().map(|message| (message.dest.clone(), self::header(message).kind)).collect()
    };
    let to_all = [(None, relay_kind::SITES_UP)];
    assert_eq!(announced(view(2, &[1, 3])), to_all, "the former one may not have told the latest joiner");
    assert_eq!(announced(view(3, &[1])), []);
    let both = view(4, &[1, 3]);
    let subgroups = [view(3, &[1]), view(3, &[3])];
    let merged = View::merged(both.id().clone(), both.members().to_vec(), subgroups.clone());
    assert_eq!(announced(merged), to_all, "a member of another group may have been alone");

    bridge_view(&mut harness, &[]);
    harness.take_down();
    let again = view(5, &[1, 3]);
    harness.raise(Event::View(View::merged(again.id().clone(), again.members().to_vec(), subgroups)));
    let kinds: Vec<u8> = harness.take_down().iter().map(|message| self::header(message).kind).collect();
    assert_eq!(kinds, [relay_kind::SITES_DOWN], "a member that was apart may take the site for reachable");
}

/// S000-61
#[test]
fn member_keeps_its_site_master_while_it_is_one() {
    let mut harness = with_masters(3, &[2, 1]);
    let mut own = |members: &[u64], id| {
        harness.raise(Event::View(view(id, members)));
        harness.stack.attribute("RELAY2", "own_site_master").unwrap()
    };
    let before = own(&[2, 3, 4, 1], 2);
    let survivor = if before == member(3).to_string() { 4 } else { 3 };
    assert_eq!(own(&[2, 3, 4, 5, 1], 3), before);
    if before != member(2).to_string() {
        assert_eq!(own(&[survivor, 2, if survivor == 3 { 4 } else { 3 }, 1], 4), before);
    }
    assert_eq!(own(&[9, 1], 5), member(1).to_string(), "a site master that has to choose is its own");
    assert_eq!(own(&[8, 9, 1], 6), member(1).to_string());
}

#[test]
fn message_for_masters_at_a_member_that_is_none_goes_to_one_and_not_back() {
    let mut harness = in_view(&[2, 1, 3]);
    let message =
        || relayed(Message::bytes(Some(member(1)), "x"), 1, Some(remote(80, "nyc")), remote(3, "lon"));
    harness.up(message().sent_by(3));
    let down = harness.take_down();
    assert_eq!((&down[0].dest, header(&down[0]).kind), (&Some(member(2)), relay_kind::DATA));
    harness.up(message().sent_by(2));
    let down = harness.take_down();
    assert_eq!((&down[0].dest, header(&down[0]).kind), (&Some(member(2)), relay_kind::SITE_UNREACHABLE));
}

#[test]
fn site_address_waits_with_the_messages_of_its_first_hop() {
    let harness = in_view(&[2, 1]);
    let layer = |n| harness.stack.layers().nth(n).unwrap().0;
    assert_eq!(layer(1), "RELAY2");
    let mut relay = layer_with_master(member(2));
    assert_eq!(relay.first_hop(&Address::site_master("nyc")), Some(member(2)));
    assert_eq!(relay.first_hop(&Address::site_master("lon")), Some(member(2)));
    assert_eq!(relay.first_hop(&remote(5, "lon")), Some(member(5)));
    assert_eq!(relay.first_hop(&member(5)), None);
    relay.is_own_master = true;
    assert_eq!(relay.first_hop(&Address::site_master("nyc")), None);
}

fn layer_with_master(master: Address) -> Relay {
    Relay { own_master: Some(master), ..layer(1) }
}

#[test]
fn requests_for_the_topology_are_answered_to_members_while_few_bytes_wait_for_them() {
    let answers = |queued: u64, from: u64| {
        let queues = Queues(vec![(Some(member(from)), queued)]);
        let mut harness = Harness::with_layers(1, vec![Box::new(queues), Box::new(layer(1))]);
        harness.raise(Event::View(view(1, &[1, 2])));
        let request = relayed(Message::empty(Some(member(1))), relay_kind::TOPO_REQ, None, member(from));
        harness.up(request.sent_by(from));
        harness.take_down().len()
    };
    assert_eq!((answers(0, 2), answers(INBOUND_BYTES_MAX - 1, 2), answers(INBOUND_BYTES_MAX, 2)), (1, 1, 0));
    assert_eq!(answers(0, 3), 0);
}

#[test]
fn topology_is_answered_as_text() {
    let mut harness = in_view(&[1, 2]);
    harness.up(relayed(Message::empty(Some(member(1))), relay_kind::TOPO_REQ, None, member(2)).sent_by(2));
    let down = harness.take_down();
    let answer = header(&down[0]);
    assert_eq!((answer.kind, &down[0].dest), (relay_kind::TOPO_RSP, &Some(member(2))));
    let text = answer.sites[0].as_deref().unwrap();
    assert!(text.starts_with("lon\n") && text.contains("(me) // site master"), "{text}");
    assert_eq!(harness.stack.shared().drops.total(DropReason::Unexpected), 0);
}
