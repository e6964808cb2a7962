//! Tests of the application's panics: each ends its call alone.

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::{PATIENCE, join, join_rpc, members};
use consort_channel::rpc::{RequestOptions, Responder};
use consort_channel::{
    Channel, ChannelBuilder, Delivery, Flags, Message, Payload, Receiver, RpcError, StateError, View,
};
use consort_conf::{Variables, parse_stack};
use tokio::sync::watch;
use tokio::time::timeout;

const POLICIES: [&str; 4] = ["max", "unbatch", "submit", "direct"];

/// A stack with little credit.
fn builder(name: &str, policy: &str) -> ChannelBuilder {
    let text = format!(
        "<config><SHARED_LOOPBACK message_processing_policy=\"{policy}\"/><SHARED_LOOPBACK_PING/><NAKACK2/>\
         <UNICAST3/><STABLE/><GMS/><MFC max_credits=\"100000\"/><UFC max_credits=\"100000\"/><FRAG2/>\
         <STATE_TRANSFER/></config>"
    );
    let stack = parse_stack("panics.xml", &text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
    Channel::from_config(stack.config).name(name)
}

/// Two members, the second with this receiver.
async fn two(cluster: &str, policy: &str, receiver: impl Receiver) -> (Channel, Channel) {
    let a = join(cluster, builder("A", policy)).await;
    let b = join(cluster, builder("B", policy).receiver(receiver)).await;
    members(&a, 2).await;
    (a, b)
}

async fn reach(count: &watch::Sender<usize>, wanted: usize) {
    let mut counts = count.subscribe();
    if timeout(PATIENCE, counts.wait_for(|&count| count >= wanted)).await.is_err() {
        panic!("{} of {wanted}", *count.borrow());
    }
}

async fn close(channels: impl IntoIterator<Item = Channel>) {
    for channel in channels {
        timeout(PATIENCE, channel.close()).await.expect("it closes");
    }
}

/// Counts calls, and panics in each.
#[derive(Default)]
struct Fragile {
    received: watch::Sender<usize>,
    views: watch::Sender<usize>,
}

impl Receiver for Fragile {
    fn receive_batch(&self, delivery: Delivery) {
        self.received.send_modify(|count| *count += delivery.messages().len());
        panic!("with a batch in hand");
    }
    fn view_accepted(&self, _: &View) {
        self.views.send_modify(|count| *count += 1);
        panic!("at a view");
    }
    fn state(&self) -> Result<Option<Bytes>, String> {
        panic!("with no state");
    }
    fn set_state(&self, _: Option<Bytes>) {
        panic!("at a state");
    }
}

/// Three times the credits are sent to a receiver that panics at each batch, in lanes and out of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panicking_receiver_gets_later_messages() {
    for policy in POLICIES {
        let fragile = Arc::new(Fragile::default());
        let (a, b) = two(&format!("after-{policy}"), policy, fragile.clone()).await;
        for nth in 0..600 {
            let dest = (nth % 2 == 0).then(|| b.address().clone());
            let flags = if nth % 5 == 0 { Flags::OOB } else { Flags::NONE };
            let message = Message::bytes(dest, vec![7; 1_000]).with_flags(flags);
            timeout(PATIENCE, a.send(message)).await.expect("room").expect("an open channel");
        }
        reach(&fragile.received, 600).await;
        assert!(b.with_stack(|_, _| ()).await.is_some(), "{policy}: the member lives");
        close([a, b]).await;
    }
}

/// Panics at every other message.
#[derive(Default)]
struct Picky {
    received: watch::Sender<usize>,
}

impl Receiver for Picky {
    fn receive(&self, _: Message) {
        let mut nth = 0;
        self.received.send_modify(|count| {
            *count += 1;
            nth = *count;
        });
        assert!(nth % 2 == 0, "at an odd one");
    }
}

/// A batch's other messages are delivered after a panic at one of them.
#[tokio::test]
async fn a_panic_at_one_message_costs_no_other() {
    for policy in ["max", "direct"] {
        let picky = Arc::new(Picky::default());
        let (a, b) = two(&format!("others-{policy}"), policy, picky.clone()).await;
        for _ in 0..500 {
            a.send(Message::bytes(Some(b.address().clone()), vec![7; 10])).await.unwrap();
        }
        reach(&picky.received, 500).await;
        close([a, b]).await;
    }
}

/// Views are delivered after a panic at an earlier one.
#[tokio::test]
async fn views_are_delivered_after_a_panic_at_one() {
    let fragile = Arc::new(Fragile::default());
    let (a, b) = two("views", "max", fragile.clone()).await;
    reach(&fragile.views, 1).await;
    let c = join("views", builder("C", "max")).await;
    reach(&fragile.views, 2).await;
    close([a, b, c]).await;
}

/// A requester of a state gets an error if the provider or its own receiver panics; earlier panics at batches delay
/// neither.
#[tokio::test]
async fn a_requester_of_a_state_gets_the_panic_as_error() {
    for policy in ["max", "direct"] {
        let fragile = Arc::new(Fragile::default());
        let (a, b) = two(&format!("state-{policy}"), policy, fragile.clone()).await;
        let multicast = || async { a.send(Message::bytes(None, "before")).await.unwrap() };
        multicast().await;
        reach(&fragile.received, 1).await;

        let given = timeout(PATIENCE, a.fetch_state(Some(b.address().clone()), PATIENCE)).await;
        let Ok(Err(StateError::Refused(why))) = given else { panic!("{policy}: {given:?}") };
        assert!(why.contains("with no state"), "{why}");

        let taken = timeout(PATIENCE, b.fetch_state(None, PATIENCE)).await.expect("it ends");
        assert_eq!(taken, Err(StateError::NotTaken("at a state".to_owned())), "{policy}");
        multicast().await;
        reach(&fragile.received, 2).await;
        close([a, b]).await;
    }
}

/// A panic of a closure is sent to the caller; concurrent requests get their responses.
#[tokio::test]
async fn a_request_that_makes_its_handler_panic_fails_alone() {
    for policy in POLICIES {
        let handler = |request: &Message| match request.payload {
            Payload::Long(13) => panic!("at thirteen"),
            _ => Ok(request.payload.clone()),
        };
        let cluster = format!("handler-{policy}");
        let a = join_rpc(&cluster, builder("A", policy), handler).await;
        let itself = a.channel().address().clone();
        let options = RequestOptions::all(PATIENCE);
        let calls = (0..40).map(|nth| {
            let (a, itself, options) = (a.clone(), itself.clone(), options.clone());
            tokio::spawn(async move { a.call(&itself, Payload::Long(nth), &options).await })
        });
        for (nth, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
            match call.await.unwrap() {
                Err(error @ RpcError::Remote { .. }) if nth == 13 => {
                    let text = error.to_string();
                    assert!(text.starts_with("A failed: "), "{text}");
                    assert!(text.ends_with("the application panicked: at thirteen"), "{text}");
                }
                result => assert_eq!(result, Ok(Payload::Long(nth as i64)), "{policy}"),
            }
        }
        close([a.channel().clone()]).await;
    }
}

/// A panic in a handler with a responder leaves its caller to the timeout, and only that one.
#[tokio::test]
async fn a_responder_dropped_by_a_panic_sends_no_response() {
    let handler = Responding(|request, responder| {
        assert!(request.payload != Payload::Long(13), "at thirteen");
        responder.reply(Ok(request.payload));
    });
    let a = join_rpc("responder", builder("A", "direct"), handler).await;
    let itself = a.channel().address().clone();
    let soon = Duration::from_millis(10);
    let lost = a.call(&itself, Payload::Long(13), &RequestOptions::all(soon)).await;
    assert_eq!(lost, Err(RpcError::TimedOut(soon)));
    let kept = a.call(&itself, Payload::Long(14), &RequestOptions::all(PATIENCE)).await;
    assert_eq!(kept, Ok(Payload::Long(14)));
    close([a.channel().clone()]).await;
}

struct Responding(fn(Message, Responder));

impl consort_channel::rpc::RpcHandler for Responding {
    fn handle(&self, request: Message, responder: Option<Responder>) {
        (self.0)(request, responder.expect("a call"));
    }
}
