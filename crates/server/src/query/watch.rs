//! Listeners whose filter is a query: they are told what it finds, or what joins and leaves that (facts section 2.7).

use std::sync::Arc;

use bytes::Bytes;
use consort_cache::{EntryEvent, EventKind};
use consort_hotrod::ops::listener::{Factory, Listener};
use consort_query::{Compiled, Exceeded};

use super::factory;
use crate::answer::Refusal;
use crate::caches::Caches;
use crate::served::Served;

/// The factory of what a query finds.
pub(crate) const FILTER: &str = "query-dsl-filter-converter-factory";

/// The factory of what joins and leaves that.
pub(crate) const CONTINUOUS: &str = "continuous-query-filter-converter-factory";

/// A query that events are held against.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    compiled: Arc<Compiled>,
    /// Whether it is told what joins and leaves, for which values have to be known that were there before.
    pub(crate) is_continuous: bool,
}

impl Watch {
    /// The query that is meant, if the listener has one.
    pub(crate) async fn of(
        caches: &Caches,
        served: &Served,
        listener: &Listener,
    ) -> Result<Option<Self>, Refusal> {
        let is_one = |factory: &&Factory| matches!(factory.name.as_str(), FILTER | CONTINUOUS);
        let Some(factory) = listener.filter.as_ref().filter(is_one) else { return Ok(None) };
        if listener.converter.as_ref().is_some_and(|converter| converter.name != factory.name) {
            let text = format!("'{}' is filter and converter, or neither", factory.name.as_str());
            return Err(Refusal::new(text));
        }
        let compiled = factory::compiled(caches, served, factory).await?;
        let is_continuous = factory.name.as_str() == CONTINUOUS;
        Ok(Some(Self { compiled: Arc::new(compiled), is_continuous }))
    }

    /// What is told of an event; nothing of one that changes nothing.
    ///
    /// # Errors
    ///
    /// [`Exceeded`] if a value cannot be examined within the limit.
    pub(crate) fn told(&self, event: &EntryEvent<Bytes, Bytes>) -> Result<Option<Bytes>, Exceeded> {
        let version = event.version.0;
        let found = event.value.as_ref();
        if !self.is_continuous {
            return found.map_or(Ok(None), |found| self.compiled.filter_event(found, version));
        }
        let is_new = matches!(event.kind, EventKind::Created | EventKind::Existing);
        let is_gone = matches!(event.kind, EventKind::Removed | EventKind::Expired);
        let holds = |value: &Bytes| self.compiled.plan.holds(value);
        // One that nobody knows any more may have been either.
        let before = match &event.previous {
            Some(previous) => Some(holds(&previous.value)?),
            None => is_new.then_some(false),
        };
        let left = || (before != Some(false)).then(|| self.compiled.left_event(&event.key));
        Ok(match found.filter(|_| !is_gone) {
            Some(value) => {
                self.compiled.match_event(&event.key, value, version, before == Some(true))?.or_else(left)
            }
            None if is_gone => left(),
            // What it has now comes with its next event.
            None => None,
        })
    }
}
