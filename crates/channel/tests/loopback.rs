//! Tests of channels of one process over SHARED_LOOPBACK: credits, batches, tasks and calls, as an application sees
//! them.

mod cluster;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cluster::{PATIENCE, Slow, fill, join, join_rpc, members};
use consort_channel::rpc::{FilterDecision, RequestOptions, RpcDispatcher};
use consort_channel::{
    Address, Channel, ChannelBuilder, Delivery, Flags, IgnoringReceiver, Message, Payload, Receiver,
};
use consort_conf::{Variables, parse_stack};
use consort_group::{Cx, MessageBatch, Protocol, ProtocolId, TimerKey};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

const CREDITS: u64 = 100_000;

/// A stack with little credit, with blocking or non-blocking flow control.
fn builder(name: &str, policy: &str, kind: &str) -> ChannelBuilder {
    builder_with(name, policy, kind, if kind.is_empty() { "" } else { "max_queue_size=\"50000\"" })
}

fn builder_with(name: &str, policy: &str, kind: &str, queue: &str) -> ChannelBuilder {
    let flow = |name: &str| format!("<{name}{kind} max_credits=\"{CREDITS}\" {queue}/>");
    let text = format!(
        "<config><SHARED_LOOPBACK message_processing_policy=\"{policy}\"/><SHARED_LOOPBACK_PING/><NAKACK2/>\
         <UNICAST3/><STABLE/><GMS/>{}{}<FRAG2/></config>",
        flow("MFC"),
        flow("UFC")
    );
    let stack = parse_stack("loopback.xml", &text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
    Channel::from_config(stack.config).name(name)
}

fn to(channel: &Channel, bytes: usize) -> Message {
    Message::bytes(Some(channel.address().clone()), vec![7; bytes])
}

/// S000-3, S000-6, S000-9, S000-11: a receiver that does not finish gets max_credits bytes; behind them the queue
/// fills; then senders wait, and resume when the receiver finishes. Nothing is lost.
#[tokio::test]
async fn a_receiver_that_is_not_done_gets_no_more_than_the_credits() {
    let slow = Slow::new();
    let a = join("slow", builder("A", "max", "_NB")).await;
    let b = join("slow", builder("B", "max", "_NB").receiver(slow.clone())).await;
    members(&a, 2).await;
    let sent = fill(&a, &to(&b, 1_000)).await;
    assert_eq!(sent as u64, CREDITS + 50_000, "credits and queue");
    let mut bytes = slow.bytes.subscribe();
    timeout(PATIENCE, bytes.wait_for(|&bytes| bytes as u64 == CREDITS)).await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let (a, last) = (a.clone(), to(&b, 1_000));
        async move { a.send(last).await }
    });
    a.with_stack(|_, _| ()).await.unwrap();
    b.with_stack(|_, _| ()).await.unwrap();
    assert!(!waiting.is_finished(), "no room until the receiver is done");
    assert_eq!(*slow.bytes.borrow() as u64, CREDITS);
    slow.kept.lock().unwrap().take();
    timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    timeout(PATIENCE, bytes.wait_for(|&bytes| bytes == sent + 1_000)).await.unwrap().unwrap();
    a.close().await;
    b.close().await;
}

/// S000-12: the largest limit is as good as none: six hundred times the credits are queued, and all arrive.
#[tokio::test]
async fn the_largest_queue_is_never_full() {
    let slow = Slow::new();
    let builder = |name| builder_with(name, "max", "_NB", "max_queue_size=\"18446744073709551615\"");
    let a = join("endless", builder("A")).await;
    let b = join("endless", builder("B").receiver(slow.clone())).await;
    members(&a, 2).await;
    for _ in 0..6_000 {
        a.try_send(to(&b, 10_000)).expect("room");
        tokio::task::yield_now().await;
    }
    let mut bytes = slow.bytes.subscribe();
    timeout(PATIENCE, bytes.wait_for(|&bytes| bytes as u64 == CREDITS)).await.unwrap().unwrap();
    slow.kept.lock().unwrap().take();
    timeout(PATIENCE, bytes.wait_for(|&bytes| bytes == 60_000_000)).await.unwrap().unwrap();
    a.close().await;
    b.close().await;
}

/// S000-4 at the channel: a receiver that does not finish delays no unicasts to other members.
#[tokio::test]
async fn unicasts_to_other_members_are_not_delayed() {
    let (slow, quick) = (Slow::new(), Slow::new());
    quick.kept.lock().unwrap().take();
    let a = join("apart", builder("A", "max", "")).await;
    let b = join("apart", builder("B", "max", "").receiver(slow)).await;
    let c = join("apart", builder("C", "max", "").receiver(quick.clone())).await;
    members(&a, 3).await;
    while a.try_send(to(&b, 10_000)).is_ok() {}
    for _ in 0..100 {
        timeout(PATIENCE, a.send(to(&c, 10_000))).await.unwrap().unwrap();
    }
    let mut bytes = quick.bytes.subscribe();
    timeout(PATIENCE, bytes.wait_for(|&bytes| bytes == 1_000_000)).await.unwrap().unwrap();
    for channel in [a, b, c] {
        channel.close().await;
    }
}

/// Counts calls, messages, and concurrent calls.
#[derive(Default)]
struct Counting {
    calls: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
    received: watch::Sender<usize>,
    singly: AtomicUsize,
}

impl Receiver for Counting {
    fn receive(&self, _: Message) {
        self.singly.fetch_add(1, Ordering::Relaxed);
    }
    fn receive_batch(&self, mut delivery: Delivery) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
        let messages = delivery.take();
        let count = messages.len();
        messages.into_iter().for_each(|message| self.receive(message));
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.received.send_modify(|received| *received += count);
    }
}

/// S000-56, S000-81: a thousand small messages arrive in few calls under `max`, one at a time; under `unbatch` in a
/// thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_burst_comes_in_few_calls_one_at_a_time() {
    for policy in ["max", "direct", "unbatch", "submit"] {
        let counting = Arc::new(Counting::default());
        let cluster = format!("burst-{policy}");
        let a = join(&cluster, builder("A", policy, "")).await;
        let b = join(&cluster, builder("B", policy, "").receiver(counting.clone())).await;
        members(&a, 2).await;
        for _ in 0..1_000 {
            a.send(to(&b, 10)).await.unwrap();
        }
        let mut received = counting.received.subscribe();
        timeout(PATIENCE, received.wait_for(|&received| received == 1_000)).await.unwrap().unwrap();
        let calls = counting.calls.load(Ordering::Relaxed);
        assert_eq!(counting.singly.load(Ordering::Relaxed), 1_000);
        match policy {
            "unbatch" => assert_eq!(calls, 1_000),
            _ => assert!(calls <= 500, "{policy}: {calls} calls"),
        }
        if policy != "submit" {
            assert_eq!(counting.most.load(Ordering::SeqCst), 1, "{policy}");
        }
        a.close().await;
        b.close().await;
    }
}

/// Senders and payloads, in order of arrival.
#[derive(Default)]
struct Record {
    seen: Mutex<Vec<(Address, Vec<u8>)>>,
    count: watch::Sender<usize>,
}

impl Receiver for Record {
    fn receive(&self, message: Message) {
        let mut seen = self.seen.lock().unwrap();
        seen.push((message.src.clone().unwrap(), message.payload_bytes().unwrap().to_vec()));
        self.count.send_replace(seen.len());
    }
}

/// With SEQUENCER receivers see one order of all senders' messages, fragmented ones among them, however many threads
/// there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn receivers_see_the_total_order() {
    let text = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/><GMS/><UFC/><MFC/>\
                <SEQUENCER/><FRAG2 frag_size=\"1000\"/></config>";
    let mut all = Vec::new();
    for name in ["A", "B", "C"] {
        let record = Arc::new(Record::default());
        let stack = parse_stack("ordered.xml", text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
        let builder = Channel::from_config(stack.config).name(name).receiver(record.clone());
        all.push((join("ordered", builder).await, record));
    }
    for (channel, _) in &all {
        members(channel, 3).await;
    }
    let sending = all.iter().map(|(channel, _)| {
        let channel = channel.clone();
        tokio::spawn(async move {
            for number in 0..500_u32 {
                let mut payload = number.to_be_bytes().to_vec();
                payload.resize(if number % 10 == 0 { 3_000 } else { 4 }, 0);
                channel.send(Message::bytes(None, payload)).await.unwrap();
            }
        })
    });
    for sending in sending.collect::<Vec<_>>() {
        sending.await.unwrap();
    }
    for (_, record) in &all {
        let mut count = record.count.subscribe();
        timeout(PATIENCE, count.wait_for(|&count| count == 1_500)).await.unwrap().unwrap();
    }
    let orders: Vec<_> = all.iter().map(|(_, record)| record.seen.lock().unwrap().clone()).collect();
    for other in &orders[1..] {
        let first_difference = orders[0].iter().zip(other).position(|(one, another)| one != another);
        assert_eq!(first_difference, None);
    }
    for (channel, _) in all {
        channel.close().await;
    }
}

/// A barrier of a regular call and two out-of-band ones: none ends before all three have begun.
#[derive(Default)]
struct Meeting {
    inside: Mutex<usize>,
    changed: Condvar,
    met: watch::Sender<usize>,
    entered: watch::Sender<usize>,
}

impl Receiver for Meeting {
    fn receive(&self, _: Message) {
        let mut inside = self.inside.lock().unwrap();
        *inside += 1;
        self.entered.send_replace(*inside);
        self.changed.notify_all();
        let (inside, waited) =
            self.changed.wait_timeout_while(inside, PATIENCE, |inside| *inside < 3).expect("unpoisoned");
        drop(inside);
        self.met.send_modify(|met| *met += usize::from(!waited.timed_out()));
    }
}

/// S000-81: during a regular call of a sender its out-of-band messages are delivered, concurrently.
#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn out_of_band_messages_are_delivered_concurrently() {
    let meeting = Arc::new(Meeting::default());
    let a = join("meeting", builder("A", "max", "")).await;
    let b = join("meeting", builder("B", "max", "").receiver(meeting.clone())).await;
    members(&a, 2).await;
    let mut entered = meeting.entered.subscribe();
    for (flags, inside) in [(Flags::NONE, 1), (Flags::OOB, 2), (Flags::OOB, 3)] {
        a.send(to(&b, 10).with_flags(flags)).await.unwrap();
        timeout(PATIENCE, entered.wait_for(|&now| now == inside)).await.expect("at once").unwrap();
    }
    let mut met = meeting.met.subscribe();
    timeout(PATIENCE, met.wait_for(|&met| met == 3)).await.expect("all at one time").unwrap();
    a.close().await;
    b.close().await;
}

/// A layer that records the task that runs it, and the addresses of payloads.
#[derive(Clone, Default)]
struct Noting {
    tasks: Arc<Mutex<BTreeMap<&'static str, tokio::task::Id>>>,
    payloads: Arc<Mutex<Vec<usize>>>,
    fired: Arc<Notify>,
}

impl Noting {
    fn note(&self, what: &'static str) {
        self.tasks.lock().unwrap().insert(what, tokio::task::id());
    }
}

impl Protocol for Noting {
    fn name(&self) -> &'static str {
        "NOTING"
    }
    fn id(&self) -> ProtocolId {
        ProtocolId(1998)
    }
    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.note("down");
        cx.arm(TimerKey(1), Duration::from_millis(1));
        let bytes = batch.messages.iter().filter_map(|message| message.payload_bytes());
        self.payloads.lock().unwrap().extend(bytes.map(|bytes| bytes.as_ptr() as usize));
    }
    fn up(&mut self, _cx: &mut Cx<'_>, _batch: &mut MessageBatch) {
        self.note("up");
    }
    fn timer(&mut self, _cx: &mut Cx<'_>, _key: TimerKey) {
        self.note("timer");
        self.fired.notify_one();
    }
}

/// S000-74: one task carries messages and fires timers, without a hand-off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_run_on_the_stacks_own_task() {
    let noting = Noting::default();
    let a = join("task", builder("A", "max", "").insert_above("FRAG2", Box::new(noting.clone()))).await;
    a.send(Message::bytes(None, "hello")).await.unwrap();
    timeout(PATIENCE, noting.fired.notified()).await.unwrap();
    let tasks = noting.tasks.lock().unwrap().clone();
    assert_eq!(tasks.get("timer"), tasks.get("down"));
    assert!(tasks.contains_key("timer"));
    a.close().await;
}

fn bytes(text: &'static str) -> Payload {
    Payload::Bytes(Some(text.into()))
}

async fn dispatchers(cluster: &str, count: usize, first: Noting) -> Vec<RpcDispatcher> {
    let mut all = Vec::new();
    for nth in 0..count {
        let mut builder = builder(["A", "B", "C", "D"][nth], "max", "").receiver(IgnoringReceiver);
        if nth == 0 {
            builder = builder.insert_above("FRAG2", Box::new(first.clone()));
        }
        let answer = move |request: &Message| match request.payload_bytes() {
            Some(bytes) if bytes.as_ref() == b"who" => Ok(Payload::Long(nth as i64)),
            _ => Ok(request.payload.clone()),
        };
        all.push(join_rpc(cluster, builder, answer).await);
    }
    members(all[0].channel(), count).await;
    all
}

async fn close(all: Vec<RpcDispatcher>) {
    for dispatcher in all {
        dispatcher.channel().clone().close().await;
    }
}

/// S000-14, S000-54: synchronous calls are futures; one thread waits for ten thousand of them.
#[tokio::test]
async fn ten_thousand_calls_wait_on_one_thread() {
    let all = dispatchers("many", 2, Noting::default()).await;
    let dest = all[1].channel().address().clone();
    let options = RequestOptions::all(PATIENCE).with_flags(Flags::OOB);
    let most = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..10_000i64)
        .map(|n| {
            let (caller, dest, options, most) = (all[0].clone(), dest.clone(), options.clone(), most.clone());
            tokio::spawn(async move {
                let answer = caller.call(&dest, Payload::Long(n), &options);
                most.fetch_max(caller.pending(), Ordering::Relaxed);
                assert_eq!(answer.await, Ok(Payload::Long(n)));
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert!(most.load(Ordering::Relaxed) >= 9_000, "{most:?} at once");
    assert_eq!(all[0].pending(), 0);
    close(all).await;
}

/// S000-53: a closure decides which responses count, and when there are enough.
#[tokio::test]
async fn a_closure_decides_which_answers_count() {
    let all = dispatchers("filter", 3, Noting::default()).await;
    let odd = RequestOptions::all(PATIENCE).with_filter(|_: &Address, answer: &Payload| match answer {
        Payload::Long(1) => FilterDecision::Accept,
        _ => FilterDecision::Ignore,
    });
    let answers = all[0].call_all(bytes("who"), &odd).await.unwrap();
    let from: Vec<&Address> = answers.iter().map(|answer| &answer.member).collect();
    assert_eq!(from, [all[1].channel().address()]);
    close(all).await;
}

/// S000-64: every unicast of an anycast carries the caller's own bytes; none is copied.
#[tokio::test]
async fn an_anycast_copies_no_bytes() {
    let noting = Noting::default();
    let all = dispatchers("anycast", 4, noting.clone()).await;
    let others: Vec<Address> = all[1..].iter().map(|other| other.channel().address().clone()).collect();
    let request = bytes::Bytes::from(vec![9; 1_000]);
    let place = request.as_ptr() as usize;
    noting.payloads.lock().unwrap().clear();
    let options = RequestOptions::all(PATIENCE).with_anycast();
    let answers = all[0].call_members(&others, Payload::Bytes(Some(request)), &options).await.unwrap();
    assert_eq!(answers.len(), 3);
    assert_eq!(*noting.payloads.lock().unwrap(), [place; 3]);
    close(all).await;
}

/// S000-34, S000-32: four become ten; within ten seconds all have the same view, and the same text of it.
#[tokio::test]
async fn four_members_become_ten() {
    let mut channels = Vec::new();
    for nth in 0..4 {
        channels.push(join("scale", builder(&format!("M{nth}"), "max", "")).await);
    }
    members(&channels[0], 4).await;
    let joining = (4..10).map(|nth| tokio::spawn(builder(&format!("M{nth}"), "max", "").connect("scale")));
    let joining: Vec<_> = joining.collect();
    timeout(Duration::from_secs(10), async {
        for joined in joining {
            channels.push(joined.await.unwrap().unwrap());
        }
        for channel in &channels {
            members(channel, 10).await;
        }
        // Names are sent apart from views, and may arrive later.
        while channels.iter().any(|channel| channel.view_text() != channels[0].view_text()) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("within ten seconds");
    let text = channels[0].view_text();
    assert!(text.starts_with("[M0|") && text.contains("] (10) [M0, "), "{text}");
    for channel in channels {
        channel.close().await;
    }
}

/// S000-16: a thousand channels in a row leave no task behind. Sockets: `a_thousand_members_leave_nothing_behind`.
#[tokio::test]
async fn a_thousand_channels_leave_nothing_behind() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    join("thousand", builder("A", "max", "")).await.close().await;
    let before = tasks();
    for round in 0..1_000 {
        let channel = join("thousand", builder("A", "max", "")).await;
        assert_eq!(channel.view_text(), "[A|0] (1) [A]");
        channel.close().await;
        assert_eq!(tasks(), before, "round {round}");
    }
}
