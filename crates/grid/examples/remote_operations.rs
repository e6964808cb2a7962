//! Nanoseconds per read and per write of a key that another member owns: the work of the caller's node and of the owner's node
//! together, without a channel between them. The fastest of several rounds counts.
//!
//! `cargo run --profile quick -p consort-grid --example remote_operations -- [ROUNDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheId, CacheMode, Change, Condition, Container, ContainerSettings, Lifetime, Node,
    ReadFrom, Write,
};
use consort_group::{Address, Time, Uuid, View, ViewId};

/// The allocator of `consort server`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYS: usize = 10_000;
const VALUE_BYTES: usize = 100;
/// Operations under way at a time.
const PIPELINED: usize = 64;
const OPERATIONS: usize = 200_000;
const TIMEOUT: Duration = Duration::from_secs(60);

fn address(n: usize) -> Address {
    Address::Uuid(Uuid { most: 1, least: n as u64 })
}

/// The caller is node 0. Node 1 owns the keys.
struct Pair {
    nodes: [Node; 2],
    cache: CacheId,
    keys: Vec<Bytes>,
}

impl Pair {
    fn start() -> Self {
        let config = CacheConfig { mode: CacheMode::Distributed { owners: 1 }, ..CacheConfig::new("c") };
        let mut nodes = [Node::new(address(0)), Node::new(address(1))];
        let view = View::new(ViewId { creator: address(0), id: 1 }, vec![address(0), address(1)]);
        for (n, node) in nodes.iter_mut().enumerate() {
            let settings = ContainerSettings {
                segment_count: config.segments,
                bound: None,
                is_backed: false,
                is_shared: true,
            };
            node.handle_view(Time::ZERO, &view);
            node.open(Time::ZERO, config.clone(), address(n).into(), Arc::new(Container::new(&settings, 1)))
                .expect("the cache opens");
        }
        let mut pair = Self { nodes, cache: config.id(), keys: Vec::new() };
        let mut now = Time::ZERO;
        for _ in 0..40 {
            pair.carry(0);
            pair.carry(1);
            now = now + Duration::from_millis(250);
            pair.nodes.iter_mut().for_each(|node| node.handle_timeout(now));
        }
        let topology = pair.nodes[1].topology(config.id()).expect("a topology").clone();
        let is_owned = |key: &Bytes| topology.current.primary(config.segment_of(key)) == Some(&address(1));
        let all = (0_u64..).map(|n| Bytes::copy_from_slice(&[n.to_be_bytes(), [0; 8]].concat()));
        pair.keys = all.filter(is_owned).take(KEYS).collect();
        pair
    }

    /// Gives the frames of a node to the other.
    fn carry(&mut self, from: usize) {
        while let Some(frame) = self.nodes[from].poll_frame() {
            self.nodes[1 - from].handle_frame(Time::ZERO, &address(from), frame.bytes).expect("a frame");
        }
    }

    /// Seconds for all operations.
    fn run(&mut self, action: impl Fn() -> Action) -> f64 {
        let begin = Instant::now();
        let mut ended = 0;
        for batch in 0..OPERATIONS / PIPELINED {
            for nth in 0..PIPELINED {
                let key = self.keys[(batch * PIPELINED + nth) * 7 % KEYS].clone();
                self.nodes[0]
                    .submit(Time::ZERO, self.cache, key, action(), TIMEOUT)
                    .expect("room for a call");
            }
            self.carry(0);
            self.carry(1);
            while let Some((_, result)) = self.nodes[0].poll_finished() {
                result.expect("an outcome");
                ended += 1;
            }
        }
        assert_eq!(ended, OPERATIONS / PIPELINED * PIPELINED);
        begin.elapsed().as_secs_f64()
    }
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(10, |rounds| rounds.parse().expect("a number of rounds"));
    let mut pair = Pair::start();
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    let write = || {
        let change = Change::Put { value: value.clone(), lifetime: Lifetime::default() };
        Action::Write(Write { condition: Condition::Always, change, wants_previous: false })
    };
    let read = || Action::Read(ReadFrom::Nearest);
    let mut least = [f64::INFINITY; 2];
    for _ in 0..rounds {
        least = [least[0].min(pair.run(write)), least[1].min(pair.run(read))];
    }
    let [written, read] = least.map(|seconds| seconds / OPERATIONS as f64 * 1e9);
    println!("{written:.0} ns per write, {read:.0} ns per read");
}
