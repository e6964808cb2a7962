//! A transaction step by step, as servers leave it that do not come to its end.

use consort_cache::Channel;
use consort_conf::{Variables, parse_stack};
use consort_hotrod::{Expiration, Span, TimeUnit};

use super::record::Due;
use super::*;

const STACK: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
    <GMS join_timeout=\"10\"/><UFC/><MFC/><FRAG4/></config>";

const MINUTE: Recovery = Recovery { is_recoverable: false, timeout: 60_000 };

/// The only member of a cluster, with a cache.
pub(crate) struct Alone {
    _manager: CacheManager,
    pub(crate) cache: RawCache,
    transactions: Arc<Transactions>,
    involved: Involved,
}

pub(crate) async fn alone(cluster: &str) -> Alone {
    let stack = parse_stack("transactions", STACK, &Variables::new()).unwrap();
    let members = CacheManager::from_channel(Channel::from_config(stack.config));
    let manager = members.connect(cluster).await.unwrap();
    let cache = manager.open(CacheConfig::new("c")).raw().await.unwrap();
    let transactions = Arc::new(Transactions::open(&manager).await.unwrap());
    let involved = Involved::from([("c".to_owned(), Some(cache.clone()))]);
    Alone { _manager: manager, cache, transactions, involved }
}

fn put(key: &'static str, value: &'static str) -> Modification {
    let change = Some((Expiration::default(), Bytes::from(value)));
    Modification { key: key.into(), seen: Seen::NotRead, change }
}

impl Alone {
    /// A branch that is prepared, and the key of its record.
    async fn prepared(&self, n: u8, modifications: Vec<Modification>) -> (Vec<u8>, Branch) {
        let id = Bytes::copy_from_slice(&[n]);
        let key = key_of(&Xid { format: 1, global: id.clone(), branch: id });
        let version = ProtocolVersion::NEWEST;
        let (mut branch, seen) =
            branch_of("c", "lost", modifications, MINUTE, version, Lifetime::FOREVER).ok().unwrap();
        assert_eq!(self.transactions.begin(&key, &branch).await.ok().unwrap(), None);
        let holder = holder_of(&key);
        assert!(self.transactions.lock_and_look(&self.cache, &holder, &mut branch, &seen).await.unwrap());
        assert!(self.transactions.set_prepared(&key, &branch, false).await.unwrap());
        (key, branch)
    }

    /// A member decides that it is done, and is lost before it does it.
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
async fn what_is_decided_is_written_by_others_and_who_comes_late_changes_nothing() {
    let alone = alone("finished").await;
    for key in ["old", "gone"] {
        alone.put(key, "before").await;
    }
    let gone = Modification { key: "gone".into(), seen: Seen::NotRead, change: None };
    let (key, branch) = alone.prepared(1, vec![put("old", "1"), put("new", "2"), gone]).await;
    alone.decide(&key).await;
    assert_eq!(alone.value("new").await, None);
    let record = alone.transactions.record(&key).await.unwrap().unwrap();
    assert_eq!(record.due(Duration::from_secs(16), |_| false), Due::Finish);

    alone.transactions.finish(&key, &alone.involved).await.unwrap();
    assert_eq!(alone.value("old").await.as_deref(), Some(&b"1"[..]));
    assert_eq!(alone.value("new").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(alone.value("gone").await, None);
    let record = alone.transactions.record(&key).await.unwrap().unwrap();
    assert_eq!((record.branches[0].state, record.branches[0].intents.len()), (State::Committed, 0));

    // Its keys are free, and what others put then stays.
    for key in ["old", "new", "gone"] {
        alone.put(key, "after").await;
    }
    for intent in &branch.intents {
        write_intent(&alone.cache, intent).await.unwrap();
    }
    for key in ["old", "new", "gone"] {
        assert_eq!(alone.value(key).await.as_deref(), Some(&b"after"[..]), "{key}");
    }
}

#[tokio::test]
async fn what_is_decided_cannot_be_taken_back_and_what_is_not_can() {
    let alone = alone("taken-back").await;
    let (key, branch) = alone.prepared(1, vec![put("a", "1")]).await;
    alone.decide(&key).await;
    assert!(!alone.transactions.take_back(&key, &branch).await.unwrap());
    assert_eq!(alone.transactions.roll_back(&key).await.ok(), Some(xa::HEURISTIC_COMMIT));
    alone.transactions.forget(&key).await.unwrap();
    assert!(alone.transactions.record(&key).await.unwrap().is_some(), "it is not over");
    alone.transactions.finish(&key, &alone.involved).await.unwrap();
    assert_eq!(alone.value("a").await.as_deref(), Some(&b"1"[..]));

    let (key, branch) = alone.prepared(2, vec![put("b", "2")]).await;
    assert!(alone.transactions.take_back(&key, &branch).await.unwrap());
    assert!(!alone.transactions.set_prepared(&key, &branch, false).await.unwrap(), "too late");
    alone.transactions.release_over(&key).await.unwrap();
    alone.put("b", "free").await;
}

#[tokio::test]
async fn a_value_that_has_come_to_its_end_meanwhile_is_replaced_all_the_same() {
    let alone = alone("expired").await;
    let short = Lifetime { lifespan: Some(Duration::from_millis(300)), max_idle: None };
    alone.cache.put_with(&b"a"[..], &b"short"[..], short).await.unwrap();
    let (key, branch) = alone.prepared(1, vec![put("a", "1")]).await;
    assert!(branch.intents[0].had.is_some());
    alone.decide(&key).await;
    let expired = async {
        while alone.value("a").await.is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), expired).await.expect("it expires");
    alone.transactions.finish(&key, &alone.involved).await.unwrap();
    assert_eq!(alone.value("a").await.as_deref(), Some(&b"1"[..]));
}

#[tokio::test]
async fn transactions_are_bounded_in_number_and_bytes_until_they_are_forgotten() {
    let mut alone = alone("bounded").await;
    let limits = |transactions, bytes| Limits { transactions, bytes };
    let begin = async |alone: &Alone, n: u8| {
        let (branch, _) = branch_of(
            "c",
            "A",
            vec![put("a", "a value of some bytes")],
            MINUTE,
            ProtocolVersion::NEWEST,
            Lifetime::FOREVER,
        )
        .ok()
        .unwrap();
        alone.transactions.begin(&[n], &branch).await.is_ok()
    };
    assert_eq!(
        (alone.transactions.limits.transactions, alone.transactions.limits.bytes),
        (TRANSACTIONS_MAX, TRANSACTIONS_BYTES_MAX)
    );
    Arc::get_mut(&mut alone.transactions).unwrap().limits = limits(2, u64::MAX);
    assert!(begin(&alone, 1).await && begin(&alone, 2).await);
    assert!(!begin(&alone, 3).await);
    alone.transactions.records.remove(&[1_u8][..]).await.unwrap();
    assert!(begin(&alone, 3).await);
    let bytes = alone.transactions.records.local_bytes();
    Arc::get_mut(&mut alone.transactions).unwrap().limits = limits(u64::MAX, bytes);
    assert!(begin(&alone, 4).await, "as many bytes as there may be");
    assert!(!begin(&alone, 5).await);
}

#[test]
fn a_transaction_that_is_too_large_or_says_a_thing_twice_is_refused() {
    let branch = |modifications| {
        branch_of("c", "A", modifications, MINUTE, ProtocolVersion::NEWEST, Lifetime::FOREVER)
    };
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
