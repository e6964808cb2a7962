//! Filters of iterations and listeners, and the transform by which owners apply them; an application's filters cannot run here.

use bytes::{Buf, BufMut, Bytes};
use consort_cache::{CacheBuilder, EntryEvent, EntryStream, EventKind, Stored};
use consort_hotrod::ops::iteration::TO_EMPTY_BYTES;
use consort_hotrod::ops::listener::Factory;
pub use consort_hotrod::ops::listener::{KEY_PREFIX, VALUE_PREFIX};
use consort_hotrod::{Metadata, Timed};

use crate::ops::map::of_stored;
use crate::reply::Refusal;

/// The factory of listeners with a query.
pub(crate) const QUERY_FILTER: &str = "query-dsl-filter-converter-factory";

/// The factory of continuous queries.
pub(crate) const CONTINUOUS_QUERY: &str = "continuous-query-filter-converter-factory";

/// The factory of iterations with a query.
pub(crate) const ITERATION_QUERY: &str = "iteration-filter-converter-factory";

/// The transform filters entries and adds metadata to their values.
const TRANSFORM: &str = "hot-rod";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Filter {
    KeyPrefix(Bytes),
    ValuePrefix(Bytes),
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FactoryError {
    #[error(
        "factory '{name}' not found in server, which has {KEY_PREFIX}, {VALUE_PREFIX}, and for queries {QUERY_FILTER} and \
         {CONTINUOUS_QUERY} for listeners and {ITERATION_QUERY} for iterations"
    )]
    Unknown { name: String },
    #[error("factory '{name}' takes one parameter, not {count}")]
    Params { name: String, count: usize },
}

impl FactoryError {
    pub(crate) fn in_iteration(&self) -> Refusal {
        self.numbered("ISPN005060")
    }

    pub(crate) fn in_listener(&self) -> Refusal {
        self.numbered("ISPN006013")
    }

    fn numbered(&self, number: &str) -> Refusal {
        match self {
            Self::Unknown { .. } => Refusal::new(format!("{number}: {self}")),
            Self::Params { .. } => Refusal::new(self.to_string()),
        }
    }
}

impl Filter {
    pub(crate) fn of(factory: &Factory) -> Result<Self, FactoryError> {
        let name = factory.name.as_str();
        let make: fn(Bytes) -> Self = match name {
            KEY_PREFIX => Self::KeyPrefix,
            VALUE_PREFIX => Self::ValuePrefix,
            _ => return Err(FactoryError::Unknown { name: name.to_owned() }),
        };
        match &factory.params[..] {
            [prefix] => Ok(make(Bytes::copy_from_slice(prefix))),
            params => Err(FactoryError::Params { name: name.to_owned(), count: params.len() }),
        }
    }

    pub(crate) const fn needs_values(&self) -> bool {
        matches!(self, Self::ValuePrefix(_))
    }

    /// Whether the filter passes the entry before or after the change; an unknown previous value may have passed.
    pub(crate) fn passes_change(&self, event: &EntryEvent<Bytes, Bytes>) -> bool {
        use EventKind::{Created, Existing, Expired, Removed};
        let Self::ValuePrefix(prefix) = self else { return self.passes(&event.key, &[]) };
        let passes = |value: Option<&Bytes>| value.is_none_or(|value| begins_with(value, prefix));
        let (is_new, is_gone) =
            (matches!(event.kind, Created | Existing), matches!(event.kind, Removed | Expired));
        !is_gone && passes(event.value.as_ref())
            || !is_new && passes(event.previous.as_ref().map(|previous| &previous.value))
    }

    pub(crate) fn passes(&self, key: &[u8], value: &[u8]) -> bool {
        match self {
            Self::KeyPrefix(prefix) => begins_with(key, prefix),
            Self::ValuePrefix(prefix) => begins_with(value, prefix),
        }
    }
}

/// Java's clients wrap texts and bytes (facts section 6.1); then the wrapped bytes count.
fn begins_with(bytes: &[u8], prefix: &[u8]) -> bool {
    match (wrapped(bytes), wrapped(prefix)) {
        (Some((kind, bytes)), Some((other, prefix))) if kind == other => bytes.starts_with(prefix),
        _ => bytes.starts_with(prefix),
    }
}

/// The kind and the content, if nothing follows.
fn wrapped(bytes: &[u8]) -> Option<(u8, &[u8])> {
    const TEXT: u8 = 0x4a;
    const BYTES: u8 = 0x52;
    let (&kind, mut rest) = bytes.split_first()?;
    if !matches!(kind, TEXT | BYTES) {
        return None;
    }
    let (mut length, mut shift) = (0_usize, 0);
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        length |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return (rest.len() == length).then_some((kind, rest));
        }
        shift += 7;
        if shift > 28 {
            return None;
        }
    }
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct EntrySelection {
    pub(crate) filter: Option<Filter>,
    pub(crate) with_metadata: bool,
    pub(crate) without_values: bool,
}

const WITH_METADATA: u8 = 1;
const WITHOUT_VALUES: u8 = 2;
const BY_KEY: u8 = 4;
const BY_VALUE: u8 = 8;

impl EntrySelection {
    pub(crate) fn of(factory: Option<&Factory>, with_metadata: bool) -> Result<Self, FactoryError> {
        let without_values = factory.is_some_and(|factory| factory.name.as_str() == TO_EMPTY_BYTES);
        let filter = factory.filter(|_| !without_values).map(Filter::of).transpose()?;
        Ok(Self { filter, with_metadata, without_values })
    }

    pub(crate) fn apply_to(&self, entries: EntryStream<(Bytes, Bytes)>) -> EntryStream<(Bytes, Bytes)> {
        if *self == Self::default() { entries } else { entries.transform(TRANSFORM, self.to_bytes()) }
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::new();
        let (by, prefix) = match &self.filter {
            None => (0, &[][..]),
            Some(Filter::KeyPrefix(prefix)) => (BY_KEY, &prefix[..]),
            Some(Filter::ValuePrefix(prefix)) => (BY_VALUE, &prefix[..]),
        };
        let flag = |is: bool, flag| if is { flag } else { 0 };
        bytes.push(by | flag(self.with_metadata, WITH_METADATA) | flag(self.without_values, WITHOUT_VALUES));
        bytes.extend_from_slice(prefix);
        bytes.into()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&flags, prefix) = bytes.split_first()?;
        let filter = match flags & (BY_KEY | BY_VALUE) {
            0 => None,
            BY_KEY => Some(Filter::KeyPrefix(Bytes::copy_from_slice(prefix))),
            _ => Some(Filter::ValuePrefix(Bytes::copy_from_slice(prefix))),
        };
        let (with_metadata, without_values) = (flags & WITH_METADATA != 0, flags & WITHOUT_VALUES != 0);
        Some(Self { filter, with_metadata, without_values })
    }

    fn apply(&self, key: &[u8], entry: Stored) -> Option<Bytes> {
        if !self.filter.as_ref().is_none_or(|filter| filter.passes(key, &entry.value)) {
            return None;
        }
        let value = if self.without_values { Bytes::new() } else { entry.value.clone() };
        if !self.with_metadata {
            return Some(value);
        }
        with_metadata(entry, &value)
    }

    /// `None` if another version of this program has written the result.
    pub(crate) fn read(&self, mut made: Bytes) -> Option<(Option<Metadata>, Bytes)> {
        if !self.with_metadata {
            return Some((None, made));
        }
        take_metadata(&mut made).map(|metadata| (Some(metadata), made))
    }
}

const METADATA_MAX: usize = 8 + 2 * (1 + 8 + 4);

pub(crate) fn with_metadata(entry: Stored, value: &[u8]) -> Option<Bytes> {
    let metadata = of_stored(entry).metadata?;
    let mut made = Vec::with_capacity(METADATA_MAX + value.len());
    made.put_i64(metadata.version);
    for timed in [metadata.lifespan, metadata.max_idle] {
        made.put_u8(timed.is_some().into());
        if let Some(Timed { since, seconds }) = timed {
            made.put_i64(since);
            made.put_u32(seconds);
        }
    }
    made.extend_from_slice(value);
    Some(made.into())
}

pub(crate) fn take_metadata(made: &mut Bytes) -> Option<Metadata> {
    let version = made.try_get_i64().ok()?;
    let mut timed = || {
        Some(match made.try_get_u8().ok()? {
            0 => None,
            _ => Some(Timed { since: made.try_get_i64().ok()?, seconds: made.try_get_u32().ok()? }),
        })
    };
    let (lifespan, max_idle) = (timed()?, timed()?);
    Some(Metadata { lifespan, max_idle, version })
}

pub(crate) fn register_transform(cache: CacheBuilder<'_>) -> CacheBuilder<'_> {
    cache.transform(TRANSFORM, |key, entry, wanted| EntrySelection::from_bytes(wanted)?.apply(key, entry))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use consort_cache::{Lifetime, Version};

    use super::*;

    fn factory(name: &'static str, params: &[&'static str]) -> Factory {
        Factory { name: name.into(), params: params.iter().map(|param| Bytes::from(*param)).collect() }
    }

    #[test]
    fn prefixes_match_plain_and_wrapped_texts() {
        let wrap = |text: &str| [&[0x4a, text.len() as u8], text.as_bytes()].concat();
        assert!(begins_with(&wrap("key-1"), &wrap("key")));
        assert!(!begins_with(&wrap("key-1"), &wrap("kex")));
        assert!(begins_with(b"key-1", b"key") && !begins_with(b"ke", b"key"));
        assert!(!begins_with(b"key-1", &wrap("key")), "one of them is not wrapped");
        assert_eq!(wrapped(b"J\x03ke"), None, "a key that only looks like one");
        assert_eq!(wrapped(b"J\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        let long = "k".repeat(300);
        assert_eq!(wrapped(&[b"J\xac\x02", long.as_bytes()].concat()), Some((0x4a, long.as_bytes())));
    }

    #[test]
    fn unknown_factory_is_named_in_the_error() {
        let unknown = Filter::of(&factory("mine", &["a"])).unwrap_err();
        assert!(unknown.to_string().contains("'mine'"), "{unknown}");
        assert_eq!(
            Filter::of(&factory(KEY_PREFIX, &[])),
            Err(FactoryError::Params { name: KEY_PREFIX.to_owned(), count: 0 })
        );
        assert_eq!(Filter::of(&factory(KEY_PREFIX, &["a"])), Ok(Filter::KeyPrefix("a".into())));
    }

    #[test]
    fn filtered_entry_of_an_owner_is_read_back() {
        let lifetime = Lifetime { lifespan: Some(Duration::from_secs(60)), max_idle: None };
        let zero = Duration::ZERO;
        let entry = Stored { value: "value".into(), version: Version(7), lifetime, age: zero, idle: zero };
        for (filter, passes) in [
            (None, true),
            (Some(Filter::KeyPrefix("ke".into())), true),
            (Some(Filter::ValuePrefix("ke".into())), false),
        ] {
            for (with_metadata, without_values) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let wanted = EntrySelection { filter: filter.clone(), with_metadata, without_values };
                assert_eq!(EntrySelection::from_bytes(&wanted.to_bytes()), Some(wanted.clone()));
                let made = wanted.apply(b"key", entry.clone());
                assert_eq!(made.is_some(), passes);
                let Some((metadata, value)) = made.map(|made| wanted.read(made).unwrap()) else { continue };
                assert_eq!(value, if without_values { "" } else { "value" });
                assert_eq!(metadata.is_some(), with_metadata);
                let Some(metadata) = metadata else { continue };
                assert_eq!((metadata.version, metadata.lifespan.unwrap().seconds), (7, 60));
                assert_eq!(metadata.max_idle, None);
            }
        }
        let wanted = EntrySelection { with_metadata: true, ..EntrySelection::default() };
        assert_eq!(wanted.read(Bytes::from_static(b"\0\0\0\0\0\0\0\x01\x01")), None, "cut off");
    }
}
