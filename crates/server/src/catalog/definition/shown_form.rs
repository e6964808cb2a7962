//! A definition as operators read it: the stored JSON, indented and with aliases, or the same in Infinispan's XML. Either form can
//! be given to a creation.

use std::collections::BTreeSet;
use std::fmt::Write;

use consort_cache::{CacheConfig, CacheMode};
use serde_json::Value;

use super::Definition;
use super::stored_form::to_json;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShownForm {
    Json,
    Xml,
}

impl ShownForm {
    /// The names are case-insensitive, as those of Infinispan's media types are.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            _ if name.eq_ignore_ascii_case("json") => Some(Self::Json),
            _ if name.eq_ignore_ascii_case("xml") => Some(Self::Xml),
            _ => None,
        }
    }
}

/// Servers store aliases separately.
pub(crate) fn with_aliases(definition: &Definition, aliases: &BTreeSet<String>) -> Value {
    let mut shown = to_json(definition);
    let Some(settings) = shown.as_object_mut().and_then(|kinds| kinds.values_mut().next()) else {
        return shown;
    };
    if let Some(settings) = settings.as_object_mut()
        && is_default_of_unsegmented(&definition.config)
    {
        settings.remove("segments");
    }
    if !aliases.is_empty() {
        settings["aliases"] = aliases.iter().cloned().collect();
    }
    shown
}

/// Infinispan refuses the attribute in caches whose entries have no owners.
fn is_default_of_unsegmented(config: &CacheConfig) -> bool {
    let has_owners = matches!(config.mode, CacheMode::Distributed { .. } | CacheMode::Replicated);
    !has_owners && config.segments == CacheConfig::new("").segments
}

pub(crate) fn to_shown(name: &str, shown: &Value, form: ShownForm) -> String {
    match form {
        ShownForm::Json => format!("{shown:#}\n"),
        ShownForm::Xml => {
            let mut out = String::new();
            if let Value::Object(kinds) = shown {
                kinds.iter().for_each(|(kind, settings)| element(&mut out, 0, kind, Some(name), settings));
            }
            out
        }
    }
}

/// An element's scalars are attributes, its objects are elements.
fn element(out: &mut String, depth: usize, tag: &str, name: Option<&str>, content: &Value) {
    let indent = "  ".repeat(depth);
    let members = || content.as_object().into_iter().flatten();
    let _ = write!(out, "{indent}<{tag}");
    if let Some(name) = name {
        let _ = write!(out, " name=\"{}\"", escaped(name));
    }
    for (attribute, value) in members() {
        if let Some(text) = scalar(attribute, value) {
            let _ = write!(out, " {attribute}=\"{}\"", escaped(&text));
        }
    }
    if members().all(|(name, value)| scalar(name, value).is_some()) {
        out.push_str("/>\n");
        return;
    }
    out.push_str(">\n");
    for (tag, value) in members().filter(|(name, value)| scalar(name, value).is_none()) {
        match value {
            Value::Array(all) if tag == ENTITIES => entities(out, depth + 1, all),
            Value::Array(all) => all.iter().for_each(|one| element(out, depth + 1, tag, None, one)),
            value => element(out, depth + 1, tag, None, value),
        }
    }
    let _ = writeln!(out, "{indent}</{tag}>");
}

const ENTITIES: &str = "indexed-entities";

fn entities(out: &mut String, depth: usize, names: &[Value]) {
    let (indent, within) = ("  ".repeat(depth), "  ".repeat(depth + 1));
    let _ = writeln!(out, "{indent}<{ENTITIES}>");
    for name in names.iter().filter_map(Value::as_str) {
        let _ = writeln!(out, "{within}<indexed-entity>{}</indexed-entity>", escaped(name));
    }
    let _ = writeln!(out, "{indent}</{ENTITIES}>");
}

/// A list of names, such as aliases, is one attribute; that of indexed entities has an element for each.
fn scalar(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(_) => None,
        Value::Array(_) if name == ENTITIES => None,
        Value::Array(all) => {
            all.iter().map(|one| scalar("", one)).collect::<Option<Vec<_>>>().map(|all| all.join(" "))
        }
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// A line feed in an attribute would be read as a space.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for each in text.chars() {
        match each {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\r' | '\t' => {
                let _ = write!(out, "&#{};", u32::from(each));
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::from_text;
    use super::*;

    /// Each setting that a definition has, as `every_setting_is_stored` lists them, and some together.
    const DEFINITIONS: [&str; 11] = [
        r#"{"distributed-cache": {"mode": "ASYNC", "memory": {"max-size": "1MB", "when-full": "EXCEPTION"}}}"#,
        r#"{"replicated-cache": {"expiration": {"lifespan": "10s", "max-idle": 7}, "memory": {"max-count": 7}}}"#,
        r#"{"distributed-cache": {"owners": 3, "segments": 20, "partition-handling": {"when-split": "DENY_READ_WRITES",
            "merge-policy": "PREFERRED_ALWAYS"}}}"#,
        r#"{"local-cache": {"persistence": {"passivation": true, "file-store": {"purge": true}}}}"#,
        r#"{"distributed-cache": {"persistence": {"file-store": {"preload": true, "data": {"sync-writes": true},
            "write-behind": {}}}}}"#,
        r#"{"distributed-cache": {"transaction": {"mode": "NON_XA"}}}"#,
        r#"{"distributed-cache": {"encoding": {"media-type": "application/x-protostream"}}}"#,
        r#"{"distributed-cache": {"encoding": {"key": {"media-type": "text/plain; charset=UTF-16"},
            "value": {"media-type": "application/json"}}}}"#,
        r#"{"invalidation-cache": {}}"#,
        r#"{"local-cache": {"indexing": {}}}"#,
        r#"{"local-cache": {"indexing": {"indexed-entities": ["shop.Book", "shop.Maker"]}}}"#,
    ];

    #[test]
    fn shown_definition_creates_the_same_cache() {
        for text in DEFINITIONS {
            let definition = from_text("c", text).unwrap();
            for aliases in [BTreeSet::new(), ["d".to_owned(), "e<&\"".to_owned()].into()] {
                let expected = Definition {
                    aliases: Some(aliases.clone()).filter(|aliases| !aliases.is_empty()),
                    ..definition.clone()
                };
                for form in [ShownForm::Json, ShownForm::Xml] {
                    let shown = to_shown("c", &with_aliases(&definition, &aliases), form);
                    assert_eq!(from_text("c", &shown), Ok(expected.clone()), "{shown}");
                }
            }
        }
    }

    #[test]
    fn xml_has_attributes_elements_and_the_name() {
        let definition = from_text("c", DEFINITIONS[3]).unwrap();
        let shown = to_shown("a\n\"<&>", &with_aliases(&definition, &BTreeSet::new()), ShownForm::Xml);
        let expected = "<local-cache name=\"a&#10;&quot;&lt;&amp;>\">\n  \
                        <persistence passivation=\"true\">\n    \
                        <file-store preload=\"false\" purge=\"true\">\n      \
                        <data sync-writes=\"false\"/>\n    \
                        </file-store>\n  </persistence>\n</local-cache>\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn forms_have_names() {
        assert_eq!(ShownForm::from_name("XML"), Some(ShownForm::Xml));
        assert_eq!(ShownForm::from_name("json"), Some(ShownForm::Json));
        assert_eq!(ShownForm::from_name("yaml"), None);
    }
}
