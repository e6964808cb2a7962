//! Errors in configurations.

use consort_group::config::{Position, StackConfig};
use consort_group::protocols::registry::ValueError;

use crate::alternatives::alternative;

/// Reported problems per file and stack. A file that is no stack would have one per element.
pub(crate) const PROBLEMS_MAX: usize = 100;

/// An unusable configuration. Displayed as `file:line:column: fault`, a line per problem.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{fault}{}", place(.file, *.position, .fault), lines(.others))]
pub struct ConfigError {
    /// The file, or the requested name. Of included files, the invalid one.
    pub file: Box<str>,
    /// The place in the file.
    pub position: Option<Position>,
    /// The fault.
    pub fault: Fault,
    /// Further problems.
    pub others: Box<[Self]>,
}

/// A fault of a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be read.
    #[error("cannot read {file}: {why}; stock stacks: {stock}")]
    Unreadable {
        /// The path.
        file: String,
        /// The system's error.
        why: Box<str>,
        /// The names of stock stacks.
        stock: Box<str>,
    },
    /// The file is not XML.
    #[error("this is not XML: {0}")]
    NotXml(String),
    /// The XML is no stack, or the stack cannot work.
    #[error("{0}")]
    Structure(String),
    /// A `${…}` cannot be replaced.
    #[error("attribute {attribute}: {why}")]
    Variable {
        /// The attribute.
        attribute: String,
        /// The reason.
        why: String,
    },
    /// Consort and JGroups lack the protocol.
    #[error("unknown protocol `{name}`{}", suggestion(*.nearest))]
    UnknownProtocol {
        /// The name without package.
        name: String,
        /// The most similar name.
        nearest: Option<&'static str>,
    },
    /// Consort lacks JGroups' protocol.
    #[error("protocol `{0}` of JGroups is not part of Consort{other}", other = alternative(.0))]
    NotInConsort(String),
    /// The protocol lacks the attribute.
    #[error("unknown attribute `{attribute}` of {protocol}{}", suggestion(*.nearest))]
    UnknownAttribute {
        /// The protocol.
        protocol: String,
        /// The name as written.
        attribute: String,
        /// The most similar name.
        nearest: Option<&'static str>,
    },
    /// The attribute's effect is missing here, and the value asks for it.
    #[error(
        "attribute {attribute} of {protocol}: `{value}` is refused, because it would have no effect; {alternative}"
    )]
    RefusedAttribute {
        /// The protocol.
        protocol: Box<str>,
        /// The attribute.
        attribute: Box<str>,
        /// The value as written.
        value: Box<str>,
        /// The alternative.
        alternative: &'static str,
    },
    /// The element is misplaced.
    #[error("unknown element `{element}` in {parent}{}", suggestion(*.nearest))]
    UnknownElement {
        /// The outer element.
        parent: String,
        /// The name as written.
        element: String,
        /// The most similar name.
        nearest: Option<&'static str>,
    },
    /// The number on the wire is another protocol's.
    #[error(
        "attribute id of {protocol}: `{id}` is not its number, which is {own} and cannot be changed here"
    )]
    OtherId {
        /// The protocol.
        protocol: String,
        /// The name as written.
        id: String,
        /// The protocol's own.
        own: i16,
    },
    /// A value does not fit.
    #[error(transparent)]
    Value(ValueError),
}

fn lines(others: &[ConfigError]) -> String {
    others.iter().map(|other| format!("\n{other}")).collect()
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn place(file: &str, position: Option<Position>, fault: &Fault) -> String {
    match (position, fault) {
        (Some(position), _) => format!("{file}:{position}: "),
        // The fault contains the file's name.
        (None, Fault::Unreadable { .. }) => String::new(),
        (None, _) => format!("{file}: "),
    }
}

impl ConfigError {
    pub(crate) fn new(file: &str, position: impl Into<Option<Position>>, fault: Fault) -> Self {
        Self { file: file.into(), position: position.into(), fault, others: Box::default() }
    }

    /// Combines problems into one error, if any, in order.
    pub fn combine(problems: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut problems = problems.into_iter();
        let mut first = problems.next()?;
        let mut others = Vec::from(std::mem::take(&mut first.others));
        for mut problem in problems {
            let further = std::mem::take(&mut problem.others);
            others.push(problem);
            others.extend(further);
        }
        first.others = others.into();
        Some(first)
    }

    pub(crate) fn at(stack: &StackConfig, position: Position, fault: Fault) -> Self {
        Self::new(stack.file(position), position, fault)
    }

    /// Makes an error for a refused value.
    pub fn value(stack: &StackConfig, error: ValueError) -> Self {
        Self::at(stack, error.position, Fault::Value(error))
    }
}
