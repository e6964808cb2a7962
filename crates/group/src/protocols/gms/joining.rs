//! Joining: discovery, the request to a coordinator, or a new group.

use std::collections::VecDeque;

use super::messages::{header, send, send_view_ack};
use super::{Gms, GmsConfig, JOIN, Role};
use crate::wire::{self, JoinRsp};
use crate::{
    Address, Answer, Control, Cx, Digest, DropReason, Event, Flags, GmsHeader, GmsKind, Message, Payload,
    PingData, Query, View, ViewId,
};

pub(super) struct Join {
    /// The failed discoveries.
    attempts: u32,
    step: Step,
}

enum Step {
    /// A discovery runs.
    Discovering,
    /// The timer starts the next discovery.
    Waiting,
    /// `others`: the remaining coordinators.
    Asking { others: VecDeque<Address> },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waits,
    StartsGroup,
}

impl Join {
    const fn new() -> Self {
        Self { attempts: 0, step: Step::Discovering }
    }

    fn discover(&mut self, cx: &mut Cx<'_>, config: &GmsConfig) -> Progress {
        self.step = Step::Discovering;
        cx.lower(Event::FindMembers { is_initial: true, timeout: config.join_timeout });
        Progress::Waits
    }

    fn found(&mut self, cx: &mut Cx<'_>, config: &GmsConfig, found: &[PingData]) -> Progress {
        let local = cx.local().clone();
        if !matches!(self.step, Step::Discovering) {
            return Progress::Waits;
        }
        let others: Vec<&PingData> = found.iter().filter(|data| data.sender != local).collect();
        if others.is_empty() {
            return Progress::StartsGroup;
        }
        let mut coordinators: Vec<Address> =
            others.iter().filter(|data| data.is_coordinator).map(|data| data.sender.clone()).collect();
        if coordinators.is_empty() {
            // Only joiners: the smallest starts a group. A member whose coordinator has just left is not a
            // joiner, and its group has a new coordinator soon.
            let has_members = others.iter().any(|data| data.is_server);
            if !has_members && others.iter().all(|data| local < data.sender) {
                return Progress::StartsGroup;
            }
            self.step = Step::Waiting;
            if self.has_failed(config) {
                return Progress::StartsGroup;
            }
            cx.arm(JOIN, config.all_clients_retry_timeout);
            return Progress::Waits;
        }
        cx.rng().shuffle(&mut coordinators);
        self.step = Step::Asking { others: coordinators.into() };
        self.ask_next(cx, config)
    }

    fn has_failed(&mut self, config: &GmsConfig) -> bool {
        let most = config.max_join_attempts;
        self.attempts += 1;
        let is_last = most > 0 && self.attempts >= most;
        if is_last {
            tracing::warn!(
                attempts = most,
                "no coordinator let this member join: it becomes a group of its own"
            );
        }
        is_last
    }

    fn ask_next(&mut self, cx: &mut Cx<'_>, config: &GmsConfig) -> Progress {
        let Step::Asking { others } = &mut self.step else { return Progress::Waits };
        let Some(coordinator) = others.pop_front() else {
            return if self.has_failed(config) { Progress::StartsGroup } else { self.discover(cx, config) };
        };
        let header = GmsHeader { member: Some(cx.local().clone()), ..header(GmsKind::JoinReq) };
        send(cx, Some(&coordinator), header, Flags::OOB, Payload::Bytes(None));
        cx.arm(JOIN, config.join_timeout);
        Progress::Waits
    }

    fn timer(&mut self, cx: &mut Cx<'_>, config: &GmsConfig) -> Progress {
        match self.step {
            Step::Discovering => Progress::Waits,
            Step::Waiting => self.discover(cx, config),
            Step::Asking { .. } => self.ask_next(cx, config),
        }
    }
}

impl Gms {
    pub(super) fn connect(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.group.role, Role::Idle) {
            return cx.raise(Event::Connected(Err("already connected".to_owned())));
        }
        self.group.role = Role::Joining(Join::new());
        cx.lower(Event::Connect);
        self.continue_join(cx, Join::discover);
    }

    pub(super) fn found(&mut self, cx: &mut Cx<'_>, found: &[PingData]) {
        self.continue_join(cx, |join, cx, config| join.found(cx, config, found));
    }

    pub(super) fn join_timer(&mut self, cx: &mut Cx<'_>) {
        self.continue_join(cx, Join::timer);
    }

    /// After the last attempt this member becomes a group of its own.
    fn continue_join(
        &mut self,
        cx: &mut Cx<'_>,
        step: impl FnOnce(&mut Join, &mut Cx<'_>, &GmsConfig) -> Progress,
    ) {
        let Role::Joining(join) = &mut self.group.role else { return };
        if step(join, cx, &self.group.config) == Progress::StartsGroup {
            self.become_singleton(cx);
        }
    }

    fn become_singleton(&mut self, cx: &mut Cx<'_>) {
        let local = cx.local().clone();
        let view = View::new(ViewId { creator: local.clone(), id: 0 }, vec![local.clone()]);
        let mut digest = Digest::default();
        digest.set(local, 0, 0);
        self.joined(cx, view, &digest);
    }

    fn joined(&mut self, cx: &mut Cx<'_>, view: View, digest: &Digest) {
        cx.disarm(JOIN);
        cx.control(&Control::SetDigest(digest));
        self.group.role = Role::Member;
        self.install(cx, view);
        cx.control(&Control::BecomeServer);
        cx.raise(Event::Connected(Ok(())));
    }

    pub(super) fn join_rsp(&mut self, cx: &mut Cx<'_>, message: &Message, src: &Address) {
        let rsp = message.payload_bytes().map(wire::decode_join_rsp);
        let Some(Ok(rsp)) = rsp else { return cx.discard(message, DropReason::Malformed) };
        if let JoinRsp { fail_reason: Some(reason), .. } = rsp {
            if matches!(self.group.role, Role::Joining(_)) {
                self.refused(cx, &reason);
            }
            return;
        }
        let local = cx.local().clone();
        let (Some(view), Some(digest)) = (rsp.view, rsp.digest) else {
            return cx.discard(message, DropReason::Malformed);
        };
        if !view.contains(&local) || digest.get(&local).is_none() {
            return cx.discard(message, DropReason::Unexpected);
        }
        let creator = view.id().creator.clone();
        match self.group.role {
            Role::Joining(_) => self.joined(cx, view, &digest),
            // A response that arrives after this member stopped waiting and started alone.
            Role::Member
                if cx.view().is_none_or(|own| own.id().id < view.id().id)
                    && has_all_own_messages(cx, &local, &digest) =>
            {
                cx.control(&Control::SetDigest(&digest));
                self.install(cx, view);
            }
            _ => return,
        }
        send_view_ack(cx, if creator == local { src } else { &creator });
    }

    fn refused(&mut self, cx: &mut Cx<'_>, reason: &str) {
        self.forget_group(cx);
        cx.lower(Event::Disconnect);
        cx.raise(Event::Connected(Err(format!("the coordinator refused the join: {reason}"))));
    }
}

/// Otherwise all members would wait for messages that this member sent while alone. A merge unites the groups
/// instead.
fn has_all_own_messages(cx: &Cx<'_>, local: &Address, digest: &Digest) -> bool {
    let sent = |digest: &Digest| digest.get(local).map_or(0, |row| row.highest_received);
    match cx.ask(&Query::DigestOf(local)) {
        Some(Answer::Digest(own)) => sent(&own) <= sent(digest),
        _ => true,
    }
}
