//! A query as it is written, before anybody knows whether there is such a type.

/// A query that was read: see [`Statement::parse`].
#[derive(Clone, PartialEq, Debug)]
pub struct Statement {
    /// The query, for the places of errors.
    pub(crate) text: String,
    pub(crate) is_delete: bool,
    /// What is told; nothing for the entities themselves.
    pub(crate) select: Vec<Term>,
    /// `SELECT DISTINCT`: rows that are the same are told once.
    pub(crate) is_distinct: bool,
    pub(crate) from: From,
    pub(crate) filter: Option<Expr>,
    pub(crate) group: Vec<Term>,
    pub(crate) having: Option<Expr>,
    pub(crate) order: Vec<Order>,
}

/// The type, and other names for it and its fields.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct From {
    pub(crate) at: usize,
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    /// Paths, and what each is called from there on.
    pub(crate) joins: Vec<(Path, Option<String>)>,
}

/// Names with dots between them, and the place of the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    pub(crate) at: usize,
    pub(crate) names: Vec<String>,
}

impl Path {
    pub(crate) fn text(&self) -> String {
        self.names.join(".")
    }
}

/// Something of an entity, or of several.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Term {
    Path(Path),
    Aggregate(Aggregate),
    Version(Path),
    /// How well an entity fits, which nobody knows without an index.
    Score(Path),
}

impl Term {
    pub(crate) const fn at(&self) -> usize {
        match self {
            Self::Path(path) | Self::Version(path) | Self::Score(path) => path.at,
            Self::Aggregate(aggregate) => aggregate.at,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Aggregate {
    pub(crate) at: usize,
    pub(crate) function: Function,
    pub(crate) is_distinct: bool,
    /// Of what; nothing for `*`.
    pub(crate) of: Option<Path>,
}

/// What many values become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Function {
    Count,
    Sum,
    Avg,
    Min,
    Max,
}

impl Function {
    pub(crate) const ALL: [Self; 5] = [Self::Count, Self::Sum, Self::Avg, Self::Min, Self::Max];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Count => "COUNT",
            Self::Sum => "SUM",
            Self::Avg => "AVG",
            Self::Min => "MIN",
            Self::Max => "MAX",
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Expr {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Constant(bool),
    Test(Term, Test),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Test {
    Compare(Comparison, Literal),
    Between(Literal, Literal),
    In(Vec<Literal>),
    /// With what makes a letter of what follows it.
    Like(Literal, Option<char>),
    Null,
}

/// How a value lies to another. Not to be equal is the opposite of being equal, which holds where there is no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Literal {
    pub(crate) at: usize,
    pub(crate) of: LiteralSource,
}

/// What a value is said by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LiteralSource {
    /// As it stands there, whatever it is: what it is beside says what it becomes.
    Text(String),
    Parameter(String),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Order {
    pub(crate) by: Term,
    pub(crate) is_descending: bool,
}
