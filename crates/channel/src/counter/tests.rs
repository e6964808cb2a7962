//! Clusters of counter states in virtual time: messages of each pair of members arrive in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_group::protocols::CounterConfig;
use consort_group::wire::{self, CounterMessage, CounterOperation, CounterOwner, CounterRow};
use consort_group::{Address, Flags, Message, Rng, Uuid, View, ViewId};
use tokio::sync::oneshot;

use super::error::CounterError;
use super::limits::{COUNTERS_MAX, NAME_BYTES_MAX, PEERS_MAX, PENDING_MAX, RESPONSES_BYTES_MAX};
use super::state::{CounterState, Outcome};

const TIMEOUT: Duration = Duration::from_secs(60);

fn member(n: u64) -> Address {
    Address::Uuid(Uuid { most: n, least: n })
}

fn number(member: &Address) -> u64 {
    match member {
        Address::Uuid(uuid) => uuid.most,
        other => panic!("{other}"),
    }
}

fn view(id: u64, members: &[u64]) -> View {
    let members: Vec<Address> = members.iter().map(|&n| member(n)).collect();
    View::new(ViewId { creator: members[0].clone(), id }, members)
}

fn decoded(message: &Message) -> CounterMessage {
    wire::decode_counter(message.payload_bytes().expect("bytes")).expect("a message of COUNTER")
}

/// Members 1 and further; the first one of the view is coordinator.
struct Cluster {
    members: BTreeMap<u64, CounterState>,
    /// Messages on their way, by sender and receiver.
    links: BTreeMap<(u64, u64), VecDeque<CounterMessage>>,
    sent: Vec<(u64, Option<u64>, CounterMessage)>,
    views: u64,
    now: Instant,
}

type Pending = oneshot::Receiver<Outcome>;

impl Cluster {
    fn new(count: u64) -> Self {
        Self::with(count, &CounterConfig::default())
    }

    fn with(count: u64, config: &CounterConfig) -> Self {
        let members = (1..=count).map(|n| (n, CounterState::new(config.clone(), member(n)))).collect();
        let (links, sent) = (BTreeMap::new(), Vec::new());
        let mut cluster = Self { members, links, sent, views: 0, now: Instant::now() };
        cluster.install();
        cluster.run();
        cluster
    }

    fn state(&mut self, n: u64) -> &mut CounterState {
        self.members.get_mut(&n).expect("a member")
    }

    /// All members get a view of the living ones.
    fn install(&mut self) {
        let members: Vec<u64> = self.members.keys().copied().collect();
        self.views += 1;
        let view = view(self.views, &members);
        for state in self.members.values_mut() {
            state.view(&view, self.now);
        }
    }

    /// Takes the messages of one member.
    fn collect(&mut self, n: u64) {
        let now = self.now;
        let others: Vec<u64> = self.members.keys().copied().filter(|other| *other != n).collect();
        let Some(state) = self.members.get_mut(&n) else { return };
        while let Some(message) = state.poll_message() {
            let dest = message.dest.as_ref().map(number);
            let message = decoded(&message);
            self.sent.push((n, dest, message.clone()));
            if dest.is_none() {
                state.receive(&member(n), message.clone(), now);
            }
            for to in dest.map_or_else(|| others.clone(), |dest| vec![dest]) {
                self.links.entry((n, to)).or_default().push_back(message.clone());
            }
        }
        state.after_cycle(|_| true);
        // The callers of completed operations are woken.
        for (done, outcome) in state.take_completed() {
            let _ = done.send(outcome);
        }
    }

    /// Delivers the next message of a pair.
    fn step(&mut self, from: u64, to: u64) {
        let Some(message) = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
        let now = self.now;
        if let Some(state) = self.members.get_mut(&to) {
            state.receive(&member(from), message, now);
        }
        self.collect(to);
    }

    /// Delivers all messages.
    fn run(&mut self) {
        loop {
            let all: Vec<u64> = self.members.keys().copied().collect();
            all.into_iter().for_each(|n| self.collect(n));
            self.links.retain(|_, messages| !messages.is_empty());
            let Some(&(from, to)) = self.links.keys().next() else { return };
            self.step(from, to);
        }
    }

    fn begin(&mut self, n: u64, name: &str, operation: CounterOperation) -> Pending {
        let (done, outcome) = oneshot::channel();
        let now = self.now;
        self.state(n).begin(name, operation, TIMEOUT, now, done).expect("begun");
        self.collect(n);
        outcome
    }

    fn perform(&mut self, n: u64, name: &str, operation: CounterOperation) -> Outcome {
        let mut pending = self.begin(n, name, operation);
        self.run();
        pending.try_recv().expect("a response")
    }

    fn create(&mut self, n: u64, name: &str, initial: i64) -> Outcome {
        self.perform(n, name, CounterOperation::GetOrCreate(initial))
    }

    fn add(&mut self, n: u64, delta: i64) -> Outcome {
        self.perform(n, "c", CounterOperation::AddAndGet(delta))
    }

    /// `kill -9`: its messages on their way are lost.
    fn crash(&mut self, n: u64) {
        self.members.remove(&n);
        self.links.retain(|(from, to), _| *from != n && *to != n);
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        let now = self.now;
        for state in self.members.values_mut() {
            while state.next_deadline().is_some_and(|at| at <= now) {
                state.handle_timeout(now);
            }
        }
        self.run();
    }

    fn sent(&mut self) -> Vec<(u64, Option<u64>, CounterMessage)> {
        std::mem::take(&mut self.sent)
    }
}

fn refused(outcome: Outcome) -> String {
    match outcome {
        Err(CounterError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_of_all_members_are_carried_out_by_the_coordinator() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.create(2, "c", 5), Ok(5));
    assert_eq!(cluster.create(1, "c", 9), Ok(5), "it exists");
    for n in [1, 2, 3] {
        assert_eq!(cluster.add(n, 10), Ok(5 + 10 * n as i64));
    }
    let swap = |expected, update| CounterOperation::CompareAndSet { expected, update };
    assert_eq!(cluster.perform(3, "c", swap(1, 2)), Ok(35), "the value is another one");
    assert_eq!(cluster.perform(3, "c", swap(35, 7)), Ok(35));
    assert_eq!(cluster.perform(1, "c", swap(7, 8)), Ok(7));
    assert_eq!(cluster.perform(2, "c", CounterOperation::Set(i64::MAX)), Ok(i64::MAX));
    assert_eq!(cluster.add(3, 1), Ok(i64::MIN), "as Java's long");
    assert_eq!(cluster.add(3, 0), Ok(i64::MIN));
}

/// Facts 24.4: the response first, then the update.
#[test]
fn a_change_goes_to_as_many_backups_as_are_set_and_a_read_to_none() {
    for (num_backups, backups) in [(0, vec![]), (1, vec![2]), (2, vec![2, 3]), (9, vec![2, 3, 4])] {
        let mut cluster = Cluster::with(4, &CounterConfig { num_backups, ..CounterConfig::default() });
        cluster.create(3, "c", 1).unwrap();
        cluster.sent();
        cluster.add(3, 5).unwrap();
        let owner = CounterOwner { member: member(3), request_id: 2 };
        let mut expected = vec![
            (
                3,
                Some(1),
                CounterMessage::Operation {
                    owner: owner.clone(),
                    name: "c".to_owned(),
                    operation: CounterOperation::AddAndGet(5),
                },
            ),
            (1, Some(3), CounterMessage::Value { owner, value: 6, version: 2 }),
        ];
        let update = CounterMessage::Update(CounterRow { name: "c".to_owned(), value: 6, version: 2 });
        expected.extend(backups.into_iter().map(|backup| (1, Some(backup), update.clone())));
        assert_eq!(cluster.sent(), expected, "{num_backups}");
        cluster.add(3, 0).unwrap();
        assert_eq!(cluster.sent().len(), 2, "a request and a response");
    }
}

#[test]
fn messages_are_sent_without_bundling_if_that_is_set() {
    for (bypass_bundling, flags) in [(false, Flags::NONE), (true, Flags::DONT_BUNDLE)] {
        let config = CounterConfig { bypass_bundling, ..CounterConfig::default() };
        let mut state = CounterState::new(config, member(2));
        let now = Instant::now();
        state.view(&view(1, &[1, 2]), now);
        state.delete("c", now).unwrap();
        assert_eq!(state.poll_message().unwrap().flags, flags);
    }
}

#[test]
fn value_survives_the_crash_of_each_coordinator() {
    let mut cluster = Cluster::new(4);
    cluster.create(2, "c", 0).unwrap();
    let mut expected = 0;
    for crashing in [1, 2, 3] {
        for n in crashing..=4 {
            expected += 1;
            assert_eq!(cluster.add(n, 1), Ok(expected));
        }
        cluster.crash(crashing);
        cluster.install();
        cluster.run();
    }
    assert_eq!(cluster.add(4, 0), Ok(expected));
}

/// The backup is the only member that knows the new value: its caller is the coordinator that crashes.
#[test]
fn change_of_a_coordinator_survives_at_its_backup() {
    let mut cluster = Cluster::new(3);
    cluster.create(1, "c", 0).unwrap();
    cluster.add(1, 7).unwrap();
    cluster.crash(1);
    cluster.install();
    cluster.run();
    assert_eq!(cluster.add(3, 0), Ok(7));
}

/// Without backups, the last caller knows the newest version.
#[test]
fn last_response_survives_at_its_caller() {
    let mut cluster = Cluster::with(3, &CounterConfig { num_backups: 0, ..CounterConfig::default() });
    cluster.create(2, "c", 0).unwrap();
    cluster.add(2, 1).unwrap();
    cluster.add(3, 1).unwrap();
    let swap = CounterOperation::CompareAndSet { expected: 2, update: 9 };
    cluster.perform(3, "c", swap).unwrap();
    cluster.crash(1);
    cluster.install();
    cluster.run();
    assert_eq!(cluster.add(2, 0), Ok(9), "the caller keeps the new value of a swap, not the previous one");
}

/// A Java backup keeps the result of COMPARE_AND_SET, the previous value, unless it has the new value of this version already.
#[test]
fn update_of_a_swap_reaches_a_backup_before_the_response() {
    let mut cluster = Cluster::new(2);
    cluster.create(2, "c", 6).unwrap();
    cluster.sent();
    cluster.perform(2, "c", CounterOperation::CompareAndSet { expected: 6, update: 9 }).unwrap();
    let kinds: Vec<bool> = cluster
        .sent()
        .into_iter()
        .filter(|(from, ..)| *from == 1)
        .map(|(.., message)| matches!(message, CounterMessage::Update(_)))
        .collect();
    assert_eq!(kinds, [true, false]);
}

#[test]
fn pending_operations_are_sent_to_the_new_coordinator_and_done_once() {
    let mut cluster = Cluster::new(3);
    cluster.create(2, "c", 0).unwrap();
    // The requests are lost with the coordinator; member 2 is the next one.
    let mut pending = [2, 3].map(|n| cluster.begin(n, "c", CounterOperation::AddAndGet(1)));
    cluster.crash(1);
    cluster.install();
    // One more before the new coordinator asks.
    let mut further = cluster.begin(3, "c", CounterOperation::AddAndGet(1));
    cluster.run();
    let mut results: Vec<i64> = pending
        .iter_mut()
        .chain([&mut further])
        .map(|pending| pending.try_recv().unwrap().unwrap())
        .collect();
    results.sort_unstable();
    assert_eq!(results, [1, 2, 3]);
    assert_eq!(cluster.add(3, 0), Ok(3));
}

#[test]
fn member_holds_requests_from_its_answer_to_a_new_coordinator_until_that_one_asks_for_them() {
    let mut cluster = Cluster::new(4);
    cluster.create(3, "c", 0).unwrap();
    cluster.crash(1);
    cluster.install();
    (2..=4).for_each(|n| cluster.collect(n));
    cluster.step(2, 3);
    cluster.sent();
    let mut held = cluster.begin(3, "c", CounterOperation::AddAndGet(1));
    assert_eq!(cluster.sent(), [], "a request could be carried out and asked for again");
    cluster.run();
    assert_eq!(held.try_recv().unwrap(), Ok(1));
    let requests = cluster.sent().into_iter().filter(|(from, ..)| *from == 3).count();
    assert_eq!(requests, 1);
}

/// A Java member sends a request again that it sent after the new coordinator had begun to serve.
#[test]
fn request_that_comes_again_is_answered_and_not_carried_out_again() {
    let mut cluster = Cluster::new(2);
    cluster.create(1, "c", 0).unwrap();
    let owner = CounterOwner { member: member(2), request_id: 77 };
    let operation = CounterOperation::AddAndGet(5);
    let request = CounterMessage::Operation { owner: owner.clone(), name: "c".to_owned(), operation };
    cluster.sent();
    for _ in 0..2 {
        let now = cluster.now;
        cluster.state(1).receive(&member(2), request.clone(), now);
        cluster.collect(1);
    }
    let responses = cluster.sent().into_iter().filter(|(.., message)| *message != request);
    let values: Vec<CounterMessage> = responses
        .map(|(.., message)| message)
        .filter(|one| matches!(one, CounterMessage::Value { .. }))
        .collect();
    let value = CounterMessage::Value { owner, value: 5, version: 2 };
    assert_eq!(values, [value.clone(), value]);
    assert_eq!(cluster.add(1, 0), Ok(5));
}

#[test]
fn new_coordinator_serves_when_all_members_have_answered() {
    let mut cluster = Cluster::new(3);
    cluster.create(1, "c", 4).unwrap();
    cluster.crash(1);
    cluster.install();
    cluster.collect(2);
    let mut own = cluster.begin(2, "c", CounterOperation::AddAndGet(1));
    assert!(own.try_recv().is_err(), "member 3 may have a newer version");
    cluster.run();
    assert_eq!(own.try_recv().unwrap(), Ok(5));
}

#[test]
fn new_coordinator_serves_after_the_time_or_without_a_member_that_has_left() {
    for leaves in [false, true] {
        let reconciliation_timeout = Duration::from_secs(3);
        let mut cluster =
            Cluster::with(4, &CounterConfig { reconciliation_timeout, ..CounterConfig::default() });
        cluster.create(1, "c", 4).unwrap();
        cluster.crash(1);
        cluster.install();
        let mut own = cluster.begin(2, "c", CounterOperation::AddAndGet(1));
        // Member 4 does not answer.
        cluster.step(2, 3);
        cluster.step(3, 2);
        cluster.links.clear();
        assert!(own.try_recv().is_err());
        if leaves {
            cluster.crash(4);
            cluster.install();
            cluster.run();
        } else {
            cluster.advance(Duration::from_millis(2_999));
            assert!(own.try_recv().is_err());
            cluster.advance(Duration::from_millis(1));
            assert_eq!(cluster.state(2).warnings.counts(), [("no counters of members", 1)]);
        }
        assert_eq!(own.try_recv().unwrap(), Ok(5), "{leaves}");
    }
}

#[test]
fn deleted_counter_is_absent_and_may_be_created_again() {
    let mut cluster = Cluster::new(3);
    cluster.create(1, "c", 4).unwrap();
    for n in [3, 1] {
        let now = cluster.now;
        cluster.state(n).delete("c", now).unwrap();
        cluster.run();
        assert_eq!(refused(cluster.add(2, 1)), "counter \"c\" not found");
        assert_eq!(cluster.create(2, "c", 7), Ok(7));
    }
}

#[test]
fn deletion_waits_for_the_new_coordinator() {
    let mut cluster = Cluster::new(3);
    cluster.create(1, "c", 4).unwrap();
    cluster.crash(1);
    cluster.install();
    let now = cluster.now;
    cluster.state(2).delete("c", now).unwrap();
    cluster.run();
    assert_eq!(refused(cluster.add(3, 1)), "counter \"c\" not found");
}

#[test]
fn refused_operations_tell_the_reason() {
    let mut cluster = Cluster::new(2);
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    for n in [1, 2] {
        assert_eq!(refused(cluster.add(n, 1)), "counter \"c\" not found");
        let (done, _) = oneshot::channel();
        let now = cluster.now;
        let begun = cluster.state(n).begin(&long, CounterOperation::AddAndGet(1), TIMEOUT, now, done);
        assert_eq!(begun, Err(CounterError::NameTooLong(1_025)));
    }
    let exception = |cluster: &mut Cluster, name: &str, operation| {
        let owner = CounterOwner { member: member(2), request_id: 9 };
        let now = cluster.now;
        cluster.sent();
        let message = CounterMessage::Operation { owner, name: name.to_owned(), operation };
        cluster.state(1).receive(&member(2), message, now);
        cluster.collect(1);
        match cluster.sent().pop() {
            Some((1, Some(2), CounterMessage::Exception { text, .. })) => text,
            other => panic!("{other:?}"),
        }
    };
    let created = exception(&mut cluster, &long, CounterOperation::GetOrCreate(1));
    assert!(created.contains("at most 1024 bytes"), "{created}");
    let absent = exception(&mut cluster, &"ü".repeat(30_000), CounterOperation::Set(1));
    assert_eq!(absent.len(), "counter \"\" not found".len() + NAME_BYTES_MAX);
    let function = CounterOperation::UpdateFunction(Bytes::from_static(b"\x01\x02"));
    let refused = exception(&mut cluster, "c", function);
    assert!(refused.contains("functions of Java are not supported"), "{refused}");
}

#[test]
fn counter_beyond_the_limit_is_refused_with_an_exception() {
    let mut cluster = Cluster::new(2);
    for nth in 0..COUNTERS_MAX {
        let (done, _) = oneshot::channel();
        let (now, create) = (cluster.now, CounterOperation::GetOrCreate(0));
        cluster.state(1).begin(&format!("c{nth}"), create, TIMEOUT, now, done).unwrap();
    }
    assert!(refused(cluster.create(2, "one more", 0)).contains("10000 counters already"));
    assert_eq!(cluster.create(2, "c1", 5), Ok(0), "it exists");
    cluster.crash(1);
    cluster.install();
    cluster.run();
    assert_eq!(cluster.create(2, "c9999", 5), Ok(0), "the backup has all");
}

#[test]
fn pending_operations_are_bounded_and_end_after_their_time() {
    let now = Instant::now();
    let mut state = CounterState::new(CounterConfig::default(), member(2));
    state.view(&view(1, &[1, 2]), now);
    let begin = |state: &mut CounterState, timeout| {
        let (done, outcome) = oneshot::channel();
        state.begin("c", CounterOperation::AddAndGet(1), timeout, now, done).map(|id| (id, outcome))
    };
    let (_, mut soon) = begin(&mut state, Duration::from_secs(1)).unwrap();
    let mut late: Vec<_> = (1..PENDING_MAX).map(|_| begin(&mut state, TIMEOUT).unwrap()).collect();
    assert_eq!(begin(&mut state, TIMEOUT).unwrap_err(), CounterError::TooManyPending);
    assert_eq!(state.delete("c", now), Err(CounterError::TooManyPending));
    assert_eq!(state.next_deadline(), Some(now + Duration::from_secs(1)));
    state.handle_timeout(now + Duration::from_millis(999));
    assert!(state.take_completed().is_empty());
    state.handle_timeout(now + Duration::from_secs(1));
    for (done, outcome) in state.take_completed() {
        done.send(outcome).unwrap();
    }
    assert_eq!(soon.try_recv().unwrap(), Err(CounterError::TimedOut(Duration::from_secs(1))));
    let (id, outcome) = late.pop().unwrap();
    drop(outcome);
    state.forget(id);
    assert_eq!(state.next_deadline(), Some(now + TIMEOUT));
    state.close();
    assert_eq!(state.take_completed().len(), PENDING_MAX - 2);
    assert_eq!(state.next_deadline(), None);
    assert_eq!(begin(&mut state, TIMEOUT).unwrap_err(), CounterError::Closed);
}

#[test]
fn pending_operations_are_sent_again_once_in_a_cycle_and_to_the_coordinator_only() {
    let mut cluster = Cluster::new(3);
    let _pending = cluster.begin(3, "c", CounterOperation::AddAndGet(1));
    cluster.sent();
    let now = cluster.now;
    for src in [2, 1, 1, 1] {
        cluster.state(3).receive(&member(src), CounterMessage::ResendPending, now);
    }
    cluster.collect(3);
    let sent = cluster.sent();
    assert!(sent.len() == 1 && sent[0].1 == Some(1), "{sent:?}");
    cluster.state(3).receive(&member(2), CounterMessage::ResendPending, now);
    cluster.collect(3);
    assert_eq!(cluster.sent(), []);
}

/// Peers that do not take responses could fill the memory.
#[test]
fn requests_of_a_peer_without_capacity_for_responses_are_discarded() {
    let mut cluster = Cluster::new(3);
    cluster.create(1, "c", 0).unwrap();
    let now = cluster.now;
    let request = |n, request_id| CounterMessage::Operation {
        owner: CounterOwner { member: member(n), request_id },
        name: "c".to_owned(),
        operation: CounterOperation::AddAndGet(1),
    };
    let state = cluster.state(1);
    state.receive(&member(2), request(2, 1), now);
    state.after_cycle(|_| false);
    for request_id in 2..10 {
        state.receive(&member(2), request(2, request_id), now);
    }
    state.receive(&member(3), request(3, 1), now);
    assert_eq!(state.warnings.counts(), [("no capacity for responses of COUNTER", 8)]);
    state.after_cycle(|_| true);
    state.receive(&member(2), request(2, 20), now);
    assert_eq!(cluster.add(1, 0), Ok(3));
    let state = cluster.state(1);
    for n in 0..PEERS_MAX as u64 {
        state.receive(&member(100 + n), request(100 + n, 1), now);
    }
    state.receive(&member(99), request(99, 1), now);
    assert!(
        state.warnings.counts().contains(&("too many peers of COUNTER", 1)),
        "{:?}",
        state.warnings.counts()
    );
}

#[test]
fn counters_are_sent_to_a_member_once_in_a_cycle_and_responses_are_bounded_in_bytes() {
    let now = Instant::now();
    let mut state = CounterState::new(CounterConfig::default(), member(1));
    let members: Vec<u64> = (1..=12).collect();
    state.view(&view(1, &members), now);
    for nth in 0..3_800 {
        let (done, _) = oneshot::channel();
        let name = format!("{nth:01000}");
        state.begin(&name, CounterOperation::GetOrCreate(0), TIMEOUT, now, done).unwrap();
    }
    while state.poll_message().is_some() {}
    let mut counters_sent_to = |senders: &[u64]| {
        for &n in senders {
            state.receive(&member(n), CounterMessage::Reconcile(Vec::new()), now);
        }
        let messages: Vec<Message> = std::iter::from_fn(|| state.poll_message()).collect();
        let bytes: usize = messages.iter().map(Message::length).sum();
        assert!(bytes <= RESPONSES_BYTES_MAX + 4_000_000, "the limit and one response");
        let has_warned = state.warnings.counts().contains(&("too many responses of COUNTER", 6));
        state.after_cycle(|_| true);
        (messages.len(), has_warned)
    };
    assert_eq!(counters_sent_to(&[2, 2, 2]), (1, false));
    assert_eq!(counters_sent_to(&[2, 99]), (1, false), "99 is no member");
    let all: Vec<u64> = (2..=12).collect();
    assert_eq!(counters_sent_to(&all), (5, true));
}

/// Each partition has changed the counter; the one with more changes wins.
#[test]
fn newer_version_of_a_counter_remains_after_a_merge() {
    for (changes, expected) in [([1, 3], 3), ([4, 2], 4)] {
        let mut cluster = Cluster::new(2);
        cluster.create(1, "c", 0).unwrap();
        let now = cluster.now;
        let halves = [view(10, &[1]), view(10, &[2])];
        for (n, changes) in [1, 2].into_iter().zip(changes) {
            cluster.state(n).view(&halves[n as usize - 1], now);
            for _ in 0..changes {
                let mut done = cluster.begin(n, "c", CounterOperation::AddAndGet(1));
                assert!(done.try_recv().unwrap().is_ok());
            }
        }
        cluster.links.clear();
        let merged = View::merged(ViewId { creator: member(1), id: 11 }, vec![member(1), member(2)], halves);
        for n in [1, 2] {
            cluster.state(n).view(&merged, now);
        }
        cluster.run();
        assert_eq!([1, 2].map(|n| cluster.add(n, 0)), [Ok(expected), Ok(expected)]);
    }
}

/// Two members add 1 at random times while the coordinators crash, with a random part of their messages delivered. Each response
/// counts once; an operation whose coordinator has crashed may count once more.
#[test]
fn no_acknowledged_change_is_lost_when_coordinators_crash_at_any_moment() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut cluster = Cluster::new(5);
        // The callers never crash, and know the counter.
        for n in [4, 5] {
            cluster.create(n, "c", 0).unwrap();
        }
        let mut pending: Vec<Pending> = Vec::new();
        let (mut acknowledged, mut doubtful) = (0, 0);
        for crashing in 1..=3 {
            for _ in 0..rng.below(60) {
                if rng.below(3) == 0 {
                    pending.push(cluster.begin(4 + rng.below(2), "c", CounterOperation::AddAndGet(1)));
                }
                let links: Vec<(u64, u64)> = cluster.links.keys().copied().collect();
                if !links.is_empty() {
                    let (from, to) = links[rng.below(links.len() as u64) as usize];
                    cluster.step(from, to);
                }
                pending.retain_mut(|outcome| match outcome.try_recv() {
                    Ok(result) => {
                        result.unwrap();
                        acknowledged += 1;
                        false
                    }
                    Err(_) => true,
                });
            }
            // Messages that the coordinator has sent arrive up to a random one of each pair.
            let links: Vec<(u64, u64)> =
                cluster.links.keys().copied().filter(|(from, _)| *from == crashing).collect();
            for (from, to) in links {
                for _ in 0..rng.below(4) {
                    cluster.step(from, to);
                }
            }
            cluster.crash(crashing);
            doubtful += pending.len() as i64;
            cluster.install();
        }
        cluster.run();
        for mut outcome in pending {
            outcome.try_recv().unwrap_or_else(|_| panic!("seed {seed}: no response")).unwrap();
            acknowledged += 1;
        }
        let value = cluster.add(5, 0).unwrap();
        let most = acknowledged + doubtful;
        assert!((acknowledged..=most).contains(&value), "seed {seed}: {value} of {acknowledged} to {most}");
    }
}
