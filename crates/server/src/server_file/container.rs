//! `<cache-container>`: its transport, its state, and settings that have no counterpart. Caches are in
//! [`super::caches`], counters in [`super::counters`].

use std::path::PathBuf;
use std::time::Duration;

use super::OptionsBeside;
use super::caches::{CacheElements, is_cache};
use super::counters;
use super::document::Node;
use super::locations::{DATA_PATH, Locations};
use super::problem::Problems;
use super::roles::{self, RolesSettings};
use super::section::{Reasons, Section};

/// Infinispan's default of `cluster`.
const CLUSTER: &str = "ISPN";

/// Infinispan's default of `initial-cluster-timeout`.
const INITIAL_CLUSTER_TIMEOUT: Duration = Duration::from_secs(60);

const THREADS: &str = "the number of threads follows the processors";
const IGNORED_BY_INFINISPAN: &str = "Infinispan ignores it since version 11, too";

const CONTAINER_WARNINGS: Reasons = &[
    ("aliases", IGNORED_BY_INFINISPAN),
    ("jndi-name", IGNORED_BY_INFINISPAN),
    ("module", IGNORED_BY_INFINISPAN),
    ("start", IGNORED_BY_INFINISPAN),
    ("async-executor", IGNORED_BY_INFINISPAN),
    ("persistence-executor", IGNORED_BY_INFINISPAN),
    ("eviction-executor", THREADS),
    ("expiration-executor", THREADS),
    ("listener-executor", THREADS),
    ("non-blocking-executor", THREADS),
    ("blocking-executor", THREADS),
    ("shutdown-hook", "SIGTERM always ends the server in order"),
];

const TRANSPORT_WARNINGS: Reasons = &[
    ("executor", IGNORED_BY_INFINISPAN),
    ("remote-command-executor", IGNORED_BY_INFINISPAN),
    ("locking", IGNORED_BY_INFINISPAN),
    ("lock-timeout", "changes of owners do not wait for a lock"),
    ("property", "it is for Infinispan's transport in Java"),
    ("properties", "it is for Infinispan's transport in Java"),
];

const TRANSPORT_REFUSALS: Reasons = &[
    ("raft-members", "there is no Raft; leave it out, because caches and counters have owners of their own"),
    (
        "security-realm",
        "TLS between servers is configured in the stack; write the attributes tls.* of TCP, or ASYM_ENCRYPT",
    ),
    ("data-source", "there are no data sources; write the connection into JDBC_PING2's attributes"),
];

/// The cluster of a server's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Transport {
    pub(super) cluster: String,
    pub(super) node_name: Option<String>,
    pub(super) site: Option<String>,
    pub(super) rack: Option<String>,
    pub(super) machine: Option<String>,
    /// The number of members for which a start waits, and for how long.
    pub(super) initial_size: Option<(usize, Duration)>,
}

#[derive(Default)]
pub(super) struct Container<'n> {
    pub(super) transport: Option<(&'n Node, Transport)>,
    pub(super) default_cache: Option<String>,
    pub(super) caches: CacheElements,
    pub(super) counters: Vec<counters::CounterElement>,
    pub(super) data: Option<PathBuf>,
    pub(super) roles: Option<RolesSettings>,
}

pub(super) fn read<'n>(node: &'n Node, locations: Locations<'_>, problems: &mut Problems) -> Container<'n> {
    let mut section = Section::new(node);
    let mut container = Container::default();
    section.text("name");
    if let Some(statistics) = section.attribute("statistics").filter(|own| own.value != "true") {
        problems.warn(statistics.place, "statistics of cache-container: statistics are always on");
    }
    section.warn(CONTAINER_WARNINGS, problems);
    if section.flag("zero-capacity-node", problems) == Some(true) {
        let text =
            "zero-capacity-node: every server can own entries; set capacity by the number of servers instead";
        problems.refuse(node.place, text);
    }
    if let Some(transport) = section.child("transport", problems) {
        container.transport = Some((transport, read_transport(transport, problems)));
    }
    for child in node.children.iter().filter(|child| is_cache(&child.name)) {
        section.mark(&child.name);
        container.caches.add_named(child, problems);
    }
    for caches in section.children("caches") {
        container.caches.add_all(caches, problems);
    }
    if let Some(name) = section.attribute("default-cache").filter(|name| !name.value.is_empty()) {
        let defined = if container.caches.has(&name.value) {
            Ok(())
        } else {
            container.caches.add_matching(&name.value)
        };
        match defined {
            Ok(()) => container.default_cache = Some(name.value.clone()),
            Err(0) => {
                problems.refuse(name.place, format!("default-cache: no cache `{}` is defined", name.value));
            }
            Err(count) => {
                let text = format!("default-cache: {count} templates with wildcards match `{}`", name.value);
                problems.refuse(name.place, text);
            }
        }
    }
    if let Some(counters) = section.child("counters", problems) {
        container.counters = counters::read(counters, problems);
    }
    if let Some(state) = section.child("global-state", problems) {
        container.data = read_global_state(state, locations, problems);
    }
    if let Some(security) = section.child("security", problems) {
        container.roles = roles::read(security, problems);
    }
    read_others(&mut section, locations.options, problems);
    section.finish(problems);
    container
}

fn read_transport(node: &Node, problems: &mut Problems) -> Transport {
    let mut section = Section::new(node);
    let owned = |text: Option<&str>| text.map(str::to_owned);
    // `super::stack` reads its value.
    section.text("stack");
    let timeout = section.duration("initial-cluster-timeout", problems);
    let size = section.parsed("initial-cluster-size", problems);
    let transport = Transport {
        cluster: section.text("cluster").unwrap_or(CLUSTER).to_owned(),
        node_name: owned(section.text("node-name")),
        site: owned(section.text("site")),
        rack: owned(section.text("rack").or_else(|| section.text("rack-id"))),
        machine: owned(section.text("machine").or_else(|| section.text("machine-id"))),
        initial_size: size.map(|size| (size, timeout.unwrap_or(INITIAL_CLUSTER_TIMEOUT))),
    };
    for unused in ["rack", "rack-id", "machine", "machine-id"] {
        section.attribute(unused);
    }
    section.warn(TRANSPORT_WARNINGS, problems);
    section.refuse(TRANSPORT_REFUSALS, problems);
    section.finish(problems);
    transport
}

fn read_global_state(node: &Node, locations: Locations<'_>, problems: &mut Problems) -> Option<PathBuf> {
    let mut section = Section::new(node);
    section.warn(
        &[
            ("shared-persistent-location", "servers share no files; each needs its own --data"),
            ("temporary-location", "nothing is written to temporary files"),
            (
                "overlay-configuration-storage",
                "definitions by clients are always kept in the persistent location",
            ),
            ("unclean-shutdown-action", "a server that was killed starts with its files as they are"),
        ],
        problems,
    );
    section.refuse(
        &[
            (
                "volatile-configuration-storage",
                "definitions by clients are kept in the persistent location; leave it out, and let clients create \
                 caches with the flag VOLATILE",
            ),
            ("immutable-configuration-storage", "clients with the permission CREATE can create caches; give them another role"),
            ("custom-configuration-storage", "Java classes cannot be run"),
            ("managed-configuration-storage", "it is for Infinispan within WildFly"),
        ],
        problems,
    );
    let location = section.child("persistent-location", problems);
    let data = location.and_then(|location| {
        let mut section = Section::new(location);
        let path = locations.path(location, &mut section, DATA_PATH, problems);
        section.finish(problems);
        path
    });
    section.finish(problems);
    data
}

fn read_others(section: &mut Section<'_>, options: OptionsBeside, problems: &mut Problems) {
    if let Some(metrics) = section.child("metrics", problems) {
        let mut metrics = Section::new(metrics);
        metrics.warn(
            &[
                ("prefix", "names of metrics are those of docs/metrics.md"),
                ("names-as-tags", "caches are always labels"),
                ("histograms", "latencies are always histograms"),
                ("gauges", "gauges are always on"),
                ("accurate-size", "sizes are always exact"),
                ("jvm", "there is no JVM"),
                ("legacy", "names of metrics are those of docs/metrics.md"),
            ],
            problems,
        );
        metrics.finish(problems);
    }
    if let Some(jmx) = section.child("jmx", problems) {
        if jmx.get("enabled").is_none_or(|enabled| enabled.value != "false") {
            problems.warn(
                jmx.place,
                "jmx: there is no JMX; statistics are at /metrics and in responses to clients",
            );
        }
        let mut jmx = Section::new(jmx);
        for name in
            ["enabled", "domain", "mbean-server-lookup", "allow-duplicate-domains", "duplicate-domains"]
        {
            jmx.attribute(name);
        }
        jmx.mark("property");
        jmx.mark("properties");
        jmx.finish(problems);
    }
    if let Some(tracing) = section.child("tracing", problems)
        && tracing.get("enabled").is_none_or(|enabled| enabled.value != "false")
    {
        problems.warn(tracing.place, "tracing: there are no OpenTelemetry traces; see /metrics and the log");
    }
    if let Some(serialization) = section.child("serialization", problems) {
        read_serialization(serialization, options, problems);
    }
    section.refuse(
        &[
            ("clustered-locks", "clients have no clustered locks over Hot Rod; use a strong counter"),
            ("locks", "clients have no clustered locks over Hot Rod; use a strong counter"),
            ("query", "limits of queries are those of docs/server.md; leave it out"),
            ("include", "it has href, the name of an XML file, and no children"),
        ],
        problems,
    );
}

/// Its class would register schemas.
fn read_initializer(node: &Node, options: OptionsBeside, problems: &mut Problems) {
    let mut section = Section::new(node);
    let inner: Vec<&Node> = section.children("context-initializer").collect();
    if !inner.is_empty() {
        section.finish(problems);
        return inner.into_iter().for_each(|inner| read_initializer(inner, options, problems));
    }
    let class = section.text("class").unwrap_or_default().to_owned();
    section.finish(problems);
    if options.has_schemas {
        let text = format!(
            "<context-initializer>: the class {class} is not run; its schemas have to be those of --schema"
        );
        problems.warn(node.place, text);
    } else {
        let text = format!(
            "<context-initializer>: the class {class} cannot be run; register its schemas with --schema FILE"
        );
        problems.refuse(node.place, text);
    }
}

fn read_serialization(node: &Node, options: OptionsBeside, problems: &mut Problems) {
    let mut section = Section::new(node);
    section.warn(
        &[
            ("allow-list", "no Java objects are deserialized"),
            ("white-list", "no Java objects are deserialized"),
            ("version", "no Java objects are serialized"),
        ],
        problems,
    );
    section.refuse(
        &[(
            "advanced-externalizer",
            "Java classes cannot be run; remove it, because the server stores bytes",
        )],
        problems,
    );
    // In XML, in JSON with one, and in JSON with several.
    for listed in ["context-initializer", "context-initializers"] {
        for initializer in section.children(listed) {
            read_initializer(initializer, options, problems);
        }
    }
    if let Some(marshaller) = section.attribute("marshaller") {
        let is_bytes = marshaller.value.ends_with("ProtoStreamMarshaller");
        let text = "marshaller of serialization has no effect: the server stores the bytes of clients";
        if is_bytes {
            problems.warn(marshaller.place, text);
        } else {
            problems.refuse(
                marshaller.place,
                format!("marshaller of serialization: {} cannot be run; remove it: the server stores the bytes of clients, and \
                         their media type is that of <encoding>", marshaller.value),
            );
        }
    }
    section.finish(problems);
}
