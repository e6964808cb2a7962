use consort_conf::{BridgeConfig, ConfigError, SiteConfig, Variables, load_site, load_stack};
use consort_group::config::{ProtocolConfig, StackConfig};
use consort_group::protocols::Relay2Config;
use consort_group::protocols::registry::{self, ValueError};

/// The files that a site master needs.
pub(crate) struct RelaySetup {
    pub(crate) config: Relay2Config,
    pub(crate) bridges: Vec<BridgeSetup>,
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
        let config: Relay2Config =
            registry::properties(protocol).map_err(|error| ConfigError::value(stack, error))?;
        let SiteConfig { bridges, .. } = load_site(&config.config, &config.site, &stack.source, variables)?;
        let bridges = bridges.into_iter().map(|bridge| BridgeSetup::read(bridge, variables));
        Ok(Self { bridges: bridges.collect::<Result<_, _>>()?, config })
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
        assert_eq!((&*setup.config.site, &*setup.bridges[0].cluster), ("lon", "global"));
        let error = read("<FILE_PING location=\"/tmp\"/>").err().unwrap().to_string();
        assert!(error.contains("FILE_PING: bridge `global`: its files have no sites"), "{error}");
        let error = read("").err().unwrap().to_string();
        assert!(error.contains("GMS needs a discovery"), "{error}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
