//! The bytes that all clients make a server hold: a budget for each kind, within one total ([`crate::ServerBuilder::memory`]).
//! Limits per connection or request do not bound memory, because clients choose their number.

pub(crate) mod remote_values;
pub(crate) mod responses;
pub(crate) mod stream_budget;

use std::time::Duration;

use consort_memory::{Budget, Exceeded, Reservation, Usage};
use tokio::time::timeout;

use crate::limits::{
    CLIENTS_BYTES_MAX, PREAUTH_TOTAL_BYTES_MAX, RESERVE_TIME_MAX, RESPONSE_BYTES_MAX, TRANSFER_TIME_MIN,
};

/// Each size class of responses has its own budget, so that large ones leave capacity for small ones. A response that grows waits
/// for capacity in the next class, while it holds at most the smaller one's bytes. No response of the largest class waits for
/// another one, so that no circle forms.
#[derive(Clone, Debug)]
pub(crate) struct ResponseSize {
    pub(crate) bytes: u64,
    pub(crate) budget: Budget,
}

impl ResponseSize {
    /// Servers with little memory have smaller responses.
    pub(crate) fn reserved(&self) -> u64 {
        self.bytes.min(self.budget.limit())
    }
}

/// Each class has this many sixths of the bytes of all responses.
const RESPONSE_SIZES: [(&str, u64, u64); 4] = [
    ("responses_to_64_kib", 64 * 1024, 1),
    ("responses_to_1_mib", 1024 * 1024, 1),
    ("responses_to_8_mib", 8 * 1024 * 1024, 1),
    ("responses_over_8_mib", RESPONSE_BYTES_MAX, 3),
];

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// The parent of the clients' budget.
    pub(crate) process: Option<Budget>,
    /// The parent of all budgets that follow.
    pub(crate) clients: Budget,
    pub(crate) requests: Budget,
    /// Requests that are larger than one read.
    pub(crate) large_requests: Budget,
    pub(crate) responses: Budget,
    pub(crate) response_sizes: [ResponseSize; 4],
    /// Entries from other members that are not in a response yet.
    pub(crate) in_transit: Budget,
    /// The same for GET_ALL, which does not wait for requests that iterate.
    pub(crate) get_all: Budget,
    /// Entries that iterations hold between two requests of their clients.
    pub(crate) iterations: Budget,
    /// Values that clients write in pieces, until they are in a cache.
    pub(crate) streams: Budget,
    pub(crate) handshakes: Budget,
    /// Values that clients read in pieces, kept even if the cache has another value by then.
    pub(crate) read_streams: Budget,
    pub(crate) filters: Budget,
    /// Events beyond the bytes of their connection.
    pub(crate) events: Budget,
    pub(crate) definitions: Budget,
    pub(crate) reserve_time: Duration,
    pub(crate) transfer_time: Duration,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(None, Budget::new("clients", CLIENTS_BYTES_MAX))
    }
}

/// A kind of bytes that uses up its budget leaves capacity for the others.
const fn most_of(bytes: u64) -> u64 {
    bytes / 4 * 3
}

impl Memory {
    pub(crate) fn within(process: Budget) -> Self {
        let all = process.limit();
        let clients = process.child("clients", CLIENTS_BYTES_MAX.max(all / 4).min(all / 2));
        Self::of(Some(process), clients)
    }

    fn of(process: Option<Budget>, clients: Budget) -> Self {
        let all = clients.limit();
        let requests = clients.child("requests", most_of(all));
        let responses = clients.child("responses", most_of(all));
        Self {
            large_requests: requests.child("large_requests", most_of(requests.limit())),
            response_sizes: RESPONSE_SIZES.map(|(name, bytes, sixths)| {
                let budget = responses.child(name, responses.limit() / 6 * sixths);
                ResponseSize { bytes, budget }
            }),
            in_transit: clients.child("entries_in_transit", all / 4),
            get_all: clients.child("get_all_in_transit", all / 4),
            iterations: clients.child("iterations", all / 2),
            streams: clients.child("streams", most_of(all)),
            read_streams: clients.child("read_streams", most_of(all)),
            filters: clients.child("near_cache_filters", all / 4),
            events: clients.child("events", all / 4),
            definitions: clients.child("definitions", all / 4),
            handshakes: clients.child("unidentified", PREAUTH_TOTAL_BYTES_MAX.min(all / 2)),
            reserve_time: RESERVE_TIME_MAX,
            transfer_time: TRANSFER_TIME_MIN,
            requests,
            responses,
            process,
            clients,
        }
    }

    pub(crate) fn usages(&self) -> Vec<Usage> {
        let own = [&self.clients, &self.requests, &self.large_requests, &self.responses];
        let sizes = self.response_sizes.iter().map(|size| &size.budget);
        let others = [
            &self.in_transit,
            &self.get_all,
            &self.iterations,
            &self.streams,
            &self.read_streams,
            &self.filters,
            &self.events,
            &self.definitions,
            &self.handshakes,
        ];
        self.process.iter().chain(own).chain(sizes).chain(others).map(Budget::usage).collect()
    }
}

/// After this time the error names the exceeded limit.
pub(crate) async fn reserve(budget: &Budget, bytes: u64, time: Duration) -> Result<Reservation, Exceeded> {
    match timeout(time, budget.reserve(bytes)).await {
        Ok(reserved) => reserved,
        Err(_) => budget.try_reserve(bytes),
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
    }

    #[test]
    fn responses_of_all_sizes_fit_at_the_same_time() {
        let memory = Memory::default();
        let sizes: u64 = memory.response_sizes.iter().map(|size| size.budget.limit()).sum();
        assert!(sizes <= memory.responses.limit());
        assert!(memory.response_sizes.iter().all(|size| size.budget.limit() >= size.bytes));
    }

    #[test]
    fn each_budget_has_its_own_name() {
        let memory = Memory::within(Budget::new("process", 1));
        let mut names: Vec<&str> = memory.usages().iter().map(|usage| usage.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[tokio::test]
    async fn reservation_without_capacity_fails_after_its_time_and_names_the_limit() {
        let budget = Budget::new("responses", 10);
        let held = budget.try_reserve(6).unwrap();
        let error = reserve(&budget, 5, Duration::ZERO).await.unwrap_err();
        assert_eq!((error.name, error.limit, error.used, error.wanted), ("responses", 10, 6, 5));
        drop(held);
        assert!(reserve(&budget, 5, Duration::ZERO).await.is_ok());
    }
}
