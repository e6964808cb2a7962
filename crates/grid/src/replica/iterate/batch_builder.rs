//! The items of an answer to an iteration, written once: into the frame for a remote reader, or as they are
//! for a local one.

use bytes::Bytes;
use consort_group::Address;

use crate::Version;
use crate::command::{Body, Fetched};
use crate::container::Visited;
use crate::cx::Cx;
use crate::items::{Item, ItemRef, ItemStorage, push_copy};
use crate::replica::Shared;
use crate::wire::FetchedItems;

pub(crate) enum BatchBuilder {
    Here(LocalBatch),
    Elsewhere(FetchedItems),
}

#[derive(Default)]
pub(crate) struct LocalBatch {
    /// The reader takes these.
    made: Vec<Item>,
    /// The reader reads these in place.
    items: Vec<ItemStorage>,
    is_owned: bool,
    /// The keys that do not share their value's memory, in one allocation.
    keys: Vec<u8>,
    /// The index of each such key's item, and its end in `keys`.
    ends: Vec<(usize, usize)>,
}

pub(crate) enum Value<'a> {
    None,
    Of(Visited<'a>),
    Made(Bytes),
}

impl Value<'_> {
    pub(crate) fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Of(visited) => visited.value(),
            Self::Made(made) => made,
        }
    }

    fn together(&self) -> Option<Bytes> {
        if let Self::Of(visited) = self { visited.contiguous_bytes() } else { None }
    }

    fn is_passive(&self) -> bool {
        matches!(self, Self::Of(visited) if visited.is_passive())
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::None => Bytes::new(),
            Self::Of(visited) => visited.entry().value,
            Self::Made(made) => made,
        }
    }
}

pub(crate) struct Checkpoint {
    count: usize,
    written: (u32, usize),
}

impl BatchBuilder {
    pub(crate) fn elsewhere(shared: &Shared, room: usize) -> Self {
        Self::Elsewhere(FetchedItems::begin(shared.id, shared.topology_id(), room))
    }

    pub(crate) fn here(items: usize, is_owned: bool) -> Self {
        let (items, made) = if is_owned { (items, 0) } else { (0, items) };
        let (items, made) = (Vec::with_capacity(items), Vec::with_capacity(made));
        Self::Here(LocalBatch { made, items, is_owned, ..LocalBatch::default() })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(gathered) => gathered.made.len() + gathered.items.len(),
            Self::Elsewhere(written) => written.len(),
        }
    }

    pub(crate) fn push(&mut self, key: &[u8], value: Value<'_>, version: Version) {
        match self {
            Self::Here(gathered) => gathered.push(key, value, version),
            Self::Elsewhere(written) => written.push(key, value.as_slice(), version),
        }
    }

    pub(crate) fn mark(&mut self) -> Checkpoint {
        let written = match self {
            Self::Here(_) => (0, 0),
            Self::Elsewhere(written) => written.mark(),
        };
        Checkpoint { count: self.len(), written }
    }

    pub(crate) fn cut(&mut self, mark: &Checkpoint) {
        match self {
            Self::Here(LocalBatch { made, items, keys, ends, .. }) => {
                made.truncate(mark.count);
                items.truncate(mark.count);
                ends.truncate(ends.partition_point(|(nth, _)| *nth < mark.count));
                keys.truncate(ends.last().map_or(0, |(_, end)| *end));
            }
            Self::Elsewhere(written) => written.cut(mark.written),
        }
    }

    pub(crate) fn send(self, shared: &Shared, cx: &mut Cx, reader: &Address, fetched: Fetched) {
        match self {
            Self::Here(gathered) => shared.send(cx, reader, Body::Fetched(gathered.with(fetched))),
            Self::Elsewhere(written) => cx.send_long(reader, written.end(&fetched)),
        }
    }

    pub(crate) fn with(self, fetched: Fetched) -> Fetched {
        match self {
            Self::Here(gathered) => gathered.with(fetched),
            Self::Elsewhere(_) => fetched,
        }
    }
}

impl LocalBatch {
    fn push(&mut self, key: &[u8], value: Value<'_>, version: Version) {
        if self.is_owned { self.hold(key, value, version) } else { self.make(key, value, version) }
    }

    fn make(&mut self, key: &[u8], value: Value<'_>, version: Version) {
        let item = ItemRef { key, value: value.as_slice(), version };
        // Small items are copied here, before `together` counts a reference to their allocation.
        if item.is_small() && !value.is_passive() {
            push_copy(&mut self.made, item);
            return;
        }
        self.made.push(match value.together() {
            Some(bytes) => ItemStorage::Inline { bytes, key_len: key.len() as u32, version }.into_item(),
            None => Item { key: Bytes::copy_from_slice(key), value: value.into_bytes(), version },
        });
    }

    fn hold(&mut self, key: &[u8], value: Value<'_>, version: Version) {
        self.items.push(match value.together() {
            Some(bytes) => ItemStorage::Inline { bytes, key_len: key.len() as u32, version },
            None => {
                self.keys.extend_from_slice(key);
                self.ends.push((self.items.len(), self.keys.len()));
                ItemStorage::OutOfLine(Item { key: Bytes::new(), value: value.into_bytes(), version })
            }
        });
    }

    fn with(mut self, fetched: Fetched) -> Fetched {
        let keys = Bytes::from(self.keys);
        let mut from = 0;
        for (nth, end) in self.ends {
            if let ItemStorage::OutOfLine(item) = &mut self.items[nth] {
                item.key = keys.slice(from..end);
            }
            from = end;
        }
        let items = if self.is_owned { self.items.into() } else { self.made.into() };
        Fetched { items, ..fetched }
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Time;

    use super::*;
    use crate::command::{Command, Part, PartEnd};
    use crate::config::CacheId;
    use crate::container::{ChunkLimits, Cursor};
    use crate::wire::{FrameReader, FrameWriter};
    use crate::{Container, ContainerSettings, Entry, Segment};

    const SEGMENT: Segment = Segment(0);
    const ENTRIES: usize = 1_000;

    fn container() -> Container {
        let settings = ContainerSettings { segment_count: 1, bound: None, is_backed: false, is_shared: true };
        let container = Container::new(&settings, 1);
        container.own(SEGMENT);
        for n in 0..ENTRIES as u64 {
            let entry = Entry::new(vec![n as u8; 100].into(), Version::new(1, n + 1), Time::ZERO);
            container.put(SEGMENT, &n.to_be_bytes(), entry, Time::ZERO).unwrap();
        }
        container
    }

    fn fill(container: &Container, answer: &mut BatchBuilder) {
        let all = ChunkLimits { entries_max: usize::MAX, bytes_max: usize::MAX };
        let push = |visited: Visited<'_>| answer.push(visited.key(), Value::Of(visited), visited.version());
        assert_eq!(container.visit(SEGMENT, Cursor::START, all, Time::ZERO, push), Ok(None));
    }

    #[test]
    fn s004_6_items_are_written_once_where_they_are_sent_from_and_come_back() {
        let container = container();
        let mut answer = BatchBuilder::Elsewhere(FetchedItems::begin(CacheId(7), 5, ENTRIES * 120));
        let used = allocation_counter::measure(|| fill(&container, &mut answer));
        assert_eq!(used.count_total, 0, "{used:?}");
        let mark = answer.mark();
        answer.push(b"taken back", Value::None, Version::NONE);
        answer.cut(&mark);

        let mut fetched = Fetched::nothing(3, 4);
        fetched.parts.push(Part { segment: SEGMENT, count: ENTRIES as u32, end: PartEnd::Complete });
        let BatchBuilder::Elsewhere(written) = answer else { unreachable!("it was made so") };
        let mut frames = FrameWriter::default();
        frames.push_long(written.end(&fetched));
        let mut reader = FrameReader::new(frames.next(0).unwrap()).unwrap();

        let mut here = BatchBuilder::Here(LocalBatch::default());
        fill(&container, &mut here);
        let body = Body::Fetched(here.with(fetched));
        assert_eq!(reader.next(), Ok(Some(Command { cache: CacheId(7), topology: 5, body: body.clone() })));
        assert_eq!(reader.next(), Ok(None));

        // The frame reads like that of any other command.
        frames.push(CacheId(7), 5, &body);
        let mut reader = FrameReader::new(frames.next(0).unwrap()).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().body, body);
    }

    #[test]
    fn items_of_a_reader_here_have_their_keys_whatever_their_values_are_and_however_many_are_taken_back() {
        let container = container();
        for (made_until, is_owned) in (0..6).flat_map(|until| [(until, false), (until, true)]) {
            let mut answer = BatchBuilder::here(0, is_owned);
            let push = |answer: &mut BatchBuilder, nth: usize| {
                let one = ChunkLimits { entries_max: 1, bytes_max: usize::MAX };
                let at = Cursor { slot: nth as u32, before: u64::MAX - 1 };
                let give = |visited: Visited<'_>| {
                    let made = nth < made_until;
                    let value =
                        if made { Value::Made(Bytes::from_static(b"made")) } else { Value::Of(visited) };
                    answer.push(visited.key(), value, visited.version());
                };
                container.visit(SEGMENT, at, one, Time::ZERO, give).unwrap();
            };
            (0..4).for_each(|nth| push(&mut answer, nth));
            let mark = answer.mark();
            (4..8).for_each(|nth| push(&mut answer, nth));
            answer.cut(&mark);
            (5..9).for_each(|nth| push(&mut answer, nth));
            let items = answer.with(Fetched::nothing(3, 4)).items;
            let keys: Vec<u64> =
                items.iter().map(|item| u64::from_be_bytes(item.key[..].try_into().unwrap())).collect();
            assert_eq!(keys, [0, 1, 2, 3, 5, 6, 7, 8]);
            for (item, key) in items.iter().zip(keys) {
                let value = if (key as usize) < made_until {
                    vec![b'm', b'a', b'd', b'e']
                } else {
                    vec![key as u8; 100]
                };
                assert_eq!(item.value, value, "{key} of {made_until}");
            }
        }
    }
}
