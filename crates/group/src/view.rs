//! Views: the members of the group, in an order on which all members agree.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use crate::{Address, AddressBook};

/// A view's number and creator, ordered by the number, and by the creator where numbers are equal.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ViewId {
    /// The creator.
    pub creator: Address,
    /// The number, growing with every view.
    pub id: u64,
}

impl Ord for ViewId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.id.cmp(&other.id).then_with(|| self.creator.cmp(&other.creator))
    }
}

impl PartialOrd for ViewId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Ordered members; the first is coordinator. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    id: ViewId,
    members: Arc<[Address]>,
    subgroups: Option<Arc<[Self]>>,
}

impl View {
    /// Creates a regular view.
    pub fn new(id: ViewId, members: impl Into<Arc<[Address]>>) -> Self {
        Self { id, members: members.into(), subgroups: None }
    }

    /// Creates a view that unites subgroups.
    pub fn merged(id: ViewId, members: impl Into<Arc<[Address]>>, subgroups: impl Into<Arc<[Self]>>) -> Self {
        Self { id, members: members.into(), subgroups: Some(subgroups.into()) }
    }

    /// Returns the id.
    pub const fn id(&self) -> &ViewId {
        &self.id
    }

    /// Returns the members in order.
    pub fn members(&self) -> &[Address] {
        &self.members
    }

    /// Returns the united views.
    pub fn subgroups(&self) -> Option<&[Self]> {
        self.subgroups.as_deref()
    }

    /// Returns whether it is a merge view.
    pub const fn is_merge(&self) -> bool {
        self.subgroups.is_some()
    }

    /// Returns whether views since `previous` were missed: numbers are consecutive.
    pub fn skips_views_after(&self, previous: &Self) -> bool {
        self.id.id > previous.id.id.saturating_add(1)
    }

    /// Returns the view without its subgroups.
    #[must_use]
    pub fn without_subgroups(&self) -> Self {
        Self { id: self.id.clone(), members: self.members.clone(), subgroups: None }
    }

    /// Returns the first member.
    pub fn coordinator(&self) -> Option<&Address> {
        self.members.first()
    }

    /// Returns whether `member` is in it.
    pub fn contains(&self, member: &Address) -> bool {
        self.members.contains(member)
    }

    /// Returns the rank, from 0.
    pub fn rank(&self, member: &Address) -> Option<usize> {
        self.members.iter().position(|other| other == member)
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the next member, wrapping; `None` if alone or absent.
    pub fn neighbour(&self, member: &Address) -> Option<&Address> {
        let rank = self.rank(member)?;
        if self.len() < 2 {
            return None;
        }
        self.members.get((rank + 1) % self.len())
    }

    /// Formats as JGroups does: `[A|1] (2) [A, B]`, and `MergeView::[A|3] (2) [A, B], 2 subgroups: …`.
    pub fn display(&self, book: &AddressBook) -> String {
        let mut text = String::new();
        if self.is_merge() {
            text.push_str("MergeView::");
        }
        self.write_plain(&mut text, book);
        if let Some(subgroups) = self.subgroups() {
            let _ = write!(text, ", {} subgroups: ", subgroups.len());
            for (nth, subgroup) in subgroups.iter().enumerate() {
                if nth > 0 {
                    text.push_str(", ");
                }
                subgroup.write_plain(&mut text, book);
            }
        }
        text
    }

    fn write_plain(&self, text: &mut String, book: &AddressBook) {
        let names: Vec<String> = self.members.iter().map(|member| book.display(member)).collect();
        let _ = write!(
            text,
            "[{}|{}] ({}) [{}]",
            book.display(&self.id.creator),
            self.id.id,
            self.len(),
            names.join(", ")
        );
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display(&AddressBook::default()))
    }
}

/// A view as a difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeltaView {
    /// The new view's id.
    pub id: ViewId,
    /// The view it changes.
    pub reference: ViewId,
    /// Members that are gone.
    pub left: Vec<Address>,
    /// Members that are new.
    pub joined: Vec<Address>,
}

/// The id of a merge.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MergeId {
    /// The merge leader.
    pub initiator: Address,
    /// The leader's counter.
    pub id: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{member, view};

    /// S000-32
    #[test]
    fn views_read_as_in_jgroups() {
        let mut book = AddressBook::default();
        for (n, name) in [(1, "A"), (2, "B"), (3, "C")] {
            book.learn(&member(n), Some(name), None);
        }
        assert_eq!(view(0, &[1]).display(&book), "[A|0] (1) [A]");
        assert_eq!(view(3, &[2, 1, 3]).display(&book), "[B|3] (3) [B, A, C]");
        let merged = View::merged(
            ViewId { creator: member(1), id: 7 },
            [member(1), member(3)],
            [view(5, &[1]), view(6, &[3])],
        );
        assert_eq!(
            merged.display(&book),
            "MergeView::[A|7] (2) [A, C], 2 subgroups: [A|5] (1) [A], [C|6] (1) [C]"
        );
    }
}
