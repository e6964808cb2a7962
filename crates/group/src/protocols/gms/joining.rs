//! Joining: discovery, the request to a coordinator, and starting a group if there is none.

use std::collections::VecDeque;

use super::{Gms, JOIN, Role};
use crate::wire::{self, JoinRsp};
use crate::{
    Address, Answer, Control, Cx, Digest, DropReason, Event, Flags, GmsKind, Message, Payload, PingData,
    Query, View, ViewId,
};

pub(super) struct Join {
    /// Failed rounds of discovery.
    attempts: u32,
    step: Step,
}

enum Step {
    /// A discovery runs.
    Discovering,
    /// No coordinator was found. The timer starts the next discovery.
    Waiting,
    /// A coordinator has the request; `others` are the remaining ones.
    Asking { others: VecDeque<Address> },
}

impl Gms {
    pub(super) fn connect(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.role, Role::Idle) {
            return cx.raise(Event::Connected(Err("already connected".to_owned())));
        }
        self.role = Role::Joining(Join { attempts: 0, step: Step::Discovering });
        cx.lower(Event::Connect);
        self.discover(cx);
    }

    fn discover(&mut self, cx: &mut Cx<'_>) {
        let Role::Joining(join) = &mut self.role else { return };
        join.step = Step::Discovering;
        cx.lower(Event::FindMembers { is_initial: true, timeout: self.config.join_timeout });
    }

    pub(super) fn found(&mut self, cx: &mut Cx<'_>, found: &[PingData]) {
        let local = cx.local().clone();
        let Role::Joining(Join { step: step @ Step::Discovering, .. }) = &mut self.role else { return };
        let others: Vec<&PingData> = found.iter().filter(|data| data.sender != local).collect();
        if others.is_empty() {
            return self.become_singleton(cx);
        }
        let mut coordinators: Vec<Address> =
            others.iter().filter(|data| data.is_coordinator).map(|data| data.sender.clone()).collect();
        if coordinators.is_empty() {
            // Only joiners: the smallest starts a group. A member whose coordinator has just left is not a
            // joiner, and its group has a new coordinator soon.
            let has_members = others.iter().any(|data| data.is_server);
            if !has_members && others.iter().all(|data| local < data.sender) {
                return self.become_singleton(cx);
            }
            *step = Step::Waiting;
            return self.wait(cx);
        }
        cx.rng().shuffle(&mut coordinators);
        *step = Step::Asking { others: coordinators.into() };
        self.ask_next(cx);
    }

    fn wait(&mut self, cx: &mut Cx<'_>) {
        if self.has_failed(cx) {
            return;
        }
        cx.arm(JOIN, self.config.all_clients_retry_timeout);
    }

    /// Counts a failed attempt. After the last one this member becomes a group of its own.
    fn has_failed(&mut self, cx: &mut Cx<'_>) -> bool {
        let most = self.config.max_join_attempts;
        let Role::Joining(join) = &mut self.role else { return true };
        join.attempts += 1;
        if most > 0 && join.attempts >= most {
            tracing::warn!(
                attempts = most,
                "no coordinator let this member join: it becomes a group of its own"
            );
            self.become_singleton(cx);
            return true;
        }
        false
    }

    fn ask_next(&mut self, cx: &mut Cx<'_>) {
        let Role::Joining(Join { step: Step::Asking { others }, .. }) = &mut self.role else { return };
        let Some(coordinator) = others.pop_front() else {
            if !self.has_failed(cx) {
                self.discover(cx);
            }
            return;
        };
        let mut header = Self::header(GmsKind::JoinReq);
        header.member = Some(cx.local().clone());
        Self::send(cx, Some(&coordinator), header, Flags::OOB, Payload::Bytes(None));
        cx.arm(JOIN, self.config.join_timeout);
    }

    pub(super) fn join_timer(&mut self, cx: &mut Cx<'_>) {
        match &self.role {
            Role::Joining(Join { step: Step::Waiting, .. }) => self.discover(cx),
            Role::Joining(Join { step: Step::Asking { .. }, .. }) => self.ask_next(cx),
            _ => {}
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
        self.role = Role::Member;
        self.install(cx, view);
        cx.control(&Control::BecomeServer);
        cx.raise(Event::Connected(Ok(())));
    }

    pub(super) fn join_rsp(&mut self, cx: &mut Cx<'_>, message: &Message, src: &Address) {
        let rsp = message.payload_bytes().map(wire::decode_join_rsp);
        let Some(Ok(rsp)) = rsp else { return cx.discard(message, DropReason::Malformed) };
        if let JoinRsp { fail_reason: Some(reason), .. } = rsp {
            if matches!(self.role, Role::Joining(_)) {
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
        match self.role {
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
        Self::view_ack(cx, if creator == local { src } else { &creator });
    }

    fn refused(&mut self, cx: &mut Cx<'_>, reason: &str) {
        self.forget_group(cx);
        cx.lower(Event::Disconnect);
        cx.raise(Event::Connected(Err(format!("the coordinator refused the join: {reason}"))));
    }
}

/// Returns whether the other members would receive all messages that this member has sent. If it sent
/// messages while alone and were let in without them, all members would wait for messages that no member has.
/// A merge unites the groups instead.
fn has_all_own_messages(cx: &Cx<'_>, local: &Address, digest: &Digest) -> bool {
    let sent = |digest: &Digest| digest.get(local).map_or(0, |row| row.highest_received);
    match cx.ask(&Query::DigestOf(local)) {
        Some(Answer::Digest(own)) => sent(&own) <= sent(digest),
        _ => true,
    }
}
