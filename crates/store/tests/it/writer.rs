//! The writer and its queue.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use consort_store::{
    Change, Done, Entries, Entry, MemoryStore, Mode, Part, Segment, Stats, Store, StoreError, Writer,
    WriterConfig,
};

/// A store in memory that blocks, counts and fails as the test wants.
#[derive(Debug)]
struct Gated {
    inner: MemoryStore,
    is_open: Mutex<bool>,
    opened: Condvar,
    /// Batches received, written or not.
    come: Mutex<usize>,
    has_come: Condvar,
    batches: Mutex<Vec<usize>>,
    is_failing: Mutex<bool>,
}

impl Gated {
    fn new(is_open: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(4),
            is_open: Mutex::new(is_open),
            opened: Condvar::new(),
            come: Mutex::new(0),
            has_come: Condvar::new(),
            batches: Mutex::default(),
            is_failing: Mutex::new(false),
        })
    }

    fn let_write(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Waits for a batch.
    fn wait_for_batch(&self) {
        drop(self.has_come.wait_while(self.come.lock().unwrap(), |come| *come == 0).unwrap());
    }

    fn fail(&self, is_failing: bool) {
        *self.is_failing.lock().unwrap() = is_failing;
    }

    fn stored(&self) -> usize {
        self.batches.lock().unwrap().iter().sum()
    }
}

impl Store for Gated {
    fn segments(&self) -> u16 {
        self.inner.segments()
    }

    fn load(&self, segment: Segment, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        self.inner.load(segment, key)
    }

    fn store(&self, changes: &[Change]) -> Result<(), StoreError> {
        *self.come.lock().unwrap() += 1;
        self.has_come.notify_all();
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        let is_bad = |change: &Change| change.key() == "bad";
        if *self.is_failing.lock().unwrap() || changes.iter().any(is_bad) {
            return Err(StoreError::Full { file: "gated".to_owned() });
        }
        self.batches.lock().unwrap().push(changes.len());
        self.inner.store(changes)
    }

    fn entries(&self, segment: Segment, part: Part) -> Result<Entries, StoreError> {
        self.inner.entries(segment, part)
    }

    fn count(&self, segment: Segment) -> Result<u64, StoreError> {
        self.inner.count(segment)
    }

    fn remove_segment(&self, segment: Segment) -> Result<(), StoreError> {
        self.inner.remove_segment(segment)
    }

    fn clear(&self) -> Result<(), StoreError> {
        self.inner.clear()
    }

    fn purge(&self, now: u64, limit: usize, expired: &mut dyn FnMut(Entry)) -> Result<usize, StoreError> {
        self.inner.purge(now, limit, expired)
    }

    fn maintain(&self, budget_bytes: u64) -> Result<bool, StoreError> {
        self.inner.maintain(budget_bytes)
    }

    fn remember(&self, note: &[u8]) -> Result<(), StoreError> {
        self.inner.remember(note)
    }

    fn recall(&self) -> Result<Option<Bytes>, StoreError> {
        self.inner.recall()
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.inner.flush()
    }

    fn close(&self) -> Result<(), StoreError> {
        self.inner.flush()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

type Outcome = (String, Result<(), String>);

fn outcomes() -> (impl Fn(&str) -> Done, Receiver<Outcome>) {
    let (sender, outcomes): (Sender<Outcome>, _) = channel();
    let done = move |name: &str| -> Done {
        let (sender, name) = (sender.clone(), name.to_owned());
        Box::new(move |result| drop(sender.send((name, result.map_err(|error| error.to_string())))))
    };
    (done, outcomes)
}

fn spawn(store: &Arc<Gated>, config: WriterConfig) -> Writer {
    Writer::spawn(Arc::<Gated>::clone(store), config, |_| {}).unwrap()
}

fn put(segment: u16, key: &str, value: &str) -> Change {
    Change::Put(Entry::immortal(segment, key.to_owned(), value.to_owned()))
}

fn value(entry: Option<Entry>) -> Option<String> {
    entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
}

#[test]
fn write_through_completes_each_call_when_its_write_is_stored() {
    let store = Gated::new(false);
    let writer = spawn(&store, WriterConfig::default());
    let (done, outcomes) = outcomes();
    writer.write(put(0, "a", "1"), done("a")).unwrap();
    writer.write(put(0, "b", "1"), done("b")).unwrap();
    assert!(outcomes.try_recv().is_err(), "nothing is stored yet");
    store.let_write();
    assert_eq!(outcomes.recv().unwrap(), ("a".to_owned(), Ok(())));
    assert!(store.load(0, b"a").unwrap().is_some());
    assert_eq!(outcomes.recv().unwrap(), ("b".to_owned(), Ok(())));
    assert!(writer.close().error.is_none());
}

#[test]
fn write_behind_is_done_when_it_is_queued_and_reads_see_it() {
    let store = Gated::new(false);
    let writer = spawn(&store, WriterConfig { mode: Mode::WriteBehind, ..WriterConfig::default() });
    let (done, outcomes) = outcomes();
    writer.write(put(0, "a", "1"), done("a")).unwrap();
    assert_eq!(outcomes.try_recv().unwrap(), ("a".to_owned(), Ok(())));
    assert_eq!(value(writer.load(0, b"a").unwrap()), Some("1".to_owned()));
    writer.write(Change::Remove { segment: 0, key: "a".into() }, done("a")).unwrap();
    assert_eq!(writer.load(0, b"a").unwrap(), None);
    writer.write(put(1, "b", "2"), done("b")).unwrap();
    writer.remove_segment(1, done("segment"));
    assert_eq!(writer.load(1, b"b").unwrap(), None, "what waits is removed with its segment");
    store.let_write();
    let closed = writer.close();
    assert_eq!((closed.lost, store.count(0).unwrap(), store.count(1).unwrap()), (0, 0, 0));
}

#[test]
fn changes_of_one_key_that_wait_are_stored_as_one() {
    let store = Gated::new(false);
    let writer = spawn(&store, WriterConfig::default());
    let (done, outcomes) = outcomes();
    writer.write(put(0, "first", ""), done("")).unwrap();
    store.wait_for_batch();
    for number in 0..100 {
        writer.write(put(0, "key", &number.to_string()), done(&number.to_string())).unwrap();
    }
    assert!(writer.waiting() <= 2);
    store.let_write();
    assert_eq!(outcomes.iter().take(101).filter(|(_, result)| result.is_ok()).count(), 101);
    assert_eq!(store.stored(), 2, "{:?}", store.batches);
    assert_eq!(value(store.load(0, b"key").unwrap()), Some("99".to_owned()));
    drop(writer);
}

#[test]
fn commands_run_after_queued_writes_and_before_later_ones() {
    let store = Gated::new(false);
    let writer = spawn(&store, WriterConfig::default());
    let (done, outcomes) = outcomes();
    writer.write(put(0, "a", "before"), done("a")).unwrap();
    writer.write(put(0, "b", "before"), done("b")).unwrap();
    writer.clear(done("clear"));
    writer.write(put(0, "b", "after"), done("b again")).unwrap();
    writer.flush(done("flush"));
    store.let_write();
    let order: Vec<String> = outcomes.iter().take(5).map(|(name, _)| name).collect();
    assert_eq!(order, ["a", "b", "clear", "b again", "flush"]);
    assert_eq!(store.load(0, b"a").unwrap(), None);
    assert_eq!(value(store.load(0, b"b").unwrap()), Some("after".to_owned()));
    drop(writer);
}

#[test]
fn a_full_queue_refuses_and_calls_back_when_it_has_space() {
    let store = Gated::new(false);
    let config = WriterConfig { queue_changes_max: 10, batch_changes_max: 1, ..WriterConfig::default() };
    let writer = spawn(&store, config);
    let (done, outcomes) = outcomes();
    let mut taken = 0;
    let refused = loop {
        match writer.write(put(0, &format!("key-{taken}"), ""), done("")) {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert!((10..=11).contains(&taken), "{taken}");
    assert!(!refused.is_closed);
    writer
        .write(put(0, &format!("key-{}", taken - 1), "again"), done(""))
        .expect("a key that waits needs no room");
    let (sender, room) = channel();
    writer.on_room(Box::new(move || sender.send(()).unwrap()));
    assert!(room.try_recv().is_err());
    store.let_write();
    room.recv().unwrap();
    writer.write(refused.change, refused.done).unwrap();
    assert_eq!(outcomes.iter().take(taken + 2).count(), taken + 2);
    drop(writer);
}

#[test]
fn the_queue_is_bounded_by_bytes_but_takes_one_of_any_size() {
    let store = Gated::new(false);
    let writer = spawn(&store, WriterConfig { queue_bytes_max: 1000, ..WriterConfig::default() });
    let (done, outcomes) = outcomes();
    writer.write(put(0, "huge", &"x".repeat(5000)), done("")).unwrap();
    let mut taken = 1;
    while writer.write(put(0, &format!("key-{taken}"), &"x".repeat(300)), done("")).is_ok() {
        taken += 1;
    }
    assert!(taken <= 4, "{taken}");
    store.let_write();
    assert_eq!(outcomes.iter().take(taken).count(), taken);
    drop(writer);
}

#[test]
fn an_error_is_reported_to_its_caller_only() {
    let store = Gated::new(false);
    let writer = spawn(&store, WriterConfig::default());
    let (done, outcomes) = outcomes();
    for key in ["a", "b", "bad", "c"] {
        writer.write(put(0, key, "1"), done(key)).unwrap();
    }
    store.let_write();
    let mut failed: Vec<Outcome> = outcomes.iter().take(4).filter(|(_, result)| result.is_err()).collect();
    let (name, result) = failed.pop().unwrap();
    assert_eq!((name.as_str(), failed.len()), ("bad", 0));
    assert!(result.unwrap_err().contains("no space left"));
    assert_eq!(store.count(0).unwrap(), 3);
    drop(writer);
}

#[test]
fn write_behind_retries_in_order_and_counts_losses_at_the_end() {
    let store = Gated::new(true);
    store.fail(true);
    let (sender, errors) = channel();
    let config = WriterConfig {
        mode: Mode::WriteBehind,
        retry_after: std::time::Duration::from_millis(1),
        ..WriterConfig::default()
    };
    let report = move |error: &StoreError| drop(sender.send(error.to_string()));
    let writer = Writer::spawn(Arc::<Gated>::clone(&store), config, report).unwrap();
    let (done, _outcomes) = outcomes();
    writer.write(put(0, "a", "old"), done("")).unwrap();
    errors.recv().unwrap();
    writer.write(put(0, "a", "new"), done("")).unwrap();
    errors.recv().unwrap();
    assert_eq!(value(writer.load(0, b"a").unwrap()), Some("new".to_owned()));
    store.fail(false);
    let (flushed, flush) = channel();
    writer.flush(Box::new(move |result| flushed.send(result.is_ok()).unwrap()));
    assert!(flush.recv().unwrap());
    assert_eq!(value(store.load(0, b"a").unwrap()), Some("new".to_owned()));
    store.fail(true);
    writer.write(put(0, "b", "lost"), done("")).unwrap();
    let closed = writer.close();
    assert_eq!(closed.lost, 1);
    assert!(closed.error.unwrap().to_string().contains("no space left"));
}

#[test]
fn closing_stores_queued_entries() {
    let store = Gated::new(true);
    let writer = spawn(&store, WriterConfig { mode: Mode::WriteBehind, ..WriterConfig::default() });
    let (done, _outcomes) = outcomes();
    for number in 0..5000 {
        writer.write(put(0, &format!("key-{number}"), ""), done("")).unwrap();
    }
    assert_eq!(writer.close().lost, 0);
    assert_eq!(store.count(0).unwrap(), 5000);
}

/// The values of each key in the order of their writes.
fn ordered(writer: &Writer, round: usize, done: &Sender<()>) {
    let done = done.clone();
    let done: Done = Box::new(move |outcome| {
        outcome.unwrap();
        done.send(()).unwrap();
    });
    let change = put(0, "k", &round.to_string());
    writer.write(change, done).unwrap();
}

fn threads_for_stores() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim() == "consort-store").count()
}

#[test]
fn hundreds_of_stores_write_in_order_on_a_bounded_number_of_threads() {
    const STORES: usize = 300;
    let stores: Vec<_> = (0..STORES).map(|_| Gated::new(true)).collect();
    let writers: Vec<_> = stores.iter().map(|store| spawn(store, WriterConfig::default())).collect();
    let (done, stored) = channel();
    for round in 0..20 {
        for writer in &writers {
            ordered(writer, round, &done);
            // Separates two writes of a key, which would be merged otherwise.
            writer.run(Box::new(move |store| {
                let held = value(store.load(0, b"k").unwrap());
                assert_eq!(held.as_deref(), Some(&*round.to_string()));
            }));
        }
        assert!(threads_for_stores() <= 16);
    }
    for _ in 0..20 * STORES {
        stored.recv().unwrap();
    }
    for (writer, store) in writers.into_iter().zip(&stores) {
        let closed = writer.close();
        assert!(closed.error.is_none());
        assert_eq!((closed.lost, value(store.load(0, b"k").unwrap())), (0, Some("19".to_owned())));
    }
}

#[test]
fn callbacks_behind_one_that_panics_in_the_same_batch_are_called() {
    let store = Gated::new(false);
    let writer = spawn(&store, WriterConfig::default());
    let (done, outcomes) = outcomes();
    // The first write blocks the writer, so that the others are queued together.
    writer.write(put(0, "held", "1"), done("held")).unwrap();
    store.wait_for_batch();
    writer.write(put(0, "a", "1"), Box::new(|_| panic!("planted"))).unwrap();
    writer.write(put(0, "b", "1"), done("b")).unwrap();
    store.let_write();
    for expected in ["held", "b"] {
        let (name, outcome) = outcomes.recv().unwrap();
        assert_eq!((name.as_str(), outcome.is_ok()), (expected, true));
    }
    drop(writer.close());
    assert_eq!(value(store.load(0, b"b").unwrap()).as_deref(), Some("1"));
}

#[test]
fn a_callback_that_panics_closes_its_writer_and_no_other() {
    let stores = [Gated::new(true), Gated::new(true)];
    let [bad, good] = stores.each_ref().map(|store| spawn(store, WriterConfig::default()));
    bad.write(put(0, "a", "1"), Box::new(|_| panic!("planted"))).unwrap();
    let (done, outcomes) = outcomes();
    // The write is queued behind the panicking one, or comes after it.
    if bad.write(put(0, "b", "1"), done("bad")).is_ok() {
        drop(outcomes.recv().unwrap());
    }
    good.write(put(0, "c", "1"), done("good")).unwrap();
    let (name, outcome) = outcomes.recv().unwrap();
    assert_eq!((name.as_str(), outcome.is_ok()), ("good", true));
    assert!(bad.close().error.is_none() && good.close().error.is_none());
}
