//! From a condition to a search that finds at least all entities for which it holds.

use super::indexed_type::IndexedType;
use super::ordered::{NULL, VALUE, encoded};
use crate::condition::{Condition, Predicate, Test};
use crate::field_reader::SharedSlot;
use crate::plan::Plan;
use crate::syntax::Comparison;

/// A search in an index of fields. Values are bytes in the order of the values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Search {
    /// Entities with this value.
    Equal {
        /// The field's number.
        field: u16,
        /// The value.
        value: Vec<u8>,
    },
    /// Entities with a value in a range.
    Range {
        /// The field's number.
        field: u16,
        /// The least value.
        from: Vec<u8>,
        /// The end.
        to: RangeEnd,
    },
    /// Entities that all of these find; not empty.
    All(Vec<Self>),
    /// Entities that one of these finds.
    Any(Vec<Self>),
}

/// The end of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeEnd {
    /// The last value.
    Value(Vec<u8>),
    /// The last one of the values that begin with this.
    Prefix(Vec<u8>),
}

/// `None` if the condition may hold for entities that the index does not find.
pub(super) fn search(of: &IndexedType, plan: &Plan) -> Option<Search> {
    let mut slots = vec![None; plan.slots];
    plan.reader.shared_slots(&of.reader, &mut slots);
    Searcher { of, slots }.condition(&plan.condition)
}

struct Searcher<'s> {
    of: &'s IndexedType,
    /// The fields of the plan's slots.
    slots: Vec<Option<SharedSlot>>,
}

impl Searcher<'_> {
    fn condition(&self, condition: &Condition) -> Option<Search> {
        match condition {
            Condition::Constant(true) => None,
            Condition::Constant(false) => Some(Search::Any(Vec::new())),
            Condition::Test(test) => Some(self.test(test)?.into_search()),
            Condition::Any(any) => {
                Some(Search::Any(any.iter().map(|one| self.condition(one)).collect::<Option<_>>()?))
            }
            Condition::All(all) => self.all(all),
        }
    }

    /// Entities have to be found by each part, so that a part without an index can be left out.
    fn all(&self, all: &[Condition]) -> Option<Search> {
        let (mut searches, mut tests): (Vec<Search>, Vec<FieldTest>) = (Vec::new(), Vec::new());
        for one in all {
            let Condition::Test(test) = one else {
                searches.extend(self.condition(one));
                continue;
            };
            let Some(test) = self.test(test) else { continue };
            // One value has to pass all tests of a field that has only one.
            let same = tests.iter_mut().find(|other| other.field == test.field && other.is_single);
            match same {
                Some(same) => same.restrict(test),
                None => tests.push(test),
            }
        }
        searches.extend(tests.into_iter().map(FieldTest::into_search));
        match searches.len() {
            0 => None,
            1 => searches.pop(),
            _ => Some(Search::All(searches)),
        }
    }

    fn test(&self, Test { slot, is_negated, of }: &Test) -> Option<FieldTest> {
        let SharedSlot { own, scalar } = self.slots.get(*slot).copied().flatten()?;
        let field = self.of.first + own as u16;
        let is_single = *self.of.is_single.get(own)?;
        let range = |from, to| Some(FieldTest { field, is_single, from, to });
        let end = || RangeEnd::Prefix(VALUE.to_vec());
        match (of, is_negated) {
            (Predicate::Null, false) => range(NULL.to_vec(), RangeEnd::Value(NULL.to_vec())),
            (Predicate::Null, true) => range(VALUE.to_vec(), end()),
            // Nearly all values differ from one.
            (_, true) => None,
            (Predicate::Compare(comparison, value), false) => {
                if value.scalar() != scalar {
                    return None;
                }
                let value = encoded(Some(value));
                match comparison {
                    Comparison::Equal => range(value.clone(), RangeEnd::Value(value)),
                    Comparison::Less | Comparison::LessOrEqual => {
                        range(VALUE.to_vec(), RangeEnd::Value(value))
                    }
                    Comparison::Greater | Comparison::GreaterOrEqual => range(value, end()),
                }
            }
            (Predicate::Like(like), false) => {
                let prefix = encoded(Some(&like.prefix()));
                range(prefix.clone(), RangeEnd::Prefix(prefix))
            }
        }
    }
}

/// A range of a field's values.
struct FieldTest {
    field: u16,
    is_single: bool,
    from: Vec<u8>,
    to: RangeEnd,
}

impl FieldTest {
    fn restrict(&mut self, other: Self) {
        self.from = std::mem::take(&mut self.from).max(other.from);
        let is_less = match (&other.to, &self.to) {
            (RangeEnd::Value(one), RangeEnd::Value(other)) => one < other,
            // A prefix ends behind the values that begin with it.
            (RangeEnd::Prefix(one), RangeEnd::Prefix(other)) => {
                !other.starts_with(one) && (one.starts_with(other) || one < other)
            }
            (RangeEnd::Value(one), RangeEnd::Prefix(other)) => one.starts_with(other) || one < other,
            (RangeEnd::Prefix(one), RangeEnd::Value(other)) => !other.starts_with(one) && one < other,
        };
        if is_less {
            self.to = other.to;
        }
    }

    fn into_search(self) -> Search {
        let Self { field, from, to, .. } = self;
        match to {
            RangeEnd::Value(to) if to == from => Search::Equal { field, value: from },
            to => Search::Range { field, from, to },
        }
    }
}
