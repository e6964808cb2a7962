//! Attributes of messages: a letter, an equals sign, a value, a comma.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::Malformed;

/// Names, nonces and salts are much shorter.
pub(crate) const MESSAGE_MAX: usize = 4_096;

pub(crate) const fn wrong(reason: &'static str) -> Malformed {
    Malformed { mechanism: "SCRAM", reason }
}

pub(crate) fn text(message: &[u8]) -> Result<&str, Malformed> {
    if message.len() > MESSAGE_MAX {
        return Err(wrong("message too long"));
    }
    std::str::from_utf8(message).map_err(|_| wrong("not UTF-8"))
}

/// It must have this letter.
pub(crate) fn attribute<'a>(
    attributes: &mut impl Iterator<Item = &'a str>,
    letter: char,
    missing: &'static str,
) -> Result<&'a str, Malformed> {
    let value = attributes.next().and_then(|attribute| attribute.strip_prefix(letter)?.strip_prefix('='));
    value.ok_or(wrong(missing))
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn unbase64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

pub(crate) fn escaped(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

pub(crate) fn unescaped(text: &str) -> Result<String, Malformed> {
    let mut name = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('=') {
        name.push_str(before);
        let escape = after.split_at_checked(2);
        let (letter, after) = match escape {
            Some(("2C", after)) => (',', after),
            Some(("3D", after)) => ('=', after),
            _ => return Err(wrong("invalid escape in a name")),
        };
        name.push(letter);
        rest = after;
    }
    name.push_str(rest);
    if name.is_empty() { Err(wrong("empty name")) } else { Ok(name) }
}
