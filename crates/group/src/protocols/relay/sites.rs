//! The reachable sites, as the first site master announces them to all members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::config::difference;
use super::{Relay, SITE_NAME_BYTES_MAX, SITES_MAX, raise};
use crate::{Address, Cx, Flags, HeaderBody, Message, RelayEvent, RelayHeader, Time, TimerKey, relay_kind};

/// How long a site of several members may be without site master before it counts as unreachable, with RELAY3's
/// `delay_sites_down`. JGroups waits for two times the bridge's `join_timeout`, by default as long.
const LEAVING: Duration = Duration::from_secs(6);

const LEFT: TimerKey = TimerKey(1);

/// The sites that this member takes for reachable, and those that were; at most [`SITES_MAX`] of each.
#[derive(Default)]
pub(super) struct KnownSites {
    /// Each with the other site that told of it; none if a bridge of this site has it.
    up: BTreeMap<Arc<str>, Option<Arc<str>>>,
    down: BTreeSet<Arc<str>>,
    /// Sites without site master, and when they count as unreachable. All are up.
    leaving: BTreeMap<Arc<str>, Time>,
}

impl KnownSites {
    /// Returns the sites that were not reachable before. A site that a bridge of this one has stays so.
    fn add(&mut self, sites: &[Arc<str>], via: Option<&Arc<str>>) -> Vec<Arc<str>> {
        let mut added = Vec::new();
        for site in sites.iter().filter(|site| site.len() <= SITE_NAME_BYTES_MAX) {
            let is_full = self.up.len() >= SITES_MAX;
            match self.up.get_mut(site) {
                Some(known) if known.is_some() => *known = via.cloned(),
                Some(_) => {}
                None if is_full => {}
                None => {
                    self.up.insert(site.clone(), via.cloned());
                    self.down.remove(site);
                    added.push(site.clone());
                }
            }
        }
        added
    }

    /// Returns the removed sites: these, those of which a removed one has told, and so on. Another site cannot take back one
    /// that a bridge of this site has.
    fn remove(&mut self, sites: &[Arc<str>], via: Option<&Arc<str>>) -> Vec<Arc<str>> {
        let sites: BTreeSet<&Arc<str>> = sites.iter().collect();
        let is_named = |site: &Arc<str>, known: &Option<Arc<str>>| {
            sites.contains(site) && (via.is_none() || known.is_some())
        };
        let mut removed: BTreeSet<Arc<str>> =
            self.up.extract_if(.., |site, known| is_named(site, known)).map(|(site, _)| site).collect();
        let mut beyond: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for (site, known) in &self.up {
            if let Some(known) = known {
                beyond.entry(known.clone()).or_default().push(site.clone());
            }
        }
        let mut next: Vec<Arc<str>> = removed.iter().cloned().collect();
        while let Some(gone) = next.pop() {
            for site in beyond.remove(&gone).into_iter().flatten() {
                if self.up.remove(&site).is_some() {
                    removed.insert(site.clone());
                    next.push(site);
                }
            }
        }
        for site in &removed {
            self.leaving.remove(site);
            if self.down.len() < SITES_MAX {
                self.down.insert(site.clone());
            }
        }
        removed.into_iter().collect()
    }

    /// The sites that bridges of this site have, as members know.
    fn own(&self) -> BTreeSet<Arc<str>> {
        self.up.iter().filter(|(_, via)| via.is_none()).map(|(site, _)| site.clone()).collect()
    }

    pub(super) fn line(&self) -> String {
        self.up.keys().map(|site| &**site).collect::<Vec<_>>().join(", ")
    }
}

impl Relay {
    /// Applies an announced change, raises an event with the sites that it adds or removes, and returns them.
    fn change(
        &mut self,
        cx: &mut Cx<'_>,
        is_up: bool,
        sites: &[Arc<str>],
        via: Option<&Arc<str>>,
    ) -> Vec<Arc<str>> {
        let changed = if is_up { self.known.add(sites, via) } else { self.known.remove(sites, via) };
        if !changed.is_empty() {
            if !is_up {
                self.topology.remove(&changed);
            }
            let event = if is_up { RelayEvent::SitesUp } else { RelayEvent::SitesDown };
            raise(cx, event(changed.clone()));
        }
        changed
    }

    /// The first site master announces the difference between its routes and what members know.
    pub(super) fn announce(&mut self, cx: &mut Cx<'_>) {
        if !self.own.is_first_master(cx) || !self.has_bridge_view {
            return;
        }
        let (routed, own) = (self.routes.names(), self.known.own());
        self.known.leaving.retain(|site, _| !routed.contains(site));
        let (down, up) = (difference(&own, &routed), difference(&routed, &own));
        let down: Vec<Arc<str>> = down.into_iter().filter(|site| !self.is_leaving(cx, site)).collect();
        if let Some(&next) = self.known.leaving.values().min() {
            cx.arm(LEFT, next.since(cx.now()));
        }
        for (is_up, sites) in [(false, down), (true, up)] {
            let changed = self.change(cx, is_up, &sites, None);
            // A bridge may have now what another site has told of. Sites beyond one that is down are down, too.
            let told = if is_up { sites } else { changed };
            if !told.is_empty() {
                self.send_announcement(cx, None, (is_up, &told), None);
                self.tell_sites(cx, is_up, &told);
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

    /// Tells other sites of a change, and new ones of all sites (RELAY3).
    fn tell_sites(&mut self, cx: &mut Cx<'_>, is_up: bool, sites: &[Arc<str>]) {
        if !self.own.is_relay3() {
            return;
        }
        let sender = self.own.in_site(cx, &cx.local().clone());
        let all: Vec<Arc<str>> = self.known.up.keys().cloned().collect();
        for other in self.routes.names() {
            let told = if is_up && sites.contains(&other) { &all[..] } else { sites };
            let told: Vec<Option<String>> =
                told.iter().filter(|site| **site != other).map(|site| Some(site.to_string())).collect();
            if told.is_empty() {
                continue;
            }
            let kind = if is_up { relay_kind::SITES_UP } else { relay_kind::SITES_DOWN };
            let mut header = RelayHeader::new(kind, None, Some(sender.clone()));
            header.sites = told;
            self.send_to_sites(cx, &header, &Message::empty(None), &[other]);
        }
    }

    /// The first site master tells a joiner, or all members, of the sites that are up: they may have received no earlier
    /// announcements. All members also hear of those that are down.
    pub(super) fn announce_known(&self, cx: &mut Cx<'_>, to: Option<&Address>) {
        if !self.own.is_first_master(cx) {
            return;
        }
        let down: Vec<Arc<str>> = self.known.down.iter().cloned().collect();
        if !down.is_empty() && to.is_none() {
            self.send_announcement(cx, None, (false, &down), None);
        }
        let mut by_source: BTreeMap<Option<Arc<str>>, Vec<Arc<str>>> = BTreeMap::new();
        for (site, via) in &self.known.up {
            by_source.entry(via.clone()).or_default().push(site.clone());
        }
        for (via, sites) in by_source {
            self.send_announcement(cx, to.cloned(), (true, &sites), via.as_deref());
        }
    }

    /// `via` is the site that has told of it.
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

    /// A site master has announced a change. One of another site has told the sites that it knows.
    pub(super) fn receive_announcement(&mut self, cx: &mut Cx<'_>, header: &RelayHeader) {
        let sites = header.sites.iter().flatten().take(SITES_MAX);
        // JGroups announces the own site as well.
        let others: Vec<Arc<str>> =
            sites.filter(|site| ***site != *self.own.name).map(|site| site.as_str().into()).collect();
        let via = header.original_sender.as_ref().filter(|_| self.own.is_relay3()).and_then(Address::site);
        let via: Option<Arc<str>> = via.filter(|via| **via != *self.own.name).map(Into::into);
        if via.as_ref().is_some_and(|via| via.len() > SITE_NAME_BYTES_MAX) {
            return;
        }
        self.change(cx, header.kind == relay_kind::SITES_UP, &others, via.as_ref());
    }
}
