//! Transactions of programs.

mod members;

use std::time::Duration;

use consort_cache::{
    Cache, CacheConfig, CacheError, CacheManager, CacheMode, Locking, OpenError, Transaction,
    TransactionError, TransactionOptions,
};
use members::{Cluster, close, within_timeout};

type Accounts = Cache<String, i64>;

fn config(mode: CacheMode) -> CacheConfig {
    CacheConfig { mode, is_transactional: true, ..CacheConfig::new("accounts") }
}

async fn accounts(manager: &CacheManager, mode: CacheMode) -> Accounts {
    within_timeout("open", manager.open(config(mode)).cache()).await.expect("opened")
}

async fn two_members(name: &str) -> ([CacheManager; 2], [Accounts; 2]) {
    let managers = Cluster::loopback(name).join_all(["A", "B"]).await;
    let caches = [
        accounts(&managers[0], CacheMode::default()).await,
        accounts(&managers[1], CacheMode::default()).await,
    ];
    (managers, caches)
}

const PESSIMISTIC: TransactionOptions = TransactionOptions {
    locking: Locking::Pessimistic,
    acquire_timeout: Duration::from_millis(50),
    timeout: Duration::from_secs(60),
};

#[tokio::test]
async fn writes_of_all_caches_are_visible_after_the_commit_only() {
    let (managers, [a, b]) = two_members("visible").await;
    let names = managers[0].open(CacheConfig::new("names")).transactional();
    let names: Cache<u32, String> = names.cache().await.unwrap();
    a.put("ada", &10).await.unwrap();
    a.put("gone", &1).await.unwrap();

    let transaction = a.transaction().unwrap();
    let of_names = transaction.with_cache(&names).unwrap();
    assert_eq!(transaction.get("ada").await.unwrap(), Some(10));
    transaction.put("ada", &7).await.unwrap();
    assert!(transaction.put_if_absent("bob", &3).await.unwrap());
    assert!(!transaction.put_if_absent("ada", &0).await.unwrap());
    assert!(transaction.remove("gone").await.unwrap() && !transaction.remove("gone").await.unwrap());
    of_names.put(&1, "Bob").await.unwrap();
    assert_eq!(transaction.get("ada").await.unwrap(), Some(7), "its own write");
    assert_eq!((b.get("ada").await.unwrap(), b.get("bob").await.unwrap()), (Some(10), None));
    assert_eq!(names.get(&1).await.unwrap(), None);

    assert!(transaction.commit().await.unwrap().is_complete());
    assert_eq!((b.get("ada").await.unwrap(), b.get("bob").await.unwrap()), (Some(7), Some(3)));
    assert_eq!(b.get("gone").await.unwrap(), None);
    assert_eq!(names.get(&1).await.unwrap().as_deref(), Some("Bob"));
    assert_eq!(of_names.get(&1).await, Err(TransactionError::Ended));
    assert_eq!(of_names.commit().await, Err(TransactionError::Ended));
    // Keys are unlocked.
    b.put("ada", &1).await.unwrap();
    close(managers).await;
}

#[tokio::test]
async fn changed_key_is_a_conflict_and_changes_nothing() {
    let (managers, [a, b]) = two_members("conflict").await;
    a.put("ada", &10).await.unwrap();
    let read = async |transaction: &Transaction<String, i64, _, _>| {
        assert_eq!(transaction.get("ada").await.unwrap(), Some(10));
        assert_eq!(transaction.get("none").await.unwrap(), None);
    };
    let (write_skew, lost_update, appeared) =
        (a.transaction().unwrap(), a.transaction().unwrap(), a.transaction().unwrap());
    for transaction in [&write_skew, &lost_update, &appeared] {
        read(transaction).await;
    }
    write_skew.put("other", &1).await.unwrap();
    lost_update.put("ada", &11).await.unwrap();
    b.put("ada", &20).await.unwrap();
    for transaction in [write_skew, lost_update] {
        let error = transaction.commit().await.unwrap_err();
        assert_eq!(error, TransactionError::Conflict { cache: "accounts".into() });
        assert!(error.is_retryable());
    }
    let again = a.transaction().unwrap();
    assert_eq!((again.get("ada").await.unwrap(), again.get("none").await.unwrap()), (Some(20), None));
    again.put("more", &1).await.unwrap();
    b.put("none", &1).await.unwrap();
    assert!(again.commit().await.is_err());
    assert_eq!((b.get("ada").await.unwrap(), b.get("other").await.unwrap()), (Some(20), None));
    assert_eq!(b.get("more").await.unwrap(), None);
    // A transaction that only reads is validated, too.
    assert!(appeared.commit().await.is_err());
    close(managers).await;
}

#[tokio::test]
async fn dropped_or_rolled_back_transaction_changes_nothing_and_unlocks_its_keys() {
    let (managers, [a, b]) = two_members("dropped").await;
    let dropped = a.transaction().unwrap().with_options(PESSIMISTIC).await.unwrap();
    dropped.put("ada", &1).await.unwrap();
    let locked = b.with_timeout(Duration::from_millis(10)).put("ada", &2).await;
    assert!(matches!(locked, Err(CacheError::Locked { .. })), "{locked:?}");
    drop(dropped);
    // It waits for the rollback.
    b.put("ada", &2).await.unwrap();
    let rolled_back = a.transaction().unwrap().with_options(PESSIMISTIC).await.unwrap();
    assert_eq!(rolled_back.get_locked("ada").await.unwrap(), Some(2));
    rolled_back.put("ada", &3).await.unwrap();
    rolled_back.rollback().await;
    assert_eq!(b.get("ada").await.unwrap(), Some(2));
    b.with_timeout(Duration::from_secs(60)).put("ada", &4).await.unwrap();
    close(managers).await;
}

#[tokio::test]
async fn deadlock_ends_with_a_timeout_of_a_lock() {
    let (managers, [a, b]) = two_members("deadlock").await;
    let (first, second) = (
        a.transaction().unwrap().with_options(PESSIMISTIC).await.unwrap(),
        b.transaction().unwrap().with_options(PESSIMISTIC).await.unwrap(),
    );
    first.lock("ada").await.unwrap();
    second.lock("bob").await.unwrap();
    let (one, other) = tokio::join!(first.lock("bob"), second.lock("ada"));
    let error = one.and(other).unwrap_err();
    assert_eq!(
        error,
        TransactionError::LockTimeout { cache: "accounts".into(), after: Duration::from_millis(50) }
    );
    assert!(error.to_string().contains("deadlock") && error.is_retryable());
    drop((first, second));
    a.put_all([("ada", &1), ("bob", &1)]).await.unwrap();
    close(managers).await;
}

/// Each adds one to a counter, with retries.
async fn add(cache: &Accounts, key: &str, options: TransactionOptions) {
    loop {
        let transaction = cache.transaction().unwrap().with_options(options).await.unwrap();
        let added = async {
            if options.locking == Locking::Pessimistic {
                transaction.lock(key).await?;
            }
            transaction.compute(key, |value| Some(value.copied().unwrap_or_default() + 1)).await
        };
        let error = match added.await {
            Ok(_) => match transaction.commit().await {
                Ok(_) => return,
                Err(error) => error,
            },
            Err(error) => error,
        };
        assert!(error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn concurrent_transactions_and_single_writes_lose_no_update() {
    let (managers, [a, b]) = two_members("updates").await;
    let options = [
        TransactionOptions::default(),
        TransactionOptions { locking: Locking::Pessimistic, ..Default::default() },
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for cache in [&a, &b] {
        for options in options {
            let cache = cache.clone();
            tasks.spawn(async move {
                for _ in 0..10 {
                    add(&cache, "count", options).await;
                }
            });
        }
        let cache = cache.clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                loop {
                    let computed =
                        cache.compute("count", |count| Some(count.copied().unwrap_or_default() + 1));
                    match computed.await {
                        Ok(_) => break,
                        Err(CacheError::Locked { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    }
    within_timeout("updates", tasks.join_all()).await;
    assert_eq!(a.get("count").await.unwrap(), Some(60));
    close(managers).await;
}

#[tokio::test]
async fn transaction_in_a_local_cache_is_its_members_own() {
    let managers = Cluster::loopback("local-transactions").join_all(["A", "B"]).await;
    let local = CacheConfig { mode: CacheMode::Local, is_transactional: true, ..CacheConfig::new("mine") };
    let mine: [Accounts; 2] = [
        managers[0].open(local.clone()).cache().await.unwrap(),
        managers[1].open(local).cache().await.unwrap(),
    ];
    let shared = accounts(&managers[0], CacheMode::Replicated).await;
    for (n, cache) in mine.iter().enumerate() {
        let transaction = cache.transaction().unwrap();
        transaction.put("k", &(n as i64)).await.unwrap();
        transaction.put("l", &1).await.unwrap();
        assert!(transaction.commit().await.unwrap().is_complete());
    }
    assert_eq!((mine[0].get("k").await.unwrap(), mine[1].get("k").await.unwrap()), (Some(0), Some(1)));

    let both = shared.transaction().unwrap();
    let of_mine = both.with_cache(&mine[0]).unwrap();
    both.put("k", &7).await.unwrap();
    assert_eq!(of_mine.swap("k", &8).await.unwrap(), Some(0));
    assert!(both.commit().await.unwrap().is_complete());
    assert_eq!((shared.get("k").await.unwrap(), mine[0].get("k").await.unwrap()), (Some(7), Some(8)));

    let local_first = mine[0].transaction().unwrap().with_options(PESSIMISTIC).await.unwrap();
    let then_shared = local_first.with_cache(&shared).unwrap();
    local_first.put("k", &9).await.unwrap();
    assert_eq!(then_shared.put("k", &9).await, Err(TransactionError::LocalBefore("accounts".into())));
    assert_eq!(mine[0].get("k").await.unwrap(), Some(8));
    let other = mine[1].transaction().unwrap();
    assert!(matches!(other.with_cache(&shared), Err(TransactionError::OtherManager(_))));
    close(managers).await;
}

#[tokio::test]
async fn member_that_crashes_leaves_no_lock() {
    let cluster = Cluster::loopback("crashed");
    let managers = cluster.join_all(["A", "B", "C"]).await;
    let mut caches = Vec::new();
    for manager in &managers {
        caches.push(accounts(manager, CacheMode::default()).await);
    }
    let [a, b, crashed] = managers;
    let lost = caches[2].transaction().unwrap().with_options(PESSIMISTIC).await.unwrap();
    lost.put("ada", &1).await.unwrap();
    within_timeout("crash", crashed.abort()).await;
    // Until the record of the lost member's transaction is removed, and then its lock.
    let put = async {
        while let Err(error) = caches[0].put("ada", &2).await {
            assert!(matches!(error, CacheError::Locked { .. } | CacheError::Operation(_)), "{error}");
        }
    };
    within_timeout("unlocked", put).await;
    assert_eq!(caches[1].get("ada").await.unwrap(), Some(2));
    drop(lost);
    close([a, b]).await;
}

#[tokio::test]
async fn cache_without_transactions_has_none_and_all_members_must_agree() {
    let managers = Cluster::loopback("agreed").join_all(["A", "B"]).await;
    let plain: Accounts = managers[0].open(CacheConfig::new("accounts")).cache().await.unwrap();
    assert!(matches!(plain.transaction(), Err(TransactionError::NotTransactional(_))));
    let other = managers[1].open(config(CacheMode::default())).cache::<String, i64>().await;
    let text = other.unwrap_err().to_string();
    assert!(text.contains("transactions is true here and false in the cluster"), "{text}");
    let refused = managers[0].open(CacheConfig {
        mode: CacheMode::Invalidation,
        is_transactional: true,
        ..CacheConfig::new("near")
    });
    assert!(matches!(refused.raw().await, Err(OpenError::Refused(_))));
    close(managers).await;
}
