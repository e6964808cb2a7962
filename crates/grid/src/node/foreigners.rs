//! Members that speak another version of the wire, as during an upgrade from a release with another one. They are in the view,
//! and have no cache together with those of this version: who speaks it is not waited for, and who would need it to open a cache
//! is told.

use consort_group::Address;

use super::{Cache, Node, NodeEvent};
use crate::OpenError;
use crate::command::{Body, CacheId};
use crate::wire::VERSION;

impl Node {
    /// A frame of another version has come. Whether that is news.
    pub(super) fn meet_foreigner(&mut self, from: &Address, theirs: u8) -> bool {
        if self.cx.foreigners.insert(from.clone(), theirs) == Some(theirs) {
            return false;
        }
        // Whoever has spoken first: it hears of us, too, by anything of this version.
        self.cx.send(from, CacheId(0), 0, Body::Left);
        self.coordinator.go_on_without(&mut self.cx, from);
        let joining = self.caches.iter().filter(|(_, cache)| cache.installed.is_none() && !cache.is_local());
        let refused: Vec<(CacheId, OpenError)> =
            joining.filter_map(|(id, cache)| Some((*id, self.foreign_coordinator(cache)?))).collect();
        for (cache, error) in refused {
            self.close(cache);
            self.cx.events.push_back(NodeEvent::Refused { cache, error });
        }
        true
    }

    /// Why a cache cannot be opened now, if it is for the coordinator's version.
    pub(super) fn foreign_coordinator(&self, cache: &Cache) -> Option<OpenError> {
        let member = self.cx.coordinator.clone().filter(|_| !cache.is_local())?;
        let theirs = *self.cx.foreigners.get(&member)?;
        let (cache, member) = (cache.config.name.clone(), member.into());
        Some(OpenError::OtherVersion { cache, member, theirs, ours: VERSION })
    }
}
