//! The settings of a file as lines of text.

use std::fmt::{self, Display};

use super::ServerFile;
use super::cache_roles::CacheAccess;
use crate::catalog::definition::{self, Definition};

/// Settings that a server with the file has, one a line.
pub struct Effective<'f>(pub(super) &'f ServerFile);

impl ServerFile {
    /// Returns the effective settings for display.
    pub const fn effective(&self) -> Effective<'_> {
        Effective(self)
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    writeln!(f, "{name:<16} {value}")
}

impl Display for Effective<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.0;
        match &file.cluster {
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
        line(f, "default cache", file.default_cache.as_deref().unwrap_or("none"))?;
        for cache in &file.definitions.all {
            line(f, "cache", Named(&cache.config.name, cache))?;
        }
        for (name, template) in &file.definitions.templates {
            line(f, "template", Named(name, template))?;
        }
        for (name, config) in &file.definitions.counters {
            line(f, "counter", format_args!("{name} {config:?}"))?;
        }
        Ok(())
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
        let file = self.0;
        match file.address() {
            Some((host, port)) => line(f, "clients", format_args!("{host}:{port}"))?,
            None => line(f, "clients", "as --host and --port, by default 127.0.0.1:11222")?,
        }
        if let Some(endpoint) = &file.endpoint {
            if let Some(host) = &endpoint.external_host {
                line(f, "advertised host", host)?;
            }
            if let Some(port) = endpoint.external_port {
                line(f, "advertised port", port)?;
            }
            if !endpoint.filter.is_empty() {
                line(f, "addresses", &endpoint.filter)?;
            }
            if let Some((mechanisms, _)) = &endpoint.mechanisms {
                let names: Vec<&str> = mechanisms.iter().map(|mechanism| mechanism.name()).collect();
                line(f, "mechanisms", names.join(", "))?;
            }
        }
        if let Some(tls) = file.realm.as_ref().and_then(|realm| realm.tls.as_ref()) {
            line(f, "TLS", tls.identity.display())?;
            if let Some(clients) = &tls.clients {
                line(f, "client CAs", clients.display())?;
            }
        }
        match (file.realm.as_ref().and_then(|realm| realm.users.as_ref()), &file.users) {
            (Some(files), Some(users)) => {
                line(f, "users", format_args!("{} of {}", users.count(), files.users.display()))?;
            }
            (Some(files), None) => line(f, "users", files.users.display())?,
            (None, _) => line(f, "users", "none, every client can do everything")?,
        }
        if let Some(roles) = &file.roles {
            let names: Vec<&str> = roles.roles.keys().map(String::as_str).collect();
            line(f, "roles", names.join(", "))?;
        }
        for (cache, access) in file.access.iter().filter(|_| file.roles.is_some()) {
            match access {
                CacheAccess::AllUsers => line(f, "access", format_args!("{cache}: all authenticated users"))?,
                CacheAccess::AllRoles => line(f, "access", format_args!("{cache}: all roles"))?,
                CacheAccess::Roles(roles, _) => {
                    let names: Vec<&str> = roles.iter().map(String::as_str).collect();
                    line(f, "access", format_args!("{cache}: {}", names.join(", ")))?;
                }
            }
        }
        match &file.data {
            Some(data) => line(f, "data", data.display()),
            None => line(f, "data", "none"),
        }
    }
}
