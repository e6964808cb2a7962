use crate::condition::Condition;
use crate::syntax::Function;
use crate::value::Scalar;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Grouping {
    /// Leading columns of the group's key; without any there is one group, also without rows.
    pub(crate) keys: usize,
    pub(crate) aggregates: Vec<AggregateColumn>,
    /// The keys come first.
    pub(crate) having: Condition,
    pub(crate) selected: Vec<usize>,
    /// The flag is for descending order.
    pub(crate) order: Vec<(usize, bool)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AggregateColumn {
    pub(crate) function: Function,
    pub(crate) is_distinct: bool,
    /// `None` for `*`.
    pub(crate) column: Option<usize>,
    pub(crate) scalar: Scalar,
}

impl AggregateColumn {
    pub(crate) const fn becomes(self) -> Scalar {
        match (self.function, self.scalar) {
            (Function::Count, _) => Scalar::Long,
            (Function::Avg, _) | (Function::Sum, Scalar::Float | Scalar::Double) => Scalar::Double,
            (Function::Sum, _) => Scalar::Long,
            (Function::Min | Function::Max, scalar) => scalar,
        }
    }
}
