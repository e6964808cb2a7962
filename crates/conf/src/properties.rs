//! Java's files of properties: `NAME=VALUE` a line, without continued lines.

use thiserror::Error;

/// A line with its escapes replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Property {
    /// Counted from 1.
    pub line: usize,
    /// The part before the first `=` or `:`, without spaces around it that are not escaped.
    pub name: String,
    /// The rest, without spaces before it.
    pub value: String,
}

/// An error in a line.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {reason}")]
pub struct PropertiesError {
    /// Counted from 1.
    pub line: usize,
    /// The reason.
    pub reason: String,
}

/// Reads at most so many properties. Comments and lines without a separator are no properties.
///
/// # Errors
///
/// If an escape is not complete, or there are more properties; both with the line.
pub fn read_properties(text: &str, properties_max: usize) -> Result<Vec<Property>, PropertiesError> {
    let mut all = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        all.extend(property(at + 1, line)?);
        if all.len() > properties_max {
            let reason = format!("more than {properties_max} properties");
            return Err(PropertiesError { line: at + 1, reason });
        }
    }
    Ok(all)
}

/// Writes a line that Java and [`read_properties`] read as this name and value.
pub fn write_property(name: &str, value: &str) -> String {
    format!("{}={}\n", escaped(name), escaped(value))
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            // Java ends a name at a space, and leaves spaces before a value out.
            '\\' | '=' | ':' | '#' | '!' | ' ' => out.extend(['\\', character]),
            '!'..='~' => out.push(character),
            _ => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out
}

fn property(line: usize, text: &str) -> Result<Option<Property>, PropertiesError> {
    let read = |text: &str| {
        let mut characters = text.chars();
        let mut units = Vec::new();
        while let Some(character) = characters.next() {
            match character {
                '\\' => units.push(unescaped(&mut characters)?),
                other => units.extend_from_slice(other.encode_utf16(&mut [0; 2])),
            }
        }
        String::from_utf16(&units).ok()
    };
    let mut is_escaped = false;
    let separator = text.char_indices().find(|&(_, character)| {
        let is_it = matches!(character, '=' | ':') && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        is_it
    });
    let Some((at, _)) = separator else { return Ok(None) };
    let incomplete = || PropertiesError { line, reason: "an escape is not complete".to_owned() };
    let name = read(without_last_spaces(&text[..at])).ok_or_else(incomplete)?;
    let value = read(text[at + 1..].trim_start()).ok_or_else(incomplete)?;
    Ok(Some(Property { line, name, value }))
}

/// An escaped space is part of the name.
fn without_last_spaces(name: &str) -> &str {
    let rest = name.trim_end();
    let backslashes = rest.len() - rest.trim_end_matches('\\').len();
    let first_space = name[rest.len()..].chars().next().filter(|_| backslashes % 2 == 1);
    &name[..rest.len() + first_space.map_or(0, char::len_utf8)]
}

/// A unit of UTF-16: characters beyond 16 bits are two escapes.
fn unescaped(characters: &mut std::str::Chars<'_>) -> Option<u16> {
    let character = match characters.next()? {
        'u' => {
            let digits: String = characters.take(4).collect();
            let digits = Some(digits).filter(|digits| digits.len() == 4)?;
            return u16::from_str_radix(&digits, 16).ok();
        }
        't' => '\t',
        'n' => '\n',
        'r' => '\r',
        'f' => '\u{c}',
        other => other,
    };
    u16::try_from(u32::from(character)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        let all = read_properties(text, 100).unwrap();
        all.into_iter().map(|one| (one.name, one.value)).collect()
    }

    #[test]
    fn names_and_values_are_read_as_java_writes_them() {
        let text = "#Container Properties\n#Mon Nov 30 11:00:00 UTC 2026\ncaches=a,b\\:c\ncounters=\n\
                    a\\=b : \\u00e4\\ud83d\\ude00\\t|\n! comment\nnone\n";
        let expected = [("caches", "a,b:c"), ("counters", ""), ("a=b", "\u{e4}\u{1f600}\t|")];
        assert_eq!(read(text), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn written_properties_are_read_again() {
        for value in ["", "a b", " a", "#1", "a=b:c\\d!", "\u{1f600}\n\tz", "ü"] {
            for name in ["na=me ü", "a ", "a\\", "a\\ "] {
                let line = write_property(name, value);
                assert!(line.is_ascii() && line.lines().count() == 1, "{line}");
                assert_eq!(read(&line), [(name.to_owned(), value.to_owned())], "{line}");
            }
        }
    }

    #[test]
    fn only_escaped_spaces_at_the_end_of_a_name_count() {
        for (text, name) in
            [("a\\ =b", "a "), ("a\\  =b", "a "), ("a\\\\ =b", "a\\"), ("a =b", "a"), (" =b", "")]
        {
            assert_eq!(read(text), [(name.to_owned(), "b".to_owned())], "{text}");
        }
    }

    #[test]
    fn error_names_the_line() {
        for text in ["a=b\nc=\\", "a=b\nc=\\u00", "a=b\nc=\\uzzzz", "a=b\nc=\\ud83d"] {
            assert_eq!(read_properties(text, 9).unwrap_err().line, 2, "{text}");
        }
        let error = read_properties("a=b\nc=d\n", 1).unwrap_err();
        assert_eq!(error.to_string(), "line 2: more than 1 properties");
    }
}
