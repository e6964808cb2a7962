use bytes::Bytes;
use consort_hotrod::ops::listener::{Factory, KEY_PREFIX, VALUE_PREFIX};
use consort_protostream::backup::{BackupCounterKind, CacheEntry, CounterEntry};
use consort_protostream::{QueryRequest, Wrapped};
use consort_server::fuzzing;

use crate::bounds::{bounded, bounded_by};
use crate::seen::Seen;

/// The first byte of an input chooses the kind.
const KINDS: [fn(&Bytes) -> Option<Bytes>; 3] = [
    |bytes| fuzzing::counter(bytes),
    fuzzing::transaction,
    |bytes| fuzzing::transaction_key(bytes).map(Bytes::from),
];

pub(crate) fn records() -> Vec<Vec<u8>> {
    let counter = |kind: u8, flags: u8, state: u8| {
        let mut bytes = vec![0, 1, kind, flags];
        for number in [-9_i64, 9, 3] {
            bytes.extend(number.to_be_bytes());
        }
        for number in [5_i64, 4] {
            bytes.extend(number.to_be_bytes());
            bytes.push(state);
        }
        bytes
    };
    // The fields in their order, as postcard has them: see `transactions/record.rs`.
    let mut transaction = vec![1, 2];
    for (cache, state) in [("a", 1), ("b", 4)] {
        transaction.extend([cache.len() as u8, cache.as_bytes()[0], state, 1, b's', 1, 60, 0]);
        transaction.extend([2, 1, b'k', 1, 7, 1, 1, b'v', 1, 5, 0, 0, 2, b'k', b'2', 0, 0]);
    }
    let mut all: Vec<Vec<u8>> = [(0, 0, 0), (1, 1, 1), (1, 3, 2), (2, 2, 0)]
        .map(|(kind, flags, state)| counter(kind, flags, state))
        .into();
    all.push(transaction);
    all.push(b"\x02\0\0\0\x07\x03abcdef".to_vec());
    all
}

/// A server writes a record as it has read it.
pub(crate) fn record(bytes: &[u8]) -> Seen {
    let Some((kind, record)) = bytes.split_first() else { return Seen::one(false, 0) };
    let read = KINDS[usize::from(*kind) % KINDS.len()];
    let record = Bytes::copy_from_slice(record);
    let (written, peak) = bounded(bytes.len(), || read(&record));
    if let Some(written) = &written {
        assert_eq!(read(written).as_ref(), Some(written), "{record:?}");
    }
    Seen::one(written.is_some(), peak)
}

pub(crate) fn backup_entries() -> Vec<Vec<u8>> {
    let cache = |lifespan: Option<u64>, max_idle: Option<u64>| {
        let (key, value) = (Bytes::from_static(b"apples"), Bytes::from_static(b"3"));
        let (created, last_used) = (lifespan.map(|_| 1_790_000_000_000), max_idle.map(|_| 1_790_000_000_001));
        let entry = CacheEntry { key, value, version: Some(7), lifespan, max_idle, created, last_used };
        [&[0], &entry.write()[..]].concat()
    };
    let counter = |kind: BackupCounterKind| {
        let name = "hits".to_owned();
        let entry = CounterEntry { name, kind, is_persistent: true, initial: -1, value: i64::MIN };
        [&[1], &entry.write()[..]].concat()
    };
    vec![
        cache(None, None),
        cache(Some(60_000), None),
        cache(None, Some(700)),
        cache(Some(60_000), Some(700)),
        counter(BackupCounterKind::Unbounded),
        counter(BackupCounterKind::Bounded { lower: -5, upper: 5 }),
        counter(BackupCounterKind::Weak { concurrency: 16 }),
    ]
}

/// The first byte of an input chooses the kind. An entry is written as it was read.
pub(crate) fn backup_entry(bytes: &[u8]) -> Seen {
    let Some((kind, message)) = bytes.split_first() else { return Seen::one(false, 0) };
    let message = Bytes::copy_from_slice(message);
    let (is_valid, peak) = bounded(bytes.len(), || {
        if kind % 2 == 0 {
            let entry = CacheEntry::read(&message);
            let again = entry.clone().map(|entry| CacheEntry::read(&entry.write().into()));
            assert!(again.is_err() || again == Ok(entry.clone()), "{entry:?}");
            entry.is_ok()
        } else {
            let entry = CounterEntry::read(&message);
            let again = entry.clone().map(|entry| CounterEntry::read(&entry.write()));
            assert!(again.is_err() || again == Ok(entry.clone()), "{entry:?}");
            entry.is_ok()
        }
    });
    Seen::one(is_valid, peak)
}

/// The first byte of an input chooses the factory.
const FACTORIES: [&str; 5] = [
    KEY_PREFIX,
    VALUE_PREFIX,
    "query-dsl-filter-converter-factory",
    "iteration-filter-converter-factory",
    "no-such-factory",
];

/// The factory's index, then parameters, each behind its length.
pub(crate) fn filters() -> Vec<Vec<u8>> {
    let input = |place: u8, params: &[&[u8]]| {
        let mut bytes = vec![place];
        for param in params {
            bytes.push(param.len() as u8);
            bytes.extend(*param);
        }
        bytes
    };
    let text = |text: &str| Wrapped::Text(text.to_owned()).write();
    let query = text("FROM s.M WHERE i > :p AND s LIKE :t");
    let (p, t, number, pattern) = (text("p"), text("t"), Wrapped::from(7).write(), text("%a_"));
    vec![
        input(0, &[b"prefix"]),
        input(1, &[&text("prefix")]),
        input(1, &[b"\x03\x3e\x05pre"]),
        input(0, &[]),
        input(2, &[&text("FROM s.M")]),
        input(2, &[&query, &p, &number, &t, &pattern]),
        input(3, &[&text("SELECT s FROM s.M WHERE e = 'B'")]),
        input(4, &[b"a"]),
    ]
}

/// The memory for a query's types, and for each byte.
const QUERY: (u64, u64) = (64 * 1024, 512);

/// Owners read the plan that a server sends them, and write the same bytes.
pub(crate) fn filter(bytes: &[u8]) -> Seen {
    let (place, mut rest) =
        bytes.split_first().map_or((0, bytes), |(place, rest)| (usize::from(*place), rest));
    let mut params = Vec::new();
    while let Some((length, from)) = rest.split_first() {
        let (param, behind) = from.split_at(from.len().min((*length).into()));
        params.push(Bytes::copy_from_slice(param));
        rest = behind;
    }
    let name = FACTORIES[place % FACTORIES.len()];
    let factory = Factory { name: name.into(), params };
    // The schema is compiled once, whatever the input is.
    let _ = fuzzing::query("FROM s.M");
    let is_query = name.contains("filter-converter");
    let (made, peak) = bounded_by(QUERY.0 + QUERY.1 * bytes.len() as u64, || {
        if is_query {
            fuzzing::query_factory(&factory).map(|plan| fuzzing::plan(&plan, bytes).is_some())
        } else {
            fuzzing::filter(&factory, bytes, &bytes[bytes.len() / 2..])
        }
    });
    match &made {
        Ok(is_read) => assert!(*is_read || !is_query, "an owner cannot read the plan that a server sends"),
        Err(reason) => assert!(!reason.is_empty()),
    }
    let input = Bytes::copy_from_slice(bytes);
    if let Some(wanted) = fuzzing::wanted(bytes) {
        assert_eq!(fuzzing::wanted(&wanted), Some(wanted));
    }
    assert!(fuzzing::metadata(&input).is_none_or(|value| value < bytes.len()));
    Seen::one(made.is_ok(), peak)
}

const REQUESTS: [&str; 5] = [
    r#"{"queryString":"FROM s.M"}"#,
    r#"{"queryString":"FROM s.M WHERE i = :p","startOffset":5,"maxResults":10,"hitCountAccuracy":7,"local":true,
    "namedParameters":[{"name":"p","value":7},{"name":"d","value":1.5e300},{"name":"t","value":"x\u00e9"},{"name":"b","value":true}]}"#,
    r#"{"queryString":"","maxResults":null,"namedParameters":[]}"#,
    r#"{"queryString":"FROM s.M","namedParameters":[{"name":"p","value":[1]}]}"#,
    r#"{"queryString":7,"startOffset":1.5}"#,
];

pub(crate) fn json_queries() -> Vec<Vec<u8>> {
    REQUESTS.map(|request| request.as_bytes().to_vec()).into()
}

/// The largest is an array of short values.
const JSON_PER_BYTE: u64 = 256;

/// A query in JSON is the same in protobuf.
pub(crate) fn json_query(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = 16 * 1024 + JSON_PER_BYTE * text.len() as u64;
    let (read, peak) = bounded_by(limit, || QueryRequest::from_json(&text));
    match &read {
        Ok(request) => {
            let again = QueryRequest::read(&request.write()).expect("it was written here");
            assert_eq!(format!("{again:?}"), format!("{request:?}"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Seen::one(read.is_ok(), peak)
}
