//! What clients say a cache is to be like: a template's name, JSON, YAML or XML (facts section 2.8).
//!
//! A definition that says something that is not done here is refused, so that nobody believes to have what is not there.
//! What changes nothing that a client could tell is let pass: with transactions for one, whether keys are locked early or
//! late, as they are locked when a transaction is prepared in any case.

use consort_cache::{CacheConfig, CacheMode};
use consort_hotrod::MediaType;
use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::{Map, Value};

use crate::media::{ConversionError, Encoding};

/// A definition that cannot be used. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Neither JSON nor YAML nor XML.
    #[error("cache configuration cannot be read: {0}")]
    Unreadable(String),
    /// A kind of cache that is not there.
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
}

type Result<T> = std::result::Result<T, DefinitionError>;

/// What a cache is to be like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Definition {
    /// What all members agree upon.
    pub(crate) config: CacheConfig,
    /// Whether clients can change several keys as one.
    pub(crate) is_transactional: bool,
    /// What keys and values are kept as.
    pub(crate) encoding: Encoding,
}

/// Attributes that change nothing that a client could tell.
const WITHOUT_EFFECT: &[&str] = &["name", "statistics", "configuration", "start", "remote-timeout", "xmlns"];

/// The settings of a cache from a template's name; the default's without one.
pub(crate) fn from_template(cache: &str, template: Option<&str>) -> Result<Definition> {
    let kind = match template {
        None | Some("org.infinispan.DIST_SYNC") => "distributed-cache",
        Some("org.infinispan.REPL_SYNC") => "replicated-cache",
        Some("org.infinispan.LOCAL") => "local-cache",
        Some(other) => return Err(DefinitionError::Unsupported(other.to_owned())),
    };
    of_kind(cache, kind)
}

/// The settings of a cache from its definition.
pub(crate) fn from_text(cache: &str, text: &str) -> Result<Definition> {
    match text.trim_start().chars().next() {
        Some('{') => from_json(cache, text),
        Some('<') => from_xml(cache, text),
        _ => from_yaml(cache, text),
    }
}

fn of_kind(cache: &str, kind: &str) -> Result<Definition> {
    let mode = match kind {
        "distributed-cache" => CacheMode::default(),
        "replicated-cache" => CacheMode::Replicated,
        "local-cache" => CacheMode::Local,
        "invalidation-cache" => CacheMode::Invalidation,
        other => return Err(DefinitionError::Unsupported(other.to_owned())),
    };
    // Bytes as clients send them; what they are is between them.
    let config = CacheConfig { mode, ..CacheConfig::new(cache) };
    Ok(Definition { config, is_transactional: false, encoding: Encoding::default() })
}

/// The media type that is meant.
fn media_type(text: &str) -> Result<MediaType> {
    let invalid = || DefinitionError::Invalid { attribute: "media-type".to_owned(), value: text.to_owned() };
    let name = text.split(';').next().unwrap_or_default().trim();
    let (kind, subtype) = name.split_once('/').ok_or_else(invalid)?;
    let is_token = |part: &str| {
        let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-*".contains(&byte);
        !part.is_empty() && part.bytes().all(is_of_token)
    };
    if !is_token(kind) || !is_token(subtype) {
        return Err(invalid());
    }
    Ok(MediaType::named(text.trim()))
}

/// Attributes of transactions that change nothing that a client could tell.
const WITHOUT_EFFECT_ON_TRANSACTIONS: &[&str] =
    &["locking", "auto-commit", "stop-timeout", "complete-timeout", "reaper-interval", "notifications"];

/// An attribute of an element within a cache's, or what it says of this element as such.
fn set_within(definition: &mut Definition, element: &str, attribute: &str, value: &str) -> Result<()> {
    let invalid = |attribute: &str| {
        Err(DefinitionError::Invalid { attribute: attribute.to_owned(), value: value.to_owned() })
    };
    match (element, attribute) {
        ("encoding" | "key" | "value", "media-type") => {
            let media_type = media_type(value)?;
            let unknown = |error: ConversionError| DefinitionError::Unsupported(error.to_string());
            if element != "value" {
                definition.encoding.keep_keys(&media_type).map_err(unknown)?;
            }
            if element != "key" {
                definition.encoding.keep_values(&media_type).map_err(unknown)?;
            }
        }
        ("transaction", "mode") => match (value, definition.config.mode) {
            ("NONE", _) => {}
            (
                "NON_XA" | "NON_DURABLE_XA" | "FULL_XA",
                CacheMode::Distributed { .. } | CacheMode::Replicated,
            ) => {
                definition.is_transactional = true;
            }
            _ => return invalid("transaction mode"),
        },
        ("transaction", attribute) if WITHOUT_EFFECT_ON_TRANSACTIONS.contains(&attribute) => {}
        ("locking", "isolation") if value != "REPEATABLE_READ" => return invalid("isolation"),
        ("locking", "isolation" | "concurrency-level" | "acquire-timeout" | "striping") => {}
        (element, attribute) => {
            return Err(DefinitionError::Unsupported(format!("{attribute} of {element}")));
        }
    }
    Ok(())
}

/// Whether a cache's element may have such a one within it.
fn is_known_within(element: &str) -> bool {
    matches!(element, "encoding" | "key" | "value" | "transaction" | "locking")
}

fn set(config: &mut CacheConfig, attribute: &str, value: &str) -> Result<()> {
    let invalid = || DefinitionError::Invalid { attribute: attribute.to_owned(), value: value.to_owned() };
    match attribute {
        "mode" if value == "SYNC" => {}
        "owners" => match &mut config.mode {
            CacheMode::Distributed { owners } => {
                *owners = value.parse().ok().filter(|owners| *owners > 0).ok_or_else(invalid)?;
            }
            _ => return Err(invalid()),
        },
        "segments" => config.segments = value.parse().ok().filter(|count| *count > 0).ok_or_else(invalid)?,
        "mode" => return Err(invalid()),
        attribute if WITHOUT_EFFECT.contains(&attribute) => {}
        other => return Err(DefinitionError::Unsupported(other.to_owned())),
    }
    Ok(())
}

fn from_json(cache: &str, text: &str) -> Result<Definition> {
    let unreadable = |error: serde_json::Error| DefinitionError::Unreadable(error.to_string());
    from_value(cache, &serde_json::from_str(text).map_err(unreadable)?)
}

fn from_yaml(cache: &str, text: &str) -> Result<Definition> {
    let unreadable = |error: serde_saphyr::Error| DefinitionError::Unreadable(error.to_string());
    from_value(cache, &serde_saphyr::from_str(text).map_err(unreadable)?)
}

/// A name of YAML, `distributedCache`, as it stands in XML and JSON.
fn hyphenated(name: &str) -> String {
    let mut hyphenated = String::with_capacity(name.len() + 2);
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            hyphenated.push('-');
        }
        hyphenated.push(character.to_ascii_lowercase());
    }
    hyphenated
}

fn from_value(cache: &str, value: &Value) -> Result<Definition> {
    let mut members = value.as_object().into_iter().flatten();
    let (Some((kind, settings)), None) = (members.next(), members.next()) else {
        return Err(DefinitionError::Unreadable("one cache was expected".to_owned()));
    };
    // A definition may be given with the cache's name around it.
    if kind == cache && settings.as_object().is_some_and(|inner| inner.len() == 1) {
        return from_value(cache, settings);
    }
    if !settings.is_object() && !settings.is_null() {
        return Err(DefinitionError::Unreadable(format!("{kind} has {settings} instead of settings")));
    }
    let mut definition = of_kind(cache, &hyphenated(kind))?;
    for (attribute, value) in settings.as_object().into_iter().flatten() {
        let attribute = hyphenated(attribute);
        match value {
            Value::Object(within) if is_known_within(&attribute) => {
                set_all_within(&mut definition, &attribute, within)?;
            }
            value => set(&mut definition.config, &attribute, &as_text(value, &attribute)?)?,
        }
    }
    Ok(definition)
}

fn set_all_within(definition: &mut Definition, element: &str, within: &Map<String, Value>) -> Result<()> {
    for (name, value) in within {
        let name = hyphenated(name);
        match value {
            Value::Object(within) if element == "encoding" && matches!(&name[..], "key" | "value") => {
                set_all_within(definition, &name, within)?;
            }
            value => set_within(definition, element, &name, &as_text(value, &name)?)?,
        }
    }
    Ok(())
}

/// What an attribute says, in whatever form.
fn as_text(value: &Value, attribute: &str) -> Result<String> {
    match value {
        Value::String(value) => Ok(value.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        _ => Err(DefinitionError::Unsupported(attribute.to_owned())),
    }
}

fn from_xml(cache: &str, text: &str) -> Result<Definition> {
    let unreadable = |error: &dyn std::fmt::Display| DefinitionError::Unreadable(error.to_string());
    let mut reader = Reader::from_str(text);
    let mut found = None;
    loop {
        let element = match reader.read_event().map_err(|error| unreadable(&error))? {
            Event::Start(element) | Event::Empty(element) => element,
            Event::Eof => break,
            _ => continue,
        };
        let name = element.local_name().as_ref().to_owned();
        let name = match &found {
            None if matches!(&name[..], "infinispan" | "cache-container") => continue,
            Some(_) if !is_known_within(&name) => return Err(DefinitionError::Unsupported(name)),
            Some(_) => Some(name),
            None => {
                found = Some(of_kind(cache, &name)?);
                None
            }
        };
        let Some(definition) = &mut found else { continue };
        for attribute in element.attributes() {
            let attribute = attribute.map_err(|error| unreadable(&error))?;
            let value = attribute.value.into_owned();
            let key = attribute.key.as_ref().to_owned();
            let key = if key.starts_with("xmlns") { "xmlns" } else { &key };
            match &name {
                None => set(&mut definition.config, key, &value)?,
                Some(element) => set_within(definition, element, key, &value)?,
            }
        }
    }
    found.ok_or_else(|| DefinitionError::Unreadable("there is no cache".to_owned()))
}

/// The definition that other members read.
pub(crate) fn to_text(definition: &Definition) -> String {
    let mut settings = serde_json::json!({"segments": definition.config.segments});
    let kind = match definition.config.mode {
        CacheMode::Local => "local-cache",
        CacheMode::Replicated => "replicated-cache",
        CacheMode::Invalidation => "invalidation-cache",
        CacheMode::Distributed { owners } => {
            settings["owners"] = owners.into();
            "distributed-cache"
        }
    };
    if definition.is_transactional {
        settings["transaction"] = serde_json::json!({"mode": "NON_XA"});
    }
    for (part, media_type) in ["key", "value"].into_iter().zip(definition.encoding.media_types()) {
        if let Some(media_type) = media_type {
            settings["encoding"][part]["media-type"] = media_type.to_string().into();
        }
    }
    serde_json::json!({ kind: settings }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let xml = r#"<?xml version="1.0"?><infinispan><cache-container><distributed-cache name="c" owners="3">
                     <encoding media-type="application/x-protostream"/></distributed-cache></cache-container></infinispan>"#;
        assert_eq!(mode(xml), Ok((CacheMode::Distributed { owners: 3 }, 256)));
        assert_eq!(mode("<local-cache/>"), Ok((CacheMode::Local, 256)));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let refused = [
            r#"{"distributed-cache": {"mode": "ASYNC"}}"#,
            r#"{"distributed-cache": {"owners": "0"}}"#,
            r#"{"local-cache": {"memory": {"max-count": 5}}}"#,
            r#"<distributed-cache><memory max-count="5"/></distributed-cache>"#,
            "distributedCache: 1",
            "distributedCache:\n  mine: 1",
            "distributedCache: [",
            "just text",
            r#"{"distributed-cache": {"encoding": {"media-type": "protostream"}}}"#,
            r#"{"distributed-cache": {"encoding": {"media-type": ";/x"}}}"#,
            r#"{"distributed-cache": {"encoding": {"media-type": "a b/c"}}}"#,
            r#"{"distributed-cache": {"encoding": {"media-type": "text/plain; charset=klingon"}}}"#,
            r#"{"distributed-cache": {"encoding": {"mine": "text/plain"}}}"#,
            "{",
            "",
        ];
        for text in refused {
            assert!(mode(text).is_err(), "{text}");
        }
        assert!(from_template("c", Some("org.infinispan.DIST_ASYNC")).is_err());
    }

    #[test]
    fn members_read_what_members_write() {
        for kind in ["distributed-cache", "replicated-cache", "local-cache", "invalidation-cache"] {
            let mut definition = of_kind("c", kind).unwrap();
            definition.config.segments = 7;
            assert_eq!(from_text("c", &to_text(&definition)), Ok(definition.clone()));
            definition.is_transactional = matches!(kind, "distributed-cache" | "replicated-cache");
            definition.encoding.keep_values(&MediaType::named("text/plain; charset=UTF-16")).unwrap();
            assert_eq!(from_text("c", &to_text(&definition)), Ok(definition));
        }
    }

    #[test]
    fn media_types_are_read_in_each_form() {
        let (text, json) = (Some(&MediaType::TEXT), Some(&MediaType::named("application/json")).cloned());
        for definition in [
            r#"{"distributed-cache": {"encoding": {"key": {"media-type": "text/plain"},
                "value": {"media-type": "application/json"}}}}"#,
            "distributedCache:\n  mode: SYNC\n  encoding:\n    key:\n      mediaType: text/plain\n    value:\n      \
             mediaType: application/json\n",
            r#"<distributed-cache><encoding><key media-type="text/plain; charset=UTF-8"/>
               <value media-type="application/json"/></encoding></distributed-cache>"#,
        ] {
            let read = from_text("c", definition).unwrap();
            assert_eq!(read.encoding.media_types(), [text, json.as_ref()], "{definition}");
        }
        let both = from_text("c", r#"{"local-cache": {"encoding": {"media-type": "text/plain"}}}"#).unwrap();
        assert_eq!(both.encoding.media_types(), [text, text]);
        let named = from_text("c", "c:\n  replicatedCache:\n    segments: 16\n").unwrap();
        assert_eq!((named.config.mode, named.config.segments), (CacheMode::Replicated, 16));
    }

    #[test]
    fn transactions_are_read_as_infinispan_writes_them() {
        let is_transactional = |text| from_text("c", text).map(|definition| definition.is_transactional);
        let json = r#"{"distributed-cache": {"mode": "SYNC", "locking": {"isolation": "REPEATABLE_READ"},
                       "transaction": {"mode": "NON_XA", "locking": "PESSIMISTIC"}}}"#;
        assert_eq!(is_transactional(json), Ok(true));
        let xml = r#"<infinispan><cache-container><replicated-cache name="c">
                     <locking isolation="REPEATABLE_READ"/><transaction mode="FULL_XA" locking="OPTIMISTIC"/>
                     </replicated-cache></cache-container></infinispan>"#;
        assert_eq!(is_transactional(xml), Ok(true));
        assert_eq!(
            is_transactional(r#"{"distributed-cache": {"transaction": {"mode": "NONE"}}}"#),
            Ok(false)
        );
        for refused in [
            r#"{"distributed-cache": {"transaction": {"mode": "BATCH"}}}"#,
            r#"{"local-cache": {"transaction": {"mode": "NON_XA"}}}"#,
            r#"{"distributed-cache": {"locking": {"isolation": "READ_COMMITTED"}}}"#,
            r#"{"distributed-cache": {"transaction": {"mode": "NON_XA", "mine": "1"}}}"#,
            r#"<distributed-cache><locking striping="true" mine="1"/></distributed-cache>"#,
        ] {
            assert!(is_transactional(refused).is_err(), "{refused}");
        }
    }
}
