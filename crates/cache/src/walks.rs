//! Walks that are open: what comes of them is handed to their readers as it comes, without a lock on the readers' way.
//!
//! The driver puts other members' answers into a walk's own queue. The reader takes them from there, and says that it is done
//! with one when it takes the next; the driver then asks for more. Only a reader that finds nothing comes to the member's
//! lock: it looks at what is here, or waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;

use consort_grid::{
    CacheId, IterationError, IterationId, LANES_MAX, Next, Node, OperationError, Publication,
};
use consort_group::Time;
use consort_handoff::{Consumer, Producer};

/// What a reader is told.
pub(crate) type Came = Result<Next, IterationError>;

/// Answers that may wait for a reader: one of each member that is asked, and the end.
const ANSWERS_MAX: usize = LANES_MAX + 1;

/// The member's side, behind its lock.
pub(crate) struct Walks {
    open: BTreeMap<IterationId, Open>,
    /// Walks whose readers are done with something. Each is there once at most.
    done: Receiver<IterationId>,
}

struct Open {
    cache: CacheId,
    producer: Producer<Came>,
}

/// Where readers say that they are done with something, beside the lock.
pub(crate) struct Done {
    walks: Sender<IterationId>,
    has_any: AtomicBool,
}

/// A walk's reader.
pub(crate) struct Reader {
    id: IterationId,
    consumer: Consumer<Came>,
    has: Has,
}

/// What a reader is not done with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Nothing,
    /// What came from its queue: the driver is to hear when it is done.
    Brought,
    /// What it took itself.
    Taken,
}

impl Reader {
    pub(crate) fn id(&self) -> IterationId {
        self.id
    }

    /// What was brought, in which case it is done with what it had. The driver is to be rung if it gives true.
    pub(crate) fn take(&mut self, done: &Done) -> Option<(Came, bool)> {
        let came = self.consumer.pop()?;
        let rings = self.has == Has::Brought && self.consumer.ack();
        if rings {
            done.say(self.id);
        }
        if self.has == Has::Taken {
            self.consumer.ack_silently();
        }
        self.has = Has::Brought;
        Some((came, rings))
    }

    /// It is done with what it had, of which nobody has to be told.
    fn finish(&mut self) {
        if std::mem::replace(&mut self.has, Has::Nothing) != Has::Nothing {
            self.consumer.ack_silently();
        }
    }
}

impl Done {
    fn say(&self, walk: IterationId) {
        // The member may have ended.
        let _ = self.walks.send(walk);
        self.has_any.store(true, Ordering::Release);
    }

    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }
}

/// Both sides of a member without walks.
pub(crate) fn walks() -> (Walks, Done) {
    let (walks, done) = channel();
    (Walks { open: BTreeMap::new(), done }, Done { walks, has_any: AtomicBool::new(false) })
}

impl Walks {
    /// Begins one. Nothing is asked of anybody before it is taken from.
    pub(crate) fn begin(
        &mut self,
        node: &mut Node,
        now: Time,
        cache: CacheId,
        publication: &Publication,
    ) -> Result<Reader, IterationError> {
        let id = node.iterate(cache, publication.clone())?;
        let (producer, consumer) = consort_handoff::channel(ANSWERS_MAX);
        self.open.insert(id, Open { cache, producer });
        // From now on what comes is told.
        let _ = self.bring(node, now, id);
        Ok(Reader { id, consumer, has: Has::Nothing })
    }

    /// The next for a reader for whom nothing was brought: it is done with all that it was given. If there is nothing, it is
    /// woken when there is.
    pub(crate) fn take(&mut self, node: &mut Node, now: Time, reader: &mut Reader, waker: &Waker) -> Came {
        reader.finish();
        // Nothing is put in meanwhile, but something may have been since it looked.
        if let Some(came) = reader.consumer.pop() {
            reader.has = Has::Brought;
            return came;
        }
        let Some(open) = self.open.get_mut(&reader.id) else {
            return Err(OperationError::Closed.into());
        };
        open.producer.poll_acks();
        let came = node.take(now, open.cache, reader.id);
        match &came {
            Ok(Next::Items(_)) => reader.has = Has::Taken,
            Ok(Next::Nothing) => reader.consumer.register(waker),
            Ok(Next::End { .. }) | Err(_) => drop(self.open.remove(&reader.id)),
        }
        came
    }

    /// A walk is given up.
    pub(crate) fn cancel(&mut self, id: IterationId) -> Option<CacheId> {
        Some(self.open.remove(&id)?.cache)
    }

    /// Something has come. Gives whom to wake.
    pub(crate) fn bring(&mut self, node: &mut Node, now: Time, id: IterationId) -> Option<Waker> {
        self.bring_after(node, now, id, 0)
    }

    /// Readers are done with something, which makes room for more. Gives whom to wake.
    pub(crate) fn hear(&mut self, node: &mut Node, now: Time, done: &Done) -> Vec<Waker> {
        let mut wakers = Vec::new();
        // Before it is looked for: what is said from now on is heard next time.
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
            // There is room.
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

    /// The member has ended. Gives whom to wake, to find that out.
    pub(crate) fn end(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.open).into_values().filter_map(|open| open.producer.take_waker()).collect()
    }
}
