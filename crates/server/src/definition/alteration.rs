//! What of a cache can be changed while clients use it: how long entries live of which their writers do not say it, and how
//! far its memory goes, where it has a limit, and its aliases.

use consort_cache::MemoryBound;
use serde_json::Value;

use super::tree::{Element, refused};
use super::written::to_json;
use super::{Definition, DefinitionError, Result, read};

/// Members of the path to an attribute, more than any has.
const PATH_MAX: usize = 8;

/// The definition with one attribute that says something else. It is named by its way from the cache's element, as
/// Infinispan names it: `memory.max-count`, `expiration.lifespan`.
///
/// # Errors
///
/// What the whole definition would be refused for.
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
    read(cache, &Element::of_root(cache, &written)?)
}

/// Whether a cache that is like one definition can become like another while clients use it.
///
/// # Errors
///
/// What of it cannot be changed, or not so.
pub(crate) fn check(before: &Definition, after: &Definition) -> Result<()> {
    let aliases = before.aliases.clone();
    let as_before = Definition { memory: before.memory, lifetime: before.lifetime, aliases, ..after.clone() };
    if as_before != *before {
        let what = difference(&to_json(before), &to_json(after)).unwrap_or_default();
        let why = "it cannot be changed while the cache is there; the cache is removed and made again";
        return Err(refused(what.trim_start_matches('.'), why));
    }
    match (before.memory, after.memory) {
        (None, None) => Ok(()),
        (Some(before), Some(after)) if is_same_but_amount(before, after) => Ok(()),
        _ => {
            let why =
                "a limit can become another one in the same unit, with the same when-full, and nothing else";
            Err(refused("memory of a cache that is there", why))
        }
    }
}

fn is_same_but_amount(before: MemoryBound, after: MemoryBound) -> bool {
    before.when_full == after.when_full
        && std::mem::discriminant(&before.limit) == std::mem::discriminant(&after.limit)
}

/// The way to the first thing that is not the same, whose parts begin with a dot; what can be changed is not looked at.
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

    fn of(settings: &str) -> Definition {
        from_text("c", &format!("{{\"distributed-cache\": {settings}}}")).unwrap()
    }

    #[test]
    fn one_attribute_says_something_else() {
        let bounded = of(r#"{"owners": 3, "memory": {"max-count": 7}, "expiration": {"lifespan": "1s"}}"#);
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
            assert_eq!(changed, of(settings), "{path}");
            assert_eq!(check(&bounded, &changed), Ok(()), "{path}");
        }
    }

    fn to_text_of(definition: &Definition) -> String {
        let written: Value = serde_json::from_str(&to_text(definition)).unwrap();
        written["distributed-cache"].to_string()
    }

    #[test]
    fn attributes_that_nobody_knows_and_values_that_cannot_be_are_refused() {
        let bounded = of(r#"{"memory": {"max-count": 7}}"#);
        for (path, value, told) in [
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
            assert!(error.contains(told), "{path}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_changed_is_named() {
        let before = of(r#"{"owners": 2, "memory": {"max-count": 7}}"#);
        for (after, told) in [
            (
                r#"{"owners": 3, "memory": {"max-count": 7}}"#,
                "distributed-cache.owners: it cannot be changed",
            ),
            (
                r#"{"memory": {"max-count": 7}, "encoding": {"key": {"media-type": "text/plain"}}}"#,
                "distributed-cache.encoding: it cannot be changed",
            ),
            ("{}", "memory of a cache that is there"),
            (r#"{"memory": {"max-size": 7}}"#, "memory of a cache that is there"),
            (r#"{"memory": {"max-count": 7, "when-full": "EXCEPTION"}}"#, "memory of a cache that is there"),
        ] {
            let error = check(&before, &of(after)).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(
            check(&before, &of(r#"{"memory": {"max-count": 1}, "expiration": {"max-idle": 5}}"#)),
            Ok(())
        );
        let other = from_text("c", "<replicated-cache/>").unwrap();
        assert!(check(&of("{}"), &other).unwrap_err().to_string().contains("it cannot be changed"));
    }
}
