//! Members whose releases speak different versions of the wire protocol: none waits for another, and a member that
//! cannot open a cache gets the reason.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use consort_grid::{
    CacheConfig, Container, ContainerSettings, FrameError, Node, NodeEvent, OpenError, Topology,
};
use consort_group::{Address, Time, View, ViewId};

use crate::cluster::address;

fn config() -> CacheConfig {
    CacheConfig { segments: 16, ..CacheConfig::new("c") }
}

fn view(id: u64, members: &[usize]) -> View {
    let id = ViewId { creator: address(members[0]), id };
    View::new(id, members.iter().map(|&n| address(n)).collect::<Vec<_>>())
}

fn open(node: &mut Node, local: Address) -> Result<(), OpenError> {
    let settings = ContainerSettings { segment_count: 16, bound: None, is_backed: false, is_shared: true };
    node.open(Time::ZERO, config(), local.into(), Arc::new(Container::new(&settings, 1)))
}

fn topology(node: &Node) -> Option<&Topology> {
    node.topology(config().id())
}

/// Carries frames for some seconds: those of member 2 have version 4, and it gets the frames of others as version 4.
fn carry(nodes: &mut [Node]) -> Vec<(usize, FrameError)> {
    let mut told = Vec::new();
    for tick in 0..12 {
        let now = Time::ZERO + Duration::from_millis(250) * tick;
        nodes.iter_mut().for_each(|node| node.handle_timeout(now));
        told.extend(carry_at(now, nodes));
    }
    told
}

fn carry_at(now: Time, nodes: &mut [Node]) -> Vec<(usize, FrameError)> {
    let mut told = Vec::new();
    let is_newer = |n: usize| n >= 2;
    while let Some((from, frame)) = (0..nodes.len()).find_map(|n| Some((n, nodes[n].poll_frame()?))) {
        let Some(to) = (0..nodes.len()).find(|&n| address(n) == frame.dest) else { continue };
        let mut bytes = BytesMut::from(&frame.bytes[..]);
        bytes[1] = if is_newer(from) == is_newer(to) { 3 } else { 4 };
        if let Err(error) = nodes[to].handle_frame(now, &address(from), bytes.freeze()) {
            told.push((to, error));
        }
    }
    told
}

fn refusals(node: &mut Node) -> Vec<OpenError> {
    let events = std::iter::from_fn(|| node.poll_event());
    events
        .filter_map(|event| if let NodeEvent::Refused { error, .. } = event { Some(error) } else { None })
        .collect()
}

#[test]
fn member_with_another_wire_version_is_reported_and_not_waited_for() {
    let mut nodes: Vec<Node> = (0..3).map(|n| Node::new(address(n))).collect();
    let first = view(1, &[0, 1]);
    nodes[..2].iter_mut().for_each(|node| node.handle_view(Time::ZERO, &first));
    (0..2).for_each(|n| open(&mut nodes[n], address(n)).unwrap());
    assert_eq!(carry(&mut nodes), []);
    assert_eq!(topology(&nodes[0]).unwrap().members.len(), 2);

    let three = view(2, &[0, 1, 2]);
    nodes.iter_mut().for_each(|node| node.handle_view(Time::ZERO, &three));
    open(&mut nodes[2], address(2)).unwrap();
    let mut told = carry(&mut nodes);
    told.sort_by_key(|(to, _)| *to);
    let both = "it speaks version 4 of the grid's wire, and this member version 3";
    assert_eq!(
        told.iter().map(|(to, error)| (*to, error.to_string())).collect::<Vec<_>>(),
        [(0, both.to_owned()), (2, both.to_owned())]
    );
    let error =
        OpenError::IncompatibleWire { cache: "c".into(), member: address(0).into(), theirs: 4, ours: 3 };
    assert_eq!(refusals(&mut nodes[2]), std::slice::from_ref(&error));
    assert_eq!(open(&mut nodes[2], address(2)), Err(error), "at once from then on");
    assert_eq!(refusals(&mut nodes[1]), []);

    // The next coordinator asks every member that can respond.
    let without = view(3, &[1, 2]);
    nodes[1..].iter_mut().for_each(|node| node.handle_view(Time::ZERO, &without));
    carry(&mut nodes);
    let left = topology(&nodes[1]).unwrap();
    assert!(!left.contains(&address(0)) || left.away().contains(&address(0)), "{left:?}");
}

#[test]
fn an_old_coordinator_that_speaks_another_version_has_nothing_of_ours() {
    let mut nodes: Vec<Node> = (0..3).map(|n| Node::new(address(n))).collect();
    let all = view(1, &[2, 0, 1]);
    nodes.iter_mut().for_each(|node| node.handle_view(Time::ZERO, &all));
    (0..2).for_each(|n| open(&mut nodes[n], address(n)).unwrap());
    carry(&mut nodes);
    for node in &mut nodes[..2] {
        let error =
            OpenError::IncompatibleWire { cache: "c".into(), member: address(2).into(), theirs: 4, ours: 3 };
        assert_eq!(refusals(node), [error]);
    }
    // Once that member has left, the others have the cache to themselves.
    let rest = view(2, &[0, 1]);
    nodes[..2].iter_mut().for_each(|node| node.handle_view(Time::ZERO, &rest));
    (0..2).for_each(|n| open(&mut nodes[n], address(n)).unwrap());
    carry(&mut nodes);
    assert_eq!(topology(&nodes[1]).unwrap().members.len(), 2);
}
