//! `<interfaces>` and `<socket-bindings>`: the addresses and ports that a file names.

use std::collections::BTreeMap;

use consort_net::{BindAddr, IpVersion};

use super::document::Node;
use super::problem::Problems;
use super::section::Section;

/// Kinds of addresses, and their selectors.
const SELECTORS: &[(&str, &str)] = &[
    ("loopback", "LOOPBACK"),
    ("non-loopback", "NON_LOOPBACK"),
    ("site-local", "SITE_LOCAL"),
    ("link-local", "LINK_LOCAL"),
    ("global", "GLOBAL"),
    ("match-interface", "match-interface:"),
    ("match-address", "match-address:"),
    ("match-host", "match-host:"),
];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SocketBinding {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Interfaces and bindings by name.
#[derive(Default)]
pub(super) struct Network {
    interfaces: BTreeMap<String, String>,
    pub(super) bindings: BTreeMap<String, SocketBinding>,
}

impl Network {
    pub(super) fn read_interfaces(&mut self, node: &Node, problems: &mut Problems) {
        let mut section = Section::new(node);
        let all: Vec<&Node> = section.children("interface").chain(section.children("interfaces")).collect();
        section.finish(problems);
        for interface in all {
            let mut section = Section::new(interface);
            let Some(name) = section.required("name", problems) else { continue };
            let mut hosts = Vec::new();
            for kind in interface.children.iter().map(|child| &child.name) {
                if kind == "inet-address" || kind == "any-address" || selector(kind).is_some() {
                    section.mark(kind);
                }
            }
            section.finish(problems);
            for choice in &interface.children {
                hosts.extend(host(choice, problems));
            }
            // As in Infinispan, the first choice that matches an address of the host.
            match hosts.into_iter().next() {
                Some(host) => {
                    self.interfaces.insert(name.to_owned(), host);
                }
                None => problems
                    .refuse(interface.place, format!("interface `{name}` matches no address of this host")),
            }
        }
    }

    pub(super) fn read_bindings(&mut self, node: &Node, problems: &mut Problems) {
        let mut section = Section::new(node);
        let default = section.required("default-interface", problems);
        let offset: i32 = section.parsed("port-offset", problems).unwrap_or(0);
        let mut all: Vec<&Node> = section.children("socket-binding").collect();
        for list in section.children("bindings") {
            all.extend(
                list.children.iter().filter(|child| matches!(&child.name[..], "bindings" | "socket-binding")),
            );
            if !list.attributes.is_empty() {
                all.push(list);
            }
        }
        section.finish(problems);
        for binding in all {
            let mut section = Section::new(binding);
            let name = section.required("name", problems);
            let port: Option<i32> =
                section.required("port", problems).and_then(|_| section.parsed("port", problems));
            let interface = section.text("interface").or(default);
            section.finish(problems);
            let (Some(name), Some(port), Some(interface)) = (name, port, interface) else { continue };
            let Some(host) = self.interfaces.get(interface) else {
                let known: Vec<&str> = self.interfaces.keys().map(String::as_str).collect();
                let text = format!("no interface `{interface}`; interfaces: {}", known.join(", "));
                problems.refuse(binding.place, text);
                continue;
            };
            let Some(port) = port.checked_add(offset).and_then(|port| u16::try_from(port).ok()) else {
                problems.refuse(binding.place, format!("port {port} with offset {offset} is no port"));
                continue;
            };
            self.bindings.insert(name.to_owned(), SocketBinding { host: host.clone(), port });
        }
    }
}

fn selector(kind: &str) -> Option<&'static str> {
    SELECTORS.iter().find(|(name, _)| *name == kind).map(|(_, selector)| *selector)
}

/// Returns the address that a choice matches; `None` if this host has no such address.
fn host(choice: &Node, problems: &mut Problems) -> Option<String> {
    let mut section = Section::new(choice);
    let has_value =
        matches!(&choice.name[..], "inet-address" | "match-interface" | "match-address" | "match-host");
    let value = if has_value { Some(section.required("value", problems)?) } else { None };
    section.finish(problems);
    match (&choice.name[..], value) {
        ("inet-address", Some(address)) => Some(address.to_owned()),
        ("any-address", _) => Some("0.0.0.0".to_owned()),
        (kind, value) => {
            let text = format!("{}{}", selector(kind)?, value.unwrap_or_default());
            let parsed: BindAddr = match text.parse() {
                Ok(parsed) => parsed,
                Err(error) => {
                    problems.refuse(choice.place, format!("<{kind}>: {error}"));
                    return None;
                }
            };
            parsed.choose_of_host(IpVersion::default()).ok().map(|interface| interface.ip.to_string())
        }
    }
}
