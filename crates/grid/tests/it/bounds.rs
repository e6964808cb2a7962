//! The state that members can make other members keep is bounded.

use std::sync::Arc;

use consort_grid::{CacheConfig, Container, ContainerSettings, Node, NodeEvent, OpenError};
use consort_group::{Address, Time, View, ViewId};

use crate::cluster::address;

/// The coordinator's limit.
const CACHES_MAX: u32 = 8_192;

fn open(node: &mut Node, n: u32, local: Address) {
    let config = CacheConfig { segments: 1, ..CacheConfig::new(&format!("c{n}")) };
    let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: true };
    node.open(Time::ZERO, config, local.into(), Arc::new(Container::new(&settings, 1))).unwrap();
}

fn carry(nodes: &mut [Node; 2]) {
    while let Some((from, frame)) = (0..2).find_map(|n| Some((n, nodes[n].poll_frame()?))) {
        let to = usize::from(frame.dest == address(1));
        nodes[to].handle_frame(Time::ZERO, &address(from), frame.bytes).unwrap();
    }
}

#[test]
fn open_beyond_the_maximum_number_of_caches_fails() {
    let mut nodes = [Node::new(address(0)), Node::new(address(1))];
    let id = ViewId { creator: address(0), id: 1 };
    let view = View::new(id, vec![address(0), address(1)]);
    nodes.iter_mut().for_each(|node| node.handle_view(Time::ZERO, &view));
    carry(&mut nodes);
    for n in 0..=CACHES_MAX {
        open(&mut nodes[1], n, address(1));
        carry(&mut nodes);
    }
    let events = std::iter::from_fn(|| nodes[1].poll_event());
    let refused: Vec<OpenError> = events
        .filter_map(|event| if let NodeEvent::Refused { error, .. } = event { Some(error) } else { None })
        .collect();
    let name = format!("c{CACHES_MAX}");
    assert_eq!(refused, [OpenError::TooMany { cache: name.as_str().into(), limit: CACHES_MAX }]);
    // A member that has the cache open already may join.
    open(&mut nodes[0], 7, address(0));
    carry(&mut nodes);
    let joined = CacheConfig::new("c7").id();
    assert_eq!(nodes[0].topology(joined).unwrap().members.len(), 2);
}
