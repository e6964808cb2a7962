//! The routes of a site master: the masters of other sites, as the views of the bridges have them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::sticky::choose;
use super::{SITE_NAME_BYTES_MAX, SITE_NAMES_BYTES_MAX, SITES_MAX};
use crate::{Address, Rng, Uuid};

/// A bridge's number, and a site master in it.
pub(super) type Route = (usize, Address);

/// Headers have the own site besides these.
const ROUTED_SITES_MAX: usize = SITES_MAX - 1;

/// Bounded by the bridges' views, [`ROUTED_SITES_MAX`], [`SITE_NAMES_BYTES_MAX`] and the local view.
pub(super) struct Routes {
    own: Arc<str>,
    sites: BTreeMap<Arc<str>, Vec<Route>>,
    /// The routes of local senders, which stay while they exist.
    chosen: BTreeMap<(Uuid, Arc<str>), Route>,
}

impl Routes {
    pub(super) fn new(own: Arc<str>) -> Self {
        Self { own, sites: BTreeMap::new(), chosen: BTreeMap::new() }
    }

    /// Replaces the members of a bridge, and returns how many have a site beyond the limits.
    pub(super) fn set_members(&mut self, bridge: usize, members: &[Address]) -> usize {
        self.sites.retain(|_, routes| {
            routes.retain(|(of, master)| *of != bridge || members.contains(master));
            !routes.is_empty()
        });
        let mut bytes: usize = self.sites.keys().map(|site| site.len()).sum();
        let mut refused = 0;
        for member in members {
            let Some(site) = member.site().filter(|site| **site != *self.own) else { continue };
            let route = (bridge, member.clone());
            let is_full = self.sites.len() >= ROUTED_SITES_MAX
                || site.len() > SITE_NAME_BYTES_MAX
                || bytes + site.len() > SITE_NAMES_BYTES_MAX;
            match self.sites.get_mut(site) {
                Some(routes) if routes.contains(&route) => {}
                Some(routes) => routes.push(route),
                None if is_full => refused += 1,
                None => {
                    bytes += site.len();
                    self.sites.insert(site.into(), vec![route]);
                }
            }
        }
        refused
    }

    pub(super) fn clear(&mut self) {
        self.sites.clear();
        self.chosen.clear();
    }

    /// Forgets the choices of senders that are no longer members.
    pub(super) fn retain_senders(&mut self, members: &[Address]) {
        let uuids: BTreeSet<Uuid> = members.iter().filter_map(Address::uuid).collect();
        self.chosen.retain(|(sender, _), _| uuids.contains(sender));
    }

    pub(super) fn names(&self) -> BTreeSet<Arc<str>> {
        self.sites.keys().cloned().collect()
    }

    pub(super) fn has(&self, site: &str) -> bool {
        self.sites.contains_key(site)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = (&str, &[Route])> {
        self.sites.iter().map(|(site, routes)| (&**site, &routes[..]))
    }

    /// Returns the route of a sender's messages to a site. The choice of a member is kept.
    pub(super) fn pick(&mut self, site: &str, sender: &Address, is_member: bool) -> Option<Route> {
        let (name, routes) = self.sites.get_key_value(site)?;
        let key = (sender.uuid().unwrap_or_default(), name.clone());
        if let Some(route) = self.chosen.get(&key).filter(|route| routes.contains(route)) {
            return Some(route.clone());
        }
        let route = choose(sender, routes, |(_, master)| master)?.clone();
        if is_member {
            self.chosen.insert(key, route.clone());
        }
        Some(route)
    }

    /// Returns any route to a site.
    #[cfg_attr(not(feature = "injected-bugs"), allow(dead_code))]
    pub(super) fn pick_any(&self, site: &str, rng: &mut Rng) -> Option<Route> {
        let routes = self.sites.get(site)?;
        routes.get(rng.below(routes.len() as u64) as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::member;

    fn master(n: u64, site: &str) -> Address {
        member(n).in_site(site, None)
    }

    #[test]
    fn sites_of_bridges_are_limited_in_number_and_names_in_length() {
        let mut routes = Routes::new("lon".into());
        let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
        let many = (0..SITES_MAX as u64).map(|n| master(n + 1, &n.to_string()));
        let refused = routes.set_members(0, &many.chain([master(9, &long)]).collect::<Vec<_>>());
        assert_eq!(refused, 2);
        assert_eq!(routes.names().len(), ROUTED_SITES_MAX);
        routes.set_members(0, &[master(9, &long)]);
        assert!(routes.is_empty());
        let long = "x".repeat(SITE_NAME_BYTES_MAX - 3);
        let many: Vec<Address> = (0..100).map(|n| master(n + 1, &format!("{long}{n:03}"))).collect();
        routes.set_members(0, &many);
        routes.set_members(1, &many);
        assert_eq!(routes.names().len(), SITE_NAMES_BYTES_MAX / SITE_NAME_BYTES_MAX);
    }

    #[test]
    fn routes_follow_the_views_of_each_bridge() {
        let mut routes = Routes::new("lon".into());
        routes.set_members(0, &[master(1, "lon"), master(2, "nyc"), master(3, "nyc")]);
        routes.set_members(1, &[master(4, "sfo")]);
        let names = |routes: &Routes| routes.names().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&routes), ["nyc", "sfo"]);
        routes.set_members(0, &[master(1, "lon"), master(3, "nyc")]);
        assert_eq!(names(&routes), ["nyc", "sfo"], "the other bridge's sites stay");
        routes.set_members(0, &[]);
        assert_eq!(names(&routes), ["sfo"]);
        assert_eq!(routes.pick("sfo", &member(9), true), Some((1, master(4, "sfo"))));
        assert_eq!(routes.pick("nyc", &member(9), true), None);
    }

    #[test]
    fn sender_keeps_its_route_to_each_site_while_it_exists() {
        let mut routes = Routes::new("lon".into());
        let (mut nyc, sfo) = (vec![master(1, "nyc")], [master(20, "sfo"), master(21, "sfo")]);
        routes.set_members(1, &sfo);
        routes.set_members(0, &nyc);
        let before = routes.pick("sfo", &member(9), true);
        for n in 2..8 {
            nyc.push(master(n, "nyc"));
            routes.set_members(0, &nyc);
            assert_eq!(routes.pick("nyc", &member(9), true), Some((0, master(1, "nyc"))));
            assert_eq!(routes.pick("sfo", &member(9), true), before);
        }
        routes.set_members(0, &nyc[3..]);
        let next = routes.pick("nyc", &member(9), true);
        routes.set_members(0, &nyc);
        assert_eq!(routes.pick("nyc", &member(9), true), next, "the old route does not come back");
        routes.retain_senders(&[]);
        assert!(routes.chosen.is_empty());
        routes.pick("nyc", &member(9), false);
        assert!(routes.chosen.is_empty(), "senders outside the view do not grow the table");
    }
}
