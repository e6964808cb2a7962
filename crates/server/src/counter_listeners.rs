//! Clients that hear of counters (facts section 2.14).
//!
//! A client has one listener for all counters that it wants to hear of, on one connection. Changes that come faster than
//! they are told may be told as one: from what the counter had when it was told of last to what it has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use consort_cache::EntryEvent;
use consort_hotrod::ops::event::CounterEvent;
use consort_hotrod::{Status, Text};
use tokio::sync::oneshot;

use crate::answer::{Answer, Refusal};
use crate::bounds::{COUNTERS_LISTENED_MAX, EVENTS_MAX, LISTENERS_MAX};
use crate::counter::{Counter, Value};
use crate::counters::Counters;
use crate::unasked::{Outlet, Telling, Unasked};

/// Counters by their names, and what they had when they were told of last.
type Heard = Arc<Mutex<BTreeMap<Bytes, Option<Value>>>>;

/// The listeners of a connection, by their ids.
pub(crate) struct CounterListeners {
    all: Mutex<BTreeMap<Bytes, (Heard, Telling)>>,
    outlet: Outlet,
}

fn heard(heard: &Heard) -> MutexGuard<'_, BTreeMap<Bytes, Option<Value>>> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event(of: &Heard, listener: &Bytes, event: &EntryEvent<Bytes, Bytes>) -> Option<CounterEvent> {
    let mut heard = heard(of);
    let last = heard.get_mut(&event.key)?;
    let counter = Counter::from_bytes(event.value.as_ref()?)?;
    let old = last.replace(counter.now).unwrap_or(counter.before);
    let name = Text::from_utf8(event.key.clone())?;
    let has_changed = old != counter.now;
    has_changed.then(|| CounterEvent { counter: name, listener: listener.clone(), old, new: counter.now })
}

impl CounterListeners {
    pub(crate) fn new(outlet: Outlet) -> Self {
        Self { all: Mutex::default(), outlet }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Bytes, (Heard, Telling)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A listener hears of a counter from now on. The answer says whether it is new on this connection.
    pub(crate) async fn add(&self, counters: &Counters, name: &Text, id: &Bytes) -> Result<Answer, Refusal> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        if counters.get(&name).await?.is_none() {
            return Ok(Answer::of(Status::NotFound));
        }
        let refused = |text: String| Err(Refusal::new(text));
        let id = Bytes::copy_from_slice(id);
        let telling = Telling::new();
        let wanted = telling.wanted.clone();
        let of = {
            let mut all = self.all();
            if let Some((of, _)) = all.get(&id) {
                let mut heard = heard(of);
                if heard.len() >= COUNTERS_LISTENED_MAX {
                    return refused(format!("the listener has {COUNTERS_LISTENED_MAX} counters already"));
                }
                heard.insert(name, None);
                return Ok(Answer::of(Status::NotExecuted));
            }
            if all.len() >= LISTENERS_MAX {
                return refused(format!("this connection has {LISTENERS_MAX} listeners already"));
            }
            let of: Heard = Arc::new(Mutex::new(BTreeMap::from([(name, None)])));
            all.insert(id.clone(), (of.clone(), telling));
            of
        };
        let events = match counters.listen(EVENTS_MAX).await {
            Ok(events) => events,
            Err(error) => {
                let mut all = self.all();
                if all.get(&id).is_some_and(|(_, telling)| telling.is(&wanted)) {
                    all.remove(&id);
                }
                return Err(error.into());
            }
        };
        // It may have been removed meanwhile. What is there is not told.
        if let Some((_, telling)) = self.all().get_mut(&id).filter(|(_, telling)| telling.is(&wanted)) {
            for events in events {
                let (state, _) = oneshot::channel();
                let (of, id, wanted) = (of.clone(), id.clone(), wanted.clone());
                telling.begin(events, &self.outlet, state, move |entry| {
                    Some(Unasked::Counter(event(&of, &id, &entry)?, wanted.clone()))
                });
            }
        }
        Ok(Answer::of(Status::Success))
    }

    /// A listener hears of a counter no more, of none if it has no name. The answer says whether it was the last one.
    pub(crate) fn remove(&self, name: &Text, id: &Bytes) -> Answer {
        let mut all = self.all();
        let is_over = all.get(id).is_some_and(|(of, _)| {
            let mut heard = heard(of);
            heard.remove(name.as_bytes());
            name.is_empty() || heard.is_empty()
        });
        if is_over {
            all.remove(id);
        }
        Answer::of(if is_over { Status::Success } else { Status::NotExecuted })
    }
}
