use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_group::{
    Address, AddressBook, Event, Flags, Indication, Member, Message, PhysAddr, RelayEvent, Stack, StateError,
    Time, View,
};
use consort_net::{Application, Command, DriverHandle, EdgeState};
use tokio::sync::{oneshot, watch};

use crate::catch_panic::ApplicationPanic;
use crate::delivery::{Deliverer, Notice};
use crate::error::SendError;
use crate::gate::{GateState, weight};
use crate::probe::Responder;
use crate::shared::{IncomingState, Shared};
use crate::site_traffic::SiteTraffic;
use crate::up_handler::{SendCapacity, UpHandlers};

/// The timeout of leaving. GMS gives up after its leave_timeout (1 s by default); a stack may lack GMS.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The clones share the guard; the member ends on its drop.
struct MemberGuard {
    shared: Arc<Shared>,
    driver: DriverHandle,
    probe: Mutex<Option<Responder>>,
    extensions: Extensions,
    relay: Option<Arc<dyn SiteTraffic>>,
}

/// The handlers of the stack's protocols that the application uses, found by their type.
pub(crate) type Extensions = Vec<Arc<dyn Any + Send + Sync>>;

impl Drop for MemberGuard {
    fn drop(&mut self) {
        self.shared.gate.close();
        let _ = self.driver.submit(Command::Disconnect);
        self.driver.stop();
    }
}

/// A member of a cluster, cheap to clone. Its last clone's drop leaves and closes everything; [`Channel::close`] also waits.
#[derive(Clone)]
pub struct Channel {
    owner: Arc<MemberGuard>,
}

impl Channel {
    pub(crate) fn new(
        shared: Arc<Shared>,
        driver: DriverHandle,
        probe: Option<Responder>,
        extensions: Extensions,
        relay: Option<Arc<dyn SiteTraffic>>,
    ) -> Self {
        Self { owner: Arc::new(MemberGuard { shared, driver, probe: Mutex::new(probe), extensions, relay }) }
    }

    /// Returns the handler of this type, if the stack has its protocol.
    pub(crate) fn extension<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.owner.extensions.iter().find_map(|extension| extension.clone().downcast().ok())
    }

    async fn end(&self) {
        if let Some(relay) = &self.owner.relay {
            relay.shut_down().await;
        }
        let probe = self.owner.probe.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(probe) = probe {
            probe.stop().await;
        }
        self.owner.driver.shutdown().await;
    }

    fn shared(&self) -> &Shared {
        &self.owner.shared
    }

    /// Returns the member's address.
    pub fn address(&self) -> &Address {
        &self.shared().local
    }

    /// Returns its logical name.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        &self.shared().cluster
    }

    /// Returns its physical address.
    pub fn physical_address(&self) -> PhysAddr {
        self.shared().phys
    }

    /// Returns the current view.
    pub fn view(&self) -> Option<View> {
        self.shared().view.borrow().clone()
    }

    /// Returns a receiver of views.
    pub fn watch_view(&self) -> watch::Receiver<Option<View>> {
        self.shared().view.subscribe()
    }

    /// Returns whether a member is in the current view.
    pub fn has_member(&self, member: &Address) -> bool {
        self.shared().view.borrow().as_ref().is_some_and(|view| view.contains(member))
    }

    /// Returns whether this is the coordinator.
    pub fn is_coordinator(&self) -> bool {
        self.shared().view.borrow().as_ref().and_then(View::coordinator) == Some(self.address())
    }

    fn book(&self) -> MutexGuard<'_, AddressBook> {
        self.shared().book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a member's name, or the address without one.
    pub fn name_of(&self, member: &Address) -> String {
        self.book().display(member)
    }

    /// Returns a member for errors and logs.
    pub fn member(&self, address: &Address) -> Member {
        self.book().member(address)
    }

    /// Returns the member with this name.
    pub fn member_named(&self, name: &str) -> Option<Address> {
        let view = self.view()?;
        let book = self.book();
        view.members().iter().find(|member| book.name(member).is_some_and(|own| **own == *name)).cloned()
    }

    /// Returns the view as JGroups: `[A|1] (2) [A, B]`.
    pub fn view_text(&self) -> String {
        self.view().map_or_else(|| "none".to_owned(), |view| view.display(&self.book()))
    }

    /// Sends a message. Waits while the destination (a multicast: the slowest member) lacks credits and their queue is full, or
    /// the transport's queue is more than half full.
    ///
    /// With flag RSVP it also waits for all acknowledgements, if the stack has RSVP.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`]; with RSVP [`SendError::NotAcknowledged`].
    pub async fn send(&self, message: Message) -> Result<(), SendError> {
        while !self.have_bridges_room(message.dest.as_ref()) {
            self.wait_for_bridges().await;
        }
        let bytes = weight(message.length());
        let gate = &self.shared().gate;
        match gate.try_pass(&message.dest, bytes) {
            GateState::Open => {}
            GateState::Closed => return Err(SendError::Closed),
            GateState::Full => {
                gate.pass(std::slice::from_ref(&message.dest), bytes).await.ok_or(SendError::Closed)?;
            }
        }
        match self.submit_reserved(message)? {
            Some(wait) => wait.wait().await,
            None => Ok(()),
        }
    }

    fn have_bridges_room(&self, dest: Option<&Address>) -> bool {
        self.owner.relay.as_ref().is_none_or(|relay| relay.has_room(dest))
    }

    async fn wait_for_bridges(&self) {
        if let Some(relay) = &self.owner.relay {
            relay.wait_for_room().await;
        }
    }

    /// A destination with capacity does not wait for others.
    pub(crate) async fn send_each(
        &self,
        mut dests: Vec<Option<Address>>,
        message: Message,
    ) -> Result<(), SendError> {
        let bytes = weight(message.length());
        let mut acknowledgements = Vec::new();
        while !dests.is_empty() {
            // Others wait for bridges before they reserve capacity, which the end of a call would not return.
            dests.sort_by_key(|dest| !self.have_bridges_room(dest.as_ref()));
            let ready = dests.partition_point(|dest| self.have_bridges_room(dest.as_ref()));
            if ready == 0 {
                self.wait_for_bridges().await;
                continue;
            }
            let at = self.shared().gate.pass(&dests[..ready], bytes).await.ok_or(SendError::Closed)?;
            let message = Message { dest: dests.remove(at), ..message.clone() };
            acknowledgements.extend(self.submit_reserved(message)?);
        }
        for wait in acknowledgements {
            wait.wait().await?;
        }
        Ok(())
    }

    /// Capacity is reserved; returns the acknowledgement of RSVP.
    fn submit_reserved(&self, mut message: Message) -> Result<Option<Acknowledgement<'_>>, SendError> {
        let wait = message.flags.has(Flags::RSVP).then(|| self.ticket(&mut message));
        self.owner.driver.submit(Command::Send(message)).map_err(|_| SendError::Closed)?;
        Ok(wait)
    }

    /// Sends a message if [`Channel::send`] would not wait, and never waits for RSVP. After [`SendError::Full`] or
    /// [`SendError::Closed`] nothing was sent.
    pub fn try_send(&self, message: Message) -> Result<(), SendError> {
        if !self.have_bridges_room(message.dest.as_ref()) {
            return Err(SendError::Full);
        }
        match self.shared().gate.try_pass(&message.dest, weight(message.length())) {
            GateState::Open => {
                self.owner.driver.submit(Command::Send(message)).map_err(|_| SendError::Closed)
            }
            GateState::Full => Err(SendError::Full),
            GateState::Closed => Err(SendError::Closed),
        }
    }

    /// The application's deadline may be earlier now.
    pub(crate) fn wake_driver(&self) {
        self.owner.driver.wake();
    }

    fn ticket(&self, message: &mut Message) -> Acknowledgement<'_> {
        let shared = self.shared();
        let (done, outcome) = oneshot::channel();
        let mut pending = shared.pending();
        loop {
            let ticket = shared.next_ticket.fetch_add(1, Relaxed);
            if ticket != 0 && !pending.tickets.contains_key(&ticket) {
                message.ticket = ticket;
                pending.tickets.insert(ticket, done);
                return Acknowledgement { shared, ticket, outcome };
            }
        }
    }

    /// Fetches the application's state from a member (`None`: the first other one), and passes it to
    /// [`crate::Receiver::set_state`] between the messages that it includes and the others. Then returns it; `None` without
    /// another member.
    ///
    /// # Errors
    ///
    /// [`StateError`]; the receiver's state is unchanged, except by [`StateError::NotTaken`].
    pub async fn fetch_state(
        &self,
        target: Option<Address>,
        timeout: Duration,
    ) -> Result<Option<Bytes>, StateError> {
        let (done, wait) = oneshot::channel();
        let earlier = self.shared().pending().state.replace(done);
        drop(earlier);
        if self.owner.driver.submit(Command::Event(Event::GetState { target, timeout })).is_err() {
            return Err(StateError::ProviderLeft);
        }
        // The stack's own timer ends the request; this one covers a stack without state transfer.
        let fetched = match tokio::time::timeout(timeout + Duration::from_secs(1), wait).await {
            Ok(Ok(result)) => result?,
            Ok(Err(_)) => return Err(StateError::ProviderLeft),
            Err(_) => return Err(StateError::NoProtocol),
        };
        // Without a timeout, because the receiver handles messages from before the state first.
        match fetched.is_set.await {
            Ok(Ok(())) => Ok(fetched.state),
            Ok(Err(ApplicationPanic(text))) => Err(StateError::NotTaken(text)),
            // The member's runtime ended.
            Err(_) => Err(StateError::ProviderLeft),
        }
    }

    /// Runs `call` on the stack between two cycles, for management; `None`: the channel is closed.
    pub async fn with_stack<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Stack, Time) -> R + Send + 'static,
    ) -> Option<R> {
        let (done, wait) = oneshot::channel();
        let call = Command::Call(Box::new(move |stack, now| {
            let _ = done.send(call(stack, now));
        }));
        self.owner.driver.submit(call).ok()?;
        wait.await.ok()
    }

    /// Ends the member as a crash would, for tests.
    pub async fn abort(self) {
        self.shared().gate.close();
        let stopped = self.with_stack(|stack, now| {
            // Without a transport's envelope no packet is sent any more.
            stack.abort_output(now);
        });
        stopped.await;
        self.end().await;
    }

    /// Leaves the cluster; on return no task, socket or timer of the member is left.
    pub async fn close(self) {
        let (done, wait) = oneshot::channel();
        self.shared().gate.close();
        if let Some(relay) = &self.owner.relay {
            // Other sites find another site master, instead of one that no longer has a site.
            relay.shut_down().await;
        }
        self.shared().pending().disconnected.push(done);
        if self.owner.driver.submit(Command::Disconnect).is_ok() {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, wait).await;
        }
        self.end().await;
    }
}

/// A drop returns the ticket.
struct Acknowledgement<'a> {
    shared: &'a Shared,
    ticket: u32,
    outcome: oneshot::Receiver<bool>,
}

impl Acknowledgement<'_> {
    async fn wait(mut self) -> Result<(), SendError> {
        match (&mut self.outcome).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SendError::NotAcknowledged),
            Err(_) => Err(SendError::Closed),
        }
    }
}

impl Drop for Acknowledgement<'_> {
    fn drop(&mut self) {
        let unheard = self.shared.pending().tickets.remove(&self.ticket);
        drop(unheard);
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "channel of {} in {}", self.name(), self.cluster())
    }
}

pub(crate) struct Upcalls {
    shared: Arc<Shared>,
    deliverer: Deliverer,
    handlers: UpHandlers,
    relay: Option<Arc<dyn SiteTraffic>>,
    /// Handlers may send from the first view on.
    has_view: bool,
    /// The bytes passed to the stack in this cycle.
    handed: BTreeMap<Option<Address>, u64>,
    book_changes: u64,
}

impl Upcalls {
    pub(crate) fn new(
        shared: Arc<Shared>,
        deliverer: Deliverer,
        handlers: UpHandlers,
        relay: Option<Arc<dyn SiteTraffic>>,
    ) -> Self {
        let handed = BTreeMap::new();
        Self { shared, deliverer, handlers, relay, has_view: false, handed, book_changes: u64::MAX }
    }

    fn event(&mut self, event: Event) {
        let shared = &self.shared;
        match event {
            Event::View(view) => {
                self.has_view = true;
                self.handlers.view(&view);
                shared.view.send_replace(Some(view.clone()));
                self.deliverer.notify(Notice::View(view));
            }
            Event::Suspect(members) => {
                self.handlers.suspected(&members);
                self.deliverer.notify(Notice::Suspected(members));
            }
            Event::Silent(members) => self.handlers.silent(&members),
            Event::Connected(result) => {
                if result.is_ok() {
                    self.handlers.connected();
                }
                let connected = shared.pending().connected.take();
                if let Some(done) = connected {
                    let _ = done.send(result);
                }
            }
            Event::Disconnected => {
                let disconnected = std::mem::take(&mut shared.pending().disconnected);
                for done in disconnected {
                    let _ = done.send(());
                }
            }
            Event::RsvpDone { ticket, is_complete } => {
                let ticket = shared.pending().tickets.remove(&ticket);
                if let Some(done) = ticket {
                    let _ = done.send(is_complete);
                }
            }
            Event::StateRequested { token, .. } => self.deliverer.notify(Notice::StateRequested { token }),
            Event::StateReceived(result) => {
                let result = result.map(|state| {
                    let (set, is_set) = oneshot::channel();
                    self.deliverer.notify(Notice::SetState { state: state.clone(), set });
                    IncomingState { state, is_set }
                });
                let state = shared.pending().state.take();
                if let Some(done) = state {
                    let _ = done.send(result);
                }
            }
            Event::Relay(event) => {
                match &*event {
                    RelayEvent::SitesDown(sites) => self.handlers.sites_lost(sites),
                    RelayEvent::SiteUnreachable(site) => self.handlers.sites_lost(std::slice::from_ref(site)),
                    RelayEvent::MemberUnreachable(member) => {
                        self.handlers.suspected(std::slice::from_ref(member));
                    }
                    _ => {}
                }
                if let Some(relay) = &self.relay {
                    relay.handle(*event);
                }
            }
            _ => {}
        }
    }
}

/// A multicast counts any member's queue.
fn is_half_full(stack: &Stack, edge: &EdgeState<'_>, dest: Option<&Address>) -> bool {
    let shared = stack.shared();
    let to = |member: &Address| shared.book.phys(member).is_some_and(|peer| edge.is_half_full(peer));
    match (dest, &shared.view) {
        (Some(member), _) => to(member),
        (None, Some(view)) => view.members().iter().any(to),
        (None, None) => false,
    }
}

impl Application for Upcalls {
    fn sending(&mut self, message: &Message) {
        let bytes = weight(message.length());
        match self.handed.get_mut(&message.dest) {
            Some(handed) => *handed += bytes,
            None => {
                self.handed.insert(message.dest.clone(), bytes);
            }
        }
    }

    fn indication(&mut self, stack: &mut Stack, now: Time, indication: Indication) {
        match indication {
            Indication::Batch(mut batch) => {
                self.handlers.handle_batch(&mut batch, stack, now);
                if !batch.is_empty() {
                    self.deliverer.deliver(batch);
                }
            }
            Indication::Event(event) => self.event(event),
        }
    }

    fn poll_message(&mut self) -> Option<Message> {
        if !self.has_view {
            return None;
        }
        let message = self.handlers.poll_send()?;
        self.shared.gate.force(&message.dest, weight(message.length()));
        Some(message)
    }

    fn after_cycle(&mut self, stack: &Stack, _now: Time, edge: &EdgeState<'_>) {
        let is_half_full = |dest: Option<&Address>| is_half_full(stack, edge, dest);
        self.shared.gate.settle(&mut self.handed, stack, edge.burst_bytes(), is_half_full);
        let book = &stack.shared().book;
        if book.changes() != self.book_changes {
            self.book_changes = book.changes();
            self.shared.book.lock().unwrap_or_else(PoisonError::into_inner).clone_from(book);
        }
        self.handlers.after_cycle(&SendCapacity::new(&self.shared.gate));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.handlers.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handlers.handle_timeout(now);
    }

    fn closed(&mut self) {
        // Calls first, so that those whose request waits for capacity keep the responses that they have.
        self.handlers.closed();
        self.shared.gate.close();
        let pending = std::mem::take(&mut *self.shared.pending());
        drop(pending);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

    use consort_conf::{Variables, parse_stack};
    use tokio::time::timeout;

    use super::*;
    use crate::receiver::{Delivery, Receiver};

    /// No test takes a tenth of it.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// It returns no credits.
    #[derive(Default)]
    struct RecordingReceiver(Mutex<Vec<Delivery>>);

    impl Receiver for RecordingReceiver {
        fn receive_batch(&self, delivery: Delivery) {
            self.0.lock().unwrap().push(delivery);
        }
    }

    async fn alone(cluster: &str, rsvp: &str) -> Channel {
        let text = format!(
            "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
             <GMS join_timeout=\"100\"/>{rsvp}</config>"
        );
        let stack = parse_stack("channel.xml", &text, &Variables::new()).unwrap_or_else(|e| panic!("{e}"));
        let connecting =
            Channel::from_config(stack.config).receiver(RecordingReceiver::default()).connect(cluster);
        timeout(PATIENCE, connecting).await.expect("in time").expect("joined")
    }

    fn flagged() -> Message {
        Message::bytes(None, "x").with_flags(Flags::RSVP)
    }

    #[tokio::test]
    async fn rsvp_does_nothing_without_the_protocol() {
        let channel = alone("without-rsvp", "").await;
        assert_eq!(timeout(PATIENCE, channel.send(flagged())).await.expect("it ends"), Ok(()));
        channel.close().await;
    }

    /// Records at each wake-up whether the lock of waiting callers is free.
    struct Looking {
        shared: Arc<Shared>,
        was_free: Mutex<Vec<bool>>,
    }

    impl Wake for Looking {
        fn wake(self: Arc<Self>) {
            let is_free = self.shared.pending.try_lock().is_ok();
            self.was_free.lock().unwrap().push(is_free);
        }
    }

    #[tokio::test]
    async fn waiting_callers_are_woken_outside_the_lock() {
        let channel = alone("woken", "<RSVP/>").await;
        let shared = channel.owner.shared.clone();
        let looking = Arc::new(Looking { shared, was_free: Mutex::default() });
        let waker = Waker::from(looking.clone());
        let mut cx = Context::from_waker(&waker);
        let mut sending = pin!(channel.send(flagged()));
        let mut earlier = pin!(channel.fetch_state(None, PATIENCE));
        let mut later = pin!(channel.fetch_state(None, PATIENCE));
        let mut closing = pin!(channel.clone().close());
        assert!(sending.as_mut().poll(&mut cx).is_pending());
        assert!(earlier.as_mut().poll(&mut cx).is_pending());
        assert!(later.as_mut().poll(&mut cx).is_pending());
        assert!(closing.as_mut().poll(&mut cx).is_pending());
        channel.end().await;
        assert_eq!(*looking.was_free.lock().unwrap(), [true; 4]);
    }

    #[tokio::test]
    async fn a_send_that_is_dropped_gives_its_ticket_back() {
        let channel = alone("with-rsvp", "<RSVP/>").await;
        let tickets = || channel.shared().pending().tickets.len();
        {
            let mut sending = pin!(channel.send(flagged()));
            let is_waiting = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx).is_pending()));
            assert!(is_waiting.await, "no member acknowledges");
            assert_eq!(tickets(), 1);
        }
        assert_eq!(tickets(), 0);
        channel.close().await;
    }
}
