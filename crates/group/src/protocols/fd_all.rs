//! FD_ALL, FD_ALL2 and FD_ALL3: members multicast heartbeats; a silent member is suspected.
//!
//! FD_ALL3 checks with every heartbeat, FD_ALL every `timeout_check_interval`, and FD_ALL2 once per `timeout`, so
//! that it takes up to twice the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::config::{Properties, changed};
use crate::{
    Address, Control, Cx, Event, HeaderBody, HeaderIds, Message, MessageBatch, Pass, ProbeOut, Protocol,
    ProtocolId, StackCount, TimerKey, Transient, View,
};

crate::properties! {
    /// FD_ALL3's properties.
    FdAll3Config {
        /// How long a member may be silent before it is suspected.
        timeout: Duration = Duration::from_secs(40),
        /// The time between heartbeats, and between checks for silence.
        interval: Duration = Duration::from_secs(8),
        /// Whether any message of a member counts as a heartbeat. Heartbeats alone are not enough under load,
        /// because they queue behind data.
        msg_counts_as_heartbeat: bool = true,
    }
}

crate::properties! {
    /// FD_ALL's properties.
    FdAllConfig {
        /// How long a member may be silent before it is suspected.
        timeout: Duration = Duration::from_secs(40),
        /// The time between heartbeats.
        interval: Duration = Duration::from_secs(8),
        /// The time between checks for silence.
        timeout_check_interval: Duration = Duration::from_secs(2),
    }
}

crate::properties! {
    /// FD_ALL2's properties.
    FdAll2Config {
        /// The time between checks for silence. A member without a sign between two checks is suspected.
        timeout: Duration = Duration::from_secs(40),
        /// The time between heartbeats.
        interval: Duration = Duration::from_secs(8),
    }
}

/// Properties of a failure detection by heartbeats.
pub trait HeartbeatConfig: Properties + Clone + Send + 'static {
    /// The protocol's name.
    const NAME: &'static str;
    /// Its headers' id.
    const ID: ProtocolId;

    /// Returns the silence before a suspicion, and the times between heartbeats and between checks.
    fn times(&self) -> (Duration, Duration, Duration);

    /// Returns whether any message counts as a heartbeat.
    fn counts_messages(&self) -> bool {
        true
    }

    /// Checks that the times are consistent; the error is the invalid attribute and the reason.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let (timeout, interval, check_interval) = self.times();
        if interval.is_zero() {
            return Err(("interval", "interval must be greater than 0".to_owned()));
        }
        if interval >= timeout {
            let why = format!("interval ({interval:?}) must be shorter than timeout ({timeout:?})");
            return Err(("interval", why));
        }
        if check_interval.is_zero() {
            let why = "timeout_check_interval must be greater than 0".to_owned();
            return Err(("timeout_check_interval", why));
        }
        Ok(())
    }
}

impl HeartbeatConfig for FdAll3Config {
    const NAME: &'static str = "FD_ALL3";
    const ID: ProtocolId = ProtocolId::FD_ALL3;

    fn times(&self) -> (Duration, Duration, Duration) {
        (self.timeout, self.interval, self.interval)
    }

    fn counts_messages(&self) -> bool {
        self.msg_counts_as_heartbeat
    }
}

impl HeartbeatConfig for FdAllConfig {
    const NAME: &'static str = "FD_ALL";
    const ID: ProtocolId = ProtocolId::FD_ALL;

    fn times(&self) -> (Duration, Duration, Duration) {
        (self.timeout, self.interval, self.timeout_check_interval)
    }
}

impl HeartbeatConfig for FdAll2Config {
    const NAME: &'static str = "FD_ALL2";
    const ID: ProtocolId = ProtocolId::FD_ALL2;

    fn times(&self) -> (Duration, Duration, Duration) {
        (self.timeout, self.interval, self.timeout)
    }
}

/// One heartbeat can be late or lost.
const SILENT_INTERVALS: u32 = 2;

const HEARTBEAT: TimerKey = TimerKey(1);
const CHECK: TimerKey = TimerKey(2);

/// The FD_ALL3 layer.
pub type FdAll3 = HeartbeatDetector<FdAll3Config>;

/// The FD_ALL layer.
pub type FdAll = HeartbeatDetector<FdAllConfig>;

/// The FD_ALL2 layer.
pub type FdAll2 = HeartbeatDetector<FdAll2Config>;

/// A failure detection by heartbeats.
pub struct HeartbeatDetector<C> {
    config: C,
    /// Checks since the last heartbeat. JGroups keeps one bit per interval instead.
    members: BTreeMap<Address, u32>,
    suspects: BTreeSet<Address>,
    silent: BTreeSet<Address>,
    has_multicast: bool,
    heartbeats_sent: u64,
    heartbeats_received: u64,
    suspicions: u64,
}

impl<C: HeartbeatConfig> HeartbeatDetector<C> {
    /// Creates the layer of a config that [`HeartbeatConfig::check`] accepts.
    pub fn new(config: C) -> Self {
        Self {
            config,
            members: BTreeMap::new(),
            suspects: BTreeSet::new(),
            silent: BTreeSet::new(),
            has_multicast: false,
            heartbeats_sent: 0,
            heartbeats_received: 0,
            suspicions: 0,
        }
    }

    /// Returns the checks without heartbeat until a suspicion.
    fn checks(&self) -> u32 {
        let (timeout, _, _) = self.config.times();
        checks_within(timeout, self.check_interval())
    }

    /// It is never zero, so that time advances.
    fn interval(&self) -> Duration {
        let (_, interval, _) = self.config.times();
        interval.max(Duration::from_millis(1))
    }

    /// It is never zero, so that time advances.
    fn check_interval(&self) -> Duration {
        let (_, _, check_interval) = self.config.times();
        check_interval.max(Duration::from_millis(1))
    }

    fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        let local = cx.local().clone();
        self.members.retain(|member, _| view.contains(member));
        self.suspects.retain(|member| view.contains(member));
        self.report_silent(cx);
        for member in view.members().iter().filter(|member| **member != local) {
            self.members.entry(member.clone()).or_insert(0);
        }
        if self.members.is_empty() {
            cx.disarm(HEARTBEAT);
            cx.disarm(CHECK);
        } else if !cx.is_armed(HEARTBEAT) {
            self.heartbeat(cx);
            cx.arm(HEARTBEAT, self.interval());
            cx.arm(CHECK, self.check_interval());
        }
    }

    fn heartbeat(&mut self, cx: &mut Cx<'_>) {
        if std::mem::take(&mut self.has_multicast) && self.config.counts_messages() {
            return;
        }
        self.heartbeats_sent += 1;
        let mut message = Message::empty(None).with_header(C::ID, HeaderBody::Heartbeat);
        message.transient |= Transient::DONT_LOOPBACK;
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn heard(&mut self, cx: &mut Cx<'_>, member: &Address) {
        let Some(heard) = self.members.get_mut(member) else { return };
        *heard = 0;
        if !self.silent.is_empty() && self.silent.contains(member) {
            self.report_silent(cx);
        }
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::SuspicionNotWithdrawn) {
            return;
        }
        if !self.suspects.is_empty() && self.suspects.remove(member) {
            cx.raise(Event::Unsuspect(vec![member.clone()]));
            cx.lower(Event::Unsuspect(vec![member.clone()]));
        }
    }

    fn report_silent(&mut self, cx: &mut Cx<'_>) {
        // The count includes the current check.
        let most = checks_within(self.interval().saturating_mul(SILENT_INTERVALS), self.check_interval());
        let is_silent = |(_, heard): &(&Address, &u32)| **heard > most;
        let is_same = self.members.iter().filter(is_silent).map(|(member, _)| member).eq(&self.silent);
        if !is_same {
            let silent = self.members.iter().filter(is_silent).map(|(member, _)| member.clone());
            self.silent = silent.collect();
            cx.raise(Event::Silent(self.silent.iter().cloned().collect()));
        }
    }

    fn check(&mut self, cx: &mut Cx<'_>) {
        let most = self.checks();
        let mut silent = Vec::new();
        for (member, heard) in &mut self.members {
            if *heard >= most {
                silent.push(member.clone());
            }
            *heard = heard.saturating_add(1);
        }
        self.report_silent(cx);
        let before = self.suspects.len();
        self.suspects.extend(silent);
        if self.suspects.len() > before {
            self.suspicions += (self.suspects.len() - before) as u64;
        }
        if !self.suspects.is_empty() && would_lead(cx, &self.suspects) {
            // Repeated at every check, because the member that had to act may have crashed.
            cx.raise(Event::Suspect(self.suspects.iter().cloned().collect()));
        }
    }
}

fn checks_within(time: Duration, check_interval: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(check_interval.as_nanos())).unwrap_or(u32::MAX).max(1)
}

/// Only the first member of the view without `suspects` acts on a suspicion.
pub(super) fn would_lead(cx: &Cx<'_>, suspects: &BTreeSet<Address>) -> bool {
    cx.view().is_some_and(|view| {
        view.members().iter().find(|member| !suspects.contains(member)) == Some(cx.local())
    })
}

impl<C: HeartbeatConfig> Protocol for HeartbeatDetector<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn id(&self) -> ProtocolId {
        C::ID
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        self.has_multicast |= batch.is_multicast();
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        self.config.counts_messages() || headers.has(C::ID)
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let src = batch.src().filter(|src| !cx.is_local(src)).cloned();
        let before = batch.len();
        batch
            .messages
            .retain_mut(|message| !matches!(message.headers.take(C::ID), Some(HeaderBody::Heartbeat)));
        let heartbeats = before - batch.len();
        self.heartbeats_received += heartbeats as u64;
        if let Some(src) = src
            && (heartbeats > 0 || self.config.counts_messages())
        {
            self.heard(cx, &src);
        }
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            #[cfg(feature = "injected-bugs")]
            Event::Unsuspect(_) if cx.has_bug(crate::InjectedBug::SuspicionNotWithdrawn) => {}
            Event::Unsuspect(members) => {
                for member in members {
                    self.suspects.remove(member);
                    if let Some(heard) = self.members.get_mut(member) {
                        *heard = 0;
                    }
                }
            }
            Event::Disconnect => {
                self.members.clear();
                self.suspects.clear();
                cx.disarm(HEARTBEAT);
                cx.disarm(CHECK);
            }
            _ => {}
        }
        Pass::On
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.view(cx, view);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        if key == HEARTBEAT {
            self.heartbeat(cx);
            cx.arm(HEARTBEAT, self.interval());
        } else {
            self.check(cx);
            cx.arm(CHECK, self.check_interval());
        }
    }

    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let changed = changed(&self.config, name, value, C::check)?;
        Some(changed.map(|config| self.config = config))
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::Suspicions, self.suspicions)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_heartbeats_sent", self.heartbeats_sent);
        out.put("num_heartbeats_received", self.heartbeats_received);
        out.put("num_suspect_events", self.suspicions);
        out.put("suspected_members", format!("{:?}", self.suspects));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, view};

    fn harness(numbers: &[u64]) -> Harness {
        let mut harness = Harness::new(FdAll3::new(FdAll3Config::default()));
        harness.install(view(1, numbers));
        harness.take_up_events();
        harness
    }

    fn suspicions(harness: &mut Harness) -> Vec<Event> {
        let events = harness.take_up_events().into_iter();
        events.filter(|event| !matches!(event, Event::Silent(_))).collect()
    }

    #[test]
    fn silent_members_are_reported_before_they_are_suspected_and_when_they_return() {
        let mut harness = harness(&[1, 2, 3]);
        let interval = FdAll3Config::default().interval;
        harness.advance(2 * interval);
        assert_eq!(harness.take_up_events(), [], "one may be late");
        harness.up(from(3));
        harness.advance(interval);
        assert_eq!(harness.take_up_events(), [Event::Silent(vec![member(2)])]);
        harness.up(from(3));
        harness.advance(interval);
        assert_eq!(harness.take_up_events(), [], "it is reported once");
        harness.up(from(2));
        assert_eq!(harness.take_up_events(), [Event::Silent(Vec::new())]);
        harness.up(from(3));
        harness.advance(3 * interval);
        assert_eq!(harness.take_up_events(), [Event::Silent(vec![member(2), member(3)])]);
        // A member that leaves is no longer silent.
        harness.install(view(2, &[1, 3]));
        assert_eq!(harness.take_up_events().last(), Some(&Event::Silent(vec![member(3)])));
    }

    fn from(n: u64) -> Message {
        Message::bytes(Some(member(1)), "x").sent_by(n)
    }

    #[test]
    fn the_first_heartbeat_is_immediate_and_then_one_per_interval() {
        let mut harness = harness(&[1, 2]);
        assert_eq!(harness.take_down().len(), 1);
        harness.advance(Duration::from_secs(16));
        assert_eq!(harness.take_down().len(), 2);
        harness.send(Message::empty(None)).take_down();
        harness.advance(Duration::from_secs(8));
        assert_eq!(harness.take_down().len(), 0, "a multicast stands for the heartbeat");
    }

    #[test]
    fn a_member_alone_sends_no_heartbeat() {
        let mut harness = harness(&[1]);
        harness.advance(Duration::from_secs(100));
        assert_eq!(harness.take_down(), []);
    }

    #[test]
    fn a_member_silent_for_the_timeout_is_suspected_and_any_message_counts() {
        let mut harness = harness(&[1, 2, 3]);
        for _ in 0..8 {
            harness.advance(Duration::from_secs(6));
            harness.up(from(3));
        }
        let suspected: Vec<Event> = suspicions(&mut harness);
        assert_eq!(suspected[0], Event::Suspect(vec![member(2)]));
        assert_eq!(harness.count(StackCount::Suspicions), 1, "once, however often it is raised");
        assert!(suspected.iter().all(|event| *event == Event::Suspect(vec![member(2)])));
        harness.up(from(2));
        assert_eq!(suspicions(&mut harness), [Event::Unsuspect(vec![member(2)])]);
    }

    #[test]
    fn only_the_member_that_would_lead_acts() {
        let mut harness = harness(&[2, 3, 1]);
        harness.advance(Duration::from_secs(39));
        harness.up(from(3));
        harness.advance(Duration::from_secs(9));
        assert_eq!(suspicions(&mut harness), [], "3 is alive and comes first");
    }

    #[test]
    fn times_that_suspect_all_members_are_refused() {
        for (timeout, interval) in [(40, 0), (8, 8), (8, 9)] {
            let [timeout, interval] = [timeout, interval].map(Duration::from_secs);
            assert!(FdAll3Config { timeout, interval, ..FdAll3Config::default() }.check().is_err());
        }
        assert_eq!(FdAll3Config::default().check(), Ok(()));
    }

    fn with(timeout: Duration, interval: Duration) -> Harness {
        let config = FdAll3Config { timeout, interval, ..FdAll3Config::default() };
        let mut harness = Harness::new(FdAll3::new(config));
        harness.install(view(1, &[1, 2]));
        harness.take_up_events();
        harness
    }

    #[test]
    fn the_timeout_holds_however_short_the_interval_is() {
        let mut harness = with(Duration::from_secs(60), Duration::from_millis(500));
        harness.advance(Duration::from_secs(60));
        assert_eq!(suspicions(&mut harness), []);
        harness.advance(Duration::from_millis(500));
        assert_eq!(suspicions(&mut harness), [Event::Suspect(vec![member(2)])]);
    }

    #[test]
    fn a_new_timeout_takes_effect_at_once_and_an_invalid_one_is_refused() {
        let mut layer = FdAll3::new(FdAll3Config::default());
        let refused = layer.set_attribute("timeout", "8s");
        assert_eq!(refused, Some(Err("interval (8s) must be shorter than timeout (8s)".to_owned())));
        assert_eq!(layer.set_attribute("timeouts", "10s"), None);
        assert_eq!(layer.config, FdAll3Config::default());
        assert_eq!(layer.set_attribute("timeout", "10s"), Some(Ok(())));
        let mut harness = Harness::new(layer);
        harness.install(view(1, &[1, 2]));
        suspicions(&mut harness);
        harness.advance(Duration::from_secs(24));
        assert_eq!(suspicions(&mut harness), [Event::Suspect(vec![member(2)])]);
    }

    #[test]
    fn the_layers_below_get_unsuspect_for_a_living_suspect() {
        let mut harness = harness(&[1, 2]);
        harness.advance(Duration::from_secs(48));
        harness.take_down_events();
        harness.up(from(2));
        assert_eq!(harness.take_down_events(), [Event::Unsuspect(vec![member(2)])]);
    }

    #[test]
    fn heartbeats_end_here() {
        let mut harness = harness(&[1, 2]);
        harness.up(from(2).with_header(ProtocolId::FD_ALL3, HeaderBody::Heartbeat));
        assert_eq!(harness.take_up(), []);
    }

    fn detector(config: impl HeartbeatConfig) -> Harness {
        let mut harness = Harness::new(HeartbeatDetector::new(config));
        harness.install(view(1, &[1, 2]));
        harness.take_up_events();
        harness
    }

    fn seconds_until_suspicion(mut harness: Harness) -> u64 {
        harness.up(from(2));
        harness.take_up_events();
        for second in 1..200 {
            harness.advance(Duration::from_secs(1));
            if suspicions(&mut harness) == [Event::Suspect(vec![member(2)])] {
                return second;
            }
        }
        panic!("never suspected");
    }

    #[test]
    fn fd_all_looks_for_silence_at_its_own_interval_and_fd_all2_once_per_timeout() {
        let config = FdAllConfig {
            timeout: Duration::from_secs(9),
            interval: Duration::from_secs(3),
            ..Default::default()
        };
        let seconds = seconds_until_suspicion(detector(config));
        assert!((9..=12).contains(&seconds), "{seconds}");
        let config = FdAll2Config { timeout: Duration::from_secs(9), interval: Duration::from_secs(3) };
        let seconds = seconds_until_suspicion(detector(config));
        assert!((9..=18).contains(&seconds), "{seconds}");
    }

    #[test]
    fn each_kind_sends_and_reads_heartbeats_under_its_own_id() {
        for (mut harness, id) in [
            (detector(FdAllConfig::default()), ProtocolId::FD_ALL),
            (detector(FdAll2Config::default()), ProtocolId::FD_ALL2),
            (detector(FdAll3Config::default()), ProtocolId::FD_ALL3),
        ] {
            harness.take_down();
            harness.advance(Duration::from_secs(8));
            let sent = harness.take_down();
            assert_eq!(sent.len(), 1);
            assert_eq!(sent[0].headers.get(id), Some(&HeaderBody::Heartbeat));
            let mut heartbeat = Message::empty(None).with_header(id, HeaderBody::Heartbeat);
            heartbeat.src = Some(member(2));
            assert_eq!(harness.up(heartbeat).take_up(), []);
        }
    }

    #[test]
    fn a_member_of_fd_all_is_silent_after_two_heartbeats_not_after_two_checks() {
        let mut harness = detector(FdAllConfig::default());
        harness.advance(Duration::from_secs(16));
        assert_eq!(harness.take_up_events(), []);
        harness.advance(Duration::from_secs(2));
        assert_eq!(harness.take_up_events(), [Event::Silent(vec![member(2)])]);
    }

    #[test]
    fn a_silent_member_of_fd_all_is_suspected_at_the_next_check() {
        let suspected_after = |timeout_check_interval: u64| {
            let mut harness = detector(FdAllConfig {
                timeout: Duration::from_secs(10),
                timeout_check_interval: Duration::from_secs(timeout_check_interval),
                ..FdAllConfig::default()
            });
            (1..60).find(|_| {
                harness.advance(Duration::from_secs(1));
                harness.count(StackCount::Suspicions) > 0
            })
        };
        let (often, seldom) = (suspected_after(1).unwrap(), suspected_after(20).unwrap());
        assert!((10..=12).contains(&often), "{often}");
        assert!((20..=40).contains(&seldom), "{seldom}");
    }

    #[test]
    fn a_check_interval_of_no_length_is_refused() {
        let config = FdAllConfig { timeout_check_interval: Duration::ZERO, ..FdAllConfig::default() };
        assert_eq!(config.check().unwrap_err().0, "timeout_check_interval");
    }
}
