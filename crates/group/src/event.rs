//! Everything that is not a message: events between layers, control calls, questions, and what crosses the edge.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Address, Digest, External, Member, MessageBatch, PhysAddr, PingData, View};

/// What a layer does with an event after looking at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// The next layer sees it too.
    On,
    /// It ends here.
    Stop,
}

/// Events travel through the layers in order with the messages around them.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    // upward
    /// A view has taken effect in all layers below.
    View(View),
    /// These members are suspected to have crashed.
    Suspect(Vec<Address>),
    /// Exactly these members have missed heartbeats, too few to be suspected. Whoever was named before and is not any more was
    /// heard again, or is in the view no more.
    Silent(Vec<Address>),
    /// These members are alive after all. Also travels down, from the verifying layer to the detecting one.
    Unsuspect(Vec<Address>),
    /// Members with different views have been seen: each with its view.
    MergeViews(Vec<(Address, View)>),
    /// The transport lacks physical addresses: of these members, or of everybody if empty.
    WhoHas(Vec<Address>),
    /// Discovery heard of a member: it answered, or it asked.
    Heard(PingData),
    /// A discovery that was asked for with `is_initial` is complete.
    Found(Vec<PingData>),
    /// Joining is over. The error says why it failed.
    Connected(Result<(), String>),
    /// Leaving is over.
    Disconnected,
    /// A send that wanted everybody's acknowledgement is over.
    RsvpDone {
        /// The message's ticket.
        ticket: u32,
        /// Whether all acknowledged in time.
        is_complete: bool,
    },
    /// A member wants the application's state; answer with [`Event::ProvideState`].
    StateRequested {
        /// Names the request.
        token: u64,
        /// Who asks.
        from: Address,
    },
    /// The state that was asked for with [`Event::GetState`]; no state if we are alone.
    StateReceived(Result<Option<Bytes>, StateError>),

    // downward
    /// Join the cluster whose name stands in [`crate::Shared::cluster`].
    Connect,
    /// Leave it.
    Disconnect,
    /// Run a discovery.
    FindMembers {
        /// Whether it serves a join: it then ends at the first coordinator and is answered by [`Event::Found`].
        is_initial: bool,
        /// How long to wait for answers.
        timeout: Duration,
    },
    /// Fetch the application's state from a member, or from the first other member of the view.
    GetState {
        /// The provider.
        target: Option<Address>,
        /// How long to wait.
        timeout: Duration,
    },
    /// The application's state, as asked for.
    ProvideState {
        /// The request it answers.
        token: u64,
        /// The state, or why there is none.
        state: Result<Option<Bytes>, String>,
    },
}

/// Why a state could not be had. The application's own state is unchanged, except where it says so.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The provider said no.
    #[error("the provider could not give its state: {0}")]
    Refused(String),
    /// The provider left or crashed.
    #[error("the provider left during the transfer")]
    ProviderLeft,
    /// No answer came.
    #[error("no state arrived within {0:?}")]
    TimedOut(Duration),
    /// The target is not a member.
    #[error("{0} is not a member of the view")]
    NotMember(Member),
    /// The stack has no layer that transfers state.
    #[error("the stack has no state transfer protocol")]
    NoProtocol,
    /// The application panicked while it took the state; what it has of it is its own affair.
    #[error("the application panicked while it took the state: {0}")]
    NotTaken(String),
}

/// A synchronous call to all layers below the caller, from top to bottom.
#[derive(Clone, Copy, Debug)]
pub enum Control<'a> {
    /// A view takes effect. [`crate::Shared::view`] has it already.
    View(&'a View),
    /// We have joined: queued multicasts may be processed.
    BecomeServer,
    /// Sets what is known of members on a join: existing windows stay.
    SetDigest(&'a Digest),
    /// Raises what is known of other members on a merge.
    MergeDigest(&'a Digest),
    /// Replaces what is known of other members on a state transfer.
    OverwriteDigest(&'a Digest),
    /// Everything up to here has been delivered everywhere.
    Stable(&'a Digest),
    /// Stability rounds stop while membership changes, at most this long.
    SuspendStable(Duration),
    /// Stability rounds go on.
    ResumeStable,
    /// Hold messages from below (state transfer).
    CloseBarrier,
    /// Let them pass again.
    OpenBarrier,
}

/// A question to other layers; the nearest below that knows answers, then the nearest above.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// How far has every member of the view got?
    Digest,
    /// How far has this member got?
    DigestOf(&'a Address),
    /// Have we joined a view?
    IsServer,
    /// Are all members' multicasts sent by one of them? Then a member's may come when it has left, and all cost the
    /// credits of that one.
    IsSentByOne,
    /// Does something of this sender wait for what comes before it? Layers that ask for it again answer.
    HasGap {
        /// Whose messages.
        sender: &'a Address,
        /// Its multicasts, or its unicasts to us?
        is_multicast: bool,
    },
    /// Bytes of the largest message that leaves a fragmentation layer.
    FragSize,
    /// How much credit of one sender may stay with unfinished business (a message of which pieces are missing)
    /// without ever stalling the sender? Layers that give credits or windows answer; no answer means none.
    Withholdable {
        /// Of multicasts, or of unicasts?
        is_multicast: bool,
        /// Bytes of the messages that make it up.
        piece: u64,
    },
}

/// An answer to a [`Query`].
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// To `Digest` and `DigestOf`.
    Digest(Digest),
    /// To `IsServer`, `IsSentByOne` and `HasGap`.
    Yes(bool),
    /// To `FragSize` and `Withholdable`.
    Number(u64),
}

/// Correlates an effect with its outcomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    pub(crate) layer: u16,
    /// Unique within a stack.
    pub number: u64,
}

impl Token {
    /// Names the layer that asked: equal for all effects of one layer. Effects such as [`Effect::CloseListener`]
    /// concern what the same layer asked for before.
    pub const fn layer(self) -> u16 {
        self.layer
    }
}

/// A connection that was opened by, or accepted for, a layer. Unique within a stack; chosen by the edge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// Something a layer asks the world to do. Outcomes come back under the effect's token.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Listen for connections with JGroups' set-up bytes (facts 4.2), on the first free port.
    /// Outcomes: `Listening` or `Failed`; later, any number of `Accepted`.
    Listen {
        /// The address to bind to; the wildcard address if absent.
        bind: Option<IpAddr>,
        /// The ports to try in order.
        ports: Vec<u16>,
        /// What to advertise instead of the address that is listened on.
        external: Option<External>,
    },
    /// Stop listening; connections stay.
    CloseListener,
    /// Connect and write the set-up bytes. Outcomes: `Connected` or `Failed`; later `Frame`s and one `Closed`.
    Connect {
        /// Where to.
        to: PhysAddr,
        /// The address in the set-up bytes: our own listener's. `None`: there are no such bytes, as with routers.
        own: Option<PhysAddr>,
        /// How long to try.
        timeout: Duration,
    },
    /// Write one frame (the edge adds the length).
    Write {
        /// Where.
        conn: ConnId,
        /// What.
        frame: Bytes,
    },
    /// Close a connection. No `Closed` comes back for it.
    Close {
        /// Which.
        conn: ConnId,
        /// Whether to write the graceful-close word first.
        is_graceful: bool,
    },
    /// Join a multicast group on a socket of its own (MPING). Outcomes: `Joined` or `Failed`; later `Datagram`s.
    JoinGroup {
        /// The group.
        group: PhysAddr,
        /// Time to live of what we send.
        ttl: u32,
    },
    /// Send a datagram to the group joined before.
    SendGroup {
        /// The bytes.
        datagram: Bytes,
    },
    /// Leave the group.
    LeaveGroup,
    /// Read all files of a directory whose names have this ending. Outcome: `Files` or `Failed`.
    ReadFiles {
        /// The directory; it is not created.
        directory: String,
        /// The ending, with its dot.
        ending: &'static str,
    },
    /// Write a file atomically, creating the directory. Outcome: `Done` or `Failed`.
    WriteFile {
        /// The directory.
        directory: String,
        /// The file's name.
        name: String,
        /// The content.
        content: String,
    },
    /// Remove a file, if it exists. Outcome: `Done` or `Failed`.
    RemoveFile {
        /// The directory.
        directory: String,
        /// The file's name.
        name: String,
    },
    /// Look up what a name stands for (DNS_PING). Outcome: `Addresses` or `Failed`.
    LookUp {
        /// The name.
        name: String,
    },
    /// Announce ourselves to members in the same process or simulation (LOCAL_PING). Outcome: `Done`.
    AnnounceLocally(PingData),
    /// Undo that. Outcome: `Done`.
    RetractLocally,
    /// Who has announced itself for our cluster? Outcome: `Local`.
    FindLocally,
}

/// What became of an [`Effect`], or what happened to its result later.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It worked.
    Done,
    /// It did not; the text is for people.
    Failed(String),
    /// The listener's address.
    Listening(PhysAddr),
    /// A peer connected to the listener; the address is that of its set-up bytes.
    Accepted {
        /// The connection.
        conn: ConnId,
        /// The peer's listener.
        peer: PhysAddr,
    },
    /// The connection stands.
    Connected(ConnId),
    /// A frame arrived on a connection.
    Frame {
        /// Which.
        conn: ConnId,
        /// The frame without its length.
        frame: Bytes,
    },
    /// The peer closed a connection, or it broke.
    Closed {
        /// Which.
        conn: ConnId,
        /// Whether the graceful-close word came first.
        is_graceful: bool,
    },
    /// The group is joined.
    Joined,
    /// A datagram arrived on the group's socket.
    Datagram {
        /// From where.
        from: PhysAddr,
        /// The bytes.
        datagram: Bytes,
    },
    /// The files: name and content, in name order.
    Files(Vec<(String, String)>),
    /// What a name stands for.
    Addresses(Vec<IpAddr>),
    /// Who is there in this process.
    Local(Vec<PingData>),
}

/// Where a packet goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransmitDest {
    /// To one address.
    One(PhysAddr),
    /// The same bytes to each of several addresses.
    Many(Arc<[PhysAddr]>),
    /// To the transport's multicast group.
    Multicast,
}

/// What may wait at the edge and what may not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// Heartbeats, views, acks, credits: goes first, is never dropped for being behind data.
    Control,
    /// Everything else: dropped when the peer's queue is full; retransmission repairs it.
    Data,
}

/// A transport payload for the network, without the length that TCP puts before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub dest: TransmitDest,
    /// What, but for the tail.
    pub bytes: Bytes,
    /// What comes behind `bytes` in the same packet: a payload that is too large to be copied for nothing. Mostly empty;
    /// only transports over streams have it.
    pub tail: Bytes,
    /// How urgent.
    pub lane: Lane,
}

impl Transmit {
    /// The length of the packet.
    pub fn length(&self) -> usize {
        self.bytes.len() + self.tail.len()
    }

    /// The packet in one piece, for edges that cannot send two; copied if it is not.
    pub fn whole(&self) -> Bytes {
        if self.tail.is_empty() { self.bytes.clone() } else { [&self.bytes[..], &self.tail].concat().into() }
    }
}

/// What the stack tells the application.
#[derive(Clone, PartialEq, Debug)]
pub enum Indication {
    /// Messages of one sender.
    Batch(MessageBatch),
    /// Everything else that reaches the top: `View`, `Connected`, `Disconnected`, `Suspect`, `Silent`, `Unsuspect`,
    /// `StateRequested`, `StateReceived`, `RsvpDone`.
    Event(Event),
}
