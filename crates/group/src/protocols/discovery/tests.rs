use std::time::Duration;

use super::*;
use crate::Payload;
use crate::harness::{Harness, member, phys, view};

const TIMEOUT: Duration = Duration::from_secs(2);

fn tcpping() -> Harness {
    let hosts = Hosts::parse("127.0.0.1[7801],127.0.0.1[7802],127.0.0.1[7803]", 7800).unwrap();
    let config = TcpPingConfig { port_range: 0, ..TcpPingConfig::default() };
    let source = Source::TcpPing(Hosts::new(config, hosts));
    let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
    harness.stack.handle_connect(harness.now, "demo");
    harness.stack.run(harness.now);
    harness.take_down_events();
    harness
}

fn response(from: u64, is_coordinator: bool) -> Message {
    let data = PingData {
        sender: member(from),
        is_server: true,
        is_coordinator,
        name: Some("X".into()),
        phys: Some(phys(from as u16)),
        wanted: None,
    };
    let header = PingHeader { kind: PingKind::Response, cluster: None, initial_discovery: false };
    Message::bytes(Some(member(1)), wire::encode_ping_data(&[data]))
        .with_header(ProtocolId::TCPPING, HeaderBody::Ping(Box::new(header)))
        .sent_by(from)
}

fn request(from: u64, cluster: &str, wanted: Option<Vec<Address>>) -> Message {
    let data = PingData {
        sender: member(from),
        is_server: false,
        is_coordinator: false,
        name: Some("X".into()),
        phys: Some(phys(from as u16)),
        wanted,
    };
    let header =
        PingHeader { kind: PingKind::Request, cluster: Some(cluster.into()), initial_discovery: true };
    Message::bytes(Some(Address::Ip(phys(1))), wire::encode_ping_data(&[data]))
        .with_header(ProtocolId::TCPPING, HeaderBody::Ping(Box::new(header)))
        .sent_by(from)
}

fn found(harness: &mut Harness) -> Option<Vec<Address>> {
    harness.take_up_events().into_iter().find_map(|event| match event {
        Event::Found(list) => Some(list.into_iter().map(|data| data.sender).collect()),
        _ => None,
    })
}

#[test]
fn a_request_goes_to_every_host_except_this_member() {
    let mut harness = tcpping();
    harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
    let sent = harness.take_down();
    let dests: Vec<_> = sent.iter().map(|message| message.dest.clone()).collect();
    assert_eq!(dests, [Some(Address::Ip(phys(2))), Some(Address::Ip(phys(3)))]);
    assert!(sent.iter().all(|message| message.flags == Flags::OOB | Flags::DONT_BUNDLE));
}

#[test]
fn a_join_ends_at_the_first_coordinator() {
    let mut harness = tcpping();
    harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
    harness.up(response(2, false));
    assert_eq!(found(&mut harness), None);
    harness.up(response(3, true));
    assert_eq!(found(&mut harness), Some(vec![member(2), member(3)]));
    assert_eq!(harness.stack.shared().book.phys(&member(3)), Some(phys(3)));
}

#[test]
fn a_join_without_answers_ends_at_the_timeout() {
    let mut harness = tcpping();
    harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
    harness.advance(TIMEOUT);
    assert_eq!(found(&mut harness), Some(vec![]));
}

#[test]
fn requests_get_a_response_unless_they_look_for_other_members() {
    let mut harness = tcpping();
    harness.up(request(2, "demo", None));
    let sent = harness.take_down();
    assert_eq!((sent.len(), sent[0].dest.clone()), (1, Some(member(2))));
    harness.up(request(2, "other", None)).up(request(2, "demo", Some(vec![member(3)])));
    assert_eq!(harness.take_down(), []);
    harness.up(request(2, "demo", Some(vec![member(1)])));
    assert_eq!(harness.take_down().len(), 1);
}

#[test]
fn the_response_says_whether_this_member_is_coordinator() {
    let mut harness = tcpping();
    harness.install(view(1, &[1, 3]));
    harness.take_down();
    harness.up(request(2, "demo", None));
    let sent = harness.take_down();
    let data = wire::decode_ping_data(sent[0].payload_bytes().unwrap()).unwrap();
    assert!(data[0].is_coordinator);
}

/// Returns the members whose data the local member sends for a request of MERGE3.
fn answered_for(harness: &mut Harness, from: u64, is_initial: bool) -> Vec<Address> {
    let mut request = request(from, "demo", None);
    let header =
        PingHeader { kind: PingKind::Request, cluster: Some("demo".into()), initial_discovery: is_initial };
    request.headers.take(ProtocolId::TCPPING);
    harness.up(request.with_header(ProtocolId::TCPPING, HeaderBody::Ping(Box::new(header))));
    let sent = harness.take_down();
    assert!(sent.iter().all(|message| message.dest == Some(member(from))), "{sent:?}");
    let data =
        sent.iter().flat_map(|message| wire::decode_ping_data(message.payload_bytes().unwrap()).unwrap());
    data.map(|data| data.sender).collect()
}

#[test]
fn member_of_another_view_also_learns_of_the_coordinator() {
    let mut harness = tcpping();
    harness.learn(4).learn(5);
    harness.install(view(1, &[4, 1, 5]));
    harness.take_down();
    assert_eq!(answered_for(&mut harness, 2, false), [member(1), member(4)]);
    assert_eq!(answered_for(&mut harness, 2, true), [member(1)], "joiners ask coordinators themselves");
    assert_eq!(
        answered_for(&mut harness, 5, false),
        [member(1)],
        "a member of the view knows its coordinator"
    );
    harness.install(view(2, &[1, 4, 5]));
    harness.take_down();
    assert_eq!(answered_for(&mut harness, 2, false), [member(1)], "the coordinator answers for itself");
}

#[test]
fn process_at_the_place_of_an_ended_coordinator_does_not_learn_of_that() {
    let mut harness = tcpping();
    harness.install(view(1, &[4, 1]));
    for (place, answered) in [(phys(2), vec![member(1)]), (phys(4), vec![member(1), member(4)])] {
        let mut message = response(4, true);
        let mut data = wire::decode_ping_data(message.payload_bytes().unwrap()).unwrap();
        data[0].phys = Some(place);
        message.payload = Payload::Bytes(Some(wire::encode_ping_data(&data)));
        harness.up(message).take_down();
        assert_eq!(answered_for(&mut harness, 2, false), answered);
    }
}

#[test]
fn request_of_a_member_does_not_replace_its_response() {
    let mut harness = tcpping();
    harness.lower(Event::FindMembers { is_initial: true, timeout: TIMEOUT });
    harness.up(request(2, "demo", None)).up(response(2, false)).up(request(2, "demo", None));
    harness.advance(TIMEOUT);
    let found = harness.take_up_events().into_iter().find_map(|event| match event {
        Event::Found(list) => Some(list),
        _ => None,
    });
    assert_eq!(found.unwrap().iter().map(|data| data.is_server).collect::<Vec<_>>(), [true]);
}
