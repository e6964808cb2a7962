//! A connection's open streams: values that its client reads or writes in pieces.
//!
//! A stream reads the value of its start. Java's client may read beyond the announced length. So a stream that was read to its
//! end stays open and returns empty pieces, until its client closes it or another one needs its place. A written value enters the
//! cache with its last piece.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use consort_cache::VALUE_BYTES_MAX;
use consort_hotrod::ops::stream::Target;
use consort_hotrod::{Flags, ProtocolVersion};
use consort_memory::{Exceeded, Reservation};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::catalog::served_cache::ServedCache;
use crate::limits::{FULL_CAPACITY_FROM, INLINE_COPY_MAX, PIECE_BYTES_MAX, STREAM_IDLE_MAX, STREAMS_MAX};
use crate::media::Conversion;
use crate::memory::reserve;
use crate::memory::stream_budget::StreamBudget;

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// Java's clients recognize this error by the exception's name.
    #[error("java.io.StreamCorruptedException: no open stream {0} on this connection")]
    Unknown(i32),
    #[error("this connection has reached the limit of {STREAMS_MAX} streams")]
    TooMany,
    #[error("a value has {VALUE_BYTES_MAX} bytes at most: the stream has ended, and nothing was changed")]
    TooLarge,
    #[error("the stream has ended, and nothing was changed: {0}")]
    TooMuch(#[from] Exceeded),
    #[error("this server ends: nothing was changed")]
    Ending,
}

/// Bytes that count in the budget.
struct ValueBuffer {
    value: Vec<u8>,
    of: StreamBudget,
    bytes: Option<Reservation>,
    has_room: bool,
}

impl ValueBuffer {
    const fn new(of: StreamBudget) -> Self {
        Self { value: Vec::new(), of, bytes: None, has_room: false }
    }

    fn count(&mut self, more: u64) -> Result<(), Exceeded> {
        match &mut self.bytes {
            Some(bytes) => bytes.try_grow(more),
            None => {
                self.bytes = Some(self.of.bytes.try_reserve(more)?);
                Ok(())
            }
        }
    }

    fn push(&mut self, piece: &[u8]) -> Result<(), StreamError> {
        let length = self.value.len() + piece.len();
        if length > VALUE_BYTES_MAX {
            return Err(StreamError::TooLarge);
        }
        self.count(piece.len() as u64)?;
        if length > self.value.capacity() && length > FULL_CAPACITY_FROM && self.of.take_room() {
            self.has_room = true;
            self.value.reserve_exact(VALUE_BYTES_MAX - self.value.len());
        }
        self.value.extend_from_slice(piece);
        Ok(())
    }

    async fn finish(&mut self) -> Result<Bytes, StreamError> {
        let value = std::mem::take(&mut self.value);
        // Excess capacity is released in place, unless it is more than a half.
        let is_moved = value.len() < value.capacity() / 2;
        if is_moved && value.len() > INLINE_COPY_MAX {
            let moving = tokio::task::spawn_blocking(|| value.into_boxed_slice());
            return moving.await.map(Bytes::from).map_err(|_| StreamError::Ending);
        }
        Ok(Bytes::from(value.into_boxed_slice()))
    }
}

impl Drop for ValueBuffer {
    fn drop(&mut self) {
        self.of.rooms.fetch_sub(usize::from(self.has_room), Ordering::Relaxed);
    }
}

pub(crate) struct OpenWrite {
    pub(crate) served: Arc<ServedCache>,
    pub(crate) target: Target,
    /// The opening request's version defines how lifespans are read.
    pub(crate) version: ProtocolVersion,
    pub(crate) flags: Flags,
    pub(crate) conversion: Option<Conversion>,
}

pub(crate) struct CompletedWrite {
    pub(crate) writing: OpenWrite,
    gathered: ValueBuffer,
}

impl CompletedWrite {
    /// Call it once.
    pub(crate) async fn value(&mut self) -> Result<Bytes, StreamError> {
        self.gathered.finish().await
    }
}

enum Open {
    Read {
        rest: Bytes,
        piece: usize,
        /// The value may have left the cache, so its bytes are counted here.
        _bytes: Reservation,
    },
    Write(Box<CompletedWrite>),
}

#[derive(Default)]
struct StreamTable {
    /// Unique in the process: after the loss of its connection a client must not find another stream under an old id.
    last: i32,
    open: BTreeMap<i32, (Instant, Open)>,
    sweeper: Option<AbortHandle>,
}

pub(crate) struct Streams {
    table: Arc<Mutex<StreamTable>>,
    stream_budget: StreamBudget,
}

fn lock(table: &Mutex<StreamTable>) -> MutexGuard<'_, StreamTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn sweep(table: Weak<Mutex<StreamTable>>) {
    loop {
        let Some(next) = table.upgrade().and_then(|table| lock(&table).drop_idle(Instant::now())) else {
            return;
        };
        sleep_until(next).await;
    }
}

impl StreamTable {
    /// When the next stream expires; `None` ends the task.
    fn drop_idle(&mut self, now: Instant) -> Option<Instant> {
        self.open.retain(|_, (used, _)| *used + STREAM_IDLE_MAX > now);
        let next = self.open.values().map(|(used, _)| *used + STREAM_IDLE_MAX).min();
        if next.is_none() {
            self.sweeper = None;
        }
        next
    }
}

impl Streams {
    pub(crate) fn new(stream_budget: StreamBudget) -> Self {
        let last = RandomState::new().build_hasher().finish() as i32;
        Self { table: Arc::new(Mutex::new(StreamTable { last, ..StreamTable::default() })), stream_budget }
    }

    fn open(&self, open: Open) -> Result<i32, StreamError> {
        let mut table = lock(&self.table);
        if table.open.len() >= STREAMS_MAX {
            table.open.retain(|_, (_, open)| !matches!(open, Open::Read { rest, .. } if rest.is_empty()));
        }
        if table.open.len() >= STREAMS_MAX {
            return Err(StreamError::TooMany);
        }
        let id = loop {
            table.last = table.last.wrapping_add(1);
            if !table.open.contains_key(&table.last) {
                break table.last;
            }
        };
        table.open.insert(id, (Instant::now(), open));
        if table.sweeper.is_none() {
            let sweeping = tokio::spawn(sweep(Arc::downgrade(&self.table)));
            table.sweeper = Some(sweeping.abort_handle());
        }
        Ok(id)
    }

    /// Returns the first piece, and the stream if there are more. Waits for the value's capacity.
    pub(crate) async fn read(
        &self,
        mut value: Bytes,
        piece: usize,
    ) -> Result<(Option<i32>, Bytes), StreamError> {
        let piece = piece.clamp(1, PIECE_BYTES_MAX);
        if value.len() <= piece {
            return Ok((None, value));
        }
        let bytes =
            reserve(&self.stream_budget.read, value.len() as u64, self.stream_budget.reserve_time).await?;
        let first = value.split_to(piece);
        let id = self.open(Open::Read { rest: value, piece, _bytes: bytes })?;
        Ok((Some(id), first))
    }

    /// The flag marks the last piece; later ones are empty.
    pub(crate) fn next(&self, id: i32) -> Result<(Bytes, bool), StreamError> {
        let mut table = lock(&self.table);
        let Some((used, Open::Read { rest, piece, .. })) = table.open.get_mut(&id) else {
            return Err(StreamError::Unknown(id));
        };
        *used = Instant::now();
        let next = rest.split_to(rest.len().min(*piece));
        Ok((next, rest.is_empty()))
    }

    pub(crate) fn write(&self, writing: OpenWrite) -> Result<i32, StreamError> {
        self.open(Open::Write(Box::new(CompletedWrite {
            writing,
            gathered: ValueBuffer::new(self.stream_budget.clone()),
        })))
    }

    /// Returns the value after the last piece; an error closes the stream.
    pub(crate) fn take(
        &self,
        id: i32,
        piece: &[u8],
        is_last: bool,
    ) -> Result<Option<CompletedWrite>, StreamError> {
        let mut table = lock(&self.table);
        let Entry::Occupied(mut found) = table.open.entry(id) else { return Err(StreamError::Unknown(id)) };
        let (used, Open::Write(written)) = found.get_mut() else {
            return Err(StreamError::Unknown(id));
        };
        *used = Instant::now();
        if let Err(error) = written.gathered.push(piece) {
            found.remove();
            return Err(error);
        }
        if !is_last {
            return Ok(None);
        }
        let (_, Open::Write(written)) = found.remove() else { return Ok(None) };
        Ok(Some(*written))
    }

    pub(crate) fn end(&self, id: i32) {
        lock(&self.table).open.remove(&id);
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        if let Some(sweeper) = lock(&self.table).sweeper.take() {
            sweeper.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::FULL_CAPACITY_VALUES_MAX;
    use crate::memory::Memory;

    fn stream_budget() -> StreamBudget {
        StreamBudget::within(&Memory::default())
    }

    fn streams() -> Streams {
        Streams::new(stream_budget())
    }

    fn open(streams: &Streams) -> usize {
        lock(&streams.table).open.len()
    }

    #[tokio::test]
    async fn pieces_are_slices_of_the_value_and_empty_after_the_last() {
        let (streams, value) = (streams(), Bytes::from(vec![7; 100]));
        let (id, first) = streams.read(value.clone(), 40).await.unwrap();
        let id = id.unwrap();
        assert_eq!((first.len(), first.as_ptr()), (40, value.as_ptr()));
        let (second, is_last) = streams.next(id).unwrap();
        assert_eq!((second.as_ptr(), is_last), (value[40..].as_ptr(), false));
        let (third, is_last) = streams.next(id).unwrap();
        assert_eq!((third.len(), is_last), (20, true));
        assert_eq!(streams.next(id), Ok((Bytes::new(), true)));
        streams.end(id);
        assert_eq!(streams.next(id), Err(StreamError::Unknown(id)));
        assert_eq!(open(&streams), 0);
    }

    #[tokio::test]
    async fn value_of_one_piece_needs_no_stream() {
        let streams = streams();
        for length in [0, 39, 40] {
            assert_eq!(streams.read(Bytes::from(vec![7; length]), 40).await.unwrap().0, None);
        }
        let (id, first) = streams.read(Bytes::from(vec![7; 2]), 0).await.unwrap();
        assert!(id.is_some() && first.len() == 1, "no piece is empty");
        let huge = Bytes::from(vec![7; PIECE_BYTES_MAX + 1]);
        assert_eq!(streams.read(huge, usize::MAX).await.unwrap().1.len(), PIECE_BYTES_MAX);
    }

    #[tokio::test]
    async fn streams_are_bounded_and_closed_ones_free_their_place() {
        let (streams, value) = (streams(), Bytes::from(vec![7; 2]));
        let mut ids = Vec::new();
        for _ in 0..STREAMS_MAX {
            ids.push(streams.read(value.clone(), 1).await.unwrap().0.unwrap());
        }
        assert_eq!(streams.read(value.clone(), 1).await, Err(StreamError::TooMany));
        streams.end(ids[0]);
        streams.end(ids[0]);
        assert!(streams.read(value.clone(), 1).await.is_ok());
        assert_eq!(streams.read(value.clone(), 1).await, Err(StreamError::TooMany));
        // A stream that was read to its end gives up its place, too.
        assert_eq!(streams.next(ids[1]).unwrap(), (value.slice(1..), true));
        assert!(streams.read(value, 1).await.is_ok());
        assert_eq!(streams.next(ids[1]), Err(StreamError::Unknown(ids[1])));
    }

    #[tokio::test]
    async fn idle_streams_are_dropped_and_others_stay() {
        let (streams, value) = (streams(), Bytes::from(vec![7; 10]));
        let idle = streams.read(value.clone(), 1).await.unwrap().0.unwrap();
        let used = streams.read(value.clone(), 1).await.unwrap().0.unwrap();
        let begun = Instant::now();
        let later = |by| lock(&streams.table).drop_idle(begun + by);
        let second = Duration::from_secs(1);
        assert!(later(STREAM_IDLE_MAX - second).is_some_and(|next| next <= begun + STREAM_IDLE_MAX));
        assert_eq!(open(&streams), 2);
        if let Some((at, _)) = lock(&streams.table).open.get_mut(&used) {
            *at = begun + 2 * second;
        }
        assert_eq!(later(STREAM_IDLE_MAX + second), Some(begun + 2 * second + STREAM_IDLE_MAX));
        assert_eq!(streams.next(idle), Err(StreamError::Unknown(idle)));
        assert!(streams.next(used).is_ok());
        assert!(lock(&streams.table).sweeper.is_some());
        assert_eq!(later(2 * STREAM_IDLE_MAX), None);
        assert!(lock(&streams.table).sweeper.is_none(), "nothing runs for a connection without streams");
        streams.read(value, 1).await.unwrap();
        assert!(lock(&streams.table).sweeper.is_some(), "and again");
    }

    fn counts(all: &StreamBudget) -> (usize, usize) {
        (all.bytes.used() as usize, all.rooms.load(Ordering::Relaxed))
    }

    #[test]
    fn bytes_of_all_streams_are_bounded_and_released() {
        let all = stream_budget();
        let others = all.bytes.try_reserve(all.bytes.limit() - 5).unwrap();
        let mut other = ValueBuffer::new(all.clone());
        let error = other.push(&[7; 6]).unwrap_err().to_string();
        assert!(error.contains("nothing was changed") && error.contains("streams has"), "{error}");
        other.push(&[7; 5]).unwrap();
        drop(others);
        other.push(&[7; 6]).unwrap();
        assert_eq!(counts(&all), (11, 0));
        drop(other);
        assert_eq!(counts(&all), (0, 0));
    }

    #[tokio::test]
    async fn bytes_of_all_reading_streams_are_bounded_and_released() {
        let memory = Memory { reserve_time: Duration::ZERO, ..Memory::default() };
        let (one, other) =
            (Streams::new(StreamBudget::within(&memory)), Streams::new(StreamBudget::within(&memory)));
        let others = memory.read_streams.try_reserve(memory.read_streams.limit() - 15).unwrap();
        let value = Bytes::from(vec![7; 10]);
        let (first, _) = one.read(value.clone(), 4).await.unwrap();
        let error = other.read(value.clone(), 4).await.unwrap_err().to_string();
        assert!(error.contains("read_streams has"), "{error}");
        // A value of one piece needs no stream.
        assert!(other.read(value.clone(), 10).await.is_ok());
        one.end(first.unwrap());
        assert!(other.read(value, 4).await.is_ok());
        drop((one, other, others));
        assert_eq!(memory.read_streams.used(), 0);
    }

    /// S002-15: no request waits while a large part of a value is moved.
    #[test]
    fn s002_15_large_value_is_not_moved_while_it_grows() {
        let (all, piece) = (stream_budget(), [7; 60 * 1024]);
        let mut gathered = ValueBuffer::new(all.clone());
        while gathered.value.len() <= FULL_CAPACITY_FROM {
            gathered.push(&piece).unwrap();
        }
        let at = gathered.value.as_ptr();
        while gathered.value.len() + piece.len() <= VALUE_BYTES_MAX {
            gathered.push(&piece).unwrap();
        }
        assert_eq!((gathered.value.as_ptr(), gathered.value.capacity()), (at, VALUE_BYTES_MAX));
        assert_eq!(gathered.push(&piece), Err(StreamError::TooLarge));
        assert_eq!(counts(&all), (gathered.value.len(), 1));
        drop(gathered);
        assert_eq!(counts(&all), (0, 0));
    }

    #[test]
    fn values_with_full_capacity_are_bounded_and_others_grow() {
        let (all, piece) = (stream_budget(), vec![7; FULL_CAPACITY_FROM + 1]);
        let grown = || {
            let mut gathered = ValueBuffer::new(all.clone());
            gathered.push(&piece).unwrap();
            gathered
        };
        let mut rooms: Vec<ValueBuffer> = (0..FULL_CAPACITY_VALUES_MAX).map(|_| grown()).collect();
        assert!(rooms.iter().all(|gathered| gathered.value.capacity() == VALUE_BYTES_MAX));
        let mut other = grown();
        assert!(!other.has_room && other.value.capacity() < 2 * piece.len());
        // The value gets its capacity as soon as it needs more and a place is free.
        rooms.pop();
        other.push(&piece).unwrap();
        assert!(other.has_room && other.value == [&piece[..], &piece].concat());
        assert_eq!(counts(&all).1, FULL_CAPACITY_VALUES_MAX);
    }

    #[tokio::test]
    async fn moved_values_are_complete_and_count_until_they_are_in_the_cache() {
        let all = stream_budget();
        for length in [0, 10, FULL_CAPACITY_FROM + 1, INLINE_COPY_MAX + 1, VALUE_BYTES_MAX / 2 + 1] {
            let mut gathered = ValueBuffer::new(all.clone());
            let wanted: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            for piece in wanted.chunks(60 * 1024) {
                gathered.push(piece).unwrap();
            }
            let value = gathered.finish().await.unwrap();
            assert!(value == wanted, "{length} bytes");
            assert_eq!(counts(&all), (length, usize::from(length > FULL_CAPACITY_FROM)));
        }
    }
}
