//! Infinispan's annotations of types and fields, in the comments of schemas.

use std::collections::BTreeMap;

use protox::prost_reflect::{FileDescriptor, MessageDescriptor};

/// How a field is annotated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Annotation {
    /// `@Basic`, `@Keyword`, `@Decimal`, or the `@Field` of Infinispan before version 14.
    Indexed { note: Option<&'static str> },
    /// `@Embedded`: the annotated fields of the message.
    Embedded,
    /// For queries that have no counterpart here.
    Unsupported(&'static str),
}

const NORMALIZER: &str = "the normalizer is not applied: values are compared as they are";

/// Names of annotations of fields, and whether they mean a value that is compared.
const COMPARED: [&str; 4] = ["@Basic", "@Keyword", "@Decimal", "@Field"];

const UNSUPPORTED: [&str; 8] =
    ["@Text", "@Vector", "@GeoPoint", "@GeoCoordinates", "@GeoField", "@Latitude", "@Longitude", "@Spatial"];

/// The comments of a file before its elements, by the paths of these; as in Infinispan, also those before an empty line.
pub(super) struct Comments<'f>(BTreeMap<&'f [i32], String>);

impl<'f> Comments<'f> {
    pub(super) fn of(file: &'f FileDescriptor) -> Self {
        let locations = file.file_descriptor_proto().source_code_info.iter().flat_map(|info| &info.location);
        let comments = locations.filter_map(|at| {
            let all = at.leading_detached_comments.iter().chain(&at.leading_comments);
            let all: Vec<&str> = all.map(String::as_str).collect();
            (!all.is_empty()).then(|| (&at.path[..], all.join("\n")))
        });
        Self(comments.collect())
    }

    pub(super) fn is_indexed(&self, message: &MessageDescriptor) -> bool {
        self.0.get(message.path()).is_some_and(|comment| find(comment, "@Indexed").is_some())
    }

    pub(super) fn of_field(&self, path: &[i32]) -> Option<Annotation> {
        let comment = self.0.get(path)?;
        if let Some((name, arguments)) = COMPARED.iter().find_map(|name| Some((name, find(comment, name)?))) {
            return compared(name, arguments);
        }
        if find(comment, "@Embedded").is_some() {
            return Some(Annotation::Embedded);
        }
        let unsupported = UNSUPPORTED.iter().find(|name| find(comment, name).is_some())?;
        Some(Annotation::Unsupported(unsupported))
    }
}

fn compared(name: &str, arguments: &str) -> Option<Annotation> {
    let has = |text: &str| arguments.split([',', '(', ')']).any(|one| one.replace([' ', '\t'], "") == text);
    if has("searchable=false") || has("index=Index.NO") || has("index=NO") {
        return None;
    }
    let is_analyzed = has("analyze=Analyze.YES") || has("analyze=YES") || arguments.contains("analyzer");
    if name == "@Field" && is_analyzed {
        return Some(Annotation::Unsupported("@Field with analyze"));
    }
    Some(Annotation::Indexed { note: arguments.contains("normalizer").then_some(NORMALIZER) })
}

/// Returns the arguments of an annotation, which may be empty.
fn find<'c>(comment: &'c str, name: &str) -> Option<&'c str> {
    comment.match_indices(name).find_map(|(at, _)| {
        let rest = &comment[at + name.len()..];
        let is_longer_name = rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        let arguments = || rest.trim_start().strip_prefix('(').and_then(|rest| rest.split_once(')'));
        (!is_longer_name).then(|| arguments().map_or("", |(arguments, _)| arguments))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotation(comment: &str) -> Option<Annotation> {
        Comments([(&[4_i32][..], comment.to_owned())].into()).of_field(&[4])
    }

    #[test]
    fn annotations_say_which_fields_are_compared() {
        let indexed = Some(Annotation::Indexed { note: None });
        for comment in [
            " @Basic",
            "*\n * A title.\n * @Keyword(projectable = true, sortable = true)\n",
            "@Decimal(decimalScale = 2)",
            "@Field(index = Index.YES, store = Store.NO, analyze = Analyze.NO)",
            "@Field",
        ] {
            assert_eq!(annotation(comment), indexed, "{comment}");
        }
        for comment in ["@Field(index=Index.NO)", "@Basic(searchable = false)", "@Basics", "a field", ""] {
            assert_eq!(annotation(comment), None, "{comment}");
        }
        assert_eq!(annotation("@Embedded(includeDepth = 2)"), Some(Annotation::Embedded));
        assert_eq!(
            annotation("@Keyword(normalizer = \"lowercase\")"),
            Some(Annotation::Indexed { note: Some(NORMALIZER) })
        );
        for (comment, name) in [
            ("@Text(analyzer = \"standard\")", "@Text"),
            ("@Vector(dimension = 3)", "@Vector"),
            ("@Field(analyze = Analyze.YES)", "@Field with analyze"),
        ] {
            assert_eq!(annotation(comment), Some(Annotation::Unsupported(name)), "{comment}");
        }
    }
}
