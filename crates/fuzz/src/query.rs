use bytes::Bytes;
use consort_server::fuzzing;

use crate::bounds::{bounded, bounded_by};
use crate::seen::Seen;

/// Each part of the language, over the entities that values become in other targets.
const QUERIES: [&str; 12] = [
    "FROM s.M",
    "SELECT s, i FROM s.M ORDER BY d",
    "FROM s.N n WHERE n.q = 1",
    "DELETE FROM s.M WHERE i > :p",
    "SELECT i, i.s, version(i) FROM s.M i WHERE i.i > 5 AND NOT (s LIKE 'a%\\_' OR e = 'B') ORDER BY i DESC, s",
    "FROM s.M WHERE i IN (1, -2, :p) OR d BETWEEN 1.5 AND 2e3 OR o = TRUE OR b IS NOT NULL",
    "SELECT e, COUNT(*), SUM(i), AVG(d) FROM s.M GROUP BY e HAVING COUNT(DISTINCT s) >= 2 AND MIN(i) < :p ORDER BY SUM(i)",
    "SELECT DISTINCT s FROM s.M m LEFT JOIN m.n AS other WHERE other.q = 7 AND m.ms.is != 3",
    "DELETE FROM s.M WHERE x.value.s = 'it''s' && y.key IS EMPTY",
    "from s.M where not not ((i = 1)) and f <= -0.5f or z = 0",
    "FROM s.N WHERE ns.ns.q IS NULL AND false",
    "FROM s.M WHERE s : 'full text'",
];

/// Wrapped by the type's number and by its name.
const ENTITIES: [&[u8]; 3] = [
    b"\x98\x01\xf0\xa2\x04\x8a\x01\x0b\x0a\x01a\x10\x05\x1a\x00\x2a\x02\x01\x02",
    b"\x82\x01\x03s.N\x8a\x01\x0b\x0a\x00\x11\x01\0\0\0\0\0\0\0",
    b"\x98\x01\xf0\xa2\x04\x8a\x01\x0c\x0a\x01b\x10\x07\x30\x01\x22\x02\x0a\x00",
];

pub(crate) fn queries() -> Vec<Vec<u8>> {
    QUERIES.map(|query| query.as_bytes().to_vec()).into()
}

/// The memory for a schema's types, and for each byte of a query: an `IN` of short numbers is the largest.
const QUERY: (u64, u64) = (64 * 1024, 512);

pub(crate) fn query(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    // The schema is compiled once, whatever the input is.
    let _ = fuzzing::query("FROM s.M");
    let ((is_read, read), peak) = bounded_by(QUERY.0 + QUERY.1 * text.len() as u64, || fuzzing::query(&text));
    match &read {
        Ok(plan) => {
            for entity in ENTITIES {
                let (written, _) = fuzzing::plan(plan, entity).expect("owners know the plan");
                assert_eq!(&written, plan);
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
    Seen::one(is_read, peak)
}

/// Plans, each behind an entity and its length; clients' requests; and responses.
pub(crate) fn plans() -> Vec<Vec<u8>> {
    let plans = QUERIES.iter().filter_map(|query| fuzzing::query(query).1.ok());
    let of_each = |plan: Vec<u8>| ENTITIES.map(|entity| [&[entity.len() as u8], entity, &plan].concat());
    let mut all: Vec<Vec<u8>> = plans.flat_map(of_each).collect();
    all.push(
        b"\x00\x0a\x08FROM s.M\x18\x07\x20\x64\x2a\x07\x0a\x01p\x12\x02\x28\x07\x30\x01\x38\x09".to_vec(),
    );
    all.push(b"\x00\x08\x01\x10\x02\x1a\x02\x28\x07\x1a\x00\x20\x05\x28\x01".to_vec());
    all
}

pub(crate) fn plan(bytes: &[u8]) -> Seen {
    let (length, rest) =
        bytes.split_first().map_or((0, bytes), |(length, rest)| (usize::from(*length), rest));
    let (entity, told) = rest.split_at(length.min(rest.len()));
    let exchanged = Bytes::copy_from_slice(told);
    let (read, peak) = bounded(bytes.len(), || (fuzzing::plan(told, entity), fuzzing::exchange(&exchanged)));
    let (plan, (is_request, is_response)) = read;
    if let Some((written, row)) = &plan {
        assert_eq!(fuzzing::plan(written, entity).as_ref(), Some(&(written.clone(), row.clone())));
    }
    Seen::one(plan.is_some() || is_request || is_response, peak)
}
