//! The parts of a definition that a restore reads: the media types of the stored bytes, and the aliases.

use std::fmt;

use anyhow::{Context, ensure};
use consort_conf::{Node, Tree, Variables};

/// Media types of keys and values; `None` if the definition names none.
#[derive(PartialEq, Eq, Debug)]
struct CacheEncoding([Option<String>; 2]);

impl fmt::Display for CacheEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [key, value] = self.0.each_ref().map(|one| one.as_deref().unwrap_or("none"));
        if key == value { f.write_str(key) } else { write!(f, "keys {key}, values {value}") }
    }
}

/// Checks that both definitions store the same bytes for an entry.
pub(super) fn ensure_same_encoding(archived: &str, existing: &str) -> anyhow::Result<()> {
    let archived = encoding_of(archived).context("the archive's definition")?;
    let existing = encoding_of(existing).context("the definition of the existing cache")?;
    ensure!(
        archived == existing,
        "the existing cache has another encoding ({existing}) than the archive ({archived}); remove the cache first"
    );
    Ok(())
}

fn encoding_of(definition: &str) -> anyhow::Result<CacheEncoding> {
    let tree = Tree::parse("definition", definition, &Variables::new())?;
    let cache = cache_in(&tree.root).context("it has no cache")?;
    let encoding = cache.children.iter().find(|child| child.name == "encoding");
    let of = |part: &str| {
        let encoding = encoding?;
        let part = encoding.children.iter().find(|child| child.name == part);
        let named = part.and_then(|part| part.get("media-type")).or_else(|| encoding.get("media-type"));
        named.and_then(|(name, _)| normalized(name))
    };
    Ok(CacheEncoding([of("key"), of("value")]))
}

/// Definitions in documents have the cache's element some levels below the root.
fn cache_in(node: &Node) -> Option<&Node> {
    if node.name.ends_with("-cache") {
        return Some(node);
    }
    node.children.iter().find_map(cache_in)
}

/// Names without a charset mean UTF-8, and are case-insensitive.
fn normalized(media_type: &str) -> Option<String> {
    let name: String = media_type.to_lowercase().split_whitespace().collect();
    let name = name.strip_suffix(";charset=utf-8").unwrap_or(&name);
    (name != "application/unknown").then(|| name.to_owned())
}

/// Returns the definition without its aliases; `None` if it has none.
pub(super) fn without_aliases(definition: &str) -> Option<String> {
    let tree = Tree::parse("definition", definition, &Variables::new()).ok()?;
    let (_, position) = cache_in(&tree.root)?.get("aliases")?;
    let lines = definition.split_inclusive('\n').take(position.line as usize - 1);
    let line = lines.map(str::len).sum::<usize>();
    let columns = definition[line..].chars().take(position.column as usize - 1);
    let (before, attribute) = definition.split_at(line + columns.map(char::len_utf8).sum::<usize>());
    let (_, value) = attribute.split_once('=')?;
    let value = value.trim_start();
    let quote = value.chars().next()?;
    let (_, after) = value[quote.len_utf8()..].split_once(quote)?;
    Some(format!("{}{after}", before.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_of_equal_definitions_are_equal_and_differences_are_named() {
        let same =
            |one: &str, other: &str| ensure_same_encoding(one, other).map_err(|error| format!("{error:#}"));
        let document = "<?xml version=\"1.0\"?>\n<infinispan xmlns=\"urn:infinispan:config:16.0\"><cache-container><caches>\
                        <distributed-cache name=\"c\"><encoding><key media-type=\"text/plain\"/>\
                        <value media-type=\"Text/plain; charset=UTF-8\"/></encoding></distributed-cache></caches>\
                        </cache-container></infinispan>";
        let element = "<local-cache name=\"c\"><encoding media-type=\"text/plain\"/></local-cache>";
        assert_eq!(same(document, element), Ok(()));
        let unknown = "<local-cache><encoding media-type=\"application/unknown\"/></local-cache>";
        assert_eq!(same(unknown, "<replicated-cache/>"), Ok(()));
        let json = "<local-cache><encoding><key media-type=\"text/plain\"/><value media-type=\"application/json\"/></encoding></local-cache>";
        assert_eq!(
            same(json, "<local-cache/>").unwrap_err(),
            "the existing cache has another encoding (none) than the archive (keys text/plain, values application/json); \
             remove the cache first"
        );
        assert!(
            same("<infinispan/>", element)
                .unwrap_err()
                .starts_with("the archive's definition: it has no cache")
        );
    }

    #[test]
    fn aliases_are_removed_from_a_definition() {
        for (definition, expected) in [
            (
                "<c>\n<local-cache name=\"x\" aliases=\"d e\" a='b'/></c>",
                Some("<c>\n<local-cache name=\"x\" a='b'/></c>"),
            ),
            ("<local-cache\naliases='d'/>", Some("<local-cache/>")),
            ("<local-cache name=\" aliases='d'\"/>", None),
            ("<c> aliases=\"d\" </c>", None),
            (
                "<c><!-- it's aliases=\"x\" --> <local-cache name=\"ü\" aliases = 'd'/></c>",
                Some("<c><!-- it's aliases=\"x\" --> <local-cache name=\"ü\"/></c>"),
            ),
            ("<local-cache aliases=", None),
            ("<local-cache aliases=\"d", None),
        ] {
            assert_eq!(without_aliases(definition).as_deref(), expected, "{definition}");
        }
    }
}
