//! Names of attributes in JGroups 4 and 5.0 to 5.1, which later releases renamed. Stacks of that time load with them.

use consort_group::config::{Position, StackConfig};

use crate::error::{ConfigError, Fault};
use crate::known_names::is_transport;

/// The earlier and the current names of transports' attributes. Values mean the same.
const RENAMED: &[(&str, &str)] = &[
    ("bundler_capacity", "bundler.capacity"),
    ("diag_enable_tcp", "diag.enable_tcp"),
    ("diag_enable_udp", "diag.enable_udp"),
    ("diagnostics_addr", "diag.mcast_addr"),
    ("diagnostics_bind_addr", "diag.bind_addr"),
    ("diagnostics_bind_interfaces", "diag.bind_interfaces"),
    ("diagnostics_passcode", "diag.passcode"),
    ("diagnostics_port", "diag.port"),
    ("diagnostics_port_range", "diag.port_range"),
    ("diagnostics_ttl", "diag.ttl"),
    ("enable_diagnostics", "diag.enabled"),
    ("max_bundle_size", "bundler.max_size"),
    ("message_processing_policy.max_buffer_size", "msg_processing_policy.max_buffer_size"),
    ("thread_dumps_threshold", "thread_pool.thread_dumps_threshold"),
];

/// An attribute under its name of JGroups 4, which is read as the attribute of today's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenamedAttribute {
    /// The protocol.
    pub protocol: String,
    /// The name in the file.
    pub earlier: &'static str,
    /// The name in JGroups 5.5.
    pub current: &'static str,
    /// Its place.
    pub position: Position,
}

impl RenamedAttribute {
    /// Returns the earlier and the current name of each attribute. All are transports'.
    pub fn names() -> &'static [(&'static str, &'static str)] {
        RENAMED
    }

    /// Returns all of them as one line: `TCP.enable_diagnostics is diag.enabled (tcp.xml:3:5), …`.
    pub fn line(all: &[Self], stack: &StackConfig) -> Option<String> {
        let lines = all.iter().map(|one| {
            let Self { protocol, earlier, current, position } = one;
            format!("{protocol}.{earlier} is {current} ({}:{position})", stack.file(*position))
        });
        let lines: Vec<String> = lines.collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}

/// Gives attributes their current names. An attribute that is set under both names is a problem.
pub(crate) fn rename(stack: &mut StackConfig, problems: &mut Vec<ConfigError>) -> Vec<RenamedAttribute> {
    let mut renamed = Vec::new();
    let mut twice = Vec::new();
    for protocol in stack.protocols.iter_mut().filter(|protocol| is_transport(protocol.short_name())) {
        let short = protocol.short_name().to_owned();
        for (earlier, current) in RENAMED {
            let Some(at) = protocol.attributes.iter().position(|(name, ..)| name == earlier) else {
                continue;
            };
            let position = protocol.attributes[at].2;
            if protocol.get(current).is_some() {
                let text = format!(
                    "attribute {earlier} of {short} is the earlier name of {current}, which is also set; remove it"
                );
                twice.push((position, text));
                protocol.attributes.remove(at);
                continue;
            }
            protocol.attributes[at].0 = (*current).to_owned();
            renamed.push(RenamedAttribute { protocol: short.clone(), earlier, current, position });
        }
    }
    problems.extend(
        twice.into_iter().map(|(position, text)| ConfigError::at(stack, position, Fault::Structure(text))),
    );
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Variables, parse_stack};

    #[test]
    fn attributes_of_jgroups_4_are_read_under_their_current_names() {
        let text = "<config><UDP enable_diagnostics=\"false\" max_bundle_size=\"8500\" diagnostics_port=\"7501\"/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        let udp = &stack.config.protocols[0];
        for (name, value) in [("diag.enabled", "false"), ("bundler.max_size", "8500"), ("diag.port", "7501")]
        {
            assert_eq!(udp.get(name), Some(value), "{name}");
        }
        assert_eq!(udp.get("max_bundle_size"), None);
        let line = RenamedAttribute::line(&stack.renamed, &stack.config).unwrap();
        assert!(line.contains("UDP.enable_diagnostics is diag.enabled (my.xml:1:14)"), "{line}");
        assert_eq!(stack.renamed.len(), 3);
    }

    #[test]
    fn wrong_value_of_an_earlier_name_is_reported() {
        let text = "<config><TCP max_bundle_size=\"much\"/></config>";
        let error = parse_stack("my.xml", text, &Variables::new()).unwrap_err().to_string();
        assert!(error.starts_with("my.xml:1:14: TCP: attribute bundler.max_size: `much`"), "{error}");
    }

    #[test]
    fn attribute_under_both_names_is_refused() {
        let text = "<config><TCP diag.enabled=\"true\" enable_diagnostics=\"false\"/></config>";
        let error = parse_stack("my.xml", text, &Variables::new()).unwrap_err().to_string();
        assert!(
            error.starts_with("my.xml:1:34: attribute enable_diagnostics of TCP is the earlier name"),
            "{error}"
        );
    }

    #[test]
    fn earlier_names_belong_to_transports_only() {
        let text = "<config><TCP/><PING enable_diagnostics=\"false\"/></config>";
        let error = parse_stack("my.xml", text, &Variables::new()).unwrap_err().to_string();
        assert!(error.contains("unknown attribute `enable_diagnostics` of PING"), "{error}");
    }

    #[test]
    fn every_current_name_is_an_attribute_of_tcp() {
        let known = include_str!("jgroups-attributes.txt");
        for (earlier, current) in RENAMED {
            assert!(known.split_whitespace().any(|name| name.trim_end_matches('!') == *current), "{current}");
            assert!(!known.split_whitespace().any(|name| name == *earlier), "{earlier}");
        }
    }
}
