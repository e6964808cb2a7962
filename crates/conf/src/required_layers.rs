//! The check for layers that members need, as JGroups makes it by protocols' events.

use consort_group::config::StackConfig;

use crate::error::{ConfigError, Fault};
use crate::relay::relay_of;

/// Protocols that deliver to members of the own cluster only.
const BELOW_SITES: &[&str] = &[
    "NAKACK2", "NAKACK3", "NAKACK4", "UNICAST3", "UNICAST4", "STABLE", "GMS", "MFC", "MFC_NB", "UFC",
    "UFC_NB",
];

/// Checks that there is a GMS, and below it a discovery and a NAKACK, that the discovery works over the transport, and that
/// RELAY3 is above the layers that deliver within a site.
///
/// # Errors
///
/// The missing layer, with GMS' place, or the discovery, with its own.
pub fn check_required_layers(stack: &StackConfig) -> Result<(), ConfigError> {
    let named = |wanted: &dyn Fn(&str) -> bool| {
        stack.protocols.iter().position(|protocol| wanted(protocol.short_name()))
    };
    let Some(gms) = named(&|name| name == "GMS") else {
        let fault = Fault::Structure("the stack has no pbcast.GMS, which members need for views".to_owned());
        return Err(ConfigError::new(&stack.source, None, fault));
    };
    let below = |wanted: &dyn Fn(&str) -> bool| named(wanted).is_some_and(|at| at < gms);
    let is_discovery = |name: &str| name.ends_with("PING") || matches!(name, "TCPGOSSIP" | "JDBC_PING2");
    let over_tunnel = |name: &str| is_discovery(name) && name != "PING";
    if stack.protocols.first().is_some_and(|protocol| protocol.short_name() == "TUNNEL")
        && let Some(at) = named(&over_tunnel)
    {
        let name = stack.protocols[at].short_name();
        let fault = Fault::Structure(format!(
            "{name} finds no member over TUNNEL, whose members have no physical addresses: replace it by PING"
        ));
        return Err(ConfigError::at(stack, stack.protocols[at].position, fault));
    }
    relay_of(stack)?;
    if let Some(relay) = named(&|name| name == "RELAY3")
        && let Some(above) =
            stack.protocols[relay..].iter().find(|above| BELOW_SITES.contains(&above.short_name()))
    {
        let fault = Fault::Structure(format!(
            "{} above RELAY3 would wait for answers of members of other sites: put RELAY3 at the end of the stack",
            above.short_name()
        ));
        return Err(ConfigError::at(stack, stack.protocols[relay].position, fault));
    }
    let missing = if !below(&is_discovery) {
        "a discovery below it, such as TCPPING or PING, to find other members"
    } else if !below(&|name| name.starts_with("NAKACK")) {
        "a NAKACK below it (pbcast.NAKACK2, NAKACK4), or views would be lost"
    } else {
        return Ok(());
    };
    let fault = Fault::Structure(format!("GMS needs {missing}"));
    Err(ConfigError::at(stack, stack.protocols[gms].position, fault))
}

#[cfg(test)]
mod tests {
    use super::{BELOW_SITES, check_required_layers};
    use crate::{STOCK, Variables, parse_stack};

    #[test]
    fn jdbc_ping2_is_a_discovery() {
        let text = "<config><TCP/><JDBC_PING2 connection_url=\"jdbc:postgresql:/\"/><pbcast.NAKACK2/><pbcast.GMS/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        assert!(check_required_layers(&stack.config).is_ok());
    }

    fn error(text: &str) -> String {
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        check_required_layers(&stack.config).unwrap_err().to_string()
    }

    #[test]
    fn stock_stacks_have_all_required_layers() {
        for (name, text) in STOCK.iter().filter(|(name, _)| !name.ends_with("-default.xml")) {
            let stack = parse_stack(name, text, &Variables::new()).unwrap();
            check_required_layers(&stack.config).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn a_discovery_by_physical_addresses_over_tunnel_is_refused() {
        for name in ["TCPPING", "TCPGOSSIP", "FILE_PING location=\"d\""] {
            let text = format!("<config>\n<TUNNEL/>\n<{name}/>\n<pbcast.NAKACK2/>\n<pbcast.GMS/></config>");
            let error = error(&text);
            assert!(error.starts_with("my.xml:3:1: ") && error.contains("replace it by PING"), "{error}");
        }
    }

    #[test]
    fn relay3_below_what_delivers_within_a_site_is_refused() {
        let text = |top: &str| {
            format!(
                "<config><TCP/><PING/><pbcast.NAKACK2/>\n<relay.RELAY3 site=\"a\" config=\"r.xml\"/>{top}</config>"
            )
        };
        for name in BELOW_SITES {
            let gms = if *name == "GMS" { "" } else { "<pbcast.GMS/>" };
            let text = text(&format!("<{name}/>{gms}"));
            let once =
                if name.starts_with("NAKACK") { text.replacen("<pbcast.NAKACK2/>", "", 1) } else { text };
            let error = error(&once);
            let expected = format!("my.xml:2:1: {name} above RELAY3");
            assert!(error.starts_with(&expected) && error.contains("at the end"), "{error}");
        }
        let both = error(&text("<relay.RELAY2 site=\"a\" config=\"r.xml\"/><pbcast.GMS/>"));
        assert!(both.contains("the stack has RELAY3 and RELAY2"), "{both}");
    }

    #[test]
    fn a_missing_layer_is_reported_with_gms_place() {
        assert_eq!(
            error("<config><TCP/></config>"),
            "my.xml: the stack has no pbcast.GMS, which members need for views"
        );
        let no_discovery = error("<config>\n<TCP/>\n<pbcast.NAKACK2/>\n<pbcast.GMS/></config>");
        assert!(no_discovery.starts_with("my.xml:4:1: GMS needs a discovery below it"), "{no_discovery}");
        let too_high = error("<config>\n<TCP/><PING/>\n<pbcast.GMS/>\n<pbcast.NAKACK2/></config>");
        assert!(too_high.starts_with("my.xml:3:1: GMS needs a NAKACK below it"), "{too_high}");
    }
}
