//! GMS: group membership.
//!
//! The coordinator, the first member of the view, admits joiners and makes all views; joins, leaves and crashes close
//! together result in one. When it leaves or crashes, the next member takes over. One of the coordinators merges
//! groups that were formed separately.
//!
//! Guarantees: a member installs views of increasing number that contain it. Without a partition, no two members have
//! different views of one number.

mod coordinating;
mod group;
mod history;
mod joining;
mod leaving;
mod merging;
mod messages;
mod policy;
mod receiving;

use std::sync::Arc;
use std::time::Duration;

pub use policy::{DefaultPolicy, MembershipPolicy};

use coordinating::Coordinator;
use group::Group;
use history::ViewHistory;
use joining::Join;
use leaving::Leave;
use merging::{MergeStep, Merging};
use messages::{header, send};

use crate::config::Properties;
use crate::wire;
use crate::{
    Answer, Control, Cx, Event, Flags, GmsKind, HeaderBody, HeaderIds, MessageBatch, Pass, Payload, ProbeOut,
    Protocol, ProtocolId, Query, StackCount, TimerKey, View,
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

/// More than any deployment starts at once. Joiners repeat their request.
const PENDING_MAX: usize = 4_096;
/// The bound while members join.
const STABLE_SUSPENDED_MAX: Duration = Duration::from_secs(30);

const JOIN: TimerKey = TimerKey(1);
const BUNDLE: TimerKey = TimerKey(2);
const ACKS: TimerKey = TimerKey(3);
const LEAVE: TimerKey = TimerKey(4);
const MERGE_RESPONSES: TimerKey = TimerKey(5);
const MERGE_DIGESTS: TimerKey = TimerKey(6);
const MERGE_END: TimerKey = TimerKey(7);

enum Role {
    Idle,
    Joining(Join),
    Member,
    Leaving(Leave),
}

/// The GMS layer. Its parts own their state; it carries out steps that concern several.
pub struct Gms {
    group: Group,
    coordinator: Coordinator,
    merging: Merging,
    history: ViewHistory,
}

impl Gms {
    /// Creates the layer with JGroups' policy.
    pub fn new(config: GmsConfig) -> Self {
        Self::with_policy(config, Arc::new(DefaultPolicy))
    }

    /// Creates the layer.
    pub fn with_policy(config: GmsConfig, policy: Arc<dyn MembershipPolicy>) -> Self {
        Self {
            group: Group::new(config, policy),
            coordinator: Coordinator::default(),
            merging: Merging::default(),
            history: ViewHistory::default(),
        }
    }

    fn install(&mut self, cx: &mut Cx<'_>, view: View) {
        self.group.note_view_number(view.id().id);
        self.history.add(cx, &view, self.group.config.num_prev_views);
        self.coordinator.follow(&view, view.coordinator() == Some(cx.local()));
        cx.install(view);
        self.coordinator_may_have_changed(cx);
    }

    fn forget_group(&mut self, cx: &mut Cx<'_>) {
        self.group.role = Role::Idle;
        self.coordinator.forget_group();
        self.merging.forget_group();
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
                self.coordinator.withdraw_suspicions(members);
                Pass::On
            }
            Event::MergeViews(views) => {
                let step = self.merging.lead_if_chosen(cx, &self.group, views);
                self.take_merge_step(cx, step);
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
            MERGE_RESPONSES => {
                let step = self.merging.combine(cx, &self.group);
                self.take_merge_step(cx, step);
            }
            MERGE_DIGESTS => {
                let step = self.merging.answer(cx, &self.group);
                self.take_merge_step(cx, step);
            }
            _ => self.take_merge_step(cx, MergeStep::End),
        }
    }

    fn answer(&self, query: &Query<'_>) -> Option<Answer> {
        match query {
            Query::IsServer => Some(Answer::Yes(self.group.is_server())),
            _ => None,
        }
    }

    fn variable_properties(&mut self) -> Option<&mut dyn Properties> {
        Some(&mut self.group.config)
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::Merges, self.history.merge_views)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.group.config);
        out.put("is_coordinator", self.coordinator.is_coordinating);
        out.put("num_views", self.history.views);
        out.put("num_merge_views", self.history.merge_views);
        out.put("num_unconfirmed_views", self.coordinator.unconfirmed_views);
        out.put("merge_in_progress", self.merging.is_running());
        out.put("pending_requests", self.coordinator.pending.len());
        out.put("prev_views", self.history.previous_views());
    }

    fn operations(&self) -> &'static [&'static str] {
        &["printPreviousViews", "suspect"]
    }

    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, _args: &[&str]) -> Option<Result<String, String>> {
        match name {
            "printPreviousViews" => Some(Ok(self.history.previous_views())),
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

    /// After a state transfer the windows may be past a view, so the coordinator is asked for a newer one.
    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if !matches!(control, Control::OverwriteDigest(_)) || !self.group.is_server() {
            return;
        }
        let Some(view) = cx.view().cloned() else { return };
        if let Some(coordinator) = view.coordinator().filter(|member| !cx.is_local(member)) {
            let payload = Payload::Bytes(Some(wire::encode_view_id_option(Some(view.id()))));
            let flags = Flags::OOB | Flags::NO_FC;
            send(cx, Some(coordinator), header(GmsKind::GetCurrentView), flags, payload);
        }
    }
}

#[cfg(test)]
mod tests;
