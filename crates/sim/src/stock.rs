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

/// Protocols that ask programs which a simulation does not have.
const ASKS_OTHERS: &[(&str, &str)] = &[
    ("TCPGOSSIP", "asks routers"),
    ("TUNNEL", "asks routers"),
    ("KUBE_PING", "asks name servers and the API of Kubernetes"),
];

/// Returns the stock stacks that can be simulated: no stacks that others include, and none whose discovery asks
/// routers or Kubernetes.
pub fn simulated_stacks() -> impl Iterator<Item = &'static str> {
    let names = STOCK.iter().map(|(name, _)| *name).filter(|name| !name.ends_with("-default.xml"));
    names.filter(|name| stock(name, &[], Discovery::Own).is_ok())
}

/// Beginnings of names of stock stacks with other protocols.
const VARIANTS: &[(&str, Variant)] = &[
    ("encrypted-", |config| encrypt(config, "SYM_ENCRYPT", &[("keystore_name", "simulated")])),
    ("asym-encrypted-", |config| {
        encrypt(config, "ASYM_ENCRYPT", &[("asym_keylength", "1024"), ("change_key_on_leave", "true")])
    }),
    ("ssl-encrypted-", |config| exchange_by(config, "SSL_KEY_EXCHANGE")),
    ("dh-encrypted-", |config| exchange_by(config, "DH_KEY_EXCHANGE")),
    ("fd-sock-", watch_by_fd_sock),
];

type Variant = fn(&mut StackConfig) -> Result<(), String>;

/// A simulated connection has no TLS.
fn exchange_by(config: &mut StackConfig, protocol: &str) -> Result<(), String> {
    let own = [("use_external_key_exchange", "true"), ("change_key_on_leave", "true")];
    encrypt(config, "ASYM_ENCRYPT", &own)?;
    let at = config.protocols.iter().position(|protocol| protocol.short_name() == "ASYM_ENCRYPT");
    let at = at.ok_or_else(|| "the stack has no ASYM_ENCRYPT".to_owned())?;
    let (name, position) = (protocol.to_owned(), config.protocols[at].position);
    config.protocols.insert(at, ProtocolConfig { name, attributes: Vec::new(), position });
    Ok(())
}

fn watch_by_fd_sock(config: &mut StackConfig) -> Result<(), String> {
    let found = config.protocols.iter_mut().find(|protocol| protocol.short_name() == "FD_SOCK2");
    let found = found.ok_or_else(|| "the stack has no FD_SOCK2, which FD_SOCK replaces".to_owned())?;
    (found.name, found.attributes) = ("FD_SOCK".to_owned(), Vec::new());
    Ok(())
}

/// Puts an encrypting protocol below NAKACK.
fn encrypt(config: &mut StackConfig, protocol: &str, own: &[(&str, &str)]) -> Result<(), String> {
    let at = config.protocols.iter().position(|protocol| protocol.short_name().starts_with("NAKACK"));
    let at = at.ok_or_else(|| "the stack has no NAKACK, below which messages are encrypted".to_owned())?;
    let position = config.protocols[at].position;
    let cipher = [("sym_algorithm", "AES/CBC/PKCS5Padding"), ("sym_iv_length", "16")];
    let attributes = own.iter().chain(&cipher);
    let attributes = attributes.map(|(name, value)| ((*name).to_owned(), (*value).to_owned(), position));
    let attributes = attributes.collect();
    config.protocols.insert(at, ProtocolConfig { name: protocol.to_owned(), attributes, position });
    Ok(())
}

/// A stock configuration with these attributes changed, where it has the protocol. The name may begin with
/// `encrypted-`, `asym-encrypted-`, `ssl-encrypted-`, `dh-encrypted-` or `fd-sock-`.
pub(crate) fn stock(name: &str, changes: &[Change], discovery: Discovery) -> Result<StackConfig, String> {
    let variant = VARIANTS.iter().find_map(|(start, change)| Some((name.strip_prefix(start)?, *change)));
    let (name, change) = variant.unwrap_or((name, |_| Ok(())));
    let (_, text) = STOCK
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| format!("there is no stock stack {name}"))?;
    let stack = parse_stack(name, text, &Variables::new()).map_err(|error| error.to_string())?;
    let mut config = stack.config;
    change(&mut config)?;
    let asks = |name: &str| config.protocols.iter().any(|protocol| protocol.short_name() == name);
    if let Some((protocol, why)) = ASKS_OTHERS.iter().find(|(name, _)| asks(name)) {
        return Err(format!("{name} has {protocol}, which {why}: a simulation has none"));
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
