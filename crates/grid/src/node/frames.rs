//! The frames of other members.

use bytes::Bytes;
use consort_group::{Address, Time};

use super::Caches;
use crate::PREFETCH_MAX;
use crate::codec::FrameError;
use crate::command::Command;
use crate::node::Node;
use crate::wire::FrameReader;

impl Node {
    /// Handles another member's frame.
    ///
    /// # Errors
    ///
    /// The frame cannot be read; earlier commands were handled. Another version of the wire protocol is
    /// reported with its member's first frame.
    pub fn handle_frame(&mut self, now: Time, from: &Address, frame: Bytes) -> Result<(), FrameError> {
        self.cx.now = now;
        self.cx.silence.heard(from, now);
        let mut result = self.read_frame(from, frame);
        match result {
            Ok(()) => {}
            // The version is reported once.
            Err(FrameError::OtherVersion { theirs, .. }) if !self.note_incompatible_member(from, theirs) => {
                result = Ok(());
            }
            Err(_) => self.cx.counters.malformed += 1,
        }
        self.work();
        result
    }

    fn read_frame(&mut self, from: &Address, frame: Bytes) -> Result<(), FrameError> {
        let mut reader = FrameReader::new(frame)?;
        self.cx.watermarks.heard(from, reader.finished);
        let mut commands = std::mem::take(&mut self.commands);
        let end = loop {
            let end = reader.next_into(&mut commands, PREFETCH_MAX);
            prefetch(&self.caches, &commands);
            commands.drain(..).for_each(|command| self.handle(from, command));
            if !matches!(end, Ok(true)) {
                break end;
            }
        };
        self.commands = commands;
        end?;
        self.cx.counters.unknown += reader.unknown;
        Ok(())
    }
}

fn prefetch(caches: &Caches, commands: &[Command]) {
    let [first, _, ..] = commands else { return };
    let Some(cache) = caches.get(&first.cache) else { return };
    let of_cache = commands.iter().filter(|command| command.cache == first.cache);
    let keys = of_cache.filter_map(|command| command.body.key());
    cache.shared.container.prefetch(keys.map(|key| (cache.shared.config.segment_of(key), &key[..])));
}
