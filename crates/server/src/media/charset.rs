//! The charsets of every Java runtime. As in Java, invalid bytes decode to the replacement character, and unknown characters
//! encode as `?`.

use std::borrow::Cow;

use bytes::Bytes;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Charset {
    #[default]
    Utf8,
    Ascii,
    Latin1,
    /// Big-endian unless a byte order mark differs; written big-endian with a mark.
    Utf16,
    Utf16Be,
    Utf16Le,
}

const NAMES: &[(&str, Charset)] = &[
    ("UTF-8", Charset::Utf8),
    ("UTF8", Charset::Utf8),
    ("US-ASCII", Charset::Ascii),
    ("ASCII", Charset::Ascii),
    ("ISO-8859-1", Charset::Latin1),
    ("ISO8859_1", Charset::Latin1),
    ("LATIN1", Charset::Latin1),
    ("UTF-16", Charset::Utf16),
    ("UTF-16BE", Charset::Utf16Be),
    ("UTF-16LE", Charset::Utf16Le),
];

const MARK: char = '\u{feff}';

impl Charset {
    pub(crate) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, charset)| *charset)
    }

    pub(crate) fn decode(self, bytes: &[u8]) -> Cow<'_, str> {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes),
            Self::Latin1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
            Self::Ascii => {
                let character =
                    |&byte: &u8| if byte < 0x80 { char::from(byte) } else { char::REPLACEMENT_CHARACTER };
                bytes.iter().map(character).collect()
            }
            Self::Utf16Be => Cow::Owned(utf16(bytes, u16::from_be_bytes)),
            Self::Utf16Le => Cow::Owned(utf16(bytes, u16::from_le_bytes)),
            Self::Utf16 => match bytes {
                [0xff, 0xfe, rest @ ..] => Cow::Owned(utf16(rest, u16::from_le_bytes)),
                [0xfe, 0xff, rest @ ..] | rest => Cow::Owned(utf16(rest, u16::from_be_bytes)),
            },
        }
    }

    pub(crate) fn encode(self, text: &str) -> Bytes {
        let below = |limit: u32| {
            text.chars().map(|one| if u32::from(one) < limit { u32::from(one) as u8 } else { b'?' }).collect()
        };
        match self {
            Self::Utf8 => Bytes::copy_from_slice(text.as_bytes()),
            Self::Ascii => below(0x80),
            Self::Latin1 => below(0x100),
            Self::Utf16Be => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
            Self::Utf16Le => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            Self::Utf16 if text.is_empty() => Bytes::new(),
            Self::Utf16 => {
                let mut mark = [0; 1];
                let marked = MARK.encode_utf16(&mut mark).iter().copied().chain(text.encode_utf16());
                marked.flat_map(u16::to_be_bytes).collect()
            }
        }
    }

    pub(crate) fn recode(self, bytes: Bytes, to: Self) -> Bytes {
        if self == to { bytes } else { to.encode(&self.decode(&bytes)) }
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units: Vec<u16> = bytes.chunks(2).map(|pair| pair.try_into().map_or(0xfffd, unit)).collect();
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_encoded_and_decoded_in_each_charset() {
        for (charset, bytes) in [
            (Charset::Utf8, &b"a\xc3\xa9"[..]),
            (Charset::Latin1, b"a\xe9"),
            (Charset::Utf16, b"\xfe\xff\0a\0\xe9"),
            (Charset::Utf16Be, b"\0a\0\xe9"),
            (Charset::Utf16Le, b"a\0\xe9\0"),
        ] {
            assert_eq!(&charset.encode("aé")[..], bytes, "{charset:?}");
            assert_eq!(charset.decode(bytes), "aé", "{charset:?}");
        }
        assert_eq!(Charset::Utf16.decode(b"\xff\xfea\0"), "a");
        assert_eq!(Charset::Utf16.decode(b"\0a"), "a");
    }

    #[test]
    fn unmappable_characters_become_question_marks_and_invalid_bytes_are_replaced() {
        assert_eq!(Charset::Ascii.encode("aé€"), "a??");
        assert_eq!(&Charset::Latin1.encode("é€")[..], b"\xe9?");
        assert_eq!(Charset::Ascii.decode(b"a\xe9"), "a\u{fffd}");
        assert_eq!(Charset::Utf8.decode(b"a\xff"), "a\u{fffd}");
        assert_eq!(Charset::Utf16Be.decode(b"\0a\xd8\0b"), "a\u{fffd}\u{fffd}");
    }

    #[test]
    fn charset_names_are_matched_in_any_case() {
        assert_eq!(Charset::named("utf-8"), Some(Charset::Utf8));
        assert_eq!(Charset::named("iso-8859-1"), Some(Charset::Latin1));
        assert_eq!(Charset::named("klingon"), None);
    }
}
