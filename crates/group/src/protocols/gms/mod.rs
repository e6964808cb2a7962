//! GMS: who is in the group (facts section 12).
//!
//! Members join through the coordinator, which is the first member of the view. It alone makes views: for joins,
//! leaves and crashes that come close together, one view. When it leaves or crashes, the next member takes over.
//! Groups that have formed apart are merged by one of their coordinators.
//!
//! What it guarantees: a member installs views of rising number only, each contains the member itself, and nobody is
//! in two views of different members at the same number unless the group has been partitioned.

mod coordinating;
mod joining;
mod leaving;
mod merging;
mod policy;
mod receiving;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use policy::{DefaultPolicy, MembershipPolicy};

use coordinating::{Acks, Pending};
use joining::Join;
use merging::Merge;

use crate::wire;
use crate::{
    Address, Answer, Control, Cx, Event, Flags, GmsHeader, GmsKind, HeaderBody, HeaderIds, MergeId, Message,
    MessageBatch, Pass, Payload, ProbeOut, Protocol, ProtocolId, Query, StackCount, TimerKey, Transient,
    View,
};

crate::properties! {
    /// GMS' properties.
    GmsConfig {
        /// How long a discovery lasts, and how long a joiner waits for a coordinator's answer.
        join_timeout: Duration = Duration::from_secs(2),
        /// Attempts to join before a member becomes a group of its own; MERGE3 unites it with the others later.
        /// 0 = it never gives up.
        max_join_attempts: u32 = 10,
        /// How long a joiner that has only met other joiners waits before it looks again.
        all_clients_retry_timeout: Duration = Duration::from_millis(100),
        /// How long a leaver waits for an answer before it goes without.
        leave_timeout: Duration = Duration::from_secs(1),
        /// How long the leader of a merge waits for the coordinators. A merge is over after twice this time.
        merge_timeout: Duration = Duration::from_secs(5),
        /// How long a coordinator waits for the members to confirm a view before it makes the next one.
        view_ack_collection_timeout: Duration = Duration::from_secs(2),
        /// Whether joins, leaves and crashes that come within `max_bundling_time` make one view.
        view_bundling: bool = true,
        /// How long a coordinator collects requests before it makes a view. Short beside any failure timeout, long
        /// beside the spread of a deployment's joins.
        max_bundling_time: Duration = Duration::from_millis(50),
        /// Whether views travel as the difference from the one before.
        use_delta_views: bool = true,
        /// Whether views that are not newer, or lack this member, are logged.
        log_view_warnings: bool = true,
        /// Whether missing confirmations of a view are logged.
        log_collect_msgs: bool = false,
        /// Views to remember for probe.
        num_prev_views: usize = 10,
    }
}

/// Requests that wait for the next view. More than any deployment starts at once; joiners ask again.
const PENDING_MAX: usize = 4_096;
/// How long stability may stay suspended while members join.
const STABLE_SUSPENDED_MAX: Duration = Duration::from_secs(30);

const JOIN: TimerKey = TimerKey(1);
const BUNDLE: TimerKey = TimerKey(2);
const ACKS: TimerKey = TimerKey(3);
const LEAVE: TimerKey = TimerKey(4);
const MERGE_RESPONSES: TimerKey = TimerKey(5);
const MERGE_DIGESTS: TimerKey = TimerKey(6);
const MERGE_END: TimerKey = TimerKey(7);

/// Where a member stands.
enum Role {
    /// Not connected.
    Idle,
    /// On the way in.
    Joining(Join),
    /// In a view.
    Member,
    /// In a view, on the way out; the member that has been asked to make the view without us.
    Leaving {
        /// Whom we have asked.
        asked: Option<Address>,
    },
}

/// The protocol.
pub struct Gms {
    config: GmsConfig,
    policy: Arc<dyn MembershipPolicy>,
    role: Role,
    /// Whether this member has taken the coordinator's part. The coordinator of a view has it, and whoever takes over
    /// from one that leaves or crashes.
    is_coordinating: bool,
    /// Whether this coordinator has sent a whole view, so that a difference can follow.
    has_sent_view: bool,
    pending: Pending,
    acks: Option<Acks>,
    merge: Option<Merge>,
    /// Merges that are over: their late messages must not start them again.
    merges_done: VecDeque<MergeId>,
    next_merge: i32,
    /// The highest view number that was ever seen.
    highest_view: u64,
    views: u64,
    merge_views: u64,
    /// Views that not all members confirmed in time.
    unconfirmed_views: u64,
    previous_views: VecDeque<String>,
}

impl Gms {
    /// The protocol before it joins, with JGroups' membership policy.
    pub fn new(config: GmsConfig) -> Self {
        Self::with_policy(config, Arc::new(DefaultPolicy))
    }

    /// The same with another policy.
    pub fn with_policy(config: GmsConfig, policy: Arc<dyn MembershipPolicy>) -> Self {
        Self {
            config,
            policy,
            role: Role::Idle,
            is_coordinating: false,
            has_sent_view: false,
            pending: Pending::default(),
            acks: None,
            merge: None,
            merges_done: VecDeque::new(),
            next_merge: 0,
            highest_view: 0,
            views: 0,
            merge_views: 0,
            unconfirmed_views: 0,
            previous_views: VecDeque::new(),
        }
    }

    fn is_server(&self) -> bool {
        matches!(self.role, Role::Member | Role::Leaving { .. })
    }

    const fn is_leaving(&self) -> bool {
        matches!(self.role, Role::Leaving { .. })
    }

    /// Makes a view the current one and takes the part it gives us.
    fn install(&mut self, cx: &mut Cx<'_>, view: View) {
        self.views += 1;
        self.merge_views += u64::from(view.is_merge());
        self.highest_view = self.highest_view.max(view.id().id);
        let text = view.display(&cx.shared().book);
        tracing::debug!(view = %text, "new view");
        self.previous_views.push_back(text);
        while self.previous_views.len() > self.config.num_prev_views {
            self.previous_views.pop_front();
        }
        let leads = view.coordinator() == Some(cx.local());
        if leads && !self.is_coordinating {
            self.has_sent_view = false;
        }
        self.is_coordinating = leads;
        self.pending.keep_members(&view, leads);
        if let Some(acks) = &mut self.acks {
            acks.missing.retain(|member| view.contains(member));
        }
        cx.install(view);
        self.coordinator_may_have_changed(cx);
    }

    fn header(kind: GmsKind) -> GmsHeader {
        GmsHeader { kind, member: None, merge_id: None, merge_rejected: false }
    }

    fn send(cx: &mut Cx<'_>, dest: Option<&Address>, header: GmsHeader, flags: Flags, payload: Payload) {
        let mut message = Message::new(dest.cloned(), payload)
            .with_flags(flags)
            .with_header(ProtocolId::GMS, HeaderBody::Gms(Box::new(header)));
        if message.is_multicast() {
            message.transient |= Transient::DONT_LOOPBACK;
        }
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn forget_group(&mut self, cx: &mut Cx<'_>) {
        self.role = Role::Idle;
        self.is_coordinating = false;
        self.has_sent_view = false;
        self.pending = Pending::default();
        self.acks = None;
        self.merge = None;
        self.merges_done.clear();
        for key in [JOIN, BUNDLE, ACKS, LEAVE, MERGE_RESPONSES, MERGE_DIGESTS, MERGE_END] {
            cx.disarm(key);
        }
        cx.shared_mut().view = None;
    }
}

impl Protocol for Gms {
    fn name(&self) -> &'static str {
        "GMS"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::GMS
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| match message.headers.take(ProtocolId::GMS) {
            Some(HeaderBody::Gms(header)) => {
                self.receive(cx, &header, message);
                false
            }
            _ => true,
        });
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Found(found) => {
                self.found(cx, found);
                Pass::Stop
            }
            Event::Suspect(members) => {
                self.suspect(cx, members);
                Pass::On
            }
            Event::Unsuspect(members) => {
                self.pending.suspects.retain(|member| !members.contains(member));
                Pass::On
            }
            Event::MergeViews(views) => {
                self.views_differ(cx, views);
                Pass::Stop
            }
            Event::Heard(_) | Event::WhoHas(_) => Pass::Stop,
            _ => Pass::On,
        }
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Connect => {
                self.connect(cx);
                Pass::Stop
            }
            Event::Disconnect => {
                self.disconnect(cx);
                Pass::Stop
            }
            _ => Pass::On,
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            JOIN => self.join_timer(cx),
            BUNDLE => self.make_view(cx),
            ACKS => self.acks_late(cx),
            LEAVE => self.left(cx),
            MERGE_RESPONSES => self.combine_merge(cx),
            MERGE_DIGESTS => self.answer_merge(cx),
            _ => self.end_merge(cx),
        }
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            Query::IsServer => Some(Answer::Yes(self.is_server())),
            _ => None,
        }
    }

    fn set_attribute(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        crate::config::Properties::set(&mut self.config, name, value)
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::Merges, self.merge_views)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("is_coordinator", self.is_coordinating);
        out.put("num_views", self.views);
        out.put("num_merge_views", self.merge_views);
        out.put("num_unconfirmed_views", self.unconfirmed_views);
        out.put("merge_in_progress", self.merge.is_some());
        out.put("pending_requests", self.pending.len());
        out.put("prev_views", self.previous_views.iter().map(|view| format!("{view}\n")).collect::<String>());
    }

    fn operations(&self) -> &'static [&'static str] {
        &["printPreviousViews", "suspect"]
    }

    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        match name {
            "printPreviousViews" => {
                Some(Ok(self.previous_views.iter().map(|view| format!("{view}\n")).collect()))
            }
            // Suspends nothing and loses nothing: members that are alive answer the next heartbeat.
            "suspect" => {
                let wanted = _args.first().copied().unwrap_or_default();
                let found = cx.shared().book.by_name(wanted).cloned();
                Some(match found {
                    Some(member) => {
                        self.suspect(cx, &[member]);
                        Ok(String::new())
                    }
                    None => Err(format!("no member is named {wanted:?}")),
                })
            }
            _ => None,
        }
    }

    /// A state transfer above has set the windows, maybe past a view that had not arrived: the coordinator is asked
    /// whether there is one (facts 21.1).
    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if !matches!(control, Control::OverwriteDigest(_)) || !self.is_server() {
            return;
        }
        let Some(view) = cx.view().cloned() else { return };
        if let Some(coordinator) = view.coordinator().filter(|member| !cx.is_local(member)) {
            let payload = Payload::Bytes(Some(wire::encode_view_id_option(Some(view.id()))));
            let flags = Flags::OOB | Flags::NO_FC;
            Self::send(cx, Some(coordinator), Self::header(GmsKind::GetCurrentView), flags, payload);
        }
    }
}

#[cfg(test)]
mod tests;
