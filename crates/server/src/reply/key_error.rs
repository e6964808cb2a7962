use std::fmt::{self, Write};

/// Enough to recognize a key, and short enough for a line of a log.
const SHOWN_MAX: usize = 64;

pub(crate) fn describe_key(nth: usize, key: &[u8], error: impl fmt::Display) -> String {
    format!("key {nth} of the request, {}: {error}", DisplayKey(key))
}

/// As text in quotation marks, with `\x82` and so on for bytes that are no text.
pub(crate) struct DisplayKey<'k>(pub(crate) &'k [u8]);

impl fmt::Display for DisplayKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_MAX)];
        f.write_char('"')?;
        for chunk in shown.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '"' | '\\' => write!(f, "\\{character}")?,
                    _ if character.is_control() => escaped(f, character.encode_utf8(&mut [0; 4]).as_bytes())?,
                    _ => f.write_char(character)?,
                }
            }
            escaped(f, chunk.invalid())?;
        }
        f.write_char('"')?;
        if shown.len() < self.0.len() {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

fn escaped(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_displayed_readably() {
        for (key, shown) in [
            (&b"user:7"[..], r#""user:7""#),
            (b"", r#""""#),
            ("Käse".as_bytes(), r#""Käse""#),
            // As Java's clients marshal a text.
            (b"\x03\x3e\x05key 7", r#""\x03>\x05key 7""#),
            (b"\x82\x01\xff", r#""\x82\x01\xff""#),
            (b"a \"b\" \\", r#""a \"b\" \\""#),
        ] {
            assert_eq!(DisplayKey(key).to_string(), shown);
        }
        let long = DisplayKey(&[b'k'; 1_000]).to_string();
        assert_eq!(long, format!("\"{}\"… (1000 bytes)", "k".repeat(64)));
        assert_eq!(describe_key(2, b"k", "no"), r#"key 2 of the request, "k": no"#);
    }
}
