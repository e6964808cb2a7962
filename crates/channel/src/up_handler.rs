//! Up handlers, such as RPC: they respond on the driver's task, within the cycle.

use std::sync::Arc;
use std::time::Instant;

use consort_group::{Address, Message, MessageBatch, Stack, Time, View};

use crate::catch_panic::log_panic_and_resume;
use crate::gate::Gate;
use crate::weak_channel::WeakChannel;

/// A protocol of the application on the channel (JGroups' word), such as RPC.
///
/// All methods but [`UpHandler::opened`] run **on the driver's task**, and the whole member waits: they must not block. Brief
/// locks are fine. A sending application thread stores its message in the handler and wakes the driver ([`WeakChannel::waker`]).
///
/// In each cycle the driver passes input on ([`UpHandler::handle_batch`], [`UpHandler::view`], …), asks for messages
/// ([`UpHandler::poll_send`]) until there are none, and sends them together. So a handler responds within the cycle, in few
/// messages.
///
/// **A panic ends the member** as a crash would: an interrupted state machine must not respond. It is logged,
/// [`UpHandler::closed`] is called, and sockets close; panics of receivers and RPC handlers end only the call
/// ([`crate::Receiver`]).
///
/// ```no_run
/// use std::collections::VecDeque;
/// use std::sync::{Arc, Mutex, OnceLock};
///
/// use consort_channel::{Address, Channel, Message, MessageBatch, UpHandler, WeakChannel};
///
/// /// Responds `here` to the question `where`.
/// #[derive(Default)]
/// struct Here {
///     channel: OnceLock<WeakChannel>,
///     outbox: Mutex<VecDeque<Message>>,
/// }
///
/// impl Here {
///     /// Called by any thread.
///     fn ask(&self, member: &Address) {
///         self.outbox.lock().unwrap().push_back(Message::bytes(Some(member.clone()), "where"));
///         if let Some(channel) = self.channel.get() {
///             channel.waker().wake();
///         }
///     }
/// }
///
/// impl UpHandler for Here {
///     fn opened(&self, channel: WeakChannel) {
///         let _ = self.channel.set(channel);
///     }
///     fn takes(&self, message: &Message) -> bool {
///         message.payload_bytes().is_some_and(|bytes| bytes == "where")
///     }
///     fn handle_batch(&self, batch: MessageBatch) {
///         // One response to all questions of the batch.
///         self.outbox.lock().unwrap().push_back(Message::bytes(batch.src().cloned(), "here"));
///     }
///     fn poll_send(&self) -> Option<Message> {
///         self.outbox.lock().unwrap().pop_front()
///     }
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let here = Arc::new(Here::default());
/// let channel = Channel::from_file("tcp.xml")?.up_handler(here.clone()).connect("cluster").await?;
/// here.ask(channel.address());
/// # Ok(())
/// # }
/// ```
pub trait UpHandler: Send + Sync + 'static {
    /// Called first and once, by the connecting task, before joining.
    fn opened(&self, channel: WeakChannel) {
        let _ = channel;
    }

    /// Returns whether a message is this handler's, perhaps twice; the receiver gets other messages.
    fn takes(&self, message: &Message) -> bool;

    /// Handles one sender's taken messages, in order; credits return afterwards. A payload may keep a whole read
    /// buffer: copy those kept for long.
    fn handle_batch(&self, batch: MessageBatch);

    /// Returns whether the handler returns the credits of its messages itself, when the application has consumed them.
    #[doc(hidden)]
    fn keeps_credits(&self) -> bool {
        false
    }

    /// A new view, before the receiver gets it.
    fn view(&self, view: &View) {
        let _ = view;
    }

    /// Members may have crashed.
    fn suspected(&self, members: &[Address]) {
        let _ = members;
    }

    /// These sites cannot be reached (RELAY2, RELAY3): messages to and from them may be lost.
    fn sites_lost(&self, sites: &[Arc<str>]) {
        let _ = sites;
    }

    /// Exactly these members miss heartbeats, too few to be suspected.
    fn silent(&self, members: &[Address]) {
        let _ = members;
    }

    /// The channel has joined; connect returns next.
    fn connected(&self) {}

    /// Returns the next message to send. The driver asks until `None`, from the first view on, in each cycle and after each call.
    /// At other times a handler calls [`WeakChannel::waker`]'s [`crate::DriverWaker::wake`], once for any number of messages.
    ///
    /// These messages pass the channel's gate, so that responses never wait behind requests. A handler checks the
    /// [`SendCapacity`] before requests. Regular messages to one destination keep this order.
    fn poll_send(&self) -> Option<Message> {
        None
    }

    /// Ends a cycle; one follows when capacity becomes free.
    fn after_cycle(&self, capacity: &SendCapacity<'_>) {
        let _ = capacity;
    }

    /// Returns when to call [`UpHandler::handle_timeout`]; an earlier time needs a wake-up or a sent message.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The deadline passed; messages are asked for next.
    fn handle_timeout(&self, now: Instant) {
        let _ = now;
    }

    /// The channel is closed or the member ended: the last call, once if [`UpHandler::opened`] was called. Messages not taken are
    /// not sent.
    fn closed(&self) {}

    /// Returns a probe key's value.
    fn probe(&self, key: &str) -> Option<String> {
        let _ = key;
        None
    }
}

/// The gate after a cycle, as in [`crate::Channel::try_send`].
pub struct SendCapacity<'a> {
    gate: &'a Gate,
}

impl<'a> SendCapacity<'a> {
    pub(crate) const fn new(gate: &'a Gate) -> Self {
        Self { gate }
    }

    /// Returns whether a destination (`None`: every member) has capacity: free space for credits, and a transport's queue at most
    /// half full; false while closing.
    pub fn is_open(&self, dest: Option<&Address>) -> bool {
        self.gate.is_open(dest)
    }

    /// Returns the bytes for a destination until the next check, or one larger message; more may be dropped and retransmitted.
    pub fn burst_bytes(&self) -> u64 {
        self.gate.burst_bytes()
    }
}

impl std::fmt::Debug for SendCapacity<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendCapacity(bursts of {} bytes)", self.burst_bytes())
    }
}

/// Handlers are asked in this order.
#[derive(Clone, Default)]
pub(crate) struct UpHandlers(Vec<Arc<dyn UpHandler>>);

impl UpHandlers {
    pub(crate) fn push(&mut self, handler: Arc<dyn UpHandler>) {
        self.0.push(handler);
    }

    /// Protocols of the stack get their messages before handlers of the application.
    pub(crate) fn push_front(&mut self, handler: Arc<dyn UpHandler>) {
        self.0.insert(0, handler);
    }

    fn each(&self, called: &'static str, call: impl Fn(&dyn UpHandler)) {
        for handler in &self.0 {
            log_panic_and_resume(called, || call(&**handler));
        }
    }

    pub(crate) fn opened(&self, channel: &WeakChannel) {
        for handler in &self.0 {
            handler.opened(channel.clone());
        }
    }

    /// Returns the messages' credits; messages without a handler stay.
    pub(crate) fn handle_batch(&self, batch: &mut MessageBatch, stack: &mut Stack, now: Time) {
        for handler in &self.0 {
            log_panic_and_resume("handle_batch", || {
                let taken = take_if(batch, |message| handler.takes(message));
                let Some(src) = taken.src() else { return };
                let credit = taken.messages.iter().map(|message| u64::from(message.credit)).sum();
                if credit == 0 || handler.keeps_credits() {
                    return handler.handle_batch(taken);
                }
                let (src, is_multicast) = (src.clone(), taken.is_multicast());
                handler.handle_batch(taken);
                stack.handle_consumed(now, &src, is_multicast, credit);
            });
            if batch.is_empty() {
                return;
            }
        }
    }

    pub(crate) fn view(&self, view: &View) {
        self.each("view", |handler| handler.view(view));
    }

    pub(crate) fn suspected(&self, members: &[Address]) {
        self.each("suspected", |handler| handler.suspected(members));
    }

    pub(crate) fn sites_lost(&self, sites: &[Arc<str>]) {
        self.each("sites_lost", |handler| handler.sites_lost(sites));
    }

    pub(crate) fn silent(&self, members: &[Address]) {
        self.each("silent", |handler| handler.silent(members));
    }

    pub(crate) fn connected(&self) {
        self.each("connected", UpHandler::connected);
    }

    pub(crate) fn poll_send(&self) -> Option<Message> {
        self.0.iter().find_map(|handler| log_panic_and_resume("poll_send", || handler.poll_send()))
    }

    pub(crate) fn after_cycle(&self, capacity: &SendCapacity<'_>) {
        self.each("after_cycle", |handler| handler.after_cycle(capacity));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let asked =
            |handler: &Arc<dyn UpHandler>| log_panic_and_resume("poll_timeout", || handler.poll_timeout());
        self.0.iter().filter_map(asked).min()
    }

    pub(crate) fn handle_timeout(&self, now: Instant) {
        self.each("handle_timeout", |handler| {
            if handler.poll_timeout().is_some_and(|at| at <= now) {
                handler.handle_timeout(now);
            }
        });
    }

    pub(crate) fn closed(&self) {
        for handler in &self.0 {
            // The member has ended already, possibly by a panic.
            let _ = crate::catch_panic::catch_panic("closed", None, || handler.closed());
        }
    }

    pub(crate) fn probe(&self, key: &str) -> Option<String> {
        self.0.iter().find_map(|handler| log_panic_and_resume("probe", || handler.probe(key)))
    }
}

pub(crate) fn take_if(batch: &mut MessageBatch, mut wanted: impl FnMut(&Message) -> bool) -> MessageBatch {
    // Most batches are of one kind: their messages need not move.
    let count = batch.messages.iter().filter(|message| wanted(message)).count();
    if count == 0 {
        return MessageBatch::default();
    }
    let messages = std::mem::take(&mut batch.messages);
    if count == messages.len() {
        return MessageBatch { messages };
    }
    let (taken, left) = messages.into_iter().partition(wanted);
    batch.messages = left;
    MessageBatch { messages: taken }
}
