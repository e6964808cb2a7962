//! Transport payloads (after TCP's length word, or a datagram) and TCP's set-up bytes.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{put_address, put_ip, read_address, read_ip};
use super::headers::put_header;
use super::messages::{Bulk, put_typed, read_body_into};
use super::primitives::{Reader, Result, WireError, ascii_text, put_ascii};
use crate::{Address, Header, HeaderBody, IpAddress, Message, ProtocolId, TpHeader, Version};

const LIST: u8 = 1;
const MULTICAST: u8 = 2;

/// A transport payload.
#[derive(Clone, PartialEq, Debug)]
pub enum Packet {
    /// One message.
    Single {
        /// The sender's version.
        version: Version,
        /// Whether it was multicast.
        is_multicast: bool,
        /// The message.
        message: Message,
    },
    /// Messages to one destination.
    List {
        /// The sender's version.
        version: Version,
        /// Whether it was multicast.
        is_multicast: bool,
        /// The destination.
        dest: Option<Address>,
        /// The source unless a message has its own.
        src: Option<Address>,
        /// The cluster's name.
        cluster: Option<Arc<str>>,
        /// The messages.
        messages: Vec<Message>,
    },
}

/// Encodes a cluster's transport header.
pub fn encode_tp(cluster: &str) -> Bytes {
    let body = HeaderBody::Tp(Box::new(TpHeader { cluster: Some(cluster.into()), rtt: None }));
    let mut out = BytesMut::new();
    put_header(&mut out, &Header { id: ProtocolId::TP, body });
    out.freeze()
}

fn flags_of(dest: Option<&Address>) -> u8 {
    if dest.is_none() { MULTICAST } else { 0 }
}

/// Writes a packet of one message; `tp` follows its headers.
pub fn write_single(out: &mut BytesMut, version: Version, message: &Message, tp: &[u8], bulk: Bulk) {
    out.put_u16(version.0);
    out.put_u8(flags_of(message.dest.as_ref()));
    put_typed(out, message, None, tp, bulk);
}

/// Where a list's count goes.
#[derive(Clone, Copy, Debug)]
pub struct ListStart {
    count_at: usize,
}

/// Begins a list.
pub fn begin_list(
    out: &mut BytesMut,
    version: Version,
    dest: Option<&Address>,
    src: Option<&Address>,
    cluster: &str,
) -> ListStart {
    out.put_u16(version.0);
    out.put_u8(LIST | flags_of(dest));
    put_address(out, dest);
    put_address(out, src);
    put_ascii(out, Some(cluster));
    out.put_i32(0);
    ListStart { count_at: out.len() - 4 }
}

/// Appends a message. One with [`Bulk::Apart`] must be the last.
#[inline]
pub fn append_to_list(
    out: &mut BytesMut,
    message: &Message,
    list_src: Option<&Address>,
    tp: &[u8],
    bulk: Bulk,
) {
    put_typed(out, message, Some(list_src), tp, bulk);
}

/// Fills in the list's count.
pub fn finish_list(out: &mut BytesMut, start: ListStart, count: u32) {
    out[start.count_at..start.count_at + 4].copy_from_slice(&count.to_be_bytes());
}

/// Returns the version of a packet that is long enough.
pub fn peek_version(packet: &[u8]) -> Option<Version> {
    match packet {
        [high, low, _flags, ..] => Some(Version(u16::from_be_bytes([*high, *low]))),
        _ => None,
    }
}

/// Decodes a packet; payloads are slices of it. Headers equal to `own_tp` ([`encode_tp`]) are skipped. Fails if the bytes are not
/// one packet.
pub fn decode_packet(packet: &Bytes, own_tp: &[u8]) -> Result<Packet> {
    let mut reader = Reader::new(packet);
    let version = Version(reader.u16("version")?);
    let flags = reader.u8("packet flags")?;
    let is_multicast = flags & MULTICAST != 0;
    if flags & LIST == 0 {
        let kind = reader.i16("message type")?;
        let mut packet = Packet::Single { version, is_multicast, message: Message::empty(None) };
        if let Packet::Single { message, .. } = &mut packet {
            read_body_into(message, &mut reader, kind, (None, None), own_tp)?;
        }
        reader.end()?;
        return Ok(packet);
    }
    let dest = read_address(&mut reader)?;
    let src = read_address(&mut reader)?;
    let cluster = reader.ascii("cluster name")?.map(|name| ascii_text(&name));
    let count = reader.count("number of messages", 7)?;
    // All are created in place at once: `push` would copy each message.
    let mut messages: Vec<Message> = (0..count).map(|_| Message::empty(None)).collect();
    for message in &mut messages {
        let kind = reader.i16("message type")?;
        read_body_into(message, &mut reader, kind, (dest.as_ref(), src.as_ref()), own_tp)?;
    }
    reader.end()?;
    Ok(Packet::List { version, is_multicast, dest, src, cluster, messages })
}

/// Starts every connection.
const COOKIE: &[u8; 4] = b"bela";

/// Encodes the set-up bytes of the connecting side.
pub fn encode_setup(version: Version, listener: IpAddress) -> Bytes {
    let mut address = BytesMut::new();
    put_ip(&mut address, listener);
    let mut out = BytesMut::new();
    out.put_slice(COOKIE);
    out.put_u16(version.0);
    out.put_u16(address.len() as u16);
    out.put_slice(&address);
    out.freeze()
}

/// Decodes set-up bytes into version, listener and bytes used; `None` if they are incomplete. Fails on wrong magic bytes or
/// address; close the connection then.
pub fn decode_setup(bytes: &[u8]) -> Result<Option<(Version, IpAddress, usize)>> {
    let known = bytes.len().min(COOKIE.len());
    if bytes[..known] != COOKIE[..known] {
        return Err(WireError::BadValue {
            what: "cookie",
            value: bytes[..known].iter().fold(0, |v, &b| v << 8 | i64::from(b)),
        });
    }
    let Some(length) = bytes.get(8) else { return Ok(None) };
    let size = match length {
        4 => 7,
        16 => 23,
        other => {
            return Err(WireError::BadValue {
                what: "address length in set-up bytes",
                value: (*other).into(),
            });
        }
    };
    let Some(address) = bytes.get(8..8 + size) else { return Ok(None) };
    let version = Version(u16::from_be_bytes([bytes[4], bytes[5]]));
    let listener = read_ip(&mut Reader::new(&Bytes::copy_from_slice(address)))?;
    Ok(Some((version, listener, 8 + size)))
}
