//! Events between layers, control calls, queries, and the effects and outputs exchanged with the driver.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Address, Digest, ExternalAddress, Member, MessageBatch, PhysAddr, PingData, View};

/// A layer's decision on an event it has handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// The next layer gets it too.
    On,
    /// It ends here.
    Stop,
}

/// An event. Events travel through the layers in order with the messages around them.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    // upward
    /// A view has taken effect in all layers below.
    View(View),
    /// These members are suspected to have crashed.
    Suspect(Vec<Address>),
    /// Exactly these members have missed heartbeats, too few to be suspected. A member missing from the list
    /// that was in the previous one has sent a heartbeat again or has left the view.
    Silent(Vec<Address>),
    /// These members are alive after all. Also travels down, from the verifying layer to the detecting layer.
    Unsuspect(Vec<Address>),
    /// Members have different views. Lists each member with its view.
    MergeViews(Vec<(Address, View)>),
    /// The transport lacks the physical addresses of these members, or of all members if empty.
    WhoHas(Vec<Address>),
    /// Discovery learned about a member from its response or its request.
    Heard(PingData),
    /// A discovery with `is_initial` is complete.
    Found(Vec<PingData>),
    /// The join is over. The error says why it failed.
    Connected(Result<(), String>),
    /// The leave is over.
    Disconnected,
    /// A send that waits for all members' acknowledgements is over.
    RsvpDone {
        /// The message's ticket.
        ticket: u32,
        /// Whether all members acknowledged in time.
        is_complete: bool,
    },
    /// A member requests the application's state. Answer with [`Event::ProvideState`].
    StateRequested {
        /// Names the request.
        token: u64,
        /// The requester.
        from: Address,
    },
    /// The result of [`Event::GetState`]; no state if this member is alone.
    StateReceived(Result<Option<Bytes>, StateError>),

    // in either direction
    /// Install this view. An operator injects it for tests (INJECT_VIEW).
    InjectView(View),

    // downward
    /// Join the cluster named in [`crate::Shared::cluster`].
    Connect,
    /// Leave the cluster.
    Disconnect,
    /// Run a discovery.
    FindMembers {
        /// Whether it serves a join. It then ends with the first coordinator's response and is answered by
        /// [`Event::Found`].
        is_initial: bool,
        /// How long to wait for responses.
        timeout: Duration,
    },
    /// Fetch the application's state from a member, or from the first other member of the view.
    GetState {
        /// The provider.
        target: Option<Address>,
        /// How long to wait.
        timeout: Duration,
    },
    /// The application's state, in answer to a request.
    ProvideState {
        /// The request it answers.
        token: u64,
        /// The state, or why it is unavailable.
        state: Result<Option<Bytes>, String>,
    },
}

/// The reason why a state transfer failed. The application's own state is unchanged unless the variant says
/// otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The provider refused.
    #[error("the provider could not give its state: {0}")]
    Refused(String),
    /// The provider left or crashed.
    #[error("the provider left during the transfer")]
    ProviderLeft,
    /// No response came in time.
    #[error("no state arrived within {0:?}")]
    TimedOut(Duration),
    /// The target is not a member.
    #[error("{0} is not a member of the view")]
    NotMember(Member),
    /// The stack has no layer that transfers state.
    #[error("the stack has no state transfer protocol")]
    NoProtocol,
    /// The application panicked while it applied the state, and may have applied a part of it.
    #[error("the application panicked while it took the state: {0}")]
    NotTaken(String),
}

/// A synchronous call to all layers below the caller, from top to bottom.
#[derive(Clone, Copy, Debug)]
pub enum Control<'a> {
    /// A view takes effect. [`crate::Shared::view`] already holds it.
    View(&'a View),
    /// The join is complete: queued multicasts may be processed.
    BecomeServer,
    /// Sets the members' seqnos on a join. Existing windows stay.
    SetDigest(&'a Digest),
    /// Raises the other members' seqnos on a merge.
    MergeDigest(&'a Digest),
    /// Replaces the other members' seqnos on a state transfer.
    OverwriteDigest(&'a Digest),
    /// All members have delivered all messages up to this digest.
    Stable(&'a Digest),
    /// Suspends stability rounds while membership changes, for at most this time.
    SuspendStable(Duration),
    /// Resumes stability rounds.
    ResumeStable,
    /// Holds messages from below during a state transfer.
    CloseBarrier,
    /// Releases held messages and lets new ones pass.
    OpenBarrier,
}

/// A query to other layers. The nearest layer below that knows the answer responds, then the nearest above.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// The digest of all members of the view.
    Digest,
    /// The digest of this member only.
    DigestOf(&'a Address),
    /// Whether the local member has joined a view.
    IsServer,
    /// Whether one member sends the multicasts of all members. Then a multicast may arrive after its origin
    /// has left, and all multicasts use the credits of that one member.
    IsSentByOne,
    /// Whether a message of this sender waits for earlier ones. Layers that request retransmission answer.
    HasGap {
        /// The sender of the messages.
        sender: &'a Address,
        /// Whether the query is about its multicasts or its unicasts to this member.
        is_multicast: bool,
    },
    /// The size in bytes of the largest message that leaves a fragmentation layer.
    FragSize,
    /// How many bytes of one sender's credit incomplete messages may hold without stalling the sender. Layers
    /// that grant credits or have windows answer; without an answer it is 0.
    Withholdable {
        /// Whether the query is about multicasts or unicasts.
        is_multicast: bool,
        /// The size in bytes of a fragment.
        piece: u64,
    },
}

/// An answer to a [`Query`].
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// The answer to `Digest` and `DigestOf`.
    Digest(Digest),
    /// The answer to `IsServer`, `IsSentByOne` and `HasGap`.
    Yes(bool),
    /// The answer to `FragSize` and `Withholdable`.
    Number(u64),
}

/// Correlates an effect with its outcomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    pub(crate) layer: u16,
    /// A number unique within a stack.
    pub number: u64,
}

impl Token {
    /// Returns the layer that requested the effect. Effects such as [`Effect::CloseListener`] refer to
    /// earlier requests of the same layer.
    pub const fn layer(self) -> u16 {
        self.layer
    }
}

/// A connection opened by, or accepted for, a layer. The edge chooses the number, unique within a stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// A kind of DNS records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DnsRecord {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Services: hosts with ports.
    Srv,
}

/// A request of a layer to the driver. Outcomes come back under the effect's token.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Listen for connections with JGroups' set-up bytes, on the first free port. Outcomes: `Listening` or
    /// `Failed`; later, any number of `Accepted`.
    Listen {
        /// The address to bind to; the wildcard address if absent.
        bind: Option<IpAddr>,
        /// The ports to try in order.
        ports: Vec<u16>,
        /// The address to advertise instead of the bound one.
        external: Option<ExternalAddress>,
    },
    /// Close the listener. Its connections stay open.
    CloseListener,
    /// Connect and write the set-up bytes. Outcomes: `Connected` or `Failed`; later `Frame`s and one
    /// `Closed`.
    Connect {
        /// The peer's address.
        to: PhysAddr,
        /// The address in the set-up bytes: this member's own listener. `None`: connect without set-up bytes,
        /// as to routers.
        own: Option<PhysAddr>,
        /// The limit for connecting.
        timeout: Duration,
    },
    /// Write one frame. The edge adds the length.
    Write {
        /// The connection.
        conn: ConnId,
        /// The frame.
        frame: Bytes,
    },
    /// Close a connection. No `Closed` comes back for it.
    Close {
        /// The connection.
        conn: ConnId,
        /// Whether to write the graceful-close word first.
        is_graceful: bool,
    },
    /// Join a multicast group on a separate socket (MPING). Outcomes: `Joined` or `Failed`; later
    /// `Datagram`s.
    JoinGroup {
        /// The group.
        group: PhysAddr,
        /// The address of the interface; the transport's if absent.
        bind: Option<IpAddr>,
        /// The time to live of sent datagrams.
        ttl: u32,
    },
    /// Send a datagram to the joined group.
    SendGroup {
        /// The bytes.
        datagram: Bytes,
    },
    /// Leave the group.
    LeaveGroup,
    /// Read all files of a directory whose names have this suffix. Outcome: `Files` or `Failed`.
    ReadFiles {
        /// The directory. It is not created.
        directory: String,
        /// The suffix, with its dot.
        ending: &'static str,
    },
    /// Write a file atomically and create the directory if needed. Outcome: `Done` or `Failed`.
    WriteFile {
        /// The directory.
        directory: String,
        /// The file's name.
        name: String,
        /// The content.
        content: String,
    },
    /// Remove a file if it exists. Outcome: `Done` or `Failed`.
    RemoveFile {
        /// The directory.
        directory: String,
        /// The file's name.
        name: String,
    },
    /// Remove all files of a directory whose names have this suffix, except one. Outcome: `Done` or `Failed`.
    RemoveFiles {
        /// The directory.
        directory: String,
        /// The suffix, with its dot.
        ending: &'static str,
        /// The name of the file that stays.
        except: String,
    },
    /// Resolve a host name, without delay for other effects. Outcome: `Addresses` or `Failed`.
    LookUp {
        /// The name.
        name: String,
    },
    /// Request DNS records. Outcome: `Services` or `Failed`.
    QueryDns {
        /// The name.
        name: String,
        /// The kind of records.
        record: DnsRecord,
        /// The name server, as host, host:port or address; those of the system if absent.
        server: Option<String>,
    },
    /// Announce this member to members in the same process or simulation (LOCAL_PING). Outcome: `Done`.
    AnnounceLocally(PingData),
    /// Withdraw the announcement. Outcome: `Done`.
    RetractLocally,
    /// List the members of this cluster that have announced themselves. Outcome: `Local`.
    FindLocally,
}

/// The result of an [`Effect`], or a later event of it.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// Success.
    Done,
    /// Failure, with a text for the log.
    Failed(String),
    /// The listener's address.
    Listening(PhysAddr),
    /// A peer connected to the listener. The address is that of its set-up bytes.
    Accepted {
        /// The connection.
        conn: ConnId,
        /// The peer's listener.
        peer: PhysAddr,
    },
    /// The connection is established.
    Connected(ConnId),
    /// A frame arrived on a connection.
    Frame {
        /// The connection.
        conn: ConnId,
        /// The frame without its length word.
        frame: Bytes,
    },
    /// The peer closed a connection, or it broke.
    Closed {
        /// The connection.
        conn: ConnId,
        /// Whether the graceful-close word came first.
        is_graceful: bool,
    },
    /// The group is joined.
    Joined,
    /// A datagram arrived on the group's socket.
    Datagram {
        /// The sender.
        from: PhysAddr,
        /// The bytes.
        datagram: Bytes,
    },
    /// The files as name and content, ordered by name.
    Files(Vec<(String, String)>),
    /// The addresses of a name.
    Addresses(Vec<IpAddr>),
    /// The addresses of a name with their ports. A port that DNS does not tell is 0.
    Services(Vec<(IpAddr, u16)>),
    /// The members announced in this process.
    Local(Vec<PingData>),
}

/// The destination of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransmitDest {
    /// To one address.
    One(PhysAddr),
    /// To several addresses, the same bytes to each.
    Many(Arc<[PhysAddr]>),
    /// To the transport's multicast group.
    Multicast,
}

/// The priority of a packet at the edge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PacketPriority {
    /// Heartbeats, views, acks and credits. Sent first and never dropped because of queued data.
    Control,
    /// All other packets. Dropped when the peer's queue is full; retransmission repairs the loss.
    Data,
}

/// A transport payload for the network, without TCP's length word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// The destination.
    pub dest: TransmitDest,
    /// The packet without its tail.
    pub bytes: Bytes,
    /// A large payload that follows `bytes` in the same packet, uncopied. Usually empty; only transports over
    /// streams use it.
    pub tail: Bytes,
    /// The priority.
    pub priority: PacketPriority,
}

impl Transmit {
    /// Returns the length of the packet in bytes.
    pub fn length(&self) -> usize {
        self.bytes.len() + self.tail.len()
    }

    /// Returns the packet in one piece, for edges that cannot send two. Copies it if it has a tail.
    pub fn whole(&self) -> Bytes {
        if self.tail.is_empty() { self.bytes.clone() } else { [&self.bytes[..], &self.tail].concat().into() }
    }
}

/// An output of the stack to the application.
#[derive(Clone, PartialEq, Debug)]
pub enum Indication {
    /// Messages of one sender.
    Batch(MessageBatch),
    /// An event that reaches the top: `View`, `Connected`, `Disconnected`, `Suspect`, `Silent`, `Unsuspect`,
    /// `StateRequested`, `StateReceived`, `RsvpDone`.
    Event(Event),
}
