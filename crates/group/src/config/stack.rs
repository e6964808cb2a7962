//! A stack as its description names it, transport first; where it was written is kept for error messages.

use std::fmt;

/// A place in a file, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A protocol with its attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProtocolConfig {
    /// The name as written, such as `pbcast.NAKACK2`.
    pub name: String,
    /// Name, value and place of every attribute.
    pub attributes: Vec<(String, String, Position)>,
    /// Where it stands.
    pub position: Position,
}

impl ProtocolConfig {
    /// The name without package.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// An attribute's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(own, _, _)| own == name).map(|(_, value, _)| value.as_str())
    }
}

/// A stack's description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackConfig {
    /// The file, for messages.
    pub source: String,
    /// The protocols, transport first.
    pub protocols: Vec<ProtocolConfig>,
}
