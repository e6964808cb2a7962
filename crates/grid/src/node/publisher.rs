//! The owner's side of iterations: entries of the segments that are asked for, up to a limit, straight from the
//! container. An owner keeps nothing between two requests: where to go on is in the request, so there is nothing to be
//! left behind by readers that vanish.

use bytes::Bytes;

use consort_group::Address;

use super::cache::Cache;
use super::cx::Cx;
use crate::command::{Body, Fetch, Fetched, Part, PartEnd};
use crate::container::{ChunkLimits, Cursor};
use crate::publication::{Item, What};
use crate::{SegmentState as ContainerState, Version};

/// Bytes of items in an answer, beyond which no more are added: large values must not fill a member's memory, however
/// many items a batch has.
const FETCH_BYTES: usize = 1024 * 1024;

/// Entries that are looked at for one answer, whatever is filtered: nobody waits behind a longer walk.
const LOOKS_MAX: usize = 16_384;

impl Cache {
    pub(super) fn handle_fetch(&mut self, cx: &mut Cx, from: &Address, fetch: Fetch) {
        let fetched = self.fetch(cx, fetch);
        self.send(cx, from, Body::Fetched(fetched));
    }

    /// What a request gives here.
    pub(super) fn fetch(&self, cx: &Cx, fetch: Fetch) -> Fetched {
        let Fetch { iteration, nth, segments, cursor, items_max, what, transform } = fetch;
        let mut fetched = Fetched {
            iteration,
            nth,
            parts: Vec::with_capacity(segments.len()),
            items: Vec::new(),
            cursor: None,
            is_unknown: false,
        };
        let function = match &transform {
            None => None,
            Some(transform) => match self.transforms.get(&transform.name) {
                Some(function) => Some((function.clone(), transform.arguments.clone())),
                None => {
                    fetched.is_unknown = true;
                    return fetched;
                }
            },
        };
        let mut cursor = cursor.map(|(slot, before)| Cursor { slot: slot as u32, before });
        let (mut bytes, mut looks) = (0, 0);
        for segment in segments {
            let is_read = self.topology().is_some_and(|topology| {
                usize::from(segment.0) < topology.epochs.len()
                    && topology.read_owners().owners(segment).any(|owner| *owner == cx.local)
            });
            if !is_read || self.container.state(segment) != ContainerState::Owned {
                fetched.parts.push(Part { segment, count: 0, end: PartEnd::Refused });
                cursor = None;
                continue;
            }
            let mut at = cursor.take().unwrap_or(Cursor::START);
            let items_before = fetched.items.len();
            let mut count = 0;
            let end = loop {
                let room = items_max as usize - fetched.items.len();
                if room == 0 || bytes >= FETCH_BYTES || looks >= LOOKS_MAX {
                    fetched.cursor = Some((at.slot.into(), at.before));
                    break PartEnd::More;
                }
                let limits =
                    ChunkLimits { entries_max: room.min(LOOKS_MAX - looks), bytes_max: FETCH_BYTES - bytes };
                let next = self.container.visit(segment, at, limits, cx.now, |key, entry| {
                    looks += 1;
                    let version = entry.version;
                    let value = match (&function, what) {
                        (Some((function, arguments)), _) => match function(key, &entry, arguments) {
                            Some(value) => value,
                            None => return,
                        },
                        (None, What::Entries) => entry.value,
                        (None, _) => Bytes::new(),
                    };
                    bytes += key.len() + value.len();
                    count += 1;
                    if what != What::Count {
                        fetched.items.push(item(key, value, version));
                    }
                });
                match next {
                    Ok(Some(next)) => at = next,
                    Ok(None) => break PartEnd::Complete,
                    Err(_) => {
                        fetched.items.truncate(items_before);
                        count = 0;
                        break PartEnd::Refused;
                    }
                }
            };
            fetched.parts.push(Part { segment, count, end });
            if end == PartEnd::More {
                break;
            }
        }
        fetched
    }
}

fn item(key: &[u8], value: Bytes, version: Version) -> Item {
    Item { key: Bytes::copy_from_slice(key), value, version }
}
