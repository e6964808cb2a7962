//! STABLE: finds the multicasts that all members have, for senders to purge.

use std::time::Duration;

use crate::config::Properties;
use crate::{
    Address, Answer, Control, Cx, Digest, DropReason, Event, Flags, HeaderBody, HeaderIds, Message,
    MessageBatch, Object, Pass, Payload, ProbeOut, Protocol, ProtocolId, Query, StableHeader, TimerKey,
    Transient, View,
};

crate::properties! {
    /// STABLE's properties.
    StableConfig {
        /// The mean time between two gossips of a member. The time is random between one and two of it, so
        /// that members do not gossip together. 0 = only `max_bytes` counts.
        desired_avg_gossip: Duration = Duration::from_secs(20),
        /// The received bytes after which a member gossips. Limits the memory of senders. 0 = only time
        /// counts.
        max_bytes: crate::config::Bytes = crate::config::Bytes(2_000_000),
    }
}

const GOSSIP: TimerKey = TimerKey(1);
const RESUME: TimerKey = TimerKey(2);

/// The STABLE layer.
pub struct Stable {
    config: StableConfig,
    bytes: u64,
    is_suspended: bool,
    voted: Vec<Address>,
    combined: Option<Digest>,
    gossips: u64,
    rounds: u64,
}

impl Stable {
    /// Creates the layer.
    pub fn new(config: StableConfig) -> Self {
        Self {
            config,
            bytes: 0,
            is_suspended: false,
            voted: Vec::new(),
            combined: None,
            gossips: 0,
            rounds: 0,
        }
    }

    fn reset_round(&mut self) {
        self.voted.clear();
        self.combined = None;
    }

    fn arm_gossip(&self, cx: &mut Cx<'_>) {
        let mean = self.config.desired_avg_gossip;
        if !mean.is_zero() {
            let after = cx.rng().duration(mean, mean.saturating_mul(2));
            cx.arm(GOSSIP, after);
        }
    }

    fn count(&mut self, cx: &mut Cx<'_>, bytes: usize) {
        self.bytes += bytes as u64;
        let most = self.config.max_bytes.0;
        if most > 0 && self.bytes >= most && !self.is_suspended {
            self.bytes = 0;
            self.gossip(cx);
        }
    }

    fn gossip(&mut self, cx: &mut Cx<'_>) {
        if self.is_suspended {
            return;
        }
        let Some(view) = cx.view().cloned() else { return };
        let Some(Answer::Digest(digest)) = cx.ask(&Query::Digest) else { return };
        let Some(coordinator) = view.coordinator().filter(|_| digest.has_members(view.members())) else {
            return;
        };
        self.gossips += 1;
        if cx.is_local(coordinator) {
            let local = cx.local().clone();
            return self.vote(cx, &local, &digest, &view);
        }
        let header = StableHeader { is_stability: false, view_id: Some(view.id().clone()) };
        let message = Message::object(Some(coordinator.clone()), Object::Digest { digest, is_mutable: true })
            .with_flags(Flags::OOB | Flags::NO_RELIABILITY | Flags::NO_FC)
            .with_header(ProtocolId::STABLE, HeaderBody::Stable(Box::new(header)));
        cx.send(message);
    }

    /// Once all have voted, the coordinator multicasts the common part.
    fn vote(&mut self, cx: &mut Cx<'_>, member: &Address, digest: &Digest, view: &View) {
        if self.voted.contains(member) || !view.contains(member) || !digest.has_members(view.members()) {
            return;
        }
        self.voted.push(member.clone());
        match &mut self.combined {
            None => self.combined = Some(digest.clone()),
            Some(combined) => {
                for (own, theirs) in combined.entries.iter_mut().zip(&digest.entries) {
                    #[cfg(feature = "injected-bugs")]
                    if cx.has_bug(crate::InjectedBug::StableEarlyPurge) {
                        own.highest_delivered = own.highest_delivered.max(theirs.highest_delivered);
                        continue;
                    }
                    own.highest_delivered = own.highest_delivered.min(theirs.highest_delivered);
                    own.highest_received = own.highest_received.max(theirs.highest_received);
                }
            }
        }
        if self.voted.len() < view.len() {
            return;
        }
        let Some(digest) = self.combined.take() else { return };
        self.reset_round();
        self.bytes = 0;
        self.rounds += 1;
        let header = StableHeader { is_stability: true, view_id: Some(view.id().clone()) };
        let object = Object::Digest { digest: digest.clone(), is_mutable: true };
        let mut message = Message::object(None, object)
            .with_flags(Flags::OOB | Flags::NO_RELIABILITY | Flags::NO_RELAY | Flags::NO_FC)
            .with_header(ProtocolId::STABLE, HeaderBody::Stable(Box::new(header)));
        message.transient |= Transient::DONT_LOOPBACK;
        if view.len() > 1 {
            cx.send(message);
        }
        cx.control(&Control::Stable(&digest));
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: &StableHeader, message: &Message) {
        let digest = match &message.payload {
            Payload::Object(object) => match &**object {
                Object::Digest { digest, .. } => Some(digest.clone()),
                _ => None,
            },
            _ => None,
        };
        let Some(digest) = digest else { return cx.discard(message, DropReason::Malformed) };
        let (Some(src), Some(view)) = (message.src.clone(), cx.view().cloned()) else { return };
        if self.is_suspended || header.view_id.as_ref() != Some(view.id()) {
            return;
        }
        if !header.is_stability {
            if cx.is_coordinator() {
                self.vote(cx, &src, &digest, &view);
            }
        } else if view.coordinator() == Some(&src) && digest.has_members(view.members()) {
            self.reset_round();
            self.bytes = 0;
            self.rounds += 1;
            cx.control(&Control::Stable(&digest));
        }
    }
}

impl Protocol for Stable {
    fn name(&self) -> &'static str {
        "STABLE"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::STABLE
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let bytes: usize = batch
            .messages
            .iter()
            .filter(|message| message.is_multicast() && message.transient.has(Transient::DONT_LOOPBACK))
            .map(Message::length)
            .sum();
        if bytes > 0 {
            self.count(cx, bytes);
        }
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn wants(&self, batch: &MessageBatch, headers: HeaderIds) -> bool {
        batch.is_multicast() || headers.has(ProtocolId::STABLE)
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let mut bytes = 0;
        batch.messages.retain_mut(|message| {
            if let Some(HeaderBody::Stable(header)) = message.headers.take(ProtocolId::STABLE) {
                self.receive(cx, &header, message);
                return false;
            }
            if message.is_multicast() {
                bytes += message.length();
            }
            true
        });
        if bytes > 0 {
            self.count(cx, bytes);
        }
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            cx.disarm(GOSSIP);
            self.reset_round();
            self.bytes = 0;
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        match control {
            Control::View(_) => {
                self.reset_round();
                self.bytes = 0;
                self.arm_gossip(cx);
            }
            Control::SuspendStable(most) => {
                self.is_suspended = true;
                self.reset_round();
                cx.arm(RESUME, *most);
            }
            Control::ResumeStable => {
                self.is_suspended = false;
                cx.disarm(RESUME);
            }
            _ => {}
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            RESUME => self.is_suspended = false,
            _ => {
                self.gossip(cx);
                self.arm_gossip(cx);
            }
        }
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.config)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("bytes", self.bytes);
        out.put("num_votes", self.voted.len());
        out.put("stable_sent", self.gossips);
        out.put("stability_rounds", self.rounds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, digest, member, view};

    fn harness(max_bytes: u64, members: &[u64]) -> Harness {
        let config = StableConfig { max_bytes: crate::config::Bytes(max_bytes), ..StableConfig::default() };
        let mut harness = Harness::new(Stable::new(config));
        harness.install(view(1, members));
        harness
    }

    #[test]
    fn the_longest_interval_is_no_error() {
        let config = StableConfig { desired_avg_gossip: Duration::MAX, ..StableConfig::default() };
        let mut harness = Harness::new(Stable::new(config));
        harness.install(view(1, &[1, 2])).advance(Duration::from_secs(3_600));
        assert_eq!(harness.take_down(), []);
    }

    fn multicast(bytes: usize) -> Message {
        let mut message = Message::bytes(None, vec![0; bytes]);
        message.src = Some(member(2));
        message
    }

    fn gossip(from: u64, view_number: u64, rows: &[(u64, u64, u64)]) -> Message {
        let header =
            StableHeader { is_stability: false, view_id: Some(view(view_number, &[1]).id().clone()) };
        Message::object(Some(member(1)), Object::Digest { digest: digest(rows), is_mutable: true })
            .with_flags(Flags::OOB)
            .with_header(ProtocolId::STABLE, HeaderBody::Stable(Box::new(header)))
            .sent_by(from)
    }

    #[test]
    fn a_member_gossips_after_max_bytes() {
        let mut harness = harness(100, &[2, 1]);
        harness.answer_digest(digest(&[(2, 5, 7), (1, 3, 3)]));
        harness.up(multicast(99));
        assert_eq!(harness.take_down(), []);
        harness.up(multicast(1));
        let sent = harness.take_down();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].dest, Some(member(2)));
        assert_eq!(sent[0].flags, Flags::OOB | Flags::NO_RELIABILITY | Flags::NO_FC);
    }

    #[test]
    fn a_digest_that_lacks_members_is_not_gossiped() {
        let mut harness = harness(100, &[2, 1]);
        harness.answer_digest(digest(&[(2, 5, 7)]));
        harness.up(multicast(100));
        assert_eq!(harness.take_down(), []);
    }

    #[test]
    fn when_all_have_voted_the_minimum_is_stable() {
        let mut harness = harness(100, &[1, 2]);
        harness.answer_digest(digest(&[(1, 5, 7), (2, 3, 3)]));
        harness.up(gossip(2, 1, &[(1, 4, 9), (2, 8, 8)]));
        harness.up(gossip(2, 1, &[(1, 9, 9), (2, 9, 9)]));
        assert_eq!(harness.take_down(), [], "the coordinator's own vote is missing");
        harness.up(multicast(100));
        let sent = harness.take_down();
        let wanted = Object::Digest { digest: digest(&[(1, 4, 9), (2, 3, 8)]), is_mutable: true };
        assert_eq!(sent[0].payload, Payload::Object(Box::new(wanted)));
        assert_eq!(sent[0].dest, None);
        assert!(harness.take_controls().iter().any(|control| control.starts_with("Stable")));
    }

    #[test]
    fn votes_of_another_view_and_while_suspended_do_not_count() {
        let mut harness = harness(100, &[1, 2]);
        harness.answer_digest(digest(&[(1, 5, 7), (2, 3, 3)]));
        harness.up(gossip(2, 7, &[(1, 4, 9), (2, 8, 8)]));
        harness.suspend_stable(Duration::from_secs(30));
        harness.up(gossip(2, 1, &[(1, 4, 9), (2, 8, 8)])).up(multicast(100));
        assert_eq!(harness.take_down(), []);
        harness.advance(Duration::from_secs(30));
        harness.up(gossip(2, 1, &[(1, 4, 9), (2, 8, 8)])).up(multicast(100));
        assert_eq!(harness.take_down().len(), 1, "suspension ends by itself");
    }
}
