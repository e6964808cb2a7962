//! Tests of counters and fork channels on channels of one process.

mod cluster;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::{PATIENCE, join, members};
use consort_channel::counter::{CounterError, CounterService};
use consort_channel::fork::{FORK_CHANNELS_MAX, FORK_ID_BYTES_MAX, ForkError};
use consort_channel::{Channel, ChannelBuilder, Delivery, IgnoringReceiver, Message, Receiver, View};
use consort_conf::{Variables, parse_stack};
use consort_testkit::Log;
use tokio::sync::watch;
use tokio::time::timeout;

const CREDITS: usize = 100_000;

fn builder(name: &str, top: &str) -> ChannelBuilder {
    let text = format!(
        "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
         <GMS join_timeout=\"100\"/><UFC max_credits=\"{CREDITS}\"/><MFC max_credits=\"{CREDITS}\"/><FRAG2/>{top}</config>"
    );
    let stack = parse_stack("counters.xml", &text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
    Channel::from_config(stack.config).name(name)
}

async fn three(cluster: &str, top: &str) -> Vec<Channel> {
    let mut channels = Vec::new();
    for name in ["A", "B", "C"] {
        channels.push(join(cluster, builder(name, top)).await);
    }
    members(&channels[0], 3).await;
    channels
}

#[tokio::test]
async fn increments_of_all_members_count_once_also_after_the_coordinator_has_left() {
    let mut channels = three("counted", "<COUNTER/>").await;
    let mut total = 0;
    while !channels.is_empty() {
        let services: Vec<_> = channels.iter().map(|channel| CounterService::new(channel).unwrap()).collect();
        let counting = services.iter().map(|service| {
            let service = service.clone();
            tokio::spawn(async move {
                let counter = service.get_or_create("total", 0).await.unwrap();
                for _ in 0..50 {
                    counter.increment_and_get().await.unwrap();
                }
            })
        });
        for counting in counting.collect::<Vec<_>>() {
            timeout(PATIENCE, counting).await.unwrap().unwrap();
        }
        total += 50 * channels.len() as i64;
        let counter = services.last().unwrap().get_or_create("total", 0).await.unwrap();
        assert_eq!(timeout(PATIENCE, counter.get()).await.unwrap(), Ok(total));
        drop((services, counter));
        channels.remove(0).close().await;
        if let Some(next) = channels.first() {
            let left = channels.len();
            members(next, left).await;
        }
    }
}

#[tokio::test]
async fn operations_of_a_counter_are_those_of_jgroups() {
    let channels = three("operations", "<COUNTER num_backups=\"2\" bypass_bundling=\"true\"/>").await;
    for channel in &channels {
        let service = CounterService::new(channel).unwrap();
        let counter = service.get_or_create(channel.name(), 5).await.unwrap();
        assert_eq!(counter.name(), channel.name());
        assert_eq!(counter.increment_and_get().await, Ok(6));
        assert_eq!(counter.decrement_and_get().await, Ok(5));
        assert_eq!(counter.add_and_get(-10).await, Ok(-5));
        assert_eq!(counter.compare_and_set(-5, 7).await, Ok(true));
        assert_eq!(counter.compare_and_set(-5, 8).await, Ok(false));
        assert_eq!(counter.compare_and_swap(7, 9).await, Ok(7));
        assert_eq!(counter.set(3).await, Ok(()));
        assert_eq!(counter.get().await, Ok(3));
        let same = CounterService::new(&channels[2]).unwrap().get_or_create(channel.name(), 0).await.unwrap();
        assert_eq!(same.get().await, Ok(3));
        service.delete(channel.name()).unwrap();
        let gone = Err(CounterError::Refused(format!("counter \"{}\" not found", channel.name())));
        assert_eq!(counter.get().await, gone);
    }
}

#[tokio::test]
async fn operation_without_an_answer_ends_after_the_timeout() {
    let a = join("unanswered", builder("A", "")).await;
    let b = join("unanswered", builder("B", "<COUNTER timeout=\"50\"/>")).await;
    members(&a, 2).await;
    let service = CounterService::new(&b).unwrap();
    let error = timeout(PATIENCE, service.get_or_create("c", 0)).await.unwrap().unwrap_err();
    assert_eq!(error, CounterError::TimedOut(Duration::from_millis(50)));
    assert_eq!(CounterService::new(&a).unwrap_err(), CounterError::NoProtocol);
    b.close().await;
    assert_eq!(service.get_or_create("c", 0).await.unwrap_err(), CounterError::Closed);
}

/// Counts messages and views, and keeps the beginnings of messages.
#[derive(Default)]
struct Recorder {
    texts: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
    views: watch::Sender<usize>,
    kept: Mutex<Option<Vec<Delivery>>>,
}

impl Receiver for Recorder {
    fn receive_batch(&self, delivery: Delivery) {
        let texts = delivery.messages().iter().map(|message| {
            let bytes = message.payload_bytes().map_or(&[][..], |bytes| bytes);
            String::from_utf8_lossy(&bytes[..bytes.len().min(20)]).into_owned()
        });
        self.texts.lock().unwrap().extend(texts);
        let count = delivery.messages().len();
        if let Some(kept) = &mut *self.kept.lock().unwrap() {
            kept.push(delivery);
        }
        self.count.send_modify(|all| *all += count);
    }

    fn view_accepted(&self, view: &View) {
        self.views.send_replace(view.len());
    }
}

impl Recorder {
    async fn received(&self, count: usize) -> Vec<String> {
        let mut received = self.count.subscribe();
        timeout(PATIENCE, received.wait_for(|&all| all >= count)).await.expect("in time").unwrap();
        self.texts.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn message_of_a_fork_channel_reaches_those_with_its_ids_only() {
    let main: Vec<Arc<Recorder>> = (0..2).map(|_| Arc::default()).collect();
    let a = join("forks", builder("A", "<FORK/>").receiver(main[0].clone())).await;
    let b = join("forks", builder("B", "<FORK/>").receiver(main[1].clone())).await;
    members(&a, 2).await;
    members(&b, 2).await;
    let ids = [("s", "one"), ("s", "two"), ("t", "one")];
    let receivers: Vec<Arc<Recorder>> = ids.iter().map(|_| Arc::default()).collect();
    let forks: Vec<_> = ids
        .iter()
        .zip(&receivers)
        .map(|((stack, channel), receiver)| b.fork(stack, channel, receiver.clone()).unwrap())
        .collect();
    let mut views = receivers[0].views.subscribe();
    timeout(PATIENCE, views.wait_for(|&count| count == 2)).await.unwrap().unwrap();
    assert_eq!(forks[0].view(), b.view());

    let own = a.fork("s", "one", IgnoringReceiver).unwrap();
    own.send(Message::bytes(None, "to all")).await.unwrap();
    own.send(Message::bytes(Some(b.address().clone()), "to B")).await.unwrap();
    a.fork("s", "two", IgnoringReceiver).unwrap().try_send(Message::bytes(None, "other")).unwrap();
    a.send(Message::bytes(None, "main")).await.unwrap();
    let mut texts = receivers[0].received(2).await;
    texts.sort();
    assert_eq!(texts, ["to B", "to all"]);
    assert_eq!(receivers[1].received(1).await, ["other"]);
    assert_eq!(main[1].received(1).await, ["main"]);
    assert_eq!(*receivers[2].count.borrow(), 0);

    // A closed one may be opened again, and gets later messages.
    let error = b.fork("s", "one", IgnoringReceiver).unwrap_err();
    assert!(matches!(&error, ForkError::AlreadyOpen { stack, channel } if stack == "s" && channel == "one"));
    forks.into_iter().next().unwrap().close();
    let again = Arc::new(Recorder::default());
    let _again = b.fork("s", "one", again.clone()).unwrap();
    own.send(Message::bytes(None, "later")).await.unwrap();
    assert_eq!(again.received(1).await, ["later"]);
    a.close().await;
}

/// The messages have four times the credits: each credit returns, of received and of discarded messages.
#[tokio::test]
async fn unknown_fork_channels_are_named_in_one_warning_and_take_no_credits() {
    let (log, _guard) = Log::begin("warn");
    let a = join("unknown", builder("A", "<FORK/>")).await;
    let receiver = Arc::new(Recorder::default());
    let b = join("unknown", builder("B", "<FORK/>")).await;
    members(&a, 2).await;
    let _known = b.fork("known", "channel", receiver.clone()).unwrap();
    let to_b = |text: String| Message::bytes(Some(b.address().clone()), text + &"x".repeat(2_000));
    let unknown = a.fork("no stack", "no channel", IgnoringReceiver).unwrap();
    let known = a.fork("known", "channel", IgnoringReceiver).unwrap();
    for nth in 0..100 {
        timeout(PATIENCE, unknown.send(to_b(format!("{nth} ")))).await.expect("credits").unwrap();
        timeout(PATIENCE, known.send(to_b(format!("{nth} ")))).await.expect("credits").unwrap();
    }
    receiver.received(100).await;
    let logged = log.take();
    let warnings: Vec<&str> = logged.lines().filter(|line| line.contains("fork channel")).collect();
    assert_eq!(warnings.len(), 1, "{logged}");
    let text = "fork channel \"no channel\" of fork stack \"no stack\" are discarded";
    assert!(warnings[0].contains(text) && warnings[0].contains("messages of A"), "{logged}");
}

/// A receiver that does not finish holds the credits, so that its queue is bounded.
#[tokio::test]
async fn slow_receiver_of_a_fork_channel_gets_no_more_than_the_credits() {
    let a = join("slow-fork", builder("A", "<FORK/>")).await;
    let b = join("slow-fork", builder("B", "<FORK/>")).await;
    members(&a, 2).await;
    let receiver = Arc::new(Recorder { kept: Mutex::new(Some(Vec::new())), ..Recorder::default() });
    let _fork = b.fork("s", "c", receiver.clone()).unwrap();
    let own = a.fork("s", "c", IgnoringReceiver).unwrap();
    let message = Message::bytes(Some(b.address().clone()), vec![b'x'; 1_000]);
    while own.try_send(message.clone()).is_ok() {}
    receiver.received(CREDITS / 1_000).await;
    a.with_stack(|_, _| ()).await.unwrap();
    b.with_stack(|_, _| ()).await.unwrap();
    assert_eq!(*receiver.count.borrow(), CREDITS / 1_000);
    receiver.kept.lock().unwrap().take();
    receiver.received(CREDITS / 1_000 + 1).await;
}

#[tokio::test]
async fn fork_channels_are_bounded_in_number_and_their_ids_in_length() {
    let without = join("without-fork", builder("A", "")).await;
    assert_eq!(without.fork("s", "c", IgnoringReceiver).unwrap_err(), ForkError::NoProtocol);
    let channel = join("bounded-forks", builder("A", "<FORK/>")).await;
    let long = "x".repeat(FORK_ID_BYTES_MAX + 1);
    for (stack, fork) in [(long.as_str(), "c"), ("s", long.as_str())] {
        assert_eq!(channel.fork(stack, fork, IgnoringReceiver).unwrap_err(), ForkError::IdTooLong(1_025));
    }
    let open = |nth: usize| channel.fork("s", &nth.to_string(), IgnoringReceiver);
    let mut forks: Vec<_> = (0..FORK_CHANNELS_MAX).map(|nth| open(nth).unwrap()).collect();
    assert_eq!(open(FORK_CHANNELS_MAX).unwrap_err(), ForkError::TooMany);
    forks.pop();
    let last = open(FORK_CHANNELS_MAX).unwrap();
    drop(forks);
    channel.clone().close().await;
    assert_eq!(channel.fork("s", "late", IgnoringReceiver).unwrap_err(), ForkError::Closed);
    assert!(last.send(Message::bytes(None, "x")).await.is_err());
}
