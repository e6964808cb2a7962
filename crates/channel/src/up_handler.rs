//! Up handlers, which get messages before the receiver on the driver's task, and respond within the cycle. RPC is
//! one.

use std::sync::Arc;
use std::time::Instant;

use consort_group::{Address, Message, MessageBatch, Stack, Time, View};

use crate::catch_panic::log_panic_and_resume;
use crate::gate::Gate;
use crate::weak_channel::WeakChannel;

/// A protocol of the application on top of the channel (JGroups' word), such as RPC.
///
/// All methods but [`UpHandler::opened`] run **on the driver's task**, one at a time, and the whole member waits for
/// them: they must neither block nor take long. Locks that application threads hold briefly are fine. An application
/// thread that wants to send stores its message in the handler and wakes the driver ([`WeakChannel::waker`]).
///
/// The driver works in cycles. A cycle takes pending input, passes it on ([`UpHandler::handle_batch`],
/// [`UpHandler::view`], …), asks for messages ([`UpHandler::poll_send`]) until there are no more, and sends them
/// together. A handler can thus respond to a cycle's messages in the same cycle, in few messages.
///
/// **A panic ends the member**, as a crash would: a handler is a state machine, and one that was interrupted must not
/// respond any more. The panic is logged, [`UpHandler::closed`] is called, the sockets are closed, and other members
/// detect a crash. Panics of receivers and RPC handlers do not end the member ([`crate::Receiver`]).
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
    /// The channel has opened its sockets and is about to join. Called once, before any other method, by the
    /// connecting task.
    fn opened(&self, channel: WeakChannel) {
        let _ = channel;
    }

    /// Returns whether a message is this handler's. Handlers are asked in turn, and may be asked twice about a
    /// message. The receiver gets messages that no handler takes.
    fn takes(&self, message: &Message) -> bool;

    /// Handles messages of one sender, in order, all taken by this handler. The sender gets its credits back when
    /// this returns. A payload may be a part of a read buffer and keep the whole buffer in memory: copy payloads that
    /// are kept for long.
    fn handle_batch(&self, batch: MessageBatch);

    /// A new view is installed. The receiver is notified next.
    fn view(&self, view: &View) {
        let _ = view;
    }

    /// Members seem to have crashed.
    fn suspected(&self, members: &[Address]) {
        let _ = members;
    }

    /// These members have missed heartbeats, too few to be suspected. Called whenever the set changes.
    fn silent(&self, members: &[Address]) {
        let _ = members;
    }

    /// The channel has joined its cluster. The caller of connect is notified next.
    fn connected(&self) {}

    /// Returns the next message to send. The driver calls it from the first view on until it returns `None`: in each
    /// cycle, and again after each call of the handler. A handler that has a message at another time calls
    /// [`WeakChannel::waker`]'s [`crate::DriverWaker::wake`]. One wake-up is enough for any number of messages;
    /// wake-ups of several threads before the next cycle count as one.
    ///
    /// These messages always pass the channel's gate, so that responses never wait behind requests. A handler that
    /// sends requests checks the [`SendCapacity`] first. Regular messages to one destination are delivered in the order of
    /// these calls.
    fn poll_send(&self) -> Option<Message> {
        None
    }

    /// A cycle has ended. One follows whenever capacity becomes free.
    fn after_cycle(&self, capacity: &SendCapacity<'_>) {
        let _ = capacity;
    }

    /// Returns when to call [`UpHandler::handle_timeout`]. The driver asks in each cycle; an earlier time needs a
    /// wake-up or a sent message.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The deadline has passed. The driver asks for messages next.
    fn handle_timeout(&self, now: Instant) {
        let _ = now;
    }

    /// The channel is closed, or its member has ended otherwise. Called once if [`UpHandler::opened`] was; no other
    /// call follows, and messages not yet taken are not sent.
    fn closed(&self) {}

    /// Returns the value of a probe key of this handler.
    fn probe(&self, key: &str) -> Option<String> {
        let _ = key;
        None
    }
}

/// The state of the channel's gate after a cycle, as senders see it ([`crate::Channel::try_send`]).
pub struct SendCapacity<'a> {
    gate: &'a Gate,
}

impl<'a> SendCapacity<'a> {
    pub(crate) const fn new(gate: &'a Gate) -> Self {
        Self { gate }
    }

    /// Returns whether there is capacity for another message to this destination (`None` = all members): the queue
    /// for credits is not full, and the transport's queue is at most half full. A multicast needs capacity at every
    /// member. False while the channel is closing.
    pub fn is_open(&self, dest: Option<&Address>) -> bool {
        self.gate.is_open(dest)
    }

    /// Returns how many bytes of messages a destination with capacity should get before the next check, except for a
    /// single larger message. More may be dropped by the transport and retransmitted later.
    pub fn burst_bytes(&self) -> u64 {
        self.gate.burst_bytes()
    }
}

impl std::fmt::Debug for SendCapacity<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendCapacity(bursts of {} bytes)", self.burst_bytes())
    }
}

/// The handlers of a channel, in the order in which they are asked.
#[derive(Clone, Default)]
pub(crate) struct UpHandlers(Vec<Arc<dyn UpHandler>>);

impl UpHandlers {
    pub(crate) fn push(&mut self, handler: Arc<dyn UpHandler>) {
        self.0.push(handler);
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

    /// Passes each handler the messages that it takes, and returns their credits. Messages that no handler takes stay
    /// in the batch.
    pub(crate) fn handle_batch(&self, batch: &mut MessageBatch, stack: &mut Stack, now: Time) {
        for handler in &self.0 {
            log_panic_and_resume("handle_batch", || {
                let taken = take_if(batch, |message| handler.takes(message));
                let Some(src) = taken.src() else { return };
                let credit = taken.messages.iter().map(|message| u64::from(message.credit)).sum();
                if credit == 0 {
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

    /// Calls the handlers whose deadline has passed.
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

/// Takes the wanted messages out of a batch.
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
