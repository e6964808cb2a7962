//! Optimistic updates: a caller reads an entry, decides on a change, and writes it on the condition that the entry has
//! not changed meanwhile; else it decides again.

use std::ops::ControlFlow;

/// Maximum number of attempts of one update. Each failed attempt means that another writer has succeeded, so this many
/// writers of one key may compete without a failure.
pub const ATTEMPTS: u32 = 10_000;

/// The error of an update: other callers changed the key in each attempt. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the key was changed by other callers in each of {attempts} attempts")]
pub struct Contention {
    /// Number of attempts.
    pub attempts: u32,
}

/// Repeats an attempt until it ends with [`ControlFlow::Break`], [`ATTEMPTS`] times at most. An attempt gets the entry
/// as the caller knows it. If the entry has changed meanwhile, the attempt returns it with [`ControlFlow::Continue`].
///
/// # Errors
///
/// The error of an attempt, or [`Contention`].
pub async fn retry<S, T, E, A>(mut entry: S, mut attempt: impl FnMut(S) -> A) -> Result<T, E>
where
    A: Future<Output = Result<ControlFlow<T, S>, E>>,
    E: From<Contention>,
{
    for _ in 0..ATTEMPTS {
        match attempt(entry).await? {
            ControlFlow::Break(result) => return Ok(result),
            ControlFlow::Continue(current) => entry = current,
        }
    }
    Err(Contention { attempts: ATTEMPTS }.into())
}

/// Sets a key to the result of `change` for its value; `None` removes the key, or leaves it absent. Returns the new
/// value.
///
/// `value` returns the value of an entry. `write` gets the entry and the new value. It writes the value on the condition
/// that the entry is unchanged and returns it, or returns the current entry.
///
/// # Errors
///
/// The error of a write, or [`Contention`].
pub async fn compute<V, S, E, W>(
    entry: Option<S>,
    value: impl Fn(&S) -> &V,
    mut change: impl FnMut(Option<&V>) -> Option<V>,
    mut write: impl FnMut(Option<S>, Option<V>) -> W,
) -> Result<Option<V>, E>
where
    W: Future<Output = Result<ControlFlow<Option<V>, Option<S>>, E>>,
    E: From<Contention>,
{
    retry(entry, |entry| {
        let new = change(entry.as_ref().map(&value));
        let is_noop = entry.is_none() && new.is_none();
        let written = (!is_noop).then(|| write(entry, new));
        async move {
            match written {
                Some(written) => written.await,
                None => Ok(ControlFlow::Break(None)),
            }
        }
    })
    .await
}
