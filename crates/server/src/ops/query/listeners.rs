//! Listeners with a query as their filter, and continuous queries (facts section 2.7).

use std::sync::Arc;

use bytes::Bytes;
use consort_cache::{EntryEvent, EventKind};
use consort_hotrod::ops::listener::{Factory, Listener};
use consort_query::{Compiled, Exceeded};

use super::factory;
use crate::catalog::caches::Caches;
use crate::catalog::served_cache::ServedCache;
use crate::ops::filter::{CONTINUOUS_QUERY, QUERY_FILTER};
use crate::reply::Refusal;

#[derive(Clone, Debug)]
pub(crate) struct ListenerQuery {
    compiled: Arc<Compiled>,
    /// It needs the previous values of entries.
    pub(crate) is_continuous: bool,
}

impl ListenerQuery {
    pub(crate) async fn from_listener(
        caches: &Caches,
        served: &ServedCache,
        listener: &Listener,
    ) -> Result<Option<Self>, Refusal> {
        let is_one = |factory: &&Factory| matches!(factory.name.as_str(), QUERY_FILTER | CONTINUOUS_QUERY);
        let Some(factory) = listener.filter.as_ref().filter(is_one) else { return Ok(None) };
        if listener.converter.as_ref().is_some_and(|converter| converter.name != factory.name) {
            let text = format!("'{}' has to be both filter and converter", factory.name.as_str());
            return Err(Refusal::new(text));
        }
        let compiled = factory::compiled(caches, served, factory).await?;
        let is_continuous = factory.name.as_str() == CONTINUOUS_QUERY;
        Ok(Some(Self { compiled: Arc::new(compiled), is_continuous }))
    }

    /// `None` if the event does not change the result.
    pub(crate) fn event_content(&self, event: &EntryEvent<Bytes, Bytes>) -> Result<Option<Bytes>, Exceeded> {
        let version = event.version.0;
        let found = event.value.as_ref();
        if !self.is_continuous {
            return found.map_or(Ok(None), |found| self.compiled.filter_event(found, version));
        }
        let is_new = matches!(event.kind, EventKind::Created | EventKind::Existing);
        let is_gone = matches!(event.kind, EventKind::Removed | EventKind::Expired);
        let holds = |value: &Bytes| self.compiled.plan.holds(value);
        // An unknown previous value may have matched or not.
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
            // The current value comes with its next event.
            None => None,
        })
    }
}
