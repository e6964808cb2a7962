//! Patterns of LIKE: `%` is any text, `_` one character, and a backslash makes a letter of what follows it.

use crate::bounds::PATTERN_MAX;
use crate::error::Wrong;

/// What LIKE has unless ESCAPE says something else.
const ESCAPE: char = '\\';

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    One(char),
    Any,
    Many,
}

/// A pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Like {
    /// For owners, who are told of it as text.
    text: String,
    pieces: Vec<Piece>,
}

impl Like {
    /// A pattern as it is written.
    pub(crate) fn read(pattern: &str, escape: Option<char>) -> Result<Self, Wrong> {
        if pattern.chars().count() > PATTERN_MAX {
            return Err(Wrong::Pattern);
        }
        let (mut pieces, mut is_escaped) = (Vec::new(), false);
        for one in pattern.chars() {
            if one == escape.unwrap_or(ESCAPE) && !is_escaped {
                is_escaped = true;
                continue;
            }
            let piece = match one {
                '%' if !is_escaped => Piece::Many,
                '_' if !is_escaped => Piece::Any,
                one => Piece::One(one),
            };
            // Several are no more than one, and would be tried in each way.
            if piece != Piece::Many || pieces.last() != Some(&Piece::Many) {
                pieces.push(piece);
            }
            is_escaped = false;
        }
        let mut text = String::new();
        for piece in &pieces {
            match piece {
                Piece::Many => text.push('%'),
                Piece::Any => text.push('_'),
                Piece::One(one) => {
                    if matches!(one, '%' | '_' | &ESCAPE) {
                        text.push(ESCAPE);
                    }
                    text.push(*one);
                }
            }
        }
        Ok(Self { text, pieces })
    }

    /// The pattern with backslashes where it needs them, whatever was said by ESCAPE.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a text is like this.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let (mut rest, mut next) = (text.chars(), 0);
        // Where the last `%` stands, and the text that comes behind what it stands for so far.
        let mut last: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let before = rest.clone();
            match (self.pieces.get(next), rest.next()) {
                (None, None) => return true,
                (Some(Piece::Many), _) => {
                    next += 1;
                    last = Some((next, before.clone()));
                    rest = before;
                }
                (Some(Piece::Any), Some(_)) => next += 1,
                (Some(Piece::One(wanted)), Some(one)) if *wanted == one => next += 1,
                _ => {
                    // It stands for one more, if there is one.
                    let Some((behind, after)) = &mut last else { return false };
                    if after.next().is_none() {
                        return false;
                    }
                    (next, rest) = (*behind, after.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is(text: &str, pattern: &str) -> bool {
        Like::read(pattern, None).unwrap().holds(text)
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
        for (text, pattern) in
            [("Emma", "e%"), ("Emma", "_"), ("Emma", "Emm"), ("Emma", ""), ("100x", "100\\%"), ("", "_")]
        {
            assert!(!is(text, pattern), "{text} is not like {pattern}");
        }
        assert!(Like::read("100!%%", Some('!')).unwrap().holds("100% sure"));
        assert_eq!(Like::read("100!%%!\\", Some('!')).unwrap().text(), "100\\%%\\\\");
        assert_eq!(Like::read(&"a".repeat(PATTERN_MAX + 1), None), Err(Wrong::Pattern));
    }

    /// As anybody would say it who does not care how long it takes.
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
        fn it_is_what_it_says(text in "[ab]{0,8}", pattern in "[ab%_]{0,8}") {
            let (letters, pieces): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
            prop_assert_eq!(is(&text, &pattern), slow(&letters, &pieces));
        }

        #[test]
        fn what_owners_are_told_is_the_same(pattern: String, escape in prop::option::of(any::<char>())) {
            let like = Like::read(&pattern, escape).unwrap();
            prop_assert_eq!(Like::read(like.text(), None), Ok(like.clone()));
        }
    }
}
