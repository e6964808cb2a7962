//! Members whose connection ended as it does when a process dies.
//!
//! The host of a process that ends closes its sockets: the peer reads the end of the stream, without the word that precedes
//! a close in order. A firewall or another host in between cannot do that, it resets. A mark in
//! a suspicion reports an end that another member has read. It is in the payload, which JGroups and older versions ignore.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::{Address, Payload, PhysAddr, Time};

/// An end says nothing about a suspicion that comes later: the member may have closed the connection and be well.
const MEANINGFUL_FOR: Duration = Duration::from_secs(2);

const MARKED: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndedStream {
    at: Time,
    /// The member's server socket, if its address is certain.
    pub(super) listener: Option<PhysAddr>,
}

/// The caller notes members of the view only.
#[derive(Default)]
pub(super) struct EndedStreams(BTreeMap<Address, EndedStream>);

impl EndedStreams {
    pub(super) fn note(&mut self, now: Time, member: Address, listener: Option<PhysAddr>) {
        let before = self.0.get(&member).and_then(|known| known.listener);
        self.0.insert(member, EndedStream { at: now, listener: listener.or(before) });
    }

    pub(super) fn get(&self, now: Time, member: &Address) -> Option<EndedStream> {
        self.0.get(member).copied().filter(|ended| now.since(ended.at) <= MEANINGFUL_FOR)
    }

    pub(super) fn forget(&mut self, member: &Address) {
        self.0.remove(member);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Address) -> bool) {
        self.0.retain(|member, _| keep(member));
    }

    /// The payload of a suspicion of these members, with a mark per member.
    pub(super) fn marks(&self, now: Time, members: &[Address]) -> Payload {
        let marks: Vec<u8> =
            members.iter().map(|member| if self.get(now, member).is_some() { MARKED } else { 0 }).collect();
        if marks.contains(&MARKED) { Payload::Bytes(Some(marks.into())) } else { Payload::Empty }
    }
}

/// Returns the marked ones of a suspicion's members.
pub(super) fn marked<'m>(members: &'m [Address], marks: Option<&Bytes>) -> impl Iterator<Item = &'m Address> {
    let marks = marks.filter(|marks| marks.len() == members.len()).cloned().unwrap_or_default();
    members.iter().zip(marks).filter(|(_, mark)| *mark == MARKED).map(|(member, _)| member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{member, phys};

    fn bytes(payload: &Payload) -> Option<&Bytes> {
        match payload {
            Payload::Bytes(bytes) => bytes.as_ref(),
            _ => None,
        }
    }

    #[test]
    fn marks_name_the_members_whose_streams_have_ended() {
        let mut ended = EndedStreams::default();
        let members = [member(1), member(2), member(3)];
        assert_eq!(ended.marks(Time::ZERO, &members), Payload::Empty);
        ended.note(Time::ZERO, member(2), Some(phys(2)));
        let payload = ended.marks(Time::ZERO, &members);
        assert_eq!(marked(&members, bytes(&payload)).collect::<Vec<_>>(), [&member(2)]);
        assert_eq!(marked(&members[..2], bytes(&payload)).count(), 0, "marks of other members");
        assert_eq!(marked(&members, None).count(), 0, "JGroups sets none");
    }

    #[test]
    fn end_of_a_stream_means_nothing_later_and_keeps_the_listener() {
        let mut ended = EndedStreams::default();
        ended.note(Time::ZERO, member(2), Some(phys(2)));
        let at = Time::ZERO + Duration::from_secs(1);
        ended.note(at, member(2), None);
        let until = at + MEANINGFUL_FOR;
        assert_eq!(ended.get(until, &member(2)).and_then(|ended| ended.listener), Some(phys(2)));
        assert_eq!(ended.get(until + Duration::from_millis(1), &member(2)), None);
    }
}
