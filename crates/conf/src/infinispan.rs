//! Stacks within Infinispan's configuration: `<infinispan><jgroups><stack>`. A stack may extend another one, or one that
//! Infinispan has without a file; `stack.combine` and `stack.position` say how its protocols change those of the other.

use std::path::Path;

use consort_group::config::{Position, ProtocolConfig};

use crate::error::{ConfigError, Fault};
use crate::tree::{Node, stack_tree};
use crate::variables::Variables;

pub(crate) const ROOT: &str = "infinispan";

/// The name of [`BUILT_IN`] in positions.
const BUILT_IN_NAME: &str = "Infinispan's own stacks";

const BUILT_IN: &str = include_str!("../stacks/infinispan.xml");

/// The stack of a file that names none.
const DEFAULT: &str = "udp";

/// One that extends itself must end.
const EXTENDS_MAX: usize = 10;

const COMBINE: &str = "stack.combine";
const POSITION: &str = "stack.position";

const COMBINATIONS: &str =
    "COMBINE, REPLACE, REMOVE, INSERT_ABOVE, INSERT_AFTER, INSERT_BELOW, INSERT_BEFORE";

/// The protocols of a stack, or the file that has them.
pub(crate) enum Found {
    Protocols(Vec<ProtocolConfig>),
    File { path: String, position: Position },
}

struct Definition {
    name: String,
    extends: Option<(String, Position)>,
    source: Source,
}

enum Source {
    /// Each with its own attributes for the combination.
    Protocols(Vec<ProtocolConfig>),
    File {
        path: String,
        position: Position,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    BuiltIn,
}

/// All stacks that a file may name.
pub(crate) struct Stacks {
    file: String,
    definitions: Vec<Definition>,
    /// Definitions before this index are the file's own.
    own: usize,
    /// The stack that the file's transport names.
    chosen: Option<(String, Position)>,
}

impl Stacks {
    /// Reads the file's stacks, and Infinispan's own under the file number `built_in` in positions. Adds problems.
    pub(crate) fn read(
        file: &str,
        text: &str,
        built_in: u16,
        variables: &Variables,
        problems: &mut Vec<ConfigError>,
    ) -> Self {
        let mut stacks = Self { file: file.to_owned(), definitions: Vec::new(), own: 0, chosen: None };
        match stack_tree(file, 0, text, variables, problems) {
            Ok(root) => stacks.add(&root, problems),
            Err(problem) => problems.push(problem),
        }
        stacks.own = stacks.definitions.len();
        match stack_tree(BUILT_IN_NAME, built_in, BUILT_IN, variables, problems) {
            Ok(root) => stacks.add(&root, problems),
            Err(problem) => problems.push(problem),
        }
        stacks
    }

    pub(crate) const fn built_in_name() -> &'static str {
        BUILT_IN_NAME
    }

    fn fail(&self, position: impl Into<Option<Position>>, what: impl Into<String>) -> ConfigError {
        let position = position.into();
        let is_built_in = position.is_some_and(|position| position.file != 0);
        let file = if is_built_in { BUILT_IN_NAME } else { &*self.file };
        ConfigError::new(file, position, Fault::Structure(what.into()))
    }

    fn add(&mut self, root: &Node, problems: &mut Vec<ConfigError>) {
        for node in &root.children {
            match &*node.name {
                "jgroups" => {
                    for child in &node.children {
                        match self.definition(child) {
                            Ok(Some(definition)) => self.definitions.push(definition),
                            Ok(None) => {}
                            Err(problem) => problems.push(problem),
                        }
                    }
                }
                "cache-container" => {
                    let transport = node.children.iter().find(|child| child.name == "transport");
                    let stack = transport.and_then(|transport| transport.get("stack"));
                    self.chosen = stack.map(|(name, position)| (name.to_owned(), position));
                }
                _ => {}
            }
        }
    }

    /// `None`: the element defines no stack.
    fn definition(&self, node: &Node) -> Result<Option<Definition>, ConfigError> {
        let named = |attribute: &str| {
            let value = node.get(attribute).map(|(value, _)| value.to_owned());
            value.ok_or_else(|| {
                self.fail(node.position, format!("<{}> needs the attribute `{attribute}`", node.name))
            })
        };
        let source = match &*node.name {
            "stack-file" => Source::File { path: named("path")?, position: node.position },
            "stack" => {
                if let Some(sites) = node.children.iter().find(|child| child.name == "remote-sites") {
                    let text = "<remote-sites> is refused: an Infinispan stack with sites is not supported; \
                                remove it, and let clients fail over to another site";
                    return Err(self.fail(sites.position, text));
                }
                if let Some(inner) = node.children.iter().flat_map(|child| &child.children).next() {
                    return Err(self.fail(inner.position, "an element within a protocol is not supported"));
                }
                Source::Protocols(node.children.iter().map(protocol).collect())
            }
            _ => return Ok(None),
        };
        let extends = node.get("extends").map(|(name, position)| (name.to_owned(), position));
        Ok(Some(Definition { name: named("name")?, extends, source }))
    }

    /// Returns the stack that a caller or the file's transport names, or the only one.
    ///
    /// # Errors
    ///
    /// If there is none of this name, or several of which none is named.
    pub(crate) fn select(&self, requested: Option<&str>) -> Result<Found, ConfigError> {
        let own = &self.definitions[..self.own];
        let (name, position) = match (requested, &self.chosen, own) {
            (Some(name), ..) => (name, None),
            (None, Some((name, position)), _) => (&**name, Some(*position)),
            (None, None, []) => (DEFAULT, None),
            (None, None, [only]) => (&*only.name, None),
            (None, None, several) => {
                let names: Vec<&str> = several.iter().map(|stack| &*stack.name).collect();
                let text = format!(
                    "it has several stacks ({}), and its transport names none; name one: {}#{}",
                    names.join(", "),
                    self.file,
                    names[0]
                );
                return Err(self.fail(None, text));
            }
        };
        self.resolve(name, position, 0, Scope::All)
    }

    fn resolve(
        &self,
        name: &str,
        position: Option<Position>,
        depth: usize,
        scope: Scope,
    ) -> Result<Found, ConfigError> {
        if depth > EXTENDS_MAX {
            return Err(self.fail(position, format!("stack `{name}` extends itself")));
        }
        let is_named = |definition: &&Definition| definition.name == name;
        let own = self.definitions[..self.own].iter().find(is_named);
        let found = if scope == Scope::BuiltIn { None } else { own };
        let found = found.or_else(|| self.definitions[self.own..].iter().find(is_named));
        let Some(definition) = found else {
            let names: Vec<&str> = self.definitions.iter().map(|stack| &*stack.name).collect();
            return Err(self.fail(position, format!("no stack `{name}`; stacks: {}", names.join(", "))));
        };
        let changes = match &definition.source {
            Source::File { path, position } => {
                return match built_in_stack(path) {
                    Some(stack) => self.resolve(stack, Some(*position), depth + 1, Scope::BuiltIn),
                    None => Ok(Found::File { path: path.clone(), position: *position }),
                };
            }
            Source::Protocols(changes) => changes,
        };
        let base = match &definition.extends {
            None => Vec::new(),
            Some((base, position)) => {
                // A stack of the file may have the name of the one of Infinispan's that it extends.
                let scope = if base == name { Scope::BuiltIn } else { scope };
                match self.resolve(base, Some(*position), depth + 1, scope)? {
                    Found::Protocols(protocols) => protocols,
                    Found::File { path, .. } => {
                        let text = format!(
                            "`{base}` is the file {path}, and only stacks in this file can be extended"
                        );
                        return Err(self.fail(*position, text));
                    }
                }
            }
        };
        self.combine(base, changes).map(Found::Protocols)
    }

    fn combine(
        &self,
        mut stack: Vec<ProtocolConfig>,
        changes: &[ProtocolConfig],
    ) -> Result<Vec<ProtocolConfig>, ConfigError> {
        for change in changes {
            let mut protocol = change.clone();
            protocol.attributes.retain(|(name, ..)| name != COMBINE && name != POSITION);
            let index_of = |name: &str| {
                let short = name.rsplit('.').next().unwrap_or(name);
                stack.iter().position(|one| one.short_name() == short)
            };
            let fail = |text: String| self.fail(change.position, text);
            let (name, own) = (change.short_name(), index_of(change.short_name()));
            let mode = change.get(COMBINE);
            let target = change.get(POSITION);
            let at = |index: Option<usize>, name: &str| {
                index.ok_or_else(|| fail(format!("the extended stack has no {name} for {COMBINE}")))
            };
            let targeted = || match target {
                Some(target) => at(index_of(target), target),
                None => Err(fail(format!("{COMBINE} of {name} needs {POSITION}, the name of a protocol"))),
            };
            match (mode, own) {
                (None, _) | (Some("COMBINE" | "REMOVE"), _) if target.is_some() => {
                    return Err(fail(format!(
                        "{POSITION} of {name} has no meaning without REPLACE or an INSERT"
                    )));
                }
                (None, None) => stack.push(protocol),
                (None | Some("COMBINE"), _) => {
                    let index = at(own, name)?;
                    let attributes = &mut stack[index].attributes;
                    attributes.retain(|(old, ..)| protocol.get(old).is_none());
                    attributes.extend(protocol.attributes);
                }
                (Some("REMOVE"), _) => {
                    let index = at(own, name)?;
                    stack.remove(index);
                }
                (Some("REPLACE"), _) => {
                    let index = if target.is_some() { targeted()? } else { at(own, name)? };
                    stack[index] = protocol;
                }
                (Some("INSERT_BELOW" | "INSERT_BEFORE"), _) => {
                    let index = targeted()?;
                    stack.insert(index, protocol);
                }
                (Some("INSERT_ABOVE" | "INSERT_AFTER"), _) => {
                    let index = targeted()?;
                    stack.insert(index + 1, protocol);
                }
                (Some(other), _) => {
                    return Err(fail(format!(
                        "{COMBINE} of {name} cannot be `{other}`; it is one of {COMBINATIONS}"
                    )));
                }
            }
        }
        Ok(stack)
    }
}

fn protocol(node: &Node) -> ProtocolConfig {
    ProtocolConfig { name: node.name.clone(), attributes: node.attributes.clone(), position: node.position }
}

/// The stacks of files that Infinispan ships in its jar.
fn built_in_stack(path: &str) -> Option<&'static str> {
    match Path::new(path).file_name()?.to_str()? {
        "default-jgroups-tcp.xml" => Some("tcp"),
        "default-jgroups-udp.xml" => Some("udp"),
        "default-jgroups-kubernetes.xml" => Some("kubernetes"),
        "default-jgroups-tunnel.xml" => Some("tunnel"),
        _ => None,
    }
}

/// Splits `FILE#STACK`, unless a file has this name.
pub(crate) fn split_name(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once('#') {
        Some((file, stack)) if !Path::new(name).exists() && Path::new(file).exists() => (file, Some(stack)),
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::{Stack, Variables, parse_stack};

    fn load(text: &str) -> Result<Stack, String> {
        let text = format!("<infinispan xmlns=\"urn:infinispan:config:16.0\">\n{text}\n</infinispan>");
        parse_stack("infinispan.xml", &text, &Variables::new()).map_err(|error| error.to_string())
    }

    fn names(stack: &Stack) -> String {
        let names: Vec<&str> = stack.config.protocols.iter().map(|protocol| protocol.short_name()).collect();
        names.join(" ")
    }

    const TCP: &str =
        "TCP RED MPING MERGE3 FD_SOCK2 FD_ALL3 VERIFY_SUSPECT2 NAKACK2 UNICAST3 STABLE GMS UFC MFC FRAG4";

    /// As `default-jgroups-*.xml` in Infinispan 16.
    #[test]
    fn the_stack_of_the_transport_is_read_and_udp_is_the_default() {
        let of = |name: &str| {
            load(&format!("<cache-container><transport stack=\"{name}\" cluster=\"c\"/></cache-container>"))
        };
        assert_eq!(names(&of("tcp").unwrap()), TCP);
        let udp = load("<cache-container><transport/></cache-container>").unwrap();
        assert_eq!(names(&udp), TCP.replace("TCP RED MPING", "UDP RED PING"));
        assert_eq!(udp, load("").unwrap());
        let file = "<stack-file name=\"tcp\" path=\"default-configs/default-jgroups-tcp.xml\"/>";
        assert_eq!(names(&load(&format!("<jgroups>{file}</jgroups>")).unwrap()), TCP);
        let tunnel = of("tunnel").unwrap();
        assert_eq!(names(&tunnel), TCP.replace("TCP RED MPING", "TUNNEL RED PING").replace("FD_SOCK2 ", ""));
        let nakack = udp.config.protocols.iter().find(|one| one.short_name() == "NAKACK2").unwrap();
        assert_eq!((nakack.get("use_mcast_xmit"), nakack.get("xmit_interval")), (None, Some("100ms")));
        let error = of("tpc").unwrap_err();
        assert_eq!(error, "infinispan.xml:2:29: no stack `tpc`; stacks: tcp, kubernetes, udp, tunnel");
    }

    #[test]
    fn a_stack_extends_another_and_combines_protocols() {
        let stack = load(
            "<jgroups><stack name=\"own\" extends=\"tcp\">\n\
             <TCP bind_port=\"7900\"/>\n\
             <TCPPING initial_hosts=\"10.0.0.1[7900]\" stack.combine=\"REPLACE\" stack.position=\"MPING\"/>\n\
             <FD_SOCK2 stack.combine=\"REMOVE\"/>\n\
             <SYM_ENCRYPT keystore_name=\"k.p12\" stack.combine=\"INSERT_BELOW\" stack.position=\"pbcast.NAKACK2\"/>\n\
             <SIZE stack.combine=\"INSERT_ABOVE\" stack.position=\"MFC\"/>\n\
             <STATS/>\n\
             </stack></jgroups>",
        )
        .unwrap();
        assert_eq!(
            names(&stack),
            "TCP RED TCPPING MERGE3 FD_ALL3 VERIFY_SUSPECT2 SYM_ENCRYPT NAKACK2 UNICAST3 STABLE GMS UFC MFC SIZE FRAG4 STATS"
        );
        let tcp = &stack.config.protocols[0];
        assert_eq!((tcp.get("bind_port"), tcp.get("sock_conn_timeout")), (Some("7900"), Some("300ms")));
        let all: BTreeMap<&str, &str> =
            stack.config.protocols[6].attributes.iter().map(|(name, value, _)| (&**name, &**value)).collect();
        assert_eq!(all, BTreeMap::from([("keystore_name", "k.p12")]));
    }

    #[test]
    fn wrong_combinations_are_refused_with_place_and_reason() {
        for (change, reason) in [
            ("<FD_SOCK2 stack.combine=\"REMVE\"/>", "cannot be `REMVE`; it is one of COMBINE, REPLACE"),
            ("<SIZE stack.combine=\"REMOVE\"/>", "the extended stack has no SIZE for stack.combine"),
            ("<SIZE stack.combine=\"INSERT_ABOVE\"/>", "stack.combine of SIZE needs stack.position"),
            ("<SIZE stack.combine=\"INSERT_ABOVE\" stack.position=\"X\"/>", "has no X for stack.combine"),
            ("<TCP stack.position=\"MPING\"/>", "stack.position of TCP has no meaning"),
            ("<TCP bind_prt=\"1\"/>", "unknown attribute `bind_prt` of TCP; did you mean `bind_port`?"),
        ] {
            let text = format!("<jgroups><stack name=\"own\" extends=\"tcp\">\n{change}</stack></jgroups>");
            let error = load(&text).unwrap_err();
            assert!(error.starts_with("infinispan.xml:3:") && error.contains(reason), "{error}");
        }
        let sites = "<jgroups><stack name=\"x\" extends=\"udp\"><remote-sites default-stack=\"tcp\"/></stack></jgroups>";
        assert!(load(sites).unwrap_err().contains("<remote-sites> is refused"));
        let circle = "<jgroups><stack name=\"a\" extends=\"b\"/><stack name=\"b\" extends=\"a\"/></jgroups>\
                      <cache-container><transport stack=\"a\"/></cache-container>";
        assert!(load(circle).unwrap_err().contains("extends itself"));
    }

    #[test]
    fn a_stack_of_the_file_replaces_infinispans_own_of_its_name_for_others_too() {
        let stacks = "<jgroups><stack name=\"tcp\" extends=\"tcp\"><FD_SOCK2 stack.combine=\"REMOVE\"/></stack>\
                      <stack name=\"a\" extends=\"tcp\"/></jgroups>\
                      <cache-container><transport stack=\"a\"/></cache-container>";
        assert_eq!(names(&load(stacks).unwrap()), TCP.replace("FD_SOCK2 ", ""));
        let without = "<jgroups><stack name=\"tcp\"><TCP/><PING/></stack></jgroups>\
                       <cache-container><transport stack=\"kubernetes\"/></cache-container>";
        let error = load(without).unwrap_err();
        assert!(error.starts_with("Infinispan's own stacks:"), "{error}");
        let deep = "<jgroups><stack name=\"x\"><TCP><inner/></TCP></stack></jgroups>";
        assert!(load(deep).unwrap_err().contains("an element within a protocol is not supported"));
    }

    #[test]
    fn one_of_several_stacks_has_to_be_named() {
        let several =
            "<jgroups><stack name=\"a\" extends=\"tcp\"/><stack name=\"b\" extends=\"udp\"/></jgroups>";
        let error = load(several).unwrap_err();
        assert_eq!(
            error,
            "infinispan.xml: it has several stacks (a, b), and its transport names none; name one: infinispan.xml#a"
        );
        let directory = std::env::temp_dir().join(format!("consort-conf-infinispan-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("two.xml");
        std::fs::write(&path, format!("<infinispan>{several}</infinispan>")).unwrap();
        let path = path.display().to_string();
        let loaded = |name: &str| crate::load_stack(name, &Variables::new()).map(|stack| names(&stack));
        assert_eq!(loaded(&format!("{path}#a")).unwrap(), TCP);
        assert!(loaded(&format!("{path}#b")).unwrap().starts_with("UDP RED PING"));
        std::fs::write(
            directory.join("files.xml"),
            "<infinispan><jgroups><stack-file name=\"f\" path=\"own.xml\"/></jgroups></infinispan>",
        )
        .unwrap();
        std::fs::write(
            directory.join("own.xml"),
            "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/></config>",
        )
        .unwrap();
        let own = format!("{}#x", directory.join("own.xml").display());
        let error = crate::load_stack(&own, &Variables::new()).unwrap_err().to_string();
        assert!(error.contains("`#x` names a stack of an Infinispan file"), "{error}");
        let files = directory.join("files.xml").display().to_string();
        assert_eq!(loaded(&files).unwrap(), "SHARED_LOOPBACK SHARED_LOOPBACK_PING");
        let _ = std::fs::remove_dir_all(directory);
    }
}
