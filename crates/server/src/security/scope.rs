//! The caches on which an operation acts. Users may have permissions of their own in single caches, so the name in a request's
//! header decides only for operations on that cache.

use consort_hotrod::Opcode;

/// The part of a server on which an operation acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActsOn {
    /// The cache that the header names.
    HeaderCache,
    /// The caches of a transaction, a stream or an iteration, or those of a task, whatever the header names.
    OwnCaches,
    /// No cache of clients.
    Server,
}

impl ActsOn {
    pub(crate) const fn of(opcode: Opcode) -> Self {
        match opcode {
            Opcode::Put
            | Opcode::Get
            | Opcode::PutIfAbsent
            | Opcode::Replace
            | Opcode::ReplaceIfUnmodified
            | Opcode::Remove
            | Opcode::RemoveIfUnmodified
            | Opcode::ContainsKey
            | Opcode::GetWithVersion
            | Opcode::GetWithMetadata
            | Opcode::Clear
            | Opcode::Stats
            | Opcode::BulkGet
            | Opcode::BulkGetKeys
            | Opcode::Size
            | Opcode::Query
            | Opcode::PutAll
            | Opcode::GetAll
            | Opcode::IterationStart
            | Opcode::AddClientListener
            | Opcode::RemoveClientListener
            | Opcode::AddBloomListener
            | Opcode::UpdateBloomFilter
            | Opcode::GetStream
            | Opcode::PutStream
            | Opcode::StartGetStream
            | Opcode::StartPutStream
            | Opcode::PrepareTx
            | Opcode::PrepareTx2
            | Opcode::MultimapGet
            | Opcode::MultimapGetWithMetadata
            | Opcode::MultimapPut
            | Opcode::MultimapRemoveKey
            | Opcode::MultimapRemoveEntry
            | Opcode::MultimapSize
            | Opcode::MultimapContainsEntry
            | Opcode::MultimapContainsKey
            | Opcode::MultimapContainsValue => Self::HeaderCache,
            Opcode::NextGetStream
            | Opcode::EndGetStream
            | Opcode::NextPutStream
            | Opcode::EndPutStream
            | Opcode::IterationNext
            | Opcode::IterationEnd
            | Opcode::CommitTx
            | Opcode::RollbackTx
            | Opcode::ForgetTx => Self::OwnCaches,
            Opcode::Ping
            | Opcode::AuthMechList
            | Opcode::Auth
            | Opcode::Exec
            // It returns the transactions of all caches.
            | Opcode::FetchTxRecovery
            | Opcode::CounterCreate
            | Opcode::CounterGetConfiguration
            | Opcode::CounterIsDefined
            | Opcode::CounterAddAndGet
            | Opcode::CounterReset
            | Opcode::CounterGet
            | Opcode::CounterCas
            | Opcode::CounterAddListener
            | Opcode::CounterRemoveListener
            | Opcode::CounterRemove
            | Opcode::CounterGetNames
            | Opcode::CounterGetAndSet => Self::Server,
        }
    }

    /// The scope of the permission before the caches are known.
    pub(crate) const fn scope(self) -> Scope<'static> {
        match self {
            Self::HeaderCache | Self::OwnCaches => Scope::AnyCache,
            Self::Server => Scope::Global,
        }
    }
}

/// Where a user needs a permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope<'c> {
    /// In this cache. The name is the cache's own, never an alias.
    Cache(&'c str),
    /// In at least one cache. The caches are not known yet, and each one is checked before the operation acts on it.
    AnyCache,
    /// In general: permissions in single caches do not count.
    Global,
}
