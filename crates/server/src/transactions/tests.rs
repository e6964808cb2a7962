use bytes::Bytes;
use consort_cache::{CacheConfig, RawCache};
use consort_hotrod::{ProtocolVersion, Span, TimeUnit};

use super::*;

const MINUTE: Recovery = Recovery { is_recoverable: false, timeout: 60_000 };

pub(crate) struct SingleMember {
    _manager: CacheManager,
    pub(crate) cache: RawCache,
}

pub(crate) async fn single_member(cluster: &str) -> SingleMember {
    let manager = crate::single_member::manager(cluster).await;
    let cache = manager.open(CacheConfig::new("c")).raw().await.unwrap();
    SingleMember { _manager: manager, cache }
}

fn lifetime(expiration: &Expiration) -> Lifetime {
    crate::ops::map::lifetime(expiration, ProtocolVersion::NEWEST, Lifetime::FOREVER)
}

fn put(key: &'static str, value: &'static str) -> Modification {
    let change = Some((Expiration::default(), Bytes::from(value)));
    Modification { key: key.into(), seen: Seen::NotRead, change }
}

#[test]
fn too_large_transaction_or_duplicate_key_is_refused() {
    let branch = |modifications| new_branch("c", modifications, MINUTE, lifetime);
    assert!(branch(vec![put("a", "1"), put("a", "2")]).is_err());
    let value = Bytes::from(vec![7; TRANSACTION_BYTES_MAX]);
    let change = Some((Expiration::default(), value));
    assert!(branch(vec![Modification { key: "a".into(), seen: Seen::NotRead, change }]).is_err());
    let hour = Span::Of(1, TimeUnit::Hours);
    let change = Some((Expiration { lifespan: hour, max_idle: Span::Infinite }, Bytes::from("v")));
    let long = Modification { key: "b".into(), seen: Seen::Absent, change };
    let branch = branch(vec![long, put("a", "1")]).ok().unwrap();
    assert_eq!(branch.seen, [SeenVersion::NotRead, SeenVersion::Absent], "in the order of the keys");
    let value = branch.intents[1].value.as_ref().unwrap();
    assert_eq!((value.lifespan, value.max_idle), (Some(Duration::from_secs(3_600)), None));
}
