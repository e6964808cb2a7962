use std::cmp::Ordering;
use std::collections::BTreeSet;

use bytes::Bytes;

use crate::grouping::AggregateColumn;
use crate::row::Cell;
use crate::syntax::Function;
use crate::value::{Scalar, Value};

#[derive(Clone, Debug)]
pub(crate) enum Total {
    Count(i64),
    /// In wrapped form.
    Distinct(BTreeSet<Bytes>),
    Whole(Option<i64>),
    Broken(Sum),
    Mean(Sum),
    Best(Ordering, Option<Value<'static>>),
}

/// With about twice the precision of plain sums, as in Java's streams.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sum {
    count: u64,
    sum: f64,
    lost: f64,
    /// For infinite values, which the compensation would lose.
    simple: f64,
}

impl Sum {
    fn add(&mut self, value: f64, count: u64) {
        self.count += count;
        self.simple += value;
        let wanted = value - self.lost;
        let sum = self.sum + wanted;
        self.lost = (sum - self.sum) - wanted;
        self.sum = sum;
    }

    fn sum(&self) -> Option<f64> {
        let sum = self.sum - self.lost;
        let is_lost = sum.is_nan() && self.simple.is_infinite();
        (self.count > 0).then_some(if is_lost { self.simple } else { sum })
    }
}

impl Total {
    pub(crate) fn of(counted: &AggregateColumn) -> Self {
        match (counted.function, counted.scalar) {
            (Function::Count, _) if counted.is_distinct => Self::Distinct(BTreeSet::new()),
            (Function::Count, _) => Self::Count(0),
            (Function::Avg, _) => Self::Mean(Sum::default()),
            (Function::Sum, Scalar::Float | Scalar::Double) => Self::Broken(Sum::default()),
            (Function::Sum, _) => Self::Whole(None),
            (Function::Min, _) => Self::Best(Ordering::Less, None),
            (Function::Max, _) => Self::Best(Ordering::Greater, None),
        }
    }

    /// The rows may have no column; returns the additional bytes held.
    pub(crate) fn add(&mut self, count: u32, cell: Option<&Cell>) -> usize {
        let Some(cell) = cell else {
            if let Self::Count(all) = self {
                *all += i64::from(count);
            }
            return 0;
        };
        cell.iter().filter(|value| !value.is_empty()).map(|value| self.add_value(count, value)).sum()
    }

    fn add_value(&mut self, count: u32, wrapped: &Bytes) -> usize {
        match self {
            Self::Count(all) => *all += i64::from(count),
            Self::Distinct(values) => {
                const EACH: usize = 64;
                // Copied, because a slice would keep the whole message in memory.
                let is_new = !values.contains(wrapped) && values.insert(Bytes::copy_from_slice(wrapped));
                return if is_new { EACH + wrapped.len() } else { 0 };
            }
            total => {
                let Some(value) = Value::read(wrapped.clone()) else { return 0 };
                total.add_read(count, value);
            }
        }
        0
    }

    fn add_read(&mut self, count: u32, value: Value<'static>) {
        let whole = match value {
            Value::Int(number) => i64::from(number),
            Value::Long(number) => number,
            _ => 0,
        };
        let broken = match value {
            Value::Float(number) => f64::from(number),
            Value::Double(number) => number,
            _ => whole as f64,
        };
        match self {
            Self::Whole(sum) => {
                *sum = Some(sum.unwrap_or(0).wrapping_add(whole.wrapping_mul(i64::from(count))));
            }
            Self::Broken(sum) | Self::Mean(sum) => sum.add(broken * f64::from(count), count.into()),
            Self::Best(wanted, best) => {
                if best.as_ref().is_none_or(|best| value.order(best) == *wanted) {
                    *best = Some(value);
                }
            }
            Self::Count(_) | Self::Distinct(_) => {}
        }
    }

    pub(crate) fn value(self) -> Option<Value<'static>> {
        match self {
            Self::Count(count) => Some(Value::Long(count)),
            Self::Distinct(values) => Some(Value::Long(i64::try_from(values.len()).unwrap_or(i64::MAX))),
            Self::Whole(sum) => sum.map(Value::Long),
            Self::Broken(sum) => sum.sum().map(Value::Double),
            Self::Mean(sum) => sum.sum().map(|total| Value::Double(total / sum.count as f64)),
            Self::Best(_, best) => best,
        }
    }
}
