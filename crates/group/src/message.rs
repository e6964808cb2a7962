use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{Address, Digest, Header, HeaderBody, ProtocolId, SeqnoList, View, ViewId};

macro_rules! bit_set {
    ($(#[$doc:meta])* $name:ident($int:ty) { $($(#[$bit_doc:meta])* $bit:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
        pub struct $name(pub $int);

        impl $name {
            /// The empty set.
            pub const NONE: Self = Self(0);
            $($(#[$bit_doc])* pub const $bit: Self = Self($value);)+

            /// Returns whether it has all bits of `other`.
            #[inline]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the set without `other`.
            #[inline]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                $(if self.has(Self::$bit) {
                    write!(f, "{separator}{}", stringify!($bit))?;
                    separator = "|";
                })+
                let _ = separator;
                Ok(())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "[{self}]")
            }
        }
    };
}

bit_set! {
    /// Flags that travel; unknown bits are kept.
    Flags(u16) {
        /// Delivered unordered, as soon as received.
        OOB = 0x0001,
        /// Sent without bundling.
        DONT_BUNDLE = 0x0002,
        /// Not subject to flow control.
        NO_FC = 0x0004,
        /// May be lost: bypasses NAKACK and UNICAST.
        NO_RELIABILITY = 0x0010,
        /// Bypasses SEQUENCER.
        NO_TOTAL_ORDER = 0x0020,
        /// Not relayed to other sites.
        NO_RELAY = 0x0040,
        /// The sender waits for all acknowledgements, given the protocol RSVP.
        RSVP = 0x0080,
        /// As `RSVP`, but the sender does not wait.
        RSVP_NB = 0x0100,
        /// Passes a closed BARRIER.
        SKIP_BARRIER = 0x0400,
        /// The payload is an encoded object.
        SERIALIZED = 0x0800,
    }
}

bit_set! {
    /// Flags that never travel.
    Transient(u8) {
        /// An OOB message, delivered and to be skipped at its turn in the window.
        OOB_DELIVERED = 1,
        /// Not looped back to the sender.
        DONT_LOOPBACK = 2,
        /// Dropped instead of waiting for credits.
        DONT_BLOCK = 4,
        /// Received through the loopback.
        LOOPED_BACK = 8,
        /// Delivered by all members in the same order.
        TOTAL_ORDER = 16,
        /// An OOB message that does not wait for the first message of its connection.
        BEFORE_CONNECTION = 32,
    }
}

/// A message's headers, in order of putting. Two, as many as stock stacks put, are inline; up to four need one allocation.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Headers(pub SmallVec<[Header; 2]>);

impl Headers {
    /// Returns a protocol's header.
    #[inline]
    pub fn get(&self, id: ProtocolId) -> Option<&HeaderBody> {
        self.0.iter().find(|header| header.id == id).map(|header| &header.body)
    }

    /// Puts or replaces a header.
    #[inline]
    pub fn put(&mut self, id: ProtocolId, body: HeaderBody) {
        match self.0.iter_mut().find(|header| header.id == id) {
            Some(header) => header.body = body,
            None => self.0.push(Header { id, body }),
        }
    }

    /// Puts a header unless present; returns whether it did.
    pub fn put_if_absent(&mut self, id: ProtocolId, body: HeaderBody) -> bool {
        let is_absent = self.get(id).is_none();
        if is_absent {
            self.0.push(Header { id, body });
        }
        is_absent
    }

    /// Takes a protocol's header.
    #[inline]
    pub fn take(&mut self, id: ProtocolId) -> Option<HeaderBody> {
        let at = self.0.iter().position(|header| header.id == id)?;
        Some(self.0.remove(at).body)
    }
}

/// A Java primitive wrapper, for RPCs.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Primitive {
    Null,
    Boolean(bool),
    Byte(i8),
    Char(u16),
    Double(f64),
    Float(f32),
    Int(i32),
    Long(i64),
    Short(i16),
    String(String),
    Bytes(Bytes),
    /// The class with this number.
    Class(u8),
}

/// The payload of an ObjectMessage, with its type number.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    /// null
    Null,
    /// 15
    SeqnoList(SeqnoList),
    /// 9 (false) or 10 (true)
    Digest {
        /// The digest.
        digest: Digest,
        /// Whether it is a MutableDigest (STABLE).
        is_mutable: bool,
    },
    /// 4
    View(View),
    /// 5
    ViewId(ViewId),
    /// 11 and others.
    Address(Address),
    /// 21: a primitive; SERIALIZED is set.
    Primitive(Primitive),
    /// 20: another object's bytes; SERIALIZED is set. `None`: a null buffer.
    Serialized(Option<Bytes>),
    /// 1040: a read of JGroups' UPerf.
    PerfGet {
        /// The method's number.
        method: i16,
        /// The key.
        key: i32,
    },
    /// 1041: a write of JGroups' UPerf.
    PerfPut {
        /// The method's number.
        method: i16,
        /// The key.
        key: i32,
        /// The value.
        value: Bytes,
    },
}

/// A message's payload, by the wire's types.
#[derive(Clone, PartialEq, Debug)]
pub enum Payload {
    /// 2: no payload.
    Empty,
    /// 0: bytes. Null and empty differ on the wire.
    Bytes(Option<Bytes>),
    /// 1: bytes, preferably in direct memory.
    Nio {
        /// Whether direct memory is requested.
        direct: bool,
        /// The bytes.
        bytes: Option<Bytes>,
    },
    /// 3: an object.
    Object(Box<Object>),
    /// 4: a number.
    Long(i64),
    /// 5: several messages.
    Composite(Vec<Message>),
    /// 6: a fragment of a serialized message (FRAG4).
    Fragment(Bytes),
    /// 7: BATCH2's batch.
    Batch(Box<EarlyBatch>),
}

/// BATCH2's messages.
#[derive(Clone, PartialEq, Debug)]
pub struct EarlyBatch {
    /// The sender.
    pub original_src: Option<Address>,
    /// The messages.
    pub messages: Vec<Message>,
}

/// A message. A clone shares the payload.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// The destination; `None`: all members.
    pub dest: Option<Address>,
    /// The source, set by the transport.
    pub src: Option<Address>,
    /// Flags that travel.
    pub flags: Flags,
    /// Flags that do not travel.
    pub transient: Transient,
    /// Bytes for flow control at the receiver. They return to the sender once consumed.
    pub credit: u32,
    /// The id of an RSVP send with a waiting application; 0: none. Does not travel.
    pub ticket: u32,
    /// The headers.
    pub headers: Headers,
    /// The payload.
    pub payload: Payload,
}

impl Message {
    /// Creates a message without payload.
    pub fn empty(dest: Option<Address>) -> Self {
        Self::new(dest, Payload::Empty)
    }

    /// Creates a message with bytes.
    pub fn bytes(dest: Option<Address>, bytes: impl Into<Bytes>) -> Self {
        Self::new(dest, Payload::Bytes(Some(bytes.into())))
    }

    /// Creates a message with an object.
    pub fn object(dest: Option<Address>, object: Object) -> Self {
        Self::new(dest, Payload::Object(Box::new(object)))
    }

    /// Creates a message with any payload.
    pub fn new(dest: Option<Address>, payload: Payload) -> Self {
        Self {
            dest,
            src: None,
            flags: Flags::NONE,
            transient: Transient::NONE,
            credit: 0,
            ticket: 0,
            headers: Headers::default(),
            payload,
        }
    }

    /// Adds flags.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }

    /// Puts a header.
    #[must_use]
    pub fn with_header(mut self, id: ProtocolId, body: HeaderBody) -> Self {
        self.headers.put(id, body);
        self
    }

    /// Returns whether it is a multicast.
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        self.dest.is_none()
    }

    /// Returns whether it is out of band.
    #[inline]
    pub const fn is_oob(&self) -> bool {
        self.flags.has(Flags::OOB)
    }

    /// Returns whether all members deliver it in the same order.
    #[inline]
    pub fn is_totally_ordered(&self) -> bool {
        self.transient.has(Transient::TOTAL_ORDER)
    }

    /// Returns whether it carries or requests credits.
    pub fn is_credit(&self) -> bool {
        self.headers.0.iter().any(|header| matches!(header.body, HeaderBody::Fc(_)))
    }

    /// Returns a byte payload.
    pub fn payload_bytes(&self) -> Option<&Bytes> {
        match &self.payload {
            Payload::Bytes(bytes) | Payload::Nio { bytes, .. } => bytes.as_ref(),
            Payload::Fragment(bytes) => Some(bytes),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NakAckHeader, UnicastHeader};

    /// S000-65
    #[test]
    fn a_message_fits_three_cache_lines() {
        assert!(size_of::<Message>() <= 192, "{}", size_of::<Message>());
        assert!(size_of::<Payload>() <= 40, "{}", size_of::<Payload>());
    }

    /// S000-75
    #[test]
    fn four_headers_need_no_reallocation() {
        let put = |count: i16| {
            allocation_counter::measure(|| {
                let mut headers = Headers::default();
                for id in 0..count {
                    headers.put(ProtocolId(id), HeaderBody::NakAck2(NakAckHeader::Msg { seqno: 1 }));
                }
                assert_eq!(headers.0.spilled(), count > 2);
            })
        };
        assert_eq!([1, 2, 3, 4].map(|count| put(count).count_total), [0, 0, 1, 1]);
    }

    /// S003-11
    #[test]
    fn put_replaces_and_put_if_absent_does_not() {
        let mut headers = Headers::default();
        let xmit = HeaderBody::Unicast3(UnicastHeader::XmitReq);
        headers.put(ProtocolId::UNICAST3, HeaderBody::Heartbeat);
        headers.put(ProtocolId::UNICAST3, xmit.clone());
        assert!(!headers.put_if_absent(ProtocolId::UNICAST3, HeaderBody::Heartbeat));
        assert_eq!(headers.get(ProtocolId::UNICAST3), Some(&xmit));
        assert_eq!(headers.take(ProtocolId::UNICAST3), Some(xmit));
        assert_eq!(headers.get(ProtocolId::UNICAST3), None);
    }

    #[test]
    fn flags_print_their_names() {
        assert_eq!((Flags::OOB | Flags::NO_FC).to_string(), "OOB|NO_FC");
    }
}
