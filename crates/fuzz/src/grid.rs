use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, Change, Condition, Container, ContainerSettings, Lifetime, ListenOptions, Node,
    Publication, ReadFrom, Write,
};
use consort_group::{Address, Time, Uuid, View, ViewId};

use crate::bounds::{PER_BYTE, bounded_by};
use crate::seen::Seen;

/// The memory for one frame of any content: responses, tables, a segment's first pages.
const AT_LEAST: u64 = 1024 * 1024;

fn address(n: u64) -> Address {
    Address::Uuid(Uuid { most: 3, least: n })
}

/// The first of the two is the coordinator.
struct Pair {
    nodes: [Node; 2],
    now: Time,
    said: Vec<Bytes>,
}

impl Pair {
    fn new() -> Self {
        let node = |n| {
            let mut node = Node::new(address(n));
            let config = CacheConfig { segments: 4, ..CacheConfig::new("fuzzed") };
            let container = Container::new(
                &ContainerSettings { segment_count: 4, bound: None, is_backed: false, is_shared: false },
                1,
            );
            let opened = node.open(Time::ZERO, config, address(n).into(), Arc::new(container));
            opened.unwrap_or_else(|error| panic!("{error}"));
            node
        };
        let mut pair = Self { nodes: [node(0), node(1)], now: Time(1), said: Vec::new() };
        let view = View::new(ViewId { creator: address(0), id: 1 }, [address(0), address(1)]);
        for at in 0..2 {
            pair.nodes[at].handle_view(pair.now, &view);
        }
        pair.talk();
        let cache = CacheConfig::new("fuzzed").id();
        for n in 0..8_u8 {
            let value = Bytes::from(vec![n; 20]);
            let change = Change::Put { value, lifetime: Lifetime::FOREVER };
            let write = Write { condition: Condition::Always, change, wants_previous: n % 2 == 0 };
            let actions = [Action::Write(write), Action::Read(ReadFrom::Primary)];
            for (at, action) in actions.into_iter().enumerate() {
                let key = Bytes::from(vec![b'k', n]);
                let _ = pair.nodes[at].submit(pair.now, cache, key, action, Duration::from_secs(5));
            }
        }
        pair.talk();
        for at in 0..2 {
            let listen = ListenOptions { with_state: at == 0, ..ListenOptions::default() };
            let _ = pair.nodes[at].listen(pair.now, cache, listen);
        }
        pair.talk();
        for n in 0..3_u8 {
            let change = match n {
                0 => Change::Remove,
                _ => Change::Put { value: Bytes::from(vec![n; 9]), lifetime: Lifetime::FOREVER },
            };
            let write = Write { condition: Condition::Always, change, wants_previous: false };
            let key = Bytes::from(vec![b'k', n]);
            let _ = pair.nodes[0].submit(pair.now, cache, key, Action::Write(write), Duration::from_secs(5));
        }
        pair.talk();
        let walk = Publication { batch: 3, ..Publication::default() };
        if let Ok(walk) = pair.nodes[1].iterate(cache, walk) {
            let _ = pair.nodes[1].take(pair.now, cache, walk);
        }
        pair.talk();
        pair
    }

    fn talk(&mut self) {
        for _ in 0..100 {
            let mut is_quiet = true;
            for at in 0..2 {
                while let Some(frame) = self.nodes[at].poll_frame() {
                    is_quiet = false;
                    self.said.push(frame.bytes.clone());
                    let other = &mut self.nodes[1 - at];
                    if *other.local() == frame.dest {
                        let read = other.handle_frame(self.now, &address(at as u64), frame.bytes);
                        read.unwrap_or_else(|error| panic!("a node does not read another's frame: {error}"));
                    }
                }
            }
            if is_quiet {
                break;
            }
        }
    }
}

/// Each member gets the frame as the other's; then time passes.
pub(crate) fn frame(bytes: &[u8]) -> Seen {
    let frame = Bytes::copy_from_slice(bytes);
    let Pair { mut nodes, now, .. } = Pair::new();
    let (is_read, peak) = bounded_by(AT_LEAST + PER_BYTE * bytes.len() as u64, || {
        let mut is_read = false;
        for (at, node) in nodes.iter_mut().enumerate() {
            is_read |= node.handle_frame(now, &address(1 - at as u64), frame.clone()).is_ok();
            for second in 1..4 {
                node.handle_timeout(now + Duration::from_secs(second));
            }
            while node.poll_frame().is_some() {}
            while node.poll_finished().is_some() {}
            while node.poll_event().is_some() {}
        }
        is_read
    });
    Seen::one(is_read, peak)
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    Pair::new().said.iter().map(|frame| frame.to_vec()).collect()
}
