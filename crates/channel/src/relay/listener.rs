use std::sync::Arc;

/// The application's side of sites. No method may block.
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
}

/// The sites that a member can reach.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SiteStatus {
    /// The other sites that can be reached, in order.
    pub reachable: Vec<Arc<str>>,
    /// Whether this member is site master.
    pub is_site_master: bool,
}
