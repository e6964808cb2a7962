//! COMPRESS: large payloads travel as zlib streams.
//!
//! A payload of at least `min_size` bytes is compressed if that makes it smaller. Byte arrays are compressed alone;
//! other messages are encoded whole and travel as byte arrays.

use bytes::Bytes;
use flate2::{
    Compress as Deflater, Compression, Decompress as Inflater, FlushCompress, FlushDecompress, Status,
};

use crate::config::{Bytes as ByteCount, changed};
use crate::wire;
use crate::{
    CompressHeader, Cx, DropReason, Flags, HeaderBody, HeaderIds, Message, MessageBatch, Payload, ProbeOut,
    Protocol, ProtocolId,
};

crate::properties! {
    /// COMPRESS' properties.
    CompressConfig {
        /// The level: 0 = no compression, 1 = fastest, 9 = smallest, -1 = the library's default.
        compression_level: i32 = 9,
        /// The size in bytes of the smallest payload that is compressed.
        min_size: ByteCount = ByteCount(500),
    }
}

impl CompressConfig {
    /// Checks the level; the error is the invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !(-1..=9).contains(&self.compression_level) {
            let level = self.compression_level;
            return Err(("compression_level", format!("compression_level ({level}) must be from -1 to 9")));
        }
        Ok(())
    }

    fn level(&self) -> Compression {
        u32::try_from(self.compression_level).map_or_else(|_| Compression::default(), Compression::new)
    }
}

/// The format's largest ratio; no memory is allocated for a header that claims more.
const RATIO_MAX: usize = 1_032;

/// The most bytes that a batch may decompress to; further messages are discarded. Otherwise a packet of 1 MiB with many streams
/// could make 1 GiB. Larger payloads are sent uncompressed.
const INFLATED_MAX: usize = 256 << 20;

/// A larger buffer is not kept.
const KEPT_BUFFER_MAX: usize = 1 << 20;

/// The COMPRESS layer.
pub struct Compress {
    config: CompressConfig,
    deflater: Deflater,
    inflater: Inflater,
    buffer: Vec<u8>,
    compressions: u64,
    decompressions: u64,
}

impl Compress {
    /// Creates the layer of a config that [`CompressConfig::check`] accepts.
    pub fn new(config: CompressConfig) -> Self {
        Self {
            deflater: Deflater::new(config.level(), true),
            inflater: Inflater::new(true),
            config,
            buffer: Vec::new(),
            compressions: 0,
            decompressions: 0,
        }
    }

    fn deflate(&mut self, bytes: &[u8]) -> Option<Bytes> {
        self.deflater.reset();
        if self.buffer.len() < bytes.len() {
            self.buffer.resize(bytes.len(), 0);
        }
        let status = self.deflater.compress(bytes, &mut self.buffer[..bytes.len()], FlushCompress::Finish);
        let length = self.deflater.total_out() as usize;
        let is_smaller = matches!(status, Ok(Status::StreamEnd)) && length < bytes.len();
        // Its size is that of the stream: messages are kept until all members have them.
        let stream = is_smaller.then(|| Bytes::copy_from_slice(&self.buffer[..length]));
        if self.buffer.len() > KEPT_BUFFER_MAX {
            self.buffer = Vec::new();
        }
        stream
    }

    /// The header's number of bytes must be exact; it is taken from the batch's `capacity`.
    fn inflate(
        &mut self,
        stream: &[u8],
        header: CompressHeader,
        capacity: &mut usize,
    ) -> Result<Bytes, DropReason> {
        let size = usize::try_from(header.original_size).map_err(|_| DropReason::Malformed)?;
        if size > stream.len().saturating_mul(RATIO_MAX) {
            return Err(DropReason::Malformed);
        }
        *capacity = capacity.checked_sub(size).ok_or(DropReason::QueueFull)?;
        self.inflater.reset(true);
        let mut bytes = vec![0; size];
        let status = self.inflater.decompress(stream, &mut bytes, FlushDecompress::Finish);
        let is_complete = matches!(status, Ok(Status::StreamEnd)) && self.inflater.total_out() == size as u64;
        if is_complete { Ok(bytes.into()) } else { Err(DropReason::Malformed) }
    }

    fn compress(&mut self, message: &mut Message) {
        // A Java member cannot decompress into direct memory, so that such a message is encoded.
        let array = match &message.payload {
            Payload::Bytes(bytes) | Payload::Nio { bytes, direct: false } => bytes.clone(),
            _ => None,
        };
        let needs_deserialization = array.is_none();
        let whole = array.unwrap_or_else(|| wire::encode_typed(message));
        let Some(stream) = self.deflate(&whole) else { return };
        self.compressions += 1;
        let header = CompressHeader { original_size: whole.len() as i32, needs_deserialization };
        if needs_deserialization {
            let mut outer = Message::bytes(message.dest.clone(), stream)
                .with_flags(message.flags.without(Flags::SERIALIZED));
            outer.src = message.src.take();
            outer.transient = message.transient;
            outer.ticket = message.ticket;
            *message = outer;
        } else {
            message.payload = match message.payload {
                Payload::Nio { direct, .. } => Payload::Nio { bytes: Some(stream), direct },
                _ => Payload::Bytes(Some(stream)),
            };
        }
        message.headers.put(ProtocolId::COMPRESS, HeaderBody::Compress(header));
    }

    fn decompress(
        &mut self,
        message: &mut Message,
        header: CompressHeader,
        capacity: &mut usize,
    ) -> Result<(), DropReason> {
        let stream = message.payload_bytes().ok_or(DropReason::Malformed)?;
        let bytes = self.inflate(stream, header, capacity)?;
        if !header.needs_deserialization {
            message.payload = match message.payload {
                Payload::Nio { direct, .. } => Payload::Nio { bytes: Some(bytes), direct },
                _ => Payload::Bytes(Some(bytes)),
            };
            return Ok(());
        }
        let mut inner = wire::decode_typed(&bytes).map_err(|_| DropReason::Malformed)?;
        inner.src = message.src.take();
        inner.dest = message.dest.take();
        inner.transient = message.transient;
        inner.credit = message.credit;
        *message = inner;
        Ok(())
    }
}

impl Protocol for Compress {
    fn name(&self) -> &'static str {
        "COMPRESS"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::COMPRESS
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in &mut batch.messages {
            let length = message.length();
            if length as u64 >= self.config.min_size.0 && length <= INFLATED_MAX {
                self.compress(message);
            }
        }
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(ProtocolId::COMPRESS)
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let (is_multicast, is_oob) = (batch.is_multicast(), batch.is_oob());
        let mut ready = Vec::with_capacity(batch.len());
        let mut capacity = INFLATED_MAX;
        for mut message in std::mem::take(&mut batch.messages) {
            let Some(HeaderBody::Compress(header)) = message.headers.take(ProtocolId::COMPRESS) else {
                ready.push(message);
                continue;
            };
            match self.decompress(&mut message, header, &mut capacity) {
                Ok(()) => {
                    self.decompressions += 1;
                    ready.push(message);
                }
                Err(why) => cx.discard(&message, why),
            }
        }
        // A message of a Java member regains its flags here.
        cx.refill(batch, ready, is_multicast, is_oob);
    }

    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let changed = changed(&self.config, name, value, CompressConfig::check)?;
        Some(changed.map(|config| {
            self.deflater = Deflater::new(config.level(), true);
            self.config = config;
        }))
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_compressions", self.compressions);
        out.put("num_uncompressions", self.decompressions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member};
    use crate::{Object, Primitive, vectors};

    fn layer() -> Harness {
        Harness::new(Compress::new(CompressConfig::default()))
    }

    fn header(message: &Message) -> Option<CompressHeader> {
        match message.headers.get(ProtocolId::COMPRESS) {
            Some(HeaderBody::Compress(header)) => Some(*header),
            _ => None,
        }
    }

    fn exchange(message: Message) -> (Message, Message) {
        let (mut sender, mut receiver) = (layer(), layer());
        let mut sent = sender.send(message).take_down();
        let travelled = sent[0].clone();
        sent[0].src = Some(member(1));
        let mut received = receiver.up_batch(sent).take_up();
        assert_eq!(received.len(), 1);
        (travelled, received.remove(0))
    }

    #[test]
    fn a_compressed_message_of_jgroups_is_decompressed() {
        let bytes = vectors::vector("13-transforms", "compress.1000x");
        let mut message = wire::decode_body(0, &bytes).unwrap();
        message.dest = Some(member(1));
        let mut harness = layer();
        let received = harness.up(message).take_up();
        assert_eq!(received[0].payload, Payload::Bytes(Some(vec![b'x'; 1000].into())));
        assert!(received[0].headers.0.is_empty());
        assert_eq!(harness.stack.attribute("COMPRESS", "num_uncompressions").as_deref(), Some("1"));
    }

    #[test]
    fn payloads_below_the_size_and_incompressible_ones_travel_unchanged() {
        let (travelled, received) = exchange(Message::bytes(Some(member(2)), vec![7; 499]));
        assert_eq!((header(&travelled), received.length()), (None, 499));
        let mut rng = crate::Rng::new(1);
        let noise: Vec<u8> = (0..2_000).map(|_| rng.next_u64() as u8).collect();
        let (travelled, received) = exchange(Message::bytes(Some(member(2)), noise.clone()));
        assert_eq!(header(&travelled), None);
        assert_eq!(received.payload, Payload::Bytes(Some(noise.into())));
        assert_eq!(exchange(Message::empty(None)).1.payload, Payload::Empty);
    }

    #[test]
    fn the_smallest_size_can_be_set() {
        let mut harness = layer();
        assert_eq!(harness.stack.set_attribute("COMPRESS", "min_size", "100"), Some(Ok(())));
        let mut is_compressed =
            |size| header(&harness.send(Message::bytes(None, vec![7; size])).take_down()[0]).is_some();
        assert_eq!([99, 100].map(&mut is_compressed), [false, true]);
    }

    #[test]
    fn a_byte_array_keeps_its_type_headers_and_flags() {
        for payload in [
            Payload::Bytes(Some(vec![7; 500].into())),
            Payload::Nio { direct: false, bytes: Some(vec![7; 5_000].into()) },
        ] {
            let mut message = Message::new(Some(member(2)), payload).with_flags(Flags::OOB);
            message.headers.put(ProtocolId::RSVP, HeaderBody::Heartbeat);
            let (travelled, received) = exchange(message.clone());
            assert_eq!(
                header(&travelled),
                Some(CompressHeader { original_size: message.length() as i32, needs_deserialization: false })
            );
            assert!(travelled.length() < 50 && travelled.headers.get(ProtocolId::RSVP).is_some());
            assert_eq!((&received.payload, received.flags), (&message.payload, message.flags));
            assert_eq!(received.headers, message.headers);
        }
    }

    #[test]
    fn another_payload_travels_as_a_byte_array_and_regains_its_type() {
        let text = Object::Primitive(Primitive::String("x".repeat(1_000)));
        let direct = Payload::Nio { direct: true, bytes: Some(vec![7; 5_000].into()) };
        for payload in [Payload::Object(Box::new(text)), direct] {
            let mut message = Message::new(Some(member(2)), payload).with_flags(Flags::SERIALIZED);
            message.headers.put(ProtocolId::RSVP, HeaderBody::Heartbeat);
            let (travelled, received) = exchange(message.clone());
            assert!(header(&travelled).unwrap().needs_deserialization);
            assert!(matches!(travelled.payload, Payload::Bytes(_)) && travelled.headers.0.len() == 1);
            assert_eq!(received.src, Some(member(1)));
            assert_eq!(
                (received.payload, received.flags, received.headers),
                (message.payload, message.flags, message.headers)
            );
        }
    }

    /// JGroups does not copy flags to the outer message.
    #[test]
    fn a_message_that_regains_its_flags_is_delivered_in_a_batch_of_its_own() {
        let mut sender = layer();
        let text = Object::Primitive(Primitive::String("x".repeat(1_000)));
        let sent = sender.send(Message::object(Some(member(1)), text).with_flags(Flags::OOB)).take_down();
        let mut inner = sent[0].clone();
        inner.flags = Flags::NONE;
        let mut messages =
            vec![Message::bytes(Some(member(1)), "a"), inner, Message::bytes(Some(member(1)), "b")];
        messages.iter_mut().for_each(|message| message.src = Some(member(2)));
        let received = layer().up_batch(messages).take_up();
        assert_eq!(received.iter().map(Message::is_oob).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn a_false_or_broken_stream_is_dropped_and_allocates_nothing_beyond_its_ratio() {
        let mut harness = layer();
        let sent = layer().send(Message::bytes(Some(member(1)), vec![7; 5_000])).take_down();
        let with = |original_size: i32, cut: usize| {
            let mut message = sent[0].clone();
            message.src = Some(member(2));
            let stream = message.payload_bytes().unwrap();
            message.payload = Payload::Bytes(Some(stream.slice(..stream.len() - cut)));
            let header = CompressHeader { original_size, needs_deserialization: false };
            message.headers.put(ProtocolId::COMPRESS, HeaderBody::Compress(header));
            message
        };
        let messages = vec![with(4_999, 0), with(5_001, 0), with(5_000, 1), with(-1, 0), with(i32::MAX, 0)];
        let used = allocation_counter::measure(|| {
            harness.up_batch(messages);
        });
        assert!(used.bytes_max < 100_000, "{used:?}");
        assert_eq!(harness.take_up(), []);
        assert_eq!(harness.stack.shared().drops.total(DropReason::Malformed), 5);
        assert_eq!(harness.up(with(5_000, 0)).take_up()[0].length(), 5_000);
        let mut empty = with(5_000, 0);
        empty.payload = Payload::Empty;
        assert_eq!(harness.up(empty).take_up(), []);
        let mut no_message = with(5_000, 0);
        let header = CompressHeader { original_size: 5_000, needs_deserialization: true };
        no_message.headers.put(ProtocolId::COMPRESS, HeaderBody::Compress(header));
        assert_eq!(harness.up(no_message).take_up(), []);
    }

    #[test]
    fn a_payload_takes_one_allocation_of_its_size_each_way() {
        let mut layer = Compress::new(CompressConfig::default());
        let bytes: Vec<u8> = (0..60_000_u32).map(|n| (n / 16) as u8).collect();
        let stream = layer.deflate(&bytes).unwrap();
        let used = allocation_counter::measure(|| {
            layer.deflate(&bytes);
        });
        assert!(used.count_total <= 2 && used.bytes_total <= stream.len() as u64 + 64, "{used:?}");
        let header = CompressHeader { original_size: bytes.len() as i32, needs_deserialization: false };
        let (mut again, mut capacity) = (Bytes::new(), bytes.len());
        let used =
            allocation_counter::measure(|| again = layer.inflate(&stream, header, &mut capacity).unwrap());
        assert!(used.count_total <= 2 && used.bytes_total <= bytes.len() as u64 + 64, "{used:?}");
        assert_eq!((&again[..], capacity), (&bytes[..], 0));
    }

    #[test]
    fn payloads_of_a_batch_beyond_the_limit_are_discarded() {
        let size = 32 << 20;
        let sent = layer().send(Message::bytes(Some(member(1)), vec![7; size])).take_down();
        let mut message = sent[0].clone();
        message.src = Some(member(2));
        assert!(message.length() < 40_000, "{}", message.length());
        let mut harness = layer();
        let received = harness.up_batch(vec![message; 10]).take_up();
        assert_eq!(received.len(), INFLATED_MAX / size);
        assert_eq!(harness.stack.shared().drops.total(DropReason::QueueFull), 10 - received.len() as u64);
    }

    #[test]
    fn levels_have_a_range_and_change_at_run_time() {
        let check = |compression_level| CompressConfig { compression_level, ..Default::default() }.check();
        assert!(check(-1).is_ok() && check(9).is_ok());
        assert_eq!(check(10).unwrap_err().0, "compression_level");
        let mut harness = layer();
        assert_eq!(harness.stack.set_attribute("COMPRESS", "compression_level", "0"), Some(Ok(())));
        assert!(harness.stack.set_attribute("COMPRESS", "compression_level", "10").unwrap().is_err());
        let sent = harness.send(Message::bytes(None, vec![7; 5_000])).take_down();
        assert_eq!(header(&sent[0]), None, "level 0 makes nothing smaller");
    }
}
