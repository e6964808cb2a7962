//! Headers: the fields that a protocol adds to a message for its peers.
//!
//! One closed enum of small values: no allocation on the data path (rare, large headers are boxed) and no
//! downcast. Decoding is exhaustive because headers carry no length on the wire.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Address, Digest, MergeId, PhysAddr, ProtocolId, ViewId};

/// A header and its protocol.
#[derive(Clone, PartialEq, Debug)]
pub struct Header {
    /// The protocol that reads it.
    pub id: ProtocolId,
    /// The content; its variant determines the magic id.
    pub body: HeaderBody,
}

/// The content of a header. The number behind each variant is its magic id.
#[derive(Clone, PartialEq, Debug)]
pub enum HeaderBody {
    /// 60: transport.
    Tp(Box<TpHeader>),
    /// 53: discovery.
    Ping(Box<PingHeader>),
    /// 75
    Merge3(Box<Merge3Header>),
    /// 93
    FdSock2(Box<FdSock2Header>),
    /// 62: FD_ALL*.
    Heartbeat,
    /// 54 (VERIFY_SUSPECT) and 94 (VERIFY_SUSPECT2): the same layout, distinguished by the protocol id.
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
    /// 68: an RPC with members that ignore it.
    RpcMulti(Box<RpcMultiHeader>),
    /// 69
    Daisy(Box<Address>),
    /// 74
    Counter,
    /// 80
    Relay(Box<RelayHeader>),
    /// 83
    Fork(Box<ForkHeader>),
    /// 84: when the sender's PERF layer passed the message on, in nanoseconds of its system's monotonic clock.
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

/// A round-trip probe in the transport's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RttProbe {
    /// False: the request; true: the response.
    pub is_response: bool,
    /// Correlates request and response.
    pub index: i32,
}

/// The header of discovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingHeader {
    /// 1 GET_MBRS_REQ or 2 GET_MBRS_RSP.
    pub kind: PingKind,
    /// The cluster's name; absent in responses.
    pub cluster: Option<Arc<str>>,
    /// Whether a join waits for the discovery.
    pub initial_discovery: bool,
}

/// The kinds of discovery message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PingKind {
    /// Requests members' data.
    Request = 1,
    /// The sender's data and cache.
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

/// The kinds of MERGE3 message.
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

/// The header of FD_SOCK2, in messages and on its own sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FdSock2Header {
    /// 1: these members are suspected.
    Suspect(Vec<Address>),
    /// 2: these members are alive after all.
    Unsuspect(Vec<Address>),
    /// 3: asks whether the receiver is the FD_SOCK2 server of this member.
    Connect(Address),
    /// 4: the answer, with the server's identity.
    ConnectResponse {
        /// The cluster's name.
        cluster: Option<String>,
        /// The server's member address.
        server: Address,
    },
}

/// The header of VERIFY_SUSPECT and VERIFY_SUSPECT2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifySuspectHeader {
    /// False: 1 ARE_YOU_DEAD; true: 2 I_AM_NOT_DEAD.
    pub is_answer: bool,
    /// The member that asks or answers.
    pub from: Option<Address>,
}

/// The header of NAKACK2, NAKACK3 and NAKACK4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NakAckHeader {
    /// 1: a message.
    Msg {
        /// Its seqno.
        seqno: u64,
    },
    /// 2: requests retransmission of the seqnos in the payload.
    XmitReq {
        /// The sender of the missing messages.
        sender: Box<Address>,
    },
    /// 3: a message retransmitted to one member.
    XmitRsp {
        /// Its seqno.
        seqno: u64,
    },
    /// 4: the seqno of the last message sent.
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

/// The header of UNICAST3 and UNICAST4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnicastHeader {
    /// 0: a message.
    Data {
        /// Its seqno.
        seqno: u64,
        /// The sender's connection.
        conn_id: i16,
        /// Whether the receiver starts a window with this message.
        first: bool,
    },
    /// 1: all messages up to here have arrived.
    Ack {
        /// The seqno.
        seqno: u64,
        /// The connection.
        conn_id: i16,
        /// A newer ack has a larger timestamp.
        timestamp: i32,
    },
    /// 2: requests the first message of the connection, which the receiver lacks.
    SendFirstSeqno {
        /// As in acks.
        timestamp: i32,
    },
    /// 3: requests retransmission of the seqnos in the payload.
    XmitReq,
    /// 4: the sender has closed the connection.
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
    /// The view for which it is valid.
    pub view_id: Option<ViewId>,
}

/// The header of GMS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GmsHeader {
    /// The kind.
    pub kind: GmsKind,
    /// The member in question.
    pub member: Option<Address>,
    /// The merge in question.
    pub merge_id: Option<MergeId>,
    /// Whether the merge was refused.
    pub merge_rejected: bool,
}

/// The kinds of GMS message.
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

/// The header of UFC and MFC. The number of credits is in the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FcHeader {
    /// Returns credits to the sender.
    Replenish = 1,
    /// Requests credits.
    CreditRequest = 2,
}

/// The header of FRAG2 and FRAG4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragHeader {
    /// The number of the fragmented message, per sender.
    pub id: u64,
    /// The fragment's index, from 0.
    pub frag_id: u32,
    /// The number of fragments.
    pub num_frags: u32,
    /// Whether the joined fragments are a whole serialized message.
    pub needs_deserialization: bool,
    /// The type of the original message (FRAG4).
    pub original_type: i16,
}

/// The header of FRAG3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frag3Header {
    /// The number of the fragmented message, per sender.
    pub id: u32,
    /// The fragment's index, from 0.
    pub frag_id: u32,
    /// The number of fragments.
    pub num_frags: u32,
    /// The size of all fragments in bytes.
    pub original_length: u32,
    /// The offset of this fragment in bytes.
    pub offset: u32,
    /// Whether the joined fragments are a whole serialized message.
    pub needs_deserialization: bool,
}

/// The header of RSVP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RsvpHeader {
    /// The kind.
    pub kind: RsvpKind,
    /// Correlates request and responses.
    pub id: i16,
}

/// The kinds of RSVP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RsvpKind {
    /// A message that requests a response.
    Request = 1,
    /// A request without the message, sent as a reminder.
    RequestOnly = 2,
    /// The response.
    Response = 3,
}

/// The header of SEQUENCER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequencerHeader {
    /// The kind.
    pub kind: SequencerKind,
    /// The original sender's seqno.
    pub seqno: u64,
    /// Whether the broadcast acknowledges a flush.
    pub flush_ack: bool,
}

/// The kinds of SEQUENCER message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SequencerKind {
    /// Requests a broadcast by the coordinator.
    Forward = 1,
    /// As `Forward`, while the coordinator changes.
    Flush = 2,
    /// The coordinator's own broadcast.
    Bcast = 3,
    /// The broadcast of another member's wrapped message.
    WrappedBcast = 4,
}

/// The header of STATE_TRANSFER.
#[derive(Clone, PartialEq, Debug)]
pub enum StateTransferHeader {
    /// 1: requests the state.
    Request,
    /// 2: the state, with the provider's digest.
    Response(Option<Digest>),
    /// 3: the failure, described in the payload.
    Exception,
}

/// The header of STATE and STATE_SOCK.
#[derive(Clone, PartialEq, Debug)]
pub struct StateHeader {
    /// 1 request, 2 response, 3 part, 4 end, 5 exception.
    pub kind: u8,
    /// The provider's digest.
    pub digest: Option<Digest>,
    /// The address from which to fetch the state (STATE_SOCK).
    pub bind_addr: Option<PhysAddr>,
}

/// The header of COMPRESS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressHeader {
    /// The size in bytes before compression.
    pub original_size: i32,
    /// Whether the payload is a whole serialized message.
    pub needs_deserialization: bool,
}

/// The header of SYM_ENCRYPT and ASYM_ENCRYPT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncryptHeader {
    /// 0 normal, 1 install keys, 2 fetch shared key.
    pub kind: u8,
    /// Whether the payload is a whole serialized message.
    pub needs_deserialization: bool,
    /// MD5 of the key.
    pub version: Option<Bytes>,
    /// The key server. Only kind 2 uses it, but it is always encoded.
    pub server: Option<Address>,
    /// The initialization vector.
    pub iv: Option<Bytes>,
}

/// The header of AUTH: the token's class and body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuthHeader {
    /// No token.
    None,
    /// 16
    FixedMembership(Option<String>),
    /// 17
    X509(Option<Bytes>),
    /// An unregistered class with an empty body, such as RegexMembership.
    Class(String),
}

/// The header of an RPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RpcHeader {
    /// The kind.
    pub kind: RpcKind,
    /// Correlates request and response; 0: no response expected.
    pub request_id: u64,
    /// The dispatcher on the channel.
    pub corr_id: i16,
}

/// The kinds of RPC message.
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

/// The header of an RPC with members that ignore it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RpcMultiHeader {
    /// The fields of a plain RPC.
    pub rpc: RpcHeader,
    /// The members that ignore it.
    pub exclusion: Option<Vec<Address>>,
}

/// The header of RELAY2 and RELAY3.
#[derive(Clone, PartialEq, Debug)]
pub struct RelayHeader {
    /// 1 DATA … 7 TOPO_RSP.
    pub kind: u8,
    /// Whether to respond with the whole topology cache.
    pub return_entire_cache: bool,
    /// The final destination.
    pub final_dest: Option<Address>,
    /// The original sender.
    pub original_sender: Option<Address>,
    /// The sites it is about.
    pub sites: Vec<Option<String>>,
    /// The sites it has visited.
    pub visited: Vec<Option<String>>,
    /// Headers of the original message.
    pub original_headers: Vec<Header>,
    /// Flags of the original message.
    pub original_flags: i16,
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
    /// In a response: the encrypted secret key and its version.
    pub secret: Option<(Bytes, Bytes)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S000-79 and S000-65: headers of the data path are small in memory.
    #[test]
    fn headers_of_the_data_path_are_small() {
        assert!(size_of::<UnicastHeader>() <= 16, "{}", size_of::<UnicastHeader>());
        assert!(size_of::<NakAckHeader>() <= 16, "{}", size_of::<NakAckHeader>());
        assert!(size_of::<Header>() <= 32, "{}", size_of::<Header>());
    }
}
