//! Ids of transactions, and the holders of locks.

use bytes::Bytes;

use super::record::Scope;
use super::storage::Space;

/// A transaction's id: the key of its record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Id {
    pub(crate) scope: Scope,
    pub(crate) key: Bytes,
}

impl Id {
    pub(crate) const fn shared(key: Bytes) -> Self {
        Self { scope: Scope::Shared, key }
    }

    pub(super) const fn space(&self) -> Space<'static> {
        Space::Records(self.scope)
    }
}

/// A lock of a transaction begins with the scope of its record, another one with [`SINGLE`].
const SHARED: u8 = b'x';
const LOCAL: u8 = b'l';
pub(super) const SINGLE: u8 = b'w';

pub(crate) fn holder(id: &Id) -> Bytes {
    let scope = match id.scope {
        Scope::Shared => SHARED,
        Scope::Local => LOCAL,
    };
    [&[scope], &id.key[..]].concat().into()
}

/// The transaction that holds a lock; `None` for a single write.
pub(crate) fn transaction_of(holder: &Bytes) -> Option<Id> {
    let scope = match *holder.first()? {
        SHARED => Scope::Shared,
        LOCAL => Scope::Local,
        _ => return None,
    };
    Some(Id { scope, key: holder.slice(1..) })
}
