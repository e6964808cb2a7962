//! Listeners of counters (facts section 2.14).
//!
//! A client has one listener for all its counters, on one connection. Fast changes may become one event, from the last event's
//! value to the current one. A connection has an order:
//!
//! * The response to a listener's addition precedes its events, because Java's clients know the listener only then.
//! * The event of a client's own change precedes its response. Java's clients of 15.0 and before turn a response with a reached
//!   bound into an exception, and process an event that has come with it only when they receive more bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use consort_cache::EntryEvent;
use consort_hotrod::ops::counter::Request;
use consort_hotrod::ops::event::CounterEvent;
use consort_hotrod::{Status, Text};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::catalog::counter::{Counter, Value};
use crate::catalog::counters::Counters;
use crate::events::push::{EventSender, EventTask, Push};
use crate::limits::{COUNTER_EVENT_TIMEOUT, COUNTERS_PER_LISTENER_MAX, EVENTS_MAX, LISTENERS_MAX};
use crate::memory::responses::Responses;
use crate::reply::{Answer, Refusal};

#[derive(Default)]
struct LastEvent {
    value: Option<Value>,
    /// The event has been written, or was not needed.
    event_written: watch::Sender<()>,
}

type ListenedCounters = Arc<Mutex<BTreeMap<Bytes, LastEvent>>>;

struct CounterRegistration {
    counters: ListenedCounters,
    task: EventTask,
    /// The request that has added it, and the sender whose end its events await.
    unanswered: Option<(u64, watch::Sender<()>)>,
}

pub(crate) struct CounterListeners {
    all: Mutex<BTreeMap<Bytes, CounterRegistration>>,
    events_out: EventSender,
}

fn locked(counters: &ListenedCounters) -> MutexGuard<'_, BTreeMap<Bytes, LastEvent>> {
    counters.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event(
    of: &ListenedCounters,
    listener: &Bytes,
    event: &EntryEvent<Bytes, Bytes>,
) -> Option<(CounterEvent, watch::Sender<()>)> {
    let mut counters = locked(of);
    let last = counters.get_mut(&event.key)?;
    let counter = Counter::from_bytes(event.value.as_ref()?)?;
    let old = last.value.replace(counter.now).unwrap_or(counter.before);
    let name = Text::from_utf8(event.key.clone())?;
    if old == counter.now {
        last.event_written.send_replace(());
        return None;
    }
    let event = CounterEvent { counter: name, listener: listener.clone(), old, new: counter.now };
    Some((event, last.event_written.clone()))
}

impl CounterListeners {
    pub(crate) fn new(events_out: EventSender) -> Self {
        Self { all: Mutex::default(), events_out }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Bytes, CounterRegistration>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    /// Events wait until [`CounterListeners::note_answered`] gets this request.
    pub(crate) async fn add(
        &self,
        counters: &Counters,
        name: &Text,
        id: &Bytes,
        request: u64,
    ) -> Result<Answer, Refusal> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        if counters.get(&name).await?.is_none() {
            return Ok(Answer::of(Status::NotFound));
        }
        let refused = |text: String| Err(Refusal::new(text));
        let id = Bytes::copy_from_slice(id);
        let task = EventTask::new();
        let flag = task.flag.clone();
        let (answers, note_answered) = watch::channel(());
        let of = {
            let mut all = self.all();
            if let Some(registration) = all.get(&id) {
                let mut counters = locked(&registration.counters);
                if counters.len() >= COUNTERS_PER_LISTENER_MAX {
                    return refused(format!("the listener has {COUNTERS_PER_LISTENER_MAX} counters already"));
                }
                counters.insert(name, LastEvent::default());
                return Ok(Answer::of(Status::NotExecuted));
            }
            if all.len() >= LISTENERS_MAX {
                return refused(format!(
                    "this connection has {LISTENERS_MAX} listeners of counters, the limit of one connection: remove others, \
                     or add it by another client"
                ));
            }
            let of: ListenedCounters = Arc::new(Mutex::new(BTreeMap::from([(name, LastEvent::default())])));
            let unanswered = Some((request, answers));
            all.insert(id.clone(), CounterRegistration { counters: of.clone(), task, unanswered });
            of
        };
        let is_own = |registration: &CounterRegistration| registration.task.is(&flag);
        let events = match counters.listen(EVENTS_MAX).await {
            Ok(events) => events,
            Err(error) => {
                let mut all = self.all();
                if all.get(&id).is_some_and(is_own) {
                    all.remove(&id);
                }
                return Err(error.into());
            }
        };
        // The listener may have been removed meanwhile. The current value causes no event.
        if let Some(registration) = self.all().get_mut(&id).filter(|registration| is_own(registration)) {
            for events in events {
                let (state, _) = oneshot::channel();
                let (of, id, flag) = (of.clone(), id.clone(), flag.clone());
                let after = Some(note_answered.clone());
                registration.task.begin(events, &self.events_out, after, state, move |entry| {
                    let event = event(&of, &id, &entry);
                    Ok(event.map(|(event, event_written)| Push::Counter(event, flag.clone(), event_written)))
                });
            }
        }
        Ok(Answer::of(Status::Success))
    }

    pub(crate) fn note_answered(&self, request: u64) {
        for registration in self.all().values_mut() {
            registration.unanswered.take_if(|(id, _)| *id == request);
        }
    }

    /// An event for a listener on this connection is written before the response.
    pub(crate) async fn answer(
        &self,
        responses: &Responses,
        counters: &Counters,
        request: Request,
    ) -> Result<Answer, Refusal> {
        let mut event_receivers = match &request {
            Request::Of(name, _) => self.event_receivers(name.as_bytes()),
            Request::Names => Vec::new(),
        };
        let (answer, has_changed) = counters.answer(responses, request).await?;
        if has_changed {
            let all_told = async {
                for event_written in &mut event_receivers {
                    // A removed listener gets no more events.
                    let _ = event_written.changed().await;
                }
            };
            // Events that take longer follow the response.
            let _ = timeout(COUNTER_EVENT_TIMEOUT, all_told).await;
        }
        Ok(answer)
    }

    fn event_receivers(&self, name: &[u8]) -> Vec<watch::Receiver<()>> {
        let of = |registration: &CounterRegistration| {
            Some(locked(&registration.counters).get(name)?.event_written.subscribe())
        };
        self.all().values().filter_map(of).collect()
    }

    /// An empty name means all counters. The response says whether it was the last counter.
    pub(crate) fn remove(&self, name: &Text, id: &Bytes) -> Answer {
        let mut all = self.all();
        let is_over = all.get(id).is_some_and(|registration| {
            let mut counters = locked(&registration.counters);
            counters.remove(name.as_bytes());
            name.is_empty() || counters.is_empty()
        });
        if is_over {
            all.remove(id);
        }
        Answer::of(if is_over { Status::Success } else { Status::NotExecuted })
    }
}
