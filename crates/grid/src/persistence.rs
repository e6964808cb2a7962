//! What a member's state machine and the store beside it say to each other. The store itself is not known here: what is to
//! be stored comes out of [`Node`](crate::Node) as requests, and what came of them goes in.

use std::sync::Arc;

use bytes::Bytes;
use consort_group::Address;

use crate::operation::Stored;
use crate::wire::{FrameError, Wire, wire_struct};
use crate::{CacheConfig, Segment, Topology};

/// How a cache is kept on this member beyond its memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Backing {
    /// The store has what memory has no room for, and nothing else. If not, it has everything.
    pub passivation: bool,
    /// What the store has kept of an earlier life. The container has its entries.
    pub remembered: Option<Remembered>,
}

/// What a member keeps beside its entries: who it was, and the newest topology that it had installed.
#[derive(Clone, PartialEq, Debug)]
pub struct Remembered {
    /// Its address then.
    pub member: Address,
    /// The cache's settings.
    pub config: CacheConfig,
    /// The topology.
    pub topology: Topology,
    /// Entries in the store are of a life before this one, and are to be removed.
    pub is_void: bool,
}

/// What a store has kept of an earlier life cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("what the store remembers of its cluster cannot be read: {0}")]
pub struct Unreadable(String);

wire_struct!(Remembered { member, config, topology, is_void });

/// The version of the form in which it is kept.
const FORM: u8 = 3;

impl Remembered {
    /// As bytes, to be kept.
    pub fn encode(&self) -> Bytes {
        let mut out = bytes::BytesMut::new();
        FORM.put(&mut out);
        self.put(&mut out);
        out.freeze()
    }

    /// From the bytes that were kept.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] if they are not of this version, or damaged.
    pub fn decode(mut bytes: Bytes) -> Result<Self, Unreadable> {
        let read = |bytes: &mut Bytes| match u8::read(bytes)? {
            FORM => Self::read(bytes),
            form => Err(FrameError::Invalid { what: "form", value: form.into() }),
        };
        let remembered = read(&mut bytes).map_err(|error| Unreadable(error.to_string()))?;
        let is_whole = bytes.is_empty()
            && remembered.config.check().is_ok()
            && remembered.topology.current.segment_count() == remembered.config.segments
            && remembered.topology.contains(&remembered.member);
        if is_whole { Ok(remembered) } else { Err(Unreadable("its parts do not fit each other".to_owned())) }
    }
}

/// What the store is to do. Requests are carried out in the order in which they come: a load sees every write before it.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreRequest {
    /// A key has this entry from now on, or nothing. Answered by [`Node::handle_stored`](crate::Node::handle_stored).
    Write {
        /// Its number.
        number: u64,
        /// The key's segment.
        segment: Segment,
        /// The key.
        key: Bytes,
        /// The entry; none if it is removed.
        entry: Option<Stored>,
    },
    /// Something that concerns many keys. Answered by [`Node::handle_stored`](crate::Node::handle_stored).
    Order {
        /// Its number.
        number: u64,
        /// What.
        order: StoreOrder,
    },
    /// The entries of keys. Answered by [`Node::handle_loaded`](crate::Node::handle_loaded).
    Load {
        /// Its number.
        number: u64,
        /// The keys.
        keys: Vec<(Segment, Bytes)>,
        /// Bytes of values after which no more are loaded. One is in any case.
        bytes_max: usize,
    },
}

/// Something that concerns many keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreOrder {
    /// A segment has no entries any more.
    RemoveSegment(Segment),
    /// There are no entries any more.
    Clear,
    /// This is to be kept beside the entries, in place of what was ([`Remembered::decode`]); nothing if it is empty.
    Remember(Bytes),
}

/// Why a store has not done something, for people.
pub type StoreFailure = Arc<str>;

/// What a load has found, key by key as asked, as far as it went.
pub type Loaded = Vec<Option<Stored>>;
