//! Transactions of a program, on the typed handles of its caches.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use consort_encoding::{Decode, EncodeBorrowed};
use consort_grid::{Change, Lifetime};
use tokio::sync::Mutex;

use super::cache_storage::CacheStorage;
use super::error::TransactionError;
use super::manager::Transactions;
use super::options::TransactionOptions;
use super::session::Session;
use crate::cache::Cache;
use crate::error::CacheError;

/// The result of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Committed {
    is_complete: bool,
}

impl Committed {
    /// Whether all writes are made. If not, the decision stands: this member or another one makes the rest. Until then, the keys
    /// are locked, and readers may see their previous values.
    pub const fn is_complete(self) -> bool {
        self.is_complete
    }
}

struct Shared {
    session: Option<Mutex<Session<CacheStorage>>>,
    transactions: Arc<Transactions>,
}

impl Shared {
    fn session(&self) -> Result<&Mutex<Session<CacheStorage>>, TransactionError> {
        self.session.as_ref().ok_or(TransactionError::Ended)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(mut session) = self.session.take().map(Mutex::into_inner) else { return };
        // Without a runtime, its timeout rolls it back.
        if session.has_begun()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { session.roll_back().await });
        }
    }
}

/// A cache within a transaction. [`Transaction::with_cache`] adds further caches to the same transaction.
///
/// Reads return the transaction's own writes, and a second read of a key returns the same value. Other callers see no write before
/// the commit. Dropping all handles of a transaction rolls it back.
///
/// # Isolation
///
/// Committed transactions are serializable, together with single writes of transactional caches: there is an order of all of them in
/// which each has read the values that it has read. Keys that are only read are validated as well, so there is no lost update and
/// no write skew. This holds for keys; a transaction has no queries and iterations.
///
/// Before its commit, a transaction may have read a part of another one's commit; then its own commit fails. So check values that
/// belong together only once the commit has succeeded, or lock their keys first. The same holds for readers without a
/// transaction: they may see some keys before and others after a commit.
///
/// # Errors
///
/// Each error of a method ends the transaction and rolls it back, except [`TransactionError::Unknown`].
pub struct Transaction<K, V, KE, VE> {
    shared: Arc<Shared>,
    cache: Cache<K, V, KE, VE>,
}

impl<K, V, KE, VE> fmt::Debug for Transaction<K, V, KE, VE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction in {:?}", self.cache)
    }
}

impl<K, V, KE: Clone, VE: Clone> Cache<K, V, KE, VE> {
    /// Begins a transaction, with optimistic locking unless [`Transaction::with_options`] says otherwise.
    ///
    /// # Errors
    ///
    /// [`TransactionError::NotTransactional`] if the cache was opened without transactions
    /// ([`CacheConfig::is_transactional`](crate::CacheConfig::is_transactional)).
    pub fn transaction(&self) -> Result<Transaction<K, V, KE, VE>, TransactionError> {
        let transactions = transactions_of(self)?;
        let session = Session::new(transactions.protocol.clone(), TransactionOptions::default());
        let shared = Shared { session: Some(Mutex::new(session)), transactions };
        Ok(Transaction { shared: Arc::new(shared), cache: self.clone() })
    }
}

fn transactions_of<K, V, KE, VE>(cache: &Cache<K, V, KE, VE>) -> Result<Arc<Transactions>, TransactionError> {
    let locked_writes = cache.encoded.locked_writes.clone();
    let transactions = locked_writes.and_then(|locked| locked.as_any().downcast().ok());
    transactions.ok_or_else(|| TransactionError::NotTransactional(cache.name().into()))
}

impl<K, V, KE, VE> Transaction<K, V, KE, VE> {
    /// Sets the options, for the keys that the transaction reads and writes from now on.
    ///
    /// # Errors
    ///
    /// [`TransactionError::Ended`].
    pub async fn with_options(self, options: TransactionOptions) -> Result<Self, TransactionError> {
        self.shared.session()?.lock().await.set_options(options);
        Ok(self)
    }

    /// Returns a handle of another cache in the same transaction.
    ///
    /// # Errors
    ///
    /// [`TransactionError::NotTransactional`] or [`TransactionError::OtherManager`]. The transaction goes on.
    pub fn with_cache<L, W, LE: Clone, WE: Clone>(
        &self,
        cache: &Cache<L, W, LE, WE>,
    ) -> Result<Transaction<L, W, LE, WE>, TransactionError> {
        if !Arc::ptr_eq(&transactions_of(cache)?, &self.shared.transactions) {
            return Err(TransactionError::OtherManager(cache.name().into()));
        }
        Ok(Transaction { shared: self.shared.clone(), cache: cache.clone() })
    }

    fn place<Q: ?Sized>(&self, key: &Q) -> Result<(Arc<str>, Bytes), TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        Ok((self.cache.config().name.clone(), self.cache.key(key)?.into_bytes()))
    }

    async fn read<Q: ?Sized>(&self, key: &Q) -> Result<Option<Bytes>, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let place = self.place(key)?;
        self.shared.session()?.lock().await.get(&place).await
    }

    async fn change<Q: ?Sized>(&self, key: &Q, change: Change) -> Result<(), TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let place = self.place(key)?;
        self.shared.session()?.lock().await.change(&place, change).await
    }

    /// Changes a key if its value is as `is_as_expected` says. The key is validated at the commit.
    async fn change_if<Q: ?Sized>(
        &self,
        key: &Q,
        is_as_expected: impl FnOnce(Option<&Bytes>) -> bool,
        change: Change,
    ) -> Result<bool, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let place = self.place(key)?;
        let mut session = self.shared.session()?.lock().await;
        let is_expected = is_as_expected(session.get(&place).await?.as_ref());
        if is_expected {
            session.change(&place, change).await?;
        }
        Ok(is_expected)
    }

    fn putting<W: ?Sized>(&self, value: &W, lifetime: Lifetime) -> Result<Change, TransactionError>
    where
        VE: EncodeBorrowed<V, W>,
    {
        let value = self.cache.codec.value(value).map_err(CacheError::from)?.into_bytes();
        Ok(Change::Put { value, lifetime })
    }

    /// Returns a key's value.
    pub async fn get<Q: ?Sized>(&self, key: &Q) -> Result<Option<V>, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        Ok(self.read(key).await?.map(|value| self.cache.decoded(value)).transpose()?)
    }

    /// Locks a key and returns its value, so that no other writer changes the key before the end of the transaction.
    pub async fn get_locked<Q: ?Sized>(&self, key: &Q) -> Result<Option<V>, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        self.lock(key).await?;
        self.get(key).await
    }

    /// Locks a key now, with optimistic locking, too. A key that was read before must be unchanged.
    pub async fn lock<Q: ?Sized>(&self, key: &Q) -> Result<(), TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        let place = self.place(key)?;
        self.shared.session()?.lock().await.lock(&place).await
    }

    /// Whether a key has a value.
    pub async fn contains<Q: ?Sized>(&self, key: &Q) -> Result<bool, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        Ok(self.read(key).await?.is_some())
    }

    /// Sets a key's value, whatever it had: without a read, the key is not validated.
    pub async fn put<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<(), TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        self.put_with(key, value, self.cache.options().lifetime).await
    }

    /// Sets a key's value with a lifetime, which begins at the commit.
    pub async fn put_with<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        value: &W,
        lifetime: Lifetime,
    ) -> Result<(), TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value, lifetime)?;
        self.change(key, change).await
    }

    /// Sets a key's value and returns the previous one.
    pub async fn swap<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<Option<V>, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W> + Decode<V>,
    {
        let previous = self.get(key).await?;
        self.put(key, value).await?;
        Ok(previous)
    }

    /// Sets a key's value if it has none. Returns whether it had none.
    pub async fn put_if_absent<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        value: &W,
    ) -> Result<bool, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value, self.cache.options().lifetime)?;
        self.change_if(key, |value| value.is_none(), change).await
    }

    /// Sets a key's value if it has one. Returns whether it had.
    pub async fn replace<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let change = self.putting(value, self.cache.options().lifetime)?;
        self.change_if(key, |value| value.is_some(), change).await
    }

    /// Replaces a key's value if it is the expected one, compared by bytes. Returns whether it was.
    pub async fn replace_if_value<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        expected: &W,
        value: &W,
    ) -> Result<bool, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let expected = self.cache.codec.value(expected).map_err(CacheError::from)?.into_bytes();
        let change = self.putting(value, self.cache.options().lifetime)?;
        self.change_if(key, |value| value == Some(&expected), change).await
    }

    /// Removes a key. Returns whether it had a value, which is validated at the commit.
    pub async fn remove<Q: ?Sized>(&self, key: &Q) -> Result<bool, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
    {
        self.change_if(key, |value| value.is_some(), Change::Remove).await
    }

    /// Removes a key and returns its value.
    pub async fn take<Q: ?Sized>(&self, key: &Q) -> Result<Option<V>, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: Decode<V>,
    {
        let previous = self.get(key).await?;
        if previous.is_some() {
            self.change(key, Change::Remove).await?;
        }
        Ok(previous)
    }

    /// Removes a key if its value is the expected one, compared by bytes. Returns whether it was.
    pub async fn remove_if_value<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        expected: &W,
    ) -> Result<bool, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, W>,
    {
        let expected = self.cache.codec.value(expected).map_err(CacheError::from)?.into_bytes();
        self.change_if(key, |value| value == Some(&expected), Change::Remove).await
    }

    /// Sets a key to the result of `change` for its value; `None` removes the key. Returns the new value.
    pub async fn compute<Q: ?Sized>(
        &self,
        key: &Q,
        change: impl FnOnce(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>, TransactionError>
    where
        KE: EncodeBorrowed<K, Q>,
        VE: EncodeBorrowed<V, V> + Decode<V>,
    {
        let new = change(self.get(key).await?.as_ref());
        match &new {
            Some(value) => self.put(key, value).await?,
            None => drop(self.remove(key).await?),
        }
        Ok(new)
    }

    /// Makes all writes of all caches of the transaction, or none. The commit goes on if its future is dropped.
    ///
    /// # Errors
    ///
    /// After [`TransactionError::Unknown`] all writes will be made, or none; after other errors nothing was changed.
    pub async fn commit(self) -> Result<Committed, TransactionError> {
        let shared = self.shared;
        Transactions::run_detached(async move {
            let committed = shared.session()?.lock().await.commit().await?;
            let is_complete = committed.is_none();
            if let Some(unfinished) = committed {
                shared.transactions.finish_later(unfinished);
            }
            Ok(Committed { is_complete })
        })
        .await
    }

    /// Ends the transaction without a change.
    pub async fn rollback(self) {
        let shared = self.shared;
        Transactions::run_detached(async move {
            if let Ok(session) = shared.session() {
                session.lock().await.roll_back().await;
            }
        })
        .await;
    }
}
