//! Open iterations: responses reach their readers without a lock on the readers' path.
//!
//! The driver queues other members' responses per iteration. A reader that takes the next one reports the last one as consumed,
//! and the driver requests more. Only a reader with an empty queue takes the member's lock: it reads local entries, or waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;

use consort_grid::{
    CacheId, IterationError, IterationId, LANES_MAX, Next, Node, OperationError, Publication,
};
use consort_group::Time;

use crate::spsc::{self, Consumer, Producer};

pub(crate) type Came = Result<Next, IterationError>;

/// One response of each member with a request, and the end.
const ANSWERS_MAX: usize = LANES_MAX + 1;

pub(crate) struct Iterations {
    open: BTreeMap<IterationId, OpenIteration>,
    /// Readers have consumed a response, each at most once.
    done: Receiver<IterationId>,
}

struct OpenIteration {
    cache: CacheId,
    producer: Producer<Came>,
}

pub(crate) struct ConsumedQueue {
    iterations: Sender<IterationId>,
    has_any: AtomicBool,
}

pub(crate) struct Reader {
    id: IterationId,
    consumer: Consumer<Came>,
    holding: Holding,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holding {
    Nothing,
    /// Its consumption must be reported.
    Brought,
    Taken,
}

impl Reader {
    pub(crate) fn id(&self) -> IterationId {
        self.id
    }

    /// The reader has consumed the last response. The flag says whether to wake the driver.
    pub(crate) fn take(&mut self, done: &ConsumedQueue) -> Option<(Came, bool)> {
        let came = self.consumer.pop()?;
        let rings = self.holding == Holding::Brought && self.consumer.ack();
        if rings {
            done.push(self.id);
        }
        if self.holding == Holding::Taken {
            self.consumer.ack_silently();
        }
        self.holding = Holding::Brought;
        Some((came, rings))
    }

    fn finish(&mut self) {
        if std::mem::replace(&mut self.holding, Holding::Nothing) != Holding::Nothing {
            self.consumer.ack_silently();
        }
    }
}

impl ConsumedQueue {
    fn push(&self, iteration: IterationId) {
        // The member may have ended.
        let _ = self.iterations.send(iteration);
        self.has_any.store(true, Ordering::Release);
    }

    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }
}

pub(crate) fn iterations() -> (Iterations, ConsumedQueue) {
    let (iterations, done) = channel();
    (
        Iterations { open: BTreeMap::new(), done },
        ConsumedQueue { iterations, has_any: AtomicBool::new(false) },
    )
}

impl Iterations {
    /// The reader's first take sends a request.
    pub(crate) fn begin(
        &mut self,
        node: &mut Node,
        now: Time,
        cache: CacheId,
        publication: &Publication,
    ) -> Result<Reader, IterationError> {
        let id = node.iterate(cache, publication.clone())?;
        let (producer, consumer) = spsc::channel(ANSWERS_MAX);
        self.open.insert(id, OpenIteration { cache, producer });
        // From now on responses wake the reader.
        let _ = self.bring(node, now, id);
        Ok(Reader { id, consumer, holding: Holding::Nothing })
    }

    /// Returns the next response for a reader with an empty queue, which has consumed all earlier ones. Without one, a later
    /// response wakes the reader.
    pub(crate) fn take(&mut self, node: &mut Node, now: Time, reader: &mut Reader, waker: &Waker) -> Came {
        reader.finish();
        // The lock excludes new responses, but one may have arrived since the reader checked.
        if let Some(came) = reader.consumer.pop() {
            reader.holding = Holding::Brought;
            return came;
        }
        let Some(open) = self.open.get_mut(&reader.id) else {
            return Err(OperationError::Closed.into());
        };
        open.producer.poll_acks();
        let came = node.take(now, open.cache, reader.id);
        match &came {
            Ok(Next::Items(_)) => reader.holding = Holding::Taken,
            Ok(Next::Nothing) => reader.consumer.register(waker),
            Ok(Next::End { .. }) | Err(_) => drop(self.open.remove(&reader.id)),
        }
        came
    }

    pub(crate) fn cancel(&mut self, id: IterationId) -> Option<CacheId> {
        Some(self.open.remove(&id)?.cache)
    }

    pub(crate) fn bring(&mut self, node: &mut Node, now: Time, id: IterationId) -> Option<Waker> {
        self.bring_after(node, now, id, 0)
    }

    pub(crate) fn process_consumed(
        &mut self,
        node: &mut Node,
        now: Time,
        done: &ConsumedQueue,
    ) -> Vec<Waker> {
        let mut wakers = Vec::new();
        // Before the reports are read: later reports are processed next time.
        done.has_any.swap(false, Ordering::AcqRel);
        while let Ok(id) = self.done.try_recv() {
            let heard = self.open.get_mut(&id).map_or(0, |open| open.producer.take_acks());
            wakers.extend(self.bring_after(node, now, id, heard));
        }
        wakers
    }

    fn bring_after(
        &mut self,
        node: &mut Node,
        now: Time,
        id: IterationId,
        mut consumed: usize,
    ) -> Option<Waker> {
        let open = self.open.get_mut(&id)?;
        let mut has_some = false;
        while open.producer.has_room() {
            let (came, is_more) = match node.take_ahead(now, open.cache, id, std::mem::take(&mut consumed)) {
                Ok((Next::Nothing, _)) => break,
                Ok((came, is_more)) => (Ok(came), is_more),
                Err(error) => (Err(error), false),
            };
            let is_last = !matches!(came, Ok(Next::Items(_)));
            has_some = true;
            // The queue has room.
            let _ = open.producer.push(came);
            if is_last {
                return self.open.remove(&id)?.producer.take_waker();
            }
            if !is_more {
                break;
            }
        }
        if has_some { open.producer.take_waker() } else { None }
    }

    /// So that the readers notice.
    pub(crate) fn end(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.open).into_values().filter_map(|open| open.producer.take_waker()).collect()
    }
}
