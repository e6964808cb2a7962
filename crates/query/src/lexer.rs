use crate::error::{QueryError, QueryErrorKind};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Token<'t> {
    /// A keyword depends on the position.
    Word(&'t str),
    /// Without a sign.
    Number(&'t str),
    /// Without quotes. A doubled quote is one quote; backslashes stay.
    Text(String),
    Sign(&'static str),
    End,
}

impl Token<'_> {
    /// For error messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Word(word) | Self::Number(word) => format!("'{word}'"),
            Self::Text(text) => format!("the string '{text}'"),
            Self::Sign(sign) => format!("'{sign}'"),
            Self::End => "the end".to_owned(),
        }
    }
}

/// Longer signs first.
const SIGNS: [&str; 27] = [
    "<->", "<>", "<=", ">=", "!=", "&&", "||", "<", ">", "=", "!", "(", ")", "[", "]", "{", "}", ",", ".",
    ":", "+", "-", "*", "#", "~", "^", "?",
];

pub(crate) type Placed<'t> = (usize, Token<'t>);

/// With an end token.
pub(crate) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, QueryError> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = if first.is_whitespace() {
            first.len_utf8()
        } else if is_word(first) && !first.is_ascii_digit() {
            let word = taken(rest, is_word);
            tokens.push((at, Token::Word(word)));
            word.len()
        } else if is_number(rest) {
            let number = number(rest);
            tokens.push((at, Token::Number(number)));
            number.len()
        } else if matches!(first, '\'' | '"') {
            let (value, length) =
                quoted(rest, first).ok_or_else(|| wrong(text, at, "unterminated string".to_owned()))?;
            tokens.push((at, Token::Text(value)));
            length
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push((at, Token::Sign(sign)));
            sign.len()
        } else if first == ';' && rest[1..].trim().is_empty() {
            rest.len()
        } else {
            return Err(wrong(text, at, format!("invalid character {first:?}")));
        };
        at += length;
    }
    tokens.push((text.len(), Token::End));
    Ok(tokens)
}

fn wrong(text: &str, at: usize, why: String) -> QueryError {
    QueryError::at(text, at, QueryErrorKind::Characters(why))
}

fn is_word(one: char) -> bool {
    one.is_ascii_alphanumeric() || matches!(one, '_' | '$') || one >= '\u{80}' && !one.is_whitespace()
}

fn is_number(rest: &str) -> bool {
    let digits = rest.strip_prefix('.').unwrap_or(rest);
    digits.starts_with(|first: char| first.is_ascii_digit())
}

fn taken(rest: &str, is_of: impl Fn(char) -> bool) -> &str {
    let end = rest.find(|one| !is_of(one)).unwrap_or(rest.len());
    &rest[..end]
}

/// With point, exponent and type suffix.
fn number(rest: &str) -> &str {
    let digits = |from: usize| taken(&rest[from..], |one| one.is_ascii_digit()).len();
    let mut length = digits(0);
    if rest[length..].starts_with('.') {
        length += 1;
        length += digits(length);
    }
    if rest[length..].starts_with(['e', 'E']) {
        let sign = usize::from(rest[length + 1..].starts_with(['+', '-']));
        let exponent = digits(length + 1 + sign);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    length += taken(&rest[length..], is_word).len();
    &rest[..length]
}

/// With its length, quotes included.
fn quoted(rest: &str, quote: char) -> Option<(String, usize)> {
    let (mut value, mut is_escaped) = (String::new(), false);
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, one)) = chars.next() {
        if one == quote && !is_escaped {
            if chars.peek().is_none_or(|(_, next)| *next != quote) {
                return Some((value, at + 1));
            }
            chars.next();
        }
        is_escaped = one == '\\' && !is_escaped;
        value.push(one);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Token<'_>> {
        tokens(text).unwrap().into_iter().map(|(_, token)| token).collect()
    }

    #[test]
    fn words_numbers_texts_and_signs_are_distinguished() {
        use Token::{End, Number, Sign, Word};
        let text = |text: &str| Token::Text(text.to_owned());
        assert_eq!(
            all("FROM a.b$_é WHERE x>=-1.5e-3f"),
            [
                Word("FROM"),
                Word("a"),
                Sign("."),
                Word("b$_é"),
                Word("WHERE"),
                Word("x"),
                Sign(">="),
                Sign("-"),
                Number("1.5e-3f"),
                End
            ]
        );
        assert_eq!(
            all(".5 3. 12L 0x0C 7e"),
            [Number(".5"), Number("3."), Number("12L"), Number("0x0C"), Number("7e"), End]
        );
        assert_eq!(
            all(r#"'it''s' "say ""x""" 'a\'b' ''"#),
            [text("it's"), text("say \"x\""), text("a\\'b"), text(""), End]
        );
        assert_eq!(all("a<->b<>c ; "), [Word("a"), Sign("<->"), Word("b"), Sign("<>"), Word("c"), End]);
    }

    #[test]
    fn a_character_outside_the_grammar_is_an_error_with_its_position() {
        for (text, place) in [("a\n  'b", (2, 3)), ("é @", (1, 3)), ("a; b", (1, 2)), ("a = 'b\\'", (1, 5))]
        {
            assert_eq!(tokens(text).unwrap_err().place, Some(place), "{text}");
        }
    }
}
