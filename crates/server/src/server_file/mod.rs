//! A whole file of Infinispan's server, `<infinispan>` with a cache container and a server: all settings that have a counterpart,
//! and all problems at once, each with its place.
//!
//! [`document`] reads the elements of XML and [`yaml`] those of JSON and YAML, [`section`] reports each one that no reader
//! has read. [`container`], [`caches`], [`counters`] and [`roles`] read the container, [`network`], [`endpoints`] and [`realms`] the server. [`stack`] passes the stack to its own
//! reader, [`realm_files`] reads the files of users and certificates, [`effective`] shows the result.

mod cache_roles;
mod cache_settings;
mod caches;
mod container;
mod counters;
mod credentials;
mod document;
#[cfg(test)]
mod effect_tests;
mod effective;
mod endpoints;
mod includes;
mod locations;
mod network;
mod problem;
mod realm_files;
mod realm_tls;
mod realms;
mod roles;
mod section;
#[cfg(test)]
mod security_tests;
mod stack;
#[cfg(test)]
mod tests;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use consort_conf::{Stack, Variables};
use consort_tls::{ClientCertificates, Identity, IdentityFiles, ListenerFiles, TlsError};

use self::cache_roles::CacheAccess;
use self::container::{Container, Transport};
use self::document::{FILE_BYTES_MAX, Node, ROOT};
pub use self::effective::Effective;
use self::endpoints::Endpoint;
use self::locations::{DATA_PATH, Locations};
use self::network::{Network, SocketBinding};
use self::problem::Problems;
pub use self::problem::{Place, Problem, Severity};
pub use self::realm_files::{FileRoles, RealmFiles};
use self::realms::{Realm, Realms, UserSource};
use self::roles::RolesSettings;
use self::section::Section;
use crate::catalog::definition::CacheDefinitions;
use crate::security::users::Users;
use crate::server::{FurtherPort, ServerBuilder};

/// The cluster that a server's file names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterSettings {
    /// The name of the cluster.
    pub name: String,
    /// The stack.
    pub stack: Option<Stack>,
    /// The name of the member.
    pub member: Option<String>,
    /// The site of the member, for the choice of owners.
    pub site: Option<String>,
    /// The rack of the member.
    pub rack: Option<String>,
    /// The machine of the member.
    pub machine: Option<String>,
    /// The number of members for which a server waits before it serves, and for how long.
    pub initial_size: Option<(usize, Duration)>,
}

impl ClusterSettings {
    /// Returns the settings of a cluster that has only a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            stack: None,
            member: None,
            site: None,
            rack: None,
            machine: None,
            initial_size: None,
        }
    }
}

/// Options of a server that replace a part of its file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OptionsBeside {
    /// The users are those of another file.
    pub has_users: bool,
    /// The server registers schemas at its start.
    pub has_schemas: bool,
}

/// A server's file. It may have problems that keep a server from starting.
#[derive(Clone, Debug)]
pub struct ServerFile {
    problems: Problems,
    /// `None` if the file cannot be read.
    variables: Option<BTreeSet<String>>,
    cluster: Option<ClusterSettings>,
    default_cache: Option<String>,
    definitions: CacheDefinitions,
    data: Option<PathBuf>,
    /// Caches and counters that need a directory, with their places.
    stored: BTreeMap<String, Place>,
    /// The first one of the file.
    endpoint: Option<Endpoint>,
    further: Vec<Endpoint>,
    realm: Option<Realm>,
    roles: Option<RolesSettings>,
    /// By cache.
    access: BTreeMap<String, CacheAccess>,
    users: Option<Users>,
    tls: Option<(Identity, ClientCertificates)>,
}

/// Whether the outermost element of a text is Infinispan's, `<infinispan>`. Such a file can also have stacks only.
pub fn is_server_file(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}');
    match text.trim_start().chars().next() {
        Some('<') => consort_conf::root_name(text).as_deref() == Some(ROOT),
        _ => yaml::has_root(text),
    }
}

impl ServerFile {
    /// Reads a file, and the files of users and certificates that it names.
    pub fn read(path: impl AsRef<Path>, variables: &Variables) -> Self {
        Self::read_beside(path, variables, OptionsBeside::default())
    }

    /// As [`Self::read`], for a server that also has these options.
    pub fn read_beside(path: impl AsRef<Path>, variables: &Variables, options: OptionsBeside) -> Self {
        let path = path.as_ref();
        let name = path.display().to_string();
        let mut problems = Problems::new(&name);
        let size = std::fs::metadata(path).map(|file| file.len()).unwrap_or_default();
        if size > FILE_BYTES_MAX as u64 {
            problems.refuse(Place { line: 1, column: 1 }, too_large(size));
            return Self::empty(&name).with_problems(problems);
        }
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let locations = Locations { directory: path.parent(), variables, options };
                let mut file = Self::parse_at(&mut problems, &text, locations);
                file.load(&mut problems);
                file.with_problems(problems)
            }
            Err(error) => {
                problems.refuse(Place { line: 1, column: 1 }, format!("cannot be read: {error}"));
                Self::empty(&name).with_problems(problems)
            }
        }
    }

    /// Parses the text of a file of this name, and reads no other files.
    pub fn parse(file: &str, text: &str, variables: &Variables) -> Self {
        Self::parse_beside(file, text, variables, OptionsBeside::default())
    }

    pub(crate) fn parse_beside(
        file: &str,
        text: &str,
        variables: &Variables,
        options: OptionsBeside,
    ) -> Self {
        let mut problems = Problems::new(file);
        let parsed = Self::parse_at(&mut problems, text, Locations { directory: None, variables, options });
        parsed.with_problems(problems)
    }

    fn with_problems(self, mut problems: Problems) -> Self {
        problems.sort();
        Self { problems, ..self }
    }

    fn empty(file: &str) -> Self {
        Self {
            problems: Problems::new(file),
            variables: None,
            cluster: None,
            default_cache: None,
            definitions: CacheDefinitions::none(file),
            data: None,
            stored: BTreeMap::new(),
            endpoint: None,
            further: Vec::new(),
            realm: None,
            roles: None,
            access: BTreeMap::new(),
            users: None,
            tls: None,
        }
    }

    fn parse_at(problems: &mut Problems, text: &str, locations: Locations<'_>) -> Self {
        let mut file = Self::empty(problems.file());
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.len() > FILE_BYTES_MAX {
            problems.refuse(Place { line: 1, column: 1 }, too_large(text.len() as u64));
            return file;
        }
        let is_xml = text.trim_start().starts_with('<');
        let parse = if is_xml { document::parse_xml } else { yaml::parse };
        let Some(mut root) = parse(text, locations.variables, problems) else { return file };
        if root.name != ROOT {
            problems.refuse(root.place, format!("<{}> where <{ROOT}> was expected", root.written));
            return file;
        }
        let mut variables = includes::expand(&mut root, locations, problems);
        variables.extend(locations::variables_of(text, &root));
        file.variables = Some(variables);
        file.read_root(&root, locations, problems);
        file
    }

    fn read_root(&mut self, root: &Node, locations: Locations<'_>, problems: &mut Problems) {
        let mut section = Section::new(root);
        // `stack` reads it.
        section.mark(document::STACKS);
        section.warn(&[("threads", "the number of threads follows the processors")], problems);
        section.refuse(&[("include", "it has href, the name of an XML file, and no children")], problems);
        let container = section.child("cache-container", problems);
        let server = section.child("server", problems);
        section.finish(problems);
        let container = match container {
            Some(node) => self.read_container(node, root, locations, problems),
            None => {
                problems.refuse(
                    root.place,
                    "the file has no <cache-container>; to use only a stack of this file, write --stack",
                );
                Container::default()
            }
        };
        self.roles = container.roles;
        if let Some(server) = server {
            self.read_server(server, locations, problems);
        }
        self.check_roles(root, server.is_some(), locations.options, problems);
    }

    /// Roles without users are refused: a server without users permits every client everything.
    fn check_roles(&self, root: &Node, has_server: bool, options: OptionsBeside, problems: &mut Problems) {
        let Some(roles) = self.roles.as_ref().filter(|roles| !roles.roles.is_empty()) else { return };
        let sources = self.realm.iter().flat_map(|realm| &realm.sources);
        let mut properties = sources.filter(|source| matches!(source, UserSource::Properties(_)));
        if let Some(place) = roles.common_names.filter(|_| properties.next().is_some()) {
            let text = "common-name-role-mapper: names of users of a properties-realm are no distinguished names; use \
                        identity-role-mapper, and name roles as groups";
            problems.refuse(place, text);
        }
        if options.has_users {
            return;
        }
        let (place, text) = match (&self.endpoint, &self.realm) {
            (None, _) if !has_server => (
                root.place,
                "the file has no <server>, so no user has a role; add users with --users, or a <server> with a security-realm",
            ),
            (Some(endpoint), None) if endpoint.realm.is_none() => (
                endpoint.place,
                "its endpoint names no security-realm, so no user has a role; write security-realm=\"NAME\" at the endpoint, or \
                 add users with --users",
            ),
            (Some(endpoint), Some(realm)) if !realm.has_users() => (
                endpoint.place,
                "the security-realm of its endpoint has no users; add a properties-realm, or users with --users",
            ),
            // A server without an endpoint and an unknown realm have been reported.
            _ => return,
        };
        problems.refuse(
            place,
            format!("the container has <authorization>, but {text}, or remove <authorization>"),
        );
    }

    fn read_container<'n>(
        &mut self,
        node: &'n Node,
        root: &Node,
        locations: Locations<'_>,
        problems: &mut Problems,
    ) -> Container<'n> {
        let mut container = container::read(node, locations, problems);
        let read = container.caches.read(problems);
        (self.definitions, self.stored, self.access) = (read.definitions, read.stored, read.access);
        cache_roles::check(&self.access, container.roles.as_ref(), problems);
        for counter in container.counters.drain(..) {
            if counter.config.is_persistent {
                self.stored.insert(format!("counter {}", counter.name), counter.place);
            }
            self.definitions.counters.push((counter.name, counter.config));
        }
        self.default_cache = container.default_cache.take();
        self.data = container.data.take();
        if self.data.is_none() {
            self.data = locations.variables.get(DATA_PATH).map(PathBuf::from);
        }
        if let Some((element, transport)) = container.transport.take() {
            let stack = stack::read(root, Some(element), locations.directory, locations.variables, problems);
            let Transport { cluster, node_name, site, rack, machine, initial_size } = transport;
            self.cluster = Some(ClusterSettings {
                name: cluster,
                stack,
                member: node_name,
                site,
                rack,
                machine,
                initial_size,
            });
        } else if let Some(stacks) = root.children.iter().find(|child| child.name == document::STACKS) {
            problems
                .warn(stacks.place, "jgroups: the container has no <transport>, so this server runs alone");
        }
        container
    }

    fn read_server(&mut self, node: &Node, locations: Locations<'_>, problems: &mut Problems) {
        let mut section = Section::new(node);
        let mut network = Network::default();
        if let Some(interfaces) = section.child("interfaces", problems) {
            network.read_interfaces(interfaces, problems);
        }
        if let Some(bindings) = section.child("socket-bindings", problems) {
            network.read_bindings(bindings, problems);
        }
        let security = section.child("security", problems);
        let realms = security.map(|security| Realms::collect(security, locations, problems));
        let realms = realms.unwrap_or_default();
        section.warn(
            &[(
                "data-sources",
                "a server has no data sources; a store that uses one is refused at its own place",
            )],
            problems,
        );
        match section.child("endpoints", problems) {
            Some(endpoints) => {
                let mut all = endpoints::read(endpoints, &network, problems).into_iter();
                self.endpoint = all.next();
                self.further = all.collect();
            }
            None => problems.refuse(node.place, "<server> needs <endpoints socket-binding=\"NAME\"/>"),
        }
        section.finish(problems);
        let Some(endpoint) = &self.endpoint else { return };
        if let Some((name, place)) = &endpoint.realm {
            self.realm = realms::read(&realms, (name, *place), locations, problems);
        } else if let Some(place) = realms.first() {
            problems.warn(place, "no endpoint names a security-realm: every client can do everything");
        }
        let has_roots = self
            .realm
            .as_ref()
            .is_some_and(|realm| realm.tls.as_ref().is_some_and(|tls| tls.files.client_ca.is_some()));
        if endpoint.needs_client_certificate && !has_roots {
            let text = "require-ssl-client-auth needs a <truststore> beside the <keystore> of the realm";
            problems.refuse(endpoint.place, text);
        }
    }

    /// Reads the files of the realm.
    fn load(&mut self, problems: &mut Problems) {
        let (Some(realm), Some(files)) = (self.realm.clone(), self.realm_files()) else { return };
        if let Some((tls, at)) = files.tls().zip(realm.tls.as_ref()) {
            match tls.read() {
                Ok(loaded) => self.tls = Some(loaded),
                Err(error) => problems.refuse(at.place, error.to_string()),
            }
        }
        match (files.read_users(), realm.sources.first()) {
            (Ok(users), _) => self.users = users,
            (Err(error), Some(at)) => problems.refuse(at.place(), error.to_string()),
            (Err(_), None) => {}
        }
    }

    /// Returns the files of users and certificates; `None` if the endpoint names no realm.
    pub fn realm_files(&self) -> Option<RealmFiles> {
        let realm = self.realm.as_ref()?;
        let needs_clients = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.needs_client_certificate);
        let tls = realm.tls.as_ref().map(|tls| ListenerFiles { needs_clients, ..tls.files.clone() });
        Some(RealmFiles { sources: realm.sources.clone(), tls, roles: self.roles() })
    }

    /// Returns the roles, for users of another file.
    pub fn roles(&self) -> FileRoles {
        FileRoles { roles: self.roles.clone(), access: self.access.clone() }
    }

    /// Writes the certificate that was made because its file is missing (`generate-self-signed-certificate-host`), so that the next
    /// start has the same. Returns the file.
    ///
    /// # Errors
    ///
    /// The file exists by now, or cannot be written.
    pub fn write_made_certificate(&self) -> Result<Option<&Path>, TlsError> {
        let files = self.realm.as_ref().and_then(|realm| Some(&realm.tls.as_ref()?.files));
        match (files.map(|files| &files.identity), &self.tls) {
            (Some(IdentityFiles::Store(file)), Some((identity, _)))
                if file.self_signed_host.is_some() && !file.path.exists() =>
            {
                file.write(identity)?;
                Ok(Some(&file.path))
            }
            _ => Ok(None),
        }
    }

    /// Returns the problems, in the order of the file: at most 200 of each severity.
    pub fn problems(&self) -> &[Problem] {
        self.problems.listed()
    }

    /// Returns the number of problems, also of those that are not listed.
    pub const fn problem_count(&self, severity: Severity) -> usize {
        self.problems.count(severity)
    }

    /// Whether a variable of this name has an effect. True for a file that cannot be read.
    pub fn uses_variable(&self, name: &str) -> bool {
        self.variables.as_ref().is_none_or(|all| all.contains(name))
    }

    /// Whether a server can start with this file; `strict` refuses warnings, too.
    pub fn is_startable(&self, strict: bool) -> bool {
        self.problem_count(Severity::Refused) == 0 && (!strict || self.problem_count(Severity::Warning) == 0)
    }

    /// Adds a problem of each cache and counter that needs a directory for data; without one, entries end with the last server.
    pub fn check_without_data(&mut self) {
        for (name, place) in &self.stored {
            let text = format!(
                "`{name}` is persistent, and the server has no directory for data; write --data DIRECTORY"
            );
            self.problems.refuse(*place, text);
        }
        let place = Place { line: 1, column: 1 };
        let text = "definitions that clients add end with the last server; Infinispan keeps them in server/data; write --data \
                    DIRECTORY or <global-state>";
        self.problems.warn(place, text);
        self.problems.sort();
    }

    /// Returns the cluster; `None` if the server runs alone.
    pub const fn cluster(&self) -> Option<&ClusterSettings> {
        self.cluster.as_ref()
    }

    /// Returns the caches, templates and counters.
    pub const fn definitions(&self) -> &CacheDefinitions {
        &self.definitions
    }

    /// Returns the directory for data.
    pub fn data(&self) -> Option<&Path> {
        self.data.as_deref()
    }

    /// Returns the hosts of further ports for clients.
    pub fn further_hosts(&self) -> impl Iterator<Item = &str> {
        self.further.iter().filter_map(|endpoint| endpoint.binding.as_ref()).map(|binding| &binding.host[..])
    }

    /// Returns the host and the port for clients.
    pub fn address(&self) -> Option<(&str, u16)> {
        let binding = self.endpoint.as_ref()?.binding.as_ref()?;
        Some((&binding.host, binding.port))
    }

    /// Whether the endpoint names a realm with users, also if those cannot be read.
    pub fn needs_authentication(&self) -> bool {
        self.realm.as_ref().is_some_and(Realm::has_users)
    }

    /// Whether clients have to authenticate.
    pub const fn has_users(&self) -> bool {
        self.users.is_some()
    }

    /// Applies the settings of the file to a server.
    #[must_use]
    pub fn apply(&self, mut builder: ServerBuilder) -> ServerBuilder {
        builder = builder.caches(self.definitions.clone());
        builder = match &self.default_cache {
            Some(name) => builder.default_cache(name),
            None => builder.no_default_cache(),
        };
        if let Some(data) = &self.data {
            builder = builder.data(data);
        }
        if let Some(endpoint) = &self.endpoint {
            if let Some(binding) = &endpoint.binding {
                builder = builder.host(&binding.host).port(binding.port);
            }
            if let Some(host) = &endpoint.external_host {
                builder = builder.advertised(host);
            }
            if let Some(port) = endpoint.external_port {
                builder = builder.advertised_port(port);
            }
            if endpoint.has_public_metrics {
                builder = builder.public_metrics();
            }
            builder = builder.ip_filter(endpoint.filter.clone());
            // The mechanisms also apply to users of --users. Without any users, a server with mechanisms does not start.
            if let Some((mechanisms, _)) = &endpoint.mechanisms {
                builder = builder.mechanisms(mechanisms.clone());
            }
        }
        let further = self.further.iter().filter_map(|endpoint| {
            let SocketBinding { host, port } = endpoint.binding.clone()?;
            Some(FurtherPort { host, port, ip_filter: endpoint.filter.clone() })
        });
        builder = builder.further_ports(further.collect());
        if let Some((identity, clients)) = &self.tls {
            builder = builder.tls(identity.clone(), clients.clone());
            let files = self.realm.as_ref().and_then(|realm| realm.tls.as_ref()).map(|tls| &tls.files);
            builder = builder.tls_protocols(files.map(|files| files.protocols.clone()).unwrap_or_default());
        }
        if let Some(tokens) = self.realm.as_ref().and_then(|realm| realm.tokens.as_ref()) {
            builder = builder.tokens(tokens.clone());
        }
        match &self.users {
            Some(users) => builder.users(users.clone()),
            None => builder,
        }
    }
}

fn too_large(bytes: u64) -> String {
    format!("the file has {bytes} bytes; the limit is {FILE_BYTES_MAX}")
}
