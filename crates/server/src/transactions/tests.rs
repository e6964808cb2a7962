use consort_hotrod::{Expiration, ProtocolVersion, Span, TimeUnit};

use super::record::TimeoutAction;
use super::*;

const MINUTE: Recovery = Recovery { is_recoverable: false, timeout: 60_000 };

pub(crate) struct SingleMember {
    _manager: CacheManager,
    pub(crate) cache: RawCache,
    transactions: Arc<Transactions>,
    involved: InvolvedCaches,
}

pub(crate) async fn single_member(cluster: &str) -> SingleMember {
    let manager = crate::single_member::manager(cluster).await;
    let cache = manager.open(CacheConfig::new("c")).raw().await.unwrap();
    let transactions = Arc::new(Transactions::open(&manager).await.unwrap());
    let involved = InvolvedCaches::from([("c".to_owned(), Some(cache.clone()))]);
    SingleMember { _manager: manager, cache, transactions, involved }
}

fn lifetime(expiration: &Expiration) -> Lifetime {
    crate::ops::map::lifetime(expiration, ProtocolVersion::NEWEST, Lifetime::FOREVER)
}

fn put(key: &'static str, value: &'static str) -> Modification {
    let change = Some((Expiration::default(), Bytes::from(value)));
    Modification { key: key.into(), seen: Seen::NotRead, change }
}

impl SingleMember {
    async fn prepared(&self, n: u8, modifications: Vec<Modification>) -> (Vec<u8>, Branch) {
        let id = Bytes::copy_from_slice(&[n]);
        let key = record_key(&Xid { format: 1, global: id.clone(), branch: id });
        let (mut branch, seen) = new_branch("c", "lost", modifications, MINUTE, lifetime).ok().unwrap();
        assert_eq!(self.transactions.begin(&key, &branch).await.ok().unwrap(), None);
        let holder = lock_holder(&key);
        assert!(self.transactions.lock_and_validate(&self.cache, &holder, &mut branch, &seen).await.unwrap());
        assert!(self.transactions.set_prepared(&key, &branch, false).await.unwrap());
        (key, branch)
    }

    /// Decides the commit as a member that fails before it makes the writes.
    async fn decide(&self, key: &[u8]) {
        let decide = |record: Option<&Record>| {
            let mut record = record?.clone();
            assert_eq!(record.commit("lost"), xa::OK);
            Some(record)
        };
        self.transactions.records.compute(key, decide).await.unwrap();
    }

    async fn put(&self, key: &'static str, value: &'static str) {
        let change = consort_cache::Change::Put { value: value.into(), lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        self.transactions.clone().write(self.cache.clone(), key.into(), write).await.unwrap();
    }

    async fn value(&self, key: &'static str) -> Option<Bytes> {
        self.cache.get(key.as_bytes()).await.unwrap()
    }
}

#[tokio::test]
async fn decided_transaction_is_completed_by_another_server_and_late_writes_change_nothing() {
    let member = single_member("finished").await;
    for key in ["old", "gone"] {
        member.put(key, "before").await;
    }
    let gone = Modification { key: "gone".into(), seen: Seen::NotRead, change: None };
    let (key, branch) = member.prepared(1, vec![put("old", "1"), put("new", "2"), gone]).await;
    member.decide(&key).await;
    assert_eq!(member.value("new").await, None);
    let record = member.transactions.record(&key).await.unwrap().unwrap();
    assert_eq!(record.timeout_action(Duration::from_secs(16), |_| false), TimeoutAction::Finish);

    member.transactions.finish(&key, &member.involved).await.unwrap();
    assert_eq!(member.value("old").await.as_deref(), Some(&b"1"[..]));
    assert_eq!(member.value("new").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(member.value("gone").await, None);
    let record = member.transactions.record(&key).await.unwrap().unwrap();
    assert_eq!((record.branches[0].state, record.branches[0].intents.len()), (State::Committed, 0));

    // The keys are unlocked, and later writes stay.
    for key in ["old", "new", "gone"] {
        member.put(key, "after").await;
    }
    for intent in &branch.intents {
        write_intent(&member.cache, intent).await.unwrap();
    }
    for key in ["old", "new", "gone"] {
        assert_eq!(member.value(key).await.as_deref(), Some(&b"after"[..]), "{key}");
    }
}

#[tokio::test]
async fn decided_transaction_cannot_be_rolled_back_and_an_undecided_one_can() {
    let member = single_member("taken-back").await;
    let (key, branch) = member.prepared(1, vec![put("a", "1")]).await;
    member.decide(&key).await;
    assert!(!member.transactions.roll_back_branch(&key, &branch).await.unwrap());
    assert_eq!(member.transactions.roll_back(&key).await.ok(), Some(xa::HEURISTIC_COMMIT));
    member.transactions.forget(&key).await.unwrap();
    assert!(member.transactions.record(&key).await.unwrap().is_some(), "it is not over");
    member.transactions.finish(&key, &member.involved).await.unwrap();
    assert_eq!(member.value("a").await.as_deref(), Some(&b"1"[..]));

    let (key, branch) = member.prepared(2, vec![put("b", "2")]).await;
    assert!(member.transactions.roll_back_branch(&key, &branch).await.unwrap());
    assert!(!member.transactions.set_prepared(&key, &branch, false).await.unwrap(), "too late");
    member.transactions.release_completed(&key).await.unwrap();
    member.put("b", "free").await;
}

#[tokio::test]
async fn value_that_expired_since_prepare_is_replaced() {
    let member = single_member("expired").await;
    let short = Lifetime { lifespan: Some(Duration::from_millis(300)), max_idle: None };
    member.cache.put_with(&b"a"[..], &b"short"[..], short).await.unwrap();
    let (key, branch) = member.prepared(1, vec![put("a", "1")]).await;
    assert!(branch.intents[0].had.is_some());
    member.decide(&key).await;
    let expired = async {
        while member.value("a").await.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), expired).await.expect("it expires");
    member.transactions.finish(&key, &member.involved).await.unwrap();
    assert_eq!(member.value("a").await.as_deref(), Some(&b"1"[..]));
}

#[tokio::test]
async fn transactions_are_bounded_in_number_and_bytes_until_they_are_forgotten() {
    let mut member = single_member("bounded").await;
    let limits = |transactions, bytes| Limits { transactions, bytes };
    let begin = async |member: &SingleMember, n: u8| {
        let (branch, _) =
            new_branch("c", "A", vec![put("a", "a value of some bytes")], MINUTE, lifetime).ok().unwrap();
        member.transactions.begin(&[n], &branch).await.is_ok()
    };
    assert_eq!(
        (member.transactions.limits.transactions, member.transactions.limits.bytes),
        (TRANSACTIONS_MAX, TRANSACTIONS_BYTES_MAX)
    );
    Arc::get_mut(&mut member.transactions).unwrap().limits = limits(2, u64::MAX);
    assert!(begin(&member, 1).await && begin(&member, 2).await);
    assert!(!begin(&member, 3).await);
    member.transactions.records.remove(&[1_u8][..]).await.unwrap();
    assert!(begin(&member, 3).await);
    let bytes = member.transactions.records.local_bytes();
    Arc::get_mut(&mut member.transactions).unwrap().limits = limits(u64::MAX, bytes);
    assert!(begin(&member, 4).await, "as many bytes as there may be");
    assert!(!begin(&member, 5).await);
}

#[test]
fn too_large_transaction_or_duplicate_key_is_refused() {
    let branch = |modifications| new_branch("c", "A", modifications, MINUTE, lifetime);
    assert!(branch(vec![put("a", "1"), put("a", "2")]).is_err());
    let value = Bytes::from(vec![7; TRANSACTION_BYTES_MAX]);
    let change = Some((Expiration::default(), value));
    assert!(branch(vec![Modification { key: "a".into(), seen: Seen::NotRead, change }]).is_err());
    let hour = Span::Of(1, TimeUnit::Hours);
    let change = Some((Expiration { lifespan: hour, max_idle: Span::Infinite }, Bytes::from("v")));
    let long = Modification { key: "b".into(), seen: Seen::Absent, change };
    let (branch, seen) = branch(vec![long, put("a", "1")]).ok().unwrap();
    assert_eq!(seen, [Seen::NotRead, Seen::Absent], "in the order of the keys");
    let value = branch.intents[1].value.as_ref().unwrap();
    assert_eq!((value.lifespan, value.max_idle), (Some(Duration::from_secs(3_600)), None));
}
