//! Versions before 3.0, which are spoken with the feature `legacy`: how a server of theirs is found out, and what is said to it
//! in other words.
//!
//! Those versions have no answer that tells what a server speaks. One that does not know a request's version says so, and what
//! it then makes of the rest of the request nobody knows: so each older version is tried on a connection of its own, the newest
//! first (facts sections 2.5 and 7).

use std::time::{SystemTime, UNIX_EPOCH};

use consort_hotrod::ops::iteration::{self, TO_EMPTY_BYTES};
use consort_hotrod::ops::{bulk, map};
use consort_hotrod::{Expiration, ProtocolVersion, Request, RequestBody, Status};

/// The oldest version that is spoken.
pub(crate) const OLDEST: ProtocolVersion =
    if cfg!(feature = "legacy") { ProtocolVersion::V2_0 } else { ProtocolVersion::V3_0 };

/// In which every server from 3.0 on understands a PING, and tells what else it speaks.
pub(crate) const GREETING: ProtocolVersion = ProtocolVersion::V3_0;

/// In which a connection begins: the wanted version, if that is an older one.
pub(crate) fn initial_version(wanted: Option<ProtocolVersion>) -> ProtocolVersion {
    wanted.map_or(GREETING, |wanted| wanted.min(GREETING))
}

/// The one before this one, if it is spoken.
pub(crate) fn previous_version(version: ProtocolVersion) -> Option<ProtocolVersion> {
    let older = ProtocolVersion::ALL.into_iter().rev().find(|older| *older < version);
    older.filter(|older| *older >= OLDEST)
}

/// Whether a server answers so to a version that it does not know. Which of these it takes is left to it; that it does not
/// believe us, or cannot do it at present, is none of them.
pub(crate) const fn is_not_understood(status: Status) -> bool {
    matches!(
        status,
        Status::InvalidMagic | Status::UnknownOpcode | Status::UnknownVersion | Status::ParseError
    )
}

/// How a request is put in its version, if not as it is.
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
        // Servers of that time do not know how to leave values away: they come, and nobody looks at them.
        RequestBody::Iteration(iteration::Request::Start(start)) if version < ProtocolVersion::V2_7 => {
            start.filter = start.filter.take().filter(|filter| filter.name.as_str() != TO_EMPTY_BYTES);
        }
        _ => return None,
    }
    Some(rewritten)
}

/// A span stays a span to servers that take long ones for points in time.
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
        let tried: Vec<_> = std::iter::successors(Some(GREETING), |version| previous_version(*version)).collect();
        let expected = ProtocolVersion::ALL.into_iter().rev().filter(|version| *version <= GREETING);
        assert!(tried.iter().copied().eq(expected.filter(|version| *version >= OLDEST)), "{tried:?}");
        assert_eq!(tried.len(), if cfg!(feature = "legacy") { 11 } else { 1 });
        assert_eq!(initial_version(None), GREETING);
        assert_eq!(initial_version(Some(ProtocolVersion::V4_1)), GREETING);
        assert_eq!(initial_version(Some(ProtocolVersion::V2_4)), ProtocolVersion::V2_4);
    }

    #[test]
    fn a_walk_through_keys_takes_values_from_who_cannot_leave_them_away() {
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
