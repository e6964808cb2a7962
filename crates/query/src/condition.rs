//! Conditions on an entity or a group, also negated ones, hold if they hold for one value of a multi-valued field; a field
//! without a value has one null value.

use std::cmp::Ordering;

use crate::field_reader::Slot;
use crate::like::Like;
use crate::limits::DEPTH_MAX;
use crate::plan_codec::{below, count, put_number, put_text, put_value, text, value};
use crate::syntax::Comparison;
use crate::value::Value;
use crate::work::{Exceeded, Work};

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Condition {
    Constant(bool),
    All(Vec<Self>),
    Any(Vec<Self>),
    Test(Box<Test>),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Test {
    pub(crate) slot: usize,
    pub(crate) is_negated: bool,
    pub(crate) of: Predicate,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Predicate {
    Null,
    Compare(Comparison, Value<'static>),
    Like(Like),
}

impl Predicate {
    fn holds(&self, value: Option<&Value<'_>>, work: &mut Work) -> Result<bool, Exceeded> {
        Ok(match (self, value) {
            (Self::Null, value) => {
                work.spend(1)?;
                value.is_none()
            }
            (Self::Compare(comparison, constant), Some(value)) => {
                work.spend_bytes(value.len().min(constant.len()))?;
                let order = value.order(constant);
                match comparison {
                    Comparison::Equal => order == Ordering::Equal,
                    Comparison::Less => order == Ordering::Less,
                    Comparison::LessOrEqual => order != Ordering::Greater,
                    Comparison::Greater => order == Ordering::Greater,
                    Comparison::GreaterOrEqual => order != Ordering::Less,
                }
            }
            (Self::Like(like), Some(Value::Text(text))) => like.holds(text, work)?,
            _ => {
                work.spend(1)?;
                false
            }
        })
    }
}

impl Test {
    fn holds(&self, slots: &[Slot<'_>], work: &mut Work) -> Result<bool, Exceeded> {
        for value in slots.get(self.slot).into_iter().flatten() {
            if self.of.holds(value.as_ref(), work)? != self.is_negated {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Condition {
    /// A conjunction without constant parts.
    pub(crate) fn all(all: Vec<Self>) -> Self {
        Self::joined(all, true)
    }

    pub(crate) fn any(any: Vec<Self>) -> Self {
        Self::joined(any, false)
    }

    fn joined(all: Vec<Self>, is_all: bool) -> Self {
        if all.contains(&Self::Constant(!is_all)) {
            return Self::Constant(!is_all);
        }
        let mut all: Vec<Self> = all.into_iter().filter(|one| !matches!(one, Self::Constant(_))).collect();
        match (all.len(), all.pop()) {
            (_, None) => Self::Constant(is_all),
            (1, Some(one)) => one,
            (_, Some(last)) => {
                all.push(last);
                if is_all { Self::All(all) } else { Self::Any(all) }
            }
        }
    }

    pub(crate) fn holds(&self, slots: &[Slot<'_>], work: &mut Work) -> Result<bool, Exceeded> {
        let (all, is_all) = match self {
            Self::Constant(is) => return Ok(*is),
            Self::Test(test) => return test.holds(slots, work),
            Self::All(all) => (all, true),
            Self::Any(any) => (any, false),
        };
        for one in all {
            if one.holds(slots, work)? != is_all {
                return Ok(!is_all);
            }
        }
        Ok(is_all)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let joined = |kind: u8, all: &Vec<Self>, out: &mut Vec<u8>| {
            out.push(kind);
            put_number(out, all.len());
            all.iter().for_each(|one| one.write(out));
        };
        match self {
            Self::Constant(is) => out.extend([0, (*is).into()]),
            Self::All(all) => joined(1, all, out),
            Self::Any(any) => joined(2, any, out),
            Self::Test(test) => {
                let Test { slot, is_negated, of } = &**test;
                out.push(3);
                put_number(out, *slot);
                out.push((*is_negated).into());
                match of {
                    Predicate::Null => out.push(0),
                    Predicate::Compare(comparison, value) => {
                        out.push(1 + *comparison as u8);
                        put_value(out, Some(value));
                    }
                    Predicate::Like(like) => {
                        out.push(6);
                        put_text(out, like.text());
                    }
                }
            }
        }
    }

    pub(crate) fn from(from: &mut &[u8], slots: usize) -> Option<Self> {
        // Each bracket holds one condition, which may again be a conjunction or a disjunction.
        Self::from_depth(from, slots, 3 * DEPTH_MAX)
    }

    fn from_depth(from: &mut &[u8], slots: usize, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        let joined = |from: &mut &[u8]| {
            (0..count(from)?).map(|_| Self::from_depth(from, slots, depth)).collect::<Option<Vec<_>>>()
        };
        Some(match below(from, 4)? {
            0 => Self::Constant(below(from, 2)? == 1),
            1 => Self::All(joined(from)?),
            2 => Self::Any(joined(from)?),
            _ => {
                let (slot, is_negated) = (below(from, slots)?, below(from, 2)? == 1);
                const COMPARISONS: [Comparison; 5] = [
                    Comparison::Equal,
                    Comparison::Less,
                    Comparison::LessOrEqual,
                    Comparison::Greater,
                    Comparison::GreaterOrEqual,
                ];
                let of = match below(from, 7)? {
                    0 => Predicate::Null,
                    6 => Predicate::Like(Like::read(text(from)?, None).ok()?),
                    comparison => Predicate::Compare(*COMPARISONS.get(comparison - 1)?, value(from)??),
                };
                Self::Test(Box::new(Test { slot, is_negated, of }))
            }
        })
    }
}
