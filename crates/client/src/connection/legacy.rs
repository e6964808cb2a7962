//! Protocol versions before 3.0 (feature `legacy`): detection of such servers, and rewriting of requests.
//!
//! These versions report no server version. A server rejects an unknown version, but how it parses the rest of the request is
//! undefined. So the client tries each older version on a new connection, the newest first (facts sections 2.5 and 7).

use std::time::{SystemTime, UNIX_EPOCH};

use consort_hotrod::ops::iteration::{self, TO_EMPTY_BYTES};
use consort_hotrod::ops::{bulk, map};
use consort_hotrod::{Expiration, ProtocolVersion, Request, RequestBody, Status};

pub(crate) const OLDEST: ProtocolVersion =
    if cfg!(feature = "legacy") { ProtocolVersion::V2_0 } else { ProtocolVersion::V3_0 };

/// Every server from 3.0 on understands a PING in this version, and reports its newest.
pub(crate) const GREETING: ProtocolVersion = ProtocolVersion::V3_0;

#[derive(Clone, Copy)]
pub(crate) struct Versions {
    pub(crate) forced: Option<ProtocolVersion>,
    /// [`OLDEST`]; tests use both values of it in one build.
    pub(crate) oldest: ProtocolVersion,
}

impl Versions {
    pub(crate) const fn new(forced: Option<ProtocolVersion>) -> Self {
        Self { forced, oldest: OLDEST }
    }

    /// The version in which a connection begins: the forced one if older than 3.0.
    pub(crate) fn initial(self) -> ProtocolVersion {
        self.forced.map_or(GREETING, |forced| forced.min(GREETING))
    }

    pub(crate) fn needed(self) -> ProtocolVersion {
        self.forced.unwrap_or(self.oldest)
    }

    pub(crate) fn before(self, version: ProtocolVersion) -> Option<ProtocolVersion> {
        let older = ProtocolVersion::ALL.into_iter().rev().find(|older| *older < version);
        older.filter(|older| self.forced.is_none() && *older >= self.oldest)
    }
}

/// Whether servers answer an unknown version with this status; they differ in it. Failed authentication and overload have others.
pub(crate) const fn is_not_understood(status: Status) -> bool {
    matches!(
        status,
        Status::InvalidMagic | Status::UnknownOpcode | Status::UnknownVersion | Status::ParseError
    )
}

pub(crate) fn rewrite_for_version(request: &Request) -> Option<Request> {
    let version = request.header.version;
    if version >= ProtocolVersion::V3_0 {
        return None;
    }
    let mut rewritten = request.clone();
    match &mut rewritten.body {
        RequestBody::Map(
            map::Request::Put(to)
            | map::Request::PutIfAbsent(to)
            | map::Request::Replace(to)
            | map::Request::ReplaceIfUnmodified(to, _),
        ) => literal(&mut to.expiration),
        RequestBody::Bulk(bulk::Request::PutAll(expiration, _)) => literal(expiration),
        // Old servers do not know the filter that omits values: the values come and are ignored.
        RequestBody::Iteration(iteration::Request::Start(start)) if version < ProtocolVersion::V2_7 => {
            start.filter = start.filter.take().filter(|filter| filter.name.as_str() != TO_EMPTY_BYTES);
        }
        _ => return None,
    }
    Some(rewritten)
}

/// Writes a span so that servers do not read it as a point in time.
fn literal(expiration: &mut Expiration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    *expiration = expiration.before_3_0(now);
}

#[cfg(test)]
mod tests {
    use consort_hotrod::RequestHeader;
    use consort_hotrod::ops::iteration::Start;
    use consort_hotrod::ops::listener::Factory;

    use super::*;

    #[test]
    fn older_versions_are_tried_one_after_the_other_if_they_are_spoken_at_all() {
        for (oldest, count) in [(ProtocolVersion::V2_0, 11), (ProtocolVersion::V3_0, 1)] {
            let versions = Versions { forced: None, oldest };
            let tried: Vec<_> =
                std::iter::successors(Some(versions.initial()), |version| versions.before(*version))
                    .collect();
            let expected = ProtocolVersion::ALL.into_iter().rev().filter(|version| *version <= GREETING);
            assert!(tried.iter().copied().eq(expected.filter(|version| *version >= oldest)), "{tried:?}");
            assert_eq!(tried.len(), count);
        }
        let forced = |version| Versions::new(Some(version));
        assert_eq!(Versions::new(None).initial(), GREETING);
        assert_eq!(forced(ProtocolVersion::V4_1).initial(), GREETING);
        assert_eq!(forced(ProtocolVersion::V2_4).initial(), ProtocolVersion::V2_4);
        assert_eq!(forced(ProtocolVersion::V2_4).before(ProtocolVersion::V2_4), None);
    }

    #[test]
    fn key_iterations_accept_values_of_servers_that_cannot_omit_them() {
        let filter = |name: &str| Some(Factory { name: name.into(), params: Vec::new() });
        let asked = |version, filter| {
            let start = Start { segments: None, filter, batch: 1, with_metadata: false };
            let body = RequestBody::Iteration(iteration::Request::Start(start));
            rewrite_for_version(&Request { header: RequestHeader::new(1, version), body })
        };
        let other = asked(ProtocolVersion::V2_6, filter("mine")).unwrap();
        assert_eq!(other.body.since(), ProtocolVersion::V2_4, "it is still there");
        let keys = asked(ProtocolVersion::V2_6, filter(TO_EMPTY_BYTES)).unwrap();
        assert_eq!(keys.body.since(), ProtocolVersion::V2_3, "it has none");
        assert_eq!(asked(ProtocolVersion::V2_7, filter(TO_EMPTY_BYTES)), None);
    }
}
