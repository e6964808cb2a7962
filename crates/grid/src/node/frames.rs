//! What other members send: commands, as many as they had to say at a time.

use bytes::Bytes;
use consort_group::{Address, Time};

use super::Node;
use crate::AHEAD_MAX;
use crate::command::Command;
use crate::wire::{FrameError, FrameReader};

impl Node {
    /// A frame has come.
    ///
    /// # Errors
    ///
    /// If it cannot be read; the commands before the place were handled. That its member speaks another version is told with the
    /// first of its frames.
    pub fn handle_frame(&mut self, now: Time, from: &Address, frame: Bytes) -> Result<(), FrameError> {
        self.cx.now = now;
        self.cx.silence.heard(from, now);
        let mut result = self.read_frame(from, frame);
        match result {
            Ok(()) => {}
            // It is told once.
            Err(FrameError::OtherVersion { theirs, .. }) if !self.meet_foreigner(from, theirs) => {
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
            let end = reader.next_into(&mut commands, AHEAD_MAX);
            self.look_ahead(&commands);
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

    /// Commands that have come together wait for memory together: all that are of the first one's cache.
    fn look_ahead(&self, commands: &[Command]) {
        let [first, _, ..] = commands else { return };
        let Some(cache) = self.caches.get(&first.cache) else { return };
        let of_cache = commands.iter().filter(|command| command.cache == first.cache);
        let keys = of_cache.filter_map(|command| command.body.key());
        cache.container.look_ahead(keys.map(|key| (cache.config.segment_of(key), &key[..])));
    }
}
