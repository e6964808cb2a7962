//! Stacks from files, or by the names of those that come with Consort.

use std::path::{Path, PathBuf};

use consort_group::config::{Position, StackConfig};

use crate::error::ConfigError;
use crate::known::{Ignored, check};
use crate::variables::Variables;
use crate::xml::{Element, read};

macro_rules! stock {
    ($($name:literal),+ $(,)?) => {
        /// The stacks that come with Consort: name and text. They have JGroups' names, protocols and values.
        pub const STOCK: &[(&str, &str)] = &[$(($name, include_str!(concat!("../stacks/", $name)))),+];
    };
}

stock! {
    "tcp.xml", "tcp-nio.xml", "tcp-new.xml", "udp.xml", "udp-new.xml", "sequencer.xml",
    "tcp-default.xml", "udp-default.xml", "nio-default.xml",
}

/// Files that include each other at most so deep.
const INCLUDES_MAX: usize = 5;

/// JGroups' system properties that win over an attribute in the file: protocol, attribute, property.
const OVERRIDES: &[(&str, &str, &str)] = &[
    ("TCP", "bind_addr", "jgroups.bind_addr"),
    ("TCP", "bind_port", "jgroups.bind_port"),
    ("TCP", "external_addr", "jgroups.external_addr"),
    ("TCP", "external_port", "jgroups.external_port"),
    ("TCP_NIO2", "bind_addr", "jgroups.bind_addr"),
    ("TCP_NIO2", "bind_port", "jgroups.bind_port"),
    ("TCP_NIO2", "external_addr", "jgroups.external_addr"),
    ("TCP_NIO2", "external_port", "jgroups.external_port"),
    ("UDP", "bind_addr", "jgroups.bind_addr"),
    ("UDP", "bind_port", "jgroups.bind_port"),
    ("UDP", "mcast_addr", "jgroups.udp.mcast_addr"),
    ("UDP", "mcast_port", "jgroups.udp.mcast_port"),
    ("UDP", "ip_ttl", "jgroups.udp.ip_ttl"),
    ("TCPPING", "initial_hosts", "jgroups.tcpping.initial_hosts"),
    ("MPING", "mcast_addr", "jgroups.mping.mcast_addr"),
    ("MPING", "mcast_port", "jgroups.mping.mcast_port"),
    ("MPING", "ip_ttl", "jgroups.mping.ip_ttl"),
    ("FILE_PING", "location", "jgroups.file.location"),
];

/// A stack that has been read and checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// What it says.
    pub config: StackConfig,
    /// Attributes that JGroups knows and that have no effect here.
    pub ignored: Vec<Ignored>,
}

/// Reads a stack: a file, or if there is none of this name, one of [`STOCK`].
///
/// # Errors
///
/// If it cannot be read, is not XML, or names a protocol or attribute that nobody knows.
pub fn load_stack(name: &str, variables: &Variables) -> Result<Stack, ConfigError> {
    let (text, directory) = file(name, None, None)?;
    finish(name, &text, directory.as_deref(), variables)
}

/// A stack from its text; `source` names it in errors. Includes are looked for in the current directory.
///
/// # Errors
///
/// As [`load_stack`].
pub fn parse_stack(source: &str, text: &str, variables: &Variables) -> Result<Stack, ConfigError> {
    finish(source, text, None, variables)
}

fn finish(
    source: &str,
    text: &str,
    directory: Option<&Path>,
    variables: &Variables,
) -> Result<Stack, ConfigError> {
    let mut config = StackConfig { source: source.to_owned(), protocols: Vec::new() };
    gather(&mut config, source, text, directory, variables, 0)?;
    for protocol in &mut config.protocols {
        let name = protocol.short_name().to_owned();
        for (_, attribute, property) in OVERRIDES.iter().filter(|(of, _, _)| *of == name) {
            let Some(value) = variables.get(property) else { continue };
            match protocol.attributes.iter_mut().find(|(own, _, _)| own == attribute) {
                Some((_, own, _)) => value.clone_into(own),
                None => {
                    protocol.attributes.push(((*attribute).to_owned(), value.to_owned(), protocol.position));
                }
            }
        }
    }
    let ignored = check(&config)?;
    Ok(Stack { config, ignored })
}

fn gather(
    config: &mut StackConfig,
    source: &str,
    text: &str,
    directory: Option<&Path>,
    variables: &Variables,
    depth: usize,
) -> Result<(), ConfigError> {
    for element in read(source, text, variables)? {
        match element {
            Element::Protocol(protocol) => config.protocols.push(protocol),
            Element::Include(name, position) if depth >= INCLUDES_MAX => {
                let what = format!("{name} is included by a file that is included, and so on, too deep");
                return Err(ConfigError::new(source, position, what));
            }
            Element::Include(name, position) => {
                let (text, directory) = file(&name, directory, Some((source, position)))?;
                gather(config, &name, &text, directory.as_deref(), variables, depth + 1)?;
            }
        }
    }
    Ok(())
}

/// A file's text and directory; the text of a stock file if there is no such file.
fn file(
    name: &str,
    directory: Option<&Path>,
    included: Option<(&str, Position)>,
) -> Result<(String, Option<PathBuf>), ConfigError> {
    let path = directory.map_or_else(|| PathBuf::from(name), |directory| directory.join(name));
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((text, path.parent().map(Path::to_path_buf))),
        Err(error) => {
            if let Some((_, text)) = STOCK.iter().find(|(stock, _)| *stock == name) {
                return Ok(((*text).to_owned(), None));
            }
            let names: Vec<&str> = STOCK.iter().map(|(name, _)| *name).collect();
            let what = format!(
                "cannot read {}: {error}; stacks that come along: {}",
                path.display(),
                names.join(", ")
            );
            Err(match included {
                Some((source, position)) => ConfigError::new(source, position, what),
                None => ConfigError::new(name, None, what),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stock_stack_loads() {
        for (name, _) in STOCK {
            let stack = load_stack(name, &Variables::new()).unwrap_or_else(|error| panic!("{error}"));
            assert!(!stack.config.protocols.is_empty(), "{name}");
        }
        let names = |name: &str| -> Vec<String> {
            let stack = load_stack(name, &Variables::new()).unwrap();
            stack.config.protocols.iter().map(|protocol| protocol.short_name().to_owned()).collect()
        };
        assert_eq!(
            names("tcp.xml").join(" "),
            "TCP TCPPING MERGE3 FD_SOCK2 FD_ALL3 VERIFY_SUSPECT2 BARRIER NAKACK2 UNICAST3 STABLE GMS MFC UFC \
             FRAG2 STATE_TRANSFER"
        );
        assert_eq!(
            names("sequencer.xml").join(" "),
            "UDP PING MERGE3 FD_SOCK2 FD_ALL3 VERIFY_SUSPECT NAKACK2 UNICAST3 STABLE GMS UFC MFC SEQUENCER FRAG2"
        );
    }

    #[test]
    fn system_properties_win_over_the_file() {
        let variables = Variables::new()
            .with("jgroups.bind_addr", "127.0.0.1")
            .with("transport-config", "udp-default.xml");
        let stack = load_stack("tcp.xml", &variables).unwrap();
        assert_eq!(stack.config.protocols[0].short_name(), "UDP");
        assert_eq!(stack.config.protocols[0].get("bind_addr"), Some("127.0.0.1"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named_with_the_alternatives() {
        let error = load_stack("tpc.xml", &Variables::new()).unwrap_err().to_string();
        assert!(error.contains("cannot read tpc.xml") && error.contains("tcp.xml, tcp-nio.xml"), "{error}");
        let error = parse_stack("my.xml", "<config>\n<include file=\"x.xml\"/></config>", &Variables::new());
        assert!(error.unwrap_err().to_string().starts_with("my.xml:2:1: cannot read x.xml"));
    }
}
