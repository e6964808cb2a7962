//! The configuration of a cache. All members that have it open must agree.
//!
//! This module is below those that carry out the configuration.

use std::sync::Arc;

use consort_group::Member;

use crate::grouping::Grouping;
use crate::{NamesMembers, SEGMENT_COUNT, Segment};

/// The identifier of a cache within a cluster: a hash of its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CacheId(pub u32);

impl CacheId {
    /// Returns the id of the cache with this name.
    pub fn of(name: &str) -> Self {
        Self(consort_hotrod::hash::hash(name.as_bytes()) as u32)
    }
}

/// The distribution of entries over the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// This member has all entries. Other members may have local caches of the same name, which are independent.
    Local,
    /// Every member with a capacity above zero owns all segments.
    Replicated,
    /// Each segment has a fixed number of owners.
    Distributed {
        /// Number of owners of each segment. Two by default: the loss of one member loses no data.
        owners: u16,
    },
    /// Every member has the entries that it has put itself, and a write invalidates the key on all others. For data
    /// with another source, such as a database. There is no state transfer and no store, and capacities have no
    /// effect.
    Invalidation,
}

impl CacheMode {
    /// Whether members have copies of the same entries.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Replicated | Self::Distributed { .. })
    }
}

impl Default for CacheMode {
    fn default() -> Self {
        Self::Distributed { owners: 2 }
    }
}

/// The behaviour of a cache after the loss of too many members at once, perhaps by a network partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PartitionHandling {
    /// In a minority, keys are neither read nor written unless all their owners are reachable.
    DenyReadWrites,
    /// In a minority, keys are read but not written unless all their owners are reachable. With `ReadFrom::Primary`
    /// keys whose primary is unreachable are not read either.
    #[default]
    AllowReads,
    /// All partitions go on; after the merge the cache's merge policy decides between two values of a key.
    AllowReadWrites,
}

/// The policy for keys that several partitions have changed. The *preferred* partition is the one with the most
/// members that were members at the split; of several such, the one that has the oldest member.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum MergePolicy {
    /// The preferred partition's entry or removal.
    PreferredAlways,
    /// The preferred partition's entry; if it has removed the key, the entry of another partition.
    #[default]
    PreferredNonNull,
    /// The key is removed.
    RemoveAll,
    /// The result of the function that is registered under this name on every member.
    Custom(Arc<str>),
}

/// The configuration of a cache, which all its members share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// The name, under which other members find the cache.
    pub name: Arc<str>,
    /// The distribution of entries over the members.
    pub mode: CacheMode,
    /// Number of segments. 256 by default, so that each of 100 members has some; 65,535 at most.
    pub segments: u16,
    /// The behaviour after the loss of too many members at once. By default the majority goes on, and a minority may
    /// only read.
    pub partitions: PartitionHandling,
    /// The policy for keys that several partitions have changed; only with [`PartitionHandling::AllowReadWrites`]. By
    /// default an entry wins over a removal.
    pub merge: MergePolicy,
    /// The keys that share a segment because they belong together; by default the hash of each key determines its
    /// segment.
    pub grouping: Grouping,
    /// The encoding of keys and values, as a media type: all members must use the same.
    pub encoding: Arc<str>,
}

impl CacheConfig {
    /// Creates the configuration of a distributed cache with two owners of each segment.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            mode: CacheMode::default(),
            segments: SEGMENT_COUNT,
            partitions: PartitionHandling::default(),
            merge: MergePolicy::default(),
            grouping: Grouping::default(),
            encoding: "application/octet-stream".into(),
        }
    }

    /// Returns the cache's id.
    pub fn id(&self) -> CacheId {
        CacheId::of(&self.name)
    }

    /// Returns the segment of an encoded key.
    #[inline]
    pub fn segment_of(&self, key: &[u8]) -> Segment {
        crate::segment_of(&self.grouping.group_of(key), self.segments)
    }

    /// Returns all segments.
    pub fn all_segments(&self) -> impl Iterator<Item = Segment> + use<> {
        (0..self.segments).map(Segment)
    }

    /// Returns the number of owners of a segment; every member in a replicated cache.
    pub fn owner_count(&self) -> u16 {
        match self.mode {
            CacheMode::Local => 1,
            CacheMode::Replicated | CacheMode::Invalidation => u16::MAX,
            CacheMode::Distributed { owners } => owners,
        }
    }

    /// Checks whether the settings are valid.
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
    /// If entries of the cache's mode are worth nothing after a restart, because writes of the meantime are unknown.
    pub fn check_store(&self) -> Result<(), OpenError> {
        if self.mode != CacheMode::Invalidation {
            return Ok(());
        }
        let (setting, value) = ("a store".into(), "combined with mode Invalidation".into());
        Err(OpenError::Invalid { cache: self.name.clone(), setting, value })
    }

    /// Returns the first setting that differs, if any, with our value and the other one.
    pub fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let pairs = [
            ("name", self.name.to_string(), other.name.to_string()),
            ("mode", format!("{:?}", self.mode), format!("{:?}", other.mode)),
            ("segments", self.segments.to_string(), other.segments.to_string()),
            ("partitions", format!("{:?}", self.partitions), format!("{:?}", other.partitions)),
            ("merge", format!("{:?}", self.merge), format!("{:?}", other.merge)),
            ("grouping", format!("{:?}", self.grouping), format!("{:?}", other.grouping)),
            ("encoding", self.encoding.to_string(), other.encoding.to_string()),
        ];
        pairs.into_iter().find(|(_, ours, theirs)| ours != theirs)
    }
}

/// The reason why a cache cannot be opened on this member. Nothing was changed; the cache works on without this
/// member.
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
        /// Its value.
        value: Arc<str>,
    },
    /// The cache is open already.
    #[error("cache {0} is open")]
    AlreadyOpen(Arc<str>),
    /// The other members have another setting.
    #[error("cache {cache}: {setting} is {ours} here and {theirs} in the cluster")]
    ConfigMismatch {
        /// The cache.
        cache: Arc<str>,
        /// The setting.
        setting: Arc<str>,
        /// Its value here.
        ours: Arc<str>,
        /// Its value in the cluster.
        theirs: Arc<str>,
    },
    /// The coordinator that this member would join speaks another version of the grid's wire protocol.
    #[error(
        "cache {cache}: {member} speaks version {theirs} of the grid's wire, and this member version {ours}"
    )]
    IncompatibleWire {
        /// The cache.
        cache: Arc<str>,
        /// The coordinator of the members in the view.
        member: Member,
        /// Its version.
        theirs: u8,
        /// The version of this member.
        ours: u8,
    },
    /// The cluster has the maximum number of caches.
    #[error("cache {cache}: the cluster has {limit} caches, and may have no more")]
    TooMany {
        /// The cache.
        cache: Arc<str>,
        /// The maximum number.
        limit: u32,
    },
    /// The store here belongs to a cache with another setting. The store is not changed.
    #[error("cache {cache}: {setting} is {ours} here and {theirs} in the store")]
    StoreConfigMismatch {
        /// The cache.
        cache: Arc<str>,
        /// The setting.
        setting: Arc<str>,
        /// Its value here.
        ours: Arc<str>,
        /// Its value in the store.
        theirs: Arc<str>,
    },
    /// The store here has entries of another cache of this name. They are not changed. To discard them, purge the
    /// store when the cache is opened.
    #[error(
        "cache {cache}: the local store belongs to another cache of this name (created by {ours}; the cluster's was created by {theirs})"
    )]
    ForeignStore {
        /// The cache.
        cache: Arc<str>,
        /// The member that created the cache in the store.
        ours: Member,
        /// The member that created the cluster's cache.
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
