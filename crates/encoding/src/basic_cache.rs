//! The operations that embedded caches and the client have in common.

use std::error::Error;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::optimistic_update::{self, Contention};
use crate::{Encode, EncodeBorrowed, Lifetime};

/// A value with the version and the lifetime of its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionedValue<V, N> {
    /// The value.
    pub value: V,
    /// The version of its write.
    pub version: N,
    /// Its lifespan and max-idle time.
    pub lifetime: Lifetime,
}

/// The result of [`BasicCache::compare_exchange`]: success, or the current entry.
pub type Exchange<V, N> = Result<(), Option<VersionedValue<V, N>>>;

/// The operations that a handle of an embedded cache and one of the client have in common, for programs that work with
/// either. Infinispan's interface of this name is the model.
///
/// `K` is the form in which a program passes keys: a cache of `String`s is a `BasicCache<String, V>` and also a
/// `BasicCache<str, V>`. Values may be passed in any borrowed form that their encoding supports.
///
/// ```
/// use consort_encoding::BasicCache;
///
/// async fn restock<C: BasicCache<str, u32>>(stock: &C) -> Result<(), C::Error> {
///     stock.put("apples", &3).await?;
///     stock.merge("apples", &2, |old, new| Some(old + new)).await?;
///     assert_eq!(stock.get("apples").await?, Some(5));
///     Ok(())
/// }
/// ```
///
/// A handle has methods of its own with the same names. They do the same, and take keys in any borrowed form and several
/// keys as any iterator. The documentation of the handle says more about its errors and guarantees. Futures of this trait
/// can be sent to other threads; therefore its operations on several keys take slices.
///
/// # Errors
///
/// Operations return the errors of the handle's methods of the same name. Operations on several keys return the error
/// of one key; the handle's own methods also return its index.
pub trait BasicCache<K: Sync + ?Sized, V: Send + Sync>: Clone + Send + Sync {
    /// The error of an operation.
    type Error: Error + From<Contention> + Send + Sync + 'static;

    /// The version of an entry. Different writes of a key have different versions.
    type Version: Copy + Eq + Debug + Send + Sync + 'static;

    /// The encoding of values.
    type Values: Encode<V>;

    /// Returns the cache's name.
    fn name(&self) -> &str;

    /// Returns a handle whose operations have this timeout.
    #[must_use]
    fn with_timeout(&self, timeout: Duration) -> Self;

    /// Returns a handle whose writes set this lifetime.
    #[must_use]
    fn with_lifetime(&self, lifetime: Lifetime) -> Self;

    /// Returns a key's value.
    fn get(&self, key: &K) -> impl Future<Output = Result<Option<V>, Self::Error>> + Send;

    /// Returns a key's value with its version.
    fn get_with_version(
        &self,
        key: &K,
    ) -> impl Future<Output = Result<Option<VersionedValue<V, Self::Version>>, Self::Error>> + Send;

    /// Sets a key's value.
    fn put<W>(&self, key: &K, value: &W) -> impl Future<Output = Result<(), Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Sets a key's value with a lifetime.
    fn put_with<W>(
        &self,
        key: &K,
        value: &W,
        lifetime: Lifetime,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Sets a key's value and returns the previous one.
    fn swap<W>(&self, key: &K, value: &W) -> impl Future<Output = Result<Option<V>, Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Sets a key's value if it has none. Returns whether it had none.
    fn put_if_absent<W>(&self, key: &K, value: &W) -> impl Future<Output = Result<bool, Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Sets a key's value if it has one. Returns whether it had.
    fn replace<W>(&self, key: &K, value: &W) -> impl Future<Output = Result<bool, Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Replaces a key's value if it is the expected one, compared by bytes. Returns whether it was.
    fn replace_if_value<W>(
        &self,
        key: &K,
        expected: &W,
        value: &W,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Replaces a key's value if its entry has this version. Returns whether it had.
    fn replace_if_version<W>(
        &self,
        key: &K,
        version: Self::Version,
        value: &W,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Removes a key. Returns whether it had a value.
    fn remove(&self, key: &K) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Removes a key and returns its value.
    fn take(&self, key: &K) -> impl Future<Output = Result<Option<V>, Self::Error>> + Send;

    /// Removes a key if its value is the expected one, compared by bytes. Returns whether it was.
    fn remove_if_value<W>(
        &self,
        key: &K,
        expected: &W,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>;

    /// Removes a key if its entry has this version. Returns whether it had.
    fn remove_if_version(
        &self,
        key: &K,
        version: Self::Version,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Returns the number of entries.
    fn size(&self) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Removes all entries.
    fn clear(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Returns whether a key has a value.
    fn contains(&self, key: &K) -> impl Future<Output = Result<bool, Self::Error>> + Send {
        async move { Ok(self.get(key).await?.is_some()) }
    }

    /// Returns whether there are no entries.
    fn is_empty(&self) -> impl Future<Output = Result<bool, Self::Error>> + Send {
        async move { Ok(self.size().await? == 0) }
    }

    /// Sets a key to a value, or removes it for `None`, if its entry has the expected version; `None` expects that the
    /// key is absent. If it is another one, nothing is changed and the current entry is returned.
    fn compare_exchange(
        &self,
        key: &K,
        expected: Option<Self::Version>,
        new: Option<&V>,
    ) -> impl Future<Output = Result<Exchange<V, Self::Version>, Self::Error>> + Send {
        async move {
            let is_done = match (expected, new) {
                (None, None) => false,
                (None, Some(value)) => self.put_if_absent(key, value).await?,
                (Some(version), Some(value)) => self.replace_if_version(key, version, value).await?,
                (Some(version), None) => self.remove_if_version(key, version).await?,
            };
            if is_done {
                return Ok(Ok(()));
            }
            let current = self.get_with_version(key).await?;
            let is_absent = expected.is_none() && new.is_none() && current.is_none();
            Ok(if is_absent { Ok(()) } else { Err(current) })
        }
    }

    /// Sets a key to the result of `change` for its value; `None` removes the key, or leaves it absent. Returns the
    /// new value. `change` is called again if other callers have changed the key meanwhile, so it should have no
    /// effects of its own.
    fn compute(
        &self,
        key: &K,
        change: impl FnMut(Option<&V>) -> Option<V> + Send,
    ) -> impl Future<Output = Result<Option<V>, Self::Error>> + Send {
        async move {
            let entry = self.get_with_version(key).await?;
            let write = move |entry: Option<VersionedValue<V, Self::Version>>, new: Option<V>| async move {
                let expected = entry.map(|entry| entry.version);
                Ok(match self.compare_exchange(key, expected, new.as_ref()).await? {
                    Ok(()) => ControlFlow::Break(new),
                    Err(current) => ControlFlow::Continue(current),
                })
            };
            optimistic_update::compute(entry, |entry| &entry.value, change, write).await
        }
    }

    /// Returns a key's value. If it has none, sets it to the result of `make` and returns that.
    fn compute_if_absent(
        &self,
        key: &K,
        make: impl FnOnce() -> V + Send,
    ) -> impl Future<Output = Result<V, Self::Error>> + Send {
        async move {
            if let Some(present) = self.get(key).await? {
                return Ok(present);
            }
            let made = make();
            let new = &made;
            let attempt = move |()| async move {
                if self.put_if_absent(key, new).await? {
                    return Ok(ControlFlow::Break(None));
                }
                // Another caller was faster, and the key may be absent again.
                Ok(match self.get(key).await? {
                    Some(present) => ControlFlow::Break(Some(present)),
                    None => ControlFlow::Continue(()),
                })
            };
            let present: Result<Option<V>, Self::Error> = optimistic_update::retry((), attempt).await;
            Ok(present?.unwrap_or(made))
        }
    }

    /// Sets a key that has a value to the result of `change`, as [`BasicCache::compute`]; `None` removes the key.
    fn compute_if_present(
        &self,
        key: &K,
        mut change: impl FnMut(&V) -> Option<V> + Send,
    ) -> impl Future<Output = Result<Option<V>, Self::Error>> + Send {
        self.compute(key, move |value| value.and_then(&mut change))
    }

    /// Sets a key to this value if it has none, else to the result of `combine` for its value and this one; `None`
    /// removes the key. Returns the new value. `combine` is called again as in [`BasicCache::compute`].
    fn merge(
        &self,
        key: &K,
        value: &V,
        mut combine: impl FnMut(&V, &V) -> Option<V> + Send,
    ) -> impl Future<Output = Result<Option<V>, Self::Error>> + Send
    where
        V: Clone,
    {
        self.compute(key, move |old| match old {
            Some(old) => combine(old, value),
            None => Some(value.clone()),
        })
    }

    /// Returns the values of these keys, in their order.
    fn get_all(&self, keys: &[&K]) -> impl Future<Output = Result<Vec<Option<V>>, Self::Error>> + Send {
        async move {
            let mut values = Vec::new();
            for key in keys {
                values.push(self.get(key).await?);
            }
            Ok(values)
        }
    }

    /// Sets these keys to these values. Each key is written separately: readers may see some of the values before the
    /// others.
    fn put_all<W>(&self, entries: &[(&K, &W)]) -> impl Future<Output = Result<(), Self::Error>> + Send
    where
        W: Sync + ?Sized,
        Self::Values: EncodeBorrowed<V, W>,
    {
        async move {
            for (key, value) in entries {
                self.put(key, value).await?;
            }
            Ok(())
        }
    }

    /// Removes these keys. Returns which of them had a value, in their order.
    fn remove_all(&self, keys: &[&K]) -> impl Future<Output = Result<Vec<bool>, Self::Error>> + Send {
        async move {
            let mut were_present = Vec::new();
            for key in keys {
                were_present.push(self.remove(key).await?);
            }
            Ok(were_present)
        }
    }
}

/// Implements [`BasicCache`] for a handle by its own methods, which have the same names, and adds further items.
#[doc(hidden)]
#[macro_export]
macro_rules! delegate_basic_cache {
    ($handle:ident, $version:ty, $error:ty { $($further:tt)* }) => {
        impl<Q, K, V, KE, VE> $crate::BasicCache<Q, V> for $handle<K, V, KE, VE>
        where
            Q: Sync + ?Sized,
            V: Send + Sync,
            KE: $crate::EncodeBorrowed<K, Q>,
            VE: $crate::Encode<V> + $crate::Decode<V>,
        {
            type Error = $error;
            type Version = $version;
            type Values = VE;

            fn name(&self) -> &str {
                $handle::name(self)
            }

            fn with_timeout(&self, timeout: ::std::time::Duration) -> Self {
                $handle::with_timeout(self, timeout)
            }

            fn with_lifetime(&self, lifetime: $crate::Lifetime) -> Self {
                $handle::with_lifetime(self, lifetime)
            }

            async fn get(&self, key: &Q) -> Result<Option<V>, Self::Error> {
                $handle::get(self, key).await
            }

            async fn get_with_version(
                &self,
                key: &Q,
            ) -> Result<Option<$crate::VersionedValue<V, Self::Version>>, Self::Error> {
                Ok($handle::get_with_metadata(self, key).await?.map(|entry| entry.into()))
            }

            async fn put<W>(&self, key: &Q, value: &W) -> Result<(), Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::put(self, key, value).await
            }

            async fn put_with<W>(
                &self,
                key: &Q,
                value: &W,
                lifetime: $crate::Lifetime,
            ) -> Result<(), Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::put_with(self, key, value, lifetime).await
            }

            async fn swap<W>(&self, key: &Q, value: &W) -> Result<Option<V>, Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::swap(self, key, value).await
            }

            async fn put_if_absent<W>(&self, key: &Q, value: &W) -> Result<bool, Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::put_if_absent(self, key, value).await
            }

            async fn replace<W>(&self, key: &Q, value: &W) -> Result<bool, Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::replace(self, key, value).await
            }

            async fn replace_if_value<W>(
                &self,
                key: &Q,
                expected: &W,
                value: &W,
            ) -> Result<bool, Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::replace_if_value(self, key, expected, value).await
            }

            async fn replace_if_version<W>(
                &self,
                key: &Q,
                version: Self::Version,
                value: &W,
            ) -> Result<bool, Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::replace_if_version(self, key, version, value).await
            }

            async fn remove(&self, key: &Q) -> Result<bool, Self::Error> {
                $handle::remove(self, key).await
            }

            async fn take(&self, key: &Q) -> Result<Option<V>, Self::Error> {
                $handle::take(self, key).await
            }

            async fn remove_if_value<W>(&self, key: &Q, expected: &W) -> Result<bool, Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                $handle::remove_if_value(self, key, expected).await
            }

            async fn remove_if_version(
                &self,
                key: &Q,
                version: Self::Version,
            ) -> Result<bool, Self::Error> {
                $handle::remove_if_version(self, key, version).await
            }

            async fn size(&self) -> Result<u64, Self::Error> {
                $handle::size(self).await
            }

            async fn clear(&self) -> Result<(), Self::Error> {
                $handle::clear(self).await
            }

            async fn contains(&self, key: &Q) -> Result<bool, Self::Error> {
                $handle::contains(self, key).await
            }

            async fn is_empty(&self) -> Result<bool, Self::Error> {
                $handle::is_empty(self).await
            }

            async fn get_all(&self, keys: &[&Q]) -> Result<Vec<Option<V>>, Self::Error> {
                Ok($handle::get_all(self, keys.iter().copied()).await?)
            }

            async fn put_all<W>(&self, entries: &[(&Q, &W)]) -> Result<(), Self::Error>
            where
                W: Sync + ?Sized,
                VE: $crate::EncodeBorrowed<V, W>,
            {
                Ok($handle::put_all(self, entries.iter().copied()).await?)
            }

            async fn remove_all(&self, keys: &[&Q]) -> Result<Vec<bool>, Self::Error> {
                Ok($handle::remove_all(self, keys.iter().copied()).await?)
            }

            $($further)*
        }
    };
}
