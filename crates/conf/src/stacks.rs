//! Stacks from files, and stock stacks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use consort_group::config::{Position, StackConfig};

use crate::earlier_names::{RenamedAttribute, rename};
use crate::error::{ConfigError, Fault};
use crate::infinispan::{self, Found, Stacks};
use crate::known_names::{IgnoredAttribute, check, is_transport};
use crate::relay::complete_sites;
use crate::tree::root_name;
use crate::variables::Variables;
use crate::xml::{Attribute, Element, read};

macro_rules! stock {
    ($($name:literal),+ $(,)?) => {
        /// The stock stacks' names and texts, as JGroups'; `tcpgossip.xml` is `tcp.xml` with routers, and `kubernetes.xml`
        /// with names and pods of Kubernetes.
        pub const STOCK: &[(&str, &str)] = &[$(($name, include_str!(concat!("../stacks/", $name)))),+];
    };
}

stock! {
    "tcp.xml", "tcp-nio.xml", "tcp-new.xml", "udp.xml", "udp-new.xml", "sequencer.xml", "tcpgossip.xml",
    "kubernetes.xml", "tunnel.xml",
    "tcp-default.xml", "udp-default.xml", "nio-default.xml",
}

const INCLUDES_MAX: usize = 5;

/// One is usual; a file that includes itself must end.
const FILES_MAX: usize = 50;

/// Protocol, attribute, and the variable that sets it without a reference in the file. Names are JGroups'
/// (TCPGOSSIP's and FILE_PING's are Consort's). As in JGroups, they apply if the file does not set the attribute; a
/// transport's `bind_addr` always, because a file for many hosts cannot contain it.
const PROPERTIES: &[(&str, &str, &str)] = &[
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
    ("UDP", "external_addr", "jgroups.external_addr"),
    ("UDP", "external_port", "jgroups.external_port"),
    ("UDP", "mcast_addr", "jgroups.udp.mcast_addr"),
    ("UDP", "mcast_port", "jgroups.udp.mcast_port"),
    ("UDP", "ip_ttl", "jgroups.udp.ip_ttl"),
    ("TUNNEL", "bind_addr", "jgroups.bind_addr"),
    ("TUNNEL", "gossip_router_hosts", "jgroups.tunnel.gossip_router_hosts"),
    ("FD_SOCK", "bind_addr", "jgroups.bind_addr"),
    ("FD_SOCK", "external_addr", "jgroups.external_addr"),
    ("FD_SOCK", "external_port", "jgroups.external_port"),
    ("FD_SOCK2", "bind_addr", "jgroups.bind_addr"),
    ("FD_SOCK2", "external_addr", "jgroups.external_addr"),
    ("FD_SOCK2", "external_port", "jgroups.external_port"),
    ("STATE_SOCK", "bind_addr", "jgroups.bind_addr"),
    ("STATE_SOCK", "external_addr", "jgroups.external_addr"),
    ("STATE_SOCK", "external_port", "jgroups.external_port"),
    ("TCPPING", "initial_hosts", "jgroups.tcpping.initial_hosts"),
    ("MPING", "mcast_addr", "jgroups.mping.mcast_addr"),
    ("MPING", "mcast_port", "jgroups.mping.mcast_port"),
    ("MPING", "ip_ttl", "jgroups.mping.ip_ttl"),
    ("TCPGOSSIP", "initial_hosts", "jgroups.tcpgossip.initial_hosts"),
    ("DNS_PING", "dns_query", "jgroups.dns.dns_query"),
    ("DNS_PING", "dns_record_type", "jgroups.dns.dns_record_type"),
    ("FILE_PING", "location", "jgroups.file.location"),
    // The first one that is set counts; those of OpenShift and SA_TOKEN_FILE are old names.
    ("KUBE_PING", "namespace", "KUBERNETES_NAMESPACE"),
    ("KUBE_PING", "namespace", "OPENSHIFT_KUBE_PING_NAMESPACE"),
    ("KUBE_PING", "labels", "KUBERNETES_LABELS"),
    ("KUBE_PING", "labels", "OPENSHIFT_KUBE_PING_LABELS"),
    ("KUBE_PING", "masterProtocol", "KUBERNETES_MASTER_PROTOCOL"),
    ("KUBE_PING", "masterHost", "KUBERNETES_SERVICE_HOST"),
    ("KUBE_PING", "masterPort", "KUBERNETES_SERVICE_PORT"),
    ("KUBE_PING", "apiVersion", "KUBERNETES_API_VERSION"),
    ("KUBE_PING", "connectTimeout", "KUBERNETES_CONNECT_TIMEOUT"),
    ("KUBE_PING", "readTimeout", "KUBERNETES_READ_TIMEOUT"),
    ("KUBE_PING", "operationAttempts", "KUBERNETES_OPERATION_ATTEMPTS"),
    ("KUBE_PING", "operationSleep", "KUBERNETES_OPERATION_SLEEP"),
    ("KUBE_PING", "useNotReadyAddresses", "KUBERNETES_USE_NOT_READY_ADDRESSES"),
    ("KUBE_PING", "split_clusters_during_rolling_update", "KUBERNETES_SPLIT_CLUSTERS_DURING_ROLLING_UPDATE"),
    ("KUBE_PING", "caCertFile", "KUBERNETES_CA_CERTIFICATE_FILE"),
    ("KUBE_PING", "saTokenFile", "KUBERNETES_SA_TOKEN_FILE"),
    ("KUBE_PING", "saTokenFile", "SA_TOKEN_FILE"),
    ("KUBE_PING", "clientCertFile", "KUBERNETES_CLIENT_CERTIFICATE_FILE"),
    ("KUBE_PING", "clientKeyFile", "KUBERNETES_CLIENT_KEY_FILE"),
    ("KUBE_PING", "clientKeyPassword", "KUBERNETES_CLIENT_KEY_PASSWORD"),
    ("KUBE_PING", "clientKeyAlgo", "KUBERNETES_CLIENT_KEY_ALGO"),
];

/// A checked stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// The description.
    pub config: StackConfig,
    /// JGroups' attributes without effect.
    pub ignored: Vec<IgnoredAttribute>,
    /// Attributes under names of JGroups 4.
    pub renamed: Vec<RenamedAttribute>,
}

/// Reads a file, or one of [`STOCK`] if there is none. The file is JGroups', or Infinispan's with stacks in `<jgroups>`: then the
/// stack is the one that the transport names, or `NAME` if `name` is `FILE#NAME`.
///
/// # Errors
///
/// If the file is unreadable or no XML, or a protocol or attribute is unknown.
pub fn load_stack(name: &str, variables: &Variables) -> Result<Stack, ConfigError> {
    let (path, stack) = infinispan::split_name(name);
    let (text, directory) = file(path, None, None)?;
    finish((path, stack), &text, directory.as_deref(), variables)
}

/// Parses a stack; errors name it `source`. Includes are relative to the current directory.
///
/// # Errors
///
/// As [`load_stack`].
pub fn parse_stack(source: &str, text: &str, variables: &Variables) -> Result<Stack, ConfigError> {
    finish((source, None), text, None, variables)
}

/// Like [`parse_stack`], with the directory of the files that it includes.
///
/// # Errors
///
/// As [`load_stack`].
pub fn parse_stack_at(
    source: &str,
    text: &str,
    directory: Option<&Path>,
    variables: &Variables,
) -> Result<Stack, ConfigError> {
    finish((source, None), text, directory, variables)
}

/// `requested` is the name of a stack in Infinispan's file.
fn finish(
    (source, requested): (&str, Option<&str>),
    text: &str,
    directory: Option<&Path>,
    variables: &Variables,
) -> Result<Stack, ConfigError> {
    let config = StackConfig { source: source.to_owned(), included: Vec::new(), protocols: Vec::new() };
    let mut gathering = StackReader { config, variables, problems: Vec::new() };
    if root_name(text).as_deref() == Some(infinispan::ROOT) {
        gathering.infinispan(text, requested, directory);
    } else if let Some(stack) = requested {
        let why = format!(
            "`#{stack}` names a stack of an Infinispan file, and this file is JGroups'; leave it out"
        );
        gathering.problems.push(ConfigError::new(source, None, Fault::Structure(why)));
    } else {
        gathering.file(0, text, directory, 0);
    }
    let StackReader { mut config, mut problems, .. } = gathering;
    let renamed = rename(&mut config, &mut problems);
    for protocol in &mut config.protocols {
        let name = protocol.short_name().to_owned();
        for (_, attribute, property) in PROPERTIES.iter().filter(|(of, _, _)| *of == name) {
            let Some(value) = variables.get(property) else { continue };
            let wins = is_transport(&name) && *attribute == "bind_addr";
            match protocol.attributes.iter_mut().find(|(own, _, _)| own == attribute) {
                Some((_, own, _)) if wins => value.clone_into(own),
                Some(_) => {}
                None => {
                    protocol.attributes.push(((*attribute).to_owned(), value.to_owned(), protocol.position));
                }
            }
        }
    }
    // A file that cannot be read has no protocols, and one problem is enough.
    let checked =
        if problems.is_empty() || !config.protocols.is_empty() { check(&config) } else { Ok(Vec::new()) };
    match (ConfigError::combine(problems), checked) {
        (None, Ok(ignored)) => Ok(Stack { config, ignored, renamed }),
        (None, Err(error)) | (Some(error), Ok(_)) => Err(error),
        (Some(error), Err(further)) => Err(ConfigError::combine([error, further]).expect("two problems")),
    }
}

struct StackReader<'v> {
    config: StackConfig,
    variables: &'v Variables,
    problems: Vec<ConfigError>,
}

impl StackReader<'_> {
    fn infinispan(&mut self, text: &str, requested: Option<&str>, directory: Option<&Path>) {
        let source = self.config.source.clone();
        self.config.included.push(Stacks::built_in_name().to_owned());
        let stacks = Stacks::read(&source, text, 1, self.variables, &mut self.problems);
        match stacks.select(requested) {
            Ok(Found::Protocols(protocols)) => self.config.protocols = protocols,
            Ok(Found::File { path, position }) => {
                if let Err(problem) = self.include(&source, &path, &[], position, (directory, 0)) {
                    self.problems.push(problem);
                }
            }
            Err(problem) => self.problems.push(problem),
        }
    }

    /// `number` is the file's in positions.
    fn file(&mut self, number: u16, text: &str, directory: Option<&Path>, depth: usize) {
        let source = self.config.file(Position { file: number, ..Position::default() }).to_owned();
        for element in read(&source, number, text, self.variables, &mut self.problems) {
            match element {
                Element::Protocol(mut protocol) => {
                    complete_sites(&mut protocol, &source, directory);
                    self.config.protocols.push(protocol);
                }
                Element::Include { file: name, overrides, position } => {
                    if let Err(problem) =
                        self.include(&source, &name, &overrides, position, (directory, depth))
                    {
                        self.problems.push(problem);
                    }
                }
            }
        }
    }

    /// `attributes` go to all its protocols.
    fn include(
        &mut self,
        source: &str,
        name: &str,
        overrides: &[Attribute],
        position: Position,
        (own_directory, depth): (Option<&Path>, usize),
    ) -> Result<(), ConfigError> {
        if depth >= INCLUDES_MAX || self.config.included.len() >= FILES_MAX {
            let text = format!("{name} is one include too many; do the files include each other?");
            return Err(ConfigError::new(source, position, Fault::Structure(text)));
        }
        let (text, directory) = file(name, own_directory, Some((source, position)))?;
        self.config.included.push(name.to_owned());
        let first = self.config.protocols.len();
        let number = self.config.included.len() as u16;
        self.file(number, &text, directory.as_deref(), depth + 1);
        for protocol in &mut self.config.protocols[first..] {
            protocol.attributes.retain(|(old, _, _)| overrides.iter().all(|(new, _, _)| new != old));
            protocol.attributes.extend(overrides.iter().cloned());
            complete_sites(protocol, source, own_directory);
        }
        Ok(())
    }
}

/// The stock file replaces only a file that does not exist: a user's unreadable tcp.xml must not be replaced.
fn file(
    name: &str,
    directory: Option<&Path>,
    included: Option<(&str, Position)>,
) -> Result<(String, Option<PathBuf>), ConfigError> {
    let path = directory.map_or_else(|| PathBuf::from(name), |directory| directory.join(name));
    let error = match std::fs::read_to_string(&path) {
        Ok(text) => return Ok((text, path.parent().map(Path::to_path_buf))),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::NotFound
        && let Some((_, text)) = STOCK.iter().find(|(stock, _)| *stock == name)
    {
        return Ok(((*text).to_owned(), None));
    }
    let stock: Vec<&str> = STOCK.iter().map(|(name, _)| *name).collect();
    let fault = Fault::Unreadable {
        file: path.display().to_string(),
        why: error.to_string().into(),
        stock: stock.join(", ").into(),
    };
    Err(match included {
        Some((source, position)) => ConfigError::new(source, position, fault),
        None => ConfigError::new(name, None, fault),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S001-2, S000-51
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

    /// JGroups 5.5.7 has the same values.
    #[test]
    fn system_properties_count_where_the_file_is_silent_and_always_for_the_transports_bind_addr() {
        let variables = Variables::new()
            .with("jgroups.bind_addr", "127.0.0.2")
            .with("jgroups.bind_port", "7999")
            .with("jgroups.external_addr", "10.1.1.1")
            .with("jgroups.udp.mcast_port", "9999")
            .with("jgroups.mping.mcast_port", "88");
        let attribute = |text: &str, protocol: &str, name: &str| {
            let stack = parse_stack("my.xml", text, &variables).unwrap();
            let mut protocols = stack.config.protocols.iter();
            let found = protocols.find(|found| found.short_name() == protocol).unwrap();
            found.get(name).unwrap_or_default().to_owned()
        };
        let silent = "<config><UDP/><MPING/><FD_SOCK2/><FD_SOCK/><STATE_SOCK/></config>";
        let explicit = "<config><UDP bind_addr=\"127.0.0.1\" bind_port=\"7811\" external_addr=\"10.2.2.2\" \
                      mcast_port=\"1\"/><MPING mcast_port=\"2\"/><FD_SOCK2 bind_addr=\"127.0.0.1\"/>\
                      <FD_SOCK bind_addr=\"127.0.0.1\"/><STATE_SOCK bind_addr=\"127.0.0.1\"/></config>";
        for (protocol, name, when_silent, when_explicit) in [
            ("UDP", "bind_addr", "127.0.0.2", "127.0.0.2"),
            ("UDP", "bind_port", "7999", "7811"),
            ("UDP", "external_addr", "10.1.1.1", "10.2.2.2"),
            ("UDP", "mcast_port", "9999", "1"),
            ("MPING", "mcast_port", "88", "2"),
            ("FD_SOCK2", "bind_addr", "127.0.0.2", "127.0.0.1"),
            ("FD_SOCK2", "external_addr", "10.1.1.1", "10.1.1.1"),
            ("FD_SOCK", "bind_addr", "127.0.0.2", "127.0.0.1"),
            ("FD_SOCK", "external_addr", "10.1.1.1", "10.1.1.1"),
            ("STATE_SOCK", "bind_addr", "127.0.0.2", "127.0.0.1"),
            ("STATE_SOCK", "external_addr", "10.1.1.1", "10.1.1.1"),
        ] {
            assert_eq!(attribute(silent, protocol, name), when_silent, "{protocol} {name}");
            assert_eq!(attribute(explicit, protocol, name), when_explicit, "{protocol} {name}");
        }
    }

    #[test]
    fn the_stock_stacks_take_their_port_from_a_variable() {
        let variables = Variables::new().with("jgroups.bind_port", "7999");
        for (name, port) in [("tcp.xml", "7800"), ("tcp-new.xml", "7800"), ("tcp-nio.xml", "7800")] {
            let port_by = |variables: &Variables| {
                load_stack(name, variables).unwrap().config.protocols[0].get("bind_port").map(str::to_owned)
            };
            assert_eq!(port_by(&Variables::new()).as_deref(), Some(port));
            assert_eq!(port_by(&variables).as_deref(), Some("7999"));
        }
    }

    /// S000-52: JGroups' former format is refused; the error names the supported ones.
    #[test]
    fn a_string_is_no_configuration() {
        let text = "UDP(mcast_addr=228.8.8.8;mcast_port=7500):PING:pbcast.NAKACK2:UNICAST3";
        let error = load_stack(text, &Variables::new()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read UDP(mcast_addr") && error.contains("tcp.xml"), "{error}");
        let error = parse_stack("my.xml", text, &Variables::new()).unwrap_err().to_string();
        assert!(error.starts_with("my.xml:"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named_with_the_stock_stacks() {
        let error = load_stack("tpc.xml", &Variables::new()).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read tpc.xml: ") && error.contains("tcp.xml, tcp-nio.xml"),
            "{error}"
        );
        let error = parse_stack("my.xml", "<config>\n<include file=\"x.xml\"/></config>", &Variables::new());
        assert!(error.unwrap_err().to_string().starts_with("my.xml:2:1: cannot read x.xml"));
    }

    /// A drop removes the files.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
            let path = std::env::temp_dir().join(format!("consort-conf-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            for (file, content) in files {
                std::fs::write(path.join(file), content).unwrap();
            }
            Self(path)
        }

        fn load(&self, file: &str) -> Result<Stack, ConfigError> {
            load_stack(self.0.join(file).to_str().unwrap(), &Variables::new())
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_error_in_an_included_file_names_that_file() {
        let files = Files::new(
            "included",
            &[
                ("outer.xml", b"<config>\n<include file=\"inner.xml\"/>\n<PING/>\n</config>"),
                ("inner.xml", b"<config>\n\n\n  <TCP bind_prt=\"1\"/>\n</config>"),
            ],
        );
        assert_eq!(
            files.load("outer.xml").unwrap_err().to_string(),
            "inner.xml:4:8: unknown attribute `bind_prt` of TCP; did you mean `bind_port`?"
        );
    }

    #[test]
    fn problems_of_all_files_and_kinds_are_reported_together() {
        let files = Files::new(
            "problems",
            &[
                (
                    "outer.xml",
                    b"<config>\n<include file=\"inner.xml\"/>\n<PNG/>\n<include file=\"no.xml\"/></config>",
                ),
                ("inner.xml", b"<config>\n<TCP bind_prt=\"1\" linger=\"${x\"/></config>"),
            ],
        );
        let error = files.load("outer.xml").unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 4, "{error}");
        assert_eq!(lines[0], "inner.xml:2:19: attribute linger: `${x` is not closed by a brace");
        assert!(lines[1].contains("outer.xml:4:1: cannot read "), "{error}");
        assert!(lines[2].starts_with("inner.xml:2:6: unknown attribute `bind_prt`"), "{error}");
        assert!(lines[3].ends_with("outer.xml:3:1: unknown protocol `PNG`; did you mean `PING`?"), "{error}");
    }

    #[test]
    fn attributes_of_an_include_go_to_what_it_includes() {
        let text = "<config>\n<include file=\"tcp-default.xml\" bind_port=\"7900\"/>\n<PING/></config>";
        let stack = parse_stack("my.xml", text, &Variables::new()).unwrap();
        let [tcp, ping] = &stack.config.protocols[..] else { panic!("{:?}", stack.config) };
        assert_eq!(tcp.get("bind_port"), Some("7900"));
        assert!(ping.attributes.is_empty());
        let (_, _, place) = tcp.attributes.iter().find(|(name, _, _)| name == "bind_port").unwrap();
        assert_eq!(stack.config.file(*place), "my.xml");
        assert_eq!(stack.config.file(tcp.position), "tcp-default.xml");
        let wrong = text.replace("bind_port", "bind_prt");
        let error = parse_stack("my.xml", &wrong, &Variables::new()).unwrap_err().to_string();
        assert!(error.starts_with("my.xml:2:33: unknown attribute `bind_prt`"), "{error}");
    }

    #[test]
    fn a_broken_file_is_not_replaced_by_the_stock_file_of_its_name() {
        let files =
            Files::new("broken", &[("outer.xml", b"<config><include file=\"tcp-default.xml\"/></config>")]);
        assert!(files.load("outer.xml").is_ok());
        std::fs::write(files.0.join("tcp-default.xml"), b"<config><!-- \xe9 --><TCP/></config>").unwrap();
        let error = files.load("outer.xml").unwrap_err();
        assert!(matches!(error.fault, Fault::Unreadable { .. }), "{error}");
    }

    #[test]
    fn files_that_include_each_other_are_an_error() {
        let twice = b"<config><include file=\"a.xml\"/><include file=\"a.xml\"/></config>";
        let files = Files::new("circle", &[("a.xml", twice)]);
        assert!(files.load("a.xml").unwrap_err().to_string().contains("include each other"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = parse_stack("my.xml", &String::from_utf8_lossy(&bytes), &Variables::new());
            let text = String::from_utf8_lossy(&bytes);
            for around in [["<config>", "</config>"], ["<infinispan><jgroups><stack name=\"a\" ", "</stack></jgroups></infinispan>"]] {
                let text = format!("{}{text}{}", around[0], around[1]);
                let _ = parse_stack("my.xml", &text, &Variables::new());
            }
        }
    }
}
