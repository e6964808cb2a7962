//! Members with another wire version, as during an upgrade. They are in the view, share no cache with this
//! member and delay nothing. A caller that needs one of them to open a cache receives an error.

use consort_group::Address;

use crate::OpenError;
use crate::command::Body;
use crate::config::CacheId;
use crate::cx::Cx;
use crate::node::{Node, NodeEvent};
use crate::replica::CacheReplica;
use crate::wire::VERSION;

impl Node {
    pub(crate) fn note_incompatible_member(&mut self, from: &Address, theirs: u8) -> bool {
        if self.cx.foreigners.insert(from.clone(), theirs) == Some(theirs) {
            return false;
        }
        // Any frame of this version shows the other member that this one has another version, whichever member sent first.
        self.cx.send(from, CacheId(0), 0, Body::Left);
        self.coordinator.resume_without(&mut self.cx, from);
        let joining = self
            .caches
            .iter()
            .filter(|(_, cache)| cache.shared.installed.is_none() && !cache.shared.is_local());
        let refused: Vec<(CacheId, OpenError)> = joining
            .filter_map(|(id, cache)| Some((*id, incompatible_coordinator(&self.cx, cache)?)))
            .collect();
        for (cache, error) in refused {
            self.close(cache);
            self.cx.events.push_back(NodeEvent::Refused { cache, error });
        }
        true
    }
}

pub(super) fn incompatible_coordinator(cx: &Cx, cache: &CacheReplica) -> Option<OpenError> {
    let member = cx.coordinator.clone().filter(|_| !cache.shared.is_local())?;
    let theirs = *cx.foreigners.get(&member)?;
    let (cache, member) = (cache.shared.config.name.clone(), member.into());
    Some(OpenError::IncompatibleWire { cache, member, theirs, ours: VERSION })
}
