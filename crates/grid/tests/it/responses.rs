//! Values in transfer from their owner to a reader are bounded at both: the reader requests as many bytes as it
//! accepts, and the owner carries out reads only while there is room for the responses, and each of them once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{
    Action, CacheConfig, CacheMode, Change, Condition, Container, ContainerSettings, Lifetime, Node,
    OperationError, Outcome, ReadFrom, ResponseLimits, SubmitOptions, Write,
};
use consort_group::{Address, Time, View, ViewId};

use crate::cluster::address;

const VALUE_BYTES: usize = 1024 * 1024;
const BURST_BYTES: u64 = 4 * 1024 * 1024;
const READS: usize = 200;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the maximum bytes of values that an owner may be sending to a reader.
fn owner_bytes_max() -> u64 {
    ResponseLimits::default().owner_bytes
}

/// The reader is node 0. Node 1 owns the key.
struct Pair {
    nodes: [Node; 2],
    now: Time,
    key: Bytes,
}

impl Pair {
    fn new() -> Self {
        let config = CacheConfig { mode: CacheMode::Distributed { owners: 1 }, ..CacheConfig::new("c") };
        let mut nodes = [Node::new(address(0)), Node::new(address(1))];
        let id = ViewId { creator: address(0), id: 1 };
        let view = View::new(id, vec![address(0), address(1)]);
        for (n, node) in nodes.iter_mut().enumerate() {
            let settings = ContainerSettings {
                segment_count: config.segments,
                bound: None,
                is_backed: false,
                is_shared: true,
            };
            node.handle_view(Time::ZERO, &view);
            node.open(Time::ZERO, config.clone(), address(n).into(), Arc::new(Container::new(&settings, 1)))
                .unwrap();
        }
        let mut pair = Self { nodes, now: Time::ZERO, key: Bytes::new() };
        for _ in 0..40 {
            pair.carry(0);
            pair.carry(1);
            pair.pass(Duration::from_millis(250));
        }
        let topology = pair.nodes[1].topology(config.id()).expect("a topology").clone();
        let is_its = |key: &Bytes| topology.current.primary(config.segment_of(key)) == Some(&address(1));
        pair.key = (0_u32..).map(|n| Bytes::copy_from_slice(&n.to_be_bytes())).find(is_its).expect("a key");
        let change = Change::Put { value: vec![7; VALUE_BYTES].into(), lifetime: Lifetime::default() };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        pair.nodes[1].submit(pair.now, config.id(), pair.key.clone(), Action::Write(write), TIMEOUT).unwrap();
        pair
    }

    /// Delivers the frames of a node to the other one. Returns their bytes.
    fn carry(&mut self, from: usize) -> usize {
        let mut bytes = 0;
        while let Some(frame) = self.nodes[from].poll_frame() {
            bytes += frame.bytes.len();
            self.nodes[1 - from].handle_frame(self.now, &address(from), frame.bytes).unwrap();
        }
        bytes
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for node in &mut self.nodes {
            if node.poll_timeout().is_some_and(|at| at <= self.now) {
                node.handle_timeout(self.now);
            }
        }
    }

    fn read(&mut self, count: usize) {
        let cache = CacheConfig::new("c").id();
        for _ in 0..count {
            let read = Action::Read(ReadFrom::Nearest);
            self.nodes[0].submit(self.now, cache, self.key.clone(), read, TIMEOUT).unwrap();
        }
    }

    fn room(&mut self, is_open: bool) {
        let reader: Address = address(0);
        let now = self.now;
        self.nodes[1].handle_room(|| now, &reader, is_open, BURST_BYTES);
    }

    /// Returns the number of reads that have ended with the value.
    fn ended(&mut self) -> usize {
        let finished = std::iter::from_fn(|| self.nodes[0].poll_finished());
        let is_value = |outcome: Outcome| matches!(outcome, Outcome::Read(Some(read)) if read.value.len() == VALUE_BYTES);
        finished.map(|(_, result)| assert!(is_value(result.expect("read")))).count()
    }
}

/// Exchanges frames until the pair is quiet. Returns their bytes, and the number of operations of the reader that
/// have ended with the value.
fn finish(pair: &mut Pair) -> (usize, usize) {
    let (mut bytes, mut ended) = (0, pair.ended());
    loop {
        let (asked, said) = (pair.carry(0), pair.carry(1));
        bytes += said;
        ended += pair.ended();
        if asked + said == 0 {
            return (bytes, ended);
        }
        pair.room(true);
    }
}

#[test]
fn owner_prepares_no_more_responses_than_there_is_room_for() {
    let mut pair = Pair::new();
    pair.room(true);
    pair.read(READS);
    let bound = BURST_BYTES as usize + 2 * VALUE_BYTES;
    let (mut bytes, mut ended) = (0, 0);
    while ended < READS {
        pair.carry(0);
        let unsent = pair.nodes[1].stats().unsent_bytes(&address(0));
        assert!(unsent <= bound, "{unsent}");
        bytes += pair.carry(1);
        ended += pair.ended();
        pair.room(true);
    }
    assert!(bytes < READS * (VALUE_BYTES + 1_000), "each read is answered once: {bytes}");
    assert!(pair.nodes[1].stats().counters().held > 0);
}

#[test]
fn reader_asks_for_no_more_bytes_than_it_takes_of_an_owner() {
    let mut pair = Pair::new();
    for count in [10, READS, 1_000] {
        pair.read(count);
        let (mut bytes, mut ended) = (0, 0);
        while ended < count {
            pair.carry(0);
            let load = pair.nodes[0].stats().response_load();
            assert!(load.reserved_bytes_of_one <= owner_bytes_max(), "{load:?}");
            let unsent = pair.nodes[1].stats().unsent_bytes(&address(0));
            assert!(unsent <= owner_bytes_max() as usize + 100_000, "{unsent}");
            bytes += pair.carry(1);
            ended += pair.ended();
        }
        assert!(bytes < count * (VALUE_BYTES + 1_000), "each value is sent once: {bytes}");
        let load = pair.nodes[0].stats().response_load();
        assert_eq!((load.waiting, load.reserved_bytes), (0, 0));
    }
}

/// A conditional write whose condition does not hold changes nothing and returns the present value, as a read does.
fn refused_write() -> Action {
    let change = Change::Put { value: Bytes::from_static(b"v"), lifetime: Lifetime::default() };
    Action::Write(Write { condition: Condition::Absent, change, wants_previous: true })
}

#[test]
fn previous_values_of_writes_are_bounded_as_values_that_are_read() {
    let mut pair = Pair::new();
    let cache = CacheConfig::new("c").id();
    for _ in 0..READS {
        pair.nodes[0].submit(pair.now, cache, pair.key.clone(), refused_write(), TIMEOUT).unwrap();
    }
    let (mut bytes, mut ended) = (0, 0);
    while ended < READS {
        pair.carry(0);
        let unsent = pair.nodes[1].stats().unsent_bytes(&address(0));
        assert!(unsent <= owner_bytes_max() as usize + 100_000, "{unsent}");
        bytes += pair.carry(1);
        while let Some((_, result)) = pair.nodes[0].poll_finished() {
            let Ok(Outcome::Written(written)) = result else { panic!("{result:?}") };
            assert!(!written.is_done && written.previous.is_some_and(|one| one.value.len() == VALUE_BYTES));
            ended += 1;
        }
    }
    assert!(bytes < READS * (VALUE_BYTES + 1_000), "{bytes}");
}

#[test]
fn operation_whose_caller_takes_no_large_value_fails_with_its_size_and_changes_nothing() {
    let mut pair = Pair::new();
    let cache = CacheConfig::new("c").id();
    let (key, now) = (pair.key.clone(), pair.now);
    let limit = 100_000;
    let limited = SubmitOptions { timeout: TIMEOUT, response_bytes_max: limit, ..SubmitOptions::default() };
    let change = Change::Put { value: Bytes::from_static(b"v"), lifetime: Lifetime::default() };
    let put = Action::Write(Write { condition: Condition::Always, change, wants_previous: true });
    for action in [Action::Read(ReadFrom::Nearest), Action::Read(ReadFrom::Primary), put.clone()] {
        pair.nodes[0].submit_with(now, cache, key.clone(), action, limited).unwrap();
        assert_eq!((pair.carry(0) > 0, pair.carry(1) < 1_000), (true, true));
        let (_, result) = pair.nodes[0].poll_finished().expect("an end");
        assert_eq!(result, Err(OperationError::LargeResponse { bytes: VALUE_BYTES as u32, limit }));
    }
    pair.read(1);
    assert_eq!(finish(&mut pair).1, 1, "the value is there");
    let roomy = SubmitOptions { response_bytes_max: VALUE_BYTES as u32, ..limited };
    pair.nodes[0].submit_with(pair.now, cache, key, put, roomy).unwrap();
    while pair.carry(0) + pair.carry(1) > 0 {}
    let (_, result) = pair.nodes[0].poll_finished().expect("an end");
    assert!(matches!(result, Ok(Outcome::Written(written)) if written.is_done), "there is room for it");
}

#[test]
fn repeated_read_is_not_answered_again_while_its_response_waits_or_is_on_its_way() {
    let mut pair = Pair::new();
    pair.room(true);
    pair.read(1);
    // The owner responds with the size of the value, and gets a request for it.
    assert!(pair.carry(0) > 0 && pair.carry(1) < 1_000 && pair.carry(0) > 0);
    // The response is in transfer, and arrives late.
    let response = pair.nodes[1].poll_frame().expect("a response");
    pair.room(false);
    pair.read(READS);
    pair.carry(0);
    let held = pair.nodes[1].stats().response_load().held_bytes;
    assert!(held > 0);
    for _ in 0..20 {
        pair.pass(Duration::from_millis(250));
        pair.carry(0);
    }
    assert!(
        pair.nodes[0].stats().counters().repeated > READS as u64,
        "{:?}",
        pair.nodes[0].stats().counters()
    );
    assert_eq!(pair.nodes[1].stats().unsent_bytes(&address(0)), 0, "nothing is prepared");
    assert_eq!(pair.nodes[1].stats().response_load().held_bytes, held, "no read waits twice");
    pair.nodes[0].handle_frame(pair.now, &address(1), response.bytes).unwrap();
    assert_eq!(pair.ended(), 1);
    pair.room(true);
    let (bytes, ended) = finish(&mut pair);
    assert_eq!(ended, READS);
    assert!(bytes < READS * (VALUE_BYTES + 1_000), "{bytes}");
}

/// A large response takes long: until that time is over its owner does not count as silent, and the request is not
/// repeated.
#[test]
fn read_is_not_repeated_within_the_time_that_its_response_takes() {
    let mut pair = Pair::new();
    pair.read(12);
    assert!(pair.carry(0) > 0 && pair.carry(1) < 2_000 && pair.carry(0) > 0);
    let before = pair.nodes[0].stats().counters().repeated;
    // 12 MiB take 3 s at 4 MiB/s, and the reader waits 1 s in addition.
    for (span, is_repeated) in [(3_750, false), (1_000, true)] {
        for _ in 0..span / 250 {
            pair.pass(Duration::from_millis(250));
        }
        assert_eq!(pair.nodes[0].stats().counters().repeated > before, is_repeated, "after {span} ms");
    }
}

#[test]
fn reads_of_a_member_that_has_gone_wait_no_more() {
    let mut pair = Pair::new();
    pair.room(false);
    pair.read(READS);
    pair.carry(0);
    assert!(pair.nodes[1].stats().response_load().held_bytes > 0);
    let view = View::new(ViewId { creator: address(1), id: 2 }, vec![address(1)]);
    pair.nodes[1].handle_view(pair.now, &view);
    assert_eq!(
        (pair.nodes[1].stats().unsent_bytes(&address(0)), pair.nodes[1].stats().response_load().held_bytes),
        (0, 0)
    );
}
