//! Tests of a driver's start and end.

mod member;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use consort_group::{Address, Indication, Message, PhysAddr, Stack, Time, Version};
use consort_net::{Application, BoundEdge, Command, EdgeKind, EdgeState, SubmitError, TransportConfig};
use member::{Member, TIMEOUT, tcp};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

#[tokio::test]
async fn dropping_the_last_handle_closes_the_driver() {
    let member = Member::start(&tcp());
    let (handle, mut packets) = (member.handle, member.packets);
    let clone = handle.clone();
    drop(handle);
    clone.submit(Command::Call(Box::new(|_, _| ()))).unwrap();
    drop(clone);
    let end = timeout(TIMEOUT, packets.recv()).await.expect("the driver ends");
    assert_eq!(end, None);
}

#[tokio::test]
async fn after_shutdown_commands_are_handed_back() {
    let member = Member::start(&tcp());
    member.handle.shutdown().await;
    assert!(matches!(member.handle.submit(Command::Disconnect), Err(SubmitError::Closed(_))));
    assert!(!member.handle.submit_all(&mut vec![Command::Disconnect]));
    // A second shutdown, from another handle, returns at once.
    member.handle.clone().shutdown().await;
}

#[tokio::test]
async fn commands_submitted_before_the_shutdown_are_carried_out() {
    let (a, mut b) = (Member::start(&tcp()), Member::start(&tcp()));
    a.send(b.phys, "opens the connection");
    b.packet().await;
    for number in 0..100u8 {
        a.send(b.phys, vec![number; 10_000]);
    }
    a.handle.shutdown().await;
    for number in 0..100u8 {
        assert_eq!(b.packet().await.1, vec![number; 10_000]);
    }
}

#[tokio::test]
async fn a_bound_edge_that_is_not_used_frees_its_port() {
    let edge = BoundEdge::bind(&tcp(), Version::V5_5_7).unwrap();
    let port = edge.phys_addr().port;
    drop(edge);
    let config = TransportConfig { bind_port: port, port_range: 0, ..tcp() };
    assert_eq!(Member::start(&config).phys.port, port);
}

#[tokio::test]
async fn a_peer_that_hangs_does_not_hold_up_the_shutdown() {
    let mut member = Member::start(&tcp());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = PhysAddr::from(listener.local_addr().unwrap());
    member.send(peer, "x");
    // Accepted, never read, never closed.
    let _hanging = listener.accept().await.unwrap();
    member.until(|seen| seen.peers.len() == 1).await;
    timeout(Duration::from_secs(2), member.handle.shutdown()).await.expect("it ends by itself");
}

#[tokio::test]
async fn members_of_one_process_share_a_loopback() {
    let config = TransportConfig { kind: EdgeKind::SharedLoopback, mcast_port: 1, ..tcp() };
    let (mut a, mut b, mut c) = (Member::start(&config), Member::start(&config), Member::start(&config));
    let mut other = Member::start(&TransportConfig { mcast_port: 2, ..config });
    a.multicast("all");
    assert_eq!(b.packet().await.1, "all");
    assert_eq!(c.packet().await.1, "all");
    b.send(a.phys, "one");
    assert_eq!(a.packet().await, (b.phys, "one".into()));
    let own = other.phys;
    other.send(own, "to myself");
    other.handle.shutdown().await;
    assert_eq!(other.packets.recv().await, None);
}

/// Records the driver's calls.
struct CallRecorder {
    deadline: Arc<Mutex<Option<Instant>>>,
    calls: mpsc::Sender<&'static str>,
}

impl Application for CallRecorder {
    fn indication(&mut self, _: &mut Stack, _: Time, _: Indication) {
        let _ = self.calls.try_send("packet");
    }

    fn poll_timeout(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap()
    }

    fn handle_timeout(&mut self, _: Instant) {
        *self.deadline.lock().unwrap() = None;
        let _ = self.calls.try_send("timeout");
    }
}

/// Input counts although the application's deadline has passed: a member that was stopped for a while finds both when
/// it resumes.
#[tokio::test]
async fn received_packets_are_indicated_before_the_timeout() {
    let config = TransportConfig { kind: EdgeKind::SharedLoopback, mcast_port: 3, ..tcp() };
    let (calls, mut recorded) = mpsc::channel(8);
    let deadline = Arc::new(Mutex::new(None));
    let app = CallRecorder { deadline: deadline.clone(), calls };
    let a = Member::with(BoundEdge::bind(&config, Version::V5_5_7).unwrap(), app);
    let b = Member::start(&config);
    b.send(a.phys, "so that both are at rest");
    assert_eq!(timeout(TIMEOUT, recorded.recv()).await.unwrap(), Some("packet"));
    // One cycle of the sender, and with it one of the receiver: the packet wakes it after the deadline.
    b.send(a.phys, "in time");
    let late = move |_: &mut Stack, _| *deadline.lock().unwrap() = Some(Instant::now());
    b.handle.submit(Command::Call(Box::new(late))).unwrap();
    assert_eq!(timeout(TIMEOUT, recorded.recv()).await.unwrap(), Some("packet"));
    assert_eq!(timeout(TIMEOUT, recorded.recv()).await.unwrap(), Some("timeout"));
}

/// Returns messages, and records after each cycle how many packets have arrived and left.
struct Echo {
    outbox: VecDeque<Message>,
    seen: watch::Sender<Vec<(u64, u64)>>,
}

impl Application for Echo {
    fn indication(&mut self, _: &mut Stack, _: Time, indication: Indication) {
        let Indication::Batch(batch) = indication else { return };
        let back = |message: Message| Message::new(message.src, message.payload);
        self.outbox.extend(batch.messages.into_iter().map(back));
    }

    fn poll_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    fn after_cycle(&mut self, _: &Stack, _: Time, edge: &EdgeState<'_>) {
        let stats = edge.stats();
        self.seen.send_modify(|seen| seen.push((stats.packets_in, stats.packets_out)));
    }
}

#[tokio::test]
async fn responses_of_the_application_leave_in_the_cycle_of_their_requests() {
    let config = TransportConfig { kind: EdgeKind::SharedLoopback, mcast_port: 4, ..tcp() };
    let seen = watch::Sender::default();
    let app = Echo { outbox: VecDeque::new(), seen: seen.clone() };
    let a = Member::with(BoundEdge::bind(&config, Version::V5_5_7).unwrap(), app);
    let mut b = Member::start(&config);
    for number in 0..200u8 {
        b.send(a.phys, vec![number]);
    }
    for number in 0..200u8 {
        assert_eq!(b.packet().await, (a.phys, vec![number].into()));
    }
    let seen = seen.borrow().clone();
    assert_eq!(seen.last(), Some(&(200, 200)));
    assert!(seen.iter().all(|(received, sent)| received == sent), "{seen:?}");
}

/// Has more messages than a cycle takes.
struct EndlessSender {
    to: PhysAddr,
    left: u32,
    per_cycle: Arc<Mutex<Vec<u32>>>,
    sent: u32,
}

impl Application for EndlessSender {
    fn indication(&mut self, _: &mut Stack, _: Time, _: Indication) {}

    fn poll_message(&mut self) -> Option<Message> {
        self.left = self.left.checked_sub(1)?;
        self.sent += 1;
        Some(Message::bytes(Some(Address::Ip(self.to)), "x"))
    }

    fn after_cycle(&mut self, _: &Stack, _: Time, _: &EdgeState<'_>) {
        self.per_cycle.lock().unwrap().push(std::mem::take(&mut self.sent));
    }
}

#[tokio::test]
async fn a_cycle_takes_a_bounded_number_of_messages_and_the_next_follows_at_once() {
    let config = TransportConfig { kind: EdgeKind::SharedLoopback, mcast_port: 5, ..tcp() };
    let mut b = Member::start(&config);
    let per_cycle = Arc::new(Mutex::new(Vec::new()));
    let app = EndlessSender { to: b.phys, left: 2_500, per_cycle: per_cycle.clone(), sent: 0 };
    let _a = Member::with(BoundEdge::bind(&config, Version::V5_5_7).unwrap(), app);
    for _ in 0..2_500 {
        b.packet().await;
    }
    assert_eq!(per_cycle.lock().unwrap()[..3], [1_024, 1_024, 452]);
}
