//! The interface between a member's state machine and the store beside it. The state machine does not know the store:
//! [`Node`](crate::Node) returns store requests, and takes their results.

use bytes::Bytes;
use consort_group::Address;

use crate::codec::{FrameError, Wire, wire_struct};
use crate::operation::Stored;
use crate::{CacheConfig, Segment, Topology};

/// The kind of persistence of a cache on this member.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StoreSettings {
    /// Whether the store has only the values that memory has no room for. If not, it has all entries.
    pub passivation: bool,
    /// The state that the store has from an earlier process. The container has its entries.
    pub remembered: Option<PersistedState>,
}

/// The state that a member stores beside its entries: its address, and the newest topology that it had installed.
#[derive(Clone, PartialEq, Debug)]
pub struct PersistedState {
    /// Its address at that time.
    pub member: Address,
    /// The cache's settings.
    pub config: CacheConfig,
    /// The topology.
    pub topology: Topology,
    /// Whether entries in the store are older than this state, and must be removed.
    pub is_void: bool,
}

/// The error for state in a store that cannot be decoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cluster state of the store cannot be read: {0}")]
pub struct CorruptPersistedState(String);

wire_struct!(PersistedState { member, config, topology, is_void });

/// The version of the stored form.
const FORM: u8 = 3;

impl PersistedState {
    /// Returns the encoded state.
    pub fn encode(&self) -> Bytes {
        let mut out = bytes::BytesMut::new();
        FORM.put(&mut out);
        self.put(&mut out);
        out.freeze()
    }

    /// Decodes the state.
    ///
    /// # Errors
    ///
    /// [`CorruptPersistedState`] if they are not of this version, or damaged.
    pub fn decode(mut bytes: Bytes) -> Result<Self, CorruptPersistedState> {
        let read = |bytes: &mut Bytes| match u8::read(bytes)? {
            FORM => Self::read(bytes),
            form => Err(FrameError::Invalid { what: "form", value: form.into() }),
        };
        let remembered = read(&mut bytes).map_err(|error| CorruptPersistedState(error.to_string()))?;
        let is_whole = bytes.is_empty()
            && remembered.config.check().is_ok()
            && remembered.topology.current.segment_count() == remembered.config.segments
            && remembered.topology.contains(&remembered.member);
        if is_whole {
            Ok(remembered)
        } else {
            Err(CorruptPersistedState("its parts do not fit each other".to_owned()))
        }
    }
}

/// A request to the store. Requests are carried out in order: a load sees every earlier write.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreRequest {
    /// Sets or removes the entry of a key. The result goes to [`Node::handle_stored`](crate::Node::handle_stored).
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
    /// An order for many keys. The result goes to [`Node::handle_stored`](crate::Node::handle_stored).
    Order {
        /// Its number.
        number: u64,
        /// The order.
        order: StoreOrder,
    },
    /// Loads the entries of keys. The result goes to [`Node::handle_loaded`](crate::Node::handle_loaded).
    Load {
        /// Its number.
        number: u64,
        /// The keys.
        keys: Vec<(Segment, Bytes)>,
        /// Bytes of values after which no more are loaded. One value is always loaded.
        bytes_max: usize,
    },
}

/// An order for many keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreOrder {
    /// Removes all entries of a segment.
    RemoveSegment(Segment),
    /// Removes all entries.
    Clear,
    /// Replaces the state beside the entries ([`PersistedState::decode`]); removes it if the bytes are empty.
    Remember(Bytes),
}

/// The entries that a load has found, in the order of the keys, as far as it went.
pub type Loaded = Vec<Option<Stored>>;
