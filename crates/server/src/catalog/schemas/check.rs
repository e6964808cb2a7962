use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use protox::file::{File, FileResolver, GoogleFileResolver};
use protox::{Compiler, Error};

use super::options;
use crate::limits::{SCHEMA_NESTING_MAX, SCHEMAS_BYTES_MAX, SCHEMAS_MAX, SCHEMAS_PUNCTUATION_MAX};
use crate::media::{JAVA_TYPES, Types};

pub(crate) type Sources = BTreeMap<String, Bytes>;

/// Infinispan servers have files with this beginning built in. Those that are not [`BUILT_IN`] are unknown here.
const BUILT_IN_PREFIX: &str = "org/infinispan/";

/// Protostream's own types, by the two names by which schemas import them.
const JAVA_TYPES_FILE: &str = "org/infinispan/protostream/types/java/common-java-types.proto";
const JAVA_TYPES_IMPORT: &str =
    "syntax = \"proto2\"; import public \"org/infinispan/protostream/types/java/common-java-types.proto\";";
const BUILT_IN: [(&str, &str); 2] =
    [(JAVA_TYPES_FILE, JAVA_TYPES), ("common-java-types.proto", JAVA_TYPES_IMPORT)];

fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(own, _)| *own == name).map(|(_, text)| *text)
}

struct Resolver {
    sources: Arc<Sources>,
    google: GoogleFileResolver,
}

impl FileResolver for Resolver {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        // File names are opaque, also with dots and slashes.
        path.to_str().map(str::to_owned)
    }

    fn open_file(&self, name: &str) -> Result<File, Error> {
        match self.sources.get(name) {
            Some(source) => parsed(name, source),
            None => match built_in(name) {
                Some(text) => File::from_source(name, text),
                None => self.google.open_file(name),
            },
        }
    }
}

fn parsed(name: &str, source: &Bytes) -> Result<File, Error> {
    let text = std::str::from_utf8(source).map_err(|error| Error::new(std::io::Error::other(error)))?;
    if nesting(text) > SCHEMA_NESTING_MAX {
        let why = format!("brackets are nested deeper than {SCHEMA_NESTING_MAX}");
        return Err(Error::new(std::io::Error::other(why)));
    }
    Ok(options::without_unknown(File::from_source(name, text)?))
}

fn error_text(name: &str, error: &Error) -> String {
    let text = format!("{error:?}");
    if text.starts_with(name) { text } else { format!("{name}: {text}") }
}

/// Brackets in strings and comments count, too; such files are harmless but refused.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' | b'(' | b'<' => depth += 1,
            b'}' | b']' | b')' | b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

pub(crate) fn too_large(sources: &Sources) -> Option<String> {
    let is_mark = |byte: &&u8| matches!(byte, b';' | b'{' | b',' | b':');
    let bytes: usize = sources.values().map(Bytes::len).sum();
    let marks: usize = sources.values().map(|source| source.iter().filter(is_mark).count()).sum();
    if sources.len() > SCHEMAS_MAX {
        return Some(format!("there would be {} schemas; the limit is {SCHEMAS_MAX}", sources.len()));
    }
    if bytes > SCHEMAS_BYTES_MAX {
        return Some(format!("all schemas would have {bytes} bytes; the limit is {SCHEMAS_BYTES_MAX}"));
    }
    (marks > SCHEMAS_PUNCTUATION_MAX).then(|| {
        format!(
            "all schemas would have {marks} punctuation marks (; {{ , :); the limit is {SCHEMAS_PUNCTUATION_MAX}"
        )
    })
}

/// The types of files without errors whose imports are all known.
pub(crate) fn types(sources: Arc<Sources>) -> Types {
    Types::new(compiled(sources).0.descriptor_pool())
}

pub(crate) fn errors(sources: Arc<Sources>) -> BTreeMap<String, String> {
    compiled(sources).1
}

/// Returns the first error of each file. Files that import built-in files of Infinispan, also indirectly, are only parsed; such a
/// file may be missing.
fn compiled(sources: Arc<Sources>) -> (Compiler, BTreeMap<String, String>) {
    let mut errors = BTreeMap::new();
    let resolver = Resolver { sources: sources.clone(), google: GoogleFileResolver::new() };
    let mut compiler = Compiler::with_file_resolver(resolver);
    if let Some(why) = too_large(&sources) {
        return (compiler, sources.keys().map(|name| (name.clone(), why.clone())).collect());
    }
    let mut imports: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, source) in sources.iter() {
        match parsed(name, source) {
            Ok(file) => {
                imports.insert(name, file.file_descriptor_proto().dependency.clone());
            }
            Err(error) => {
                errors.insert(name.clone(), error_text(name, &error));
            }
        }
    }
    let mut opaque: BTreeSet<&str> = BTreeSet::new();
    loop {
        let is_opaque = |import: &String| {
            opaque.contains(&import[..])
                || (import.starts_with(BUILT_IN_PREFIX)
                    && built_in(import).is_none()
                    && !sources.contains_key(import))
        };
        let found = imports.iter().filter(|(name, _)| !opaque.contains(*name));
        let found: Vec<&str> =
            found.filter(|(_, imports)| imports.iter().any(is_opaque)).map(|(name, _)| *name).collect();
        if found.is_empty() {
            break;
        }
        opaque.extend(found);
    }
    for name in imports.keys().filter(|name| !opaque.contains(*name)) {
        if let Err(error) = compiler.open_file(name) {
            errors.insert((*name).to_owned(), error_text(name, &error));
        }
    }
    // Schemas that define these types themselves have precedence.
    let _ = compiler.open_file(JAVA_TYPES_FILE);
    (compiler, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        let sources =
            files.iter().map(|(name, text)| ((*name).to_owned(), Bytes::copy_from_slice(text.as_bytes())));
        errors(Arc::new(sources.collect()))
    }

    const BOOK: &str = "syntax = \"proto3\"; package shop; message Book { string title = 1; }";

    #[test]
    fn error_in_a_schema_has_its_file_and_position() {
        assert!(errors_of(&[("book.proto", BOOK)]).is_empty());
        let wrong = errors_of(&[
            ("book.proto", BOOK),
            ("a.proto", "syntax = \"proto2\";\nmessage A {\n  strin title = x;\n}"),
        ]);
        assert_eq!(wrong.keys().collect::<Vec<_>>(), ["a.proto"]);
        assert!(wrong["a.proto"].starts_with("a.proto:3:"), "{}", wrong["a.proto"]);
        let wrong = errors_of(&[("a.proto", "message A { optional Missing one = 1; }")]);
        assert!(wrong["a.proto"].contains("Missing"), "{}", wrong["a.proto"]);
    }

    #[test]
    fn import_of_a_missing_or_invalid_schema_is_an_error() {
        let user = "syntax = \"proto3\"; import \"shop/book.proto\"; message Loan { shop.Book book = 1; }";
        assert!(errors_of(&[("shop/book.proto", BOOK), ("loan.proto", user)]).is_empty());
        let wrong = errors_of(&[("loan.proto", user)]);
        assert!(wrong["loan.proto"].contains("shop/book.proto"), "{}", wrong["loan.proto"]);
        let wrong = errors_of(&[("shop/book.proto", "message {"), ("loan.proto", user)]);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        let google = "syntax = \"proto3\"; import \"google/protobuf/timestamp.proto\"; \
                      message At { google.protobuf.Timestamp at = 1; }";
        assert!(errors_of(&[("at.proto", google)]).is_empty());
        let circle = |other: &str| format!("syntax = \"proto3\"; import \"{other}\";");
        let wrong = errors_of(&[("a.proto", &circle("b.proto")), ("b.proto", &circle("a.proto"))]);
        assert!(wrong["a.proto"].contains("cycle"), "{wrong:?}");
    }

    #[test]
    fn schemas_are_bounded_together_in_number_and_bytes() {
        let sources = |count: usize, bytes: usize| {
            let source = Bytes::from(vec![b' '; bytes]);
            (0..count).map(|nth| (format!("{nth}.proto"), source.clone())).collect::<Sources>()
        };
        assert_eq!(too_large(&sources(SCHEMAS_MAX, SCHEMAS_BYTES_MAX / SCHEMAS_MAX)), None);
        let (count, bytes) = (SCHEMAS_MAX + 1, SCHEMAS_BYTES_MAX / 4 + 1);
        let reason = too_large(&sources(count, 1));
        assert_eq!(reason.unwrap(), format!("there would be {count} schemas; the limit is {SCHEMAS_MAX}"));
        let reason = too_large(&sources(4, bytes)).unwrap();
        let all = bytes * 4;
        assert_eq!(reason, format!("all schemas would have {all} bytes; the limit is {SCHEMAS_BYTES_MAX}"));
        // No schema is compiled then.
        assert_eq!(errors(Arc::new(sources(4, bytes))).len(), 4);
    }

    #[test]
    fn import_of_a_file_built_into_infinispan_is_accepted() {
        let list = "syntax = \"proto3\"; import \"org/infinispan/protostream/message-wrapping.proto\"; \
                    message List { org.infinispan.protostream.WrappedMessage first = 1; }";
        let user = "syntax = \"proto3\"; import \"list.proto\"; message User { List list = 1; }";
        assert!(errors_of(&[("list.proto", list), ("user.proto", user)]).is_empty());
        let wrong = errors_of(&[("list.proto", &list.replace("message List", "messge List"))]);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
    }

    #[test]
    fn options_in_unusual_places_are_accepted() {
        for schema in [
            "message A { option java_package = \"a.b\"; string x = 1; }",
            "message A { option mine = 1; message B { option java_multiple_files = true; string y = 1; } }",
            "option mine = \"a\"; message A { string x = 1 [mine = true, deprecated = true]; }",
            "enum E { option java_package = \"a\"; Z = 0 [mine = 1]; }",
            "enum E { option allow_alias = true; Z = 0; Y = 0; }",
            "message A { oneof o { option mine = 1; string x = 1; } }",
            "message A { string x = 1; } service S { option mine = 1; rpc M(A) returns (A) { option mine = 1; } }",
        ] {
            let wrong = errors_of(&[("a.proto", &format!("syntax = \"proto3\"; {schema}"))]);
            assert!(wrong.is_empty(), "{schema}: {wrong:?}");
        }
        for schema in [
            "message A { option (mine) = 1; string x = 1; }",
            "enum E { Z = 0; Y = 0; }",
            "message A { option mine = 1; Missing x = 1; }",
        ] {
            let wrong = errors_of(&[("a.proto", &format!("syntax = \"proto3\"; {schema}"))]);
            assert_eq!(wrong.len(), 1, "{schema}");
        }
    }

    #[test]
    fn comments_number_types_of_files_with_unknown_options() {
        let schema =
            "syntax = \"proto3\";\n/** @TypeId(1000042) */\nmessage A { option mine = 1; string x = 1; }";
        let types = types(Arc::new([("a.proto".to_owned(), Bytes::from(schema))].into()));
        assert_eq!((types.id_of("A"), types.name_of(1_000_042)), (Some(1_000_042), Some("A")));
    }

    #[test]
    fn own_types_of_protostream_can_be_imported_and_defined() {
        let user = |import: &str| {
            format!(
                "syntax = \"proto3\"; import \"{import}\"; \
                 message Loan {{ org.infinispan.protostream.commons.UUID id = 1; }}"
            )
        };
        for import in [JAVA_TYPES_FILE, "common-java-types.proto"] {
            let sources = Arc::new([("loan.proto".to_owned(), Bytes::from(user(import)))].into());
            let (types, wrong) = (types(Arc::clone(&sources)), errors(sources));
            assert!(wrong.is_empty(), "{wrong:?}");
            assert!(types.message("Loan").is_some());
            assert_eq!(types.id_of("org.infinispan.protostream.commons.UUID"), Some(1_005));
        }
        assert!(types(Arc::default()).message("org.infinispan.protostream.commons.LocalDate").is_some());
        let own = "syntax = \"proto3\"; package org.infinispan.protostream.commons; message Year { int32 own = 1; }";
        let sources = Arc::new([("mine.proto".to_owned(), Bytes::from(own))].into());
        let (types, wrong) = (types(Arc::clone(&sources)), errors(sources));
        assert!(wrong.is_empty(), "{wrong:?}");
        let year = types.message("org.infinispan.protostream.commons.Year").unwrap();
        assert!(year.get_field_by_name("own").is_some());
    }

    #[test]
    fn deeply_nested_schema_is_refused() {
        for deep in ["message A {", "option (a) = { a: [", "message A { map<"] {
            let wrong = errors_of(&[("a.proto", &deep.repeat(20_000))]);
            assert!(wrong["a.proto"].contains("nested deeper"), "{}", wrong["a.proto"]);
        }
        assert!(!errors_of(&[("a.proto", "\u{fffd}")]).is_empty());
        assert!(!errors_of(&[("/../odd name.proto", "message {")]).is_empty());
        assert!(errors_of(&[("/../odd name.proto", BOOK)]).is_empty());
    }
}
