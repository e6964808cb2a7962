//! What clients say a cache is to be like: a template's name, JSON or XML (facts section 2.8).
//!
//! A definition that says something that is not done here is refused, so that nobody believes to have what is not there.
//! What changes nothing that a client could tell is let pass.

use consort_cache::{CacheConfig, CacheMode};
use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::Value;

/// A definition that cannot be used. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Neither JSON nor XML.
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

/// Attributes that change nothing that a client could tell.
const WITHOUT_EFFECT: &[&str] = &["name", "statistics", "configuration", "start", "remote-timeout", "xmlns"];

/// The settings of a cache from a template's name; the default's without one.
pub(crate) fn from_template(cache: &str, template: Option<&str>) -> Result<CacheConfig> {
    let kind = match template {
        None | Some("org.infinispan.DIST_SYNC") => "distributed-cache",
        Some("org.infinispan.REPL_SYNC") => "replicated-cache",
        Some("org.infinispan.LOCAL") => "local-cache",
        Some(other) => return Err(DefinitionError::Unsupported(other.to_owned())),
    };
    of_kind(cache, kind)
}

/// The settings of a cache from its definition.
pub(crate) fn from_text(cache: &str, text: &str) -> Result<CacheConfig> {
    match text.trim_start().chars().next() {
        Some('{') => from_json(cache, text),
        Some('<') => from_xml(cache, text),
        _ => Err(DefinitionError::Unreadable("neither JSON nor XML".to_owned())),
    }
}

fn of_kind(cache: &str, kind: &str) -> Result<CacheConfig> {
    let mode = match kind {
        "distributed-cache" => CacheMode::default(),
        "replicated-cache" => CacheMode::Replicated,
        "local-cache" => CacheMode::Local,
        "invalidation-cache" => CacheMode::Invalidation,
        other => return Err(DefinitionError::Unsupported(other.to_owned())),
    };
    // Bytes as clients send them; what they are is between them.
    Ok(CacheConfig { mode, ..CacheConfig::new(cache) })
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

fn from_json(cache: &str, text: &str) -> Result<CacheConfig> {
    let unreadable = |error: serde_json::Error| DefinitionError::Unreadable(error.to_string());
    let value: Value = serde_json::from_str(text).map_err(unreadable)?;
    let mut members = value.as_object().into_iter().flatten();
    let (Some((kind, settings)), None) = (members.next(), members.next()) else {
        return Err(DefinitionError::Unreadable("one cache was expected".to_owned()));
    };
    // A definition may be given with the cache's name around it.
    if kind == cache && settings.as_object().is_some_and(|inner| inner.len() == 1) {
        return from_json(cache, &settings.to_string());
    }
    let mut config = of_kind(cache, kind)?;
    for (attribute, value) in settings.as_object().into_iter().flatten() {
        match value {
            Value::String(value) => set(&mut config, attribute, value)?,
            Value::Number(_) | Value::Bool(_) => set(&mut config, attribute, &value.to_string())?,
            Value::Object(_) | Value::Array(_) if attribute == "encoding" => {}
            _ => return Err(DefinitionError::Unsupported(attribute.clone())),
        }
    }
    Ok(config)
}

fn from_xml(cache: &str, text: &str) -> Result<CacheConfig> {
    let unreadable = |error: &dyn std::fmt::Display| DefinitionError::Unreadable(error.to_string());
    let mut reader = Reader::from_str(text);
    let mut config = None;
    loop {
        let element = match reader.read_event().map_err(|error| unreadable(&error))? {
            Event::Start(element) | Event::Empty(element) => element,
            Event::Eof => break,
            _ => continue,
        };
        let name = element.local_name().as_ref().to_owned();
        match (&name[..], &mut config) {
            ("infinispan" | "cache-container", None) => {}
            ("encoding" | "key" | "value", Some(_)) => {}
            (kind, found @ None) => {
                let config = found.insert(of_kind(cache, kind)?);
                for attribute in element.attributes() {
                    let attribute = attribute.map_err(|error| unreadable(&error))?;
                    let value = attribute.value.into_owned();
                    let key = attribute.key.as_ref().to_owned();
                    let key = if key.starts_with("xmlns") { "xmlns" } else { &key };
                    set(config, key, &value)?;
                }
            }
            (other, Some(_)) => return Err(DefinitionError::Unsupported(other.to_owned())),
        }
    }
    config.ok_or_else(|| DefinitionError::Unreadable("there is no cache".to_owned()))
}

/// The definition that other members read.
pub(crate) fn to_text(config: &CacheConfig) -> String {
    let segments = config.segments;
    match config.mode {
        CacheMode::Local => serde_json::json!({"local-cache": {"segments": segments}}),
        CacheMode::Replicated => serde_json::json!({"replicated-cache": {"segments": segments}}),
        CacheMode::Invalidation => serde_json::json!({"invalidation-cache": {"segments": segments}}),
        CacheMode::Distributed { owners } => {
            serde_json::json!({"distributed-cache": {"owners": owners, "segments": segments}})
        }
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> Result<(CacheMode, u16)> {
        from_text("c", text).map(|config| (config.mode, config.segments))
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
            let config = CacheConfig { segments: 7, ..of_kind("c", kind).unwrap() };
            assert_eq!(from_text("c", &to_text(&config)), Ok(config));
        }
    }
}
