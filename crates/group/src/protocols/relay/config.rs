use std::collections::BTreeSet;
use std::sync::Arc;

use super::SITE_NAME_BYTES_MAX;
use crate::config::{Properties, Property, PropertyInfo};
use crate::{Address, ProtocolId, View};

/// The version of the protocol. Both share all code that does the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RelayKind {
    /// Members have plain addresses.
    Relay2,
    /// Members have addresses of their site, and messages cross several sites.
    Relay3,
}

impl RelayKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Relay2 => "RELAY2",
            Self::Relay3 => "RELAY3",
        }
    }

    pub(super) const fn id(self) -> ProtocolId {
        match self {
            Self::Relay2 => ProtocolId::RELAY2,
            Self::Relay3 => ProtocolId::RELAY3,
        }
    }
}

/// The settings of a layer of either kind.
pub(super) struct Settings {
    pub(super) kind: RelayKind,
    pub(super) site: Arc<str>,
    max_site_masters: usize,
    site_masters_ratio: f64,
    pub(super) relay_multicasts: bool,
    pub(super) delay_sites_down: bool,
    /// Whether site masters send the view of their site to other sites.
    pub(super) has_global_views: bool,
    /// The attributes with their values.
    pub(super) shown: Vec<(&'static str, String)>,
}

crate::properties! {
    /// RELAY2's properties.
    Relay2Config {
        /// The name of this member's site, which the file `config` has.
        site: String = String::new(),
        /// The file with the sites and their bridges (`RelayConfiguration`).
        config: String = String::new(),
        /// Whether this member can become site master. `false` needs `enable_address_tagging`, by which other members
        /// know it.
        can_become_site_master: bool = true,
        /// Whether the member's address tells other members whether it can become site master. All members of a site
        /// need the same value.
        enable_address_tagging: bool = false,
        /// How many members are site masters: the first ones of the view that can be.
        max_site_masters: usize = 1,
        /// The part of the members that are site masters, if these are more than `max_site_masters`.
        site_masters_ratio: f64 = 0.0,
        /// Whether multicasts go to all sites.
        relay_multicasts: bool = true,
    }
}

crate::properties! {
    /// RELAY3's properties.
    Relay3Config {
        /// The name of this member's site, which the file `config` has.
        site: String = String::new(),
        /// The file with the sites, their bridges and forwards (`RelayConfiguration`).
        config: String = String::new(),
        /// Whether this member can become site master, which its address tells other members.
        can_become_site_master: bool = true,
        /// How many members are site masters: the first ones of the view that can be.
        max_site_masters: usize = 1,
        /// The part of the members that are site masters, if these are more than `max_site_masters`.
        site_masters_ratio: f64 = 0.0,
        /// Whether a site of several members that lost its site master stays up for 6 s, until another member is site master.
        /// It needs `topo.global_views`, by which members know how many members a site has.
        delay_sites_down: bool = true,
    }
}

/// RELAY3's property of the views of sites.
#[derive(Clone, PartialEq, Debug)]
pub struct TopologyConfig {
    /// Whether site masters send the view of their site to other sites, whose members all receive it. `delay_sites_down`
    /// needs these views.
    pub global_views: bool,
}

impl Default for TopologyConfig {
    fn default() -> Self {
        Self { global_views: true }
    }
}

const GLOBAL_VIEWS: &str = "topo.global_views";

impl Properties for TopologyConfig {
    fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        (name == GLOBAL_VIEWS).then(|| bool::parse(value).map(|value| self.global_views = value))
    }

    fn show(&self) -> Vec<(&'static str, String)> {
        vec![(GLOBAL_VIEWS, self.global_views.show())]
    }

    fn list() -> Vec<PropertyInfo> {
        vec![PropertyInfo {
            name: GLOBAL_VIEWS,
            default: Self::default().global_views.show(),
            doc: "Whether site masters send the view of their site to other sites, whose members all receive it. \
                  `delay_sites_down` needs these views."
                .to_owned(),
        }]
    }
}

fn check_common(
    site: &str,
    config: &str,
    max_site_masters: usize,
    site_masters_ratio: f64,
) -> Result<(), (&'static str, String)> {
    if site.is_empty() {
        return Err(("site", "site is missing: set it to this member's site".to_owned()));
    }
    if site.len() > SITE_NAME_BYTES_MAX {
        let why = format!(
            "site has {} bytes, of which other sites take {SITE_NAME_BYTES_MAX}: shorten it",
            site.len()
        );
        return Err(("site", why));
    }
    if config.is_empty() {
        let why =
            "config is missing: set it to the file with the sites and their bridges (RelayConfiguration)";
        return Err(("config", why.to_owned()));
    }
    if max_site_masters == 0 {
        return Err(("max_site_masters", "max_site_masters must be greater than 0".to_owned()));
    }
    if !(0.0..=1.0).contains(&site_masters_ratio) {
        let why = format!("site_masters_ratio ({site_masters_ratio}) must be between 0 and 1");
        return Err(("site_masters_ratio", why));
    }
    Ok(())
}

impl Relay2Config {
    /// Checks that the member has a site and that the site has a master.
    ///
    /// # Errors
    ///
    /// The invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        check_common(&self.site, &self.config, self.max_site_masters, self.site_masters_ratio)?;
        if !self.can_become_site_master && !self.enable_address_tagging {
            let why = "can_become_site_master=\"false\" has no effect without enable_address_tagging=\"true\": set \
                       it at all members of the site";
            return Err(("can_become_site_master", why.to_owned()));
        }
        Ok(())
    }
}

impl Relay3Config {
    /// Checks that the member has a site and that the site has a master.
    ///
    /// # Errors
    ///
    /// The invalid attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        check_common(&self.site, &self.config, self.max_site_masters, self.site_masters_ratio)
    }
}

impl From<&Relay2Config> for Settings {
    fn from(config: &Relay2Config) -> Self {
        Self {
            kind: RelayKind::Relay2,
            site: config.site.as_str().into(),
            max_site_masters: config.max_site_masters,
            site_masters_ratio: config.site_masters_ratio,
            relay_multicasts: config.relay_multicasts,
            delay_sites_down: false,
            has_global_views: false,
            shown: config.show(),
        }
    }
}

impl Settings {
    pub(super) fn relay3(config: &Relay3Config, topology: &TopologyConfig) -> Self {
        Self {
            kind: RelayKind::Relay3,
            site: config.site.as_str().into(),
            max_site_masters: config.max_site_masters,
            site_masters_ratio: config.site_masters_ratio,
            relay_multicasts: true,
            delay_sites_down: config.delay_sites_down,
            has_global_views: topology.global_views,
            shown: [config.show(), topology.show()].concat(),
        }
    }

    /// Returns the site masters of a view: its first members that can be, or its coordinator if none can.
    pub(super) fn site_masters(&self, view: &View) -> Vec<Address> {
        let by_ratio = (self.site_masters_ratio * view.len() as f64) as usize;
        let count = self.max_site_masters.max(by_ratio);
        let able = view.members().iter().filter(|member| member.can_become_site_master());
        let masters: Vec<Address> = able.take(count).cloned().collect();
        if masters.is_empty() { view.coordinator().cloned().into_iter().collect() } else { masters }
    }
}

/// Returns the names that are in one set and not in the other, as a list.
pub(super) fn difference<T: Ord + Clone>(all: &BTreeSet<T>, without: &BTreeSet<T>) -> Vec<T> {
    all.difference(without).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{member, view};
    use crate::{Uuid, ViewId};

    fn config() -> Relay2Config {
        Relay2Config { site: "lon".into(), config: "relay.xml".into(), ..Relay2Config::default() }
    }

    #[test]
    fn settings_without_a_site_or_without_effect_are_refused() {
        assert_eq!(config().check(), Ok(()));
        let wrong = |change: fn(&mut Relay2Config)| {
            let mut config = config();
            change(&mut config);
            config.check().unwrap_err().0
        };
        assert_eq!(wrong(|config| config.site.clear()), "site");
        assert_eq!(wrong(|config| config.site = "x".repeat(SITE_NAME_BYTES_MAX + 1)), "site");
        assert_eq!(wrong(|config| config.config.clear()), "config");
        assert_eq!(wrong(|config| config.max_site_masters = 0), "max_site_masters");
        assert_eq!(wrong(|config| config.site_masters_ratio = 1.5), "site_masters_ratio");
        assert_eq!(wrong(|config| config.site_masters_ratio = f64::NAN), "site_masters_ratio");
        assert_eq!(wrong(|config| config.can_become_site_master = false), "can_become_site_master");
    }

    #[test]
    fn site_masters_are_the_first_members_that_can_be() {
        let masters = |max_site_masters, site_masters_ratio, view: &View| {
            Settings::from(&Relay2Config { max_site_masters, site_masters_ratio, ..config() })
                .site_masters(view)
        };
        let five = view(1, &[5, 4, 3, 2, 1]);
        assert_eq!(masters(1, 0.0, &five), [member(5)]);
        assert_eq!(masters(2, 0.0, &five), [member(5), member(4)]);
        assert_eq!(masters(9, 0.0, &five).len(), 5);
        assert_eq!(masters(1, 0.6, &five).len(), 3);
        assert_eq!(masters(2, 0.1, &five).len(), 2);
    }

    #[test]
    fn members_that_cannot_be_site_master_are_skipped_unless_none_can() {
        let tagged = |n, can| Address::tagged(Uuid { most: n, least: n }, can);
        let of = |members: Vec<Address>| {
            Settings::from(&config())
                .site_masters(&View::new(ViewId { creator: members[0].clone(), id: 1 }, members))
        };
        assert_eq!(of(vec![tagged(1, false), tagged(2, true), member(3)]), [member(2)]);
        assert_eq!(of(vec![tagged(1, false), member(3)]), [member(3)]);
        assert_eq!(of(vec![tagged(1, false), tagged(2, false)]), [member(1)]);
    }
}
