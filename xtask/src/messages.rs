//! The messages that the chapter on troubleshooting quotes: each is in the texts of the programs.
//!
//! A quotation is a span of code in a table, with a space, that is no command, option or attribute. The checked
//! fragments are between `…`, colons, and placeholders: words with a digit, and words of capitals only.

use std::collections::BTreeMap;

use proc_macro2::TokenStream;

use crate::words::{collect_texts, without_tests};

pub(crate) const DOCUMENT: &str = "docs/book/src/troubleshooting.md";

/// # Errors
///
/// If a source is no Rust.
pub(crate) fn missing(document: &str, sources: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    for (path, source) in sources.iter().filter(|(path, _)| path.contains("/src/")) {
        let tokens: TokenStream =
            without_tests(source).parse().map_err(|error| format!("{path}: {error}"))?;
        collect_texts(tokens, &mut texts);
    }
    let texts: Vec<String> = texts.iter().map(|text| joined(text)).collect();
    let fragments =
        document.lines().filter(|line| line.starts_with('|')).flat_map(quotations).flat_map(fragments);
    Ok(fragments.filter(|fragment| !texts.iter().any(|text| text.contains(&**fragment))).collect())
}

fn joined(literal: &str) -> String {
    let mut parts = literal.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start())
}

fn quotations(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        let is_command = ["consort ", "-", "/"].iter().any(|beginning| span.starts_with(beginning));
        span.contains(' ') && !is_command && !span.contains('=')
    })
}

/// A fragment has two words at least.
fn fragments(message: &str) -> Vec<String> {
    let mut fragments = vec![Vec::new()];
    for word in message.split_whitespace() {
        let is_placeholder = word.contains('…')
            || word.contains(|letter: char| letter.is_ascii_digit())
            || word.chars().all(|letter| letter.is_ascii_uppercase());
        if is_placeholder {
            fragments.push(Vec::new());
            continue;
        }
        let ends = word.ends_with(':');
        fragments.last_mut().into_iter().for_each(|words| words.push(word.trim_end_matches(':')));
        if ends {
            fragments.push(Vec::new());
        }
    }
    fragments.into_iter().filter(|words| words.len() > 1).map(|words| words.join(" ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_end_at_placeholders_and_colons() {
        assert_eq!(
            fragments("not serving yet, after 5 s: writes need these owners: …"),
            ["not serving yet, after", "writes need these owners"]
        );
        assert_eq!(fragments("… speaks version N of the wire"), ["speaks version", "of the wire"]);
        assert_eq!(fragments("ISPN000306: not all owners"), ["not all owners"]);
    }

    #[test]
    fn quotation_without_a_text_is_found() {
        let sources = [
            ("crates/a/src/lib.rs", "#[error(\"{0} has no \\\n     memory for it\")]\nstruct A;\n"),
            ("crates/a/src/b.rs", "#[cfg(test)]\nmod tests { const A: &str = \"only in a test\"; }\n"),
            ("crates/a/tests/c.rs", "const A: &str = \"only in a test\";\n"),
        ];
        let sources = sources.map(|(path, source)| (path.to_owned(), source.to_owned())).into();
        let document = "`no table at all`\n| `… has no memory for it` (`NoMemory`) | `only in a test` |\n\
            | `consort cache ls` | `--data a` | `a=b c` | `/health 503` |\n";
        assert_eq!(missing(document, &sources), Ok(vec!["only in a test".to_owned()]));
    }
}
