use super::*;
use crate::harness::{member, phys, view};
use crate::{Indication, Stack, StackSetup, Version, View};

/// A member number and a port.
type Place = (u64, u16);

struct Viewer(Option<(View, Vec<Place>)>);

impl Protocol for Viewer {
    fn name(&self) -> &'static str {
        "VIEWER"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(1999)
    }

    fn operation(&mut self, cx: &mut Cx<'_>, _name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        let (view, places) = self.0.take()?;
        for (member_number, place) in places {
            cx.book().learn(&member(member_number), None, Some(phys(place)));
        }
        cx.install(view);
        None
    }
}

fn stack(n: u64, members: View, places: &[Place]) -> Stack {
    stack_with(TransportLayerConfig::new(TransportKind::Tcp), n, members, places)
}

fn stack_with(config: TransportLayerConfig, n: u64, members: View, places: &[Place]) -> Stack {
    let setup = StackSetup {
        local: member(n),
        name: char::from(b'@' + n as u8).to_string().as_str().into(),
        phys: phys(n as u16),
        has_multicast: false,
        seed: n,
        version: Version::V5_5_7,
    };
    let transport = Transport::new(config);
    let mut stack =
        Stack::new(setup, vec![Box::new(transport), Box::new(Viewer(Some((members, places.to_vec()))))]);
    stack.start(Time::ZERO);
    stack.handle_connect(Time::ZERO, "demo");
    stack.run(Time::ZERO);
    stack.operation(Time::ZERO, "VIEWER", "install", &[]);
    stack.run(Time::ZERO);
    stack
}

fn receive_for(first: &mut Stack, dest: u64) {
    let mut second = stack(2, view(1, &[2, dest]), &[(dest, 1)]);
    second.handle_send(Time::ZERO, Message::bytes(Some(member(dest)), "hello"));
    second.run(Time::ZERO);
    let packet = std::iter::from_fn(|| second.poll_transmit())
        .find(|transmit| matches!(transmit.dest, TransmitDest::One(to) if to == phys(1)))
        .expect("a packet");
    first.handle_receive(Time::ZERO, phys(2), packet.bytes);
    first.run(Time::ZERO);
}

fn logged(stack: &Stack, why: DropReason) -> Vec<Severity> {
    let drops = &stack.shared().drops;
    let all = [Severity::Expected, Severity::Unexpected].into_iter();
    all.filter(|severity| drops.logged("TCP", why, *severity).is_some()).collect()
}

#[test]
fn packets_for_the_process_before_a_restart_are_no_warning() {
    // Members 8 and 9 had this address before. Member 8 is in no view any more; member 9 still is.
    let mut first = stack(1, view(2, &[2, 9, 1]), &[(9, 1)]);
    for former in [8, 9] {
        receive_for(&mut first, former);
    }
    assert_eq!(first.shared().drops.total(DropReason::WrongDestination), 2);
    assert_eq!(logged(&first, DropReason::WrongDestination), [Severity::Expected]);
}

#[test]
fn packets_for_a_member_at_another_address_are_a_warning() {
    let mut first = stack(1, view(2, &[2, 3, 1]), &[(3, 3)]);
    receive_for(&mut first, 8);
    receive_for(&mut first, 3);
    assert_eq!(logged(&first, DropReason::WrongDestination), [Severity::Expected, Severity::Unexpected]);
}

#[test]
fn packets_before_a_restarted_member_has_connected_are_no_warning() {
    let setup = StackSetup {
        local: member(1),
        name: "A".into(),
        phys: phys(1),
        has_multicast: false,
        seed: 1,
        version: Version::V5_5_7,
    };
    let transport = Transport::new(TransportLayerConfig::new(TransportKind::Tcp));
    let mut first = Stack::new(setup, vec![Box::new(transport)]);
    first.start(Time::ZERO);
    receive_for(&mut first, 8);
    assert_eq!(logged(&first, DropReason::WrongCluster), [Severity::Expected]);
}

fn suspected_after_loss(stack: &mut Stack, place: u16) -> Vec<Address> {
    while stack.poll_indication().is_some() {}
    stack.handle_peer_lost(Time::ZERO, phys(place), false);
    stack.run(Time::ZERO);
    let mut suspected = Vec::new();
    while let Some(indication) = stack.poll_indication() {
        match indication {
            Indication::Event(Event::Suspect(members)) => suspected.extend(members),
            other => panic!("{other:?}"),
        }
    }
    suspected
}

#[test]
fn end_of_a_members_stream_is_passed_up_and_a_reset_is_not() {
    let mut stack = stack(1, view(1, &[1, 2]), &[(1, 1), (2, 2)]);
    while stack.poll_indication().is_some() {}
    stack.handle_peer_lost(Time::ZERO, phys(2), false);
    stack.handle_peer_lost(Time::ZERO, phys(3), true);
    stack.run(Time::ZERO);
    assert!(stack.poll_indication().is_none());
    stack.handle_peer_lost(Time::ZERO, phys(2), true);
    stack.run(Time::ZERO);
    let ended = stack.poll_indication();
    assert!(matches!(ended, Some(Indication::Event(Event::StreamEnded(members))) if members == [member(2)]));
}

#[test]
fn member_whose_connection_breaks_is_suspected_if_that_is_enabled() {
    let places = [(1, 1), (2, 2), (3, 3), (8, 8)];
    let stack_with = |enable_suspect_events| {
        let config =
            TransportLayerConfig { enable_suspect_events, ..TransportLayerConfig::new(TransportKind::Tcp) };
        stack_with(config, 1, view(1, &[1, 2, 3]), &places)
    };
    assert_eq!(suspected_after_loss(&mut stack_with(false), 2), []);
    let mut stack = stack_with(true);
    assert_eq!(suspected_after_loss(&mut stack, 2), [member(2)]);
    assert_eq!(suspected_after_loss(&mut stack, 8), [], "not a member");
    assert_eq!(suspected_after_loss(&mut stack, 1), [], "this member");
    assert_eq!(stack.attribute("TCP", "num_suspect_events").as_deref(), Some("1"));
    stack.handle_disconnect(Time::ZERO);
    stack.run(Time::ZERO);
    assert_eq!(suspected_after_loss(&mut stack, 3), [], "the connections of a leaving member are closed");
}
