use bytes::BufMut;

use super::commands::{FETCHED, put_item};
use super::frame::LongCommand;
use crate::Version;
use crate::command::Fetched;
use crate::config::CacheId;

pub(crate) struct FetchedItems {
    command: LongCommand,
    start: usize,
    count: u32,
}

impl FetchedItems {
    pub(crate) fn begin(cache: CacheId, topology: u32, room: usize) -> Self {
        let mut command = LongCommand::begin(cache, topology, room + 1024);
        command.out().put_u8(FETCHED);
        let start = command.out().len();
        command.out().put_u32(0);
        Self { command, start, count: 0 }
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8], version: Version) {
        put_item(self.command.out(), key, value, version);
        self.count += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    pub(crate) fn mark(&mut self) -> (u32, usize) {
        (self.count, self.command.out().len())
    }

    pub(crate) fn cut(&mut self, (count, length): (u32, usize)) {
        self.count = count;
        self.command.out().truncate(length);
    }

    /// `fetched` has all fields but the items.
    pub(crate) fn end(mut self, fetched: &Fetched) -> LongCommand {
        let (start, count) = (self.start, self.count);
        let out = self.command.out();
        out[start..start + 4].copy_from_slice(&count.to_be_bytes());
        fetched.put_rest(out);
        self.command
    }
}
