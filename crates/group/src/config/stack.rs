use std::fmt;

/// A position in a stack's file, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Position {
    /// The file's index: 0 is the stack's own, 1 the first included one ([`StackConfig::file`]).
    pub file: u16,
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
    /// Name, value and position of each attribute.
    pub attributes: Vec<(String, String, Position)>,
    /// The element's position.
    pub position: Position,
}

impl ProtocolConfig {
    /// Returns the name without package.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// Returns an attribute's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(own, _, _)| own == name).map(|(_, value, _)| value.as_str())
    }
}

/// A stack's description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackConfig {
    /// The file name, for error messages.
    pub source: String,
    /// The included files, in order.
    pub included: Vec<String>,
    /// The protocols, transport first.
    pub protocols: Vec<ProtocolConfig>,
}

impl StackConfig {
    /// Returns a position's file name.
    pub fn file(&self, position: Position) -> &str {
        let included = usize::from(position.file).checked_sub(1).and_then(|nth| self.included.get(nth));
        included.unwrap_or(&self.source)
    }
}
