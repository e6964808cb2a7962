use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{address_size, put_address, read_address};
use super::frequent_headers::{SHORT_MAX, is_short};
use super::headers::{header_size, put_header, read_behind};
use super::objects::{long_length, object_length, put_object, read_object};
use super::primitives::{NESTING_MAX, Reader, Result, WireError, put_bool, put_compressed_long};
use crate::{Address, EarlyBatch, Flags, HeaderBody, Message, Payload};

const DEST: u8 = 1;
const SRC: u8 = 2;

/// Stacks have about 20 protocols.
const HEADERS_MAX: u16 = 128;

/// How payload bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bulk {
    /// After the other fields, in wire order.
    Copied,
    /// By the caller, after the rest: bytes of [`Payload::Bytes`] end a body.
    Apart,
}

/// Returns the type.
pub fn message_type(payload: &Payload) -> i16 {
    match payload {
        Payload::Bytes(_) => 0,
        Payload::Nio { .. } => 1,
        Payload::Empty => 2,
        Payload::Object(_) => 3,
        Payload::Long(_) => 4,
        Payload::Composite(_) => 5,
        Payload::Fragment(_) => 6,
        Payload::Batch(_) => 7,
    }
}

impl Message {
    /// Returns the payload's bytes for flow control and STABLE; objects and numbers count as encoded.
    pub fn length(&self) -> usize {
        match &self.payload {
            Payload::Empty => 0,
            Payload::Bytes(bytes) | Payload::Nio { bytes, .. } => bytes.as_ref().map_or(0, Bytes::len),
            Payload::Fragment(bytes) => bytes.len(),
            Payload::Object(object) => object_length(object),
            Payload::Long(value) => long_length(*value),
            Payload::Composite(messages) => messages.iter().map(Self::length).sum(),
            Payload::Batch(batch) => batch.messages.iter().map(Self::length).sum(),
        }
    }

    /// Returns the bytes of the encoded headers, for queues of messages whose headers a peer has chosen.
    pub fn headers_length(&self) -> usize {
        self.headers.0.iter().map(header_size).sum()
    }
}

/// The bytes are 11 of type, flags, count and length, and two plain addresses of 17. A reservation per field costs
/// more than the fields.
const PLAIN_MAX: usize = 11 + 2 * 17;

/// In a list (`list_src`) there is no destination, and a source only if it differs. `tp` follows the headers, unless
/// the message has its own.
#[inline]
pub(super) fn put_body(
    out: &mut BytesMut,
    message: &Message,
    list_src: Option<Option<&Address>>,
    tp: &[u8],
    bulk: Bulk,
) {
    put_with(out, None, message, list_src, tp, bulk);
}

#[inline]
pub(super) fn put_typed(
    out: &mut BytesMut,
    message: &Message,
    list_src: Option<Option<&Address>>,
    tp: &[u8],
    bulk: Bulk,
) {
    put_with(out, Some(message_type(&message.payload)), message, list_src, tp, bulk);
}

#[inline]
fn put_with(
    out: &mut BytesMut,
    kind: Option<i16>,
    message: &Message,
    list_src: Option<Option<&Address>>,
    tp: &[u8],
    bulk: Bulk,
) {
    let start = out.len();
    let most = PLAIN_MAX + message.headers.0.len() * SHORT_MAX + tp.len();
    // A buffer allocated to measure must not grow for it.
    if has_plain_head(message) && most <= out.capacity() - start {
        out.put_bytes(0, most);
        let mut room = &mut out[start..];
        put_head(&mut room, kind, message, list_src, tp);
        let unused = room.len();
        out.truncate(start + most - unused);
    } else {
        put_head(out, kind, message, list_src, tp);
    }
    if !matches!((&message.payload, bulk), (Payload::Bytes(_), Bulk::Apart)) {
        put_rest(out, message);
    }
}

#[inline]
fn has_plain_head(message: &Message) -> bool {
    let is_plain = |address: &Option<Address>| matches!(address, None | Some(Address::Uuid(_)));
    is_plain(&message.dest)
        && is_plain(&message.src)
        && message.headers.0.iter().all(|header| is_short(&header.body))
}

/// The length of [`Payload::Bytes`] is a part of the head.
#[inline]
fn put_head(
    out: &mut impl BufMut,
    kind: Option<i16>,
    message: &Message,
    list_src: Option<Option<&Address>>,
    tp: &[u8],
) {
    if let Some(kind) = kind {
        out.put_i16(kind);
    }
    let (dest, src) = match list_src {
        None => (message.dest.as_ref(), message.src.as_ref()),
        Some(list_src) => (None, message.src.as_ref().filter(|src| Some(*src) != list_src)),
    };
    out.put_u8(if dest.is_some() { DEST } else { 0 } | if src.is_some() { SRC } else { 0 });
    out.put_u16(message.flags.0);
    if dest.is_some() {
        put_address(out, dest);
    }
    if src.is_some() {
        put_address(out, src);
    }
    let headers = &message.headers.0;
    let has_own_tp = headers.iter().any(|header| matches!(header.body, HeaderBody::Tp(_)));
    let tp = if has_own_tp { &[] } else { tp };
    out.put_u16(headers.len() as u16 + u16::from(!tp.is_empty()));
    headers.iter().for_each(|header| put_header(out, header));
    out.put_slice(tp);
    if let Payload::Bytes(bytes) = &message.payload {
        out.put_i32(bytes.as_ref().map_or(-1, |bytes| bytes.len() as i32));
    }
}

fn put_bytes(out: &mut impl BufMut, bytes: Option<&Bytes>) {
    match bytes {
        None => out.put_i32(-1),
        Some(bytes) => {
            out.put_i32(bytes.len() as i32);
            out.put_slice(bytes);
        }
    }
}

fn put_parts(out: &mut BytesMut, messages: &[Message], src: Option<&Address>) {
    for part in messages {
        put_typed(out, part, Some(src), &[], Bulk::Copied);
    }
}

fn put_rest(out: &mut BytesMut, message: &Message) {
    match &message.payload {
        Payload::Empty | Payload::Bytes(None) => {}
        Payload::Bytes(Some(bytes)) => out.put_slice(bytes),
        Payload::Nio { direct, bytes } => {
            put_bool(out, *direct);
            put_bytes(out, bytes.as_ref());
        }
        Payload::Object(object) => put_object(out, object),
        Payload::Long(value) => put_compressed_long(out, *value),
        Payload::Composite(messages) => {
            out.put_i32(messages.len() as i32);
            put_parts(out, messages, message.src.as_ref());
        }
        Payload::Fragment(bytes) => put_bytes(out, Some(bytes)),
        Payload::Batch(batch) => {
            out.put_i32(batch.messages.len() as i32);
            put_address(out, batch.original_src.as_ref());
            put_parts(out, &batch.messages, message.src.as_ref());
        }
    }
}

/// A list presets `dest` and `src`. A header equal to `own_tp` is skipped.
pub(super) fn read_body(
    reader: &mut Reader<'_>,
    kind: i16,
    dest: Option<&Address>,
    src: Option<&Address>,
    own_tp: &[u8],
) -> Result<Message> {
    let mut message = Message::empty(None);
    read_body_into(&mut message, reader, kind, (dest, src), own_tp)?;
    Ok(message)
}

/// To move a message costs as much as to read it.
#[inline]
pub(super) fn read_body_into(
    message: &mut Message,
    reader: &mut Reader<'_>,
    kind: i16,
    (dest, src): (Option<&Address>, Option<&Address>),
    own_tp: &[u8],
) -> Result<()> {
    let leading = reader.u8("leading byte of a message")?;
    message.flags = Flags(reader.u16("message flags")?);
    message.dest = if leading & DEST != 0 { read_address(reader)? } else { dest.cloned() };
    message.src = if leading & SRC != 0 { read_address(reader)? } else { src.cloned() };
    let count = reader.u16("number of headers")?;
    if count > HEADERS_MAX {
        return Err(WireError::BadValue { what: "number of headers", value: count.into() });
    }
    for _ in 0..count {
        if is_own_tp(reader.peek(), own_tp) {
            reader.skip(own_tp.len());
        } else {
            read_behind(&mut message.headers, reader)?;
        }
    }
    message.payload = match kind {
        // The frequent case, also constructed in place.
        0 => match reader.length("payload length")? {
            None => Payload::Bytes(None),
            Some(0) => Payload::Bytes(Some(Bytes::new())),
            Some(length) => Payload::Bytes(Some(reader.bytes("payload", length)?)),
        },
        _ => read_payload(reader, kind, message.dest.as_ref(), message.src.as_ref())?,
    };
    Ok(())
}

/// The protocol id excludes almost all others.
#[inline]
fn is_own_tp(bytes: &[u8], own_tp: &[u8]) -> bool {
    own_tp.first_chunk::<2>().is_some_and(|id| bytes.first_chunk() == Some(id)) && bytes.starts_with(own_tp)
}

fn read_bytes(reader: &mut Reader<'_>) -> Result<Option<Bytes>> {
    match reader.length("payload length")? {
        None => Ok(None),
        Some(length) => reader.bytes("payload", length).map(Some),
    }
}

fn read_parts(
    reader: &mut Reader<'_>,
    count: usize,
    dest: Option<&Address>,
    src: Option<&Address>,
) -> Result<Vec<Message>> {
    reader.depth += 1;
    if reader.depth > NESTING_MAX {
        return Err(WireError::TooDeep);
    }
    let parts = (0..count)
        .map(|_| {
            let kind = reader.i16("message type")?;
            read_body(reader, kind, dest, src, &[])
        })
        .collect();
    reader.depth -= 1;
    parts
}

/// The bytes are type, leading byte, flags and number of headers.
const PART_SIZE_MIN: usize = 7;

fn read_payload(
    reader: &mut Reader<'_>,
    kind: i16,
    dest: Option<&Address>,
    src: Option<&Address>,
) -> Result<Payload> {
    Ok(match kind {
        1 => {
            let direct = reader.bool("direct memory")?;
            Payload::Nio { direct, bytes: read_bytes(reader)? }
        }
        2 => Payload::Empty,
        3 => Payload::Object(Box::new(read_object(reader)?)),
        4 => Payload::Long(reader.compressed_long("long payload")?),
        5 => {
            let count = reader.count("number of messages", PART_SIZE_MIN)?;
            Payload::Composite(read_parts(reader, count, dest, src)?)
        }
        6 => Payload::Fragment(read_bytes(reader)?.unwrap_or_default()),
        7 => {
            let count = reader.count("number of messages", PART_SIZE_MIN)?;
            let original_src = read_address(reader)?;
            let messages = read_parts(reader, count, dest, src)?;
            Payload::Batch(Box::new(EarlyBatch { original_src, messages }))
        }
        _ => return Err(WireError::BadValue { what: "message type", value: kind.into() }),
    })
}

/// Returns the encoded size with its type, alone or in a list (`Some(list's source)`).
#[inline]
pub fn message_size(message: &Message, tp_len: usize, list_src: Option<Option<&Address>>) -> usize {
    let addresses = match list_src {
        None => {
            message.dest.as_ref().map_or(0, |dest| address_size(Some(dest)))
                + message.src.as_ref().map_or(0, |src| address_size(Some(src)))
        }
        Some(list_src) => match &message.src {
            Some(src) if Some(src) != list_src => address_size(Some(src)),
            _ => 0,
        },
    };
    let headers = &message.headers.0;
    let tp_len =
        if headers.iter().any(|header| matches!(header.body, HeaderBody::Tp(_))) { 0 } else { tp_len };
    PART_SIZE_MIN
        + addresses
        + headers.iter().map(header_size).sum::<usize>()
        + tp_len
        + payload_size(message)
}

fn payload_size(message: &Message) -> usize {
    let parts = |messages: &[Message]| -> usize {
        messages.iter().map(|part| message_size(part, 0, Some(message.src.as_ref()))).sum()
    };
    match &message.payload {
        Payload::Empty => 0,
        Payload::Bytes(bytes) => 4 + bytes.as_ref().map_or(0, Bytes::len),
        Payload::Nio { bytes, .. } => 5 + bytes.as_ref().map_or(0, Bytes::len),
        Payload::Object(object) => object_length(object),
        Payload::Long(value) => long_length(*value),
        Payload::Composite(messages) => 4 + parts(messages),
        Payload::Fragment(bytes) => 4 + bytes.len(),
        Payload::Batch(batch) => 4 + address_size(batch.original_src.as_ref()) + parts(&batch.messages),
    }
}

/// Encodes a body with addresses (`Message.writeTo`).
pub fn encode_body(message: &Message) -> Bytes {
    let mut out = BytesMut::with_capacity(message_size(message, 0, None));
    put_body(&mut out, message, None, &[], Bulk::Copied);
    out.freeze()
}

/// Decodes [`encode_body`]'s output; fails if the bytes are not one message of this type.
pub fn decode_body(kind: i16, bytes: &Bytes) -> Result<Message> {
    let mut reader = Reader::new(bytes);
    let message = read_body(&mut reader, kind, None, None, &[])?;
    reader.end()?;
    Ok(message)
}

/// Encodes type and body, as in fragments.
pub fn encode_typed(message: &Message) -> Bytes {
    let mut out = BytesMut::with_capacity(message_size(message, 0, None));
    put_typed(&mut out, message, None, &[], Bulk::Copied);
    out.freeze()
}

/// Decodes [`encode_typed`]'s output; fails on invalid bytes.
pub fn decode_typed(bytes: &Bytes) -> Result<Message> {
    let mut reader = Reader::new(bytes);
    let kind = reader.i16("message type")?;
    let message = read_body(&mut reader, kind, None, None, &[])?;
    reader.end()?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, NakAckHeader, ProtocolId, RpcHeader, RpcKind, UnicastHeader};

    #[test]
    fn the_longest_plain_head_fits() {
        let (seqno, conn_id, timestamp) = (i64::MAX as u64, i16::MAX, -1);
        let rpc = RpcHeader { kind: RpcKind::Request, request_id: u64::MAX, corr_id: 1 };
        let bodies = [
            HeaderBody::Unicast3(UnicastHeader::Ack { seqno, conn_id, timestamp }),
            HeaderBody::Unicast4(UnicastHeader::Ack { seqno, conn_id, timestamp }),
            HeaderBody::NakAck4(NakAckHeader::Ack { seqno }),
            HeaderBody::Rpc(rpc),
        ];
        let uuid = Address::Uuid(crate::Uuid { most: u64::MAX, least: u64::MAX });
        let mut message = Message::empty(Some(uuid.clone()));
        message.src = Some(uuid);
        for (id, body) in (1..).zip(bodies) {
            assert!(
                is_short(&body)
                    && header_size(&Header { id: ProtocolId(id), body: body.clone() }) <= SHORT_MAX
            );
            message.headers.put(ProtocolId(id), body);
        }
        message.payload = Payload::Bytes(Some(Bytes::from_static(b"payload")));
        assert!(has_plain_head(&message));
        for tp in [&[][..], &[7; 1_000]] {
            let (mut room, mut plain) = (BytesMut::with_capacity(2_000), BytesMut::new());
            put_typed(&mut room, &message, None, tp, Bulk::Copied);
            put_head(&mut plain, Some(0), &message, None, tp);
            put_rest(&mut plain, &message);
            assert_eq!(room, plain);
        }
    }

    /// S000-76
    #[test]
    fn a_message_is_written_into_one_buffer_of_its_size() {
        for size in [10, 10_000, 1_000_000] {
            let message = Message::bytes(None, vec![1; size]);
            let mut body = Bytes::new();
            let used = allocation_counter::measure(|| body = encode_body(&message));
            assert!(body.len() >= size);
            // The buffer and its shared handle.
            assert!(used.count_total <= 2, "{used:?}");
            assert!(used.bytes_total as usize <= body.len() * 5 / 4 + 64, "{used:?} for {size}");
        }
    }
}
