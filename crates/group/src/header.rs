//! Headers: the fields that a protocol adds to a message for its peers.
//!
//! A closed enum: no allocation on the data path (rare, large headers are boxed) and no downcast. Decoding is exhaustive because
//! headers carry no length on the wire.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Address, Digest, MergeId, PhysAddr, ProtocolId, ViewId};

/// A header and its protocol.
#[derive(Clone, PartialEq, Debug)]
pub struct Header {
    /// The protocol.
    pub id: ProtocolId,
    /// The content.
    pub body: HeaderBody,
}

/// A header's content, with its magic id.
#[derive(Clone, PartialEq, Debug)]
pub enum HeaderBody {
    /// 60: transport.
    Tp(Box<TpHeader>),
    /// 53: discovery.
    Ping(Box<PingHeader>),
    /// 75
    Merge3(Box<Merge3Header>),
    /// 51
    FdSock(Box<FdSockHeader>),
    /// 93
    FdSock2(Box<FdSock2Header>),
    /// 62: FD_ALL*.
    Heartbeat,
    /// 54 (VERIFY_SUSPECT) and 94 (VERIFY_SUSPECT2); the protocol id tells which.
    VerifySuspect(Box<VerifySuspectHeader>),
    /// 78: NAKACK2.
    NakAck2(NakAckHeader),
    /// 99: NAKACK3 and NAKACK4.
    NakAck4(NakAckHeader),
    /// 82
    Unicast3(UnicastHeader),
    /// 100
    Unicast4(UnicastHeader),
    /// 56
    Stable(Box<StableHeader>),
    /// 55
    Gms(Box<GmsHeader>),
    /// 59: UFC and MFC.
    Fc(FcHeader),
    /// 52: FRAG2 and FRAG4.
    Frag(Box<FragHeader>),
    /// 91
    Frag3(Box<Frag3Header>),
    /// 76
    Rsvp(RsvpHeader),
    /// 61
    Sequencer(SequencerHeader),
    /// 57
    StateTransfer(Box<StateTransferHeader>),
    /// 65: STATE and STATE_SOCK.
    State(Box<StateHeader>),
    /// 58
    Compress(CompressHeader),
    /// 88
    Encrypt(Box<EncryptHeader>),
    /// 66
    Auth(Box<AuthHeader>),
    /// 67
    Rpc(RpcHeader),
    /// 68: an RPC with excluded members.
    RpcMulti(Box<RpcMultiHeader>),
    /// 69
    Daisy(Box<Address>),
    /// 74
    Counter,
    /// 80
    Relay(Box<RelayHeader>),
    /// 83
    Fork(Box<ForkHeader>),
    /// 84: when PERF sent the message, in nanoseconds of its system's monotonic clock.
    Perf(i64),
    /// 92
    Dh(Box<DhHeader>),
    /// 96
    Batch2,
    /// 101: pairs of strings.
    Info(Box<Vec<(Option<String>, Option<String>)>>),
}

/// The transport's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TpHeader {
    /// The cluster's name.
    pub cluster: Option<Arc<str>>,
    /// A round-trip probe.
    pub rtt: Option<RttProbe>,
}

/// A round-trip probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RttProbe {
    /// False: request; true: response.
    pub is_response: bool,
    /// Correlates request and response.
    pub index: i32,
}

/// Discovery's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingHeader {
    /// 1 GET_MBRS_REQ or 2 GET_MBRS_RSP.
    pub kind: PingKind,
    /// The cluster; absent in responses.
    pub cluster: Option<Arc<str>>,
    /// Whether a join waits for it.
    pub initial_discovery: bool,
}

/// The kinds of discovery message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PingKind {
    /// Requests members' data.
    Request = 1,
    /// The sender's data.
    Response = 2,
}

/// The header of MERGE3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Merge3Header {
    /// The kind.
    pub kind: Merge3Kind,
    /// The sender's view.
    pub view_id: Option<ViewId>,
    /// The sender's logical name.
    pub name: Option<String>,
    /// The sender's physical address.
    pub phys: Option<PhysAddr>,
}

/// The kinds of message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Merge3Kind {
    /// Announces the sender's view id.
    Info = 0,
    /// Requests the receiver's view.
    ViewRequest = 1,
    /// The view, in the payload.
    ViewResponse = 2,
}

/// The header of FD_SOCK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FdSockHeader {
    /// 10: suspects.
    Suspect(Vec<Address>),
    /// 11: members that are alive.
    Unsuspect(Vec<Address>),
    /// 12: requests the address of a member's server socket.
    WhoHasSock(Address),
    /// 13: the address of a member's server socket.
    IHaveSock {
        /// The member.
        member: Address,
        /// The address.
        address: PhysAddr,
    },
    /// 14: requests all known addresses.
    GetCache,
    /// 15: all known addresses, in the payload.
    GetCacheResponse,
}

/// FD_SOCK2's header, in messages and on its sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FdSock2Header {
    /// 1: these members are suspected.
    Suspect(Vec<Address>),
    /// 2: these members are alive.
    Unsuspect(Vec<Address>),
    /// 3: asks for this member's FD_SOCK2 server.
    Connect(Address),
    /// 4: the answer.
    ConnectResponse {
        /// The cluster's name.
        cluster: Option<String>,
        /// The server's member.
        server: Address,
    },
}

/// The header of VERIFY_SUSPECT*.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifySuspectHeader {
    /// False: 1 ARE_YOU_DEAD; true: 2 I_AM_NOT_DEAD.
    pub is_answer: bool,
    /// The sender.
    pub from: Option<Address>,
}

/// The header of NAKACK*.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NakAckHeader {
    /// 1: a message.
    Msg {
        /// Its seqno.
        seqno: u64,
    },
    /// 2: requests retransmission of the seqnos in the payload.
    XmitReq {
        /// The missing messages' sender.
        sender: Box<Address>,
    },
    /// 3: a retransmitted message.
    XmitRsp {
        /// Its seqno.
        seqno: u64,
    },
    /// 4: the last seqno sent.
    HighestSeqno {
        /// The seqno.
        seqno: u64,
    },
    /// 5: all messages up to here were delivered (NAKACK4).
    Ack {
        /// The seqno.
        seqno: u64,
    },
}

/// The header of UNICAST*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnicastHeader {
    /// 0: a message.
    Data {
        /// Its seqno.
        seqno: u64,
        /// The sender's connection.
        conn_id: i16,
        /// Whether it starts a window.
        first: bool,
    },
    /// 1: all messages up to here have arrived.
    Ack {
        /// The seqno.
        seqno: u64,
        /// The connection.
        conn_id: i16,
        /// Larger in newer acks.
        timestamp: i32,
    },
    /// 2: requests the connection's first message.
    SendFirstSeqno {
        /// As in acks.
        timestamp: i32,
    },
    /// 3: requests retransmission of the seqnos in the payload.
    XmitReq,
    /// 4: the connection is closed.
    Close {
        /// The connection.
        conn_id: i16,
    },
}

/// The header of STABLE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StableHeader {
    /// False: 1 STABLE_GOSSIP; true: 2 STABILITY.
    pub is_stability: bool,
    /// The view.
    pub view_id: Option<ViewId>,
}

/// The header of GMS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GmsHeader {
    /// The kind.
    pub kind: GmsKind,
    /// Its subject.
    pub member: Option<Address>,
    /// Its subject.
    pub merge_id: Option<MergeId>,
    /// Whether it is refused.
    pub merge_rejected: bool,
}

/// The kinds of message.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum GmsKind {
    JoinReq = 1,
    JoinRsp = 2,
    LeaveReq = 3,
    LeaveRsp = 4,
    View = 5,
    MergeReq = 6,
    MergeRsp = 7,
    InstallMergeView = 8,
    CancelMerge = 9,
    ViewAck = 10,
    JoinReqWithStateTransfer = 11,
    GetDigestReq = 13,
    GetDigestRsp = 14,
    InstallDigest = 15,
    GetCurrentView = 16,
}

/// The header of UFC and MFC; the payload holds the credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FcHeader {
    /// Returns credits.
    Replenish = 1,
    /// Requests credits.
    CreditRequest = 2,
}

/// The header of FRAG2 and FRAG4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragHeader {
    /// The message's number, per sender.
    pub id: u64,
    /// The index, from 0.
    pub frag_id: u32,
    /// The number of fragments.
    pub num_frags: u32,
    /// Whether the whole is a serialized message.
    pub needs_deserialization: bool,
    /// The type of the original message (FRAG4).
    pub original_type: i16,
}

/// The header of FRAG3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frag3Header {
    /// The message's number, per sender.
    pub id: u32,
    /// The index, from 0.
    pub frag_id: u32,
    /// The number of fragments.
    pub num_frags: u32,
    /// The whole size in bytes.
    pub original_length: u32,
    /// The offset in bytes.
    pub offset: u32,
    /// Whether the whole is a serialized message.
    pub needs_deserialization: bool,
}

/// The header of RSVP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RsvpHeader {
    /// The kind.
    pub kind: RsvpKind,
    /// Correlates request and response.
    pub id: i16,
}

/// The kinds of message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RsvpKind {
    /// A message to acknowledge.
    Request = 1,
    /// The request alone, as a reminder.
    RequestOnly = 2,
    /// The response.
    Response = 3,
}

/// The header of SEQUENCER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequencerHeader {
    /// The kind.
    pub kind: SequencerKind,
    /// The origin's seqno.
    pub seqno: u64,
    /// Whether the broadcast acknowledges a flush.
    pub flush_ack: bool,
}

/// The kinds of message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SequencerKind {
    /// Requests a broadcast.
    Forward = 1,
    /// As `Forward`, while the coordinator changes.
    Flush = 2,
    /// The coordinator's broadcast.
    Bcast = 3,
    /// Another member's, wrapped.
    WrappedBcast = 4,
}

/// The header of STATE_TRANSFER.
#[derive(Clone, PartialEq, Debug)]
pub enum StateTransferHeader {
    /// 1: requests the state.
    Request,
    /// 2: the state, with the provider's digest.
    Response(Option<Digest>),
    /// 3: the failure, in the payload.
    Exception,
}

/// The header of STATE and STATE_SOCK.
#[derive(Clone, PartialEq, Debug)]
pub struct StateHeader {
    /// 1 request, 2 response, 3 part, 4 end, 5 exception.
    pub kind: u8,
    /// The provider's digest.
    pub digest: Option<Digest>,
    /// Where to fetch the state (STATE_SOCK).
    pub bind_addr: Option<PhysAddr>,
}

/// The header of COMPRESS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressHeader {
    /// The size in bytes before compression.
    pub original_size: i32,
    /// Whether it is a whole message.
    pub needs_deserialization: bool,
}

/// The header of SYM_ENCRYPT and ASYM_ENCRYPT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncryptHeader {
    /// 0 normal, 1 install keys, 2 fetch shared key.
    pub kind: u8,
    /// Whether it is a whole message.
    pub needs_deserialization: bool,
    /// MD5 of the key.
    pub version: Option<Bytes>,
    /// The key server. Used with kind 2, always encoded.
    pub server: Option<Address>,
    /// The initialization vector.
    pub iv: Option<Bytes>,
}

/// AUTH's header: the token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuthHeader {
    /// No token.
    None,
    /// 16
    FixedMembership(Option<String>),
    /// 17
    X509(Option<Bytes>),
    /// A class with an empty body, such as RegexMembership.
    Class(String),
}

/// The header of an RPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RpcHeader {
    /// The kind.
    pub kind: RpcKind,
    /// Correlates request and response; 0: no response.
    pub request_id: u64,
    /// The dispatcher.
    pub corr_id: i16,
}

/// The kinds of message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RpcKind {
    /// A request.
    Request = 0,
    /// A result.
    Response = 1,
    /// A failure.
    Exception = 2,
}

/// The header of an RPC with excluded members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RpcMultiHeader {
    /// The plain header.
    pub rpc: RpcHeader,
    /// The excluded members.
    pub exclusion: Option<Vec<Address>>,
}

/// The types of [`RelayHeader`].
#[allow(missing_docs)]
pub mod relay_kind {
    pub const DATA: u8 = 1;
    pub const SITE_UNREACHABLE: u8 = 2;
    pub const MEMBER_UNREACHABLE: u8 = 3;
    pub const SITES_UP: u8 = 4;
    pub const SITES_DOWN: u8 = 5;
    pub const TOPO_REQ: u8 = 6;
    pub const TOPO_RSP: u8 = 7;
}

/// The header of RELAY2 and RELAY3.
#[derive(Clone, PartialEq, Debug)]
pub struct RelayHeader {
    /// 1 DATA … 7 TOPO_RSP.
    pub kind: u8,
    /// Whether to respond with all topologies.
    pub return_entire_cache: bool,
    /// The final destination.
    pub final_dest: Option<Address>,
    /// The original sender.
    pub original_sender: Option<Address>,
    /// The sites of an announcement, a report or a topology.
    pub sites: Vec<Option<String>>,
    /// The visited sites: site masters do not send the message to them.
    pub visited: Vec<Option<String>>,
    /// The original headers.
    pub original_headers: Vec<Header>,
    /// The original flags.
    pub original_flags: i16,
}

impl RelayHeader {
    /// Creates a header of this kind ([`relay_kind`]).
    pub const fn new(kind: u8, final_dest: Option<Address>, original_sender: Option<Address>) -> Self {
        Self {
            kind,
            return_entire_cache: false,
            final_dest,
            original_sender,
            sites: Vec::new(),
            visited: Vec::new(),
            original_headers: Vec::new(),
            original_flags: 0,
        }
    }

    /// Returns whether the message has visited this site.
    pub fn has_visited(&self, site: &str) -> bool {
        self.visited.iter().flatten().any(|visited| visited == site)
    }
}

/// The header of FORK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForkHeader {
    /// The fork stack.
    pub stack: Option<String>,
    /// The channel on it.
    pub channel: Option<String>,
}

/// The header of DH_KEY_EXCHANGE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DhHeader {
    /// The sender's public key.
    pub dh_key: Bytes,
    /// In a response: the encrypted key and its version.
    pub secret: Option<(Bytes, Bytes)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S000-79 and S000-65
    #[test]
    fn headers_of_the_data_path_are_small() {
        assert!(size_of::<UnicastHeader>() <= 16, "{}", size_of::<UnicastHeader>());
        assert!(size_of::<NakAckHeader>() <= 16, "{}", size_of::<NakAckHeader>());
        assert!(size_of::<Header>() <= 32, "{}", size_of::<Header>());
    }
}
