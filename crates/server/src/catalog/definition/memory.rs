use consort_cache::{Limit, MemoryBound, WhenFull};

use super::Result;
use super::tree::{Element, refused};
use super::values::{bytes, number};
use super::without_effect;

/// Until version 14, the limit was a child, as `<object size="100"/>`.
const FORMER_CHILDREN: [&str; 3] = ["object", "binary", "off-heap"];

pub(super) fn read(element: &Element) -> Result<Option<MemoryBound>> {
    element.check_children(&FORMER_CHILDREN)?;
    match &element.children[..] {
        [] => read_attributes(element),
        [child] => read_attributes(&from_former_child(element, child)?),
        [_, second, ..] => Err(refused(&format!("a second limit, {}", second.name), "memory has one limit")),
    }
}

/// Returns `memory` with the attributes that mean the same as a child.
fn from_former_child(element: &Element, child: &Element) -> Result<Element> {
    child.check_children(&[])?;
    let mut memory = Element { children: Vec::new(), ..element.clone() };
    check_not_set_twice(element, child)?;
    let of_child =
        |name: &str| child.attributes.iter().find(|(own, _)| own == name).map(|(_, value)| &value[..]);
    let limit = match of_child("eviction") {
        None | Some("COUNT") => "max-count",
        Some("MEMORY") if child.name != "object" => "max-size",
        Some(other) => return Err(child.invalid("eviction", other)),
    };
    for (attribute, value) in &child.attributes {
        let name = match &attribute[..] {
            "size" if value == "-1" => continue,
            "size" => limit,
            "strategy" => "when-full",
            "eviction" => continue,
            other => return Err(child.unknown(other)),
        };
        memory.attributes.push((name.to_owned(), value.clone()));
    }
    Ok(memory)
}

/// Infinispan's schemas never had both, so that it is unclear which is meant.
fn check_not_set_twice(memory: &Element, child: &Element) -> Result<()> {
    for (attribute, value) in &memory.attributes {
        let former: &[&str] = match &attribute[..] {
            "max-count" | "max-size" => &["size", "eviction"],
            "when-full" => &["strategy"],
            _ => continue,
        };
        if let Some((own, _)) = child.attributes.iter().find(|(own, _)| former.contains(&&own[..])) {
            let why = format!("{own} of {} means the same; remove one of them", child.name);
            return Err(memory.refused(attribute, value, &why));
        }
    }
    Ok(())
}

fn read_attributes(element: &Element) -> Result<Option<MemoryBound>> {
    let (mut entries, mut size, mut when_full) = (None, None, None);
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            // No limit.
            "max-count" if value == "-1" => {}
            "max-count" => {
                let count: u64 = number(element, attribute, value)?;
                entries = Some(Limit::Entries(count));
                if count == 0 {
                    return Err(element.invalid(attribute, value));
                }
            }
            "max-size" => size = Some(Limit::Bytes(bytes(element, attribute, value)?)),
            "when-full" => match &value[..] {
                "NONE" | "REMOVE" | "EXCEPTION" => when_full = Some(&value[..]),
                "MANUAL" => {
                    let why = "clients cannot evict entries; REMOVE lets the server evict them";
                    return Err(element.refused(attribute, value, why));
                }
                _ => return Err(element.invalid(attribute, value)),
            },
            other => without_effect::accept(element, other, value)?,
        }
    }
    let limit = match (entries, size) {
        (Some(_), Some(_)) => {
            let why = "memory has one limit, by entries or by bytes";
            return Err(refused("max-count together with max-size of memory", why));
        }
        (entries, size) => entries.or(size),
    };
    match (limit, when_full) {
        (Some(limit), None | Some("REMOVE")) => Ok(Some(MemoryBound { limit, when_full: WhenFull::Remove })),
        (Some(limit), Some("EXCEPTION")) => Ok(Some(MemoryBound { limit, when_full: WhenFull::Refuse })),
        (Some(_), Some(value)) => {
            Err(element.refused("when-full", value, "with a limit it has to be REMOVE or EXCEPTION"))
        }
        (None, None | Some("NONE")) => Ok(None),
        (None, Some(value)) => Err(element.refused("when-full", value, "it needs max-count or max-size")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_each_form;
    use super::*;

    fn memory(attributes: &str) -> Result<Option<MemoryBound>> {
        in_each_form("distributed", "memory", attributes).map(|definition| definition.memory)
    }

    #[test]
    fn memory_is_bounded_by_entries_or_bytes() {
        let bound = |limit, when_full| Ok(Some(MemoryBound { limit, when_full }));
        assert_eq!(memory("max-count=100"), bound(Limit::Entries(100), WhenFull::Remove));
        assert_eq!(memory("max-size=5MB when-full=REMOVE"), bound(Limit::Bytes(5_000_000), WhenFull::Remove));
        assert_eq!(memory("max-count=7 when-full=EXCEPTION"), bound(Limit::Entries(7), WhenFull::Refuse));
        assert_eq!(memory("max-size=1 storage=OFF_HEAP"), bound(Limit::Bytes(1), WhenFull::Remove));
        for unbounded in ["", "max-count=-1", "when-full=NONE", "storage=HEAP"] {
            assert_eq!(memory(unbounded), Ok(None), "{unbounded}");
        }
    }

    #[test]
    fn children_of_former_versions_mean_attributes() {
        let memory = |child: &str| {
            let text = format!("<distributed-cache><memory>{child}</memory></distributed-cache>");
            super::super::from_text("c", &text).map(|definition| definition.memory)
        };
        let bound = |limit, when_full| Ok(Some(MemoryBound { limit, when_full }));
        assert_eq!(memory(r#"<object size="100"/>"#), bound(Limit::Entries(100), WhenFull::Remove));
        assert_eq!(
            memory(r#"<binary size="100" eviction="COUNT" strategy="EXCEPTION"/>"#),
            bound(Limit::Entries(100), WhenFull::Refuse)
        );
        assert_eq!(
            memory(r#"<off-heap size="5000" eviction="MEMORY"/>"#),
            bound(Limit::Bytes(5000), WhenFull::Remove)
        );
        assert_eq!(memory(r#"<object size="-1"/>"#), Ok(None));
        for refused in [
            r#"<object size="1" eviction="MEMORY"/>"#,
            r#"<object mine="1"/>"#,
            r#"<object size="1"/><binary size="1"/>"#,
            r#"<object size="1" strategy="MANUAL"/>"#,
        ] {
            assert!(memory(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn attribute_beside_a_former_child_with_the_same_meaning_is_refused() {
        let memory = |attributes: &str, child: &str| {
            let text = format!("<local-cache><memory {attributes}>{child}</memory></local-cache>");
            super::super::from_text("c", &text).map(|definition| definition.memory)
        };
        for (attributes, child, expected) in [
            (
                r#"max-count="7""#,
                r#"<object size="100"/>"#,
                "max-count of memory cannot be 7: size of object",
            ),
            (r#"max-count="7""#, r#"<object size="-1"/>"#, "max-count of memory cannot be 7"),
            (r#"max-size="7""#, r#"<binary size="100"/>"#, "max-size of memory cannot be 7: size of binary"),
            (r#"max-count="7""#, r#"<off-heap eviction="MEMORY"/>"#, "eviction of off-heap means the same"),
            (r#"when-full="REMOVE""#, r#"<object size="1" strategy="EXCEPTION"/>"#, "strategy of object"),
        ] {
            let error = memory(attributes, child).unwrap_err().to_string();
            assert!(error.contains(expected), "{attributes} {child}: {error}");
        }
        let bound = MemoryBound { limit: Limit::Entries(9), when_full: WhenFull::Refuse };
        assert_eq!(memory(r#"when-full="EXCEPTION""#, r#"<object size="9"/>"#), Ok(Some(bound)));
        let bound = MemoryBound { limit: Limit::Entries(9), when_full: WhenFull::Remove };
        assert_eq!(memory(r#"storage="HEAP""#, r#"<object size="9" strategy="REMOVE"/>"#), Ok(Some(bound)));
    }

    #[test]
    fn invalid_memory_limit_is_refused() {
        for refused in [
            "max-count=0",
            "max-count=many",
            "max-count=-2",
            "max-size=1XB",
            "max-count=1 max-size=1",
            "when-full=REMOVE",
            "when-full=MANUAL max-count=1",
            "when-full=NONE max-count=1",
            "when-full=LRU max-count=1",
            "storage=DISK",
            "mine=1",
        ] {
            assert!(memory(refused).is_err(), "{refused}");
        }
        let error = memory("when-full=MANUAL").unwrap_err().to_string();
        assert!(error.contains("when-full of memory cannot be MANUAL: clients cannot"), "{error}");
    }
}
