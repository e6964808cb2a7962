//! GMS: group membership.
//!
//! Members join through the coordinator, the first member of the view. Only the coordinator makes views;
//! joins, leaves and crashes that occur close together result in one view. When the coordinator leaves or
//! crashes, the next member takes over. One of the coordinators merges groups that were formed separately.
//!
//! Guarantees: a member installs views of increasing number only, and each contains the member itself. No
//! member is in two different views of the same number unless the group was partitioned.

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
        /// The duration of a discovery, and how long a joiner waits for a coordinator's response.
        join_timeout: Duration = Duration::from_secs(2),
        /// The attempts to join before a member becomes a group of its own; MERGE3 merges it later. 0 =
        /// unlimited.
        max_join_attempts: u32 = 10,
        /// How long a joiner that found only other joiners waits before the next discovery.
        all_clients_retry_timeout: Duration = Duration::from_millis(100),
        /// How long a leaver waits for a response before it leaves without one.
        leave_timeout: Duration = Duration::from_secs(1),
        /// How long a merge leader waits for the coordinators. A merge ends after twice this time.
        merge_timeout: Duration = Duration::from_secs(5),
        /// How long a coordinator waits for the members' acknowledgements of a view before it makes the next
        /// one.
        view_ack_collection_timeout: Duration = Duration::from_secs(2),
        /// Whether joins, leaves and crashes within `max_bundling_time` result in one view.
        view_bundling: bool = true,
        /// How long a coordinator collects requests before it makes a view. Short compared with failure
        /// timeouts, long compared with the spread of a deployment's joins.
        max_bundling_time: Duration = Duration::from_millis(50),
        /// Whether views travel as differences from the previous view.
        use_delta_views: bool = true,
        /// Whether views are logged that are not newer or lack this member.
        log_view_warnings: bool = true,
        /// Whether missing acknowledgements of a view are logged.
        log_collect_msgs: bool = false,
        /// The number of views kept for probe.
        num_prev_views: usize = 10,
    }
}

/// The maximum number of requests pending for the next view: more than any deployment starts at once. Joiners
/// repeat their request.
const PENDING_MAX: usize = 4_096;
/// The maximum time for which stability is suspended while members join.
const STABLE_SUSPENDED_MAX: Duration = Duration::from_secs(30);

const JOIN: TimerKey = TimerKey(1);
const BUNDLE: TimerKey = TimerKey(2);
const ACKS: TimerKey = TimerKey(3);
const LEAVE: TimerKey = TimerKey(4);
const MERGE_RESPONSES: TimerKey = TimerKey(5);
const MERGE_DIGESTS: TimerKey = TimerKey(6);
const MERGE_END: TimerKey = TimerKey(7);

enum Role {
    /// Not connected.
    Idle,
    /// Joining.
    Joining(Join),
    /// Member of a view.
    Member,
    /// Member of a view, leaving.
    Leaving {
        /// The member that was requested to make the view without this one.
        asked: Option<Address>,
    },
}

/// The GMS layer.
pub struct Gms {
    config: GmsConfig,
    policy: Arc<dyn MembershipPolicy>,
    role: Role,
    /// Whether this member acts as coordinator: as first member of the view, or in place of coordinators that
    /// leave or crash.
    is_coordinating: bool,
    /// Whether this coordinator has sent a full view, so that differences can follow.
    has_sent_view: bool,
    pending: Pending,
    acks: Option<Acks>,
    merge: Option<Merge>,
    /// Merges that are over. Their late messages must not restart them.
    merges_done: VecDeque<MergeId>,
    next_merge: i32,
    /// The highest view number seen.
    highest_view: u64,
    views: u64,
    merge_views: u64,
    /// The number of views that not all members acknowledged in time.
    unconfirmed_views: u64,
    previous_views: VecDeque<String>,
}

impl Gms {
    /// Creates the layer with JGroups' membership policy.
    pub fn new(config: GmsConfig) -> Self {
        Self::with_policy(config, Arc::new(DefaultPolicy))
    }

    /// Creates the layer with another policy.
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

    /// Makes a view current and takes the role that it assigns.
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
            Event::InjectView(view) => {
                self.install(cx, view.clone());
                Pass::Stop
            }
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
            Event::InjectView(view) => {
                self.install(cx, view.clone());
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
            // Raises a suspicion without loss: a living member clears it with its next heartbeat.
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

    /// Handles control calls. After a state transfer above, the windows may be past a view that had not
    /// arrived, so the coordinator is asked for a newer view.
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
