//! How calls end when something goes wrong around them: the driver dies, a peer is stalled, a view comes between.

mod cluster;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::{Slow, fill};
use consort_channel::rpc::{RequestOptions, Responder, RpcDispatcher, RpcHandler};
use consort_channel::{Address, Channel, ChannelBuilder, Flags, Message, Payload, RpcError, SendError, View};
use consort_conf::{Variables, parse_stack};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Nothing in these tests takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(20);

/// No call waits for so long in these tests: something else ends it.
const HOUR: Duration = Duration::from_secs(3_600);

/// A stack with little credit.
fn builder(name: &str) -> ChannelBuilder {
    let text = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/><GMS/>\
                <MFC max_credits=\"100000\"/><UFC max_credits=\"100000\"/><RSVP/><FRAG2/></config>";
    let stack = parse_stack("calls.xml", text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
    Channel::from_config(stack.config).name(name)
}

/// Answers when it is told to.
#[derive(Clone, Default)]
struct Later {
    asked: Arc<Mutex<Vec<Responder>>>,
    count: watch::Sender<usize>,
}

impl RpcHandler for Later {
    fn handle(&self, _: Message, responder: Option<Responder>) {
        self.asked.lock().unwrap().extend(responder);
        self.count.send_modify(|count| *count += 1);
    }
}

impl Later {
    /// Waits until this many requests have come.
    async fn asked(&self, count: usize) {
        let mut asked = self.count.subscribe();
        timeout(PATIENCE, asked.wait_for(|&asked| asked == count)).await.expect("asked in time").unwrap();
    }
}

async fn join(cluster: &str, builder: ChannelBuilder, handler: impl RpcHandler) -> RpcDispatcher {
    let joining = RpcDispatcher::connect(builder, cluster, handler);
    timeout(PATIENCE, joining).await.expect("in time").expect("joined")
}

async fn members(dispatcher: &RpcDispatcher, count: usize) {
    let mut views = dispatcher.channel().watch_view();
    let has_all = |view: &Option<View>| view.as_ref().is_some_and(|view| view.len() == count);
    timeout(PATIENCE, views.wait_for(has_all)).await.expect("a view in time").unwrap();
}

fn at(dispatcher: &RpcDispatcher) -> Address {
    dispatcher.channel().address().clone()
}

/// A member whose receiver is not done with what it has got, and has no room for more from `caller`.
async fn full(
    cluster: &str,
    name: &str,
    caller: &RpcDispatcher,
    handler: impl RpcHandler,
) -> (RpcDispatcher, Arc<Slow>) {
    let slow = Slow::new();
    let dispatcher = join(cluster, builder(name).receiver(slow.clone()), handler).await;
    members(caller, dispatcher.channel().view().expect("joined").len()).await;
    let message = Message::bytes(Some(at(&dispatcher)), vec![7; 10_000]);
    fill(caller.channel(), &message).await;
    (dispatcher, slow)
}

fn one() -> Payload {
    Payload::Long(1)
}

fn hour() -> RequestOptions {
    RequestOptions::all(HOUR)
}

/// Calls, and messages that wait for room or for acknowledgements, end with the driver when something in it panics.
#[tokio::test]
async fn whoever_waits_is_told_when_the_driver_panics() {
    let a = join("panic", builder("A"), Later::default()).await;
    let b = join("panic", builder("B"), Later::default()).await;
    members(&a, 2).await;
    let (c, _slow) = full("panic", "C", &a, Later::default()).await;
    let acknowledged = Message::bytes(Some(at(&b)), "x").with_flags(Flags::RSVP);
    let too_much = Message::bytes(Some(at(&c)), vec![7; 10_000]);
    let (to_b, to_all) = (at(&b), hour());
    // All of them are under way before the driver has its next turn.
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
    assert_eq!((call, group), (Err(RpcError::Closed), Ok(Vec::new())));
    assert_eq!((rsvp, gate, stack), (Err(SendError::Closed), Err(SendError::Closed), None));
    assert_eq!(a.call(&to_b, one(), &to_all).await, Err(RpcError::Closed));
    assert_eq!(a.pending(), 0);
}

/// A call ends when the runtime that its member runs on is shut down, whatever runtime the caller is on.
#[tokio::test]
async fn a_call_ends_with_the_runtime_of_its_member() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let later = Later::default();
    let b = join("runtime", builder("B"), later.clone()).await;
    let joining = RpcDispatcher::connect(builder("A"), "runtime", Later::default());
    let a = end(runtime.spawn(joining)).await.expect("joined");
    members(&a, 2).await;
    let call = tokio::spawn(async move { a.call(&at(&b), one(), &hour()).await });
    later.asked(1).await;
    runtime.shutdown_background();
    assert_eq!(end(call).await, Err(RpcError::Closed));
}

async fn end<T>(waiting: JoinHandle<T>) -> T {
    timeout(PATIENCE, waiting).await.expect("it ends").expect("no panic")
}
