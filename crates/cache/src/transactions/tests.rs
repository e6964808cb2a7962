use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_grid::{CacheConfig, Change, Condition, Lifetime, Write};

use super::branches::Seen;
use super::cache_storage::CacheStorage;
use super::id::{Id, holder};
use super::limits::{TRANSACTIONS_BYTES_MAX, TRANSACTIONS_MAX};
use super::protocol::{InvolvedCaches, Limits, Protocol, Update};
use super::record::{Branch, Decision, Intent, Record, Scope, State, TimeoutAction, Value};
use crate::cache::RawCache;
use crate::manager::CacheManager;

struct SingleMember {
    _manager: CacheManager,
    cache: RawCache,
    protocol: Protocol<CacheStorage>,
    involved: InvolvedCaches,
}

async fn single_member(cluster: &str) -> SingleMember {
    let manager = CacheManager::in_process().connect(cluster).await.unwrap();
    let cache = manager.open(CacheConfig::new("c")).transactional().raw().await.unwrap();
    let protocol = Protocol::new(CacheStorage::open(&manager).await.unwrap());
    let involved = BTreeMap::from([("c".to_owned(), true)]);
    SingleMember { _manager: manager, cache, protocol, involved }
}

fn put(key: &str, value: &str) -> Intent {
    let value = Value { bytes: value.into(), lifespan: None, max_idle: None };
    Intent { key: key.into(), had: None, value: Some(value) }
}

fn branch(intents: Vec<Intent>) -> Branch {
    Branch {
        cache: "c".to_owned(),
        scope: Scope::Shared,
        state: State::Preparing,
        server: "lost".to_owned(),
        is_recoverable: false,
        timeout: Duration::from_secs(60),
        intents,
    }
}

fn id(n: u8) -> Id {
    Id::shared(Bytes::copy_from_slice(&[n]))
}

impl SingleMember {
    /// Prepares a transaction as a member that is lost then.
    async fn prepared(&self, id: &Id, intents: Vec<Intent>) -> Branch {
        let mut branch = branch(intents);
        let seen = vec![Seen::NotRead; branch.intents.len()];
        assert_eq!(self.protocol.begin_branch(id, &branch).await.unwrap(), None);
        assert!(self.protocol.lock_and_validate(&holder(id), &mut branch, &seen).await.unwrap());
        assert!(self.protocol.set_prepared(id, &branch, None).await.unwrap());
        branch
    }

    /// Decides the commit as a member that fails before it makes the writes.
    async fn decide(&self, id: &Id) {
        let decide = |record: Option<Record>| {
            let mut record = record.unwrap();
            assert_eq!(record.commit("lost", 7), Decision::Committed);
            Update::Set(record)
        };
        self.protocol.update(id, decide).await.unwrap();
    }

    async fn put(&self, key: &str, value: &str) {
        self.cache.put(key.as_bytes(), value.as_bytes()).await.unwrap();
    }

    async fn value(&self, key: &str) -> Option<Bytes> {
        self.cache.get(key.as_bytes()).await.unwrap()
    }
}

#[tokio::test]
async fn decided_transaction_is_completed_by_another_member_and_late_writes_change_nothing() {
    let member = single_member("finished").await;
    for key in ["old", "gone"] {
        member.put(key, "before").await;
    }
    let (id, gone) = (id(1), Intent { key: b"gone".to_vec(), had: None, value: None });
    let branch = member.prepared(&id, vec![gone, put("new", "2"), put("old", "1")]).await;
    member.decide(&id).await;
    assert_eq!(member.value("new").await, None);
    let record = member.protocol.record(&id).await.unwrap().unwrap();
    assert_eq!(
        record.timeout_action(Duration::ZERO, |_| Some(Duration::from_secs(16))),
        TimeoutAction::Finish
    );

    member.protocol.finish(&id, &member.involved, &mut None).await.unwrap();
    assert_eq!(member.value("old").await.as_deref(), Some(&b"1"[..]));
    assert_eq!(member.value("new").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(member.value("gone").await, None);
    let record = member.protocol.record(&id).await.unwrap().unwrap();
    assert_eq!((record.branches[0].state, record.branches[0].intents.len()), (State::Committed, 0));

    // The keys are unlocked, and later writes stay.
    for key in ["old", "new", "gone"] {
        member.put(key, "after").await;
    }
    for intent in &branch.intents {
        let mut claim = member.protocol.new_claim();
        assert!(member.protocol.write_intent(&id, &mut claim, "c", intent).await.unwrap());
    }
    for key in ["old", "new", "gone"] {
        assert_eq!(member.value(key).await.as_deref(), Some(&b"after"[..]), "{key}");
    }
}

#[tokio::test]
async fn decided_transaction_cannot_be_rolled_back_and_an_undecided_one_can() {
    let member = single_member("taken-back").await;
    let (first, second) = (id(1), id(2));
    let branch = member.prepared(&first, vec![put("a", "1")]).await;
    member.decide(&first).await;
    assert!(!member.protocol.roll_back_branch(&first, &branch).await.unwrap());
    assert_eq!(member.protocol.roll_back(&first).await, Ok(Decision::Committed));
    member.protocol.forget(&first).await.unwrap();
    assert!(member.protocol.record(&first).await.unwrap().is_some(), "it is not over");
    member.protocol.finish(&first, &member.involved, &mut None).await.unwrap();
    assert_eq!(member.value("a").await.as_deref(), Some(&b"1"[..]));

    let branch = member.prepared(&second, vec![put("b", "2")]).await;
    assert!(member.protocol.roll_back_branch(&second, &branch).await.unwrap());
    assert!(!member.protocol.set_prepared(&second, &branch, None).await.unwrap(), "too late");
    member.protocol.release_completed(&second).await.unwrap();
    member.put("b", "free").await;
}

#[tokio::test]
async fn value_that_expired_since_prepare_is_replaced() {
    let member = single_member("expired").await;
    let short = Lifetime { lifespan: Some(Duration::from_millis(300)), max_idle: None };
    member.cache.put_with(&b"a"[..], &b"short"[..], short).await.unwrap();
    let id = id(1);
    let branch = member.prepared(&id, vec![put("a", "1")]).await;
    assert!(branch.intents[0].had.is_some());
    member.decide(&id).await;
    let expired = async {
        while member.value("a").await.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), expired).await.expect("it expires");
    member.protocol.finish(&id, &member.involved, &mut None).await.unwrap();
    assert_eq!(member.value("a").await.as_deref(), Some(&b"1"[..]));
}

#[tokio::test]
async fn transactions_are_bounded_in_number_and_bytes_until_they_are_forgotten() {
    let mut member = single_member("bounded").await;
    let begin = async |member: &SingleMember, n: u8| {
        let has_room = member.protocol.has_room(Scope::Shared);
        if has_room {
            let branch = branch(vec![put("a", "a value of some bytes")]);
            assert_eq!(member.protocol.begin_branch(&id(n), &branch).await, Ok(None));
        }
        has_room
    };
    let limits = |transactions, bytes| Limits { transactions, bytes };
    let Limits { transactions, bytes } = member.protocol.limits;
    assert_eq!((transactions, bytes), (TRANSACTIONS_MAX, TRANSACTIONS_BYTES_MAX));
    member.protocol.limits = limits(2, u64::MAX);
    assert!(begin(&member, 1).await && begin(&member, 2).await);
    assert!(!begin(&member, 3).await);
    member.protocol.update(&id(1), |_| Update::Remove).await.unwrap();
    assert!(begin(&member, 3).await);
    let (_, bytes) = super::storage::Storage::usage(&member.protocol.storage, Scope::Shared);
    member.protocol.limits = limits(u64::MAX, bytes);
    assert!(begin(&member, 4).await, "as many bytes as there may be");
    assert!(!begin(&member, 5).await);
}

#[tokio::test]
async fn lock_without_a_record_is_released_and_that_of_an_open_transaction_stays() {
    let member = single_member("orphans").await;
    let protocol = Arc::new(member.protocol);
    let place = |key: &'static str| (Scope::Shared, "c", key.as_bytes());
    let (open, lost) = (id(1), id(2));
    assert_eq!(protocol.begin_branch(&open, &branch(vec![put("a", "1")])).await, Ok(None));
    for (id, key) in [(&open, "a"), (&lost, "b")] {
        assert_eq!(
            protocol.acquire(place(key), &holder(id), Lifetime::FOREVER, Duration::ZERO).await,
            Ok(true)
        );
    }
    let members = super::reaper::Members { all: &["lost".to_owned()], is_first: true };
    protocol.reap(&members, |_| async { Some(true) }).await.unwrap();
    let other_holder = Bytes::from("w");
    assert_eq!(protocol.is_free(place("a"), &other_holder).await, Ok(false));
    assert_eq!(protocol.is_free(place("b"), &other_holder).await, Ok(true));
    // Nothing else writes the locked key.
    let change = Change::Put { value: "x".into(), lifetime: Lifetime::FOREVER };
    let write = Write { condition: Condition::Always, change, wants_previous: false };
    let written = member.cache.with_timeout(Duration::from_millis(10)).write("a".into(), write).await;
    assert!(matches!(written, Err(crate::CacheError::Locked { .. })), "{written:?}");
}
