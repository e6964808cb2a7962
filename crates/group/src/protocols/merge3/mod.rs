//! MERGE3: detects members of one cluster with different views.
//!
//! Every member regularly announces its view id to all that it can reach, inside and outside its view. A member that
//! sees different ids requests the views and passes them to GMS.
//!
//! Consort's coordinators also announce to members that were lost, and compare soon after one of these is heard of again,
//! so that partitions meet within seconds of healing. JGroups' members do so at their intervals.

mod lost_members;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lost_members::LostMembers;

use crate::config::Properties;
use crate::wire;
use crate::{
    Address, Control, Cx, DropReason, Event, HeaderBody, HeaderIds, Merge3Header, Merge3Kind, Message,
    MessageBatch, Pass, Payload, PhysAddr, ProbeOut, Protocol, ProtocolId, Time, TimerKey, Transient, View,
    ViewId,
};

crate::properties! {
    /// MERGE3's properties.
    Merge3Config {
        /// The shortest time between two announcements of a member.
        min_interval: Duration = Duration::from_secs(1),
        /// The time to the next announcement is half of this plus a random part of it.
        max_interval: Duration = Duration::from_secs(10),
        /// The time between comparisons of the announced ids. 0 = 1.6 times `max_interval`.
        check_interval: Duration = Duration::ZERO,
        /// The maximum number of members asked for their views, so that hundreds of groups do not all ask
        /// each other. 0 = unlimited.
        max_participants_in_merge: usize = 100,
        /// The shortest time between two announcements of a coordinator to members that its view has lost. It grows
        /// to tenfold with their absence. 0 = never. JGroups does not know this attribute.
        lost_interval: Duration = Duration::from_secs(1),
    }
}

/// Invented members cannot grow the announced ids.
const ANNOUNCED_MAX: usize = 10_000;

/// After an announcement from outside the view the ids are compared so soon: those of other members may follow.
const EARLY_CHECK_DELAY: Duration = Duration::from_millis(500);

/// Other members, and peers that claim to be, cause no more comparisons. A merge under way ends within.
const EARLY_CHECK_PAUSE: Duration = Duration::from_secs(10);

/// Announcements from outside the view cause at most one response in this time.
const RESPONSE_PAUSE: Duration = Duration::from_millis(100);

const SHORTEST: Duration = Duration::from_millis(1);

const ANNOUNCE: TimerKey = TimerKey(1);
const CHECK: TimerKey = TimerKey(2);
const COLLECT: TimerKey = TimerKey(3);
const LOST: TimerKey = TimerKey(4);

/// The MERGE3 layer.
pub struct Merge3 {
    config: Merge3Config,
    announced: BTreeMap<Address, ViewId>,
    /// The set begins anew with each tick.
    announced_to: BTreeSet<PhysAddr>,
    collected: Option<BTreeMap<Address, View>>,
    asked: BTreeSet<Address>,
    merges: u64,
    lost: LostMembers,
    next_early_check: Time,
    next_response: Time,
    early_checks: u64,
}

impl Merge3 {
    /// Creates the layer.
    pub fn new(config: Merge3Config) -> Self {
        Self {
            config,
            announced: BTreeMap::new(),
            announced_to: BTreeSet::new(),
            collected: None,
            asked: BTreeSet::new(),
            merges: 0,
            lost: LostMembers::default(),
            next_early_check: Time::ZERO,
            next_response: Time::ZERO,
            early_checks: 0,
        }
    }

    fn check_interval(&self) -> Duration {
        match self.config.check_interval {
            Duration::ZERO => self.max_interval().saturating_mul(8) / 5,
            interval => interval.max(SHORTEST),
        }
    }

    /// It is never zero, so that time advances.
    fn max_interval(&self) -> Duration {
        self.config.max_interval.max(SHORTEST)
    }

    fn arm_announce(&self, cx: &mut Cx<'_>) {
        let most = self.max_interval();
        let random = cx.rng().duration(SHORTEST, most) + most / 2;
        cx.arm(ANNOUNCE, random.max(self.config.min_interval));
    }

    fn info(cx: &Cx<'_>, dest: Option<Address>) -> Option<Message> {
        let shared = cx.shared();
        let header = Merge3Header {
            kind: Merge3Kind::Info,
            view_id: Some(cx.view()?.id().clone()),
            name: Some(shared.name.to_string()),
            phys: Some(shared.phys),
        };
        Some(message(cx, dest, header, Payload::Empty))
    }

    fn announce(&mut self, cx: &mut Cx<'_>) {
        if cx.view().is_none() {
            return;
        }
        self.announced_to.clear();
        if cx.shared().has_multicast {
            if let Some(info) = Self::info(cx, None) {
                cx.send(info);
            }
        } else {
            cx.lower(Event::FindMembers { is_initial: false, timeout: self.config.min_interval });
        }
    }

    /// Without multicast, discovery has found the addresses.
    fn announce_to(&mut self, cx: &mut Cx<'_>, phys: PhysAddr) {
        if cx.shared().has_multicast || phys == cx.shared().phys || self.announced_to.len() >= ANNOUNCED_MAX {
            return;
        }
        if self.announced_to.insert(phys)
            && let Some(info) = Self::info(cx, Some(Address::Ip(phys)))
        {
            cx.send(info);
        }
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: Merge3Header, message: &Message) {
        let Some(src) = message.src.clone() else { return cx.discard(message, DropReason::Malformed) };
        cx.absorb(message);
        if cx.view().is_none() {
            return;
        }
        match header.kind {
            Merge3Kind::Info => {
                cx.book().learn(&src, header.name.as_deref(), header.phys);
                let Some(id) = header.view_id else { return };
                self.meet(cx, &src, &id);
                if self.announced.contains_key(&src) || self.announced.len() < ANNOUNCED_MAX {
                    self.announced.insert(src, id);
                }
            }
            Merge3Kind::ViewRequest => {
                let payload = wire::encode_view_option(cx.view());
                let header =
                    Merge3Header { kind: Merge3Kind::ViewResponse, view_id: None, name: None, phys: None };
                let answer = self::message(cx, Some(src), header, Payload::Bytes(Some(payload)));
                cx.send(answer);
            }
            Merge3Kind::ViewResponse => {
                let view = message.payload_bytes().map(wire::decode_view_option);
                let Some(Ok(Some(view))) = view else {
                    return cx
                        .count_drop(DropReason::Malformed, |book| format!("view of {}", book.member(&src)));
                };
                if let Some(collected) = &mut self.collected
                    && self.asked.remove(&src)
                {
                    collected.insert(src, view);
                    if self.asked.is_empty() {
                        self.conclude(cx);
                    }
                }
            }
        }
    }

    /// A lost member is heard of again: its side learns of this one, and the coordinator compares soon. Members that join or
    /// begin a cluster are left to the intervals.
    fn meet(&mut self, cx: &mut Cx<'_>, src: &Address, id: &ViewId) {
        let is_other = cx.view().is_some_and(|view| view.id() != id && !view.contains(src));
        let is_lost = self.lost.knows(src) || self.lost.knows(&id.creator);
        if !is_other || !is_lost || self.config.lost_interval.is_zero() {
            return;
        }
        if self.next_response <= cx.now() {
            self.next_response = cx.now() + RESPONSE_PAUSE;
            self.announce_to_member(cx, src);
            if id.creator != *src {
                self.announce_to_member(cx, &id.creator);
            }
        }
        if cx.is_coordinator() && self.next_early_check <= cx.now() {
            self.next_early_check = cx.now() + EARLY_CHECK_PAUSE;
            self.early_checks += 1;
            cx.arm(CHECK, EARLY_CHECK_DELAY.min(self.check_interval()));
        }
    }

    fn announce_to_member(&self, cx: &mut Cx<'_>, member: &Address) {
        let phys = cx.shared().book.phys(member).or_else(|| self.lost.phys(member));
        if let Some(info) = phys.and_then(|phys| Self::info(cx, Some(Address::Ip(phys)))) {
            cx.send(info);
        }
    }

    fn announce_to_lost(&mut self, cx: &mut Cx<'_>) {
        if cx.is_coordinator() {
            for phys in self.lost.take_turn(cx.now()) {
                if let Some(info) = Self::info(cx, Some(Address::Ip(phys))) {
                    cx.send(info);
                }
            }
        }
        self.arm_lost(cx);
    }

    fn arm_lost(&self, cx: &mut Cx<'_>) {
        let shortest = self.config.lost_interval;
        match self.lost.interval(cx.now(), shortest) {
            Some(interval) if !shortest.is_zero() => cx.arm(LOST, interval),
            _ => cx.disarm(LOST),
        }
    }

    fn check(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = cx.view().cloned() else { return };
        let local = cx.local().clone();
        let mut announced = std::mem::take(&mut self.announced);
        announced.insert(local.clone(), view.id().clone());
        let mut smallest: BTreeMap<&ViewId, &Address> = BTreeMap::new();
        for (member, id) in &announced {
            // Members are in ascending order: the first of each id is its smallest.
            smallest.entry(id).or_insert(member);
        }
        if smallest.len() < 2 {
            return;
        }
        let mut asked: Vec<Address> = smallest.keys().map(|id| id.creator.clone()).collect();
        asked.extend(smallest.values().map(|&member| member.clone()));
        asked.sort();
        asked.dedup();
        if self.config.max_participants_in_merge > 0 {
            asked.truncate(self.config.max_participants_in_merge);
        }
        asked.retain(|member| *member != local);
        self.collected = Some(BTreeMap::from([(local, view)]));
        for member in &asked {
            let header =
                Merge3Header { kind: Merge3Kind::ViewRequest, view_id: None, name: None, phys: None };
            let request = message(cx, Some(member.clone()), header, Payload::Empty);
            cx.send(request);
        }
        self.asked = asked.into_iter().collect();
        cx.arm(COLLECT, self.check_interval() / 10);
    }

    fn conclude(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(COLLECT);
        self.asked.clear();
        let Some(views) = self.collected.take() else { return };
        let different: BTreeSet<&ViewId> = views.values().map(View::id).collect();
        if different.len() > 1 {
            self.merges += 1;
            cx.raise(Event::MergeViews(views.into_iter().collect()));
        }
    }
}

/// The layer is below those that retransmit, so the message is unreliable and has no flags.
fn message(cx: &Cx<'_>, dest: Option<Address>, header: Merge3Header, payload: Payload) -> Message {
    let mut message =
        Message::new(dest, payload).with_header(ProtocolId::MERGE3, HeaderBody::Merge3(Box::new(header)));
    if message.is_multicast() {
        message.transient |= Transient::DONT_LOOPBACK;
    }
    message.src = Some(cx.local().clone());
    message
}

impl Protocol for Merge3 {
    fn name(&self) -> &'static str {
        "MERGE3"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::MERGE3
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| match message.headers.take(ProtocolId::MERGE3) {
            Some(HeaderBody::Merge3(header)) => {
                self.receive(cx, *header, message);
                false
            }
            _ => true,
        });
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::Heard(data) = event
            && let Some(phys) = data.phys
        {
            self.announce_to(cx, phys);
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Crashed(members) => self.lost.note_crashed(members),
            Event::Unsuspect(members) => self.lost.note_alive(members),
            _ => {}
        }
        if *event == Event::Disconnect {
            for key in [ANNOUNCE, CHECK, COLLECT, LOST] {
                cx.disarm(key);
            }
            self.lost.clear();
            self.announced.clear();
            self.announced_to.clear();
            self.asked.clear();
            self.collected = None;
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        match control {
            Control::Lost(members) => {
                let now = cx.now();
                self.lost.note_lost(now, members, &cx.shared().book);
            }
            Control::View(view) => {
                if !cx.is_armed(ANNOUNCE) {
                    self.arm_announce(cx);
                    cx.arm(CHECK, self.check_interval());
                }
                self.lost.follow(cx.now(), view, &cx.shared().book);
                if !cx.is_armed(LOST) {
                    self.arm_lost(cx);
                }
            }
            _ => {}
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            ANNOUNCE => {
                self.announce(cx);
                self.arm_announce(cx);
            }
            CHECK => {
                self.check(cx);
                cx.arm(CHECK, self.check_interval());
            }
            LOST => self.announce_to_lost(cx),
            _ => self.conclude(cx),
        }
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.config)
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("views", self.announced.len());
        out.put("num_merge_events", self.merges);
        out.put("num_early_checks", self.early_checks);
        out.put("lost_members", self.lost.len());
    }

    fn operations(&self) -> &'static [&'static str] {
        &["sendInfo", "checkInconsistencies"]
    }

    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        match name {
            "sendInfo" => self.announce(cx),
            "checkInconsistencies" => self.check(cx),
            _ => return None,
        }
        Some(Ok(String::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PingData;
    use crate::harness::{Harness, member, phys, view};

    fn harness() -> Harness {
        let mut harness = Harness::new(Merge3::new(Merge3Config::default()));
        harness.install(view(4, &[1, 2]));
        harness
    }

    #[test]
    fn the_longest_interval_is_no_error() {
        let config = Merge3Config { max_interval: Duration::MAX, ..Merge3Config::default() };
        let mut harness = Harness::new(Merge3::new(config));
        harness.install(view(4, &[1, 2])).advance(Duration::from_secs(3_600));
        assert_eq!(harness.take_down(), []);
    }

    #[test]
    fn intervals_without_length_are_no_endless_loop() {
        let mut layer = Merge3::new(Merge3Config::default());
        for name in ["min_interval", "max_interval"] {
            assert_eq!(layer.set_attribute(name, "0"), Some(Ok(())));
        }
        let mut harness = Harness::new(layer);
        harness.install(view(4, &[1, 2])).advance(Duration::from_millis(20));
        let announced = harness.take_down_events().len();
        assert!((5..=20).contains(&announced), "{announced}");
    }

    fn from(n: u64, kind: Merge3Kind, id: Option<ViewId>, payload: Payload) -> Message {
        let header =
            Merge3Header { kind, view_id: id, name: Some("X".to_owned()), phys: Some(phys(n as u16)) };
        Message::new(Some(member(1)), payload)
            .with_header(ProtocolId::MERGE3, HeaderBody::Merge3(Box::new(header)))
            .sent_by(n)
    }

    fn dests(harness: &mut Harness) -> Vec<Address> {
        harness.take_down().into_iter().filter_map(|message| message.dest).collect()
    }

    #[test]
    fn without_multicast_every_known_member_gets_one_announcement_per_tick() {
        let mut harness = harness();
        let heard = PingData {
            sender: member(3),
            is_server: true,
            is_coordinator: true,
            name: None,
            phys: Some(phys(3)),
            wanted: None,
        };
        harness.raise(Event::Heard(heard.clone())).raise(Event::Heard(heard));
        let to = Address::Ip(phys(3));
        assert_eq!(dests(&mut harness), [to]);
        harness.advance(Duration::from_secs(15));
        assert!(matches!(harness.take_down_events()[..], [Event::FindMembers { is_initial: false, .. }, ..]));
    }

    #[test]
    fn equal_ids_trigger_no_request() {
        let mut harness = harness();
        harness.up(from(2, Merge3Kind::Info, Some(view(4, &[1, 2]).id().clone()), Payload::Empty));
        harness.advance(Duration::from_secs(16));
        assert_eq!(dests(&mut harness), []);
    }

    #[test]
    fn different_ids_lead_to_the_views_and_to_gms() {
        // At JGroups' pace.
        let config = Merge3Config { lost_interval: Duration::ZERO, ..Merge3Config::default() };
        let mut harness = Harness::new(Merge3::new(config));
        harness.install(view(4, &[1, 2]));
        let theirs = view(7, &[4, 3]);
        harness.up(from(3, Merge3Kind::Info, Some(theirs.id().clone()), Payload::Empty));
        harness.advance(Duration::from_secs(16));
        assert_eq!(dests(&mut harness), [member(3), member(4)], "the smallest that said so, and the creator");
        let payload = Payload::Bytes(Some(wire::encode_view_option(Some(&theirs))));
        harness.up(from(4, Merge3Kind::ViewResponse, None, payload));
        assert_eq!(harness.take_up_events(), [Event::View(view(4, &[1, 2]))]);
        harness.advance(Duration::from_millis(1_600));
        let found = vec![(member(1), view(4, &[1, 2])), (member(4), theirs)];
        assert_eq!(harness.take_up_events(), [Event::MergeViews(found)], "3 is not waited for longer");
    }

    fn lose(harness: &mut Harness, numbers: &[u64]) {
        for &n in numbers {
            harness.learn(n);
        }
        let lost: Vec<Address> = numbers.iter().map(|&n| member(n)).collect();
        harness.lose(lost).install(view(5, &[1, 2]));
        harness.take_down();
    }

    #[test]
    fn coordinator_announces_itself_to_lost_members_until_they_return() {
        let mut harness = harness();
        lose(&mut harness, &[3, 4]);
        harness.advance(Duration::from_secs(2));
        let all = [3, 4, 3, 4].map(|n| Address::Ip(phys(n)));
        assert_eq!(dests(&mut harness), all);
        harness.install(view(6, &[1, 2, 3, 4])).advance(Duration::from_secs(3));
        assert_eq!(dests(&mut harness), []);
    }

    #[test]
    fn other_members_and_a_coordinator_without_the_interval_announce_nothing_to_lost_members() {
        let mut other = harness();
        other.install(view(5, &[2, 1, 3]));
        lose(&mut other, &[3]);
        other.install(view(6, &[2, 1])).advance(Duration::from_secs(3));
        assert_eq!(dests(&mut other), []);
        let config = Merge3Config { lost_interval: Duration::ZERO, ..Merge3Config::default() };
        let mut off = Harness::new(Merge3::new(config));
        off.install(view(4, &[1, 2]));
        lose(&mut off, &[3]);
        off.advance(Duration::from_secs(3));
        assert_eq!(dests(&mut off), []);
    }

    #[test]
    fn interval_of_announcements_to_lost_members_is_that_of_the_configuration() {
        let config = Merge3Config { lost_interval: Duration::from_secs(3), ..Merge3Config::default() };
        let mut harness = Harness::new(Merge3::new(config));
        harness.install(view(4, &[1, 2]));
        lose(&mut harness, &[3]);
        harness.advance(Duration::from_millis(2_900));
        assert_eq!(dests(&mut harness), []);
        harness.advance(Duration::from_millis(200));
        assert_eq!(dests(&mut harness), [Address::Ip(phys(3))]);
    }

    #[test]
    fn member_that_did_not_make_the_view_compares_with_a_member_of_an_earlier_one() {
        let mut harness = harness();
        harness.learn(2).install(view(5, &[1]));
        let theirs = view(7, &[2]);
        harness.up(from(2, Merge3Kind::Info, Some(theirs.id().clone()), Payload::Empty));
        assert_eq!(dests(&mut harness), [Address::Ip(phys(2))]);
        harness.advance(EARLY_CHECK_DELAY);
        assert_eq!(dests(&mut harness), [member(2)]);
    }

    #[test]
    fn announcement_from_another_view_is_answered_and_the_views_are_asked_for_soon() {
        let mut harness = harness();
        let theirs = view(7, &[4, 3]);
        harness.up(from(3, Merge3Kind::Info, Some(theirs.id().clone()), Payload::Empty));
        assert_eq!(dests(&mut harness), [], "it was not lost");
        lose(&mut harness, &[4]);
        harness.up(from(3, Merge3Kind::Info, Some(theirs.id().clone()), Payload::Empty));
        assert_eq!(dests(&mut harness), [3, 4].map(|n| Address::Ip(phys(n))), "its coordinator learns of it");
        harness.advance(EARLY_CHECK_DELAY);
        assert_eq!(dests(&mut harness), [member(3), member(4)]);
    }

    #[test]
    fn flood_of_announcements_causes_few_responses_and_comparisons() {
        let mut harness = harness();
        lose(&mut harness, &[4]);
        for nth in 0..1_000 {
            let theirs = view(nth, &[4, 3]);
            harness.up(from(3 + nth, Merge3Kind::Info, Some(theirs.id().clone()), Payload::Empty));
            harness.advance(Duration::from_millis(1));
        }
        let dests = dests(&mut harness);
        let responses = dests.iter().filter(|dest| matches!(dest, Address::Ip(_))).count();
        assert!((10..=21).contains(&responses), "{responses}");
        let asked = dests.len() - responses;
        assert!((1..=100).contains(&asked), "once: {asked}");
    }

    #[test]
    fn a_request_is_answered_with_this_members_view() {
        let mut harness = harness();
        harness.up(from(3, Merge3Kind::ViewRequest, None, Payload::Empty));
        let sent = harness.take_down();
        let bytes = sent[0].payload_bytes().unwrap();
        assert_eq!(wire::decode_view_option(bytes), Ok(Some(view(4, &[1, 2]))));
    }

    #[test]
    fn nothing_is_sent_after_leaving() {
        let mut harness = harness();
        harness.lower(Event::Disconnect);
        harness.take_down_events();
        harness.advance(Duration::from_secs(60));
        assert_eq!(harness.take_down(), []);
        assert_eq!(harness.take_down_events(), []);
    }
}
