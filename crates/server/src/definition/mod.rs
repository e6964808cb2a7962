//! What clients say a cache is to be like: a template's name, JSON, YAML or XML (facts section 2.8).
//!
//! A definition that says something that is not done here is refused, with the element, the attribute and the reason, so
//! that nobody believes to have what is not there. What changes nothing that a client could tell is let pass: with
//! transactions for one, whether keys are locked early or late, as they are locked when a transaction is prepared in any
//! case. `docs/server.md` lists all of it.

mod alteration;
mod document;
mod encoding;
mod expiration;
mod memory;
mod once;
mod partitions;
mod persistence;
mod predefined;
mod transactions;
mod tree;
mod values;
mod written;

use std::collections::BTreeSet;

use consort_cache::{CacheConfig, CacheMode, CacheSettings, Flags, Lifetime, MemoryBound};

use crate::bounds::{ALIASES_MAX, DEFINITION_BYTES_MAX};
use crate::caches::is_ours;
use crate::media::Encoding;
pub(crate) use alteration::{check as check_alteration, with_attribute};
pub(crate) use persistence::StoreSettings;
pub use predefined::{CacheDefinitions, CacheDefinitionsError};
use tree::{Element, refused};
pub use values::amount_of_bytes;
use values::{flag, number, span};
pub(crate) use written::{from_stored, to_stored, to_text};

/// A definition that cannot be used. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Neither JSON nor YAML nor XML.
    #[error("cache configuration cannot be read: {0}")]
    Unreadable(String),
    /// A kind of cache that is not there, or a setting that nobody knows.
    #[error("cache configuration: '{0}' is not supported")]
    Unsupported(String),
    /// An attribute's value.
    #[error("cache configuration: {attribute} cannot be {value}")]
    Invalid {
        /// The attribute.
        attribute: String,
        /// Its value.
        value: String,
    },
    /// What is known, and is not done.
    #[error("cache configuration: {what}: {why}")]
    Refused {
        /// The setting.
        what: String,
        /// The reason, and what may be said instead.
        why: String,
    },
}

type Result<T> = std::result::Result<T, DefinitionError>;

/// What a cache is to be like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Definition {
    /// What all members agree upon.
    pub(crate) config: CacheConfig,
    /// How much of it each server has in memory.
    pub(crate) memory: Option<MemoryBound>,
    /// How long entries live of which clients do not say it.
    pub(crate) lifetime: Lifetime,
    /// Whether writes are acknowledged before all owners have them.
    pub(crate) is_asynchronous: bool,
    /// What each server keeps of it in files.
    pub(crate) store: Option<StoreSettings>,
    /// Whether clients can change several keys as one.
    pub(crate) is_transactional: bool,
    /// What keys and values are kept as.
    pub(crate) encoding: Encoding,
    /// Its other names, if they are said. Servers keep them apart from it: an alias goes from one cache to another.
    pub(crate) aliases: Option<BTreeSet<String>>,
}

impl Definition {
    /// What it is opened with, but for its files.
    pub(crate) fn settings(&self) -> CacheSettings {
        let flags = if self.is_asynchronous { Flags::ASYNC } else { Flags::NONE };
        let (memory, lifetime) = (self.memory, self.lifetime);
        CacheSettings { memory, lifetime, flags, ..CacheSettings::from(self.config.clone()) }
    }
}

/// Kinds of caches.
const KINDS: &[(&str, CacheMode)] = &[
    ("local-cache", CacheMode::Local),
    ("replicated-cache", CacheMode::Replicated),
    ("distributed-cache", CacheMode::Distributed { owners: 2 }),
    ("invalidation-cache", CacheMode::Invalidation),
];

/// The templates that a server of Infinispan's has from the start, and whether their writes wait for all owners.
const TEMPLATES: &[(&str, CacheMode, bool)] = &[
    ("org.infinispan.LOCAL", CacheMode::Local, true),
    ("org.infinispan.REPL_SYNC", CacheMode::Replicated, true),
    ("org.infinispan.REPL_ASYNC", CacheMode::Replicated, false),
    ("org.infinispan.DIST_SYNC", CacheMode::Distributed { owners: 2 }, true),
    ("org.infinispan.DIST_ASYNC", CacheMode::Distributed { owners: 2 }, false),
    ("org.infinispan.INVALIDATION_SYNC", CacheMode::Invalidation, true),
    ("org.infinispan.INVALIDATION_ASYNC", CacheMode::Invalidation, false),
];

/// Whether a template of this name comes with the server.
pub(crate) fn is_template(name: &str) -> bool {
    templates().any(|own| own == name)
}

/// The names of those that do.
pub(crate) fn templates() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, ..)| *name)
}

fn mode_of(kind: &str) -> Option<CacheMode> {
    KINDS.iter().find(|(name, _)| *name == kind).map(|(_, mode)| *mode)
}

/// The settings of a cache from a template's name; the default's without one.
pub(crate) fn from_template(cache: &str, template: Option<&str>) -> Result<Definition> {
    let Some(template) = template else { return Ok(of_kind(cache, CacheMode::default())) };
    let Some((_, mode, is_synchronous)) = TEMPLATES.iter().find(|(name, ..)| *name == template) else {
        let names = templates().collect::<Vec<_>>().join(", ");
        return Err(refused(&format!("there is no template {template}"), &names));
    };
    Ok(Definition { is_asynchronous: !is_synchronous, ..of_kind(cache, *mode) })
}

/// The settings of a cache from its definition.
pub(crate) fn from_text(cache: &str, text: &str) -> Result<Definition> {
    if text.len() > DEFINITION_BYTES_MAX {
        let text = format!("it has {} bytes, and {DEFINITION_BYTES_MAX} are the limit", text.len());
        return Err(DefinitionError::Unreadable(text));
    }
    read(cache, &Element::read(cache, text)?)
}

fn of_kind(cache: &str, mode: CacheMode) -> Definition {
    // Bytes as clients send them; what they are is between them.
    let config = CacheConfig { mode, ..CacheConfig::new(cache) };
    Definition {
        config,
        memory: None,
        lifetime: Lifetime::FOREVER,
        is_asynchronous: false,
        store: None,
        is_transactional: false,
        encoding: Encoding::default(),
        aliases: None,
    }
}

/// What may be within a cache's element.
const WITHIN: &[&str] = &[
    "encoding",
    "expiration",
    "groups",
    "indexing",
    "locking",
    "memory",
    "partition-handling",
    "persistence",
    "security",
    "state-transfer",
    "tracing",
    "transaction",
];

fn read(cache: &str, element: &Element) -> Result<Definition> {
    let Some(mode) = mode_of(&element.name) else {
        return Err(match &element.children[..] {
            [of] if mode_of(&of.name).is_some() => {
                let text = format!("it is of a cache '{}', and not of '{cache}'", element.written);
                DefinitionError::Unreadable(text)
            }
            _ => DefinitionError::Unsupported(element.name.clone()),
        });
    };
    let template = element.attributes.iter().find(|(attribute, _)| attribute == "configuration");
    let mut definition = match template {
        None => of_kind(cache, mode),
        Some((_, template)) => {
            let of_template = from_template(cache, Some(template))?;
            if of_template.config.mode != mode {
                let why = format!("the template is of another kind than {}", element.name);
                return Err(element.refused("configuration", template, &why));
            }
            of_template
        }
    };
    for (attribute, value) in &element.attributes {
        set(&mut definition, element, attribute, value)?;
    }
    element.check_children(WITHIN)?;
    for child in &element.children {
        match &child.name[..] {
            "encoding" => definition.encoding = encoding::read(child)?,
            "expiration" => definition.lifetime = expiration::read(child)?,
            "locking" => transactions::read_locking(child)?,
            "memory" => definition.memory = memory::read(child)?,
            "partition-handling" => partitions::read(child, &mut definition.config)?,
            "persistence" => definition.store = persistence::read(child, &definition.config)?,
            "state-transfer" => read_state_transfer(child)?,
            "transaction" => definition.is_transactional = transactions::read(child, &definition.config)?,
            _ => read_disabled(child)?,
        }
    }
    if definition.is_transactional && definition.is_asynchronous {
        let why = "a transaction is done when all owners have it; mode has to be SYNC";
        return Err(element.refused("mode", "ASYNC together with transactions", why));
    }
    Ok(definition)
}

/// Sets what an attribute of the cache's element says.
fn set(definition: &mut Definition, element: &Element, attribute: &str, value: &str) -> Result<()> {
    let config = &mut definition.config;
    match attribute {
        "mode" => match value {
            "SYNC" => definition.is_asynchronous = false,
            "ASYNC" if config.mode != CacheMode::Local => definition.is_asynchronous = true,
            _ => return Err(element.invalid(attribute, value)),
        },
        "owners" => match &mut config.mode {
            CacheMode::Distributed { owners } => {
                *owners = number(element, attribute, value)?;
                if *owners == 0 {
                    return Err(element.invalid(attribute, value));
                }
            }
            _ => return Err(element.invalid(attribute, value)),
        },
        "segments" => {
            config.segments = number(element, attribute, value)?;
            if config.segments == 0 {
                return Err(element.invalid(attribute, value));
            }
        }
        "capacity-factor" => {
            // The same for all servers is a share like any other.
            let factor: f64 = number(element, attribute, value)?;
            if factor == 0.0 {
                let why = "a definition is the same for all servers, and then nobody would have anything";
                return Err(element.refused(attribute, value, why));
            }
            if !(factor > 0.0 && factor.is_finite()) {
                return Err(element.invalid(attribute, value));
            }
        }
        "aliases" => definition.aliases = Some(aliases(element, value, &definition.config.name)?),
        "l1-lifespan" => {
            if span(element, attribute, value)?.is_some() {
                let why = "servers have no caches of what others own; clients have near caches";
                return Err(element.refused(attribute, value, why));
            }
        }
        "key-partitioner" | "consistent-hash-factory" => {
            return Err(element.refused(attribute, value, "classes of Java cannot be run"));
        }
        // What clients ask for they are told in any case; writes and their previous values are always right.
        "statistics" | "simple-cache" | "unreliable-return-values" => drop(flag(element, attribute, value)?),
        // How long a server waits for another is its own; the others are of how a cache is begun and named.
        "remote-timeout" | "l1-cleanup-interval" => drop(span(element, attribute, value)?),
        "name" | "configuration" | "start" => {}
        other => return Err(element.unknown(other)),
    }
    Ok(())
}

/// The aliases that a text has, between spaces.
fn aliases(element: &Element, value: &str, cache: &str) -> Result<BTreeSet<String>> {
    let all: BTreeSet<String> = value.split_whitespace().map(str::to_owned).collect();
    let wrong = all.iter().find(|alias| *alias == cache || is_ours(alias));
    match wrong {
        Some(alias) => Err(element.refused("aliases", alias, "it is the cache's own name, or the servers'")),
        None if all.len() > ALIASES_MAX => Err(element.refused(
            "aliases",
            &format!("{} names", all.len()),
            &format!("{ALIASES_MAX} are allowed"),
        )),
        None => Ok(all),
    }
}

/// Reads `state-transfer`: a new owner has everything before it counts as one, and nobody waits for that.
fn read_state_transfer(element: &Element) -> Result<()> {
    element.check_children(&[])?;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "enabled" if !flag(element, attribute, value)? => {
                let why = "owners would lack what they own";
                return Err(element.refused(attribute, value, why));
            }
            "enabled" => {}
            "timeout" => drop(span(element, attribute, value)?),
            "chunk-size" => drop(number::<i64>(element, attribute, value)?),
            "await-initial-transfer" => drop(flag(element, attribute, value)?),
            other => return Err(element.unknown(other)),
        }
    }
    Ok(())
}

/// Reads an element of something that is not there: it may say that it is not wanted.
fn read_disabled(element: &Element) -> Result<()> {
    let why = match &element.name[..] {
        "groups" => "groups are made by classes of Java, which cannot be run",
        "indexing" => "there are no indexes: queries look at every entry",
        "security" => "roles are of users, and count for all caches (docs/security.md)",
        _ => "which caches are traced cannot be chosen",
    };
    // That of security is one further down.
    let authorization = element.child("authorization")?.filter(|_| element.name == "security");
    let deciding = authorization.unwrap_or(element);
    let is_disabled = match &deciding.attributes[..] {
        [(attribute, value)] if attribute == "enabled" => !flag(deciding, attribute, value)?,
        _ => false,
    };
    let is_empty = deciding.children.is_empty() && (authorization.is_none() || element.children.len() == 1);
    if is_disabled && is_empty { Ok(()) } else { Err(refused(&element.name, why)) }
}

#[cfg(test)]
pub(in crate::definition) mod tests {
    use super::*;

    /// What a cache of a kind is like that has an element with these attributes, each `name=value`, in XML, in JSON and in
    /// YAML: the same in each of them.
    pub(in crate::definition) fn in_each_form(
        kind: &str,
        name: &str,
        attributes: &str,
    ) -> Result<Definition> {
        let attributes: Vec<(&str, &str)> =
            attributes.split_whitespace().map(|one| one.split_once('=').unwrap()).collect();
        let xml: String = attributes.iter().map(|(name, value)| format!(" {name}=\"{value}\"")).collect();
        let json: Vec<String> =
            attributes.iter().map(|(name, value)| format!("\"{name}\": \"{value}\"")).collect();
        let in_yaml = |name: &str| {
            let mut parts = name.split('-');
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |so_far, part| so_far + &part[..1].to_uppercase() + &part[1..])
        };
        let yaml: String =
            attributes.iter().map(|(name, value)| format!("\n    {}: {value}", in_yaml(name))).collect();
        let forms = [
            format!("<{kind}-cache><{name}{xml}/></{kind}-cache>"),
            format!("{{\"{kind}-cache\": {{\"{name}\": {{{}}}}}}}", json.join(", ")),
            format!("{kind}Cache:\n  {}:{yaml}\n", in_yaml(name)),
        ];
        let [xml, json, yaml] = forms.map(|form| from_text("c", &form));
        assert_eq!(xml, json, "{attributes:?}");
        assert_eq!(xml, yaml, "{attributes:?}");
        xml
    }

    fn mode(text: &str) -> Result<(CacheMode, u16)> {
        from_text("c", text).map(|definition| (definition.config.mode, definition.config.segments))
    }

    #[test]
    fn definitions_are_read_as_clients_write_them() {
        let two = (CacheMode::Distributed { owners: 2 }, 256);
        let java = r#"{"distributed-cache": { "mode": "SYNC", "statistics": "true"}}"#;
        assert_eq!(mode(java), Ok(two));
        let named = r#"{"c": {"replicated-cache": {"mode": "SYNC", "segments": 16}}}"#;
        assert_eq!(mode(named), Ok((CacheMode::Replicated, 16)));
        assert_eq!(mode("c:\n  replicatedCache:\n    segments: 16\n"), Ok((CacheMode::Replicated, 16)));
        let xml = r#"<?xml version="1.0"?><infinispan><cache-container><distributed-cache name="c" owners="3">
                     <encoding media-type="application/x-protostream"/></distributed-cache></cache-container></infinispan>"#;
        assert_eq!(mode(xml), Ok((CacheMode::Distributed { owners: 3 }, 256)));
        assert_eq!(mode("<local-cache/>"), Ok((CacheMode::Local, 256)));
        let other = mode(r#"{"d": {"replicated-cache": {}}}"#).unwrap_err().to_string();
        assert!(other.ends_with("it is of a cache 'd', and not of 'c'"), "{other}");
    }

    /// Those of docs/server.md.
    #[test]
    fn the_documented_example_is_the_same_in_each_form() {
        let page = include_str!("../../../../docs/server.md");
        let example = |form: &str| {
            let (_, example) = page.split_once(&format!("```{form}\n")).unwrap();
            from_text("c", example.split_once("```").unwrap().0).unwrap()
        };
        let xml = example("xml");
        assert_eq!((&xml, &xml), (&example("json"), &example("yaml")));
        assert!(xml.memory.is_some() && xml.store.is_some() && xml.lifetime.max_idle.is_some());
    }

    #[test]
    fn writes_wait_for_all_owners_or_not() {
        let is_asynchronous = |text: &str| from_text("c", text).map(|definition| definition.is_asynchronous);
        for kind in ["distributed-cache", "replicated-cache", "invalidation-cache"] {
            assert_eq!(is_asynchronous(&format!("<{kind} mode=\"ASYNC\"/>")), Ok(true));
            assert_eq!(is_asynchronous(&format!("{{\"{kind}\": {{\"mode\": \"SYNC\"}}}}")), Ok(false));
        }
        assert!(is_asynchronous("<local-cache mode=\"ASYNC\"/>").is_err());
        let settings = from_text("c", "<replicated-cache mode='ASYNC'/>").unwrap().settings();
        assert_eq!(settings.flags, Flags::ASYNC);
    }

    #[test]
    fn the_templates_of_infinispan_are_there() {
        for (name, mode, is_synchronous) in TEMPLATES {
            let made = from_template("c", Some(name)).unwrap();
            assert_eq!((made.config.mode, made.is_asynchronous), (*mode, !is_synchronous), "{name}");
        }
        assert_eq!(from_template("c", None), Ok(of_kind("c", CacheMode::default())));
        let error = from_template("c", Some("mine")).unwrap_err().to_string();
        assert!(
            error.contains("no template mine: org.infinispan.LOCAL, org.infinispan.REPL_SYNC"),
            "{error}"
        );
        let of = |text| from_text("c", text).map(|definition| definition.is_asynchronous);
        assert_eq!(of(r#"<replicated-cache configuration="org.infinispan.REPL_ASYNC"/>"#), Ok(true));
        assert_eq!(
            of(r#"<replicated-cache mode="SYNC" configuration="org.infinispan.REPL_ASYNC"/>"#),
            Ok(false)
        );
        assert!(of(r#"<replicated-cache configuration="org.infinispan.DIST_ASYNC"/>"#).is_err());
        assert!(of(r#"<replicated-cache configuration="mine"/>"#).is_err());
    }

    #[test]
    fn what_changes_nothing_that_a_client_could_tell_is_let_pass() {
        let default = from_text("c", "<distributed-cache/>").unwrap();
        for attributes in [
            r#"statistics="true" remote-timeout="17s" unreliable-return-values="true" name="c" start="EAGER""#,
            r#"capacity-factor="2.5" l1-lifespan="-1" l1-cleanup-interval="1m""#,
            r#"xmlns="urn:infinispan:config:16.0" simple-cache="false" owners="2" segments="256""#,
        ] {
            let read = from_text("c", &format!("<distributed-cache {attributes}/>"));
            assert_eq!(read, Ok(default.clone()), "{attributes}");
        }
        for within in [
            r#"<state-transfer enabled="true" timeout="4m" chunk-size="512" await-initial-transfer="false"/>"#,
            r#"<groups enabled="false"/><indexing enabled="false"/><tracing enabled="false"/>"#,
            r#"<security><authorization enabled="false"/></security>"#,
            r#"<locking isolation="REPEATABLE_READ" acquire-timeout="10s" concurrency-level="32" striping="false"/>"#,
            "<encoding/><expiration/><memory/><persistence/><transaction/><partition-handling/>",
        ] {
            let read = from_text("c", &format!("<distributed-cache>{within}</distributed-cache>"));
            assert_eq!(read, Ok(default.clone()), "{within}");
        }
    }

    #[test]
    fn aliases_are_read_in_each_form_and_kept_apart() {
        for text in [
            r#"<local-cache aliases="d e"/>"#,
            r#"{"local-cache": {"aliases": ["e", "d"]}}"#,
            r#"{"local-cache": {"aliases": "d e"}}"#,
            "localCache:\n  aliases:\n    - d\n    - e\n",
        ] {
            let read = from_text("c", text).unwrap();
            assert_eq!(read.aliases, Some(["d".to_owned(), "e".to_owned()].into()), "{text}");
            assert_eq!(from_text("c", &to_text(&read)).unwrap().aliases, None, "{text}");
        }
        assert_eq!(from_text("c", r#"<local-cache aliases=""/>"#).unwrap().aliases, Some(BTreeSet::new()));
        assert_eq!(from_text("c", "<local-cache/>").unwrap().aliases, None);
        let many = (0..=ALIASES_MAX).map(|at| format!("a{at} ")).collect::<String>();
        let error = from_text("c", &format!("<local-cache aliases=\"{many}\"/>")).unwrap_err().to_string();
        assert!(error.contains("aliases of local-cache cannot be 65 names: 64 are allowed"), "{error}");
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (attributes, why) in [
            (r#"mode="LATER""#, "mode of distributed-cache cannot be LATER"),
            (r#"owners="0""#, "owners of distributed-cache cannot be 0"),
            (r#"segments="0""#, "segments of distributed-cache cannot be 0"),
            (r#"capacity-factor="0""#, "nobody would have anything"),
            (r#"capacity-factor="-1""#, "capacity-factor of distributed-cache cannot be -1"),
            (r#"capacity-factor="NaN""#, "capacity-factor of distributed-cache cannot be NaN"),
            (r#"aliases="d c""#, "aliases of distributed-cache cannot be c: it is the cache's own name"),
            (r#"aliases="___d""#, "aliases of distributed-cache cannot be ___d"),
            (r#"l1-lifespan="10m""#, "near caches"),
            (r#"key-partitioner="org.acme.Mine""#, "classes of Java"),
            (r#"consistent-hash-factory="org.acme.Mine""#, "classes of Java"),
            (r#"statistics="maybe""#, "statistics of distributed-cache cannot be maybe"),
            (r#"mine="1""#, "'mine of distributed-cache' is not supported"),
        ] {
            let error =
                from_text("c", &format!("<distributed-cache {attributes}/>")).unwrap_err().to_string();
            assert!(error.contains(why), "{attributes}: {error}");
        }
        for (within, why) in [
            (r#"<state-transfer enabled="false"/>"#, "enabled of state-transfer cannot be false"),
            (r#"<state-transfer mine="1"/>"#, "mine of state-transfer"),
            (r#"<groups enabled="true"/>"#, "groups: groups are made by classes"),
            (r#"<groups><grouper class="org.acme.Mine"/></groups>"#, "groups"),
            (r#"<indexing/>"#, "indexing: there are no indexes"),
            (r#"<indexing enabled="true"><indexed-entities/></indexing>"#, "indexing"),
            (r#"<security><authorization roles="admin"/></security>"#, "security: roles are of users"),
            (r#"<security><authorization enabled="true"/></security>"#, "security"),
            (r#"<tracing enabled="true"/>"#, "tracing"),
            (r#"<backups/>"#, "'backups of distributed-cache' is not supported"),
            (r#"<query default-max-results="10"/>"#, "query of distributed-cache"),
            (r#"<memory/><memory/>"#, "memory is there more than once"),
            (r#"<memory><heap/></memory>"#, "heap of memory"),
        ] {
            let text = format!("<distributed-cache>{within}</distributed-cache>");
            let error = from_text("c", &text).unwrap_err().to_string();
            assert!(error.contains(why), "{within}: {error}");
        }
        for text in [
            r#"{"local-cache": {"owners": 2}}"#,
            r#"{"scattered-cache": {}}"#,
            "distributedCache: 1",
            "distributedCache:\n  mine: 1",
            "distributedCache:\n  memory: 1",
            "distributedCache:\n  mode: ~",
        ] {
            assert!(from_text("c", text).is_err(), "{text}");
        }
    }
}
