//! The items of an iteration. For a reader that borrows items they stay as received: bytes of another member,
//! or references to this member's entries. Owned items are built on the member's own thread, while an entry
//! is in the CPU's cache.

use std::fmt;
use std::ops::Range;

use bytes::{Buf, Bytes};

use crate::Version;
use crate::codec::{FrameError, read_number};

/// Two lines of the CPU's cache. A copy takes less time than a reference count, and keeps no shared memory
/// alive.
const COPIED_MAX: usize = 128;

/// An item of an iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// The key.
    pub key: Bytes,
    /// The value or the transform's result; empty for keys only.
    pub value: Bytes,
    /// The version.
    pub version: Version,
}

/// A borrowed item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value or the transform's result; empty for keys only.
    pub value: &'a [u8],
    /// The version.
    pub version: Version,
}

impl Item {
    #[inline]
    fn as_ref(&self) -> ItemRef<'_> {
        ItemRef { key: &self.key, value: &self.value, version: self.version }
    }
}

impl ItemRef<'_> {
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        self.key.len().max(self.value.len()) <= COPIED_MAX
    }

    #[inline]
    pub(crate) fn to_item(self) -> Item {
        let (key, value) = (Box::<[u8]>::from(self.key), Box::<[u8]>::from(self.value));
        Item { key: key.into(), value: value.into(), version: self.version }
    }

    #[inline]
    fn kept_of(self, bytes: &Bytes) -> Item {
        Item { key: part(bytes, self.key), value: part(bytes, self.value), version: self.version }
    }
}

/// Adds a copy in its final, reserved place, with boxed parts in registers. A moved copy is read right after
/// its writing, in larger pieces, and waits for all earlier writes, also from uncached memory: a tenth of an
/// iteration's time.
#[inline]
pub(crate) fn push_copy(items: &mut Vec<Item>, item: ItemRef<'_>) {
    items.extend(std::iter::once_with(|| item.to_item()));
}

#[derive(Clone)]
pub(crate) enum ItemStorage {
    Inline { bytes: Bytes, key_len: u32, version: Version },
    OutOfLine(Item),
}

impl ItemStorage {
    fn as_ref(&self) -> ItemRef<'_> {
        match self {
            Self::Inline { bytes, key_len, version } => {
                let (key, value) = bytes.split_at(*key_len as usize);
                ItemRef { key, value, version: *version }
            }
            Self::OutOfLine(item) => item.as_ref(),
        }
    }

    pub(crate) fn into_item(self) -> Item {
        match self {
            Self::Inline { .. } if self.as_ref().is_small() => self.as_ref().to_item(),
            Self::Inline { bytes: mut value, key_len, version } => {
                let key = part(&value, &value[..key_len as usize]);
                value.advance(key_len as usize);
                Item { key, value, version }
            }
            Self::OutOfLine(item) => item,
        }
    }
}

/// Items of one member, in order.
#[derive(Clone)]
pub struct Items(Form);

#[derive(Clone)]
enum Form {
    /// To be borrowed.
    Here(Vec<ItemStorage>),
    /// Owned items.
    Made(Vec<Item>),
    /// Validated, in their wire form.
    Came { bytes: Bytes, count: usize },
}

impl Default for Items {
    fn default() -> Self {
        Self(Form::Here(Vec::new()))
    }
}

impl From<Vec<ItemStorage>> for Items {
    fn from(items: Vec<ItemStorage>) -> Self {
        Self(Form::Here(items))
    }
}

impl From<Vec<Item>> for Items {
    fn from(items: Vec<Item>) -> Self {
        Self(Form::Made(items))
    }
}

impl Items {
    pub(crate) fn read(from: &mut Bytes, count: usize) -> Result<Self, FrameError> {
        let mut rest = &from[..];
        for _ in 0..count {
            Parts::read(&mut rest)?;
        }
        let length = from.len() - rest.len();
        Ok(Self(Form::Came { bytes: from.split_to(length), count }))
    }

    /// Returns the number of items.
    pub const fn len(&self) -> usize {
        match &self.0 {
            Form::Here(items) => items.len(),
            Form::Made(items) => items.len(),
            Form::Came { count, .. } => *count,
        }
    }

    /// Whether there are no items.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the borrowed items.
    pub fn iter(&self) -> ItemRefs<'_> {
        ItemRefs(match &self.0 {
            Form::Here(items) => Refs::Here(items.iter()),
            Form::Made(items) => Refs::Made(items.iter()),
            Form::Came { bytes, count } => Refs::Came { rest: bytes, left: *count },
        })
    }

    pub(crate) fn materialize(self) -> Self {
        let Form::Came { bytes, count } = &self.0 else { return self };
        let mut made = Vec::with_capacity(*count);
        for item in &self {
            if item.is_small() {
                push_copy(&mut made, item);
            } else {
                made.push(item.kept_of(bytes));
            }
        }
        made.into()
    }

    pub(crate) fn append(&mut self, more: Vec<Item>) {
        if more.is_empty() {
            return;
        }
        *self = std::mem::take(self).into_iter().chain(more).collect::<Vec<_>>().into();
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        match &mut self.0 {
            Form::Here(items) => items.truncate(length),
            Form::Made(items) => items.truncate(length),
            Form::Came { count, .. } => *count = length.min(*count),
        }
    }

    pub(crate) fn take_out(&mut self, part: Range<usize>, is_wanted: impl Fn(&[u8]) -> bool) -> usize {
        *self = std::mem::take(self).materialize();
        match &mut self.0 {
            Form::Here(items) => items.extract_if(part, |item| !is_wanted(item.as_ref().key)).count(),
            Form::Made(items) => items.extract_if(part, |item| !is_wanted(&item.key)).count(),
            Form::Came { .. } => 0,
        }
    }
}

impl PartialEq for Items {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other)
    }
}

impl Eq for Items {}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl<'a> IntoIterator for &'a Items {
    type Item = ItemRef<'a>;
    type IntoIter = ItemRefs<'a>;

    fn into_iter(self) -> ItemRefs<'a> {
        self.iter()
    }
}

impl IntoIterator for Items {
    type Item = Item;
    type IntoIter = IntoItems;

    fn into_iter(self) -> IntoItems {
        IntoItems(match self.0 {
            Form::Here(items) => Remaining::Here { items: items.into_iter(), lent: None },
            Form::Made(items) => Remaining::Made { items: items.into_iter(), lent: None },
            Form::Came { bytes, count } => Remaining::Came { bytes, at: 0, left: count },
        })
    }
}

/// Borrowed items from [`Items::iter`] and [`IntoItems::rest`].
#[derive(Clone)]
pub struct ItemRefs<'a>(Refs<'a>);

#[derive(Clone)]
enum Refs<'a> {
    Here(std::slice::Iter<'a, ItemStorage>),
    Made(std::slice::Iter<'a, Item>),
    Came { rest: &'a [u8], left: usize },
}

impl fmt::Debug for ItemRefs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<'a> Iterator for ItemRefs<'a> {
    type Item = ItemRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<ItemRef<'a>> {
        match &mut self.0 {
            Refs::Here(items) => items.next().map(ItemStorage::as_ref),
            Refs::Made(items) => items.next().map(Item::as_ref),
            Refs::Came { rest, left } => {
                *left = left.checked_sub(1)?;
                let all = *rest;
                let Parts { key, value, version, .. } = Parts::read(rest).ok()?;
                Some(ItemRef { key: &all[key.0..key.1], value: &all[value.0..value.1], version })
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.0 {
            Refs::Here(items) => items.len(),
            Refs::Made(items) => items.len(),
            Refs::Came { left, .. } => *left,
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for ItemRefs<'_> {}

/// Owned items, which can also be lent.
pub struct IntoItems(Remaining);

enum Remaining {
    Here { items: std::vec::IntoIter<ItemStorage>, lent: Option<ItemStorage> },
    Made { items: std::vec::IntoIter<Item>, lent: Option<Item> },
    Came { bytes: Bytes, at: usize, left: usize },
}

impl Default for IntoItems {
    fn default() -> Self {
        Items::default().into_iter()
    }
}

impl fmt::Debug for IntoItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rest().fmt(f)
    }
}

impl IntoItems {
    /// Returns the remaining borrowed items.
    pub fn rest(&self) -> ItemRefs<'_> {
        ItemRefs(match &self.0 {
            Remaining::Here { items, .. } => Refs::Here(items.as_slice().iter()),
            Remaining::Made { items, .. } => Refs::Made(items.as_slice().iter()),
            Remaining::Came { bytes, at, left } => Refs::Came { rest: &bytes[*at..], left: *left },
        })
    }

    /// Returns the next borrowed item.
    #[inline]
    pub fn next_ref(&mut self) -> Option<ItemRef<'_>> {
        match &mut self.0 {
            Remaining::Here { items, lent } => {
                *lent = items.next();
                lent.as_ref().map(ItemStorage::as_ref)
            }
            Remaining::Made { items, lent } => {
                *lent = items.next();
                lent.as_ref().map(Item::as_ref)
            }
            Remaining::Came { bytes, at, left } => {
                let Parts { key, value, version, .. } = next_parts(bytes, at, left)?;
                Some(ItemRef { key: &bytes[key.0..key.1], value: &bytes[value.0..value.1], version })
            }
        }
    }
}

impl Iterator for IntoItems {
    type Item = Item;

    #[inline]
    fn next(&mut self) -> Option<Item> {
        match &mut self.0 {
            Remaining::Here { items, .. } => items.next().map(ItemStorage::into_item),
            Remaining::Made { items, .. } => items.next(),
            Remaining::Came { bytes, at, left } => {
                let Parts { key, value, version, .. } = next_parts(bytes, at, left)?;
                let (key, value) = (&bytes[key.0..key.1], &bytes[value.0..value.1]);
                Some(ItemRef { key, value, version }.kept_of(bytes))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest().size_hint()
    }
}

#[inline]
fn part(bytes: &Bytes, part: &[u8]) -> Bytes {
    if part.len() <= COPIED_MAX { Bytes::copy_from_slice(part) } else { bytes.slice_ref(part) }
}

#[inline]
fn next_parts(bytes: &[u8], at: &mut usize, left: &mut usize) -> Option<Parts> {
    *left = left.checked_sub(1)?;
    let from = *at;
    let parts = Parts::read(&mut &bytes[from..]).ok()?;
    *at += parts.length;
    let whole = |(begin, end)| (from + begin, from + end);
    Some(Parts { key: whole(parts.key), value: whole(parts.value), ..parts })
}

impl ExactSizeIterator for IntoItems {}

struct Parts {
    key: (usize, usize),
    value: (usize, usize),
    version: Version,
    length: usize,
}

impl Parts {
    #[inline]
    fn read(rest: &mut &[u8]) -> Result<Self, FrameError> {
        let all = *rest;
        let mut at = 0;
        let mut part = || {
            let (length, taken) = read_number(&all[at..])?;
            let (begin, left) = (at + taken, all.len() - at - taken);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if left < length {
                return Err(FrameError::Short { what: "an item", wanted: length, left });
            }
            at = begin + length;
            Ok((begin, at))
        };
        let (key, value) = (part()?, part()?);
        let (version, taken) = read_number(&all[at..])?;
        let length = at + taken;
        *rest = &all[length..];
        Ok(Self { key, value, version: Version(version), length })
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;
    use crate::codec::Wire;

    fn item(n: u64) -> Item {
        Item {
            key: n.to_be_bytes().to_vec().into(),
            value: vec![n as u8; n as usize * 50].into(),
            version: Version(n << 20),
        }
    }

    fn write(Item { key, value, version }: Item, out: &mut BytesMut) {
        [key, value].iter().for_each(|part| part.put(out));
        version.put(out);
    }

    fn forms(count: u64) -> [Items; 3] {
        let here = |item: Item| {
            let (key_len, version) = (item.key.len() as u32, item.version);
            let bytes = [&item.key[..], &item.value].concat().into();
            if key_len.is_multiple_of(2) {
                ItemStorage::Inline { bytes, key_len, version }
            } else {
                ItemStorage::OutOfLine(item)
            }
        };
        let mut came = BytesMut::new();
        (0..count).for_each(|n| write(item(n), &mut came));
        came.put_slice(b"behind");
        let mut came = came.freeze();
        let came_items = Items::read(&mut came, count as usize).unwrap();
        assert_eq!(came, "behind");
        let made: Vec<Item> = (0..count).map(item).collect();
        [(0..count).map(item).map(here).collect::<Vec<_>>().into(), made.into(), came_items]
    }

    #[test]
    fn small_items_are_copied_and_large_items_share_their_buffer() {
        let mut bytes = BytesMut::new();
        [1, 6].into_iter().for_each(|n| write(item(n), &mut bytes));
        let came = bytes.freeze();
        let is_part = |taken: &Bytes| came.as_ptr_range().contains(&taken.as_ptr());
        let taken: Vec<Item> = Items::read(&mut came.clone(), 2).unwrap().into_iter().collect();
        let parts: Vec<_> = taken.iter().map(|item| (is_part(&item.key), is_part(&item.value))).collect();
        assert_eq!(parts, [(false, false), (false, true)]);
        for (length, is_copied) in [(COPIED_MAX, true), (COPIED_MAX + 1, false)] {
            let bytes = Bytes::from(vec![7; 3 + length]);
            let place = bytes.as_ptr_range();
            let item = ItemStorage::Inline { bytes, key_len: 3, version: Version(1) }.into_item();
            assert_eq!((&item.key[..], item.value.len()), (&[7; 3][..], length));
            assert_eq!(place.contains(&item.value.as_ptr()), !is_copied, "{length}");
        }
    }

    #[test]
    fn all_forms_have_the_same_items_whichever_way_they_are_taken() {
        for items in forms(7) {
            assert_eq!((items.len(), items.is_empty()), (7, false));
            let refs: Vec<Version> = items.iter().map(|item| item.version).collect();
            assert_eq!(refs, (0..7).map(|n| item(n).version).collect::<Vec<_>>());
            let mut taken = items.clone().into_iter();
            assert_eq!(taken.next(), Some(item(0)));
            assert_eq!((taken.len(), taken.rest().len()), (6, 6));
            assert!(
                taken.rest().zip(1..).all(|(lies, n)| lies.key == item(n).key && lies.value == item(n).value)
            );
            assert_eq!(taken.next_ref().map(ItemRef::to_item), Some(item(1)));
            assert_eq!((taken.next(), taken.len()), (Some(item(2)), 4));
            assert_eq!(taken.next_ref().map(ItemRef::to_item), Some(item(3)));
            assert_eq!(taken.by_ref().collect::<Vec<_>>(), (4..7).map(item).collect::<Vec<_>>());
            assert_eq!(taken.next_ref(), None);
        }
        let [here, made, came] = forms(7);
        assert_eq!([&here, &made], [&came, &came]);
        assert_ne!(here, forms(6)[2]);
        assert_eq!(came.materialize(), made);
    }

    #[test]
    fn items_are_taken_out_of_the_part_that_is_meant() {
        for mut items in forms(9) {
            assert_eq!(items.take_out(2..7, |key| key[7] % 2 == 0), 2);
            items.truncate(6);
            let left: Vec<u8> = items.iter().map(|item| item.key[7]).collect();
            assert_eq!(left, [0, 1, 2, 4, 6, 7]);
        }
        for mut items in forms(3) {
            items.truncate(1);
            assert_eq!((items.len(), items.into_iter().count()), (1, 1));
        }
    }

    #[test]
    fn an_item_that_is_cut_off_is_an_error() {
        let mut whole = BytesMut::new();
        write(item(3), &mut whole);
        let whole = whole.freeze();
        assert!(Items::read(&mut whole.clone(), 1).is_ok());
        for length in 0..whole.len() {
            assert!(Items::read(&mut whole.slice(..length), 1).is_err(), "{length}");
        }
        assert!(Items::read(&mut Bytes::from_static(&[0xff; 30]), 1).is_err());
    }
}
