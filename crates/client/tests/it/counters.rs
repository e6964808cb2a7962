//! Counters that clients share.

use consort_client::{ClientError, CounterConfig, CounterKind};
use tokio::task::JoinSet;

use crate::servers::Running;

const STRONG: CounterConfig = CounterConfig { kind: CounterKind::Strong, is_persistent: false, initial: 5 };

#[tokio::test]
async fn a_counter_is_made_once_and_counts() {
    let server = Running::start("counters", "A").await;
    let client = server.client().await;
    let counter = client.counter("orders");
    let missing = counter.get().await.unwrap_err();
    assert!(matches!(&missing, ClientError::NoSuchCounter(name) if name == "orders"), "{missing}");
    assert!(!counter.is_defined().await.unwrap());
    assert!(counter.create(STRONG).await.unwrap());
    assert!(!counter.create(STRONG).await.unwrap());
    assert!(counter.is_defined().await.unwrap());
    assert_eq!(counter.config().await.unwrap(), STRONG);
    assert_eq!(counter.add(3).await.unwrap(), 8);
    assert_eq!(counter.compare_and_swap(7, 1).await.unwrap(), 8);
    assert_eq!(counter.compare_and_swap(8, 1).await.unwrap(), 8);
    assert_eq!(counter.swap(-2).await.unwrap(), 1);
    assert_eq!(counter.get().await.unwrap(), -2);
    counter.reset().await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 5);
    assert_eq!(client.counter_names().await.unwrap(), ["orders"]);
}

#[tokio::test]
async fn a_bounded_counter_stays_within_its_bounds() {
    let server = Running::start("bounded", "A").await;
    let counter = server.client().await.counter("seats");
    let kind = CounterKind::Bounded { lower: 0, upper: 2 };
    assert!(counter.create(CounterConfig { kind, is_persistent: false, initial: 0 }).await.unwrap());
    assert_eq!(counter.add(2).await.unwrap(), 2);
    let error = counter.add(1).await.unwrap_err();
    assert!(matches!(&error, ClientError::OutOfBounds(name) if name == "seats"), "{error}");
    assert!(!error.may_be_done());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_many_callers_of_two_clients_add_is_all_counted() {
    let server = Running::start("adding", "A").await;
    let clients = [server.client().await, server.client().await];
    assert!(clients[0].counter("sum").create(STRONG).await.unwrap());
    let mut callers = JoinSet::new();
    for client in &clients {
        for _ in 0..10 {
            let counter = client.counter("sum");
            callers.spawn(async move {
                for _ in 0..20 {
                    counter.add(1).await.unwrap();
                }
            });
        }
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
    assert_eq!(clients[1].counter("sum").get().await.unwrap(), 5 + 2 * 10 * 20);
}
