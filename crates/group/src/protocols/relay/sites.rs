//! The reachable sites, as the first site master announces them to all members.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::config::difference;
use super::{Relay2, SITE_NAME_BYTES_MAX, SITES_MAX};
use crate::{Address, Cx, HeaderBody, Message, ProtocolId, RelayEvent, RelayHeader, relay_kind};

/// The sites that this member takes for reachable, and those that were; at most [`SITES_MAX`] of each.
#[derive(Default)]
pub(super) struct KnownSites {
    up: BTreeSet<Arc<str>>,
    down: BTreeSet<Arc<str>>,
}

impl KnownSites {
    /// Returns the sites that were not reachable before.
    fn add(&mut self, sites: &[Arc<str>]) -> Vec<Arc<str>> {
        let mut added = Vec::new();
        for site in sites.iter().filter(|site| site.len() <= SITE_NAME_BYTES_MAX) {
            if self.up.len() < SITES_MAX && self.up.insert(site.clone()) {
                self.down.remove(site);
                added.push(site.clone());
            }
        }
        added
    }

    /// Returns the sites that were reachable before.
    fn remove(&mut self, sites: &[Arc<str>]) -> Vec<Arc<str>> {
        let removed: Vec<Arc<str>> = sites.iter().filter(|site| self.up.remove(*site)).cloned().collect();
        for site in &removed {
            if self.down.len() < SITES_MAX {
                self.down.insert(site.clone());
            }
        }
        removed
    }

    pub(super) fn line(&self) -> String {
        self.up.iter().map(|site| &**site).collect::<Vec<_>>().join(", ")
    }
}

impl Relay2 {
    /// Applies an announced change, and raises an event for what is new. Returns whether something is.
    fn change(&mut self, cx: &mut Cx<'_>, is_up: bool, sites: &[Arc<str>]) -> bool {
        let changed = if is_up { self.known.add(sites) } else { self.known.remove(sites) };
        if changed.is_empty() {
            return false;
        }
        let event = if is_up { RelayEvent::SitesUp(changed) } else { RelayEvent::SitesDown(changed) };
        Self::raise(cx, event);
        true
    }

    /// The first site master announces the difference between its routes and what members know.
    pub(super) fn announce(&mut self, cx: &mut Cx<'_>) {
        if !self.is_first_master(cx) || !self.has_bridge_view {
            return;
        }
        let routed = self.routes.names();
        let (down, up) = (difference(&self.known.up, &routed), difference(&routed, &self.known.up));
        for (is_up, sites) in [(false, down), (true, up)] {
            if self.change(cx, is_up, &sites) {
                Self::send_announcement(cx, None, is_up, &sites);
            }
        }
    }

    /// The first site master tells a joiner, or all members, of the sites that are up: they may have received no earlier
    /// announcements. All members also hear of those that are down.
    pub(super) fn announce_known(&self, cx: &mut Cx<'_>, to: Option<&Address>) {
        if !self.is_first_master(cx) {
            return;
        }
        for (is_up, sites) in [(false, &self.known.down), (true, &self.known.up)] {
            if !sites.is_empty() && (is_up || to.is_none()) {
                let sites: Vec<Arc<str>> = sites.iter().cloned().collect();
                Self::send_announcement(cx, to.cloned(), is_up, &sites);
            }
        }
    }

    fn send_announcement(cx: &mut Cx<'_>, dest: Option<Address>, is_up: bool, sites: &[Arc<str>]) {
        let kind = if is_up { relay_kind::SITES_UP } else { relay_kind::SITES_DOWN };
        let mut header = RelayHeader::new(kind, None, None);
        header.sites = sites.iter().map(|site| Some(site.to_string())).collect();
        let message =
            Message::empty(dest).with_header(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
        cx.send(message);
    }

    /// A site master has announced a change.
    pub(super) fn receive_announcement(&mut self, cx: &mut Cx<'_>, header: &RelayHeader) {
        let sites: Vec<Arc<str>> = header.sites.iter().flatten().map(|site| site.as_str().into()).collect();
        // JGroups announces the own site as well.
        let others: Vec<Arc<str>> = sites.into_iter().filter(|site| *site != self.site).collect();
        self.change(cx, header.kind == relay_kind::SITES_UP, &others);
    }
}
