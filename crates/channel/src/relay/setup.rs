use consort_conf::{BridgeConfig, ConfigError, SiteConfig, Variables, load_site, load_stack};
use consort_group::config::{ProtocolConfig, StackConfig};
use consort_group::protocols::registry::{self, ValueError};
use consort_group::protocols::{Relay2Config, Relay3Config};
use consort_group::{Address, ForwardRule, Rng, Uuid};

/// The files that a site master needs, and the kind of addresses of the site's members.
pub(crate) struct RelaySetup {
    pub(crate) site: String,
    addresses: SiteAddresses,
    pub(crate) bridges: Vec<BridgeSetup>,
    pub(crate) forwards: Vec<ForwardRule>,
}

enum SiteAddresses {
    Plain,
    /// They tell whether their member can become site master.
    Tagged(bool),
    /// RELAY3's have the site, too.
    OfSite(bool),
}

/// A bridge: its cluster and its stack.
#[derive(Clone)]
pub(crate) struct BridgeSetup {
    pub(crate) cluster: String,
    pub(crate) stack: StackConfig,
}

impl RelaySetup {
    /// Reads the files. An invalid bridge is an error at once, not when the member becomes site master.
    pub(crate) fn read(
        stack: &StackConfig,
        protocol: &ProtocolConfig,
        variables: &Variables,
    ) -> Result<Self, ConfigError> {
        let fail = |error| ConfigError::value(stack, error);
        let is_relay3 = protocol.short_name() == "RELAY3";
        let (site, config, addresses) = if is_relay3 {
            let config: Relay3Config = registry::properties(protocol).map_err(fail)?;
            (config.site, config.config, SiteAddresses::OfSite(config.can_become_site_master))
        } else {
            let config: Relay2Config = registry::properties(protocol).map_err(fail)?;
            let is_tagged = config.enable_address_tagging;
            let tagged = SiteAddresses::Tagged(config.can_become_site_master);
            (config.site, config.config, if is_tagged { tagged } else { SiteAddresses::Plain })
        };
        let SiteConfig { bridges, forwards, .. } = load_site(&config, &site, variables)?;
        if !is_relay3 && !forwards.is_empty() {
            return Err(fail(ValueError {
                protocol: "RELAY2".to_owned(),
                what: format!(
                    "forwards of site `{site}` have no effect on RELAY2, in JGroups either: give both sites a common bridge, or \
                     use RELAY3 at all sites"
                ),
                position: protocol.position,
            }));
        }
        let bridges = bridges.into_iter().map(|bridge| BridgeSetup::read(bridge, variables));
        Ok(Self { bridges: bridges.collect::<Result<_, _>>()?, site, addresses, forwards })
    }

    /// Returns a new address for the member.
    pub(crate) fn address(&self, rng: &mut Rng, name: &str) -> Address {
        match self.addresses {
            SiteAddresses::Plain => Address::random(rng),
            SiteAddresses::Tagged(can) => Address::tagged(Uuid::random(rng), can),
            SiteAddresses::OfSite(can) => Address::of_site(Uuid::random(rng), &self.site, name, can),
        }
    }
}

impl BridgeSetup {
    fn read(bridge: BridgeConfig, variables: &Variables) -> Result<Self, ConfigError> {
        let stack = load_stack(&bridge.stack, variables)?.config;
        consort_conf::check_required_layers(&stack)?;
        for (name, why) in REFUSED {
            if let Some(found) = stack.protocols.iter().find(|protocol| protocol.short_name() == *name) {
                let error = ValueError {
                    protocol: (*name).to_owned(),
                    what: format!("bridge `{}`: {why}", bridge.cluster),
                    position: found.position,
                };
                return Err(ConfigError::value(&stack, error));
            }
        }
        Ok(Self { cluster: bridge.cluster, stack })
    }
}

/// Protocols with which a bridge does not work.
const REFUSED: &[(&str, &str)] = &[
    ("RELAY2", "a bridge cannot be a site itself: remove it from the bridge's stack"),
    ("RELAY3", "a bridge cannot be a site itself: remove it from the bridge's stack"),
    (
        "FILE_PING",
        "its files have no sites, by which site masters know each other: use TCPPING, MPING, PING, TCPGOSSIP, DNS_PING or \
         JDBC_PING2",
    ),
];

#[cfg(test)]
mod tests {
    use consort_conf::parse_stack;

    use super::*;

    #[test]
    fn bridge_that_cannot_work_is_refused_with_the_reason() {
        let directory = std::env::temp_dir().join(format!("consort-relay-setup-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        write(
            "relay.xml",
            "<RelayConfiguration><sites><site name=\"lon\"><bridges><bridge name=\"global\" config=\"bridge.xml\"/>\
             </bridges></site></sites></RelayConfiguration>",
        );
        let source = directory.join("lon.xml").display().to_string();
        let text =
            "<config><TCP/><PING/><NAKACK2/><GMS/><RELAY2 site=\"lon\" config=\"relay.xml\"/></config>";
        let stack = parse_stack(&source, text, &Variables::new()).unwrap().config;
        let read = |discovery: &str| {
            write("bridge.xml", &format!("<config><TCP/>{discovery}<NAKACK2/><UNICAST3/><GMS/></config>"));
            RelaySetup::read(&stack, &stack.protocols[4], &Variables::new())
        };
        let setup = read("<PING/>").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((&*setup.site, &*setup.bridges[0].cluster), ("lon", "global"));
        let local = setup.address(&mut Rng::new(1), "A");
        assert!(!local.is_of_site());
        let relay3 = text.replace("RELAY2", "RELAY3");
        let unable = relay3.replace("site=", "can_become_site_master=\"false\" site=");
        let unable = parse_stack(&source, &unable, &Variables::new()).unwrap().config;
        let stack3 = parse_stack(&source, &relay3, &Variables::new()).unwrap().config;
        for (stack, can) in [(&unable, false), (&stack3, true)] {
            let setup = RelaySetup::read(stack, &stack.protocols[4], &Variables::new()).unwrap();
            let address = setup.address(&mut Rng::new(1), "A");
            assert_eq!((&*address.to_string(), address.can_become_site_master()), ("A:lon", can));
        }
        let error = read("<FILE_PING location=\"/tmp\"/>").err().unwrap().to_string();
        assert!(error.contains("FILE_PING: bridge `global`: its files have no sites"), "{error}");
        let error = read("").err().unwrap().to_string();
        assert!(error.contains("GMS needs a discovery"), "{error}");
        write(
            "relay.xml",
            "<RelayConfiguration><sites><site name=\"lon\"><bridges><bridge name=\"global\" config=\"bridge.xml\"/>\
             </bridges><forwards><forward to=\"sfo\" gateway=\"nyc\"/></forwards></site></sites></RelayConfiguration>",
        );
        let error = read("<PING/>").err().unwrap().to_string();
        assert!(error.contains("forwards of site `lon` have no effect on RELAY2"), "{error}");
        let setup = RelaySetup::read(&stack3, &stack3.protocols[4], &Variables::new()).unwrap();
        assert_eq!(setup.forwards.len(), 1);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
