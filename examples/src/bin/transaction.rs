//! Transactions of an embedded cache: a transfer between two accounts and its entry in a journal happen together, or not at all.
//!
//! `cargo run -p consort-examples --bin transaction`

use consort::CacheManager;
use consort::cache::{Cache, CacheConfig, TransactionError};
use consort_examples::{Failure, in_process};

type Accounts = Cache<String, i64>;

async fn transfer(
    accounts: &Accounts,
    journal: &Cache<u32, String>,
    entry: u32,
    (from, to, amount): (&str, &str, i64),
) -> Result<bool, TransactionError> {
    loop {
        let transaction = accounts.transaction()?;
        let of_journal = transaction.with_cache(journal)?;
        let balance = transaction.get(from).await?.unwrap_or(0);
        if balance < amount {
            // Dropping the transaction rolls it back.
            return Ok(false);
        }
        transaction.put(from, &(balance - amount)).await?;
        transaction.compute(to, |balance| Some(balance.copied().unwrap_or(0) + amount)).await?;
        of_journal.put(&entry, &*format!("{from} pays {to} {amount}")).await?;
        match transaction.commit().await {
            Ok(_) => return Ok(true),
            // Another member has changed an account meanwhile.
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let config = |name| CacheConfig { is_transactional: true, ..CacheConfig::new(name) };
    let mut members = Vec::new();
    let mut caches: Vec<(Accounts, Cache<u32, String>)> = Vec::new();
    for name in ["A", "B"] {
        let manager = CacheManager::from_channel(in_process(name)?).connect("bank").await?;
        let accounts = manager.open(config("accounts")).cache().await?;
        caches.push((accounts, manager.open(config("journal")).cache().await?));
        members.push(manager);
    }
    let [(of_a, journal_a), (of_b, journal_b)] = &caches[..] else { return Ok(()) };
    of_a.put("ada", &100).await?;

    // Both members transfer at the same time, and neither overwrites the other's balance.
    let (one, other) = tokio::join!(
        transfer(of_a, journal_a, 1, ("ada", "bob", 30)),
        transfer(of_b, journal_b, 2, ("ada", "bob", 20)),
    );
    println!("transfers: {} and {}", one?, other?);
    println!("ada {:?}, bob {:?}", of_a.get("ada").await?, of_b.get("bob").await?);
    println!("more than there is: {}", transfer(of_a, journal_a, 3, ("ada", "bob", 60)).await?);
    println!("entries in the journal: {}", journal_b.size().await?);
    for member in members {
        member.close().await?;
    }
    Ok(())
}
