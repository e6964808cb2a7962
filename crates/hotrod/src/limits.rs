//! Limits of received data, checked before the decoder waits for or allocates bytes.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Key,
    Value,
    Text,
    Id,
    XidPart,
    Bits,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Value => "value",
            Self::Text => "text",
            Self::Id => "id",
            Self::XidPart => "part of a transaction's id",
            Self::Bits => "bit set",
        }
    }
}

/// The limits of one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value or similar data.
    pub value: u32,
    /// Bytes of names, media types and error texts.
    pub text: u32,
    /// Bytes of a listener's id; Java's have 16.
    pub id: u32,
    /// Bytes of a bit set: segments or a Bloom filter.
    pub bits: u32,
    /// Entries, keys or names per message.
    pub items: u32,
    /// Parameters of a header, type or task.
    pub params: u32,
    /// Bytes of a message.
    pub message: usize,
}

impl Limits {
    pub(crate) const fn of(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Key => self.key,
            Kind::Value => self.value,
            Kind::Text => self.text,
            Kind::Id => self.id,
            Kind::XidPart => 64,
            Kind::Bits => self.bits,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key: 64 * 1024,
            value: 64 * 1024 * 1024,
            text: 64 * 1024,
            id: 255,
            bits: 8 * 1024 * 1024,
            items: 1024 * 1024,
            params: 64,
            message: 128 * 1024 * 1024,
        }
    }
}
