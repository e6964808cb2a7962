//! What can be wrong with a configuration, with the place where it is.

use consort_group::config::{Position, StackConfig};
use consort_group::protocols::registry::ValueError;

/// A configuration cannot be used. Displayed as `file:line:column: what`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{fault}", place(.file, *.position, .fault))]
pub struct ConfigError {
    /// The file, or the name under which it was asked for. If one file includes another, the one that is wrong.
    pub file: String,
    /// Where in it, if it is about a place.
    pub position: Option<Position>,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be read.
    #[error("cannot read {file}: {why}; stacks that come along: {stock}")]
    Unreadable {
        /// The path that was tried.
        file: String,
        /// What the system said.
        why: String,
        /// The names that are always there.
        stock: String,
    },
    /// The file is not XML.
    #[error("this is not XML: {0}")]
    NotXml(String),
    /// The file is XML, but not a stack; or the stack cannot work as it is put together.
    #[error("{0}")]
    Structure(String),
    /// A `${…}` in an attribute cannot be replaced.
    #[error("attribute {attribute}: {why}")]
    Variable {
        /// The attribute.
        attribute: String,
        /// Why.
        why: String,
    },
    /// Nobody knows a protocol of this name.
    #[error("unknown protocol `{name}`{}", suggestion(*.nearest))]
    UnknownProtocol {
        /// The name as written, without package.
        name: String,
        /// The known name that is nearest to it.
        nearest: Option<&'static str>,
    },
    /// JGroups has this protocol and Consort has not.
    #[error("protocol `{0}` of JGroups is not part of Consort")]
    NotInConsort(String),
    /// The protocol has no attribute of this name.
    #[error("unknown attribute `{attribute}` of {protocol}{}", suggestion(*.nearest))]
    UnknownAttribute {
        /// The protocol.
        protocol: String,
        /// The attribute's name as written.
        attribute: String,
        /// The known name that is nearest to it.
        nearest: Option<&'static str>,
    },
    /// An element that cannot stand where it does.
    #[error("unknown element `{element}` in {parent}{}", suggestion(*.nearest))]
    UnknownElement {
        /// The element around it.
        parent: String,
        /// The name as written.
        element: String,
        /// The known name that is nearest to it.
        nearest: Option<&'static str>,
    },
    /// A protocol is to use another number on the wire than its own.
    #[error(
        "attribute id of {protocol}: `{id}` is not its number, which is {own} and cannot be changed here"
    )]
    OtherId {
        /// The protocol.
        protocol: String,
        /// The number as written.
        id: String,
        /// The protocol's own.
        own: i16,
    },
    /// An attribute's value does not fit.
    #[error(transparent)]
    Value(ValueError),
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn place(file: &str, position: Option<Position>, fault: &Fault) -> String {
    match (position, fault) {
        (Some(position), _) => format!("{file}:{position}: "),
        // It names the file itself.
        (None, Fault::Unreadable { .. }) => String::new(),
        (None, _) => format!("{file}: "),
    }
}

impl ConfigError {
    pub(crate) fn new(file: &str, position: impl Into<Option<Position>>, fault: Fault) -> Self {
        Self { file: file.to_owned(), position: position.into(), fault }
    }

    /// About a place in a stack whose files have been read.
    pub(crate) fn at(stack: &StackConfig, position: Position, fault: Fault) -> Self {
        Self::new(stack.file(position), position, fault)
    }

    /// A value in this stack that a protocol did not take.
    pub fn value(stack: &StackConfig, error: ValueError) -> Self {
        Self::at(stack, error.position, Fault::Value(error))
    }
}
