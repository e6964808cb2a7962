//! The settings of a file as lines of text.

use std::fmt::{self, Display};
use std::path::Path;

use consort_hotrod::ops::counter::{CounterConfig, CounterKind};
use consort_tls::ListenerFiles;

use super::cache_roles::CacheAccess;
use super::{ClusterSettings, ServerFile};
use crate::catalog::definition::{self, Definition};
use crate::server::{FurtherPort, ServerBuilder};

/// Settings that a server with the file and options has, one a line.
pub struct Effective<'f> {
    file: &'f ServerFile,
    /// With the settings of the file, too.
    builder: &'f ServerBuilder,
    cluster: Option<&'f ClusterSettings>,
    users: Option<&'f Path>,
    tls: Option<&'f ListenerFiles>,
}

impl ServerFile {
    /// Returns the settings for display of a server with this file and options: a builder has both ([`Self::apply`]).
    pub const fn effective<'f>(&'f self, builder: &'f ServerBuilder) -> Effective<'f> {
        Effective { file: self, builder, cluster: self.cluster.as_ref(), users: None, tls: None }
    }
}

impl<'f> Effective<'f> {
    /// The cluster; by default that of the file.
    #[must_use]
    pub const fn cluster(self, cluster: Option<&'f ClusterSettings>) -> Self {
        Self { cluster, ..self }
    }

    /// The file of users.
    #[must_use]
    pub const fn users(self, users: Option<&'f Path>) -> Self {
        Self { users, ..self }
    }

    /// The files of certificates.
    #[must_use]
    pub const fn tls(self, tls: Option<&'f ListenerFiles>) -> Self {
        Self { tls, ..self }
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    writeln!(f, "{name:<16} {value}")
}

impl Display for Effective<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cluster {
            None => line(f, "cluster", "none, the server runs alone")?,
            Some(cluster) => {
                line(f, "cluster", &cluster.name)?;
                if let Some(stack) = &cluster.stack {
                    let names: Vec<&str> =
                        stack.config.protocols.iter().map(|protocol| protocol.short_name()).collect();
                    line(f, "stack", names.join(" "))?;
                }
                for (name, value) in [
                    ("member", &cluster.member),
                    ("site", &cluster.site),
                    ("rack", &cluster.rack),
                    ("machine", &cluster.machine),
                ] {
                    if let Some(value) = value {
                        line(f, name, value)?;
                    }
                }
                if let Some((size, timeout)) = cluster.initial_size {
                    line(
                        f,
                        "start waits for",
                        format_args!("{size} members, at most {} s", timeout.as_secs()),
                    )?;
                }
            }
        }
        self.server(f)?;
        line(f, "default cache", self.builder.default_cache.as_deref().unwrap_or("none"))?;
        for schema in &self.builder.schemas {
            line(f, "schema", format_args!("{} of {}", schema.name(), schema.file()))?;
        }
        let Some(definitions) = &self.builder.definitions else { return Ok(()) };
        for cache in &definitions.all {
            line(f, "cache", Named(&cache.config.name, cache))?;
        }
        for (name, template) in &definitions.templates {
            line(f, "template", Named(name, template))?;
        }
        for (name, config) in &definitions.counters {
            line(f, "counter", format_args!("{name} {}", CounterText(config)))?;
        }
        Ok(())
    }
}

struct CounterText<'c>(&'c CounterConfig);

impl Display for CounterText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CounterConfig { kind, is_persistent, initial } = self.0;
        match kind {
            CounterKind::Strong => f.write_str("strong")?,
            CounterKind::Bounded { lower, upper } => write!(f, "strong, from {lower} to {upper}")?,
            CounterKind::Weak { concurrency } => write!(f, "weak, concurrency level {concurrency}")?,
        }
        let storage = if *is_persistent { "persistent" } else { "volatile" };
        write!(f, ", {storage}, initial value {initial}")
    }
}

struct Named<'d>(&'d str, &'d Definition);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, definition::to_text(self.1))?;
        let aliases: Vec<&str> = self.1.aliases.iter().flatten().map(String::as_str).collect();
        if aliases.is_empty() { Ok(()) } else { write!(f, ", aliases {}", aliases.join(", ")) }
    }
}

impl Effective<'_> {
    fn server(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, builder) = (self.file, self.builder);
        line(f, "clients", format_args!("{}:{}", builder.host, builder.port))?;
        if let Some(host) = &builder.advertised {
            line(f, "advertised host", host)?;
        }
        if let Some(port) = builder.advertised_port {
            line(f, "advertised port", port)?;
        }
        if !builder.ip_filter.is_empty() {
            line(f, "addresses", &builder.ip_filter)?;
        }
        for FurtherPort { host, port, ip_filter } in &builder.further_ports {
            line(f, "further clients", format_args!("{host}:{port}"))?;
            if !ip_filter.is_empty() {
                line(f, "their addresses", ip_filter)?;
            }
        }
        if let Some(mechanisms) = &builder.security.mechanisms {
            let names: Vec<&str> = mechanisms.iter().map(|mechanism| mechanism.name()).collect();
            line(f, "mechanisms", names.join(", "))?;
        }
        self.certificates(f)?;
        match (self.users, builder.users_count()) {
            (Some(path), Some(count)) => line(f, "users", format_args!("{count} of {}", path.display()))?,
            (Some(path), None) => line(f, "users", format_args!("{} (not read)", path.display()))?,
            (None, Some(count)) => line(f, "users", count)?,
            (None, None) => line(f, "users", "none, every client can do everything")?,
        }
        if builder.security.tokens.is_some() {
            line(f, "tokens", "of known users")?;
        }
        let metrics = if builder.security.public_metrics { "all clients" } else { "users with MONITOR" };
        if self.users.is_some() {
            line(f, "metrics", format_args!("for {metrics}"))?;
        }
        let roles = file.roles.as_ref();
        if let Some(roles) = roles {
            let names: Vec<&str> = roles.roles.keys().map(String::as_str).collect();
            line(f, "roles", names.join(", "))?;
        }
        for (cache, access) in file.access.iter().filter(|_| roles.is_some()) {
            match access {
                CacheAccess::AllUsers => line(f, "access", format_args!("{cache}: all authenticated users"))?,
                CacheAccess::AllRoles => line(f, "access", format_args!("{cache}: all roles"))?,
                CacheAccess::Roles(roles, _) => {
                    let names: Vec<&str> = roles.iter().map(String::as_str).collect();
                    line(f, "access", format_args!("{cache}: {}", names.join(", ")))?;
                }
            }
        }
        match &builder.data {
            Some(data) => line(f, "data", data.display()),
            None => line(f, "data", "none"),
        }
    }

    fn certificates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(tls) = self.tls else { return Ok(()) };
        let state = if self.builder.has_tls() { "" } else { " (not read)" };
        line(f, "TLS", format_args!("{}{state}", tls.certificate().display()))?;
        let protocols = tls.protocols.names();
        if !protocols.is_empty() {
            line(f, "TLS offers", protocols.join(", "))?;
        }
        let Some(clients) = &tls.client_ca else { return Ok(()) };
        let requirement = if tls.needs_clients { "needed" } else { "optional" };
        line(
            f,
            "client CAs",
            format_args!("{} (certificates of clients are {requirement})", clients.path().display()),
        )
    }
}
