//! Text as a slice of its message.

use std::fmt;

use bytes::Bytes;

/// UTF-8 text in shared bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text(Bytes);

impl Text {
    /// The empty text.
    pub const EMPTY: Self = Self(Bytes::new());

    /// Converts UTF-8 bytes.
    pub fn from_utf8(bytes: Bytes) -> Option<Self> {
        std::str::from_utf8(&bytes).is_ok().then_some(Self(bytes))
    }

    /// Converts a static text.
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // Validated at construction.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
