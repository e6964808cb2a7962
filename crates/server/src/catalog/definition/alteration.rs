//! Changes at runtime: the default lifetime of entries, the amount of an existing memory limit, and the aliases.

use consort_cache::MemoryBound;
use serde_json::Value;

use super::stored_form::to_json;
use super::tree::{Element, refused};
use super::{Definition, DefinitionError, Result, read};

/// No attribute has as many parts.
const PATH_MAX: usize = 8;

/// The path is in Infinispan's notation: `memory.max-count`, `expiration.lifespan`.
pub(crate) fn with_attribute(definition: &Definition, path: &str, value: &str) -> Result<Definition> {
    let unknown = || DefinitionError::Unsupported(format!("attribute {path}"));
    let mut written = to_json(definition);
    let mut at = written.as_object_mut().and_then(|kinds| kinds.values_mut().next()).ok_or_else(unknown)?;
    if path.split('.').count() > PATH_MAX {
        return Err(unknown());
    }
    for part in path.split('.') {
        let Value::Object(members) = at else { return Err(unknown()) };
        at = members.entry(part).or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    if matches!(at, Value::Object(members) if !members.is_empty()) {
        return Err(unknown());
    }
    *at = value.into();
    let cache = &definition.config.name;
    read(cache, &Element::from_stored(cache, &written)?)
}

pub(crate) fn check(before: &Definition, after: &Definition) -> Result<()> {
    let aliases = before.aliases.clone();
    let as_before = Definition { memory: before.memory, lifetime: before.lifetime, aliases, ..after.clone() };
    if as_before != *before {
        let path = difference(&to_json(before), &to_json(after)).unwrap_or_default();
        let why = "it cannot be changed while the cache exists; remove the cache and create it again";
        return Err(refused(path.trim_start_matches('.'), why));
    }
    match (before.memory, after.memory) {
        (None, None) => Ok(()),
        (Some(before), Some(after)) if differs_in_amount_only(before, after) => Ok(()),
        _ => {
            let why = "only the amount of an existing limit can be changed; unit and when-full stay";
            Err(refused("memory of an existing cache", why))
        }
    }
}

fn differs_in_amount_only(before: MemoryBound, after: MemoryBound) -> bool {
    before.when_full == after.when_full
        && std::mem::discriminant(&before.limit) == std::mem::discriminant(&after.limit)
}

fn difference(before: &Value, after: &Value) -> Option<String> {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return (before != after).then(String::new);
    };
    let names =
        before.keys().chain(after.keys()).filter(|name| !matches!(&name[..], "memory" | "expiration"));
    names.into_iter().find_map(|name| {
        let (before, after) =
            (before.get(name).unwrap_or(&Value::Null), after.get(name).unwrap_or(&Value::Null));
        difference(before, after).map(|within| format!(".{name}{within}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{from_text, to_text};
    use super::*;

    fn definition(settings: &str) -> Definition {
        from_text("c", &format!("{{\"distributed-cache\": {settings}}}")).unwrap()
    }

    #[test]
    fn one_attribute_is_changed() {
        let bounded =
            definition(r#"{"owners": 3, "memory": {"max-count": 7}, "expiration": {"lifespan": "1s"}}"#);
        for (path, value, settings) in [
            (
                "memory.max-count",
                "9",
                r#"{"owners": 3, "memory": {"max-count": 9}, "expiration": {"lifespan": 1000}}"#,
            ),
            (
                "expiration.lifespan",
                "2m",
                r#"{"owners": 3, "memory": {"max-count": 7}, "expiration": {"lifespan": 120000}}"#,
            ),
            ("expiration.lifespan", "-1", r#"{"owners": 3, "memory": {"max-count": 7}}"#),
            ("locking.acquire-timeout", "3s", &to_text_of(&bounded)),
            ("statistics", "false", &to_text_of(&bounded)),
        ] {
            let changed = with_attribute(&bounded, path, value).unwrap();
            assert_eq!(changed, definition(settings), "{path}");
            assert_eq!(check(&bounded, &changed), Ok(()), "{path}");
        }
    }

    fn to_text_of(definition: &Definition) -> String {
        let written: Value = serde_json::from_str(&to_text(definition)).unwrap();
        written["distributed-cache"].to_string()
    }

    #[test]
    fn unknown_attributes_and_invalid_values_are_refused() {
        let bounded = definition(r#"{"memory": {"max-count": 7}}"#);
        for (path, value, expected) in [
            ("mine", "1", "'mine of distributed-cache' is not supported"),
            ("memory.mine", "1", "'mine of memory' is not supported"),
            ("memory", "1", "'attribute memory' is not supported"),
            ("owners.mine", "1", "'attribute owners.mine' is not supported"),
            ("", "1", "is not supported"),
            ("a.b.c.d.e.f.g.h.i", "1", "'attribute a.b.c.d.e.f.g.h.i' is not supported"),
            ("memory.max-count", "many", "max-count of memory cannot be many"),
            ("memory.max-size", "1MB", "max-count together with max-size of memory"),
        ] {
            let error = with_attribute(&bounded, path, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{path}: {error}");
        }
    }

    #[test]
    fn unchangeable_attribute_is_named_in_the_error() {
        let before = definition(r#"{"owners": 2, "memory": {"max-count": 7}}"#);
        for (after, expected) in [
            (
                r#"{"owners": 3, "memory": {"max-count": 7}}"#,
                "distributed-cache.owners: it cannot be changed",
            ),
            (
                r#"{"memory": {"max-count": 7}, "encoding": {"key": {"media-type": "text/plain"}}}"#,
                "distributed-cache.encoding: it cannot be changed",
            ),
            ("{}", "memory of an existing cache"),
            (r#"{"memory": {"max-size": 7}}"#, "memory of an existing cache"),
            (r#"{"memory": {"max-count": 7, "when-full": "EXCEPTION"}}"#, "memory of an existing cache"),
        ] {
            let error = check(&before, &definition(after)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(
            check(&before, &definition(r#"{"memory": {"max-count": 1}, "expiration": {"max-idle": 5}}"#)),
            Ok(())
        );
        let other = from_text("c", "<replicated-cache/>").unwrap();
        assert!(check(&definition("{}"), &other).unwrap_err().to_string().contains("it cannot be changed"));
    }
}
