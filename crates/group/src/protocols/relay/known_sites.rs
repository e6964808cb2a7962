//! The reachable sites as a member knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{SITE_NAME_BYTES_MAX, SITE_NAMES_BYTES_MAX, SITES_MAX};
use crate::Time;

/// How this site reaches another one: over the site of a neighbour on a bridge, which has announced it, or directly (`None`).
pub(super) type Way = Option<Arc<str>>;

/// The most ways that are kept to a site. A site that loses them all counts as unreachable, also if there was a further one.
pub const WAYS_MAX: usize = 16;

/// The most bytes of the names of neighbours in all ways.
pub const WAYS_BYTES_MAX: usize = 1 << 20;

/// The reachable sites and the former ones. At most [`SITES_MAX`] and [`SITE_NAMES_BYTES_MAX`] of each.
#[derive(Default)]
pub(super) struct KnownSites {
    /// Each has one way at least.
    pub(super) up: BTreeMap<Arc<str>, BTreeSet<Way>>,
    pub(super) down: BTreeSet<Arc<str>>,
    /// Sites without site master, and when they count as unreachable. All are up.
    pub(super) leaving: BTreeMap<Arc<str>, Time>,
}

/// The result of [`KnownSites::add`].
#[derive(Default)]
pub(super) struct Added {
    /// Sites that were not reachable before.
    pub(super) sites: Vec<Arc<str>>,
    /// The number of sites whose way is beyond the limits.
    pub(super) refused: usize,
}

fn bytes_of<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> usize {
    names.map(|name| name.len()).sum()
}

impl KnownSites {
    /// Adds a way to these sites.
    pub(super) fn add(&mut self, sites: &[Arc<str>], way: &Way) -> Added {
        let neighbour_bytes = way.as_ref().map_or(0, |neighbour| neighbour.len());
        let mut name_bytes = bytes_of(self.up.keys());
        let mut way_bytes = bytes_of(self.up.values().flatten().flatten());
        let mut added = Added::default();
        for site in sites {
            let ways = self.up.get(site);
            if ways.is_some_and(|ways| ways.contains(way)) {
                continue;
            }
            let has_room_for_way = way.is_none()
                || ways.is_none_or(|ways| ways.len() < WAYS_MAX)
                    && way_bytes + neighbour_bytes <= WAYS_BYTES_MAX;
            let has_room_for_site = ways.is_some()
                || self.up.len() < SITES_MAX
                    && site.len() <= SITE_NAME_BYTES_MAX
                    && name_bytes + site.len() <= SITE_NAMES_BYTES_MAX;
            if !has_room_for_way || !has_room_for_site {
                added.refused += 1;
                continue;
            }
            if ways.is_none() {
                name_bytes += site.len();
                self.down.remove(site);
                added.sites.push(site.clone());
            }
            way_bytes += neighbour_bytes;
            self.up.entry(site.clone()).or_default().insert(way.clone());
        }
        added
    }

    /// Removes one way to these sites, or all ways, and returns the sites that have none left. A site without direct way is no
    /// neighbour any more: it is removed from the ways to other sites.
    pub(super) fn remove(&mut self, sites: &[Arc<str>], way: Option<&Way>) -> Vec<Arc<str>> {
        let mut beyond = self.sites_by_neighbour();
        let is_direct = way.is_none_or(Option::is_none);
        let mut removed = BTreeSet::new();
        let mut former_neighbours = Vec::new();
        for site in sites {
            let Some(ways) = self.up.get_mut(site) else { continue };
            match way {
                Some(way) => _ = ways.remove(way),
                None => ways.clear(),
            }
            if ways.is_empty() {
                removed.insert(site.clone());
            }
            if ways.is_empty() || is_direct {
                former_neighbours.push(site.clone());
                self.leaving.remove(site);
            }
        }
        while let Some(neighbour) = former_neighbours.pop() {
            let sites = beyond.remove(&neighbour).unwrap_or_default();
            let way = Some(neighbour);
            for site in sites {
                let Some(ways) = self.up.get_mut(&site) else { continue };
                if ways.remove(&way) && ways.is_empty() {
                    removed.insert(site.clone());
                    former_neighbours.push(site);
                }
            }
        }
        for site in &removed {
            self.up.remove(site);
            self.leaving.remove(site);
            self.note_down(site);
        }
        removed.into_iter().collect()
    }

    /// The sites that have a way over a neighbour, by neighbour.
    fn sites_by_neighbour(&self) -> BTreeMap<Arc<str>, Vec<Arc<str>>> {
        let mut beyond: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for (site, ways) in &self.up {
            for neighbour in ways.iter().flatten() {
                beyond.entry(neighbour.clone()).or_default().push(site.clone());
            }
        }
        beyond
    }

    fn note_down(&mut self, site: &Arc<str>) {
        if self.down.len() < SITES_MAX && bytes_of(self.down.iter()) + site.len() <= SITE_NAMES_BYTES_MAX {
            self.down.insert(site.clone());
        }
    }

    /// The sites that a bridge of this site has.
    pub(super) fn direct(&self) -> BTreeSet<Arc<str>> {
        self.up.iter().filter(|(_, ways)| ways.contains(&None)).map(|(site, _)| site.clone()).collect()
    }

    pub(super) fn line(&self) -> String {
        self.up.keys().map(|site| &**site).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize, bytes: usize) -> Vec<Arc<str>> {
        (0..count).map(|n| format!("{n:0bytes$}").into()).collect()
    }

    #[test]
    fn names_of_sites_are_bounded_in_number_and_bytes() {
        let add = |sites: &[Arc<str>]| {
            let mut known = KnownSites::default();
            let added = known.add(sites, &None);
            (added.sites.len(), added.refused)
        };
        assert_eq!(add(&names(SITES_MAX + 5, 4)), (SITES_MAX, 5));
        let fit = SITE_NAMES_BYTES_MAX / SITE_NAME_BYTES_MAX;
        assert_eq!(add(&names(fit + 3, SITE_NAME_BYTES_MAX)), (fit, 3));
        assert_eq!(add(&names(1, SITE_NAME_BYTES_MAX + 1)), (0, 1));
    }

    #[test]
    fn former_sites_are_bounded_in_number_and_bytes() {
        let mut known = KnownSites::default();
        for bytes in [SITE_NAME_BYTES_MAX, SITE_NAME_BYTES_MAX - 1] {
            let sites = names(SITE_NAMES_BYTES_MAX / SITE_NAME_BYTES_MAX, bytes);
            known.add(&sites, &None);
            assert_eq!(known.remove(&sites, None).len(), sites.len());
        }
        assert_eq!(known.down.len(), SITE_NAMES_BYTES_MAX / SITE_NAME_BYTES_MAX);
        let mut known = KnownSites::default();
        for bytes in [4, 5] {
            known.add(&names(SITES_MAX, bytes), &None);
            known.remove(&names(SITES_MAX, bytes), None);
        }
        assert_eq!(known.down.len(), SITES_MAX);
    }

    #[test]
    fn ways_are_bounded_in_number_and_bytes() {
        let mut known = KnownSites::default();
        let sites = names(SITES_MAX, 4);
        let long = |n: usize| Some(format!("{n:0SITE_NAME_BYTES_MAX$}").into());
        assert_eq!(known.add(&sites, &long(0)).refused, 0);
        let fit = WAYS_BYTES_MAX / SITE_NAME_BYTES_MAX - SITES_MAX;
        assert_eq!(known.add(&sites, &long(1)).refused, SITES_MAX - fit);
        assert_eq!(known.add(&sites, &None).refused, 0, "a direct way has no name");
        known.remove(&sites, None);
        for n in 0..=WAYS_MAX {
            let refused = known.add(&sites[..1], &long(n)).refused;
            assert_eq!(refused, usize::from(n == WAYS_MAX));
        }
        assert_eq!(known.add(&sites[..1], &None).refused, 0);
    }
}
