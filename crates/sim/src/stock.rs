//! Stock configurations with the changes that a simulation makes.

use consort_conf::{STOCK, Variables, parse_stack};
use consort_group::config::{ProtocolConfig, StackConfig};

pub(crate) type Change = (&'static str, &'static str, &'static str);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discovery {
    Local,
    /// Every host name resolves to the first member.
    Own,
}

/// Protocols that ask routers, which a simulation does not have.
const ASKS_ROUTERS: &[&str] = &["TCPGOSSIP", "TUNNEL"];

/// Returns the stock stacks that can be simulated: no stacks that others include, and none whose discovery asks
/// routers.
pub fn simulated_stacks() -> impl Iterator<Item = &'static str> {
    let names = STOCK.iter().map(|(name, _)| *name).filter(|name| !name.ends_with("-default.xml"));
    names.filter(|name| stock(name, &[], Discovery::Own).is_ok())
}

/// Begins a name of a stock stack with SYM_ENCRYPT below its NAKACK.
const ENCRYPTED: &str = "encrypted-";

fn encrypt(config: &mut StackConfig) -> Result<(), String> {
    let at = config.protocols.iter().position(|protocol| protocol.short_name().starts_with("NAKACK"));
    let at = at.ok_or_else(|| "the stack has no NAKACK, below which messages are encrypted".to_owned())?;
    let position = config.protocols[at].position;
    let attributes =
        [("keystore_name", "simulated"), ("sym_algorithm", "AES/CBC/PKCS5Padding"), ("sym_iv_length", "16")];
    let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned(), position)).into();
    config.protocols.insert(at, ProtocolConfig { name: "SYM_ENCRYPT".to_owned(), attributes, position });
    Ok(())
}

/// A stock configuration with these attributes changed, where it has the protocol. The name may begin with
/// `encrypted-`.
pub(crate) fn stock(name: &str, changes: &[Change], discovery: Discovery) -> Result<StackConfig, String> {
    let (name, is_encrypted) = match name.strip_prefix(ENCRYPTED) {
        Some(name) => (name, true),
        None => (name, false),
    };
    let (_, text) = STOCK
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| format!("there is no stock stack {name}"))?;
    let stack = parse_stack(name, text, &Variables::new()).map_err(|error| error.to_string())?;
    let mut config = stack.config;
    if is_encrypted {
        encrypt(&mut config)?;
    }
    let asks = |name: &&str| config.protocols.iter().any(|protocol| protocol.short_name() == *name);
    if let Some(protocol) = ASKS_ROUTERS.iter().find(|name| asks(name)) {
        return Err(format!("{name} has {protocol}, which asks routers: a simulation has none"));
    }
    for (protocol, attribute, value) in changes {
        let Some(found) = config.protocols.iter_mut().find(|found| found.short_name() == *protocol) else {
            continue;
        };
        match found.attributes.iter_mut().find(|(name, _, _)| name == attribute) {
            Some((_, own, _)) => (*value).clone_into(own),
            None => found.attributes.push(((*attribute).to_owned(), (*value).to_owned(), found.position)),
        }
    }
    for protocol in &mut config.protocols {
        if discovery == Discovery::Local && matches!(protocol.short_name(), "TCPPING" | "PING") {
            protocol.name = "LOCAL_PING".to_owned();
            protocol.attributes.retain(|(name, _, _)| name == "num_discovery_runs");
        }
    }
    Ok(config)
}

/// Timeouts by which a run of seconds shows the events of minutes in a deployment.
pub(crate) const QUICK: &[Change] = &[
    ("MERGE3", "min_interval", "500ms"),
    ("MERGE3", "max_interval", "2s"),
    ("FD_ALL3", "timeout", "4s"),
    ("FD_ALL3", "interval", "500ms"),
    ("STABLE", "desired_avg_gossip", "2s"),
    ("GMS", "join_timeout", "500ms"),
    // Low limits, so that a few seconds of traffic use them up and turn them over.
    ("UNICAST3", "conn_close_timeout", "5s"),
    ("UNICAST4", "conn_close_timeout", "5s"),
    ("MFC", "max_credits", "100K"),
    ("UFC", "max_credits", "100K"),
    ("FRAG2", "frag_size", "500"),
];
