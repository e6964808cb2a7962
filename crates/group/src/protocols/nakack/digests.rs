use super::{DEPARTED_MEMBERS_MAX, NakAck};
use crate::{Address, Control, Cx, Digest, DigestEntry, View};

impl NakAck {
    pub(super) fn control_digest(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        match control {
            Control::View(view) => self.view(cx, view),
            Control::BecomeServer => {
                self.is_server = true;
                self.replay_early(cx);
            }
            Control::SetDigest(digest) => self.set_windows(cx, digest, |_, _| false),
            Control::MergeDigest(digest) => self.set_windows(cx, digest, |own, theirs| own < theirs),
            Control::OverwriteDigest(digest) => self.set_windows(cx, digest, |_, _| true),
            Control::Stable(digest) => self.stable(cx, digest),
            _ => {}
        }
    }

    pub(super) fn digest_row(&self, member: &Address) -> Option<DigestEntry> {
        let (highest_delivered, highest_received) = if self.local.as_ref() == Some(member) {
            let seqno = self.sent.highest_sent();
            (seqno, seqno)
        } else {
            let window = &self.peers.get(member)?.window;
            (window.highest_delivered(), window.highest_received())
        };
        Some(DigestEntry { member: member.clone(), highest_delivered, highest_received })
    }

    pub(super) fn digest(&self) -> Digest {
        Digest { entries: self.order.iter().filter_map(|member| self.digest_row(member)).collect() }
    }

    /// Windows stay unless `replaces(own, theirs)`; this member's numbering continues after its row.
    fn set_windows(&mut self, cx: &mut Cx<'_>, digest: &Digest, replaces: impl Fn(u64, u64) -> bool) {
        for entry in &digest.entries {
            if cx.is_local(&entry.member) {
                // The injected bug concerns other members' use of this row.
                #[cfg(feature = "injected-bugs")]
                if cx.has_bug(crate::InjectedBug::MergeDigestWrong) {
                    continue;
                }
                // A row beyond this member's messages belongs to a previous process at this address that was
                // still in a view. The other members expect the next seqno, and would take this process'
                // first messages for the old ones.
                if self.sent.skip_to(entry.highest_received) && self.is_fixed() {
                    self.send_waiting(cx);
                }
                continue;
            }
            let theirs = entry.highest_delivered;
            let own = self.peers.get(&entry.member).map(|peer| peer.window.highest_delivered());
            if own.is_none_or(|own| replaces(own, theirs)) {
                let start =
                    if own.is_none() { theirs.max(self.delivered_before(&entry.member)) } else { theirs };
                let peer = self.peer(start);
                self.peers.insert(entry.member.clone(), peer);
            }
        }
    }

    fn delivered_before(&self, member: &Address) -> u64 {
        self.departed
            .iter()
            .rev()
            .find(|(departed, _)| departed == member)
            .map_or(0, |(_, delivered)| *delivered)
    }

    fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        let local = cx.local().clone();
        self.order = view.members().to_vec();
        for (member, peer) in self.peers.extract_if(.., |member, _| !view.contains(member)) {
            self.departed.push_back((member, peer.window.highest_delivered()));
        }
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::DepartedForgotten) {
            self.departed.clear();
        }
        while self.departed.len() > DEPARTED_MEMBERS_MAX {
            self.departed.pop_front();
        }
        for member in view.members() {
            if *member != local && !self.peers.contains_key(member) {
                let peer = self.peer(self.delivered_before(member));
                self.peers.insert(member.clone(), peer);
            }
        }
        self.local = Some(local);
        self.last_stable = None;
        if self.is_fixed() {
            self.acks.retain(|member, _| view.contains(member));
            // A joiner starts at the coordinator's seqno, and the coordinator has acknowledged at least all
            // purged messages.
            let floor = self.sent.low();
            for member in view.members() {
                self.acks.entry(member.clone()).or_insert(floor);
            }
            self.purge_acked(cx);
        }
    }

    fn stable(&mut self, cx: &mut Cx<'_>, digest: &Digest) {
        let local = cx.local().clone();
        if let Some(entry) = digest.get(&local) {
            self.sent.purge(entry.highest_delivered);
        }
        let previous = self.last_stable.replace(digest.clone());
        let Some(previous) = previous else { return };
        let behind: Vec<(Address, u64)> = previous
            .entries
            .iter()
            .filter(|entry| entry.member != local)
            .filter_map(|entry| {
                let peer = self.peers.get(&entry.member)?;
                (entry.highest_received > peer.window.highest_received())
                    .then(|| (entry.member.clone(), entry.highest_received))
            })
            .collect();
        for (member, seqno) in behind {
            self.request_last(cx, &member, seqno);
        }
    }
}
