//! Transactions of clients.

use bytes::Bytes;
use consort_hotrod::ops::map::Request as Map;
use consort_hotrod::ops::transaction::{Modification, Prepare, Recovery, Request, Response, Seen, Xid, xa};
use consort_hotrod::ops::{bulk, map, multimap};
use consort_hotrod::{Expiration, RequestBody, ResponseBody, Status};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, PATIENCE, RunningServer, error, get};

const TRANSACTIONAL: &str = r#"{"distributed-cache": {"owners": 2, "transaction": {"mode": "NON_XA"}}}"#;

/// The timeout of a transaction's decision. Long enough for tests that decide at once.
const MINUTE: Recovery = Recovery { is_recoverable: false, timeout: 60_000 };

fn xid(n: u8) -> Xid {
    Xid { format: 1, global: Bytes::from(vec![n; 32]), branch: Bytes::from(vec![n; 32]) }
}

fn put(key: &'static str, value: &'static str, seen: Seen) -> Modification {
    Modification { key: key.into(), seen, change: Some((Expiration::default(), value.into())) }
}

fn remove(key: &'static str, seen: Seen) -> Modification {
    Modification { key: key.into(), seen, change: None }
}

/// A client of a transactional cache.
struct TransactionClient(Client);

impl TransactionClient {
    async fn connect(server: &RunningServer) -> Self {
        Self(server.client().await)
    }

    async fn ask(&mut self, request: Request) -> consort_hotrod::Response {
        self.0.ask("c", RequestBody::Transaction(request)).await
    }

    async fn code(&mut self, request: Request) -> i32 {
        match self.ask(request).await.body {
            ResponseBody::Transaction(Response::Code(code)) => code,
            other => panic!("{other:?}"),
        }
    }

    async fn prepare(&mut self, n: u8, modifications: Vec<Modification>) -> i32 {
        let prepare = Prepare { xid: xid(n), is_one_phase: false, modifications };
        self.code(Request::Prepare(prepare, Some(MINUTE))).await
    }

    async fn commit(&mut self, n: u8) -> i32 {
        self.code(Request::Commit(xid(n))).await
    }

    async fn roll_back(&mut self, n: u8) -> i32 {
        self.code(Request::Rollback(xid(n))).await
    }

    /// Puts outside of a transaction.
    async fn put(&mut self, key: &'static str, value: &'static str) -> Status {
        self.0.ask("c", crate::client::put(key, value)).await.status
    }

    async fn value(&mut self, key: &'static str) -> Option<Bytes> {
        match self.0.ask("c", get(key)).await.body {
            ResponseBody::Map(map::Response::Value(value)) => Some(value),
            ResponseBody::Empty => None,
            other => panic!("{other:?}"),
        }
    }

    async fn read(&mut self, key: &'static str) -> (Seen, Bytes) {
        match self.0.ask("c", RequestBody::Map(Map::GetWithMetadata(key.into()))).await.body {
            ResponseBody::Map(map::Response::WithMetadata(metadata, value)) => {
                (Seen::Version(metadata.version), value)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn in_doubt(&mut self) -> Vec<Xid> {
        match self.ask(Request::FetchRecovery).await.body {
            ResponseBody::Transaction(Response::Prepared(xids)) => xids,
            other => panic!("{other:?}"),
        }
    }
}

async fn transactional(cluster: &str) -> (RunningServer, TransactionClient) {
    let server = RunningServer::start(cluster).await;
    let mut transactions = TransactionClient::connect(&server).await;
    transactions.0.create_with("c", TRANSACTIONAL).await;
    (server, transactions)
}

#[tokio::test]
async fn writes_of_a_transaction_are_visible_only_after_its_commit() {
    let (_server, mut transactions) = transactional("committed").await;
    assert_eq!(transactions.put("old", "1").await, Status::Success);
    let modifications = vec![
        put("a", "1", Seen::Absent),
        put("b", "2", Seen::NotRead),
        remove("old", transactions.read("old").await.0),
        remove("none", Seen::Absent),
    ];
    assert_eq!(transactions.prepare(1, modifications).await, xa::OK);
    assert_eq!(
        (transactions.value("a").await, transactions.value("old").await.as_deref()),
        (None, Some(&b"1"[..]))
    );
    assert_eq!(transactions.commit(1).await, xa::OK);
    assert_eq!(transactions.value("a").await.as_deref(), Some(&b"1"[..]));
    assert_eq!(transactions.value("b").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(transactions.value("old").await, None);
    assert_eq!(transactions.commit(1).await, xa::OK, "a repeated request gets the same response");
    assert_eq!(transactions.roll_back(1).await, xa::HEURISTIC_COMMIT);
    // The keys are unlocked, and the transaction is forgotten on request.
    assert_eq!(transactions.put("a", "after").await, Status::Success);
    assert_eq!(transactions.ask(Request::Forget(xid(1))).await.status, Status::Success);
    assert_eq!(transactions.commit(1).await, xa::UNKNOWN);
    assert_eq!(transactions.roll_back(1).await, xa::UNKNOWN);
    assert_eq!(transactions.value("a").await.as_deref(), Some(&b"after"[..]));
}

#[tokio::test]
async fn changed_read_rolls_the_transaction_back() {
    let (_server, mut transactions) = transactional("validated").await;
    assert_eq!(transactions.put("a", "1").await, Status::Success);
    let seen = transactions.read("a").await.0;
    assert_eq!(transactions.put("a", "2").await, Status::Success);
    for (n, modification) in [
        (1, put("a", "lost update", seen)),
        (2, put("a", "not absent", Seen::Absent)),
        (3, remove("b", Seen::Version(7))),
    ] {
        assert_eq!(
            transactions.prepare(n, vec![put("other", "x", Seen::NotRead), modification]).await,
            xa::ROLLBACK
        );
        assert_eq!(transactions.commit(n).await, xa::HEURISTIC_ROLLBACK);
        assert_eq!(transactions.roll_back(n).await, xa::OK);
    }
    assert_eq!(
        (transactions.value("a").await.as_deref(), transactions.value("other").await),
        (Some(&b"2"[..]), None)
    );
    // No key is locked any more.
    assert_eq!(transactions.put("a", "3").await, Status::Success);
    assert_eq!(transactions.put("other", "3").await, Status::Success);
}

#[tokio::test]
async fn one_phase_transaction_commits_at_once_and_an_empty_one_is_read_only() {
    let (_server, mut transactions) = transactional("one-phase").await;
    let once = |n, modifications| Prepare { xid: xid(n), is_one_phase: true, modifications };
    // Clients use this to find out whether a cache has transactions.
    assert_eq!(transactions.code(Request::Prepare(once(1, vec![]), Some(MINUTE))).await, xa::READ_ONLY);
    let prepare = once(2, vec![put("a", "1", Seen::Absent)]);
    assert_eq!(transactions.code(Request::Prepare(prepare.clone(), Some(MINUTE))).await, xa::OK);
    assert_eq!(transactions.value("a").await.as_deref(), Some(&b"1"[..]));
    assert_eq!(transactions.code(Request::Prepare(prepare, Some(MINUTE))).await, xa::OK, "the same again");
    assert_eq!(transactions.commit(2).await, xa::OK);
    let late = once(3, vec![put("a", "2", Seen::Absent)]);
    assert_eq!(transactions.code(Request::Prepare(late, None)).await, xa::ROLLBACK, "in the form of 2.7");
    assert_eq!(transactions.value("a").await.as_deref(), Some(&b"1"[..]));
}

#[tokio::test]
async fn writes_of_keys_of_a_prepared_transaction_wait_for_its_decision() {
    let (server, mut transactions) = transactional("locked").await;
    let mut other = TransactionClient::connect(&server).await;
    assert_eq!(transactions.prepare(1, vec![put("a", "1", Seen::Absent)]).await, xa::OK);
    assert_eq!(transactions.prepare(2, vec![put("a", "2", Seen::NotRead)]).await, xa::ROLLBACK);
    assert_eq!(transactions.put("a", "plain").await, Status::TimedOut);
    assert_eq!(transactions.value("a").await, None, "reads do not wait");
    assert_eq!(transactions.put("b", "others do not wait").await, Status::Success);
    // A write that waits gets the key when it is unlocked.
    let waiting = tokio::spawn(async move {
        let status = other.put("a", "after").await;
        (status, other)
    });
    assert_eq!(transactions.commit(1).await, xa::OK);
    assert_eq!(waiting.await.unwrap().0, Status::Success);
    assert_eq!(transactions.value("a").await.as_deref(), Some(&b"after"[..]));
    assert_eq!(transactions.prepare(3, vec![put("a", "3", Seen::NotRead)]).await, xa::OK);
    assert_eq!(transactions.roll_back(3).await, xa::OK);
    assert_eq!(transactions.put("a", "plain").await, Status::Success);
    assert_eq!(
        transactions.0.ask("c", RequestBody::Bulk(bulk::Request::Clear)).await.status,
        Status::Success
    );
    assert_eq!(transactions.value("a").await, None);
}

#[tokio::test]
async fn non_transactional_cache_refuses_transactions_and_transactional_cache_refuses_multimaps() {
    let (server, mut client) = RunningServer::with_cache("plain", "c").await;
    let mut transactions = TransactionClient::connect(&server).await;
    let prepare = Prepare { xid: xid(1), is_one_phase: true, modifications: vec![] };
    let refused = transactions.ask(Request::Prepare(prepare, Some(MINUTE))).await;
    assert!(error(&refused).contains("ISPN006020"), "{refused:?}");
    assert_eq!(transactions.commit(9).await, xa::UNKNOWN);
    client.create_with("t", TRANSACTIONAL).await;
    let size = multimap::Request { action: multimap::Action::Size, allows_duplicates: false };
    let refused = client.ask("t", RequestBody::Multimap(size)).await;
    assert!(error(&refused).contains("no multimap"), "{refused:?}");
}

/// The reaper runs every few seconds.
#[tokio::test]
async fn undecided_transaction_is_rolled_back_unless_it_is_recoverable() {
    let (_server, mut transactions) = transactional("undecided").await;
    for (n, is_recoverable) in [(1, false), (2, true)] {
        let key = if is_recoverable { "kept" } else { "lost" };
        let modifications = vec![put(key, "1", Seen::Absent)];
        let prepare = Prepare { xid: xid(n), is_one_phase: false, modifications };
        let recovery = Recovery { is_recoverable, timeout: 1 };
        assert_eq!(transactions.code(Request::Prepare(prepare, Some(recovery))).await, xa::OK);
    }
    // Each of these writes waits for the key for a second.
    let free = async { while transactions.put("lost", "2").await != Status::Success {} };
    timeout(PATIENCE, free).await.expect("the key is free");
    assert_eq!(transactions.commit(1).await, xa::HEURISTIC_ROLLBACK);
    assert_eq!(transactions.in_doubt().await, [xid(2)]);
    assert_eq!(transactions.commit(2).await, xa::OK);
    assert_eq!(transactions.value("kept").await.as_deref(), Some(&b"1"[..]));
    assert_eq!(transactions.in_doubt().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_commits_after_the_preparing_server_was_killed() {
    let [_first, second, third] = RunningServer::three("killed").await;
    let (mut transactions, mut others) =
        (TransactionClient::connect(&third).await, TransactionClient::connect(&second).await);
    others.0.create_with("c", TRANSACTIONAL).await;
    let both = vec![put("a", "1", Seen::Absent), put("b", "2", Seen::Absent)];
    assert_eq!(transactions.prepare(1, both).await, xa::OK);
    assert_eq!(transactions.prepare(2, vec![put("c", "3", Seen::Absent)]).await, xa::OK);
    third.kill().await;
    assert_eq!(others.commit(1).await, xa::OK);
    assert_eq!(others.roll_back(2).await, xa::OK);
    assert_eq!(others.value("a").await.as_deref(), Some(&b"1"[..]));
    assert_eq!(others.value("b").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(others.value("c").await, None);
    assert_eq!(others.put("c", "free").await, Status::Success);
}

/// Transfers between accounts, each in a transaction: the sum stays constant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_many_clients_through_two_servers_lose_no_update() {
    const ACCOUNTS: [&str; 3] = ["x", "y", "z"];
    let servers = [RunningServer::start("transfers").await, RunningServer::join("transfers").await];
    let mut looking = TransactionClient::connect(&servers[0]).await;
    looking.0.create_with("c", TRANSACTIONAL).await;
    for account in ACCOUNTS {
        assert_eq!(looking.put(account, "100").await, Status::Success);
    }
    let amount = |value: Bytes| std::str::from_utf8(&value).unwrap().parse::<i64>().unwrap();
    let mut transferring = JoinSet::new();
    for caller in 0..6_usize {
        let mut transactions = TransactionClient::connect(&servers[caller % 2]).await;
        transferring.spawn(async move {
            let mut committed = 0;
            for n in 0..20_usize {
                let (from, to) = (ACCOUNTS[(caller + n) % 3], ACCOUNTS[(caller + n + 1) % 3]);
                let (seen_from, had) = transactions.read(from).await;
                let (seen_to, has) = transactions.read(to).await;
                let changed = |key: &'static str, seen, amount: i64| Modification {
                    key: key.into(),
                    seen,
                    change: Some((Expiration::default(), amount.to_string().into())),
                };
                let modifications =
                    vec![changed(from, seen_from, amount(had) - 1), changed(to, seen_to, amount(has) + 1)];
                let id = (caller * 20 + n) as u8;
                if transactions.prepare(id, modifications).await == xa::OK {
                    assert_eq!(transactions.commit(id).await, xa::OK);
                    committed += 1;
                }
            }
            committed
        });
    }
    let mut committed = 0;
    while let Some(done) = transferring.join_next().await {
        committed += done.unwrap();
    }
    assert!(committed > 0);
    let mut sum = 0;
    for account in ACCOUNTS {
        sum += amount(looking.value(account).await.unwrap());
    }
    assert_eq!(sum, 300, "after {committed} transfers");
}

#[tokio::test]
async fn local_cache_has_transactions_and_batches_are_transactions() {
    let server = RunningServer::start("local-transactions").await;
    let mut transactions = TransactionClient::connect(&server).await;
    transactions.0.create_with("c", r#"{"local-cache": {"transaction": {"mode": "BATCH"}}}"#).await;
    assert_eq!(transactions.put("a", "1").await, Status::Success);
    let seen = transactions.read("a").await.0;
    assert_eq!(transactions.prepare(1, vec![put("a", "2", seen), put("b", "2", Seen::Absent)]).await, xa::OK);
    assert_eq!(transactions.value("b").await, None);
    assert_eq!(transactions.put("a", "locked").await, Status::TimedOut);
    assert_eq!(transactions.commit(1).await, xa::OK);
    assert_eq!(transactions.value("a").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(transactions.value("b").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(transactions.prepare(2, vec![put("a", "3", seen)]).await, xa::ROLLBACK);
    assert_eq!(transactions.put("a", "after").await, Status::Success);
}
