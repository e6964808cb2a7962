//! Entries in the archives of Infinispan's backups (`org.infinispan.persistence.server.core`, the layout of release 12 and later). In a
//! `.dat` file each entry follows its length in four bytes, big-endian.

use bytes::Bytes;
use thiserror::Error;

use crate::wire::{LENGTH, MESSAGE, Raw, TYPE_ID, VARINT, field, put_bytes, put_tag, put_varint};

// The fields of `CacheBackupEntry`.
const KEY: u32 = 1;
const VALUE: u32 = 2;
const METADATA: u32 = 3;
const INTERNAL_METADATA: u32 = 4;
const CREATED: u32 = 5;
const LAST_USED: u32 = 6;

// Types of metadata.
const IMMORTAL: u64 = 4;
const EXPIRABLE: u64 = 5;
const LIFESPAN: u64 = 6;
const MAX_IDLE: u64 = 7;

// Their fields. The two times of `EXPIRABLE` are a lifespan and a max-idle time; the others have one.
const NUMERIC_VERSION: u32 = 1;
const CLUSTERED_VERSION: u32 = 2;
const FIRST_TIME: u32 = 3;
const SECOND_TIME: u32 = 4;

const NUMBER_OF_NUMERIC: u32 = 1;
const NUMBER_OF_CLUSTERED: u32 = 2;

/// An unknown time or version.
const NONE: i64 = -1;

/// An error in an entry of an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BackupError {
    /// It is no message of protobuf.
    #[error("no protobuf message")]
    Malformed,
    /// It has no key, value or name.
    #[error("the entry has no {0}")]
    Missing(&'static str),
    /// Its metadata are not those of a plain entry, but for example of a multimap.
    #[error("metadata of the unknown type {0}")]
    MetadataType(u64),
    /// The kind of a counter is unknown.
    #[error("a counter of the unknown kind {0}")]
    CounterKind(u64),
}

/// An entry of a cache. Key and value are the bytes of the cache's storage; times are milliseconds, points in time since 1970.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CacheEntry {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The version of the last write.
    pub version: Option<i64>,
    /// The lifespan.
    pub lifespan: Option<u64>,
    /// The max-idle time.
    pub max_idle: Option<u64>,
    /// When the entry was written.
    pub created: Option<u64>,
    /// When it was last used.
    pub last_used: Option<u64>,
}

fn put_number(out: &mut Vec<u8>, number: u32, value: i64) {
    put_tag(out, number, VARINT);
    put_varint(out, value.cast_unsigned());
}

fn put_message(out: &mut Vec<u8>, number: u32, message: &[u8]) {
    put_tag(out, number, LENGTH);
    put_bytes(out, message);
}

/// As Java's `long`: beyond it the time is unlimited.
fn signed(time: Option<u64>) -> i64 {
    time.and_then(|time| i64::try_from(time).ok()).unwrap_or(NONE)
}

fn unsigned(number: u64) -> Option<u64> {
    u64::try_from(number.cast_signed()).ok()
}

fn next<'m>(message: &mut &'m [u8]) -> Result<Option<(u32, Raw<'m>)>, BackupError> {
    if message.is_empty() {
        return Ok(None);
    }
    field(message).map(Some).ok_or(BackupError::Malformed)
}

impl CacheEntry {
    /// Encodes it without its length.
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + self.value.len() + 64);
        put_message(&mut out, KEY, &self.key);
        put_message(&mut out, VALUE, &self.value);
        put_message(&mut out, METADATA, &self.metadata());
        // Infinispan wants the message, and writes none with fields for caches of one site.
        put_message(&mut out, INTERNAL_METADATA, &[]);
        put_number(&mut out, CREATED, signed(self.created));
        put_number(&mut out, LAST_USED, signed(self.last_used));
        out
    }

    fn metadata(&self) -> Vec<u8> {
        let mut metadata = Vec::new();
        if let Some(version) = self.version {
            let mut numeric = Vec::new();
            put_number(&mut numeric, NUMBER_OF_NUMERIC, version);
            put_message(&mut metadata, NUMERIC_VERSION, &numeric);
        }
        let kind = match (self.lifespan, self.max_idle) {
            (None, None) => IMMORTAL,
            (Some(_), Some(_)) => EXPIRABLE,
            (Some(_), None) => LIFESPAN,
            (None, Some(_)) => MAX_IDLE,
        };
        let times = self.lifespan.into_iter().chain(self.max_idle);
        for (number, time) in [FIRST_TIME, SECOND_TIME].into_iter().zip(times) {
            put_number(&mut metadata, number, signed(Some(time)));
        }
        let mut wrapped = Vec::new();
        put_number(&mut wrapped, TYPE_ID, kind.cast_signed());
        put_message(&mut wrapped, MESSAGE, &metadata);
        wrapped
    }

    /// Decodes one without its length.
    pub fn read(message: &Bytes) -> Result<Self, BackupError> {
        let mut from = &message[..];
        let (mut entry, mut key, mut value) = (Self::default(), None, None);
        while let Some(field) = next(&mut from)? {
            match field {
                (KEY, Raw::Length(bytes)) => key = Some(message.slice_ref(bytes)),
                (VALUE, Raw::Length(bytes)) => value = Some(message.slice_ref(bytes)),
                (METADATA, Raw::Length(bytes)) => entry.read_metadata(bytes)?,
                (CREATED, Raw::Varint(time)) => entry.created = unsigned(time),
                (LAST_USED, Raw::Varint(time)) => entry.last_used = unsigned(time),
                _ => {}
            }
        }
        entry.key = key.ok_or(BackupError::Missing("key"))?;
        entry.value = value.ok_or(BackupError::Missing("value"))?;
        Ok(entry)
    }

    fn read_metadata(&mut self, mut wrapped: &[u8]) -> Result<(), BackupError> {
        let (mut kind, mut message) = (0, &[][..]);
        while let Some(field) = next(&mut wrapped)? {
            match field {
                (TYPE_ID, Raw::Varint(id)) => kind = id,
                (MESSAGE, Raw::Length(bytes)) => message = bytes,
                _ => {}
            }
        }
        if !(IMMORTAL..=MAX_IDLE).contains(&kind) {
            return Err(BackupError::MetadataType(kind));
        }
        let (mut first, mut second) = (None, None);
        while let Some(field) = next(&mut message)? {
            match field {
                (NUMERIC_VERSION, Raw::Length(version)) => {
                    self.version = number_in(version, NUMBER_OF_NUMERIC)?;
                }
                (CLUSTERED_VERSION, Raw::Length(version)) => {
                    self.version = number_in(version, NUMBER_OF_CLUSTERED)?;
                }
                (FIRST_TIME, Raw::Varint(time)) => first = unsigned(time),
                (SECOND_TIME, Raw::Varint(time)) => second = unsigned(time),
                _ => {}
            }
        }
        (self.lifespan, self.max_idle) = match kind {
            EXPIRABLE => (first, second),
            LIFESPAN => (first, None),
            MAX_IDLE => (None, first),
            _ => (None, None),
        };
        Ok(())
    }
}

fn number_in(mut message: &[u8], wanted: u32) -> Result<Option<i64>, BackupError> {
    let mut found = None;
    while let Some(field) = next(&mut message)? {
        if let (number, Raw::Varint(value)) = field
            && number == wanted
        {
            found = Some(value.cast_signed());
        }
    }
    Ok(found)
}

/// The kind of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum BackupCounterKind {
    /// Linearizable.
    #[default]
    Unbounded,
    /// Linearizable with bounds.
    Bounded {
        /// The lower bound.
        lower: i64,
        /// The upper bound.
        upper: i64,
    },
    /// Eventually consistent.
    Weak {
        /// The number of parts.
        concurrency: u32,
    },
}

/// A counter.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CounterEntry {
    /// The name.
    pub name: String,
    /// The kind.
    pub kind: BackupCounterKind,
    /// Whether it survives a restart of all servers.
    pub is_persistent: bool,
    /// The initial value.
    pub initial: i64,
    /// The value.
    pub value: i64,
}

// The fields of `CounterBackupEntry`.
const NAME: u32 = 1;
const CONFIGURATION: u32 = 2;
const COUNTER_VALUE: u32 = 3;

// The fields of `CounterConfiguration`.
const INITIAL: u32 = 1;
const LOWER: u32 = 2;
const UPPER: u32 = 3;
const CONCURRENCY: u32 = 4;
const KIND: u32 = 5;
const STORAGE: u32 = 6;
const COUNTER_LIFESPAN: u32 = 7;

// Its enumerations.
const UNBOUNDED: i64 = 0;
const BOUNDED: i64 = 1;
const WEAK: i64 = 2;
const PERSISTENT: i64 = 1;

impl CounterEntry {
    /// Encodes it without its length.
    pub fn write(&self) -> Vec<u8> {
        let mut config = Vec::new();
        let (kind, lower, upper, concurrency) = match self.kind {
            BackupCounterKind::Unbounded => (UNBOUNDED, i64::MIN, i64::MAX, 0),
            BackupCounterKind::Bounded { lower, upper } => (BOUNDED, lower, upper, 0),
            BackupCounterKind::Weak { concurrency } => (WEAK, i64::MIN, i64::MAX, i64::from(concurrency)),
        };
        for (number, value) in [
            (INITIAL, self.initial),
            (LOWER, lower),
            (UPPER, upper),
            (CONCURRENCY, concurrency),
            (KIND, kind),
            (STORAGE, i64::from(self.is_persistent)),
            (COUNTER_LIFESPAN, NONE),
        ] {
            put_number(&mut config, number, value);
        }
        let mut out = Vec::new();
        put_message(&mut out, NAME, self.name.as_bytes());
        put_message(&mut out, CONFIGURATION, &config);
        put_number(&mut out, COUNTER_VALUE, self.value);
        out
    }

    /// Decodes one without its length. A lifespan is left out: Hot Rod has none.
    pub fn read(mut message: &[u8]) -> Result<Self, BackupError> {
        let (mut entry, mut name) = (Self { value: NONE, ..Self::default() }, None);
        while let Some(field) = next(&mut message)? {
            match field {
                (NAME, Raw::Length(text)) => {
                    name = Some(String::from_utf8(text.to_vec()).map_err(|_| BackupError::Malformed)?);
                }
                (CONFIGURATION, Raw::Length(config)) => entry.read_configuration(config)?,
                (COUNTER_VALUE, Raw::Varint(value)) => entry.value = value.cast_signed(),
                _ => {}
            }
        }
        entry.name = name.ok_or(BackupError::Missing("name"))?;
        Ok(entry)
    }

    fn read_configuration(&mut self, mut config: &[u8]) -> Result<(), BackupError> {
        let (mut kind, mut lower, mut upper, mut concurrency) = (0_u64, 0, 0, 0);
        while let Some(field) = next(&mut config)? {
            let (number, Raw::Varint(value)) = field else { continue };
            match number {
                INITIAL => self.initial = value.cast_signed(),
                LOWER => lower = value.cast_signed(),
                UPPER => upper = value.cast_signed(),
                CONCURRENCY => concurrency = value as u32,
                KIND => kind = value,
                STORAGE => self.is_persistent = value.cast_signed() == PERSISTENT,
                _ => {}
            }
        }
        self.kind = match kind.cast_signed() {
            UNBOUNDED => BackupCounterKind::Unbounded,
            BOUNDED => BackupCounterKind::Bounded { lower, upper },
            WEAK => BackupCounterKind::Weak { concurrency },
            _ => return Err(BackupError::CounterKind(kind)),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(lifespan: Option<u64>, max_idle: Option<u64>) -> CacheEntry {
        CacheEntry {
            key: Bytes::from_static(b"apples"),
            value: Bytes::from_static(b"3"),
            version: Some(7),
            lifespan,
            max_idle,
            created: lifespan.map(|_| 1_790_000_000_000),
            last_used: max_idle.map(|_| 1_790_000_000_001),
        }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        for lifespan in [None, Some(60_000)] {
            for max_idle in [None, Some(0), Some(1_000)] {
                let entry = entry(lifespan, max_idle);
                assert_eq!(CacheEntry::read(&entry.write().into()), Ok(entry));
            }
        }
        let none = CacheEntry { version: None, ..entry(None, None) };
        assert_eq!(CacheEntry::read(&none.write().into()), Ok(none));
    }

    #[test]
    fn metadata_of_a_clustered_version_are_read() {
        // Topology 3, version 9.
        let metadata = [&[0x98, 0x01, 0x04, 0x8a, 0x01, 0x06][..], &[0x12, 0x04, 0x08, 3, 0x10, 9]].concat();
        let message = [&[0x0a, 1, b'k', 0x12, 1, b'v', 0x1a, metadata.len() as u8][..], &metadata].concat();
        let entry = CacheEntry::read(&message.into()).unwrap();
        assert_eq!((entry.version, entry.created, entry.lifespan), (Some(9), None, None));
    }

    #[test]
    fn entries_of_other_kinds_are_refused() {
        let read = |bytes: &[u8]| CacheEntry::read(&Bytes::copy_from_slice(bytes));
        assert_eq!(read(&[]), Err(BackupError::Missing("key")));
        assert_eq!(read(&[0x0a, 1, b'k']), Err(BackupError::Missing("value")));
        assert_eq!(read(&[0x0a, 9, b'k']), Err(BackupError::Malformed));
        // Of a multimap.
        let multimap = [0x0a, 1, b'k', 0x12, 1, b'v', 0x1a, 4, 0x98, 0x01, 0xeb, 0x07];
        assert_eq!(read(&multimap), Err(BackupError::MetadataType(1_003)));
    }

    #[test]
    fn counters_are_read_as_they_were_written() {
        for kind in [
            BackupCounterKind::Unbounded,
            BackupCounterKind::Bounded { lower: -5, upper: 5 },
            BackupCounterKind::Weak { concurrency: 16 },
        ] {
            for is_persistent in [false, true] {
                let name = "hits".to_owned();
                let counter = CounterEntry { name, kind, is_persistent, initial: -1, value: i64::MIN };
                assert_eq!(CounterEntry::read(&counter.write()), Ok(counter));
            }
        }
        assert_eq!(CounterEntry::read(&[]), Err(BackupError::Missing("name")));
        assert_eq!(CounterEntry::read(&[0x12, 2, 0x28, 3]), Err(BackupError::CounterKind(3)));
    }
}
