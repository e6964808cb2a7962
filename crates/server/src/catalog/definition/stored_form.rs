//! The JSON form in which servers, also earlier builds, store and share definitions.

use consort_cache::{CacheConfig, CacheMode, Limit, MemoryBound, WhenFull};
use serde_json::{Value, json};

use super::partitions::{MERGE_POLICIES, WHEN_SPLIT};
use super::{Definition, DefinitionError, Indexing, Result, from_text, read, tree};

/// The directory of the store, only in stored definitions.
const PLACE: &str = "place";

pub(crate) fn to_text(definition: &Definition) -> String {
    to_json(definition).to_string()
}

pub(crate) fn to_stored(definition: &Definition, place: Option<&str>) -> String {
    let mut written = to_json(definition);
    if let Some(place) = place {
        written[PLACE] = place.into();
    }
    written.to_string()
}

pub(crate) fn from_stored(cache: &str, text: &str) -> Result<(Definition, Option<String>)> {
    let Ok(Value::Object(mut members)) = serde_json::from_str(text) else {
        return Ok((from_text(cache, text)?, None));
    };
    let place = match members.remove(PLACE) {
        Some(Value::String(place)) if place.bytes().all(|byte| byte.is_ascii_hexdigit()) => Some(place),
        Some(other) => {
            let (attribute, value) = (PLACE.to_owned(), other.to_string());
            return Err(DefinitionError::Invalid { attribute, value });
        }
        None => None,
    };
    Ok((read(cache, &tree::Element::from_stored(cache, &Value::Object(members))?)?, place))
}

fn name_of<V: PartialEq>(all: &[(&'static str, V)], value: &V) -> Option<&'static str> {
    all.iter().find(|(_, own)| own == value).map(|(name, _)| *name)
}

pub(super) fn to_json(definition: &Definition) -> Value {
    let Definition {
        config,
        memory,
        lifetime,
        is_asynchronous,
        store,
        is_transactional,
        encoding,
        indexing,
        // Aliases are stored separately.
        aliases: _,
    } = definition;
    let mut settings = json!({"segments": config.segments});
    let kind = match config.mode {
        CacheMode::Local => "local-cache",
        CacheMode::Replicated => "replicated-cache",
        CacheMode::Invalidation => "invalidation-cache",
        CacheMode::Distributed { owners } => {
            settings["owners"] = owners.into();
            "distributed-cache"
        }
    };
    // Settings with default values are left out, so that a stored definition does not change.
    let default = CacheConfig::new("");
    if *is_asynchronous {
        settings["mode"] = "ASYNC".into();
    }
    if config.partitions != default.partitions {
        settings["partition-handling"]["when-split"] = name_of(WHEN_SPLIT, &config.partitions).into();
    }
    if config.merge != default.merge {
        settings["partition-handling"]["merge-policy"] = name_of(MERGE_POLICIES, &config.merge).into();
    }
    if let Some(MemoryBound { limit, when_full }) = memory {
        settings["memory"] = match limit {
            Limit::Entries(count) => json!({"max-count": count}),
            Limit::Bytes(bytes) => json!({"max-size": bytes}),
        };
        if *when_full == WhenFull::Refuse {
            settings["memory"]["when-full"] = "EXCEPTION".into();
        }
    }
    for (attribute, span) in [("lifespan", lifetime.lifespan), ("max-idle", lifetime.max_idle)] {
        if let Some(span) = span {
            let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            settings["expiration"][attribute] = millis.into();
        }
    }
    if let Some(store) = store {
        settings["persistence"] = json!({"passivation": store.is_passivating, "file-store": {
            "preload": store.is_preloaded, "purge": store.is_purged, "data": {"sync-writes": store.is_synced}
        }});
        if let Some(changes) = store.write_behind {
            settings["persistence"]["file-store"]["write-behind"] =
                json!({"modification-queue-size": changes});
        }
    }
    if *is_transactional {
        settings["transaction"] = json!({"mode": "NON_XA"});
    }
    if let Some(Indexing { entities }) = indexing {
        settings["indexing"] = json!({"enabled": true});
        if !entities.is_empty() {
            settings["indexing"]["indexed-entities"] = entities.iter().cloned().collect();
        }
    }
    for (part, media_type) in ["key", "value"].into_iter().zip(encoding.media_types()) {
        if let Some(media_type) = media_type {
            settings["encoding"][part]["media-type"] = media_type.to_string().into();
        }
    }
    json!({ kind: settings })
}

#[cfg(test)]
mod tests {
    use consort_hotrod::MediaType;

    use super::super::{KINDS, with_mode};
    use super::*;

    #[test]
    fn stored_definition_is_read_back() {
        for (kind, mode) in KINDS {
            let mut definition = with_mode("c", *mode);
            definition.config.segments = 7;
            assert_eq!(from_stored("c", &to_stored(&definition, None)), Ok((definition.clone(), None)));
            definition.is_transactional = *mode != CacheMode::Invalidation;
            definition.encoding.set_value_type(&MediaType::named("text/plain; charset=UTF-16")).unwrap();
            assert_eq!(from_text("c", &to_text(&definition)), Ok(definition.clone()), "{kind}");
            let stored = to_stored(&definition, Some("1f"));
            assert_eq!(from_stored("c", &stored), Ok((definition, Some("1f".to_owned()))));
            assert!(from_text("c", &stored).is_err(), "definitions of clients have no place");
        }
    }

    #[test]
    fn every_setting_is_stored() {
        for settings in [
            r#"{"mode": "ASYNC", "memory": {"max-size": "1MB", "when-full": "EXCEPTION"}}"#,
            r#"{"expiration": {"lifespan": "10s"}, "memory": {"max-count": 7}}"#,
            r#"{"expiration": {"lifespan": 1, "max-idle": 2}}"#,
            r#"{"partition-handling": {"when-split": "ALLOW_READ_WRITES", "merge-policy": "REMOVE_ALL"}}"#,
            r#"{"partition-handling": {"when-split": "DENY_READ_WRITES", "merge-policy": "PREFERRED_ALWAYS"}}"#,
            r#"{"indexing": {"indexed-entities": ["a.B", "c.D"]}}"#,
            r#"{"persistence": {"passivation": true, "file-store": {"purge": true}}}"#,
            r#"{"persistence": {"file-store": {"preload": true, "data": {"sync-writes": true}, "write-behind": {}}}}"#,
        ] {
            for kind in ["distributed-cache", "replicated-cache"] {
                let read = from_text("c", &format!("{{\"{kind}\": {settings}}}")).unwrap();
                assert_ne!(to_text(&read), format!("{{\"{kind}\":{{\"segments\":256}}}}"), "{settings}");
                assert_eq!(from_text("c", &to_text(&read)), Ok(read), "{settings}");
            }
        }
    }

    /// In the form in which the previous build wrote them.
    #[test]
    fn definition_of_an_earlier_build_is_read() {
        let kept = r#"{"distributed-cache":{"encoding":{"key":{"media-type":"text/plain"}},"owners":2,"segments":256,
                       "transaction":{"mode":"NON_XA"}}}"#;
        let (read, place) = from_stored("c", kept).unwrap();
        assert!(read.is_transactional && place.is_none());
        let plain = r#"{"local-cache":{"segments":256}}"#;
        let (read, _) = from_stored("c", plain).unwrap();
        assert_eq!((read.clone(), &to_text(&read)[..]), (with_mode("c", CacheMode::Local), plain));
    }

    #[test]
    fn place_outside_the_data_directory_is_refused() {
        for stored in [r#"{"local-cache": {}, "place": "../x"}"#, r#"{"local-cache": {}, "place": 1}"#] {
            assert!(from_stored("c", stored).is_err(), "{stored}");
        }
    }
}
