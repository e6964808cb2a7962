//! The reachable sites, which the first site master announces to all members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::config::difference;
use super::known_sites::Way;
use super::{Relay, SITE_NAME_BYTES_MAX, SITES_MAX, raise};
use crate::{
    Address, Cx, DropReason, Flags, HeaderBody, Message, RelayEvent, RelayHeader, TimerKey, relay_kind,
};

/// How long a site of several members may be without site master before it counts as unreachable, with RELAY3's
/// `delay_sites_down`. JGroups waits for two times the bridge's `join_timeout`, by default as long.
const LEAVING: Duration = Duration::from_secs(6);

const LEFT: TimerKey = TimerKey(1);

impl Relay {
    /// Adds a way to these sites, and raises an event with those that are reachable now.
    fn add_way(&mut self, cx: &mut Cx<'_>, sites: &[Arc<str>], way: &Way) {
        let added = self.known.add(sites, way);
        if added.refused > 0 {
            let refused = added.refused;
            cx.count_drop(DropReason::QueueFull, |_| {
                format!("ways to {refused} sites are beyond the limits")
            });
        }
        if !added.sites.is_empty() {
            raise(cx, RelayEvent::SitesUp(added.sites));
        }
    }

    /// Removes a way to these sites, or all ways, raises an event with those that have none left, and returns them.
    fn remove_way(&mut self, cx: &mut Cx<'_>, sites: &[Arc<str>], way: Option<&Way>) -> Vec<Arc<str>> {
        let removed = self.known.remove(sites, way);
        if !removed.is_empty() {
            self.topology.remove(&removed);
            raise(cx, RelayEvent::SitesDown(removed.clone()));
        }
        removed
    }

    /// The first site master announces the difference between its routes and the sites that members know.
    pub(super) fn announce(&mut self, cx: &mut Cx<'_>) {
        if !self.own.is_first_master(cx) || !self.has_bridge_view {
            return;
        }
        let (routed, known) = (self.routes.names(), self.known.direct());
        self.known.leaving.retain(|site, _| !routed.contains(site));
        let (lost, up) = (difference(&known, &routed), difference(&routed, &known));
        let lost: Vec<Arc<str>> = lost.into_iter().filter(|site| !self.is_leaving(cx, site)).collect();
        if let Some(&next) = self.known.leaving.values().min() {
            cx.arm(LEFT, next.since(cx.now()));
        }
        // Up first: a site that a bridge has now does not go down with the neighbour that has announced it.
        self.add_way(cx, &up, &None);
        let down = self.remove_way(cx, &lost, Some(&None));
        // A lost site may be reachable over another one. Members and this one keep the same ways.
        let rest: Vec<Arc<str>> = lost.into_iter().filter(|site| !down.contains(site)).collect();
        let own = self.own.name.clone();
        for (is_up, sites, via) in [(true, up, None), (false, down, None), (false, rest, Some(own))] {
            if sites.is_empty() {
                continue;
            }
            self.send_announcement(cx, None, (is_up, &sites), via.as_deref());
            if via.is_none() {
                self.announce_to_sites(cx, is_up, &sites);
            }
        }
    }

    /// Returns whether another member of the site may still become its site master.
    fn is_leaving(&mut self, cx: &Cx<'_>, site: &Arc<str>) -> bool {
        if !self.settings.delay_sites_down || !self.topology.has_several(site) {
            return false;
        }
        let now = cx.now();
        let until = *self.known.leaving.entry(site.clone()).or_insert(now + LEAVING);
        if until <= now {
            self.known.leaving.remove(site);
        }
        until > now
    }

    /// Sends a change to the other sites, and all known sites to new ones (RELAY3).
    fn announce_to_sites(&mut self, cx: &mut Cx<'_>, is_up: bool, sites: &[Arc<str>]) {
        if !self.own.is_relay3() {
            return;
        }
        let sender = self.own.in_site(cx, &cx.local().clone());
        let all: Vec<Arc<str>> = self.known.up.keys().cloned().collect();
        for other in self.routes.names() {
            let announced = if is_up && sites.contains(&other) { &all[..] } else { sites };
            let announced: Vec<Option<String>> =
                announced.iter().filter(|site| **site != other).map(|site| Some(site.to_string())).collect();
            if announced.is_empty() {
                continue;
            }
            let kind = if is_up { relay_kind::SITES_UP } else { relay_kind::SITES_DOWN };
            let mut header = RelayHeader::new(kind, None, Some(sender.clone()));
            header.sites = announced;
            self.send_to_sites(cx, &header, &Message::empty(None), &[other]);
        }
    }

    /// The first site master sends the reachable sites to a joiner, or to all members: they may have received no earlier
    /// announcements. All members also receive the sites that are down.
    pub(super) fn announce_known(&self, cx: &mut Cx<'_>, to: Option<&Address>) {
        if !self.own.is_first_master(cx) {
            return;
        }
        let down: Vec<Arc<str>> = self.known.down.iter().cloned().collect();
        if !down.is_empty() && to.is_none() {
            self.send_announcement(cx, None, (false, &down), None);
        }
        let mut by_way: BTreeMap<&Way, Vec<Arc<str>>> = BTreeMap::new();
        for (site, ways) in &self.known.up {
            for way in ways {
                by_way.entry(way).or_default().push(site.clone());
            }
        }
        for (way, sites) in by_way {
            self.send_announcement(cx, to.cloned(), (true, &sites), way.as_deref());
        }
    }

    /// `via` is the neighbour that has announced the sites, or this site. Without it sites that are up have a direct way, and
    /// sites that are down have no way at all.
    fn send_announcement(
        &self,
        cx: &mut Cx<'_>,
        dest: Option<Address>,
        (is_up, sites): (bool, &[Arc<str>]),
        via: Option<&str>,
    ) {
        let kind = if is_up { relay_kind::SITES_UP } else { relay_kind::SITES_DOWN };
        let mut header = RelayHeader::new(kind, None, via.map(Address::site_master));
        header.sites = sites.iter().map(|site| Some(site.to_string())).collect();
        let mut message =
            Message::empty(dest).with_header(self.own.header_id(), HeaderBody::Relay(Box::new(header)));
        if self.own.is_relay3() {
            // Site masters send the change to other sites themselves.
            message = message.with_flags(Flags::NO_RELAY);
        }
        cx.send(message);
    }

    /// Handles a site master's announcement of a change, of this site's bridges or of a neighbour.
    pub(super) fn receive_announcement(&mut self, cx: &mut Cx<'_>, header: &RelayHeader) {
        let sites = header.sites.iter().flatten().take(SITES_MAX);
        // JGroups announces the own site as well.
        let others: Vec<Arc<str>> =
            sites.filter(|site| ***site != *self.own.name).map(|site| site.as_str().into()).collect();
        let via = header.original_sender.as_ref().filter(|_| self.own.is_relay3()).and_then(Address::site);
        if via.is_some_and(|via| via.len() > SITE_NAME_BYTES_MAX) {
            return;
        }
        let way: Way = via.filter(|via| **via != *self.own.name).map(Into::into);
        if header.kind == relay_kind::SITES_UP {
            self.add_way(cx, &others, &way);
        } else {
            self.remove_way(cx, &others, via.is_some().then_some(&way));
        }
    }
}
