//! Definitions of caches as clients write them: a template's name, JSON, YAML or XML (facts section 2.8).
//!
//! An unsupported setting is refused, so that no client relies on a missing feature. A setting without an observable effect is
//! accepted, such as optimistic or pessimistic locking: keys are locked at prepare in either case. `docs/server.md` lists all
//! settings.

mod alteration;
mod document;
mod encoding;
mod expiration;
mod indexing;
mod memory;
mod partitions;
mod persistence;
mod predefined;
mod shown_form;
mod stored_form;
mod transactions;
mod tree;
mod unique_keys;
mod values;
pub(crate) mod without_effect;

use std::collections::BTreeSet;

use consort_cache::{CacheConfig, CacheMode, CacheSettings, Flags, Lifetime, MemoryBound};

use crate::limits::{ALIASES_MAX, DEFINITION_BYTES_MAX};
use crate::media::Encoding;
use crate::names::is_internal;
pub(crate) use alteration::{check as check_alteration, with_attribute};
pub(crate) use indexing::Indexing;
pub(crate) use persistence::StoreSettings;
pub use predefined::{CacheDefinitions, CacheDefinitionsError};
pub(crate) use shown_form::{ShownForm, to_shown, with_aliases};
pub(crate) use stored_form::{from_stored, to_stored, to_text};
use tree::refused;
pub(crate) use tree::{Element, hyphenated};
pub use values::amount_of_bytes;
pub(crate) use values::duration_of;
use values::{flag, number};

/// An unusable definition; nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Neither JSON nor YAML nor XML.
    #[error("cache configuration cannot be read: {0}")]
    Unreadable(String),
    /// An unknown kind of cache or setting.
    #[error("cache configuration: '{0}' is not supported")]
    Unsupported(String),
    /// An attribute with an invalid value.
    #[error("cache configuration: {attribute} cannot be {value}")]
    Invalid {
        /// The attribute.
        attribute: String,
        /// The value.
        value: String,
    },
    /// A known setting that is not supported.
    #[error("cache configuration: {setting}: {reason}")]
    Refused {
        /// The setting.
        setting: String,
        /// The reason, and an alternative if there is one.
        reason: String,
    },
    /// A media type to which nothing is converted.
    #[error("ISPN000492: Cannot find transcoder between 'application/x-java-object' to '{0}'")]
    MediaType(String),
    /// An unknown template.
    #[error("ISPN000374: No such template '{template}' when declaring '{cache}'; there are {known}")]
    NoTemplate {
        /// The template.
        template: String,
        /// The cache.
        cache: String,
        /// The names of the server's own templates.
        known: String,
    },
}

type Result<T> = std::result::Result<T, DefinitionError>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Definition {
    pub(crate) config: CacheConfig,
    pub(crate) memory: Option<MemoryBound>,
    pub(crate) lifetime: Lifetime,
    /// Writes are acknowledged before all owners have them.
    pub(crate) is_asynchronous: bool,
    pub(crate) store: Option<StoreSettings>,
    pub(crate) is_transactional: bool,
    pub(crate) encoding: Encoding,
    pub(crate) indexing: Option<Indexing>,
    /// Servers store aliases separately, because an alias can move.
    pub(crate) aliases: Option<BTreeSet<String>>,
}

impl Definition {
    pub(crate) fn settings(&self) -> CacheSettings {
        let flags = if self.is_asynchronous { Flags::ASYNC } else { Flags::NONE };
        let (memory, lifetime) = (self.memory, self.lifetime);
        let config = CacheConfig { is_transactional: self.is_transactional, ..self.config.clone() };
        CacheSettings { memory, lifetime, flags, ..CacheSettings::from(config) }
    }
}

const KINDS: &[(&str, CacheMode)] = &[
    ("local-cache", CacheMode::Local),
    ("replicated-cache", CacheMode::Replicated),
    ("distributed-cache", CacheMode::Distributed { owners: 2 }),
    ("invalidation-cache", CacheMode::Invalidation),
];

const TEMPLATES: &[(&str, CacheMode, bool)] = &[
    ("org.infinispan.LOCAL", CacheMode::Local, true),
    ("org.infinispan.REPL_SYNC", CacheMode::Replicated, true),
    ("org.infinispan.REPL_ASYNC", CacheMode::Replicated, false),
    ("org.infinispan.DIST_SYNC", CacheMode::Distributed { owners: 2 }, true),
    ("org.infinispan.DIST_ASYNC", CacheMode::Distributed { owners: 2 }, false),
    ("org.infinispan.INVALIDATION_SYNC", CacheMode::Invalidation, true),
    ("org.infinispan.INVALIDATION_ASYNC", CacheMode::Invalidation, false),
];

pub(crate) fn is_template(name: &str) -> bool {
    templates().any(|own| own == name)
}

pub(crate) fn templates() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, ..)| *name)
}

/// Infinispan's names of stores in files, which mean one kind of store here.
pub(crate) const FILE_STORES: [&str; 3] = ["file-store", "single-file-store", "soft-index-file-store"];

pub(crate) fn mode_of(kind: &str) -> Option<CacheMode> {
    KINDS.iter().find(|(name, _)| *name == kind).map(|(_, mode)| *mode)
}

pub(crate) fn from_template(cache: &str, template: Option<&str>) -> Result<Definition> {
    let Some(template) = template else { return Ok(with_mode(cache, CacheMode::default())) };
    let Some((_, mode, is_synchronous)) = TEMPLATES.iter().find(|(name, ..)| *name == template) else {
        let known = templates().collect::<Vec<_>>().join(", ");
        return Err(DefinitionError::NoTemplate {
            template: template.to_owned(),
            cache: cache.to_owned(),
            known,
        });
    };
    Ok(Definition { is_asynchronous: !is_synchronous, ..with_mode(cache, *mode) })
}

pub(crate) fn from_text(cache: &str, text: &str) -> Result<Definition> {
    if text.len() > DEFINITION_BYTES_MAX {
        let text = format!("it has {} bytes; the limit is {DEFINITION_BYTES_MAX}", text.len());
        return Err(DefinitionError::Unreadable(text));
    }
    read(cache, &Element::read(cache, text)?)
}

fn with_mode(cache: &str, mode: CacheMode) -> Definition {
    // Keys and values are bytes; their format is the clients' choice.
    let config = CacheConfig { mode, ..CacheConfig::new(cache) };
    Definition {
        config,
        memory: None,
        lifetime: Lifetime::FOREVER,
        is_asynchronous: false,
        store: None,
        is_transactional: false,
        encoding: Encoding::default(),
        indexing: None,
        aliases: None,
    }
}

const CHILDREN: &[&str] = &[
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

pub(crate) fn read(cache: &str, element: &Element) -> Result<Definition> {
    let Some(mode) = mode_of(&element.name) else {
        return Err(match &element.children[..] {
            [of] if mode_of(&of.name).is_some() => {
                let text = format!("it defines cache '{}', not '{cache}'", element.written);
                DefinitionError::Unreadable(text)
            }
            _ => DefinitionError::Unsupported(element.name.clone()),
        });
    };
    let template = element.attributes.iter().find(|(attribute, _)| attribute == "configuration");
    let mut definition = match template {
        None => with_mode(cache, mode),
        Some((_, template)) => {
            let base = from_template(cache, Some(template))?;
            if base.config.mode != mode {
                let why = format!("the kind of the template is not {}", element.name);
                return Err(element.refused("configuration", template, &why));
            }
            base
        }
    };
    for (attribute, value) in &element.attributes {
        apply_attribute(&mut definition, element, attribute, value)?;
    }
    element.check_children(CHILDREN)?;
    for child in &element.children {
        match &child.name[..] {
            "encoding" => definition.encoding = encoding::read(child)?,
            "expiration" => definition.lifetime = expiration::read(child)?,
            "indexing" => definition.indexing = indexing::read(child)?,
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
        let why = "a transaction completes when all owners have its writes; mode has to be SYNC";
        return Err(element.refused("mode", "ASYNC together with transactions", why));
    }
    check_indexing(&definition)?;
    Ok(definition)
}

fn check_indexing(definition: &Definition) -> Result<()> {
    if definition.indexing.is_none() {
        return Ok(());
    }
    if definition.config.mode == CacheMode::Invalidation {
        let why = "a server has only the entries that it has put, so that a query does not find the others";
        return Err(refused("indexing of invalidation-cache", why));
    }
    if !definition.encoding.is_queried() {
        return Err(refused("indexing", "the values have to be application/x-protostream"));
    }
    Ok(())
}

fn apply_attribute(
    definition: &mut Definition,
    element: &Element,
    attribute: &str,
    value: &str,
) -> Result<()> {
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
            let factor: f64 = number(element, attribute, value)?;
            if factor == 0.0 {
                let why = "it applies to all servers, and no server would own entries";
                return Err(element.refused(attribute, value, why));
            }
            if !(factor > 0.0 && factor.is_finite()) {
                return Err(element.invalid(attribute, value));
            }
        }
        "aliases" => definition.aliases = Some(aliases(element, value, &definition.config.name)?),
        // Infinispan's own: which server owns a key changes no response.
        "key-partitioner" | "consistent-hash-factory"
            if value.starts_with("org.infinispan.distribution.") => {}
        "key-partitioner" | "consistent-hash-factory" => {
            return Err(element.refused(attribute, value, "Java classes cannot be run"));
        }
        "name" | "configuration" => {}
        other => without_effect::accept(element, other, value)?,
    }
    Ok(())
}

fn aliases(element: &Element, value: &str, cache: &str) -> Result<BTreeSet<String>> {
    let all: BTreeSet<String> = value.split_whitespace().map(str::to_owned).collect();
    let wrong = all.iter().find(|alias| *alias == cache || is_internal(alias));
    match wrong {
        Some(alias) => {
            Err(element.refused("aliases", alias, "it is the cache's own name or a reserved name"))
        }
        None if all.len() > ALIASES_MAX => Err(element.refused(
            "aliases",
            &format!("{} names", all.len()),
            &format!("at most {ALIASES_MAX} are allowed"),
        )),
        None => Ok(all),
    }
}

/// `state-transfer` has no effect: a new owner has all entries before it counts as one, and requests do not wait.
fn read_state_transfer(element: &Element) -> Result<()> {
    element.check_children(&[])?;
    let mut attributes = element.attributes.iter();
    attributes.try_for_each(|(attribute, value)| without_effect::accept(element, attribute, value))
}

/// Accepts an unsupported feature's element if it disables the feature.
fn read_disabled(element: &Element) -> Result<()> {
    let why = match &element.name[..] {
        "groups" => "groups need Java classes, which cannot be run",
        "security" => "roles belong to users and apply to all caches (docs/security.md)",
        _ => "tracing cannot be configured by cache",
    };
    // `security` has the attribute in its child element.
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
pub(in crate::catalog::definition) mod tests {
    use super::*;

    /// Each attribute is `name=value`. XML, JSON and YAML have to give the same definition.
    pub(in crate::catalog::definition) fn in_each_form(
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
        assert!(other.ends_with("it defines cache 'd', not 'c'"), "{other}");
    }

    #[test]
    fn the_documented_example_is_the_same_in_each_form() {
        let page = include_str!("../../../../../docs/server.md");
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
    fn templates_of_infinispan_are_predefined() {
        for (name, mode, is_synchronous) in TEMPLATES {
            let made = from_template("c", Some(name)).unwrap();
            assert_eq!((made.config.mode, made.is_asynchronous), (*mode, !is_synchronous), "{name}");
        }
        assert_eq!(from_template("c", None), Ok(with_mode("c", CacheMode::default())));
        let error = from_template("c", Some("mine")).unwrap_err().to_string();
        let expected =
            "ISPN000374: No such template 'mine' when declaring 'c'; there are org.infinispan.LOCAL, ";
        assert!(error.starts_with(expected), "{error}");
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
    fn setting_without_observable_effect_is_accepted() {
        let default = from_text("c", "<distributed-cache/>").unwrap();
        for attributes in [
            r#"statistics="true" remote-timeout="17s" unreliable-return-values="true" name="c" start="EAGER""#,
            r#"capacity-factor="2.5" l1-lifespan="-1" l1-cleanup-interval="1m""#,
            r#"l1-lifespan="10m" key-partitioner="org.infinispan.distribution.ch.impl.HashFunctionPartitioner""#,
            r#"xmlns="urn:infinispan:config:16.0" simple-cache="false" owners="2" segments="256""#,
        ] {
            let read = from_text("c", &format!("<distributed-cache {attributes}/>"));
            assert_eq!(read, Ok(default.clone()), "{attributes}");
        }
        for within in [
            r#"<state-transfer enabled="true" timeout="4m" chunk-size="512" await-initial-transfer="false"/>"#,
            r#"<state-transfer enabled="false"/><locking isolation="READ_UNCOMMITTED"/><memory storage="OBJECT"/>"#,
            r#"<locking isolation="SERIALIZABLE"/><persistence connection-interval="50"/>"#,
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
        assert!(
            error.contains("aliases of local-cache cannot be 65 names: at most 64 are allowed"),
            "{error}"
        );
    }

    #[test]
    fn unsupported_setting_is_refused_by_name() {
        for (attributes, why) in [
            (r#"mode="LATER""#, "mode of distributed-cache cannot be LATER"),
            (r#"owners="0""#, "owners of distributed-cache cannot be 0"),
            (r#"segments="0""#, "segments of distributed-cache cannot be 0"),
            (r#"capacity-factor="0""#, "no server would own entries"),
            (r#"capacity-factor="-1""#, "capacity-factor of distributed-cache cannot be -1"),
            (r#"capacity-factor="NaN""#, "capacity-factor of distributed-cache cannot be NaN"),
            (r#"aliases="d c""#, "aliases of distributed-cache cannot be c: it is the cache's own name"),
            (r#"aliases="___d""#, "aliases of distributed-cache cannot be ___d"),
            (r#"l1-lifespan="long""#, "l1-lifespan of distributed-cache cannot be long"),
            (r#"key-partitioner="org.acme.Mine""#, "Java classes"),
            (r#"consistent-hash-factory="org.acme.Mine""#, "Java classes"),
            (r#"statistics="maybe""#, "statistics of distributed-cache cannot be maybe"),
            (r#"mine="1""#, "'mine of distributed-cache' is not supported"),
        ] {
            let error =
                from_text("c", &format!("<distributed-cache {attributes}/>")).unwrap_err().to_string();
            assert!(error.contains(why), "{attributes}: {error}");
        }
        for (within, why) in [
            (r#"<state-transfer enabled="no"/>"#, "enabled of state-transfer cannot be no"),
            (r#"<state-transfer mine="1"/>"#, "mine of state-transfer"),
            (r#"<groups enabled="true"/>"#, "groups: groups need Java classes"),
            (r#"<groups><grouper class="org.acme.Mine"/></groups>"#, "groups"),
            (r#"<indexing indexing-mode="manual"/>"#, "indexing-mode of indexing cannot be manual"),
            (r#"<indexing><key-transformers/></indexing>"#, "key-transformers of indexing"),
            (r#"<security><authorization roles="admin"/></security>"#, "security: roles belong to users"),
            (r#"<security><authorization enabled="true"/></security>"#, "security"),
            (r#"<tracing enabled="true"/>"#, "tracing"),
            (r#"<backups/>"#, "'backups of distributed-cache' is not supported"),
            (r#"<query default-max-results="10"/>"#, "query of distributed-cache"),
            (r#"<memory/><memory/>"#, "memory is defined more than once"),
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
