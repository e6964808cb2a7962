//! A client's counter listeners: one per counter, shared by its streams (facts section 2.14).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use consort_hotrod::Text;
use consort_hotrod::ops::event::CounterState;

use crate::connection::sinks::ServerEvent;
use crate::subscription::{ByteSize, SharedListener, SubscriptionSpec};

/// The value and state of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterValue {
    /// The value.
    pub value: i64,
    /// Whether a change was cut off at a bound; always [`CounterState::Valid`] if unbounded.
    pub state: CounterState,
}

#[derive(Clone, Copy)]
pub(crate) struct CounterChange {
    pub(crate) old: CounterValue,
    pub(crate) new: CounterValue,
}

impl ByteSize for CounterChange {
    fn bytes(&self) -> usize {
        0
    }
}

impl CounterChange {
    pub(crate) fn from_event(event: ServerEvent) -> Option<Self> {
        let ServerEvent::Counter(event) = event else { return None };
        let value = |(value, state)| CounterValue { value, state };
        Some(Self { old: value(event.old), new: value(event.new) })
    }
}

/// The listeners by counter name; the start of another one removes ended ones.
#[derive(Default)]
pub(crate) struct CounterListenerTable(Mutex<BTreeMap<Text, Weak<SharedListener<CounterChange>>>>);

impl CounterListenerTable {
    pub(crate) fn listener(
        &self,
        name: &Text,
        spec: impl FnOnce() -> SubscriptionSpec<CounterChange>,
    ) -> Arc<SharedListener<CounterChange>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = all.get(name).and_then(Weak::upgrade).filter(|listener| !listener.has_ended())
        {
            return listener;
        }
        all.retain(|_, listener| listener.strong_count() > 0);
        let listener = SharedListener::begin(spec());
        all.insert(name.clone(), Arc::downgrade(&listener));
        listener
    }
}
