//! Headers: what a protocol writes on a message for its peers (facts sections 8 and 11 to 24).
//!
//! One closed enum of small values: no allocation on the data path (the rare, large ones are boxed), no downcast,
//! and decoding is exhaustive, which it has to be because headers carry no length on the wire.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Address, Digest, MergeId, PhysAddr, ProtocolId, ViewId};

/// A header and the protocol it belongs to.
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
    /// 54 (VERIFY_SUSPECT) and 94 (VERIFY_SUSPECT2): the same layout, told apart by the protocol id.
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
    /// 68: an RPC that some members shall ignore.
    RpcMulti(Box<RpcMultiHeader>),
    /// 69
    Daisy(Box<Address>),
    /// 74
    Counter,
    /// 80
    Relay(Box<RelayHeader>),
    /// 83
    Fork(Box<ForkHeader>),
    /// 92
    Dh(Box<DhHeader>),
    /// 96
    Batch2,
    /// 101: pairs of texts.
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
    /// False: please answer; true: the answer.
    pub is_response: bool,
    /// Correlates the two.
    pub index: i32,
}

/// Discovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingHeader {
    /// 1 GET_MBRS_REQ or 2 GET_MBRS_RSP.
    pub kind: PingKind,
    /// The cluster's name; absent in responses.
    pub cluster: Option<Arc<str>>,
    /// Whether a join is under way.
    pub initial_discovery: bool,
}

/// The kinds of discovery message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PingKind {
    /// Who is there?
    Request = 1,
    /// I am, and this is what I know.
    Response = 2,
}

/// MERGE3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Merge3Header {
    /// What it is.
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
    /// This is my view id.
    Info = 0,
    /// Which is your view?
    ViewRequest = 1,
    /// It is in the payload.
    ViewResponse = 2,
}

/// FD_SOCK2, in messages and on its own sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FdSock2Header {
    /// 1: these members seem dead.
    Suspect(Vec<Address>),
    /// 2: these members are alive after all.
    Unsuspect(Vec<Address>),
    /// 3: are you the FD_SOCK2 server of this member?
    Connect(Address),
    /// 4: this is who I am.
    ConnectResponse {
        /// The cluster's name.
        cluster: Option<String>,
        /// The server's member address.
        server: Address,
    },
}

/// VERIFY_SUSPECT and VERIFY_SUSPECT2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifySuspectHeader {
    /// False: 1 ARE_YOU_DEAD; true: 2 I_AM_NOT_DEAD.
    pub is_answer: bool,
    /// Who asks, or who answers.
    pub from: Option<Address>,
}

/// NAKACK2, 3 and 4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NakAckHeader {
    /// 1: a message.
    Msg {
        /// Its number.
        seqno: u64,
    },
    /// 2: please resend; the numbers are in the payload.
    XmitReq {
        /// Who sent the missing messages.
        sender: Box<Address>,
    },
    /// 3: a message resent to one member.
    XmitRsp {
        /// Its number.
        seqno: u64,
    },
    /// 4: the number of the last message sent.
    HighestSeqno {
        /// The number.
        seqno: u64,
    },
    /// 5: everything up to here was delivered (NAKACK4).
    Ack {
        /// The number.
        seqno: u64,
    },
}

/// UNICAST3 and UNICAST4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnicastHeader {
    /// 0: a message.
    Data {
        /// Its number.
        seqno: u64,
        /// The sender's connection.
        conn_id: i16,
        /// Whether the receiver shall start a window here.
        first: bool,
    },
    /// 1: everything up to here has arrived.
    Ack {
        /// The number.
        seqno: u64,
        /// The connection.
        conn_id: i16,
        /// Later acks have larger timestamps.
        timestamp: i32,
    },
    /// 2: I miss the start of your connection.
    SendFirstSeqno {
        /// As in acks.
        timestamp: i32,
    },
    /// 3: please resend; the numbers are in the payload.
    XmitReq,
    /// 4: the sender's connection is gone.
    Close {
        /// The connection.
        conn_id: i16,
    },
}

/// STABLE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StableHeader {
    /// False: 1 STABLE_GOSSIP; true: 2 STABILITY.
    pub is_stability: bool,
    /// The view it holds for.
    pub view_id: Option<ViewId>,
}

/// GMS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GmsHeader {
    /// What it is.
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

/// UFC and MFC; the number of credits is the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FcHeader {
    /// These credits are yours again.
    Replenish = 1,
    /// I ran out.
    CreditRequest = 2,
}

/// FRAG2 and FRAG4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragHeader {
    /// Numbers the fragmented messages of a sender.
    pub id: u64,
    /// Which fragment, from 0.
    pub frag_id: u32,
    /// How many there are.
    pub num_frags: u32,
    /// Whether the fragments together are a whole serialized message.
    pub needs_deserialization: bool,
    /// The type of the original message (FRAG4).
    pub original_type: i16,
}

/// FRAG3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frag3Header {
    /// Numbers the fragmented messages of a sender.
    pub id: u32,
    /// Which fragment, from 0.
    pub frag_id: u32,
    /// How many there are.
    pub num_frags: u32,
    /// Bytes of all fragments.
    pub original_length: u32,
    /// Where this one starts.
    pub offset: u32,
    /// Whether the fragments together are a whole serialized message.
    pub needs_deserialization: bool,
}

/// RSVP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RsvpHeader {
    /// What it is.
    pub kind: RsvpKind,
    /// Correlates request and responses.
    pub id: i16,
}

/// The kinds of RSVP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RsvpKind {
    /// A message that wants a response.
    Request = 1,
    /// A reminder without message.
    RequestOnly = 2,
    /// The response.
    Response = 3,
}

/// SEQUENCER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequencerHeader {
    /// What it is.
    pub kind: SequencerKind,
    /// The original sender's number.
    pub seqno: u64,
    /// Whether the broadcast acknowledges a flush.
    pub flush_ack: bool,
}

/// The kinds of SEQUENCER message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SequencerKind {
    /// To the coordinator: please broadcast.
    Forward = 1,
    /// The same while the coordinator changes.
    Flush = 2,
    /// The coordinator's own.
    Bcast = 3,
    /// Another member's, wrapped.
    WrappedBcast = 4,
}

/// STATE_TRANSFER.
#[derive(Clone, PartialEq, Debug)]
pub enum StateTransferHeader {
    /// 1: please send the state.
    Request,
    /// 2: here it is.
    Response(Option<Digest>),
    /// 3: it could not be had; the payload says why.
    Exception,
}

/// STATE and STATE_SOCK.
#[derive(Clone, PartialEq, Debug)]
pub struct StateHeader {
    /// 1 request, 2 response, 3 part, 4 end, 5 exception.
    pub kind: u8,
    /// The provider's digest.
    pub digest: Option<Digest>,
    /// Where to fetch the state (STATE_SOCK).
    pub bind_addr: Option<PhysAddr>,
}

/// COMPRESS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressHeader {
    /// Bytes before compression.
    pub original_size: i32,
    /// Whether the payload is a whole serialized message.
    pub needs_deserialization: bool,
}

/// SYM_ENCRYPT and ASYM_ENCRYPT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncryptHeader {
    /// 0 normal, 1 install keys, 2 fetch shared key.
    pub kind: u8,
    /// Whether the payload is a whole serialized message.
    pub needs_deserialization: bool,
    /// MD5 of the key.
    pub version: Option<Bytes>,
    /// The key server; only kind 2 uses it, but its place is always there.
    pub server: Option<Address>,
    /// The initialization vector.
    pub iv: Option<Bytes>,
}

/// AUTH: the token's class and body.
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

/// RPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RpcHeader {
    /// What it is.
    pub kind: RpcKind,
    /// Correlates request and response; 0: no response expected.
    pub request_id: u64,
    /// Which dispatcher on the channel.
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

/// An RPC with members that shall ignore it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RpcMultiHeader {
    /// As in a plain RPC.
    pub rpc: RpcHeader,
    /// Who ignores it.
    pub exclusion: Option<Vec<Address>>,
}

/// RELAY2 and RELAY3.
#[derive(Clone, PartialEq, Debug)]
pub struct RelayHeader {
    /// 1 DATA … 7 TOPO_RSP.
    pub kind: u8,
    /// Answer with the whole topology cache.
    pub return_entire_cache: bool,
    /// Where it goes in the end.
    pub final_dest: Option<Address>,
    /// Where it came from at first.
    pub original_sender: Option<Address>,
    /// Sites it speaks of.
    pub sites: Vec<Option<String>>,
    /// Sites it has seen.
    pub visited: Vec<Option<String>>,
    /// Headers of the original message.
    pub original_headers: Vec<Header>,
    /// Flags of the original message.
    pub original_flags: i16,
}

/// FORK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForkHeader {
    /// The fork stack.
    pub stack: Option<String>,
    /// The channel on it.
    pub channel: Option<String>,
}

/// DH_KEY_EXCHANGE.
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

    /// S000-79 and S000-65: headers of the data path stay small in memory.
    #[test]
    fn headers_of_the_data_path_are_small() {
        assert!(size_of::<UnicastHeader>() <= 16, "{}", size_of::<UnicastHeader>());
        assert!(size_of::<NakAckHeader>() <= 16, "{}", size_of::<NakAckHeader>());
        assert!(size_of::<Header>() <= 32, "{}", size_of::<Header>());
    }
}
