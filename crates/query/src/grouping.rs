//! Groups of entities, as a query wants them: by what they are put together, what is counted in each, and which are told.

use crate::condition::Condition;
use crate::syntax::Function;
use crate::value::Scalar;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Grouping {
    /// So many columns of a row, the first ones, say which group it is in. Without any there is one group, also of nothing.
    pub(crate) keys: usize,
    pub(crate) aggregates: Vec<AggregateColumn>,
    /// Of a group's values, keys first: what has to hold of them.
    pub(crate) having: Condition,
    /// Which of them are told.
    pub(crate) selected: Vec<usize>,
    /// By which they are ordered, and whether downwards.
    pub(crate) order: Vec<(usize, bool)>,
}

/// Something that many rows become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AggregateColumn {
    pub(crate) function: Function,
    pub(crate) is_distinct: bool,
    /// The column; nothing for rows themselves.
    pub(crate) column: Option<usize>,
    /// What the column has.
    pub(crate) scalar: Scalar,
}

impl AggregateColumn {
    /// What comes of it.
    pub(crate) const fn becomes(self) -> Scalar {
        match (self.function, self.scalar) {
            (Function::Count, _) => Scalar::Long,
            (Function::Avg, _) | (Function::Sum, Scalar::Float | Scalar::Double) => Scalar::Double,
            (Function::Sum, _) => Scalar::Long,
            (Function::Min | Function::Max, scalar) => scalar,
        }
    }
}
