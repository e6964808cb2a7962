//! VERIFY_SUSPECT2 (VERIFY_SUSPECT has older ids): asks a suspected member before the suspicion is passed up.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::Properties;
use crate::{
    Address, Control, Cx, DropReason, Event, HeaderBody, HeaderIds, Message, MessageBatch, Pass, ProbeOut,
    Protocol, ProtocolId, Time, TimerKey, Transient, VerifySuspectHeader,
};

crate::properties! {
    /// VERIFY_SUSPECT2's properties.
    VerifySuspectConfig {
        /// How long a suspect has to respond.
        timeout: Duration = Duration::from_secs(1),
        /// How many copies of a question, and of its answer, are sent, against loss.
        num_msgs: u32 = 1,
        /// Whether the answer is multicast, for suspects whose unicasts do not get through.
        use_mcast_rsps: bool = false,
    }
}

const GIVE_UP: TimerKey = TimerKey(1);

/// The VERIFY_SUSPECT layer.
pub struct VerifySuspect {
    is_first_version: bool,
    config: VerifySuspectConfig,
    /// The suspects are members of a view.
    suspects: BTreeMap<Address, Time>,
}

impl VerifySuspect {
    /// Creates VERIFY_SUSPECT2.
    pub fn new(config: VerifySuspectConfig) -> Self {
        Self { is_first_version: false, config, suspects: BTreeMap::new() }
    }

    /// Creates VERIFY_SUSPECT.
    pub fn first_version(config: VerifySuspectConfig) -> Self {
        Self { is_first_version: true, ..Self::new(config) }
    }

    fn message(&self, cx: &Cx<'_>, dest: Option<Address>, is_answer: bool) -> Message {
        let header = VerifySuspectHeader { is_answer, from: Some(cx.local().clone()) };
        let mut message =
            Message::empty(dest).with_header(self.id(), HeaderBody::VerifySuspect(Box::new(header)));
        if message.is_multicast() {
            message.transient |= Transient::DONT_LOOPBACK;
        }
        message.src = Some(cx.local().clone());
        message
    }

    fn verify(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        for member in members {
            // A view without the member may have arrived since the suspicion.
            let is_member = cx.view().is_some_and(|view| view.contains(member));
            if !is_member || cx.is_local(member) || self.suspects.contains_key(member) {
                continue;
            }
            let until = cx.now() + self.config.timeout;
            self.suspects.insert(member.clone(), until);
            for _ in 0..self.config.num_msgs.max(1) {
                let question = self.message(cx, Some(member.clone()), false);
                cx.send(question);
            }
        }
        self.arm(cx);
    }

    /// A proof takes the place of the suspect's silence. Others than suspects have answered, or are passed up already.
    fn complete(&mut self, cx: &mut Cx<'_>, crashed: &[Address]) {
        let dead: Vec<Address> =
            crashed.iter().filter(|member| self.suspects.remove(member).is_some()).cloned().collect();
        if !dead.is_empty() {
            cx.raise(Event::Suspect(dead));
        }
        self.arm(cx);
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        match self.suspects.values().min() {
            Some(&at) => {
                let after = at.since(cx.now());
                cx.arm(GIVE_UP, after);
            }
            None => cx.disarm(GIVE_UP),
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: &VerifySuspectHeader, message: &Message) {
        cx.absorb(message);
        let Some(from) = header.from.clone().or_else(|| message.src.clone()) else {
            return cx.count_drop(DropReason::Malformed, |_| "verification without sender".to_owned());
        };
        if !header.is_answer {
            let dest = (!self.config.use_mcast_rsps).then_some(from);
            for _ in 0..self.config.num_msgs.max(1) {
                let answer = self.message(cx, dest.clone(), true);
                cx.send(answer);
            }
            return;
        }
        if self.suspects.remove(&from).is_some() {
            self.arm(cx);
            cx.lower(Event::Unsuspect(vec![from.clone()]));
            cx.raise(Event::Unsuspect(vec![from]));
        }
    }
}

impl Protocol for VerifySuspect {
    fn name(&self) -> &'static str {
        if self.is_first_version { "VERIFY_SUSPECT" } else { "VERIFY_SUSPECT2" }
    }

    fn id(&self) -> ProtocolId {
        if self.is_first_version { ProtocolId::VERIFY_SUSPECT } else { ProtocolId::VERIFY_SUSPECT2 }
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        batch.messages.retain_mut(|message| match message.headers.take(id) {
            Some(HeaderBody::VerifySuspect(header)) => {
                self.receive(cx, &header, message);
                false
            }
            _ => true,
        });
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Suspect(members) => {
                self.verify(cx, members);
                Pass::Stop
            }
            Event::Crashed(members) => {
                self.complete(cx, members);
                Pass::On
            }
            Event::Unsuspect(members) => {
                self.suspects.retain(|member, _| !members.contains(member));
                self.arm(cx);
                Pass::On
            }
            _ => Pass::On,
        }
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if *event == Event::Disconnect {
            self.suspects.clear();
            cx.disarm(GIVE_UP);
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            // A merge has received a response from all its members; a member that is still silent will be
            // suspected again.
            self.suspects.retain(|member, _| view.contains(member) && !view.is_merge());
            self.arm(cx);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        let now = cx.now();
        let dead: Vec<Address> =
            self.suspects.iter().filter(|&(_, &at)| at <= now).map(|(member, _)| member.clone()).collect();
        self.suspects.retain(|_, at| *at > now);
        if !dead.is_empty() {
            cx.raise(Event::Suspect(dead));
        }
        self.arm(cx);
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.config)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("suspects", self.suspects.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, view};

    fn harness() -> Harness {
        let mut harness = Harness::new(VerifySuspect::new(VerifySuspectConfig::default()));
        harness.install(view(1, &[1, 2, 3]));
        harness.take_up_events();
        harness
    }

    fn header(is_answer: bool, from: u64) -> Message {
        let header = VerifySuspectHeader { is_answer, from: Some(member(from)) };
        Message::empty(Some(member(1)))
            .with_header(ProtocolId::VERIFY_SUSPECT2, HeaderBody::VerifySuspect(Box::new(header)))
            .sent_by(from)
    }

    #[test]
    fn a_suspect_that_does_not_answer_is_passed_up() {
        let mut harness = harness();
        harness.raise(Event::Suspect(vec![member(2)]));
        assert_eq!(harness.take_down()[0].dest, Some(member(2)));
        assert_eq!(harness.take_up_events(), []);
        harness.advance(Duration::from_secs(1));
        assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2)])]);
    }

    #[test]
    fn second_suspicion_is_ignored_while_the_first_is_verified() {
        let mut harness = harness();
        harness.raise(Event::Suspect(vec![member(2)])).advance(Duration::from_millis(500));
        harness.raise(Event::Suspect(vec![member(2)]));
        assert_eq!(harness.take_down().len(), 1);
        harness.advance(Duration::from_millis(500));
        assert_eq!(harness.take_up_events(), [Event::Suspect(vec![member(2)])]);
    }

    #[test]
    fn an_answer_ends_the_suspicion_above_and_below() {
        let mut harness = harness();
        harness.raise(Event::Suspect(vec![member(2)])).up(header(true, 2));
        harness.advance(Duration::from_secs(5));
        assert_eq!(harness.take_up_events(), [Event::Unsuspect(vec![member(2)])]);
        assert_eq!(harness.take_down_events(), [Event::Unsuspect(vec![member(2)])]);
    }

    #[test]
    fn questions_and_answers_are_sent_num_msgs_times() {
        let config = VerifySuspectConfig { num_msgs: 3, ..VerifySuspectConfig::default() };
        let mut harness = Harness::new(VerifySuspect::new(config));
        harness.install(view(1, &[1, 2, 3]));
        harness.raise(Event::Suspect(vec![member(2)]));
        assert_eq!(harness.take_down().len(), 3);
        harness.up(header(false, 3));
        assert_eq!(harness.take_down().len(), 3);
    }

    #[test]
    fn proven_crash_ends_the_verification_at_once_unless_the_suspect_has_answered() {
        let mut harness = harness();
        harness.raise(Event::Suspect(vec![member(2), member(3)])).up(header(true, 3));
        harness.take_up_events();
        harness.raise(Event::Crashed(vec![member(2), member(3)]));
        let events = harness.take_up_events();
        let suspicions: Vec<&Event> =
            events.iter().filter(|event| matches!(event, Event::Suspect(_))).collect();
        assert_eq!(suspicions, [&Event::Suspect(vec![member(2)])]);
        harness.advance(Duration::from_secs(5));
        assert_eq!(harness.take_up_events(), [], "once");
    }

    #[test]
    fn a_former_member_is_not_verified() {
        let mut harness = harness();
        harness.raise(Event::Suspect(vec![member(9), member(1)]));
        assert_eq!(harness.take_down(), []);
        harness.raise(Event::Suspect(vec![member(2)])).install(view(2, &[1, 3]));
        harness.take_up_events();
        harness.advance(Duration::from_secs(5));
        assert_eq!(harness.take_up_events(), []);
    }

    #[test]
    fn a_suspect_that_responded_to_a_merge_stays() {
        let mut harness = harness();
        harness.raise(Event::Suspect(vec![member(2)]));
        let id = crate::ViewId { creator: member(1), id: 2 };
        harness.install(crate::View::merged(
            id,
            vec![member(1), member(2)],
            vec![view(1, &[1]), view(1, &[2])],
        ));
        harness.take_up_events();
        harness.advance(Duration::from_secs(5));
        assert_eq!(harness.take_up_events(), []);
    }

    #[test]
    fn the_answer_can_be_multicast() {
        let config = VerifySuspectConfig { use_mcast_rsps: true, ..VerifySuspectConfig::default() };
        let mut harness = Harness::new(VerifySuspect::new(config));
        harness.up(header(false, 3));
        assert_eq!(harness.take_down()[0].dest, None);
    }

    #[test]
    fn a_living_member_answers_a_question() {
        let mut harness = harness();
        harness.up(header(false, 3));
        let sent = harness.take_down();
        assert_eq!(sent[0].dest, Some(member(3)));
    }
}
