use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::database::{DatabaseSettings, MemberRow, RowRequest};
use crate::secret_key::{KeyRequest, SecretKey};
use crate::{
    Address, BridgeInput, Digest, ExternalAddress, KubernetesQuery, Member, MessageBatch, PhysAddr, PingData,
    PodList, RelayEvent, View,
};

/// A layer's decision on an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Pass it on.
    On,
    /// Stop it here.
    Stop,
}

/// An event, in order with the messages around it.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    // upward
    /// A view that all layers below have.
    View(View),
    /// These members are suspected to have crashed.
    Suspect(Vec<Address>),
    /// These members have missed heartbeats, too few to be suspected. A member no longer listed has sent one again or
    /// left the view.
    Silent(Vec<Address>),
    /// These members are alive. Also travels down, from the verifying layer to the detecting layer.
    Unsuspect(Vec<Address>),
    /// These members are proven to have crashed: a suspicion of them needs no further verification. Also travels down.
    Crashed(Vec<Address>),
    /// The host of these members ended the transport's connection, as it does when a process dies. No suspicion by itself.
    StreamEnded(Vec<Address>),
    /// Members with different views.
    MergeViews(Vec<(Address, View)>),
    /// The transport lacks the physical addresses of these members, or of all members if empty.
    WhoHas(Vec<Address>),
    /// A member that discovery has found.
    Heard(PingData),
    /// The result of an initial discovery.
    Found(Vec<PingData>),
    /// The join is over; the error is the reason of a failure.
    Connected(Result<(), String>),
    /// The leave is over.
    Disconnected,
    /// The end of a send that waits for all acknowledgements.
    RsvpDone {
        /// The message's ticket.
        ticket: u32,
        /// Whether all members acknowledged in time.
        is_complete: bool,
    },
    /// A member requests the application's state; [`Event::ProvideState`] answers.
    StateRequested {
        /// The request's id.
        token: u64,
        /// The requester.
        from: Address,
    },
    /// The result of [`Event::GetState`]; no state if the member is alone.
    StateReceived(Result<Option<Bytes>, StateError>),
    /// A message for a bridge, or a change of sites (RELAY2, RELAY3).
    Relay(Box<RelayEvent>),
    /// The result of [`Event::FetchSecretKey`]: the key, or the reason of the failure.
    SecretKeyFetched {
        /// The request.
        request: Box<KeyRequest>,
        /// The key, which has the requested version.
        key: Result<SecretKey, String>,
    },

    // in either direction
    /// Install this view (INJECT_VIEW, for tests).
    InjectView(View),

    // downward
    /// Join the cluster named in [`crate::Shared::cluster`].
    Connect,
    /// Leave the cluster.
    Disconnect,
    /// Run a discovery.
    FindMembers {
        /// Whether a join waits for it. The first coordinator's response then ends it, and [`Event::Found`] answers.
        is_initial: bool,
        /// The time limit.
        timeout: Duration,
    },
    /// Fetch the application's state.
    GetState {
        /// The provider; absent: the first other member.
        target: Option<Address>,
        /// The time limit.
        timeout: Duration,
    },
    /// The answer to a state request.
    ProvideState {
        /// The request's id.
        token: u64,
        /// The state, or the reason for its absence.
        state: Result<Option<Bytes>, String>,
    },
    /// A message or view of a bridge (RELAY2, RELAY3).
    FromBridge(Box<BridgeInput>),
    /// Fetch the group's key (ASYM_ENCRYPT to its key exchange).
    FetchSecretKey(Box<KeyRequest>),
    /// The key that this member has from now on, to serve others.
    ServeSecretKey(SecretKey),
}

/// The reason why a state transfer failed. The application's state is unchanged unless the variant says otherwise.
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
    /// No layer transfers state.
    #[error("the stack has no state transfer protocol")]
    NoProtocol,
    /// The application panicked and may have applied a part of the state.
    #[error("the application panicked while it took the state: {0}")]
    NotTaken(String),
}

/// A synchronous call to all layers below, from top to bottom.
#[derive(Clone, Copy, Debug)]
pub enum Control<'a> {
    /// A view takes effect; [`crate::Shared::view`] holds it.
    View(&'a View),
    /// These members are not in the next view although they have not left.
    Lost(&'a [Address]),
    /// The join is complete.
    BecomeServer,
    /// Sets the members' seqnos on a join, except of existing windows.
    SetDigest(&'a Digest),
    /// Raises the others' seqnos on a merge.
    MergeDigest(&'a Digest),
    /// Replaces the others' seqnos on a state transfer.
    OverwriteDigest(&'a Digest),
    /// All members have delivered all messages up to here.
    Stable(&'a Digest),
    /// Suspends stability rounds for at most this time while membership changes.
    SuspendStable(Duration),
    /// Resumes stability rounds.
    ResumeStable,
    /// Holds messages during a state transfer.
    CloseBarrier,
    /// Releases held messages.
    OpenBarrier,
}

/// A query to other layers. The nearest layer below with an answer responds, otherwise the nearest above.
#[derive(Clone, Copy, Debug)]
pub enum Query<'a> {
    /// The digest of all members.
    Digest,
    /// The digest of this member.
    DigestOf(&'a Address),
    /// Whether the local member has joined a view.
    IsServer,
    /// Whether the transport listens at its physical address by TCP; the transport answers.
    HasTcpPort,
    /// Whether one member sends all multicasts: with its credits, and possibly after the origin has left.
    IsSentByOne,
    /// Whether a message of this sender waits for earlier ones; retransmitting layers answer.
    HasGap {
        /// The sender.
        sender: &'a Address,
        /// Multicasts, or unicasts to this member.
        is_multicast: bool,
    },
    /// The size in bytes of the largest message below fragmentation.
    FragSize,
    /// How many bytes of a sender's credit incomplete messages may hold without stalling it. Layers with credits or windows
    /// answer; otherwise it is 0.
    Withholdable {
        /// Multicasts, or unicasts.
        is_multicast: bool,
        /// A fragment's size in bytes.
        piece: u64,
    },
}

/// An answer to a [`Query`].
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// For `Digest` and `DigestOf`.
    Digest(Digest),
    /// For `IsServer`, `HasTcpPort`, `IsSentByOne` and `HasGap`.
    Yes(bool),
    /// For `FragSize` and `Withholdable`.
    Number(u64),
}

/// Correlates an effect with its outcomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    pub(crate) layer: u16,
    /// A number, unique within a stack.
    pub number: u64,
}

impl Token {
    /// Creates the token of a layer's effect. Stacks make their own; a test of a driver makes one by itself.
    pub const fn new(layer: u16, number: u64) -> Self {
        Self { layer, number }
    }

    /// Returns the layer that requested the effect; [`Effect::CloseListener`] and others refer to its requests.
    pub const fn layer(self) -> u16 {
        self.layer
    }
}

/// A layer's connection. The edge chooses the number, unique within a stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// The encryption of streams.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StreamSecurity {
    /// TLS if the transport has it.
    #[default]
    Transport,
    /// Always TLS, with the certificates of SSL_KEY_EXCHANGE. Without certificates there is no stream.
    KeyExchange,
}

/// The options of a stream's socket.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StreamOptions {
    /// Whether the system probes an idle connection.
    pub keep_alive: bool,
    /// The size of the receive buffer in bytes; `None`: the transport's.
    pub recv_buf: Option<usize>,
    /// The encryption.
    pub security: StreamSecurity,
}

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

/// A request of a layer to the driver; outcomes have its token.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Listen for connections with JGroups' set-up bytes. Outcomes: `Listening` or `Failed`; later `Accepted`,
    /// repeatedly.
    Listen {
        /// The address to bind to; absent: the wildcard address.
        bind: Option<IpAddr>,
        /// The ports to try, in order.
        ports: Vec<u16>,
        /// The address to advertise instead.
        external: Option<ExternalAddress>,
    },
    /// Close the listener, not its connections.
    CloseListener,
    /// Connect and write the set-up bytes. Outcomes: `Connected` or `Failed`; later `Frame`s and one `Closed`.
    Connect {
        /// The peer's address.
        to: PhysAddr,
        /// The listener in the set-up bytes. `None`: no set-up bytes, as to routers.
        own: Option<PhysAddr>,
        /// The time limit.
        timeout: Duration,
        /// The name under which the peer is configured; the certificate of a router with TLS has it.
        name: Option<Arc<str>>,
    },
    /// Listen for streams: connections without set-up bytes and frames. Outcomes as those of `Listen`; the peer is the
    /// address that a connection comes from.
    ListenStreams {
        /// The address to bind to; absent: the transport's.
        bind: Option<IpAddr>,
        /// The ports to try, in order. 0 is any port.
        ports: Vec<u16>,
        /// The address to advertise instead.
        external: Option<ExternalAddress>,
        /// The sockets' options.
        options: StreamOptions,
    },
    /// Connect a stream. Outcomes as those of `Connect`: a `Frame` has the bytes of one read, and `Closed` is graceful
    /// if the stream ended without an error.
    ConnectStream {
        /// The peer's address.
        to: PhysAddr,
        /// The time limit.
        timeout: Duration,
        /// The socket's options.
        options: StreamOptions,
    },
    /// Find out whether a process listens at a port, by a TCP connection that is closed at once. Outcome: `Port`.
    ProbePort {
        /// The port.
        to: PhysAddr,
        /// The time limit.
        timeout: Duration,
    },
    /// Write one frame, to which the edge adds the length; or the next bytes of a stream.
    Write {
        /// The connection.
        conn: ConnId,
        /// The frame.
        frame: Bytes,
    },
    /// Write a member's packet to a router, if its queue has room. Frame and tail have one length.
    Forward {
        /// The connection.
        conn: ConnId,
        /// The frame without its tail.
        frame: Bytes,
        /// A large payload that follows `frame` uncopied.
        tail: Bytes,
        /// The priority.
        priority: PacketPriority,
    },
    /// Close a connection, without a `Closed`. A stream that closes gracefully has the outcome `Done` once all bytes are
    /// written, or `Failed`.
    Close {
        /// The connection.
        conn: ConnId,
        /// Whether to write the graceful-close word; in a stream, whether to write the bytes that wait.
        is_graceful: bool,
    },
    /// Join a multicast group on a separate socket (MPING). Outcomes: `Joined` or `Failed`; later `Datagram`s.
    JoinGroup {
        /// The group.
        group: PhysAddr,
        /// The address of the interface; the transport's if absent.
        bind: Option<IpAddr>,
        /// The time to live.
        ttl: u32,
    },
    /// Send to the joined group.
    SendGroup {
        /// The bytes.
        datagram: Bytes,
    },
    /// Leave the group.
    LeaveGroup,
    /// Read the files with this suffix. Outcome: `Files` or `Failed`.
    ReadFiles {
        /// The directory, which is not created.
        directory: String,
        /// The suffix, with its dot.
        ending: &'static str,
    },
    /// Write a file atomically; create the directory if needed. Outcome: `Done` or `Failed`.
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
    /// List pods by the API of Kubernetes. Outcome: `Pods` or `Failed`.
    ListPods(Box<KubernetesQuery>),
    /// Read or change the rows of members in a database (JDBC_PING2). Outcome: as the request's.
    Database {
        /// The database.
        settings: Arc<DatabaseSettings>,
        /// The request.
        request: RowRequest,
    },
    /// Announce this member in the process or simulation (LOCAL_PING). Outcome: `Done`.
    AnnounceLocally(PingData),
    /// Withdraw the announcement. Outcome: `Done`.
    RetractLocally,
    /// List the announced members of this cluster. Outcome: `Local`.
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
    /// A peer connected.
    Accepted {
        /// The connection.
        conn: ConnId,
        /// The peer's listener, from its set-up bytes.
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
        /// Whether the graceful-close word preceded.
        is_graceful: bool,
        /// Whether an error ended it, such as a reset, which another host can send. Without one the peer's host ended the
        /// stream, as it does when a process closes its socket or dies.
        is_reset: bool,
    },
    /// The answer of a port.
    Port(PortState),
    /// The group is joined.
    Joined,
    /// A datagram of the group.
    Datagram {
        /// The sender.
        from: PhysAddr,
        /// The bytes.
        datagram: Bytes,
    },
    /// Names and contents, ordered by name.
    Files(Vec<(String, String)>),
    /// The rows of a cluster's members.
    Rows(Vec<MemberRow>),
    /// The addresses of a name.
    Addresses(Vec<IpAddr>),
    /// The addresses of a name with their ports. A port that DNS does not tell is 0.
    Services(Vec<(IpAddr, u16)>),
    /// The pods that the API of Kubernetes lists.
    Pods(PodList),
    /// The members in this process.
    Local(Vec<PingData>),
}

/// The answer of a port to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// A process listens.
    Open,
    /// The connection was refused: no process listens, its queue of connections is full, or a firewall rejects.
    Refused,
    /// There was no answer in time, there is no way to the host, or this host could not ask.
    Unknown,
}

/// The destination of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransmitDest {
    /// One address.
    One(PhysAddr),
    /// The same bytes to each.
    Many(Arc<[PhysAddr]>),
    /// The transport's multicast group.
    Multicast,
}

/// The priority of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PacketPriority {
    /// Heartbeats, views, acks and credits: sent first, and never dropped because of queued data.
    Control,
    /// Other packets: dropped when the peer's queue is full; retransmission repairs the loss.
    Data,
}

/// A packet for the network, without TCP's length word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// The destination.
    pub dest: TransmitDest,
    /// The packet without its tail.
    pub bytes: Bytes,
    /// A large payload that follows `bytes` uncopied. Only transports over streams use it.
    pub tail: Bytes,
    /// The priority.
    pub priority: PacketPriority,
}

impl Transmit {
    /// Returns the length of the packet in bytes.
    pub fn length(&self) -> usize {
        self.bytes.len() + self.tail.len()
    }

    /// Returns the packet in one piece; copies it if it has a tail.
    pub fn whole(&self) -> Bytes {
        if self.tail.is_empty() { self.bytes.clone() } else { [&self.bytes[..], &self.tail].concat().into() }
    }
}

/// An output of the stack to the application.
#[derive(Clone, PartialEq, Debug)]
pub enum Indication {
    /// Messages of one sender.
    Batch(MessageBatch),
    /// An event: `View`, `Connected`, `Disconnected`, `Suspect`, `Silent`, `Unsuspect`, `StateRequested`,
    /// `StateReceived`, `RsvpDone`.
    Event(Event),
}
