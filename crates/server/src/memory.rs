//! The bytes that all clients of a server together make it hold. Each kind of them has a budget, and all budgets are within
//! one total, which can be part of a budget of the whole process ([`crate::ServerBuilder::memory`]).
//!
//! A limit per connection or per request does not bound memory, because clients choose how many of them there are.

use consort_memory::{Budget, Usage};

use crate::bounds::{CLIENTS_BYTES_MAX, STRANGERS_BYTES_MAX};

/// The budgets of a server.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// The budget of the process that the clients' budget is part of.
    process: Option<Budget>,
    /// All that follow.
    clients: Budget,
    /// Values that clients write in pieces, until they are in a cache.
    pub(crate) streams: Budget,
    /// Connections of which it is not known yet whose they are.
    pub(crate) strangers: Budget,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(None, Budget::new("clients", CLIENTS_BYTES_MAX))
    }
}

/// Three quarters: a kind of bytes that takes all it may leaves room for the others.
const fn most_of(bytes: u64) -> u64 {
    bytes / 4 * 3
}

impl Memory {
    /// Budgets within that of the process. Clients get a quarter of it, or [`CLIENTS_BYTES_MAX`] if that is more, but never
    /// more than a half.
    pub(crate) fn within(process: Budget) -> Self {
        let all = process.limit();
        let clients = process.child("clients", CLIENTS_BYTES_MAX.max(all / 4).min(all / 2));
        Self::of(Some(process), clients)
    }

    fn of(process: Option<Budget>, clients: Budget) -> Self {
        let streams = clients.child("streams", most_of(clients.limit()));
        let strangers = clients.child("unidentified", STRANGERS_BYTES_MAX.min(clients.limit() / 2));
        Self { process, clients, streams, strangers }
    }

    /// The figures of all budgets, the totals first.
    pub(crate) fn usages(&self) -> Vec<Usage> {
        let own = [&self.clients, &self.streams, &self.strangers];
        self.process.iter().chain(own).map(Budget::usage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_a_share_of_the_process_and_count_in_it() {
        const MIB: u64 = 1024 * 1024;
        for (process, clients) in [(64, 32), (400, 200), (600, 256), (4_096, 1_024)] {
            let process = Budget::new("process", process * MIB);
            let memory = Memory::within(process.clone());
            assert_eq!(memory.clients.limit(), clients * MIB);
            let held = memory.streams.try_reserve(10).unwrap();
            assert_eq!((process.used(), memory.clients.used()), (10, 10));
            drop(held);
        }
        let names: Vec<&str> = Memory::default().usages().iter().map(|usage| usage.name).collect();
        assert_eq!(names, ["clients", "streams", "unidentified"]);
    }
}
