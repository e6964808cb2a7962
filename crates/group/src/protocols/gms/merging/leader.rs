use std::collections::{BTreeMap, BTreeSet};

use super::{MergeStep, Merging};
use crate::protocols::gms::MERGE_RESPONSES;
use crate::protocols::gms::group::Group;
use crate::protocols::gms::messages::{merge_header, send, send_cancel_merge, view_and_digest};
use crate::wire::{self, ViewForm};
use crate::{Address, Cx, Digest, Flags, GmsHeader, GmsKind, MergeId, Message, Payload, View, ViewId};

pub(super) struct LedMerge {
    /// The inner `None` is a refusal.
    answers: BTreeMap<Address, Option<(View, Digest)>>,
    asked: BTreeSet<Address>,
    subviews: Vec<View>,
    /// Then the merge is needed without another group: a new view of the same number does not help a member with a
    /// crashed coordinator's last view.
    own_views_differ: bool,
}

impl LedMerge {
    pub(super) fn has_asked(&self, member: &Address) -> bool {
        self.asked.contains(member)
    }
}

impl Merging {
    /// All members reported by MERGE3 choose the same leader.
    pub(in crate::protocols::gms) fn lead_if_chosen(
        &mut self,
        cx: &mut Cx<'_>,
        group: &Group,
        views: &[(Address, View)],
    ) -> MergeStep {
        if !group.is_staying() || self.merge.is_some() {
            return MergeStep::Wait;
        }
        let views: BTreeMap<Address, View> = views.iter().cloned().collect();
        let subviews: BTreeMap<&ViewId, &View> = views.values().map(|view| (view.id(), view)).collect();
        if subviews.len() < 2 || leader(&views).as_ref() != Some(cx.local()) {
            return MergeStep::Wait;
        }
        let mut subviews: Vec<View> = subviews.into_values().map(View::without_subgroups).collect();
        // The leader's own group comes first: its members keep their order.
        subviews.sort_by_key(|view| !view.contains(cx.local()));
        let groups = groups_to_ask(&sanitized(&views));
        let own_id = cx.view().map(|view| view.id().clone());
        let own_views_differ = groups.get(cx.local()).is_some_and(|own| {
            own.iter().any(|member| views.get(member).is_some_and(|view| Some(view.id()) != own_id.as_ref()))
        });
        self.last_led += 1;
        let id = MergeId { initiator: cx.local().clone(), id: self.last_led };
        if !self.begin(cx, group, &id, &id.initiator) {
            return MergeStep::Wait;
        }
        if let Some(merge) = &mut self.merge {
            let asked = groups.keys().cloned().collect();
            merge.leading = Some(LedMerge { answers: BTreeMap::new(), asked, subviews, own_views_differ });
        }
        cx.arm(MERGE_RESPONSES, group.config.merge_timeout);
        let local = cx.local().clone();
        for (coordinator, members) in groups.iter().filter(|(coordinator, _)| **coordinator != local) {
            let header = GmsHeader { member: Some(local.clone()), ..merge_header(GmsKind::MergeReq, &id) };
            let payload = Payload::Bytes(Some(wire::encode_address_list(members)));
            send(cx, Some(coordinator), header, Flags::OOB, payload);
        }
        match groups.get(&local) {
            Some(own) => self.join(cx, group, &id, &local, own),
            None => MergeStep::Wait,
        }
    }

    pub(super) fn merge_rsp(
        &mut self,
        cx: &mut Cx<'_>,
        group: &Group,
        header: &GmsHeader,
        message: &Message,
        src: &Address,
    ) -> MergeStep {
        if !self.takes_part(header) {
            return MergeStep::Wait;
        }
        if header.merge_rejected {
            return self.group_answered(cx, group, src, None);
        }
        match view_and_digest(cx, message) {
            Some((Some(ViewForm::Full(view)), Some(digest))) => {
                self.group_answered(cx, group, src, Some((view, digest)))
            }
            _ => MergeStep::Wait,
        }
    }

    pub(super) fn group_answered(
        &mut self,
        cx: &mut Cx<'_>,
        group: &Group,
        src: &Address,
        answer: Option<(View, Digest)>,
    ) -> MergeStep {
        let Some(leading) = self.merge.as_mut().and_then(|merge| merge.leading.as_mut()) else {
            return MergeStep::Wait;
        };
        if !leading.asked.contains(src) {
            return MergeStep::Wait;
        }
        leading.answers.insert(src.clone(), answer);
        if leading.answers.len() != leading.asked.len() {
            return MergeStep::Wait;
        }
        self.combine(cx, group)
    }

    pub(in crate::protocols::gms) fn combine(&mut self, cx: &mut Cx<'_>, group: &Group) -> MergeStep {
        cx.disarm(MERGE_RESPONSES);
        let limit = group.merge_limit();
        let Some(merge) = &mut self.merge else { return MergeStep::Wait };
        let Some(leading) = merge.leading.take() else { return MergeStep::Wait };
        // A leader that was paused too long: the other members have abandoned the merge.
        let is_over = cx.now().since(merge.begun) >= limit;
        let id = merge.id.clone();
        let local = cx.local().clone();
        let answers: BTreeMap<Address, (View, Digest)> =
            leading.answers.into_iter().filter_map(|(src, answer)| Some((src, answer?))).collect();
        // At least two groups are needed, unless the own group has different views; without this member the
        // merge has no leader.
        let least = if leading.own_views_differ { 1 } else { 2 };
        if is_over || answers.len() < least || !answers.contains_key(&local) {
            let others = leading.asked.iter().filter(|member| **member != local);
            send_cancel_merge(cx, others, &id);
            self.release_group(cx, |_| true);
            return MergeStep::End;
        }
        let others = answers.iter().filter(|(src, _)| **src != local);
        for (view, _) in others.map(|(_, answer)| answer) {
            merge.confirming.retain(|member| !view.contains(member));
        }
        // The own group's response first, as with the subviews.
        let mut ordered: Vec<&(View, Digest)> = answers.values().collect();
        ordered.sort_by_key(|(view, _)| !view.contains(&local));
        let mut digest = Digest::default();
        for row in ordered.iter().flat_map(|(_, digest)| &digest.entries) {
            digest.raise(&row.member, row.highest_delivered, row.highest_received);
        }
        let groups: Vec<Vec<Address>> = ordered
            .iter()
            .map(|(view, _)| {
                view.members().iter().filter(|member| digest.get(member).is_some()).cloned().collect()
            })
            .collect();
        let members = group.policy.merge(&groups);
        let Some(creator) = members.first().cloned() else { return MergeStep::End };
        let seen = answers.values().map(|(view, _)| view.id().id);
        let highest = seen.chain(leading.subviews.iter().map(|view| view.id().id)).max().unwrap_or(0);
        let number = group.next_view_number(highest);
        let subviews: Vec<View> =
            leading.subviews.into_iter().filter(|view| members.contains(&view.id().creator)).collect();
        let mut rows = Digest::default();
        for member in &members {
            if let Some(row) = digest.get(member) {
                rows.set(member.clone(), row.highest_delivered, row.highest_received);
            }
        }
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::MergeDigestWrong) {
            rows.entries.iter_mut().for_each(|row| row.highest_delivered += 1);
        }
        let view = View::merged(ViewId { creator, id: number }, members, subviews);
        let payload = wire::encode_view_and_digest(Some(&ViewForm::Full(view.clone())), Some(&rows));
        for coordinator in answers.keys().filter(|member| **member != local) {
            let header = merge_header(GmsKind::InstallMergeView, &id);
            let payload = Payload::Bytes(Some(payload.clone()));
            send(cx, Some(coordinator), header, Flags::NONE, payload);
        }
        let silent = leading.asked.iter().filter(|member| !answers.contains_key(member));
        send_cancel_merge(cx, silent, &id);
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::MergeLeaderSkipped) {
            return MergeStep::End;
        }
        MergeStep::Install(view, Some(rows))
    }
}

/// The smallest member that leads its own view comes before the smallest creator.
fn leader(views: &BTreeMap<Address, View>) -> Option<Address> {
    let leads = |(member, view): &(&Address, &View)| view.coordinator() == Some(member);
    let actual = views.iter().filter(leads).map(|(member, _)| member).min();
    actual.or_else(|| views.values().map(|view| &view.id().creator).min()).cloned()
}

/// Members whose own view lacks the owner would not respond.
fn sanitized(views: &BTreeMap<Address, View>) -> BTreeMap<Address, View> {
    views
        .iter()
        .map(|(owner, view)| {
            let members: Vec<Address> = view
                .members()
                .iter()
                .filter(|member| {
                    *member == owner || views.get(member).is_none_or(|theirs| theirs.contains(owner))
                })
                .cloned()
                .collect();
            (owner.clone(), View::new(view.id().clone(), members))
        })
        .collect()
}

/// Each view's creator responds for its group. Other members respond for themselves.
fn groups_to_ask(views: &BTreeMap<Address, View>) -> BTreeMap<Address, Vec<Address>> {
    let mut groups: BTreeMap<Address, Vec<Address>> = BTreeMap::new();
    for view in views.values() {
        let members = groups.entry(view.id().creator.clone()).or_default();
        for member in view.members() {
            if !members.contains(member) {
                members.push(member.clone());
            }
        }
    }
    let mut uncovered: BTreeSet<&Address> = views.values().flat_map(View::members).collect();
    for (creator, asked) in &groups {
        let Some(view) = views.get(creator) else { continue };
        asked.iter().filter(|member| view.contains(member)).for_each(|member| {
            uncovered.remove(member);
        });
    }
    for member in uncovered {
        groups.entry(member.clone()).or_insert_with(|| vec![member.clone()]);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{member, view};

    #[test]
    fn actual_coordinators_lead_before_smaller_participants() {
        let views = BTreeMap::from([
            (member(1), view(3, &[5, 1])),
            (member(5), view(3, &[5, 1])),
            (member(2), view(4, &[2, 3])),
        ]);
        assert_eq!(leader(&views), Some(member(2)));
    }

    /// S000-86
    #[test]
    fn without_any_actual_coordinator_a_creator_leads() {
        let views = BTreeMap::from([(member(1), view(3, &[2, 1])), (member(2), view(4, &[1, 2]))]);
        assert_eq!(leader(&views), Some(member(1)));
    }

    #[test]
    fn a_member_that_does_not_see_a_creator_is_asked_directly() {
        let views = BTreeMap::from([
            (member(1), view(3, &[1, 2])),
            (member(2), view(3, &[1, 2])),
            (member(3), view(2, &[1, 2, 3])),
        ]);
        let sane = sanitized(&views);
        assert_eq!(sane[&member(3)].members(), [member(3)]);
        let groups = groups_to_ask(&sane);
        assert_eq!(groups[&member(1)], [member(1), member(2), member(3)]);
        assert_eq!(groups[&member(3)], [member(3)], "no creator's own view covers it");
    }
}
