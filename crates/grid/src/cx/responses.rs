//! Responses to reads of other members. A read is small and its response can have 64 MB, so reads wait here,
//! without their values, while there is no room for frames to the member.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use consort_group::{Address, Time};

use crate::command::{Body, Call, Command};
use crate::config::CacheId;
use crate::cx::calls::CALLS_MAX;

/// As many as a member has under way. Callers repeat further reads.
pub(crate) const WAITING_READS_MAX: usize = CALLS_MAX;

/// For one member. Each read counts with its key and [`READ_BYTES`].
pub(crate) const WAITING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// For all members together.
pub(crate) const WAITING_BYTES_TOTAL_MAX: usize = 64 * 1024 * 1024;

const READ_BYTES: usize = 256;

/// The response to a smaller value costs less to repeat than to remember as sent.
const LARGE_BYTES: usize = 4 * 1024;

/// The time without a second large response, unless the view changes: the channel loses no message between
/// members of a view. Later the receiver may have dropped the response.
const ANSWERED_KEPT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Peer {
    waiting: VecDeque<Command>,
    waiting_bytes: usize,
    /// No read waits twice.
    numbers: BTreeSet<u64>,
    answered: BTreeMap<u64, Time>,
}

/// Bounded by the view.
#[derive(Default)]
pub(crate) struct Responses {
    peers: BTreeMap<Address, Peer>,
    waiting_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    Waits,
    IsRepeated,
    IsDropped,
}

impl Responses {
    pub(crate) fn hold(&mut self, from: &Address, cache: CacheId, topology: u32, call: &Call) -> Held {
        let bytes = call.key.len() + READ_BYTES;
        let total = self.waiting_bytes + bytes;
        let peer = self.peers.entry(from.clone()).or_default();
        if peer.numbers.contains(&call.number) {
            return Held::IsRepeated;
        }
        let has_room = peer.waiting.len() < WAITING_READS_MAX
            && peer.waiting_bytes + bytes <= WAITING_BYTES_MAX
            && total <= WAITING_BYTES_TOTAL_MAX;
        if !has_room {
            return Held::IsDropped;
        }
        // The key is a part of the frame, which is not kept for it.
        let call = Call { key: Bytes::copy_from_slice(&call.key), ..call.clone() };
        peer.numbers.insert(call.number);
        peer.waiting_bytes += bytes;
        self.waiting_bytes = total;
        peer.waiting.push_back(Command { cache, topology, body: Body::Call(call) });
        Held::Waits
    }

    pub(crate) fn next(&mut self, from: &Address) -> Option<Command> {
        let peer = self.peers.get_mut(from)?;
        let command = peer.waiting.pop_front()?;
        if let Body::Call(call) = &command.body {
            let bytes = call.key.len() + READ_BYTES;
            peer.numbers.remove(&call.number);
            peer.waiting_bytes -= bytes;
            self.waiting_bytes -= bytes;
        }
        Some(command)
    }

    /// Later reads wait behind those that wait.
    pub(crate) fn has_waiting(&self, from: &Address) -> bool {
        self.waiting_bytes > 0 && self.peers.get(from).is_some_and(|peer| !peer.waiting.is_empty())
    }

    /// All reads of the member below `finished` have ended.
    pub(crate) fn note_answered(
        &mut self,
        to: &Address,
        number: u64,
        bytes: usize,
        finished: u64,
        now: Time,
    ) {
        if bytes < LARGE_BYTES {
            return;
        }
        let answered = &mut self.peers.entry(to.clone()).or_default().answered;
        while answered
            .first_key_value()
            .is_some_and(|(first, _)| *first < finished || answered.len() >= WAITING_READS_MAX)
        {
            answered.pop_first();
        }
        answered.insert(number, now);
    }

    pub(crate) fn is_answered(&self, to: &Address, number: u64, now: Time) -> bool {
        let at = self.peers.get(to).and_then(|peer| peer.answered.get(&number));
        at.is_some_and(|at| now.since(*at) < ANSWERED_KEPT)
    }

    /// Responses may have been lost, and waiting reads of departed members are dropped.
    pub(crate) fn keep(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.peers.retain(|member, _| is_member(member));
        self.peers.values_mut().for_each(|peer| peer.answered.clear());
        self.waiting_bytes = self.peers.values().map(|peer| peer.waiting_bytes).sum();
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;

    use super::*;
    use crate::Flags;
    use crate::operation::{Action, ReadFrom};

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 0, least: n })
    }

    fn read(number: u64, key_len: usize) -> Call {
        let action = Action::Read(ReadFrom::Nearest);
        let key = Bytes::from(vec![0; key_len]);
        Call {
            number,
            is_repeated: false,
            flags: Flags::NONE,
            key,
            action,
            response_bytes_max: Call::ANY_BYTES,
        }
    }

    fn hold(responses: &mut Responses, from: u64, call: &Call) -> Held {
        responses.hold(&member(from), CacheId(1), 1, call)
    }

    #[test]
    fn repeated_read_does_not_wait_twice() {
        let mut responses = Responses::default();
        let held = [7, 7, 8].map(|number| hold(&mut responses, 1, &read(number, 1)));
        assert_eq!(held, [Held::Waits, Held::IsRepeated, Held::Waits]);
        assert_eq!(hold(&mut responses, 2, &read(7, 1)), Held::Waits, "it is another member's");
        let numbers = std::iter::from_fn(|| responses.next(&member(1))).map(|command| match command.body {
            Body::Call(call) => call.number,
            other => panic!("{other:?}"),
        });
        assert_eq!(numbers.collect::<Vec<u64>>(), [7, 8]);
        assert_eq!(
            hold(&mut responses, 1, &read(7, 1)),
            Held::Waits,
            "it is carried out, and does not wait any more"
        );
    }

    #[test]
    fn waiting_reads_are_bounded_in_bytes_for_each_member_and_for_all() {
        let mut responses = Responses::default();
        let key_len = 64 * 1024;
        for from in 0..8 {
            let waiting = (0..1_000)
                .take_while(|number| hold(&mut responses, from, &read(*number, key_len)) == Held::Waits);
            let bytes = waiting.count() * (key_len + READ_BYTES);
            assert!(bytes <= WAITING_BYTES_MAX, "{bytes}");
        }
        assert!(responses.waiting_bytes() <= WAITING_BYTES_TOTAL_MAX);
        assert!(responses.waiting_bytes() > WAITING_BYTES_TOTAL_MAX / 2);
        responses.keep(|_| false);
        assert_eq!(responses.waiting_bytes(), 0);
    }

    #[test]
    fn large_response_is_remembered_until_its_time_or_the_view_is_over() {
        let mut responses = Responses::default();
        let (to, now) = (member(1), Time::ZERO);
        responses.note_answered(&to, 3, LARGE_BYTES - 1, 0, now);
        responses.note_answered(&to, 4, LARGE_BYTES, 0, now);
        assert_eq!([3, 4].map(|number| responses.is_answered(&to, number, now)), [false, true]);
        assert!(!responses.is_answered(&to, 4, now + ANSWERED_KEPT));
        responses.note_answered(&to, 9, LARGE_BYTES, 5, now);
        assert_eq!([4, 9].map(|number| responses.is_answered(&to, number, now)), [false, true]);
        responses.keep(|_| true);
        assert!(!responses.is_answered(&to, 9, now));
    }
}
