//! The syntax tree of a query, before names are resolved.

/// A parsed query: see [`Statement::parse`].
#[derive(Clone, PartialEq, Debug)]
pub struct Statement {
    /// For the positions of errors.
    pub(crate) text: String,
    pub(crate) is_delete: bool,
    /// Empty for entities.
    pub(crate) select: Vec<Term>,
    /// Equal rows are returned once.
    pub(crate) is_distinct: bool,
    pub(crate) from: From,
    pub(crate) filter: Option<Expr>,
    pub(crate) group: Vec<Term>,
    pub(crate) having: Option<Expr>,
    pub(crate) order: Vec<Order>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct From {
    pub(crate) at: usize,
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    pub(crate) joins: Vec<(Path, Option<String>)>,
}

/// The position is that of the first name.
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

/// Over an entity or over several.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Term {
    Path(Path),
    Aggregate(Aggregate),
    Version(Path),
    /// The score is unknown without an index.
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
    /// `None` for `*`.
    pub(crate) of: Option<Path>,
}

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
    /// With the escape character.
    Like(Literal, Option<char>),
    Null,
}

/// `<>` is the negation of `=`; it holds without a value.
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

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LiteralSource {
    /// The compared field's type determines the conversion.
    Text(String),
    Parameter(String),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Order {
    pub(crate) by: Term,
    pub(crate) is_descending: bool,
}
