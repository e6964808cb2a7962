//! The configuration of a cache.

use std::sync::Arc;

use consort_group::Member;

use crate::grouping::Grouping;
use crate::{NamesMembers, SEGMENT_COUNT, Segment};

/// A cache's id in a cluster: its name's hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CacheId(pub u32);

impl CacheId {
    /// Returns the id for a name.
    pub fn of(name: &str) -> Self {
        Self(consort_hotrod::hash::hash(name.as_bytes()) as u32)
    }
}

/// The distribution of entries over the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// This member has all entries; local caches of other members are independent.
    Local,
    /// Every member with a capacity owns all segments.
    Replicated,
    /// Segments have a fixed number of owners.
    Distributed {
        /// The owners of a segment. With two, the default, the loss of one member loses no data.
        owners: u16,
    },
    /// Every member has the entries that it has put; a write invalidates the key on others. The data has
    /// another source, such as a database: there is no state transfer and no store, and capacities have no
    /// effect.
    Invalidation,
}

impl CacheMode {
    /// Whether members share entries.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Replicated | Self::Distributed { .. })
    }
}

impl Default for CacheMode {
    fn default() -> Self {
        Self::Distributed { owners: 2 }
    }
}

/// The behaviour after the loss of too many members at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PartitionHandling {
    /// A minority serves only keys whose owners are all reachable.
    DenyReadWrites,
    /// A minority writes only keys whose owners are all reachable; with `ReadFrom::Primary` it reads only
    /// keys with a reachable primary.
    #[default]
    AllowReads,
    /// All partitions go on, and the merge policy decides later.
    AllowReadWrites,
}

/// The policy for keys that several partitions have changed. The *preferred* partition has the most members
/// from before the split, then the oldest member.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MergePolicy {
    /// The preferred partition's state.
    PreferredAlways,
    /// The preferred partition's entry, else another one's.
    #[default]
    PreferredNonNull,
    /// Removal.
    RemoveAll,
    /// The result of the function of this name.
    Custom(Arc<str>),
}

/// A cache's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// The name in the cluster.
    pub name: Arc<str>,
    /// The distribution of entries.
    pub mode: CacheMode,
    /// The number of segments: 256 by default, some for each of 100 members; at most 65,535.
    pub segments: u16,
    /// The behaviour after a loss; by default a minority only reads.
    pub partitions: PartitionHandling,
    /// The policy with [`PartitionHandling::AllowReadWrites`]; by default an entry wins over a removal.
    pub merge: MergePolicy,
    /// The grouping of keys; by default by each key's hash.
    pub grouping: Grouping,
    /// The media type of keys and values, equal on all members.
    pub encoding: Arc<str>,
    /// Whether the cache takes part in transactions. The grid only checks that all members agree; the callers of its members lock
    /// the keys that they write.
    pub is_transactional: bool,
}

impl CacheConfig {
    /// A distributed cache's configuration with two owners.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            mode: CacheMode::default(),
            segments: SEGMENT_COUNT,
            partitions: PartitionHandling::default(),
            merge: MergePolicy::default(),
            grouping: Grouping::default(),
            encoding: "application/octet-stream".into(),
            is_transactional: false,
        }
    }

    /// Returns the id.
    pub fn id(&self) -> CacheId {
        CacheId::of(&self.name)
    }

    /// Returns an encoded key's segment.
    #[inline]
    pub fn segment_of(&self, key: &[u8]) -> Segment {
        crate::segment_of(&self.grouping.group_of(key), self.segments)
    }

    /// Returns all segments.
    pub fn all_segments(&self) -> impl Iterator<Item = Segment> + use<> {
        (0..self.segments).map(Segment)
    }

    /// Returns the owners of a segment; all members in a replicated cache.
    pub fn owner_count(&self) -> u16 {
        match self.mode {
            CacheMode::Local => 1,
            CacheMode::Replicated | CacheMode::Invalidation => u16::MAX,
            CacheMode::Distributed { owners } => owners,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The first invalid setting.
    pub fn check(&self) -> Result<(), OpenError> {
        let wrong = if self.name.is_empty() {
            ("name", "empty")
        } else if self.segments == 0 {
            ("segments", "0")
        } else if self.mode == (CacheMode::Distributed { owners: 0 }) {
            ("owners", "0")
        } else if matches!(&self.merge, MergePolicy::Custom(name) if name.is_empty()) {
            ("merge", "custom without a name")
        } else if matches!(&self.grouping, Grouping::Custom(grouper) if grouper.name().is_empty()) {
            ("grouping", "custom without a name")
        } else if self.is_transactional && self.mode == CacheMode::Invalidation {
            ("transactions", "combined with mode Invalidation")
        } else {
            return Ok(());
        };
        let (setting, value) = (wrong.0.into(), wrong.1.into());
        Err(OpenError::Invalid { cache: self.name.clone(), setting, value })
    }

    /// Checks whether the cache may have a store.
    ///
    /// # Errors
    ///
    /// A mode whose entries a restart makes worthless, because later writes are unknown.
    pub fn check_store(&self) -> Result<(), OpenError> {
        if self.mode != CacheMode::Invalidation {
            return Ok(());
        }
        let (setting, value) = ("a store".into(), "combined with mode Invalidation".into());
        Err(OpenError::Invalid { cache: self.name.clone(), setting, value })
    }

    /// Returns the first difference with both values.
    pub fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let pairs = [
            ("name", self.name.to_string(), other.name.to_string()),
            ("mode", format!("{:?}", self.mode), format!("{:?}", other.mode)),
            ("segments", self.segments.to_string(), other.segments.to_string()),
            ("partitions", format!("{:?}", self.partitions), format!("{:?}", other.partitions)),
            ("merge", format!("{:?}", self.merge), format!("{:?}", other.merge)),
            ("grouping", format!("{:?}", self.grouping), format!("{:?}", other.grouping)),
            ("encoding", self.encoding.to_string(), other.encoding.to_string()),
            ("transactions", self.is_transactional.to_string(), other.is_transactional.to_string()),
        ];
        pairs.into_iter().find(|(_, ours, theirs)| ours != theirs)
    }
}

/// Why a cache cannot be opened here. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting is invalid.
    #[error("cache {cache}: {setting} cannot be {value}")]
    Invalid {
        /// The cache.
        cache: Arc<str>,
        /// The setting.
        setting: Arc<str>,
        /// The value.
        value: Arc<str>,
    },
    /// The cache is already open.
    #[error("cache {0} is open")]
    AlreadyOpen(Arc<str>),
    /// The cluster has another setting.
    #[error("cache {cache}: {setting} is {ours} here and {theirs} in the cluster")]
    ConfigMismatch {
        /// The cache.
        cache: Arc<str>,
        /// The setting.
        setting: Arc<str>,
        /// The value here.
        ours: Arc<str>,
        /// The cluster's value.
        theirs: Arc<str>,
    },
    /// The coordinator speaks another wire version.
    #[error(
        "cache {cache}: {member} speaks version {theirs} of the grid's wire, and this member version {ours}"
    )]
    IncompatibleWire {
        /// The cache.
        cache: Arc<str>,
        /// The coordinator.
        member: Member,
        /// Its version.
        theirs: u8,
        /// This member's version.
        ours: u8,
    },
    /// The cluster has the maximum of caches.
    #[error("cache {cache}: the cluster has {limit} caches, and may have no more")]
    TooMany {
        /// The cache.
        cache: Arc<str>,
        /// The maximum number.
        limit: u32,
    },
    /// The unchanged store has another setting.
    #[error("cache {cache}: {setting} is {ours} here and {theirs} in the store")]
    StoreConfigMismatch {
        /// The cache.
        cache: Arc<str>,
        /// The setting.
        setting: Arc<str>,
        /// The value here.
        ours: Arc<str>,
        /// The store's value.
        theirs: Arc<str>,
    },
    /// The store has another cache of this name; purge it on opening to discard that.
    #[error(
        "cache {cache}: the local store belongs to another cache of this name (created by {ours}; the cluster's was created by {theirs})"
    )]
    ForeignStore {
        /// The cache.
        cache: Arc<str>,
        /// The store's creator.
        ours: Member,
        /// The cluster cache's creator.
        theirs: Member,
    },
}

impl NamesMembers for OpenError {
    fn each_member(&mut self, name: &mut dyn FnMut(&mut Member)) {
        match self {
            Self::IncompatibleWire { member, .. } => name(member),
            Self::ForeignStore { ours, theirs, .. } => [ours, theirs].into_iter().for_each(name),
            Self::Invalid { .. }
            | Self::AlreadyOpen(_)
            | Self::ConfigMismatch { .. }
            | Self::TooMany { .. }
            | Self::StoreConfigMismatch { .. } => {}
        }
    }
}
