//! Tests of calls that end early: the driver dies, a peer is stalled, or a view changes.

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use cluster::{PATIENCE, Slow, fill, join_rpc, members};
use consort_channel::rpc::{RequestOptions, Responder, RpcDispatcher, RpcHandler};
use consort_channel::{Address, Channel, ChannelBuilder, Flags, Message, Payload, RpcError, SendError};
use consort_conf::{Variables, parse_stack};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A timeout that no call of these tests reaches.
const HOUR: Duration = Duration::from_secs(3_600);

/// One test at a time: members of all tests share one loopback, and a driver that another test wakes checks its
/// deadlines too.
static ALONE: Mutex<()> = Mutex::const_new(());

const CREDITS: usize = 100_000;

/// A stack with little credit and without periodic work or retransmissions for an hour.
fn builder(name: &str) -> ChannelBuilder {
    let text = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2 xmit_interval=\"3600000\"/>\
                <UNICAST3 xmit_interval=\"3600000\"/><STABLE desired_avg_gossip=\"0\"/>\
                <GMS join_timeout=\"500\" view_ack_collection_timeout=\"500\"/>\
                <MFC max_credits=\"100000\"/><UFC max_credits=\"100000\" max_block_time=\"3600000\"/>\
                <RSVP timeout=\"3600000\" resend_interval=\"3000000\"/><FRAG2/></config>";
    let stack = parse_stack("calls.xml", text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
    Channel::from_config(stack.config).name(name)
}

/// Keeps requests until the test responds.
#[derive(Clone, Default)]
struct Later {
    asked: Arc<std::sync::Mutex<Vec<Responder>>>,
    count: watch::Sender<usize>,
}

impl RpcHandler for Later {
    fn handle(&self, _: Message, responder: Option<Responder>) {
        self.asked.lock().unwrap().extend(responder);
        self.count.send_modify(|count| *count += 1);
    }
}

impl Later {
    /// Waits until this many requests have arrived.
    async fn asked(&self, count: usize) {
        let mut asked = self.count.subscribe();
        timeout(PATIENCE, asked.wait_for(|&asked| asked == count)).await.expect("asked in time").unwrap();
    }
}

fn at(dispatcher: &RpcDispatcher) -> Address {
    dispatcher.channel().address().clone()
}

/// Sends to a member whose receiver does not finish until there is no capacity.
async fn fill_up(caller: &RpcDispatcher, member: &RpcDispatcher) {
    fill(caller.channel(), &Message::bytes(Some(at(member)), vec![7; 10_000])).await;
}

fn one() -> Payload {
    Payload::Long(1)
}

fn hour() -> RequestOptions {
    RequestOptions::all(HOUR)
}

/// Calls, and messages that wait for capacity or acknowledgements, end when the driver panics.
#[tokio::test]
async fn waiting_callers_get_an_error_when_the_driver_panics() {
    let _alone = ALONE.lock().await;
    let a = join_rpc("panic", builder("A"), Later::default()).await;
    let b = join_rpc("panic", builder("B"), Later::default()).await;
    let c = join_rpc("panic", builder("C").receiver(Slow::new()), Later::default()).await;
    members(a.channel(), 3).await;
    fill_up(&a, &c).await;
    let acknowledged = Message::bytes(Some(at(&b)), "x").with_flags(Flags::RSVP);
    let too_much = Message::bytes(Some(at(&c)), vec![7; 10_000]);
    let (to_b, to_all) = (at(&b), hour());
    // All of them have begun before the driver's next cycle.
    let all = async {
        tokio::join!(
            a.call(&to_b, one(), &to_all),
            a.call_all(one(), &to_all),
            a.channel().send(acknowledged),
            a.channel().send(too_much),
            a.channel().with_stack(|_, _| panic!("as a layer would that has a bug")),
        )
    };
    let (call, group, rsvp, gate, stack): (_, _, _, _, Option<()>) =
        timeout(PATIENCE, all).await.expect("all of them end");
    assert_eq!(call, Err(RpcError::Closed));
    let rows = group.expect("a row for each").into_iter().map(|row| (row.member, row.result));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [at(&a), at(&b), at(&c)].map(|member| (member, Err(RpcError::Closed)))
    );
    assert_eq!((rsvp, gate, stack), (Err(SendError::Closed), Err(SendError::Closed), None));
    assert_eq!(a.call(&to_b, one(), &to_all).await, Err(RpcError::Closed));
    assert_eq!(a.pending(), 0);
}

/// A call ends when the runtime of its member is shut down, whatever runtime the caller is on.
#[tokio::test]
async fn a_call_ends_with_the_runtime_of_its_member() {
    let _alone = ALONE.lock().await;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let later = Later::default();
    let b = join_rpc("runtime", builder("B"), later.clone()).await;
    let joining = RpcDispatcher::connect(builder("A"), "runtime", Later::default());
    let a = end(runtime.spawn(joining)).await.expect("joined");
    members(a.channel(), 2).await;
    let call = tokio::spawn(async move { a.call(&at(&b), one(), &hour()).await });
    later.asked(1).await;
    runtime.shutdown_background();
    assert_eq!(end(call).await, Err(RpcError::Closed));
}

const SOON: Duration = Duration::from_millis(50);

/// A call to a member without capacity ends at its timeout, and is not carried out later.
#[tokio::test]
async fn a_call_that_waits_for_room_ends_in_time_and_is_not_sent_late() {
    let _alone = ALONE.lock().await;
    let (slow, later) = (Slow::new(), Later::default());
    // The coordinator joins first: it has a timer for the view, which would wake the driver.
    let b = join_rpc("room", builder("B").receiver(slow.clone()), later.clone()).await;
    let a = join_rpc("room", builder("A"), Later::default()).await;
    fill_up(&a, &b).await;
    let (dest, options) = (at(&b), RequestOptions::all(SOON));
    let called = timeout(PATIENCE, a.call(&dest, one(), &options)).await.expect("no longer than it may");
    assert_eq!(called, Err(RpcError::TimedOut(SOON)));
    let (to, options) = ([dest], options.with_anycast());
    let called =
        timeout(PATIENCE, a.call_members(&to, one(), &options)).await.expect("no longer than it may");
    assert_eq!(called.expect("a row")[0].result, Err(RpcError::TimedOut(SOON)));
    slow.kept.lock().unwrap().take();
    let last = tokio::spawn({
        let (a, b) = (a.clone(), at(&b));
        async move { a.call(&b, Payload::Long(2), &hour()).await }
    });
    // A member's requests arrive in the order in which they were sent.
    later.asked(1).await;
    later.asked.lock().unwrap().pop().expect("a responder").reply(Ok(Payload::Long(3)));
    assert_eq!(end(last).await, Ok(Payload::Long(3)));
}

/// The same for a call that waits for the acknowledgement of its request.
#[tokio::test]
async fn a_call_that_waits_for_an_acknowledgement_ends_in_time() {
    let _alone = ALONE.lock().await;
    let a = join_rpc("rsvp", builder("A"), Later::default()).await;
    let b = join_rpc("rsvp", builder("B").receiver(Slow::new()), Later::default()).await;
    members(a.channel(), 2).await;
    // The gate has capacity for more, but flow control does not.
    a.channel().send(Message::bytes(Some(at(&b)), vec![7; CREDITS])).await.unwrap();
    let options = RequestOptions::all(SOON).with_flags(Flags::RSVP);
    let called = timeout(PATIENCE, a.call(&at(&b), one(), &options)).await.expect("no longer than it may");
    assert_eq!(called, Err(RpcError::TimedOut(SOON)));
}

/// An anycast that has its responses does not wait for a member without capacity.
#[tokio::test]
async fn an_anycast_that_has_its_answer_waits_for_no_room() {
    let _alone = ALONE.lock().await;
    let a = join_rpc("first", builder("A"), Later::default()).await;
    let echo = |request: &Message| Ok(request.payload.clone());
    let b = join_rpc("first", builder("B"), echo).await;
    let c = join_rpc("first", builder("C").receiver(Slow::new()), Later::default()).await;
    members(a.channel(), 3).await;
    fill_up(&a, &c).await;
    let options = RequestOptions::first(HOUR).with_anycast();
    for members in [[at(&b), at(&c)], [at(&c), at(&b)]] {
        let call = a.call_members(&members, one(), &options);
        let rows = timeout(PATIENCE, call).await.expect("it ends").expect("an answer");
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0].member, &rows[0].result), (&at(&b), &Ok(one())));
    }
}

/// A panic of a filter is its caller's, not the member's.
#[tokio::test]
async fn a_filter_that_panics_ends_its_call_alone() {
    let _alone = ALONE.lock().await;
    let echo = |request: &Message| Ok(request.payload.clone());
    let a = join_rpc("filter", builder("A"), echo).await;
    let options =
        RequestOptions::all(HOUR).with_filter(|_, _| panic!("as an application would that has a bug"));
    let caller = a.clone();
    let call = tokio::spawn(async move { caller.call_all(one(), &options).await });
    let ended = timeout(PATIENCE, call).await.expect("it ends");
    assert!(ended.expect_err("the filter has panicked").is_panic());
    assert_eq!(a.pending(), 0);
    let (to_itself, options) = (at(&a), hour());
    assert_eq!(timeout(PATIENCE, a.call(&to_itself, one(), &options)).await.expect("it works on"), Ok(one()));
}

async fn end<T>(waiting: JoinHandle<T>) -> T {
    timeout(PATIENCE, waiting).await.expect("it ends").expect("no panic")
}
