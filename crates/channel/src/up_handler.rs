//! Who sits on a channel: sees everything before the receiver does, on the driver's own task, and answers within the
//! cycle. RPC is one of them.

use std::sync::Arc;
use std::time::Instant;

use consort_group::{Address, Message, MessageBatch, Stack, Time, View};

use crate::channel::WeakChannel;
use crate::gate::Gate;
use crate::guarded::guarded_or_end;

/// A protocol of the application's on top of the channel (JGroups' word), such as RPC.
///
/// All methods but [`UpHandler::opened`] run **on the driver's task**, one at a time, and the whole member waits for
/// them: they must not block, nor take long. Locks that application threads hold for a moment are all right. Application
/// threads put what they want done where the handler finds it, and ring ([`WeakChannel::bell`]).
///
/// The driver works in cycles. One takes what has come in, tells of it ([`UpHandler::handle_batch`],
/// [`UpHandler::view`], …), asks for messages ([`UpHandler::poll_send`]) until there are no more, and sends them together.
/// What the messages of a cycle ask for can therefore be answered in the same cycle, in as few messages as the handler
/// likes.
///
/// **A panic ends the member**, as a crash would: a handler is a state machine, and one that was left half way through
/// must answer nobody any more. It is logged, [`UpHandler::closed`] is called, the sockets are closed, and the others see
/// the member go without a word. Receivers and RPC handlers are another matter ([`crate::Receiver`]).
///
/// ```no_run
/// use std::collections::VecDeque;
/// use std::sync::{Arc, Mutex, OnceLock};
///
/// use consort_channel::{Address, Channel, Message, MessageBatch, UpHandler, WeakChannel};
///
/// /// Says `here` to those who ask `where`.
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
///             channel.bell().ring();
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
///         // One answer for all questions of the batch.
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
    /// The channel has opened its sockets and is about to join. Called once, before anything else, by the task that
    /// connects.
    fn opened(&self, channel: WeakChannel) {
        let _ = channel;
    }

    /// Whether a message is this handler's. Several handlers are asked in turn, and a message may be asked about twice.
    /// What nobody takes goes to the receiver.
    fn takes(&self, message: &Message) -> bool;

    /// Messages of one sender, in order, all of them its own. The sender gets its credits back when this returns. A
    /// payload may be a piece of what was read from a socket, and keeps the whole of it in memory: copy what is kept
    /// for long.
    fn handle_batch(&self, batch: MessageBatch);

    /// A new view. The receiver is told next.
    fn view(&self, view: &View) {
        let _ = view;
    }

    /// Members seem to have crashed.
    fn suspected(&self, members: &[Address]) {
        let _ = members;
    }

    /// Exactly these members have missed heartbeats, too few to be suspected. Called whenever these are others than before.
    fn silent(&self, members: &[Address]) {
        let _ = members;
    }

    /// The channel has joined its cluster: who connects is told next.
    fn connected(&self) {}

    /// The next message to send, asked for from the first view on until there is none: in every cycle, and again after
    /// whatever the handler was told. Who has a message at another time rings ([`WeakChannel::bell`]); one ring is
    /// enough for any number of messages, and however many threads ring before the driver looks wake it once.
    ///
    /// Messages pass the channel's gate in any case, so that answers never wait behind requests: who makes requests
    /// looks at the [`Room`] there is. Regular messages to one destination are delivered in the order of this.
    fn poll_send(&self) -> Option<Message> {
        None
    }

    /// A cycle is over. There is one whenever room appears.
    fn after_cycle(&self, room: &Room<'_>) {
        let _ = room;
    }

    /// When [`UpHandler::handle_timeout`] wants to be called. Asked in every cycle; a time earlier than the last answer
    /// needs a ring, or a message that is sent, to become known.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// That time has come. Messages are asked for next.
    fn handle_timeout(&self, now: Instant) {
        let _ = now;
    }

    /// The channel is closed, or its member has ended some other way. Called once if [`UpHandler::opened`] was; nothing
    /// else is called after it, and what was not asked for by then is not sent.
    fn closed(&self) {}

    /// The value of a probe key, if it is one of its own.
    fn probe(&self, key: &str) -> Option<String> {
        let _ = key;
        None
    }
}

/// What the channel's gate says after a cycle, as senders would hear it ([`crate::Channel::try_send`]).
pub struct Room<'a> {
    gate: &'a Gate,
}

impl<'a> Room<'a> {
    pub(crate) const fn new(gate: &'a Gate) -> Self {
        Self { gate }
    }

    /// Whether there is room for another message to this destination (`None` = everybody): no more waits for credits
    /// than may, and the transport's queue to it is at most half full. A multicast needs room at every member. Never
    /// once the channel is closing.
    pub fn is_open(&self, dest: Option<&Address>) -> bool {
        self.gate.is_open(dest)
    }

    /// Bytes of messages that one destination with room should get before this is looked at again, a single larger
    /// message excepted: more may be dropped before the transport, and comes only after it was missed.
    pub fn burst_bytes(&self) -> u64 {
        self.gate.burst_bytes()
    }
}

impl std::fmt::Debug for Room<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Room(bursts of {} bytes)", self.burst_bytes())
    }
}

/// All handlers of a channel, first come first asked.
#[derive(Clone, Default)]
pub(crate) struct UpHandlers(Vec<Arc<dyn UpHandler>>);

impl UpHandlers {
    pub(crate) fn push(&mut self, handler: Arc<dyn UpHandler>) {
        self.0.push(handler);
    }

    fn each(&self, called: &'static str, call: impl Fn(&dyn UpHandler)) {
        for handler in &self.0 {
            guarded_or_end(called, || call(&**handler));
        }
    }

    pub(crate) fn opened(&self, channel: &WeakChannel) {
        for handler in &self.0 {
            handler.opened(channel.clone());
        }
    }

    /// Gives handlers what they take of a batch, and returns its credits. What nobody takes stays in it.
    pub(crate) fn handle_batch(&self, batch: &mut MessageBatch, stack: &mut Stack, now: Time) {
        for handler in &self.0 {
            guarded_or_end("handle_batch", || {
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
        self.0.iter().find_map(|handler| guarded_or_end("poll_send", || handler.poll_send()))
    }

    pub(crate) fn after_cycle(&self, room: &Room<'_>) {
        self.each("after_cycle", |handler| handler.after_cycle(room));
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let asked = |handler: &Arc<dyn UpHandler>| guarded_or_end("poll_timeout", || handler.poll_timeout());
        self.0.iter().filter_map(asked).min()
    }

    /// Those whose time it is.
    pub(crate) fn handle_timeout(&self, now: Instant) {
        self.each("handle_timeout", |handler| {
            if handler.poll_timeout().is_some_and(|at| at <= now) {
                handler.handle_timeout(now);
            }
        });
    }

    pub(crate) fn closed(&self) {
        for handler in &self.0 {
            // The member has ended already, and it may have been by a panic.
            let _ = crate::guarded::guarded("closed", None, || handler.closed());
        }
    }

    pub(crate) fn probe(&self, key: &str) -> Option<String> {
        self.0.iter().find_map(|handler| guarded_or_end("probe", || handler.probe(key)))
    }
}

/// Takes the messages that are wanted out of a batch.
pub(crate) fn take_if(batch: &mut MessageBatch, mut wanted: impl FnMut(&Message) -> bool) -> MessageBatch {
    // Most batches are all of one kind: their messages need not move.
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
