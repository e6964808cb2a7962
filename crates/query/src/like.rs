//! LIKE patterns: `%` matches any text, `_` one character; a backslash escapes the next character.
//!
//! A pattern is a sequence of runs separated by `%`. The first and last run are anchored, the others searched from left to right;
//! the leftmost match leaves the most text for the next runs, so there is no backtracking.

use crate::error::QueryErrorKind;
use crate::limits::PATTERN_MAX;
use crate::pattern::Run;
use crate::value::Value;
use crate::work::{Exceeded, Work};

const ESCAPE: char = '\\';

#[derive(Clone, Debug)]
pub(crate) struct Like {
    /// Canonical, for owners.
    text: String,
    first: Run,
    /// After the first `%`.
    rest: Option<Rest>,
}

#[derive(Clone, Debug)]
struct Rest {
    middle: Vec<Run>,
    last: Run,
}

impl PartialEq for Like {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Like {}

impl Like {
    pub(crate) fn read(pattern: &str, escape: Option<char>) -> Result<Self, QueryErrorKind> {
        if pattern.chars().count() > PATTERN_MAX {
            return Err(QueryErrorKind::Pattern);
        }
        let (mut text, mut runs, mut is_escaped) = (String::new(), vec![Vec::new()], false);
        for one in pattern.chars() {
            if one == escape.unwrap_or(ESCAPE) && !is_escaped {
                is_escaped = true;
                continue;
            }
            match one {
                // Successive `%` are merged.
                '%' if !is_escaped => {
                    if runs.len() == 1 || runs.last().is_some_and(|last| !last.is_empty()) {
                        runs.push(Vec::new());
                        text.push('%');
                    }
                }
                '_' if !is_escaped => {
                    runs.last_mut().into_iter().for_each(|run| run.push(None));
                    text.push('_');
                }
                one => {
                    runs.last_mut().into_iter().for_each(|run| run.push(Some(one)));
                    if matches!(one, '%' | '_' | ESCAPE) {
                        text.push(ESCAPE);
                    }
                    text.push(one);
                }
            }
            is_escaped = false;
        }
        let mut runs = runs.into_iter().map(Run::new);
        let first = runs.next().unwrap_or_default();
        let mut middle: Vec<Run> = runs.collect();
        let rest = middle.pop().map(|last| Rest { middle, last });
        Ok(Self { text, first, rest })
    }

    /// Canonical, with backslash as the escape character.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The characters with which each matching text begins.
    pub(crate) fn prefix(&self) -> Value<'static> {
        let (mut prefix, mut is_escaped) = (String::new(), false);
        for one in self.text.chars() {
            match one {
                ESCAPE if !is_escaped => {
                    is_escaped = true;
                    continue;
                }
                '%' | '_' if !is_escaped => break,
                one => prefix.push(one),
            }
            is_escaped = false;
        }
        Value::Text(prefix.into())
    }

    pub(crate) fn holds(&self, text: &str, work: &mut Work) -> Result<bool, Exceeded> {
        work.spend(1)?;
        let Some(behind) = self.first.at_start(text) else { return Ok(false) };
        let Some(Rest { middle, last }) = &self.rest else { return Ok(behind.is_empty()) };
        let Some(mut between) = last.at_end(behind) else { return Ok(false) };
        for run in middle {
            match run.find(between, work)? {
                Some(behind) => between = behind,
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is(text: &str, pattern: &str) -> bool {
        Like::read(pattern, None).unwrap().holds(text, &mut Work::default()).unwrap()
    }

    #[test]
    fn patterns_have_any_text_one_character_and_letters() {
        for (text, pattern) in [
            ("Emma", "E%"),
            ("Emma", "%a"),
            ("Emma", "%mm%"),
            ("Emma", "E_ma"),
            ("Emma", "____"),
            ("Emma", "E%%%m%a"),
            ("", ""),
            ("", "%"),
            ("100%_sure\\", "100\\%\\_s%\\\\"),
            ("a\nb", "a%b"),
            ("aaab", "%aab"),
            ("été", "_t_"),
        ] {
            assert!(is(text, pattern), "{text} is like {pattern}");
        }
        for (text, pattern) in [
            ("Emma", "e%"),
            ("Emma", "_"),
            ("Emma", "Emm"),
            ("Emma", ""),
            ("100x", "100\\%"),
            ("", "_"),
            ("aba", "ab%ba"),
        ] {
            assert!(!is(text, pattern), "{text} is not like {pattern}");
        }
        assert!(Like::read("100!%%", Some('!')).unwrap().holds("100% sure", &mut Work::default()).unwrap());
        assert_eq!(Like::read("100!%%!\\", Some('!')).unwrap().text(), "100\\%%\\\\");
        assert_eq!(Like::read(&"a".repeat(PATTERN_MAX + 1), None), Err(QueryErrorKind::Pattern));
    }

    /// Each of these patterns has partial matches everywhere and no match.
    #[test]
    fn longest_patterns_on_a_text_of_1_mib_take_at_most_four_steps_for_a_byte() {
        let text = "a".repeat(1024 * 1024);
        for pattern in [
            format!("%{}b%", "a".repeat(PATTERN_MAX - 3)),
            format!("%{}b", "a".repeat(PATTERN_MAX - 2)),
            format!("%{}b%", "a_".repeat(PATTERN_MAX / 2 - 2)),
            format!("%{}b%", "_".repeat(PATTERN_MAX - 3)),
            format!("{}b", "a%".repeat(PATTERN_MAX / 2 - 1)),
            format!("{}b%", "%_".repeat(PATTERN_MAX / 2 - 1)),
            format!("%{}b%", "_a%".repeat(PATTERN_MAX / 3 - 1)),
        ] {
            let mut work = Work::default();
            assert_eq!(Like::read(&pattern, None).unwrap().holds(&text, &mut work), Ok(false), "{pattern}");
            assert!(work.done() <= 4 * text.len() as u64 + 1_000, "{} steps for {pattern}", work.done());
        }
    }

    #[test]
    fn search_that_needs_more_steps_than_are_left_ends_there() {
        let text = "a".repeat(1024 * 1024);
        for pattern in ["%aaab%", "%a_b%"] {
            let mut work = Work::up_to(1_000);
            assert_eq!(Like::read(pattern, None).unwrap().holds(&text, &mut work), Err(Exceeded));
            assert!(work.done() <= 2_000 + text.len() as u64 / 4, "{} steps", work.done());
        }
    }

    fn slow(text: &[char], pattern: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('%', rest)), _) => (0..=text.len()).any(|from| slow(&text[from..], rest)),
            (Some(('_', rest)), Some((_, text))) => slow(text, rest),
            (Some((wanted, rest)), Some((one, text))) => wanted == one && slow(text, rest),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_their_text_says(text in "[abé]{0,8}", pattern in "[abé%_]{0,8}") {
            let (letters, pieces): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
            prop_assert_eq!(is(&text, &pattern), slow(&letters, &pieces));
        }

        #[test]
        fn a_pattern_is_read_back_from_its_canonical_text(pattern: String, escape in prop::option::of(any::<char>())) {
            let like = Like::read(&pattern, escape).unwrap();
            prop_assert_eq!(Like::read(like.text(), None), Ok(like.clone()));
        }
    }
}
