//! The counts of all connections, in several shards with their own cache lines, so that threads seldom write the same line.

use std::sync::Arc;

use consort_hotrod::{Opcode, ProtocolVersion, Status};

use crate::metrics::cache_stats::{Count, Errors};
use crate::metrics::clients::{ClientDirectory, ClientTraffic, ConnectedClient, RegisteredClient};
use crate::metrics::latency::{Class, Histogram, Times};

/// As many as the threads that serve clients on most machines.
const SHARDS: usize = 16;

/// An operation is one byte.
const OPERATIONS: usize = 256;

#[repr(align(128))]
struct Shard {
    requests: [Count; OPERATIONS],
    times: Times,
    errors: Count,
    received: Count,
    sent: Count,
    waits_begun: Count,
    waits_ended: Count,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            requests: std::array::from_fn(|_| Count::default()),
            times: Times::default(),
            errors: Count::default(),
            received: Count::default(),
            sent: Count::default(),
            waits_begun: Count::default(),
            waits_ended: Count::default(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Telemetry {
    shards: [Shard; SHARDS],
    pub(crate) accepted: Count,
    pub(crate) ended: Count,
    /// Connections that were turned away because there were too many.
    pub(crate) turned_away: Count,
    pub(crate) rejections: Count,
    pub(crate) http_requests: Count,
    /// Errors of requests that name no client cache that is open here.
    pub(crate) errors_without_cache: Errors,
    pub(crate) clients: ClientDirectory,
}

#[derive(Default)]
pub(crate) struct Sums {
    pub(crate) requests: Vec<(Opcode, i64)>,
    pub(crate) errors: i64,
    pub(crate) received: i64,
    pub(crate) sent: i64,
}

impl Telemetry {
    pub(crate) fn sums(&self) -> Sums {
        let sum = |part: fn(&Shard) -> &Count| self.shards.iter().map(|shard| part(shard).get()).sum();
        let of = |opcode: &Opcode| self.shards.iter().map(|shard| shard.requests[place(*opcode)].get()).sum();
        Sums {
            requests: Opcode::ALL.iter().map(|opcode| (*opcode, of(opcode))).collect(),
            errors: sum(|shard| &shard.errors),
            received: sum(|shard| &shard.received),
            sent: sum(|shard| &shard.sent),
        }
    }

    pub(crate) fn times(&self, class: Class) -> Histogram {
        let mut sums = Histogram::default();
        self.shards.iter().for_each(|shard| shard.times.add_to(class, &mut sums));
        sums
    }

    pub(crate) fn waits(&self) -> i64 {
        // In this order, so that no request counts as ended before it counts as begun.
        let ended: i64 = self.shards.iter().map(|shard| shard.waits_ended.get()).sum();
        let begun: i64 = self.shards.iter().map(|shard| shard.waits_begun.get()).sum();
        begun - ended
    }

    pub(crate) fn connections(&self) -> i64 {
        // In this order, so that no connection counts as ended before it counts as accepted.
        let ended = self.ended.get();
        self.accepted.get() - ended
    }
}

const fn place(opcode: Opcode) -> usize {
    opcode.request() as usize
}

/// Dropping it counts the connection's end.
pub(crate) struct Tally {
    telemetry: Arc<Telemetry>,
    shard: usize,
    waits_begun: Count,
    waits_ended: Count,
    own: Arc<ClientTraffic>,
}

impl Tally {
    pub(crate) fn of_next(telemetry: &Arc<Telemetry>) -> Self {
        let shard = telemetry.accepted.get().unsigned_abs() as usize % SHARDS;
        telemetry.accepted.one();
        let (waits_begun, waits_ended) = (Count::default(), Count::default());
        Self { telemetry: telemetry.clone(), shard, waits_begun, waits_ended, own: Arc::default() }
    }

    /// Lists the client among those of the server.
    pub(crate) fn register(&self, client: ConnectedClient) -> RegisteredClient<'_> {
        self.telemetry.clients.register(client, self.own.clone())
    }

    fn shard(&self) -> &Shard {
        &self.telemetry.shards[self.shard]
    }

    pub(crate) fn request(&self, opcode: Opcode) {
        self.shard().requests[place(opcode)].one();
        self.own.request();
    }

    pub(crate) fn version(&self, version: ProtocolVersion) {
        self.own.version(version.byte());
    }

    pub(crate) fn times(&self) -> &Times {
        &self.shard().times
    }

    pub(crate) fn answer(&self, status: Status) {
        if status.is_error() {
            self.shard().errors.one();
        }
    }

    pub(crate) fn wait_begins(&self) {
        self.waits_begun.one();
        self.shard().waits_begun.one();
    }

    pub(crate) fn wait_ends(&self) {
        self.waits_ended.one();
        self.shard().waits_ended.one();
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.shard().received.add(bytes);
        self.own.received(bytes);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.shard().sent.add(bytes);
        self.own.sent(bytes);
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        // Waiting requests end with their connection.
        let left = self.waits_begun.get() - self.waits_ended.get();
        self.shard().waits_ended.add(usize::try_from(left).unwrap_or(0));
        self.telemetry.ended.one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_its_own_count() {
        let mut places: Vec<usize> = Opcode::ALL.iter().map(|opcode| place(*opcode)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), Opcode::ALL.len());
    }

    #[test]
    fn connections_are_added_up() {
        let telemetry = Arc::new(Telemetry::default());
        let tallies: Vec<Tally> = (0..SHARDS + 1).map(|_| Tally::of_next(&telemetry)).collect();
        for tally in &tallies {
            tally.request(Opcode::Get);
            tally.answer(Status::Success);
            tally.answer(Status::ServerError);
            tally.received(10);
            tally.sent(20);
        }
        let sums = telemetry.sums();
        let count = i64::try_from(tallies.len()).unwrap();
        let gets = sums.requests.iter().find(|(opcode, _)| *opcode == Opcode::Get);
        assert_eq!(gets, Some(&(Opcode::Get, count)));
        assert_eq!((sums.errors, sums.received, sums.sent), (count, count * 10, count * 20));
        assert_eq!((telemetry.connections(), telemetry.waits()), (count, 0));
        tallies.iter().for_each(|tally| (0..3).for_each(|_| tally.wait_begins()));
        tallies.iter().for_each(Tally::wait_ends);
        assert_eq!(telemetry.waits(), 2 * count);
        drop(tallies);
        assert_eq!(telemetry.waits(), 0, "what waits ends with its connection");
        assert_eq!(telemetry.connections(), 0);
    }
}
