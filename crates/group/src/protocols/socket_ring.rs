//! The parts that FD_SOCK and FD_SOCK2 share: the member that this one watches, and the suspicions of members.
//!
//! Suspicions and withdrawals are sent without reliability. The detecting member repeats a suspicion while it holds;
//! others forget it without repetition. (JGroups keeps it until the member is gone.)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ended_streams::EndedStreams;
use super::fd_all::would_lead;
use crate::{
    Address, Cx, Event, HeaderBody, Message, Payload, ProbeOut, ProtocolId, Time, TimerKey, Transient,
};

/// The layers' own timers have other keys.
pub(super) const REPORT: TimerKey = TimerKey(2);
pub(super) const RETRY: TimerKey = TimerKey(3);
pub(super) const EXPIRE: TimerKey = TimerKey(4);

/// A received suspicion holds for these report intervals: two repetitions may be lost.
const RECEIVED_INTERVALS: u32 = 3;

/// Checks `client_bind_port`.
pub(super) fn check_client_port(port: u16) -> Result<(), (&'static str, String)> {
    if port == 0 {
        return Ok(());
    }
    let why = format!(
        "client_bind_port ({port}) is refused: connections to one member after the other cannot share a port; leave it \
         at 0"
    );
    Err(("client_bind_port", why))
}

/// The headers of a layer's reports.
pub(super) struct ReportHeaders {
    pub(super) id: ProtocolId,
    pub(super) suspect: fn(Vec<Address>) -> HeaderBody,
    pub(super) unsuspect: fn(Vec<Address>) -> HeaderBody,
}

pub(super) struct SocketRing {
    headers: ReportHeaders,
    suspect_msg_interval: Duration,
    /// Members are not connected to before this time: they closed gracefully or were unreachable.
    pauses: BTreeMap<Address, Time>,
    suspects: BTreeSet<Address>,
    /// Each suspicion holds until this time.
    received: BTreeMap<Address, Time>,
    /// Of members whose connection ended as it does when a process dies; noted by FD_SOCK2.
    pub(super) ended: EndedStreams,
    /// Their connection broke; they are reported until they are gone.
    detected: BTreeSet<Address>,
    suspicions: u64,
}

impl SocketRing {
    pub(super) fn new(headers: ReportHeaders, suspect_msg_interval: Duration) -> Self {
        Self {
            headers,
            suspect_msg_interval,
            pauses: BTreeMap::new(),
            suspects: BTreeSet::new(),
            received: BTreeMap::new(),
            ended: EndedStreams::default(),
            detected: BTreeSet::new(),
            suspicions: 0,
        }
    }

    pub(super) fn clear(&mut self, cx: &mut Cx<'_>) {
        for key in [REPORT, RETRY, EXPIRE] {
            cx.disarm(key);
        }
        self.pauses.clear();
        self.suspects.clear();
        self.received.clear();
        self.ended.clear();
        self.detected.clear();
    }

    /// The next member in the view that is not known to have crashed.
    pub(super) fn next(&self, cx: &Cx<'_>) -> Option<Address> {
        let view = cx.view()?;
        let rank = view.rank(cx.local())?;
        let members = view.members();
        (1..members.len())
            .map(|step| &members[(rank + step) % members.len()])
            .find(|member| !self.detected.contains(member))
            .cloned()
    }

    pub(super) fn pause(&mut self, cx: &mut Cx<'_>, member: Address, pause: Duration) {
        self.pauses.insert(member, cx.now() + pause);
        cx.arm(RETRY, pause);
    }

    /// Returns true while the member is not to be connected to. [`RETRY`] fires at the end.
    pub(super) fn is_pausing(&mut self, cx: &mut Cx<'_>, member: &Address) -> bool {
        let Some(&until) = self.pauses.get(member) else { return false };
        if cx.now() < until {
            let rest = until.since(cx.now());
            cx.arm(RETRY, rest);
            return true;
        }
        self.pauses.remove(member);
        false
    }

    pub(super) fn retain_members(&mut self, cx: &mut Cx<'_>) {
        let Some(view) = cx.view().cloned() else { return };
        self.retain_suspects(cx, |member| view.contains(member));
        self.pauses.retain(|member, _| view.contains(member));
        self.ended.retain(|member| view.contains(member));
    }

    pub(super) fn suspect(&mut self, cx: &mut Cx<'_>, member: Address) {
        self.suspicions += 1;
        tracing::debug!(member = %cx.shared().book.member(&member), "the connection to the member broke");
        self.suspects.insert(member.clone());
        self.detected.insert(member);
        self.report_suspects(cx);
    }

    /// Also acts if this member would now lead, because the previous leader may be gone.
    pub(super) fn report_suspects(&self, cx: &mut Cx<'_>) {
        if self.detected.is_empty() {
            return cx.disarm(REPORT);
        }
        let detected: Vec<Address> = self.detected.iter().cloned().collect();
        let marks = self.ended.marks(cx.now(), &detected);
        self.multicast_with(cx, (self.headers.suspect)(detected), marks);
        cx.arm(REPORT, self.report_interval());
        self.raise_suspects(cx);
    }

    /// Suspicions are repeated, because multicasts are unreliable here.
    pub(super) fn multicast(&self, cx: &mut Cx<'_>, header: HeaderBody) {
        self.multicast_with(cx, header, Payload::Empty);
    }

    fn multicast_with(&self, cx: &mut Cx<'_>, header: HeaderBody, payload: Payload) {
        let mut message = Message::new(None, payload).with_header(self.headers.id, header);
        message.transient |= Transient::DONT_LOOPBACK;
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn raise_suspects(&self, cx: &mut Cx<'_>) {
        let suspects = self.acted_on(cx);
        if !suspects.is_empty() {
            cx.raise(Event::Suspect(suspects));
        }
    }

    /// The suspects that this member passes up, because it leads without them.
    pub(super) fn acted_on(&self, cx: &Cx<'_>) -> Vec<Address> {
        let acts = !self.suspects.is_empty() && would_lead(cx, &self.suspects);
        if acts { self.suspects.iter().cloned().collect() } else { Vec::new() }
    }

    pub(super) fn receive_suspects(&mut self, cx: &mut Cx<'_>, members: Vec<Address>) {
        let Some(view) = cx.view().cloned() else { return };
        let local = cx.local().clone();
        let until = cx.now() + self.report_interval().saturating_mul(RECEIVED_INTERVALS);
        for member in members.into_iter().filter(|member| view.contains(member) && *member != local) {
            self.received.insert(member.clone(), until);
            self.suspects.insert(member);
        }
        self.arm_forget(cx);
        self.raise_suspects(cx);
    }

    fn report_interval(&self) -> Duration {
        self.suspect_msg_interval.max(Duration::from_millis(1))
    }

    fn arm_forget(&self, cx: &mut Cx<'_>) {
        match self.received.values().min() {
            Some(until) => {
                let rest = until.since(cx.now());
                cx.arm(EXPIRE, rest);
            }
            None => cx.disarm(EXPIRE),
        }
    }

    /// The reporter was wrong or is gone; a real crash is detected again.
    pub(super) fn expire_received(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        let over: Vec<Address> =
            self.received.extract_if(.., |_, until| *until <= now).map(|(member, _)| member).collect();
        self.withdraw(cx, over.into_iter().filter(|member| !self.detected.contains(member)).collect());
        self.arm_forget(cx);
    }

    /// The layers above may wait for them, and only the socket layer reports another member's verification.
    pub(super) fn withdraw(&mut self, cx: &mut Cx<'_>, mut members: Vec<Address>) {
        members.retain(|member| self.suspects.contains(member));
        if !members.is_empty() {
            self.unsuspect(cx, &members);
            cx.raise(Event::Unsuspect(members));
        }
    }

    pub(super) fn unsuspect(&mut self, cx: &mut Cx<'_>, members: &[Address]) {
        self.retain_suspects(cx, |member| !members.contains(member));
    }

    /// Tells the other members that these live.
    pub(super) fn report_alive(&self, cx: &mut Cx<'_>, members: &[Address]) {
        if members.iter().any(|member| self.suspects.contains(member)) {
            self.multicast(cx, (self.headers.unsuspect)(members.to_vec()));
        }
    }

    fn retain_suspects(&mut self, cx: &mut Cx<'_>, keep: impl Fn(&Address) -> bool) {
        self.suspects.retain(&keep);
        self.detected.retain(&keep);
        self.received.retain(|member, _| keep(member));
        self.arm_forget(cx);
        if self.detected.is_empty() {
            cx.disarm(REPORT);
        }
    }

    pub(super) fn suspicions(&self) -> u64 {
        self.suspicions
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put("num_suspect_events", self.suspicions);
        out.put("suspects", format!("{:?}", self.suspects));
    }
}
