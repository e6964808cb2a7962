//! pcap files, and the JGroups traffic over TCP and UDP in them.
//!
//! ```
//! use consort_capture::{Streams, is_pcap, packets};
//!
//! let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
//! file.resize(24, 0);     // the header of a capture without packets
//! assert!(is_pcap(&file));
//! let mut streams = Streams::default();
//! for packet in packets(&file) {
//!     println!("{:?}", streams.payloads(&packet?));
//! }
//! # Ok::<(), consort_capture::CaptureError>(())
//! ```
//!
//! A capture is not trusted: an invalid length ends the file or its connection, and no more memory is used than there
//! are bytes.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

/// A capture cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// A packet is longer than the rest of the file.
    #[error("the file ends within a packet")]
    Truncated,
    /// The text is not pairs of hex digits.
    #[error("not pairs of hex digits")]
    NotHex,
}

/// The most bytes of one direction of a connection that wait for the rest of a frame.
const PENDING_MAX: usize = 64 * 1024 * 1024;

const MAGICS: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

/// Returns whether the bytes begin as a pcap file does.
pub fn is_pcap(bytes: &[u8]) -> bool {
    magic(bytes).is_some()
}

/// Whether a file is little endian; `None` if it is no pcap file.
fn magic(bytes: &[u8]) -> Option<bool> {
    let first: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    if MAGICS.contains(&u32::from_le_bytes(first)) {
        Some(true)
    } else {
        MAGICS.contains(&u32::from_be_bytes(first)).then_some(false)
    }
}

/// A captured packet with its link layer's number.
pub struct Captured<'b> {
    /// When the packet was captured, since 1970 in UTC.
    pub time: Duration,
    link: u32,
    bytes: &'b [u8],
}

/// Returns the packets of a file, up to the first error.
pub fn packets(bytes: &[u8]) -> impl Iterator<Item = Result<Captured<'_>, CaptureError>> {
    let is_little = magic(bytes).unwrap_or(true);
    let number = move |at: usize| -> Option<u32> {
        let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if is_little { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) })
    };
    // The second magic number stands for nanoseconds.
    let nanos_per_unit = if number(0) == Some(MAGICS[1]) { 1 } else { 1_000 };
    let link = number(20).unwrap_or(0) & 0x0fff_ffff;
    let mut at = 24;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let length = number(at + 8).map(|length| length as usize);
        let content = length.and_then(|length| bytes.get(at + 16..at + 16 + length));
        match content {
            Some(content) => {
                let nanos = u64::from(number(at + 4).unwrap_or(0)) * nanos_per_unit;
                let time = Duration::from_secs(number(at).unwrap_or(0).into()) + Duration::from_nanos(nanos);
                at += 16 + content.len();
                Some(Ok(Captured { time, link, bytes: content }))
            }
            None => {
                at = bytes.len();
                Some(Err(CaptureError::Truncated))
            }
        }
    })
}

/// The kind of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Version, flags and messages.
    Packet,
    /// The set-up bytes of a connection.
    Setup,
    /// The close word of a connection.
    Goodbye,
}

/// A unit of traffic from one member to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Source and destination.
    pub connection: String,
    /// Its kind.
    pub kind: Kind,
    /// Its bytes; a frame's without its length.
    pub bytes: Bytes,
}

#[derive(Default, Debug)]
struct Stream {
    next: Option<u32>,
    pending: BytesMut,
    is_set_up: bool,
}

/// Reassembles TCP's segments. Segments out of order end a stream: captures on a host have none.
#[derive(Default, Debug)]
pub struct Streams(HashMap<String, Stream>);

impl Streams {
    /// Returns the JGroups payloads that a packet completes.
    pub fn payloads(&mut self, packet: &Captured<'_>) -> Vec<Payload> {
        self.read(packet).unwrap_or_default()
    }

    fn read(&mut self, packet: &Captured<'_>) -> Option<Vec<Payload>> {
        let skip = match packet.link {
            1 => 14,
            113 => 16,
            276 => 20,
            0 => 4,
            _ => 0,
        };
        let ip = packet.bytes.get(skip..)?;
        let (protocol, source, dest, rest) = match ip.first()? >> 4 {
            4 => {
                let header = usize::from(ip[0] & 15) * 4;
                let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
                let four = |at: usize| -> Option<std::net::IpAddr> {
                    Some(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?.into())
                };
                // With offloading, the length of packets that the host itself sends is 0.
                let end = if total == 0 { ip.len() } else { total.min(ip.len()) };
                (*ip.get(9)?, four(12)?, four(16)?, ip.get(header..end)?)
            }
            6 => {
                let sixteen = |at: usize| -> Option<std::net::IpAddr> {
                    Some(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?.into())
                };
                (*ip.get(6)?, sixteen(8)?, sixteen(24)?, ip.get(40..)?)
            }
            _ => return None,
        };
        let port = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
        let connection = format!("{source}:{} > {dest}:{}", port(0)?, port(2)?);
        match protocol {
            17 => {
                let bytes = Bytes::copy_from_slice(rest.get(8..)?);
                Some(vec![Payload { connection, kind: Kind::Packet, bytes }])
            }
            6 => {
                let number = u32::from_be_bytes(rest.get(4..8)?.try_into().ok()?);
                let header = usize::from(rest.get(12)? >> 4) * 4;
                let flags = *rest.get(13)?;
                let content = rest.get(header..)?;
                let is_start = flags & 2 != 0;
                if is_start {
                    self.0.insert(
                        connection,
                        Stream { next: Some(number.wrapping_add(1)), ..Stream::default() },
                    );
                    return None;
                }
                let stream = self.0.entry(connection.clone()).or_default();
                if stream.next.is_some_and(|next| next != number) || stream.pending.len() > PENDING_MAX {
                    return None;
                }
                stream.next = Some(number.wrapping_add(content.len() as u32));
                stream.pending.extend_from_slice(content);
                Some(frames(stream, &connection))
            }
            _ => None,
        }
    }
}

fn frames(stream: &mut Stream, connection: &str) -> Vec<Payload> {
    let mut found = Vec::new();
    let mut push = |kind, bytes| found.push(Payload { connection: connection.to_owned(), kind, bytes });
    loop {
        let pending = &mut stream.pending;
        if !stream.is_set_up && pending.starts_with(b"bela") {
            // Cookie, version, length of the address, the address.
            let Some(length) = pending.get(6..8) else { break };
            let total = 8 + usize::from(u16::from_be_bytes([length[0], length[1]]));
            if pending.len() < total {
                break;
            }
            push(Kind::Setup, pending.split_to(total).freeze());
            stream.is_set_up = true;
            continue;
        }
        let Some(length) = pending.get(..4) else { break };
        let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        if length < 0 {
            push(Kind::Goodbye, pending.split_to(4).freeze());
            continue;
        }
        if pending.len() < 4 + length as usize {
            break;
        }
        pending.advance(4);
        push(Kind::Packet, pending.split_to(length as usize).freeze());
    }
    found
}

/// Decodes hex digits.
///
/// # Errors
///
/// If the text contains anything else.
pub fn unhex(text: &str) -> Result<Bytes, CaptureError> {
    let digits = text.trim().as_bytes();
    let digit = |&digit: &u8| char::from(digit).to_digit(16).map(|value| value as u8);
    if !digits.len().is_multiple_of(2) {
        return Err(CaptureError::NotHex);
    }
    let pairs = digits.chunks_exact(2).map(|pair| Some(digit(&pair[0])? << 4 | digit(&pair[1])?));
    pairs.collect::<Option<Vec<u8>>>().map(Bytes::from).ok_or(CaptureError::NotHex)
}
