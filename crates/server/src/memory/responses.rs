//! Capacity for responses with many entries, until clients have read them.
//!
//! The size is known only at the end. So a response first reserves the most that its size class may need: a place among its
//! connection's responses, then bytes of the server's budget ([`crate::memory`]).

use std::sync::Arc;
use std::time::Duration;

use consort_cache::{FETCH_BYTES, LANES_MAX};
use consort_memory::{Budget, Exceeded, Reservation};
use tokio::sync::Semaphore;

use crate::limits::{
    CONCURRENT_ITERATIONS_MIN, GET_ALL_UNRESERVED_MAX, ITERATION_BYTES_MAX, LARGE_RESPONSES_MAX,
};
use crate::memory::{Memory, ResponseSize, reserve};
use crate::reply::{Refusal, ResponseBytes};

#[derive(Clone)]
pub(crate) struct Responses {
    sizes: [ResponseSize; 4],
    turns: Arc<Semaphore>,
    /// One response of the largest size at a time.
    large_turns: Arc<Semaphore>,
    in_transit: Budget,
    get_all: Budget,
    iterations: Budget,
    reserve_time: Duration,
}

pub(crate) struct ResponseReservation {
    of: Responses,
    size: usize,
    size_max: usize,
    bytes: u64,
    held: ResponseBytes,
}

fn too_large(limit: u64) -> Refusal {
    Refusal::new(format!(
        "the response has more than {limit} bytes, the limit of one response (responses_over_8_mib): request less, or iterate"
    ))
}

impl From<Exceeded> for Refusal {
    fn from(error: Exceeded) -> Self {
        Self::new(format!("the server has no capacity for the response. {error}: request less, or later"))
    }
}

impl Responses {
    pub(crate) fn new(memory: &Memory) -> Self {
        let turns = |count| Arc::new(Semaphore::new(count));
        Self {
            sizes: memory.response_sizes.clone(),
            turns: turns(LARGE_RESPONSES_MAX),
            large_turns: turns(1),
            in_transit: memory.in_transit.clone(),
            get_all: memory.get_all.clone(),
            iterations: memory.iterations.clone(),
            reserve_time: memory.reserve_time,
        }
    }

    pub(crate) async fn begin(&self) -> Result<ResponseReservation, Refusal> {
        self.begin_within(self.sizes.len() - 1).await
    }

    /// Begins a response of at most 8 MiB: [`ResponseReservation::try_add`] says where it ends.
    pub(crate) async fn begin_batch(&self) -> Result<ResponseReservation, Refusal> {
        self.begin_within(self.sizes.len() - 2).await
    }

    async fn begin_within(&self, size_max: usize) -> Result<ResponseReservation, Refusal> {
        // The semaphore is never closed.
        let turn = self.turns.clone().acquire_owned().await.ok();
        let bytes = reserve(&self.sizes[0].budget, self.sizes[0].reserved(), self.reserve_time).await?;
        let held = ResponseBytes { bytes, places: turn.into_iter().collect() };
        Ok(ResponseReservation { of: self.clone(), size: 0, size_max, bytes: 0, held })
    }

    /// Reserves bytes for entries that owners send before they are part of a response. A request with this reservation waits for
    /// other members but for no client. Without enough capacity, it returns the reservation, waits, and iterates again.
    pub(crate) async fn begin_iteration(&self) -> Result<Reservation, Refusal> {
        let bytes = ITERATION_BYTES_MAX.min(self.in_transit.limit() / CONCURRENT_ITERATIONS_MIN);
        Ok(reserve(&self.in_transit, bytes, self.reserve_time).await?)
    }

    /// Reserves, before any read, the bytes that an iteration may hold between two requests.
    pub(crate) async fn hold_iteration(&self, held: &mut Option<Reservation>) -> Result<(), Refusal> {
        let bytes = self.iteration_share((LANES_MAX * FETCH_BYTES) as u64);
        let has = held.as_ref().map_or(0, Reservation::bytes);
        if bytes > has {
            let more = reserve(&self.iterations, bytes - has, self.reserve_time).await?;
            match held {
                // Both are of one budget.
                Some(held) => drop(held.join(more)),
                None => *held = Some(more),
            }
        }
        Ok(())
    }

    /// At most half of the limit, so that large entries can be iterated over in a small process, too.
    pub(crate) fn iteration_share(&self, bytes: u64) -> u64 {
        bytes.min(self.iterations.limit() / 2)
    }

    /// Bytes of one GET_ALL that are not reserved for its response yet.
    pub(crate) fn get_all_bytes(&self) -> usize {
        GET_ALL_UNRESERVED_MAX.min(self.get_all.limit() as usize / 2)
    }

    pub(crate) async fn begin_get_all(&self, bytes: usize) -> Result<Reservation, Refusal> {
        Ok(reserve(&self.get_all, bytes as u64, self.reserve_time).await?)
    }

    pub(crate) async fn hold(&self, bytes: usize) -> Result<Box<ResponseBytes>, Refusal> {
        let mut reservation = self.begin().await?;
        reservation.add(bytes).await?;
        Ok(reservation.finish())
    }
}

impl ResponseReservation {
    fn next(&self, bytes: u64) -> Option<(usize, u64)> {
        let sizes = (self.size + 1..=self.size_max).map(|size| (size, self.of.sizes[size].reserved()));
        sizes.into_iter().find(|(_, reserved)| *reserved >= bytes)
    }

    fn grow(&mut self, size: usize, bytes: Reservation) {
        self.size = size;
        self.held.bytes = bytes;
    }

    pub(crate) async fn add(&mut self, more: usize) -> Result<(), Refusal> {
        self.make_room(more).await?;
        self.bytes += more as u64;
        Ok(())
    }

    pub(crate) async fn make_room(&mut self, more: usize) -> Result<(), Refusal> {
        let needed = self.bytes + more as u64;
        if needed <= self.held.bytes.bytes() {
            return Ok(());
        }
        let Some((size, bytes)) = self.next(needed) else {
            return Err(too_large(self.of.sizes[self.size_max].reserved()));
        };
        if size + 1 == self.of.sizes.len() {
            let turn = self.of.large_turns.clone().acquire_owned().await;
            self.held.places.extend(turn.ok());
        }
        let reserved = reserve(&self.of.sizes[size].budget, bytes, self.of.reserve_time).await?;
        self.grow(size, reserved);
        Ok(())
    }

    pub(crate) fn try_take(&mut self, more: usize) -> bool {
        let bytes = self.bytes + more as u64;
        if bytes > self.held.bytes.bytes() && !self.grows_to(bytes) {
            return false;
        }
        self.bytes = bytes;
        true
    }

    fn grows_to(&mut self, bytes: u64) -> bool {
        let Some((size, bytes)) = self.next(bytes) else { return false };
        let Ok(reserved) = self.of.sizes[size].budget.try_reserve(bytes) else { return false };
        if size + 1 == self.of.sizes.len() {
            let Ok(turn) = self.of.large_turns.clone().try_acquire_owned() else { return false };
            self.held.places.push(turn);
        }
        self.grow(size, reserved);
        true
    }

    pub(crate) fn missing_room(&mut self, bytes: usize) -> Option<usize> {
        let more = self.missing(bytes);
        (!self.try_take(more)).then_some(more)
    }

    fn missing(&self, bytes: usize) -> usize {
        (bytes as u64).saturating_sub(self.bytes) as usize
    }

    /// The entries are read again from the first one.
    pub(crate) fn restart(&mut self) {
        self.bytes = 0;
    }

    pub(crate) async fn reach(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.add(self.missing(bytes)).await
    }

    /// Adds bytes already taken; false if the response has to end.
    pub(crate) fn try_add(&mut self, more: usize) -> bool {
        let has_room = self.try_take(more);
        if !has_room {
            self.bytes += more as u64;
            self.held.bytes.grow_forced(self.bytes - self.held.bytes.bytes());
        }
        has_room
    }

    pub(crate) fn finish(mut self) -> Box<ResponseBytes> {
        let unused = self.held.bytes.bytes() - self.bytes.min(self.held.bytes.bytes());
        self.held.bytes.shrink(unused);
        Box::new(self.held)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn refused<T>(result: Result<T, Refusal>) -> String {
        let Err(refusal) = result else { panic!("it is not refused") };
        match crate::reply::Answer::from(refusal).body {
            consort_hotrod::ResponseBody::Error(text) => text.as_str().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn response_reserves_its_size_before_it_grows_and_keeps_what_it_has() {
        let memory = Memory::default();
        let responses = Responses::new(&memory);
        let mut reservation = responses.begin().await.unwrap();
        for (more, reserved) in [(10, 64 * 1024), (64 * 1024, MIB), (MIB, 8 * MIB), (8 * MIB, 64 * MIB)] {
            reservation.add(more).await.unwrap();
            assert_eq!(memory.responses.used(), reserved as u64);
        }
        let bytes = reservation.bytes;
        let held = reservation.finish();
        assert_eq!((held.bytes(), memory.responses.used()), (bytes, bytes));
        drop(held);
        assert_eq!(memory.responses.used(), 0);
    }

    #[tokio::test]
    async fn response_beyond_the_limit_of_one_response_fails_and_names_it() {
        let memory = Memory::default();
        let error = refused(Responses::new(&memory).hold(65 * MIB).await);
        assert!(error.contains("more than 67108864 bytes, the limit of one response"), "{error}");
        assert_eq!(memory.responses.used(), 0);
    }

    #[tokio::test]
    async fn second_large_response_of_a_connection_waits_until_the_first_is_read() {
        let memory = Memory::default();
        let responses = Responses::new(&memory);
        let first = responses.hold(60 * MIB).await.unwrap();
        let mut second = pin!(responses.hold(20 * MIB));
        assert!(poll(second.as_mut()).is_pending());
        drop(first);
        let Poll::Ready(Ok(second)) = poll(second.as_mut()) else { panic!("there is room") };
        assert_eq!(second.bytes(), 20 * MIB as u64);
    }

    #[tokio::test]
    async fn response_beyond_the_limit_of_its_connection_waits_until_one_is_read() {
        let memory = Memory::default();
        let responses = Responses::new(&memory);
        let mut held = Vec::new();
        for _ in 0..LARGE_RESPONSES_MAX {
            held.push(responses.hold(1).await.unwrap());
        }
        // Tokio makes a task wait that has acquired 128 resources without a pause.
        tokio::task::yield_now().await;
        let mut next = pin!(responses.hold(1));
        assert!(poll(next.as_mut()).is_pending());
        assert!(Responses::new(&memory).hold(1).await.is_ok(), "another connection");
        held.pop();
        assert!(poll(next.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn large_response_fails_while_others_stay_unread_and_small_ones_do_not() {
        let memory = Memory { reserve_time: Duration::ZERO, ..Memory::default() };
        let first = Responses::new(&memory).hold(60 * MIB).await.unwrap();
        let other = Responses::new(&memory);
        let error = refused(other.hold(60 * MIB).await);
        assert!(error.contains("responses_over_8_mib has "), "{error}");
        assert!(other.hold(MIB / 2).await.is_ok());
        drop(first);
        assert!(other.hold(60 * MIB).await.is_ok());
        assert!(memory.responses.usage().peak <= memory.responses.limit());
    }

    #[tokio::test]
    async fn iteration_reserves_bytes_before_it_reads_or_is_refused() {
        let memory = Memory { reserve_time: Duration::ZERO, ..Memory::default() };
        let responses = Responses::new(&memory);
        let (mut held, mut other) = (None, None);
        responses.hold_iteration(&mut held).await.unwrap();
        responses.hold_iteration(&mut other).await.unwrap();
        other.as_mut().unwrap().shrink(u64::MAX);
        let rest = memory.iterations.limit() - memory.iterations.used();
        let all = memory.iterations.try_reserve(rest).unwrap();
        responses.hold_iteration(&mut held).await.expect("it has its room");
        let error = refused(responses.hold_iteration(&mut other).await);
        assert!(error.contains("iterations has "), "{error}");
        drop(all);
        responses.hold_iteration(&mut other).await.expect("there is room");
        assert_eq!(memory.iterations.used(), 2 * (LANES_MAX * FETCH_BYTES) as u64);
    }

    #[tokio::test]
    async fn batch_ends_at_the_end_of_its_capacity() {
        let memory = Memory::default();
        let responses = Responses::new(&memory);
        let mut batch = responses.begin_batch().await.unwrap();
        assert!(batch.try_add(7 * MIB));
        assert!(!batch.try_add(2 * MIB), "8 MiB are a batch");
        assert_eq!(batch.finish().bytes(), 9 * MIB as u64);
        let _full: Vec<_> = memory.response_sizes[1..]
            .iter()
            .map(|size| size.budget.try_reserve(size.budget.limit()).unwrap())
            .collect();
        let mut batch = responses.begin_batch().await.unwrap();
        assert!(batch.try_add(64 * 1024));
        assert!(!batch.try_add(1));
    }
}
