//! Tests of up handlers: they respond within the cycle, are notified of all events, and their panic ends the member.

mod cluster;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{Cluster, Inbox, PATIENCE, Slow, join, members, one_view};
use consort_channel::rpc::{RequestOptions, RpcDispatcher};
use consort_channel::{
    Address, Channel, ChannelBuilder, IgnoringReceiver, Message, MessageBatch, Payload, SendCapacity,
    SendError, UpHandler, View, WeakChannel,
};
use consort_conf::{Variables, parse_stack};
use consort_testkit::Log;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

const QUESTION: u8 = b'?';
const ANSWER: u8 = b'!';
const BOMB: u8 = b'*';

#[derive(Default)]
struct State {
    outbox: VecDeque<Message>,
    /// Number of completed cycles.
    cycles: u64,
    /// The cycle in which each question arrived.
    asked: Vec<u64>,
    /// The cycle in which each message was taken.
    sent: Vec<u64>,
    answers: Vec<Bytes>,
    calls: Vec<&'static str>,
    deadline: Option<Instant>,
    /// A message to send repeatedly while there is capacity.
    pumped: Option<Message>,
    has_room: bool,
}

/// Responds to questions with their content.
#[derive(Default)]
struct Pong {
    channel: OnceLock<WeakChannel>,
    state: Mutex<State>,
    answered: watch::Sender<usize>,
    room: watch::Sender<bool>,
    is_closed: watch::Sender<bool>,
}

fn message(dest: Option<&Address>, kind: u8, size: usize) -> Message {
    let mut bytes = vec![kind; 1];
    bytes.extend((1..size).map(|at| (at % 251) as u8));
    Message::bytes(dest.cloned(), bytes)
}

fn bytes_of(message: &Message) -> Bytes {
    message.payload_bytes().cloned().unwrap_or_default()
}

impl Pong {
    /// A panic of another call must not hide the state that it left.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.channel.get().expect("it has opened").waker().wake();
    }

    fn send(&self, messages: impl IntoIterator<Item = Message>) {
        self.state().outbox.extend(messages);
        self.wake();
    }

    async fn answers(&self, count: usize) -> Vec<Bytes> {
        let mut answered = self.answered.subscribe();
        if timeout(PATIENCE, answered.wait_for(|&have| have >= count)).await.is_err() {
            panic!("{} of {count}", *self.answered.borrow());
        }
        self.state().answers.clone()
    }
}

impl UpHandler for Pong {
    fn opened(&self, channel: WeakChannel) {
        self.state().calls.push("opened");
        assert!(self.channel.set(channel).is_ok(), "opened once");
    }

    fn takes(&self, message: &Message) -> bool {
        matches!(bytes_of(message).first(), Some(&(QUESTION | ANSWER | BOMB)))
    }

    fn handle_batch(&self, batch: MessageBatch) {
        let src = batch.src().cloned();
        let mut state = self.state();
        for message in batch.messages {
            let bytes = bytes_of(&message);
            match bytes[0] {
                QUESTION => {
                    let cycle = state.cycles;
                    state.asked.push(cycle);
                    let mut answer = bytes.to_vec();
                    answer[0] = ANSWER;
                    state.outbox.push_back(Message::bytes(src.clone(), answer));
                }
                ANSWER => {
                    state.answers.push(bytes);
                    self.answered.send_replace(state.answers.len());
                }
                _ => panic!("at a bomb"),
            }
        }
    }

    fn view(&self, _: &View) {
        self.state().calls.push("view");
    }

    fn suspected(&self, _: &[Address]) {
        self.state().calls.push("suspected");
    }

    fn connected(&self) {
        self.state().calls.push("connected");
    }

    fn poll_send(&self) -> Option<Message> {
        let mut state = self.state();
        let pumped = state.pumped.clone().filter(|_| std::mem::take(&mut state.has_room));
        let message = pumped.or_else(|| state.outbox.pop_front())?;
        let cycle = state.cycles;
        state.sent.push(cycle);
        Some(message)
    }

    fn after_cycle(&self, room: &SendCapacity<'_>) {
        let mut state = self.state();
        state.cycles += 1;
        let Some(pumped) = &state.pumped else { return };
        state.has_room = room.is_open(pumped.dest.as_ref());
        self.room.send_replace(state.has_room);
        if state.has_room {
            self.wake();
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.state().deadline
    }

    fn handle_timeout(&self, now: Instant) {
        let mut state = self.state();
        assert!(state.deadline.take().is_some_and(|at| at <= now), "not before its time");
        state.calls.push("timeout");
        let itself = self.channel.get().map(|channel| channel.address().clone());
        state.outbox.push_back(message(itself.as_ref(), ANSWER, 1));
    }

    fn closed(&self) {
        self.state().calls.push("closed");
        self.is_closed.send_replace(true);
        assert!(!self.state.is_poisoned(), "closed after a panic");
    }

    fn probe(&self, key: &str) -> Option<String> {
        (key == "answers").then(|| self.answered.borrow().to_string())
    }
}

/// A stack with little credit.
fn builder(name: &str, handler: &Arc<Pong>) -> ChannelBuilder {
    let text = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/><GMS/>\
                <MFC max_credits=\"100000\"/><UFC max_credits=\"100000\"/><FRAG2/></config>";
    let stack = parse_stack("pong.xml", text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
    Channel::from_config(stack.config).name(name).up_handler(handler.clone())
}

struct Two {
    a: Channel,
    b: Channel,
    at_a: Arc<Pong>,
    at_b: Arc<Pong>,
}

impl Two {
    async fn join(cluster: &str) -> Self {
        let (at_a, at_b) = (Arc::new(Pong::default()), Arc::new(Pong::default()));
        let a = join(cluster, builder("A", &at_a)).await;
        let b = join(cluster, builder("B", &at_b)).await;
        members(&a, 2).await;
        Self { a, b, at_a, at_b }
    }

    async fn close(self) {
        for channel in [self.a, self.b] {
            timeout(PATIENCE, channel.close()).await.expect("it closes");
        }
    }
}

#[tokio::test]
async fn answers_leave_in_the_cycle_in_which_the_questions_came() {
    let two = Two::join("pong-cycle").await;
    two.at_a.send((0..500).map(|_| message(Some(two.b.address()), QUESTION, 20)));
    assert_eq!(two.at_a.answers(500).await[7], bytes_of(&message(None, ANSWER, 20)));
    let (asked, sent) = {
        let state = two.at_b.state();
        (state.asked.clone(), state.sent.clone())
    };
    assert_eq!(asked.len(), 500);
    assert_eq!(sent, asked);
    two.close().await;
}

/// Callers while the driver is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_thousand_callers_leave_in_one_cycle() {
    let two = Two::join("pong-callers").await;
    let (entered, is_held) = oneshot::channel();
    let (release, released) = mpsc::channel();
    let held = two.a.clone();
    let holding = tokio::spawn(async move {
        let hold = move |_: &mut _, _| {
            let _ = entered.send(());
            released.recv_timeout(PATIENCE)
        };
        held.with_stack(hold).await
    });
    is_held.await.unwrap();
    std::thread::scope(|scope| {
        for _ in 0..10 {
            let send = || two.at_a.send([message(Some(two.b.address()), QUESTION, 20)]);
            scope.spawn(move || (0..100).for_each(|_| send()));
        }
    });
    release.send(()).unwrap();
    assert_eq!(holding.await.unwrap(), Some(Ok(())));
    two.at_a.answers(1_000).await;
    let sent = two.at_a.state().sent.clone();
    assert_eq!(sent, vec![sent[0]; 1_000]);
    two.close().await;
}

/// Twenty times the credits, in both directions, with messages for the receiver in the same batches.
#[tokio::test]
async fn consumed_messages_of_a_handler_return_their_credits() {
    let (at_a, at_b) = (Arc::new(Pong::default()), Arc::new(Pong::default()));
    let inbox = Arc::new(Inbox::default());
    let a = join("pong-credits", builder("A", &at_a)).await;
    let b = join("pong-credits", builder("B", &at_b).receiver(inbox.clone())).await;
    members(&a, 2).await;
    let dests = [Some(b.address().clone()), None];
    for nth in 0..1_000 {
        let dest = dests[nth % 2].as_ref();
        at_a.send([message(dest, QUESTION, 1_000), message(dest, b'-', 1_000)]);
        if nth % 50 == 0 {
            a.with_stack(|_, _| ()).await;
        }
    }
    // Its own multicasts come back to it, and get responses.
    assert_eq!(at_a.answers(1_500).await.len(), 1_500);
    assert_eq!(inbox.from(a.address(), 1_000).await[0], bytes_of(&message(None, b'-', 1_000)));
    for (channel, dest) in [(&a, Some(b.address())), (&a, None), (&b, Some(a.address()))] {
        timeout(PATIENCE, channel.send(message(dest, b'-', 90_000))).await.expect("there is room").unwrap();
    }
    for channel in [a, b] {
        timeout(PATIENCE, channel.close()).await.expect("it closes");
    }
}

#[tokio::test]
async fn large_messages_are_fragmented() {
    let cluster = Cluster::new("tcp.xml");
    let (at_a, at_b) = (Arc::new(Pong::default()), Arc::new(Pong::default()));
    let a = join(&cluster.name, cluster.builder("A").up_handler(at_a.clone())).await;
    let b = join(&cluster.name, cluster.builder("B").up_handler(at_b.clone())).await;
    one_view(&[&a, &b]).await;
    for dest in [Some(b.address()), None] {
        at_a.state().answers.clear();
        at_a.send((0..3).map(|_| message(dest, QUESTION, 1 << 20)));
        at_a.answered.send_replace(0);
        let wanted = bytes_of(&message(None, ANSWER, 1 << 20));
        let count = if dest.is_some() { 3 } else { 6 };
        let answers = at_a.answers(count).await;
        assert!(answers.len() == count && answers.iter().all(|answer| *answer == wanted));
    }
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_handler_is_notified_from_opening_to_closing() {
    let two = Two::join("pong-notified").await;
    let (at_a, at_b) = (two.at_a.clone(), two.at_b.clone());
    assert_eq!(at_b.channel.get().map(WeakChannel::address), Some(two.b.address()));
    timeout(PATIENCE, two.b.close()).await.expect("it closes");
    members(&two.a, 1).await;
    assert_eq!(at_b.state().calls, ["opened", "view", "connected", "closed"]);
    at_b.wake();
    timeout(PATIENCE, two.a.abort()).await.expect("it ends");
    assert_eq!(at_a.state().calls, ["opened", "view", "connected", "view", "view", "closed"]);
}

/// A deadline that arises with a wake-up; the message that the handler then sends leaves at once.
#[tokio::test]
async fn a_handlers_deadline_fires_and_its_message_leaves() {
    let two = Two::join("pong-time").await;
    two.at_a.state().deadline = Some(Instant::now() + Duration::from_millis(20));
    two.at_a.wake();
    two.at_a.answers(1).await;
    assert_eq!(two.at_a.state().calls.last(), Some(&"timeout"));
    two.close().await;
}

/// The receiver at the other end does not finish: messages under way stay bounded, and sending resumes when it
/// finishes.
#[tokio::test]
async fn capacity_is_used_up_and_becomes_free_again() {
    let (pump, slow) = (Arc::new(Pong::default()), Slow::new());
    let a = join("pong-room", builder("A", &pump)).await;
    let idle = Arc::new(Pong::default());
    let b = join("pong-room", builder("B", &idle).receiver(slow.clone())).await;
    members(&a, 2).await;
    for dest in [Some(b.address()), None] {
        *slow.kept.lock().unwrap() = Some(Vec::new());
        let size = 50_000;
        pump.state().pumped = Some(message(dest, b'-', size));
        pump.room.send_replace(true);
        pump.wake();
        let mut room = pump.room.subscribe();
        timeout(PATIENCE, room.wait_for(|has_room| !has_room)).await.expect("it is full").unwrap();
        let to = dest.cloned();
        let (held, limit) = a
            .with_stack(move |stack, _| (stack.queued_bytes(to.as_ref()), stack.hold_limit(to.is_none())))
            .await
            .expect("an open channel");
        let limit = limit.unwrap_or(consort_channel::HOLD_LIMIT);
        assert!((limit - size as u64..limit + size as u64).contains(&held), "{held} of {limit}");
        assert_eq!(a.try_send(message(dest, b'-', size)), Err(SendError::Full), "the gate knows");
        let sent = pump.state().sent.len();
        drop(slow.kept.lock().unwrap().take());
        timeout(PATIENCE, room.wait_for(|&has_room| has_room)).await.expect("there is room").unwrap();
        pump.state().pumped = None;
        let total = sent * size;
        let mut bytes = slow.bytes.subscribe();
        timeout(PATIENCE, bytes.wait_for(|&bytes| bytes >= total)).await.expect("in time").unwrap();
    }
    a.close().await;
    b.close().await;
}

/// Even if it panics again in `closed`.
#[tokio::test]
async fn a_handlers_panic_ends_the_member_as_a_crash_would() {
    let (log, _guard) = Log::begin("error");
    let cluster = Cluster::new("tcp.xml");
    let (at_a, at_b) = (Arc::new(Pong::default()), Arc::new(Pong::default()));
    let a = join(&cluster.name, cluster.builder("A").up_handler(at_a.clone())).await;
    let b = join(&cluster.name, cluster.builder("B").up_handler(at_b.clone())).await;
    one_view(&[&a, &b]).await;
    at_a.send([message(Some(b.address()), BOMB, 1), message(Some(b.address()), QUESTION, 1)]);
    members(&a, 1).await;
    let mut is_closed = at_b.is_closed.subscribe();
    timeout(PATIENCE, is_closed.wait_for(|&is_closed| is_closed)).await.expect("closed").unwrap();
    assert_eq!(at_b.state().calls, ["opened", "view", "connected", "closed"]);
    assert_eq!(at_b.state().sent.len(), 0, "nothing is answered after it");
    assert_eq!(b.send(message(None, b'-', 1)).await, Err(SendError::Closed));
    let text = log.take();
    assert!(text.contains("called=\"handle_batch\" panic=at a bomb\n"), "{text}");
    assert!(text.contains("called=\"closed\""), "{text}");
    timeout(PATIENCE, b.close()).await.expect("nothing is left");
    a.close().await;
}

/// Each handler has its own messages, and the receiver gets the rest.
#[tokio::test]
async fn rpc_works_with_another_handler() {
    let (at_a, at_b) = (Arc::new(Pong::default()), Arc::new(Pong::default()));
    let echo = |request: &Message| Ok(request.payload.clone());
    let dispatch = |name, handler| RpcDispatcher::connect(builder(name, handler), "pong-rpc", echo);
    let a = dispatch("A", &at_a).await.unwrap();
    let b = dispatch("B", &at_b).await.unwrap();
    members(a.channel(), 2).await;
    let to_b = b.channel().address();
    for nth in 0..20 {
        at_a.send([message(Some(to_b), QUESTION, 10)]);
        let answer = a.call(to_b, Payload::Long(nth), &RequestOptions::all(PATIENCE)).await;
        assert_eq!(answer, Ok(Payload::Long(nth)));
    }
    at_a.answers(20).await;
    for dispatcher in [a, b] {
        timeout(PATIENCE, dispatcher.channel().clone().close()).await.expect("it closes");
    }
}

#[tokio::test]
async fn a_handler_responds_to_probe() {
    let port = 32_000 + (std::process::id() % 1_000) as u16;
    let cluster = Cluster::new("tcp.xml").probed(port);
    let handler = Arc::new(Pong::default());
    let channel =
        join(&cluster.name, cluster.builder("A").receiver(IgnoringReceiver).up_handler(handler)).await;
    let answer = cluster::ask(port, "answers").await;
    assert!(answer.contains("answers=0\r\n"), "{answer}");
    channel.close().await;
}
