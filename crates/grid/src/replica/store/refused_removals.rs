use std::collections::BTreeSet;

use consort_group::Time;

use crate::Segment;
use crate::cx::Cx;
use crate::operation::StoreFailure;
use crate::persistence::StoreOrder;
use crate::replica::Shared;
use crate::replica::store::Store;
use crate::replica::store::Wait;

/// Refused bulk removals, retried until the store has executed them. Until then it accepts no writes of these
/// segments, because the removal would remove their entries, too.
#[derive(Default)]
pub(crate) struct Owed {
    pub(crate) clear: bool,
    segments: BTreeSet<Segment>,
    is_tried: bool,
}

impl Owed {
    pub(crate) fn is_any(&self) -> bool {
        self.clear || !self.segments.is_empty()
    }

    pub(crate) fn has(&self, segment: Segment) -> bool {
        self.clear || self.segments.contains(&segment)
    }
}

impl Store {
    pub(crate) fn handle_removed(
        &mut self,
        shared: &Shared,
        cx: &mut Cx,
        wait: &Wait,
        result: Result<(), StoreFailure>,
    ) {
        let Some(persistence) = &mut self.persistence else { return };
        let owed = &mut persistence.owed;
        match (wait, result) {
            (Wait::RemoveSegment(segment), Ok(())) => {
                owed.segments.remove(segment);
            }
            (Wait::RemoveSegment(segment), Err(why)) => {
                owed.segments.insert(*segment);
                (owed.is_tried, persistence.why) = (false, Some(why));
            }
            (_, Ok(())) => {
                let was_owed = owed.clear;
                persistence.owed = Owed::default();
                if was_owed {
                    // Until now the persisted state marked the store's entries as void.
                    self.remember(shared, cx, false);
                }
            }
            (_, Err(why)) => {
                let is_first = !std::mem::replace(&mut owed.clear, true);
                (owed.is_tried, persistence.why) = (false, Some(why));
                if is_first {
                    self.remember(shared, cx, true);
                }
            }
        }
        if let Some(persistence) = self.persistence.as_mut().filter(|one| !one.owed.is_any()) {
            persistence.owed.is_tried = false;
            // The writes that waited for this removal are due.
            persistence.retried = Time::ZERO;
        }
    }

    pub(crate) fn remove_owed(&mut self, shared: &Shared, cx: &mut Cx) {
        let Some(persistence) = self.persistence.as_mut().filter(|one| !one.owed.is_tried) else { return };
        persistence.owed.is_tried = persistence.owed.is_any();
        if persistence.owed.clear {
            return self.order(shared, cx, StoreOrder::Clear);
        }
        for segment in persistence.owed.segments.clone() {
            self.order(shared, cx, StoreOrder::RemoveSegment(segment));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use consort_group::{Address, Uuid};

    use super::*;
    use crate::operation::Change;
    use crate::replica::CacheReplica;
    use crate::replica::store::Store;
    use crate::{
        CacheConfig, Container, ContainerSettings, Entry, OperationError, StoreRequest, StoreSettings,
        Version,
    };

    const SEGMENT: Segment = Segment(0);

    fn owner() -> (CacheReplica, Cx) {
        let settings = ContainerSettings { segment_count: 2, bound: None, is_backed: true, is_shared: true };
        let container = Arc::new(Container::new(&settings, 1));
        container.own(SEGMENT);
        let local = Address::Uuid(Uuid { most: 0, least: 1 });
        let config = CacheConfig { segments: 2, ..CacheConfig::new("kept") };
        let mut cache = CacheReplica::new(config, local.clone().into(), container);
        let backing = StoreSettings { passivation: false, remembered: None };
        cache.store = Store::new(Some(backing));
        (cache, Cx::new(local))
    }

    fn put(cache: &mut CacheReplica, cx: &mut Cx, key: &'static [u8]) {
        let entry = Entry::new(Bytes::from_static(key), Version::new(1, 1), cx.now);
        cache.shared.container.put(SEGMENT, key, entry, cx.now).unwrap();
        cache.store.note_changed(&mut cache.shared, cx, SEGMENT, key, false, Vec::new());
    }

    fn asked(cx: &mut Cx) -> Vec<StoreRequest> {
        cx.store.drain(..).map(|(_, request)| request).collect()
    }

    fn number_of_removal(requests: &[StoreRequest]) -> u64 {
        match requests {
            [StoreRequest::Order { number, order: StoreOrder::RemoveSegment(SEGMENT) }] => *number,
            other => panic!("{other:?}"),
        }
    }

    fn pass_second(cache: &mut CacheReplica, cx: &mut Cx) {
        cx.now = cx.now + Duration::from_secs(1);
        cache.store.tick_store(&mut cache.shared, cx);
    }

    fn refuses(cache: &CacheReplica, cx: &Cx, segment: Segment, change: &Change) -> bool {
        let refusal = cache.store.store_refusal(cx, segment, change);
        assert!(
            refusal.is_none() || matches!(refusal, Some(OperationError::StoreUnavailable { .. })),
            "{refusal:?}"
        );
        refusal.is_some()
    }

    #[test]
    fn a_refused_removal_of_a_segment_is_tried_again_and_what_is_written_meanwhile_follows_it() {
        let (mut cache, mut cx) = owner();
        cx.now = Time::ZERO + Duration::from_secs(10);
        let a_put = Change::Put { value: Bytes::new(), lifetime: crate::Lifetime::FOREVER };
        cache.store.note_dropped(&cache.shared, &mut cx, SEGMENT);
        let removal = number_of_removal(&asked(&mut cx));
        // The segment returns before its removal is known to have failed.
        put(&mut cache, &mut cx, b"early");
        let early = match &asked(&mut cx)[..] {
            [StoreRequest::Write { number, .. }] => *number,
            other => panic!("{other:?}"),
        };
        assert!(!refuses(&cache, &cx, SEGMENT, &a_put));
        cache.handle_stored(&mut cx, removal, Err("full".into()));
        cache.handle_stored(&mut cx, early, Ok(()));
        assert!(refuses(&cache, &cx, SEGMENT, &a_put) && refuses(&cache, &cx, Segment(1), &a_put));
        assert!(
            refuses(&cache, &cx, SEGMENT, &Change::Remove),
            "the removal of the segment would not be the last"
        );
        assert!(!refuses(&cache, &cx, Segment(1), &Change::Remove), "it may make room");
        put(&mut cache, &mut cx, b"late");
        assert_eq!(asked(&mut cx), [], "the removal of the segment would take it with it");
        // Two retries fail.
        for _ in 0..2 {
            pass_second(&mut cache, &mut cx);
            let removal = number_of_removal(&asked(&mut cx));
            pass_second(&mut cache, &mut cx);
            assert_eq!(asked(&mut cx), [], "it is tried once at a time");
            cache.handle_stored(&mut cx, removal, Err("full".into()));
        }
        pass_second(&mut cache, &mut cx);
        let removal = number_of_removal(&asked(&mut cx));
        cache.handle_stored(&mut cx, removal, Ok(()));
        pass_second(&mut cache, &mut cx);
        let mut keys = Vec::new();
        for request in asked(&mut cx) {
            let StoreRequest::Write { number, key, entry: Some(_), .. } = request else {
                panic!("{request:?}")
            };
            keys.push(key);
            cache.handle_stored(&mut cx, number, Ok(()));
        }
        assert_eq!(keys, [&b"early"[..], b"late"]);
        assert!(!refuses(&cache, &cx, SEGMENT, &a_put), "it works again");
    }

    #[test]
    fn a_member_whose_store_has_refused_a_clear_writes_again_once_the_store_has_done_it() {
        let (mut cache, mut cx) = owner();
        cx.now = Time::ZERO + Duration::from_secs(10);
        let a_put = Change::Put { value: Bytes::new(), lifetime: crate::Lifetime::FOREVER };
        cache.store.order(&cache.shared, &mut cx, StoreOrder::Clear);
        let number_of_clear = |requests: &[StoreRequest]| match requests {
            [StoreRequest::Order { number, order: StoreOrder::Clear }] => *number,
            other => panic!("{other:?}"),
        };
        let clear = number_of_clear(&asked(&mut cx));
        cache.handle_stored(&mut cx, clear, Err("full".into()));
        assert!(refuses(&cache, &cx, SEGMENT, &a_put));
        put(&mut cache, &mut cx, b"key");
        pass_second(&mut cache, &mut cx);
        let clear = number_of_clear(&asked(&mut cx));
        cache.handle_stored(&mut cx, clear, Ok(()));
        pass_second(&mut cache, &mut cx);
        match &asked(&mut cx)[..] {
            [StoreRequest::Write { number, .. }] => cache.handle_stored(&mut cx, *number, Ok(())),
            other => panic!("{other:?}"),
        }
        assert!(!refuses(&cache, &cx, SEGMENT, &a_put));
    }
}
