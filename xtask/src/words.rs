//! The language of the sources: documentation names actors and things, and tests are named by subject,
//! condition and result. All bounds only go down.

use std::collections::BTreeMap;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::claims::{root, sources};
use crate::messages::{self, DOCUMENT};
use crate::steps::Outcome;

/// Words that stand for an actor or a thing without its name.
const UNNAMED: [&str; 5] = ["who", "whoever", "somebody", "nobody", "what"];

const UNNAMED_MAX: usize = 24;

const IN_TEXTS_MAX: usize = 0;

/// Beginnings of a test's name that say no subject.
const BEGINNINGS: [&str; 3] = ["what_", "who_", "whoever_"];

const TESTS_MAX: usize = 0;

/// Files that operators read beside the sources. None of their words is without a name.
const FOR_OPERATORS: [&str; 3] = ["charts", "examples/kubernetes", "Dockerfile"];

fn unnamed(source: &str) -> usize {
    let lines = source.lines().map(str::trim_start);
    unnamed_in(lines.filter(|line| line.starts_with("///") || line.starts_with("//!")))
}

fn unnamed_in<'t>(lines: impl Iterator<Item = &'t str>) -> usize {
    let words = lines.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    words.filter(|word| UNNAMED.iter().any(|unnamed| word.eq_ignore_ascii_case(unnamed))).count()
}

/// Returns the files with such words below a path, and their number.
fn unnamed_below(path: &Path) -> Result<Vec<(String, usize)>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.is_dir() {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            found.extend(unnamed_below(&entry.map_err(failed)?.path())?);
        }
        return Ok(found);
    }
    let words = unnamed_in(std::fs::read_to_string(path).map_err(failed)?.lines());
    Ok((words > 0).then(|| (path.display().to_string(), words)).into_iter().collect())
}

/// Without tests and documentation. A text has a space.
fn unnamed_in_texts(source: &str) -> Result<usize, String> {
    let tokens: TokenStream = without_tests(source).parse().map_err(|error| format!("{error}"))?;
    let mut texts = Vec::new();
    collect_texts(tokens, &mut texts);
    let words = texts.iter().flat_map(|text| {
        without_placeholders(text).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let words = words.map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()).to_lowercase());
    Ok(words.filter(|word| UNNAMED.contains(&word.as_str())).count())
}

/// The source before its module of tests. `mod tests;`, with the tests in another file, may stand at the beginning.
pub(crate) fn without_tests(source: &str) -> &str {
    const TESTS: &str = "#[cfg(test)]\nmod ";
    let is_here = |&(at, _): &(usize, &str)| {
        let line = source[at + TESTS.len()..].lines().next();
        line.is_some_and(|line| line.contains('{'))
    };
    source.match_indices(TESTS).find(is_here).map_or(source, |(at, _)| &source[..at])
}

/// Adds literals with a space, without documentation.
pub(crate) fn collect_texts(tokens: TokenStream, texts: &mut Vec<String>) {
    let mut is_attribute = false;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => is_attribute = true,
            TokenTree::Punct(punct) if punct.as_char() == '!' && is_attribute => {}
            TokenTree::Group(group) => {
                let is_documentation = is_attribute
                    && group.delimiter() == Delimiter::Bracket
                    && group.stream().into_iter().next().is_some_and(|first| first.to_string() == "doc");
                if !is_documentation {
                    collect_texts(group.stream(), texts);
                }
                is_attribute = false;
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                texts.extend((text.contains('"') && text.contains(' ')).then(|| text.replace("\\n", " ")));
                is_attribute = false;
            }
            _ => is_attribute = false,
        }
    }
}

/// Removes the names of values in braces.
fn without_placeholders(text: &str) -> String {
    let parts = text.split('{').enumerate();
    parts
        .map(|(nth, part)| if nth == 0 { part } else { part.split_once('}').map_or("", |(_, rest)| rest) })
        .collect()
}

fn without_subject(source: &str) -> impl Iterator<Item = &str> {
    let names = source.lines().filter_map(|line| {
        let line = line.trim_start();
        let name = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))?;
        name.split('(').next()
    });
    names.filter(|name| BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)))
}

pub(crate) fn run() -> Outcome {
    let sources = match sources(root()) {
        Ok(sources) => sources,
        Err(error) => return Outcome::Failed(format!("the sources: {error}")),
    };
    let mut by_crate = BTreeMap::<&str, usize>::new();
    let mut in_texts = Vec::new();
    for (path, source) in sources.iter().filter(|(path, _)| path.contains("/src/")) {
        *by_crate.entry(path.split('/').nth(1).unwrap_or(path)).or_default() += unnamed(source);
        if path.ends_with("tests.rs") {
            continue;
        }
        match unnamed_in_texts(source) {
            Ok(0) => {}
            Ok(words) => in_texts.push((path.clone(), words)),
            Err(error) => return Outcome::Failed(format!("{path}: {error}")),
        }
    }
    for path in FOR_OPERATORS {
        match unnamed_below(&root().join(path)) {
            Ok(found) => in_texts.extend(found),
            Err(error) => return Outcome::Failed(error),
        }
    }
    let words: usize = by_crate.values().sum();
    let tests: Vec<&str> = sources.values().flat_map(|source| without_subject(source)).collect();
    println!(
        "{words} of at most {UNNAMED_MAX} words without a name in documentation, {} of at most {TESTS_MAX} tests without a subject",
        tests.len()
    );
    let found: usize = in_texts.iter().map(|(_, words)| words).sum();
    println!("{found} of at most {IN_TEXTS_MAX} words without a name in texts of programs and charts");
    if found > IN_TEXTS_MAX {
        let files: Vec<String> = in_texts.iter().map(|(path, words)| format!("{path} {words}")).collect();
        return Outcome::Failed(format!("{found} of these words in texts: {}", files.join(", ")));
    }
    if words > UNNAMED_MAX {
        let counts: Vec<String> = by_crate
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        return Outcome::Failed(format!("{words} of these words: {}", counts.join(", ")));
    }
    if tests.len() > TESTS_MAX {
        return Outcome::Failed(format!(
            "{} tests, the last of them {}",
            tests.len(),
            tests.last().unwrap_or(&"")
        ));
    }
    let missing = std::fs::read_to_string(root().join(DOCUMENT))
        .map_err(|error| error.to_string())
        .and_then(|document| messages::missing(&document, &sources));
    match missing {
        Ok(missing) if missing.is_empty() => Outcome::Passed,
        Ok(missing) => {
            Outcome::Failed(format!("{DOCUMENT} quotes no text of a program: {}", missing.join("; ")))
        }
        Err(error) => Outcome::Failed(format!("{DOCUMENT}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_below_a_folder_are_counted() {
        let folder = std::env::temp_dir().join(format!("consort-words-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("templates")).unwrap();
        std::fs::write(folder.join("templates/notes.txt"), "Nobody knows\nwhat it is.\n").unwrap();
        std::fs::write(folder.join("values.yaml"), "# whose: a member's\n").unwrap();
        let found = unnamed_below(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.iter().map(|(_, words)| *words).collect::<Vec<_>>(), [2]);
        assert!(unnamed_below(&folder).is_err());
    }

    #[test]
    fn only_whole_words_of_documentation_are_counted() {
        assert_eq!(unnamed("/// What nobody knows.\n//! Who?\n    /// whose, somewhat, `what_` 'what'\n"), 4);
        assert_eq!(unnamed("// what\nlet what = \"who\";\n"), 0);
    }

    #[test]
    fn texts_are_literals_with_a_space_without_documentation_and_tests() {
        let source = "/// \"What nobody knows.\"\n#[error(\"nobody answers {what}\")]\nstruct A;\nconst B: &str = \"who\";\n\
            const C: &str = \"who is\\nwhat it is\";\n#[cfg(test)]\nmod tests { const D: &str = \"nobody here\"; }\n";
        assert_eq!(unnamed_in_texts(source), Ok(3));
        let tests_elsewhere = "#[cfg(test)]\nmod tests;\nconst A: &str = \"nobody here\";\n";
        assert_eq!(unnamed_in_texts(tests_elsewhere), Ok(1));
    }

    #[test]
    fn a_function_that_begins_without_a_subject_is_found() {
        let source =
            "    fn what_is_read() {\n    async fn who_asks() {\n    fn somewhat_() {\n    fn a_what_() {\n";
        assert_eq!(without_subject(source).collect::<Vec<_>>(), ["what_is_read", "who_asks"]);
    }
}
