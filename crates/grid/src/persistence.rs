//! The interface between [`Node`](crate::Node) and the store.

use bytes::Bytes;
use consort_group::Address;

use crate::codec::{FrameError, Wire, wire_struct};
use crate::operation::Stored;
use crate::{CacheConfig, Segment, Topology};

/// A cache's persistence here.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StoreSettings {
    /// Whether the store has only the values without room in memory.
    pub passivation: bool,
    /// An earlier process's state; the container has its entries.
    pub remembered: Option<PersistedState>,
}

/// The stored state beside the entries.
#[derive(Clone, PartialEq, Debug)]
pub struct PersistedState {
    /// The address at that time.
    pub member: Address,
    /// The settings.
    pub config: CacheConfig,
    /// The newest installed topology.
    pub topology: Topology,
    /// Whether the store's older entries must be removed.
    pub is_void: bool,
}

/// The error for undecodable state.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cluster state of the store cannot be read: {0}")]
pub struct CorruptPersistedState(String);

wire_struct!(PersistedState { member, config, topology, is_void });

const FORM: u8 = 4;

impl PersistedState {
    /// Encodes the state.
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
    /// [`CorruptPersistedState`] for another version or damaged bytes.
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

/// A request to the store. A load sees every earlier write.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreRequest {
    /// Sets or removes an entry, see [`Node::handle_stored`](crate::Node::handle_stored).
    Write {
        /// Its number.
        number: u64,
        /// The key's segment.
        segment: Segment,
        /// The key.
        key: Bytes,
        /// The entry; none removes it.
        entry: Option<Stored>,
    },
    /// Changes many keys, see [`Node::handle_stored`](crate::Node::handle_stored).
    Order {
        /// Its number.
        number: u64,
        /// The order.
        order: StoreOrder,
    },
    /// Loads entries, see [`Node::handle_loaded`](crate::Node::handle_loaded).
    Load {
        /// Its number.
        number: u64,
        /// The keys.
        keys: Vec<(Segment, Bytes)>,
        /// The bytes of values after which no more are loaded; at least one is.
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
    /// Replaces the state ([`PersistedState::decode`]); empty bytes remove it.
    Remember(Bytes),
}

/// The found entries in the keys' order, as far as the load went.
pub type Loaded = Vec<Option<Stored>>;
