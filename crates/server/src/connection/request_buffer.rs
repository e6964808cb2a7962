//! The bytes of requests: those of a connection's incomplete request, and those of requests without a response.
//!
//! A large request's bytes are reserved before they are read, as soon as its length is known, so that incomplete requests cannot
//! wait for each other's bytes. Requests with many entries, whose lengths arrive one after the other, are the exception; these
//! fail after a timeout.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use consort_memory::{Budget, Exceeded, Reservation};
use tokio::time::Instant;

use crate::connection::transfer_time::Transfer;
use crate::limits::READ_BYTES;
use crate::memory::{Memory, reserve};

type Reserving = Pin<Box<dyn Future<Output = Result<Reservation, Exceeded>> + Send>>;

/// Uncounted bytes of every connection.
const UNCOUNTED: usize = 16 * 1024;

/// Bytes are counted in steps, so that few requests change the budget.
const STEP: usize = 64 * 1024;

pub(crate) struct IncompleteRequest {
    requests: Budget,
    large_requests: Budget,
    held: Vec<Reservation>,
    reserving: Option<Reserving>,
    transfer: Option<Transfer>,
    reserve_time: Duration,
    transfer_time: Duration,
}

impl IncompleteRequest {
    pub(crate) fn new(memory: &Memory) -> Self {
        Self {
            requests: memory.requests.clone(),
            large_requests: memory.large_requests.clone(),
            held: Vec::new(),
            reserving: None,
            transfer: None,
            reserve_time: memory.reserve_time,
            transfer_time: memory.transfer_time,
        }
    }

    fn reserved(&self) -> usize {
        let reserved = self.held.iter().map(Reservation::bytes).sum::<u64>();
        usize::try_from(reserved).unwrap_or(usize::MAX)
    }

    pub(crate) fn clear(&mut self) {
        if self.transfer.take().is_some() {
            self.drop_held();
        }
    }

    /// Notes a part of an incomplete request (perhaps a new one) of at least `length` bytes, of which `kept` are in memory at
    /// once. Fails if the budget can never have the capacity.
    pub(crate) fn receive(&mut self, length: usize, kept: usize, is_new: bool) -> Result<(), Exceeded> {
        match &mut self.transfer {
            Some(transfer) if !is_new => transfer.reach(length),
            _ => self.transfer = Some(Transfer::begin(length, self.transfer_time)),
        }
        let reserved = self.reserved();
        if kept <= reserved.max(UNCOUNTED) || self.reserving.is_some() {
            return Ok(());
        }
        let (budget, wanted) = if kept <= READ_BYTES {
            (&self.requests, READ_BYTES)
        } else {
            // A request that grows entry by entry does not reserve for each of them.
            let twice = reserved.saturating_mul(if reserved > READ_BYTES { 2 } else { 1 });
            (&self.large_requests, kept.max(twice))
        };
        let more = (wanted - reserved) as u64;
        // Small requests overtake large ones that wait.
        match budget.try_reserve(more) {
            Ok(more) => self.held.push(more),
            Err(exceeded) if exceeded.limit < more => return Err(exceeded),
            Err(_) => {
                let (budget, time) = (budget.clone(), self.reserve_time);
                self.reserving = Some(Box::pin(async move { reserve(&budget, more, time).await }));
            }
        }
        Ok(())
    }

    pub(crate) const fn has_room(&self) -> bool {
        self.reserving.is_none()
    }

    /// Fails after the reservation time.
    pub(crate) async fn wait(&mut self) -> Result<(), Exceeded> {
        let Some(reserving) = &mut self.reserving else { return Ok(()) };
        let reserved = poll_fn(|cx| reserving.as_mut().poll(cx)).await;
        self.reserving = None;
        self.held.push(reserved?);
        Ok(())
    }

    pub(crate) fn drop_held(&mut self) {
        self.held = Vec::new();
        self.reserving = None;
    }

    pub(crate) fn take(&mut self) -> Vec<Reservation> {
        std::mem::take(&mut self.held)
    }

    /// The client's deadline, if a part of a request is here and the server reads.
    pub(crate) fn run(&mut self, reads: bool) -> Option<Instant> {
        self.transfer.as_mut()?.run(reads)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.transfer.is_some_and(|transfer| transfer.is_over())
    }
}

/// Bytes outside the budget, of a connection that then reads no more, counted in steps.
pub(crate) struct CountedBytes {
    budget: Budget,
    held: Option<Reservation>,
    is_beyond: bool,
}

impl CountedBytes {
    pub(crate) const fn new(budget: Budget) -> Self {
        Self { budget, held: None, is_beyond: false }
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        let wanted = if bytes <= UNCOUNTED { 0 } else { bytes.next_multiple_of(STEP) as u64 };
        let Some(held) = &mut self.held else {
            if wanted > 0 {
                let reserved = self.budget.try_reserve(wanted);
                self.is_beyond = reserved.is_err();
                self.held = Some(reserved.unwrap_or_else(|_| self.budget.reserve_forced(wanted)));
            }
            return;
        };
        if wanted == 0 {
            (self.held, self.is_beyond) = (None, false);
        } else if let Some(more) = wanted.checked_sub(held.bytes()).filter(|more| *more > 0) {
            self.is_beyond = held.try_grow(more).is_err();
            if self.is_beyond {
                held.grow_forced(more);
            }
        } else {
            held.shrink(held.bytes() - wanted);
        }
    }

    pub(crate) const fn is_beyond(&self) -> bool {
        self.is_beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[tokio::test]
    async fn large_request_reserves_all_its_bytes_or_waits() {
        let memory = Memory::default();
        let [mut first, mut second] = [(); 2].map(|()| IncompleteRequest::new(&memory));
        first.receive(100 * MIB, 100 * MIB, true).unwrap();
        assert_eq!(memory.requests.used(), 100 * MIB as u64);
        second.receive(100 * MIB, 100 * MIB, true).unwrap();
        assert!(first.has_room() && !second.has_room());
        let mut small = IncompleteRequest::new(&memory);
        small.receive(20_000, 20_000, true).unwrap();
        assert!(small.has_room(), "small requests do not wait for large ones");
        first.clear();
        second.wait().await.unwrap();
        assert!(second.has_room());
        drop((second, small));
        assert_eq!(memory.requests.used(), 0);
        assert!(memory.requests.usage().peak <= memory.requests.limit());
    }

    #[tokio::test]
    async fn request_without_capacity_in_time_fails() {
        let memory = Memory { reserve_time: Duration::ZERO, ..Memory::default() };
        let _held = memory.large_requests.try_reserve(memory.large_requests.limit()).unwrap();
        let mut receiving = IncompleteRequest::new(&memory);
        receiving.receive(MIB, MIB, true).unwrap();
        let error = receiving.wait().await.unwrap_err();
        assert_eq!(error.name, "large_requests");
        let none = Memory::within(Budget::new("process", 10 * MIB as u64));
        let error = IncompleteRequest::new(&none).receive(64 * MIB, 64 * MIB, true).unwrap_err();
        assert_eq!(error.wanted, 64 * MIB as u64);
    }

    #[tokio::test]
    async fn time_runs_from_the_beginning_of_each_request() {
        let mut receiving = IncompleteRequest::new(&Memory::default());
        assert_eq!(receiving.run(true), None);
        receiving.receive(10, 10, true).unwrap();
        let until = receiving.run(true);
        receiving.receive(10, 10, false).unwrap();
        assert_eq!(receiving.run(true), until);
        receiving.receive(10, 10, true).unwrap();
        assert!(receiving.run(true) > until);
        receiving.clear();
        assert_eq!(receiving.run(true), None);
    }

    #[test]
    fn bytes_count_in_steps_and_also_beyond_the_limit() {
        let budget = Budget::new("responses", 3 * STEP as u64);
        let mut counted = CountedBytes::new(budget.clone());
        for (bytes, steps, is_beyond) in
            [(UNCOUNTED, 0, false), (UNCOUNTED + 1, 1, false), (3 * STEP, 3, false), (3 * STEP + 1, 4, true)]
        {
            counted.set(bytes);
            assert_eq!((budget.used(), counted.is_beyond()), (steps * STEP as u64, is_beyond), "{bytes}");
        }
        counted.set(STEP);
        assert_eq!(budget.used(), STEP as u64);
        counted.set(0);
        assert_eq!((budget.used(), counted.is_beyond()), (0, false));
    }
}
