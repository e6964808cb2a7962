use std::sync::Arc;

use consort_group::Address;

/// The application's side of sites. No method may block: events beyond those that may wait are dropped
/// ([`Sites::dropped_events`](super::Sites::dropped_events)).
pub trait SiteListener: Send + Sync + 'static {
    /// These sites can be reached now.
    fn sites_up(&self, sites: &[Arc<str>]) {
        let _ = sites;
    }

    /// These sites cannot be reached any more.
    fn sites_down(&self, sites: &[Arc<str>]) {
        let _ = sites;
    }

    /// A message of this member did not reach its site, because no site master has a route to it.
    fn site_unreachable(&self, site: &str) {
        let _ = site;
    }

    /// A message to this member of another site did not reach it: the view of its site does not have it (RELAY3).
    fn member_unreachable(&self, member: &Address) {
        let _ = member;
    }
}

impl<L: SiteListener + ?Sized> SiteListener for Arc<L> {
    fn sites_up(&self, sites: &[Arc<str>]) {
        (**self).sites_up(sites);
    }
    fn sites_down(&self, sites: &[Arc<str>]) {
        (**self).sites_down(sites);
    }
    fn site_unreachable(&self, site: &str) {
        (**self).site_unreachable(site);
    }
    fn member_unreachable(&self, member: &Address) {
        (**self).member_unreachable(member);
    }
}

/// The sites that a member can reach.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SiteStatus {
    /// The other sites that can be reached, in order.
    pub reachable: Vec<Arc<str>>,
    /// Whether this member is site master.
    pub is_site_master: bool,
}
