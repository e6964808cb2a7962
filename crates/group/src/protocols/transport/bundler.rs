//! The bundler packs messages into packets: alone, or as a list.
//!
//! Messages are encoded into their destination's buffer on arrival, and leave at the end of the sweep, or when the
//! next one would not fit. So an idle stack adds no delay and a busy one sends full packets, without a timer. Control
//! messages (heartbeats, views, acks, credits) have separate buffers, so that the edge can send them first.

use std::borrow::Cow;
use std::str::FromStr;

use bytes::{Bytes, BytesMut};

use crate::wire::{self, Bulk, ListStart};
use crate::{Address, Flags, HeaderBody, Message, PacketPriority, Payload, PhysAddr, Version};

/// The bundling strategy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BundlerKind {
    /// `pd`: a packet leaves when its own messages fill it. JGroups 5.5's default.
    #[default]
    PerDestination,
    /// `tq`: all leave when all messages would fill one.
    TransferQueue,
    /// `nb`: every message is a packet.
    NoBundler,
}

impl BundlerKind {
    /// Returns JGroups' long name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerDestination => "per-destination",
            Self::TransferQueue => "transfer-queue",
            Self::NoBundler => "no-bundler",
        }
    }
}

/// An unknown bundler name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown bundler `{0}`; the bundlers are transfer-queue (tq), per-destination (pd), no-bundler (nb)")]
pub struct UnknownBundler(pub String);

impl FromStr for BundlerKind {
    type Err = UnknownBundler;

    /// Parses a name. JGroups 4.0's bundlers select their replacement.
    fn from_str(name: &str) -> Result<Self, UnknownBundler> {
        match name {
            "pd" | "per-destination" => Ok(Self::PerDestination),
            "tq"
            | "transfer-queue"
            | "bundler"
            | "ab"
            | "alternating-bundler"
            | "rqb"
            | "rq"
            | "remove-queue-bundler"
            | "remove-queue" => Ok(Self::TransferQueue),
            "nb" | "no-bundler" => Ok(Self::NoBundler),
            _ => Err(UnknownBundler(name.to_owned())),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) version: Version,
    pub(super) cluster: String,
    pub(super) tp: Bytes,
}

#[derive(PartialEq, Debug)]
pub(super) struct Packet {
    pub(super) to: Target,
    /// The member, for [`Target::Member`].
    pub(super) dest: Option<Address>,
    pub(super) priority: PacketPriority,
    pub(super) bytes: Bytes,
    /// The tail follows `bytes`.
    pub(super) tail: Bytes,
    pub(super) messages: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Target {
    All,
    One(PhysAddr),
    /// Through a router, by the member's address.
    Member,
}

struct Pending {
    to: Target,
    priority: PacketPriority,
    dest: Option<Address>,
    src: Option<Address>,
    /// Not encoded yet, because alone it is encoded differently.
    first: Option<Message>,
    list: Option<ListStart>,
    /// The last payload, if uncopied. No message follows it.
    tail: Option<Bytes>,
    count: u32,
    /// The encoded size as a list.
    size: usize,
    /// The next list is likely as large, and growing a buffer copies it.
    last_size: usize,
}

pub(super) struct Bundler {
    pub(super) kind: BundlerKind,
    pub(super) max_size: usize,
    /// Larger payloads are sent uncopied.
    tail_min: usize,
    /// The first `used` are of this sweep, so that a past burst does not slow later ones.
    pending: Vec<Pending>,
    used: usize,
    /// The buffers of `pending`, kept so that memory is reused.
    buffers: Vec<BytesMut>,
    total: usize,
}

/// Version, flags, two addresses, cluster name, count; an upper bound for plain members.
const LIST_START_SIZE: usize = 3 + 17 + 17 + 2 + 4;

/// Copying such a payload takes longer than the extra packet of a stream.
pub(super) const TAIL_MIN: usize = 8 * 1024;

/// The buffer grows to the largest packet, up to [`BUFFER_KEPT_MAX`].
const BUFFER_SIZE: usize = 8 * 1024;

/// A larger buffer's rest is not reused, because it keeps the whole allocation. The stock stacks' largest packets
/// have 64 KB.
const BUFFER_KEPT_MAX: usize = 256 * 1024;

impl Bundler {
    /// A huge `tail_min` keeps packets in one piece.
    pub(super) fn new(kind: BundlerKind, max_size: usize, tail_min: usize) -> Self {
        Self { kind, max_size, tail_min, pending: Vec::new(), used: 0, buffers: Vec::new(), total: 0 }
    }

    /// Owned messages are better, because the first of a packet is kept. Appends full packets to `out`.
    pub(super) fn add(
        &mut self,
        envelope: &Envelope,
        to: Target,
        message: Cow<'_, Message>,
        out: &mut Vec<Packet>,
    ) {
        let priority = priority_of(&message);
        let mut at = match self.pending[..self.used].iter().position(|pending| {
            pending.to == to && pending.priority == priority && pending.dest == message.dest
        }) {
            Some(at) => at,
            None => self.open(to, priority, &message),
        };
        let size = wire::message_size(&message, envelope.tp.len(), Some(self.pending[at].src.as_ref()));
        match self.kind {
            _ if self.pending[at].tail.is_some() => self.flush_one(at, envelope, out),
            BundlerKind::PerDestination if self.pending[at].size + size > self.max_size => {
                self.flush_one(at, envelope, out);
            }
            BundlerKind::TransferQueue if LIST_START_SIZE + self.total + size > self.max_size => {
                self.flush(envelope, out);
                at = self.open(to, priority, &message);
            }
            _ => {}
        }
        self.push(at, envelope, message, size);
        if self.kind == BundlerKind::NoBundler {
            self.flush_one(at, envelope, out);
        }
    }

    fn open(&mut self, to: Target, priority: PacketPriority, message: &Message) -> usize {
        // A slot whose packet has left serves the next destination, so that slots do not grow with past
        // destinations.
        let dest = message.dest.clone();
        let src = message.src.clone();
        let fresh = |last_size| Pending {
            to,
            priority,
            dest,
            src,
            first: None,
            list: None,
            tail: None,
            count: 0,
            size: LIST_START_SIZE,
            last_size,
        };
        let gone = self.pending[..self.used].iter().position(|pending| pending.count == 0);
        let at = gone.unwrap_or(self.used);
        self.used = self.used.max(at + 1);
        match self.pending.get_mut(at) {
            Some(slot) => *slot = fresh(slot.last_size),
            None => {
                self.pending.push(fresh(0));
                self.buffers.push(BytesMut::new());
            }
        }
        at
    }

    fn push(&mut self, at: usize, envelope: &Envelope, message: Cow<'_, Message>, size: usize) {
        let (pending, buffer) = (&mut self.pending[at], &mut self.buffers[at]);
        pending.count += 1;
        pending.size += size;
        self.total += size;
        pending.tail = match &message.payload {
            Payload::Bytes(Some(bytes)) if bytes.len() >= self.tail_min => Some(bytes.clone()),
            _ => None,
        };
        let bulk = if pending.tail.is_some() { Bulk::Apart } else { Bulk::Copied };
        if pending.count == 1 {
            pending.src.clone_from(&message.src);
            pending.first = Some(message.into_owned());
            return;
        }
        let src = pending.src.as_ref();
        if let Some(first) = pending.first.take() {
            buffer.reserve(pending.last_size.max(BUFFER_SIZE).max(pending.size));
            pending.list = Some(wire::begin_list(
                buffer,
                envelope.version,
                pending.dest.as_ref(),
                src,
                &envelope.cluster,
            ));
            wire::append_to_list(buffer, &first, src, &envelope.tp, Bulk::Copied);
        }
        wire::append_to_list(buffer, &message, src, &envelope.tp, bulk);
    }

    pub(super) fn flush(&mut self, envelope: &Envelope, out: &mut Vec<Packet>) {
        for at in 0..self.used {
            self.flush_one(at, envelope, out);
        }
        self.used = 0;
        self.total = 0;
    }

    fn flush_one(&mut self, at: usize, envelope: &Envelope, out: &mut Vec<Packet>) {
        let (pending, buffer) = (&mut self.pending[at], &mut self.buffers[at]);
        if pending.count == 0 {
            return;
        }
        let tail = pending.tail.take();
        match (pending.first.take(), pending.list.take()) {
            (Some(only), _) => {
                let bulk = if tail.is_some() { Bulk::Apart } else { Bulk::Copied };
                buffer.reserve(pending.size - tail.as_ref().map_or(0, Bytes::len));
                wire::write_single(buffer, envelope.version, &only, &envelope.tp, bulk);
            }
            (None, Some(start)) => {
                wire::finish_list(buffer, start, pending.count);
                pending.last_size = buffer.len();
            }
            (None, None) => {}
        }
        let bytes = buffer.split().freeze();
        if bytes.len() + buffer.capacity() > BUFFER_KEPT_MAX {
            *buffer = BytesMut::new();
        }
        out.push(Packet {
            to: pending.to,
            dest: pending.dest.clone().filter(|_| pending.to == Target::Member),
            priority: pending.priority,
            bytes,
            tail: tail.unwrap_or_default(),
            messages: pending.count,
        });
        self.total = self.total.saturating_sub(pending.size - LIST_START_SIZE);
        pending.count = 0;
        pending.size = LIST_START_SIZE;
    }
}

/// Application bytes are data; membership, failure detection, acks and credits are control.
fn priority_of(message: &Message) -> PacketPriority {
    let has =
        |is_meant: fn(&HeaderBody) -> bool| message.headers.0.iter().any(|header| is_meant(&header.body));
    let is_control = message.flags.has(Flags::NO_FC)
        || message.is_credit()
        || has(|body| matches!(body, HeaderBody::Gms(_)))
        || (message.length() == 0 && !has(|body| matches!(body, HeaderBody::Rpc(_))));
    if is_control { PacketPriority::Control } else { PacketPriority::Data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{member, phys};
    use crate::wire::{Packet as Decoded, decode_packet};

    fn envelope() -> Envelope {
        Envelope { version: Version::V5_5_7, cluster: "demo".into(), tp: wire::encode_tp("demo") }
    }

    fn data(n: usize) -> Message {
        Message::bytes(Some(member(2)), vec![n as u8; 100]).sent_by(1)
    }

    fn unpack(packets: &[Packet]) -> Vec<Vec<u8>> {
        let tp = envelope().tp;
        packets
            .iter()
            .flat_map(|packet| match decode_packet(&packet.bytes, &tp).unwrap() {
                Decoded::Single { message, .. } => vec![message],
                Decoded::List { messages, .. } => messages,
            })
            .map(|message| message.payload_bytes().unwrap().to_vec())
            .collect()
    }

    #[test]
    fn one_message_is_a_single_and_two_are_a_list() {
        let mut bundler = Bundler::new(BundlerKind::PerDestination, 64_000, TAIL_MIN);
        let (envelope, mut out) = (envelope(), Vec::new());
        bundler.add(&envelope, Target::One(phys(2)), Cow::Owned(data(0)), &mut out);
        bundler.flush(&envelope, &mut out);
        assert_eq!(out[0].bytes[2], 0, "flags of a single unicast");
        bundler.add(&envelope, Target::One(phys(2)), Cow::Owned(data(1)), &mut out);
        bundler.add(&envelope, Target::One(phys(2)), Cow::Owned(data(2)), &mut out);
        bundler.flush(&envelope, &mut out);
        assert_eq!((out.len(), out[1].bytes[2], out[1].messages), (2, 1, 2));
        assert_eq!(unpack(&out), [vec![0; 100], vec![1; 100], vec![2; 100]]);
    }

    #[test]
    fn a_large_payload_is_sent_from_where_it_is() {
        let sizes = [100, 9_000, 100, 100, 9_000, 9_000, 100];
        let messages: Vec<Message> = sizes
            .iter()
            .map(|&size| Message::bytes(Some(member(2)), vec![size as u8; size]).sent_by(1))
            .collect();
        for (tail_min, packets) in [(TAIL_MIN, vec![2, 3, 1, 1]), (usize::MAX, vec![7])] {
            let mut bundler = Bundler::new(BundlerKind::PerDestination, 64_000, tail_min);
            let (envelope, mut out) = (envelope(), Vec::new());
            for message in &messages {
                bundler.add(&envelope, Target::One(phys(2)), Cow::Borrowed(message), &mut out);
            }
            bundler.flush(&envelope, &mut out);
            assert_eq!(out.iter().map(|packet| packet.messages).collect::<Vec<_>>(), packets);
            for packet in &mut out {
                let is_uncopied = messages.iter().any(|message| {
                    message.payload_bytes().is_some_and(|bytes| bytes.as_ptr() == packet.tail.as_ptr())
                });
                assert_eq!(is_uncopied, !packet.tail.is_empty());
                packet.bytes = [&packet.bytes[..], &packet.tail].concat().into();
            }
            assert_eq!(unpack(&out).iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        }
    }

    /// S003-6 and S000-70
    #[test]
    fn a_list_carries_its_addresses_once() {
        let mut bundler = Bundler::new(BundlerKind::PerDestination, 64_000, TAIL_MIN);
        let (envelope, mut out) = (envelope(), Vec::new());
        for n in 0..100 {
            bundler.add(&envelope, Target::One(phys(2)), Cow::Owned(data(n)), &mut out);
        }
        bundler.flush(&envelope, &mut out);
        let count = |wanted: &[u8]| out[0].bytes.windows(wanted.len()).filter(|part| *part == wanted).count();
        let uuid = |n: u64| [n.to_be_bytes(), n.to_be_bytes()].concat();
        assert_eq!((out.len(), count(&uuid(1)), count(&uuid(2))), (1, 1, 1));
        // Besides the list's own field, the transport header of every message names the cluster.
        assert_eq!(count(b"demo"), 1 + 100);
    }

    /// S003-9: the list has the stock stacks' headers.
    #[test]
    fn a_message_in_a_list_costs_few_bytes_besides_its_payload() {
        use crate::{NakAckHeader, ProtocolId, RpcHeader, RpcKind, UnicastHeader};
        let multicast = data(0)
            .with_header(ProtocolId::NAKACK2, HeaderBody::NakAck2(NakAckHeader::Msg { seqno: 70_000 }));
        let unicast = UnicastHeader::Data { seqno: 70_000, conn_id: 1, first: false };
        let rpc = RpcHeader {
            kind: RpcKind::Request,
            request_id: 70_000,
            corr_id: ProtocolId::REQUEST_CORRELATOR.0,
        };
        let call = data(0)
            .with_header(ProtocolId::REQUEST_CORRELATOR, HeaderBody::Rpc(rpc))
            .with_header(ProtocolId::UNICAST3, HeaderBody::Unicast3(unicast));
        for (message, most) in [(multicast, 40), (call, 60)] {
            let mut bundler = Bundler::new(BundlerKind::PerDestination, 64_000, TAIL_MIN);
            let (envelope, mut out) = (envelope(), Vec::new());
            for _ in 0..100 {
                bundler.add(&envelope, Target::One(phys(2)), Cow::Borrowed(&message), &mut out);
            }
            bundler.flush(&envelope, &mut out);
            let beside = out[0].bytes.len() / 100 - message.length();
            assert!(beside <= most, "{beside} bytes");
        }
    }

    /// S000-15: names of JGroups 4.0.
    #[test]
    fn bundlers_have_jgroups_names() {
        for (name, kind) in [
            ("pd", BundlerKind::PerDestination),
            ("tq", BundlerKind::TransferQueue),
            ("ab", BundlerKind::TransferQueue),
            ("rqb", BundlerKind::TransferQueue),
            ("nb", BundlerKind::NoBundler),
        ] {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("xx".parse::<BundlerKind>(), Err(UnknownBundler("xx".to_owned())));
    }

    /// S000-59
    #[test]
    fn a_bundler_is_exchanged_under_load() {
        let kinds = [BundlerKind::PerDestination, BundlerKind::NoBundler, BundlerKind::TransferQueue];
        let mut bundler = Bundler::new(kinds[0], 1_000, TAIL_MIN);
        let (envelope, mut out) = (envelope(), Vec::new());
        for n in 0..1_000 {
            if n % 10 == 3 {
                bundler.kind = kinds[n / 10 % 3];
            }
            bundler.add(&envelope, Target::One(phys(2)), Cow::Owned(data(n)), &mut out);
            if n % 37 == 0 {
                bundler.flush(&envelope, &mut out);
            }
        }
        bundler.flush(&envelope, &mut out);
        assert_eq!(unpack(&out), (0..1_000).map(|n| vec![n as u8; 100]).collect::<Vec<_>>());
        assert!(out.len() > 100 && out.iter().any(|packet| packet.messages > 5));
    }

    /// S000-15
    #[test]
    fn packets_stay_below_max_size_and_messages_in_order() {
        for kind in [BundlerKind::PerDestination, BundlerKind::TransferQueue, BundlerKind::NoBundler] {
            let mut bundler = Bundler::new(kind, 1_000, TAIL_MIN);
            let (envelope, mut out) = (envelope(), Vec::new());
            for n in 0..50 {
                bundler.add(&envelope, Target::One(phys(2)), Cow::Owned(data(n)), &mut out);
            }
            bundler.flush(&envelope, &mut out);
            assert!(out.iter().all(|packet| packet.bytes.len() <= 1_000), "{kind:?}");
            assert_eq!(unpack(&out), (0..50).map(|n| vec![n as u8; 100]).collect::<Vec<_>>(), "{kind:?}");
        }
    }

    #[test]
    fn control_and_data_leave_in_packets_of_their_own() {
        let mut bundler = Bundler::new(BundlerKind::PerDestination, 64_000, TAIL_MIN);
        let (envelope, mut out) = (envelope(), Vec::new());
        let mut ack = Message::empty(Some(member(2))).with_flags(Flags::NO_FC);
        ack.src = Some(member(1));
        bundler.add(&envelope, Target::One(phys(2)), Cow::Owned(data(0)), &mut out);
        bundler.add(&envelope, Target::One(phys(2)), Cow::Borrowed(&ack), &mut out);
        bundler.flush(&envelope, &mut out);
        assert_eq!(
            out.iter().map(|packet| packet.priority).collect::<Vec<_>>(),
            [PacketPriority::Data, PacketPriority::Control]
        );
    }

    #[test]
    fn past_destinations_leave_no_slots() {
        let mut bundler = Bundler::new(BundlerKind::PerDestination, 64_000, TAIL_MIN);
        let (envelope, mut out) = (envelope(), Vec::new());
        for port in 0..1_000 {
            bundler.add(&envelope, Target::One(phys(port)), Cow::Owned(data(0)), &mut out);
            bundler.flush(&envelope, &mut out);
        }
        assert_eq!((bundler.pending.len(), out.len()), (1, 1_000));
    }
}
