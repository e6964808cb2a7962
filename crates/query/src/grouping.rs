//! The grouping of a query: keys, aggregates, HAVING, selection and order.

use crate::condition::Condition;
use crate::syntax::Function;
use crate::value::Scalar;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Grouping {
    /// The number of leading columns that form the group's key. Without any there is one group, also without
    /// rows.
    pub(crate) keys: usize,
    pub(crate) aggregates: Vec<AggregateColumn>,
    /// The HAVING condition on a group's values, keys first.
    pub(crate) having: Condition,
    /// The indices of the selected values.
    pub(crate) selected: Vec<usize>,
    /// The sort keys, each with whether it is descending.
    pub(crate) order: Vec<(usize, bool)>,
}

/// An aggregate of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AggregateColumn {
    pub(crate) function: Function,
    pub(crate) is_distinct: bool,
    /// The column; `None` for `*`.
    pub(crate) column: Option<usize>,
    /// The column's type.
    pub(crate) scalar: Scalar,
}

impl AggregateColumn {
    /// The type of the result.
    pub(crate) const fn becomes(self) -> Scalar {
        match (self.function, self.scalar) {
            (Function::Count, _) => Scalar::Long,
            (Function::Avg, _) | (Function::Sum, Scalar::Float | Scalar::Double) => Scalar::Double,
            (Function::Sum, _) => Scalar::Long,
            (Function::Min | Function::Max, scalar) => scalar,
        }
    }
}
