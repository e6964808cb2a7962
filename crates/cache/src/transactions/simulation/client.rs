//! Programs that run transactions and single writes, and note their reads and writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use consort_grid::{Change, Condition, Lifetime, Write};

use super::super::error::TransactionError;
use super::super::limits::TAKE_OVER_AFTER;
use super::super::options::{Locking, TransactionOptions};
use super::super::protocol::Protocol;
use super::super::session::Session;
use super::super::storage::{Space, Storage};
use super::world::{LOCAL, SimulatedStorage, lock};

/// The cache whose values have a constant sum.
pub(super) const BANK: &str = "bank";

pub(super) const KEYS: u64 = 3;

/// A space of the world, and a key.
pub(super) type Place = (String, Bytes);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Committed,
    RolledBack,
    /// The member was lost, or does not know.
    Unknown,
}

/// A transaction or a single write, as its program knows it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) number: u64,
    /// The writers of the values that it has read; `None` for an absent key.
    pub(super) reads: BTreeMap<Place, Option<u64>>,
    /// False removes the key.
    pub(super) writes: BTreeMap<Place, bool>,
    pub(super) outcome: Outcome,
    /// The time of the commit's beginning and end.
    pub(super) times: (Duration, Duration),
}

pub(super) type History = Arc<Mutex<Vec<Attempt>>>;

pub(super) fn value(writer: u64, amount: i64) -> Bytes {
    let mut value = BytesMut::with_capacity(16);
    value.put_u64(writer);
    value.put_i64(amount);
    value.freeze()
}

pub(super) fn writer(value: &Bytes) -> u64 {
    u64::from_be_bytes(value[..8].try_into().expect("a value of this simulation"))
}

pub(super) fn amount(value: &Bytes) -> i64 {
    i64::from_be_bytes(value[8..].try_into().expect("a value of this simulation"))
}

pub(super) struct Client {
    pub(super) protocol: Arc<Protocol<SimulatedStorage>>,
    pub(super) history: History,
    pub(super) attempts: usize,
}

impl Client {
    fn below(&self, bound: u64) -> u64 {
        lock(&self.protocol.storage.world).rng.below(bound)
    }

    fn place(&self) -> (Arc<str>, Bytes) {
        let cache = match self.below(8) {
            0 => LOCAL,
            1..4 => "a",
            _ => "b",
        };
        (cache.into(), self.key())
    }

    fn key(&self) -> Bytes {
        Bytes::copy_from_slice(&[self.below(KEYS) as u8])
    }

    fn noted(&self, (cache, key): &(Arc<str>, Bytes)) -> Place {
        (self.protocol.storage.space(Space::Cache(cache)), key.clone())
    }

    fn note(&self, attempt: &Attempt) {
        let mut history = self.history.lock().expect("no thread has panicked");
        match history.iter_mut().find(|known| known.number == attempt.number) {
            Some(known) => *known = attempt.clone(),
            None => history.push(attempt.clone()),
        }
    }

    pub(super) async fn run(self) {
        for _ in 0..self.attempts {
            match self.below(6) {
                0 => self.write_once().await,
                1 | 2 => drop(self.transfer().await),
                _ => drop(self.read_and_write().await),
            }
            // Some transactions come only after other members have noticed a loss.
            let longest = if self.below(3) == 0 { 12_000 } else { 8 };
            self.protocol.storage.pause(Duration::from_millis(self.below(longest))).await;
        }
    }

    fn begin(&self) -> (Session<SimulatedStorage>, Attempt) {
        let locking = if self.below(3) == 0 { Locking::Pessimistic } else { Locking::Optimistic };
        let acquire_timeout = Duration::from_millis(200);
        let options = TransactionOptions { locking, acquire_timeout, ..TransactionOptions::default() };
        let number = lock(&self.protocol.storage.world).rng.next();
        let mut protocol = Protocol::new(SimulatedStorage { number, ..self.protocol.storage.clone() });
        protocol.bug = self.protocol.bug;
        let times = (self.protocol.storage.now(), Duration::MAX);
        let (reads, writes) = (BTreeMap::new(), BTreeMap::new());
        let attempt = Attempt { number, reads, writes, outcome: Outcome::Unknown, times };
        (Session::new(Arc::new(protocol), options), attempt)
    }

    async fn get(
        &self,
        session: &mut Session<SimulatedStorage>,
        attempt: &mut Attempt,
        place: &(Arc<str>, Bytes),
    ) -> Result<Option<Bytes>, TransactionError> {
        if self.below(4) == 0 {
            session.lock(place).await?;
        }
        let found = session.get(place).await?;
        let place = self.noted(place);
        if !attempt.writes.contains_key(&place) {
            attempt.reads.insert(place, found.as_ref().map(writer));
        }
        Ok(found)
    }

    async fn commit(&self, mut session: Session<SimulatedStorage>, mut attempt: Attempt) {
        // One read needs no validation.
        if !attempt.writes.is_empty() || attempt.reads.len() > 1 {
            attempt.times.0 = self.protocol.storage.now();
        }
        // The program may be lost during the commit.
        self.note(&attempt);
        let committed = session.commit().await;
        attempt.times.1 = self.protocol.storage.now();
        attempt.outcome = match &committed {
            Ok(_) => Outcome::Committed,
            Err(TransactionError::Unknown) => Outcome::Unknown,
            Err(_) => Outcome::RolledBack,
        };
        self.note(&attempt);
        let Ok(Some(mut unfinished)) = committed else { return };
        loop {
            self.protocol.storage.pause(TAKE_OVER_AFTER).await;
            if unfinished.finish(&self.protocol).await.is_ok() {
                return;
            }
        }
    }

    /// Reads some keys, and then changes some.
    async fn read_and_write(&self) -> Result<(), TransactionError> {
        let (mut session, mut attempt) = self.begin();
        for _ in 0..1 + self.below(4) {
            self.get(&mut session, &mut attempt, &self.place()).await?;
        }
        for _ in 0..self.below(3) {
            let place = self.place();
            let change = if self.below(2) == 0 {
                // The removal of an absent key is no change.
                if self.get(&mut session, &mut attempt, &place).await?.is_none() {
                    continue;
                }
                Change::Remove
            } else {
                Change::Put { value: value(attempt.number, 0), lifetime: Lifetime::FOREVER }
            };
            let noted = self.noted(&place);
            if attempt.writes.contains_key(&noted) {
                continue;
            }
            attempt.writes.insert(noted, change != Change::Remove);
            session.change(&place, change).await?;
        }
        if self.below(8) == 0 {
            session.roll_back().await;
            attempt.outcome = Outcome::RolledBack;
            self.note(&attempt);
            return Ok(());
        }
        self.commit(session, attempt).await;
        Ok(())
    }

    async fn transfer(&self) -> Result<(), TransactionError> {
        let (mut session, mut attempt) = self.begin();
        let [from, to]: [(Arc<str>, Bytes); 2] = [(BANK.into(), self.key()), (BANK.into(), self.key())];
        if from == to {
            return Ok(());
        }
        let moved = 1 + self.below(9) as i64;
        for (place, change) in [(&from, -moved), (&to, moved)] {
            let found = self.get(&mut session, &mut attempt, place).await?;
            let value = value(attempt.number, found.as_ref().map_or(0, amount) + change);
            attempt.writes.insert(self.noted(place), true);
            session.change(place, Change::Put { value, lifetime: Lifetime::FOREVER }).await?;
        }
        self.commit(session, attempt).await;
        Ok(())
    }

    /// A write outside of a transaction, as a cache makes it.
    async fn write_once(&self) {
        let (_, mut attempt) = self.begin();
        let (place, storage) = (self.place(), &self.protocol.storage);
        attempt.writes.insert(self.noted(&place), true);
        attempt.times.0 = storage.now();
        self.note(&attempt);
        let scope = storage.scope_of(&place.0).expect("an open cache");
        let change = Change::Put { value: value(attempt.number, 0), lifetime: Lifetime::FOREVER };
        let write = Write { condition: Condition::Always, change, wants_previous: false };
        let at = (scope, &place.0[..], &place.1[..]);
        let times = (Duration::from_millis(100), super::world::DELAY_MAX);
        let writing = storage.write(Space::Cache(&place.0), &place.1, write);
        match self.protocol.locked(at, times, writing).await {
            Ok(Some(_)) => attempt.outcome = Outcome::Committed,
            Ok(None) => attempt.outcome = Outcome::RolledBack,
            Err(_) => return,
        }
        attempt.times.1 = storage.now();
        self.note(&attempt);
    }
}
