//! The language of the sources: documentation names actors and things, and tests are named by subject, condition and result.
//!
//! Both bounds only go down.

use std::collections::BTreeMap;

use crate::claims::{root, sources};
use crate::steps::Outcome;

/// Words of documentation that stand for an actor or a thing without its name.
const UNNAMED: [&str; 5] = ["who", "whoever", "somebody", "nobody", "what"];

/// The most of them in the documentation of all crates.
const UNNAMED_MAX: usize = 27;

/// Beginnings of a test's name that say no subject.
const BEGINNINGS: [&str; 3] = ["what_", "who_", "whoever_"];

/// The most tests that still begin with one of them.
const TESTS_MAX: usize = 0;

/// The number of words without a name in the documentation of a source.
fn unnamed(source: &str) -> usize {
    let lines = source.lines().map(str::trim_start);
    let documentation = lines.filter(|line| line.starts_with("///") || line.starts_with("//!"));
    let words =
        documentation.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    words.filter(|word| UNNAMED.iter().any(|unnamed| word.eq_ignore_ascii_case(unnamed))).count()
}

/// The functions of a source whose names begin without a subject.
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
    for (path, source) in sources.iter().filter(|(path, _)| path.contains("/src/")) {
        *by_crate.entry(path.split('/').nth(1).unwrap_or(path)).or_default() += unnamed(source);
    }
    let words: usize = by_crate.values().sum();
    let tests: Vec<&str> = sources.values().flat_map(|source| without_subject(source)).collect();
    println!(
        "{words} of at most {UNNAMED_MAX} words without a name in documentation, {} of at most {TESTS_MAX} tests without a subject",
        tests.len()
    );
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
    Outcome::Passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_of_documentation_are_counted() {
        assert_eq!(unnamed("/// What nobody knows.\n//! Who?\n    /// whose, somewhat, `what_` 'what'\n"), 4);
        assert_eq!(unnamed("// what\nlet what = \"who\";\n"), 0);
    }

    #[test]
    fn a_function_that_begins_without_a_subject_is_found() {
        let source =
            "    fn what_is_read() {\n    async fn who_asks() {\n    fn somewhat_() {\n    fn a_what_() {\n";
        assert_eq!(without_subject(source).collect::<Vec<_>>(), ["what_is_read", "who_asks"]);
    }
}
