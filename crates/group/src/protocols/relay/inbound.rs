//! Messages with RELAY2's header: from members of the site, and from bridges.

use super::outbound::Origin;
use super::{INBOUND_BYTES_MAX, INBOUND_TOTAL_MAX, Relay2};
use crate::{
    Address, BridgeSend, Cx, DropReason, HeaderBody, Message, ProtocolId, RelayEvent, RelayHeader, Transient,
    relay_kind,
};

impl Relay2 {
    /// Handles a message of a member of the site.
    pub(super) fn handle(&mut self, cx: &mut Cx<'_>, header: RelayHeader, message: Message) {
        match header.kind {
            relay_kind::DATA => self.handle_data(cx, header, message),
            relay_kind::SITES_UP | relay_kind::SITES_DOWN => {
                cx.absorb(&message);
                self.receive_announcement(cx, &header);
            }
            relay_kind::SITE_UNREACHABLE => {
                cx.absorb(&message);
                if let Some(site) = header.final_dest.as_ref().and_then(Address::site) {
                    Self::raise(cx, RelayEvent::SiteUnreachable(site.into()));
                }
            }
            relay_kind::TOPO_REQ => {
                cx.absorb(&message);
                if let Some(src) = message.src {
                    let answer = self.topology(cx, src);
                    cx.send(answer);
                }
            }
            _ => cx.discard(&message, DropReason::Unexpected),
        }
    }

    fn handle_data(&mut self, cx: &mut Cx<'_>, header: RelayHeader, mut message: Message) {
        let Some(sender) = header.original_sender.filter(Address::is_of_site) else {
            return cx.discard(&message, DropReason::Malformed);
        };
        let Some(dest) = header.final_dest.filter(|_| !message.is_multicast()) else {
            return self.deliver(cx, None, sender, message);
        };
        let is_own_site = dest.site() == Some(&self.site);
        let is_here = is_own_site
            && if dest.is_site_master() { self.is_master } else { dest.uuid() == cx.local().uuid() };
        if is_here {
            return self.deliver(cx, Some(dest), sender, message);
        }
        if is_own_site && !dest.is_site_master() {
            return self.forward_to_member(cx, dest, sender, message);
        }
        if self.is_master && !is_own_site {
            return self.route(cx, &dest, &sender, message, &Origin::Member);
        }
        // The member takes this one for a site master, after a change of views or with other settings.
        match self.master_instead(&message, &sender).filter(|master| !cx.is_local(master)) {
            Some(master) => {
                cx.absorb(&message);
                cx.keep_headers_of_above(&mut message);
                self.forward(cx, master, dest, sender, message);
            }
            None => {
                let site = dest.site().unwrap_or_default().to_owned();
                self.refuse(cx, &message, &site, &Origin::Member);
            }
        }
    }

    /// Passes a message up under its sender's name. Its credit is that of the member that has forwarded it.
    fn deliver(&mut self, cx: &mut Cx<'_>, dest: Option<Address>, sender: Address, mut message: Message) {
        let creditor = message.src.take();
        self.creditors[usize::from(dest.is_none())].note(&sender, creditor.as_ref(), message.credit);
        cx.keep_headers_of_above(&mut message);
        cx.deliver(Message { dest, src: Some(sender), ..message });
    }

    fn forward_to_member(&mut self, cx: &mut Cx<'_>, dest: Address, sender: Address, mut message: Message) {
        if !self.is_member(&dest) {
            return cx.discard(&message, DropReason::NotMember);
        }
        let Some(member) = dest.uuid().map(Address::Uuid) else { return };
        cx.absorb(&message);
        cx.keep_headers_of_above(&mut message);
        self.counts.to_member += 1;
        self.forward(cx, member, dest, sender, message);
    }

    /// Handles a message of another site's master.
    pub(super) fn take_from_bridge(&mut self, cx: &mut Cx<'_>, bridge: usize, mut message: Message) {
        // The bridge returns credits itself.
        message.credit = 0;
        let Some(HeaderBody::Relay(header)) = message.headers.take(ProtocolId::RELAY2) else {
            return cx.discard(&message, DropReason::MissingHeader);
        };
        match header.kind {
            relay_kind::DATA => self.relayed(cx, *header, message),
            relay_kind::TOPO_REQ => {
                if let Some(src) = message.src {
                    let message = self.topology(cx, src);
                    Self::raise(cx, RelayEvent::Send(BridgeSend { bridge, message, credit: None }));
                }
            }
            _ => cx.discard(&message, DropReason::Unexpected),
        }
    }

    fn relayed(&mut self, cx: &mut Cx<'_>, header: RelayHeader, mut message: Message) {
        // A sender of this site would be a forgery: its messages do not come over a bridge.
        let sender = header.original_sender.filter(Address::is_of_site);
        let Some(sender) = sender.filter(|sender| sender.site() != Some(&self.site)) else {
            return cx.discard(&message, DropReason::Malformed);
        };
        cx.keep_headers_of_above(&mut message);
        message.transient = Transient::NONE;
        let Some(dest) = header.final_dest else {
            if self.has_room(cx, None, &message) {
                let header = RelayHeader::new(relay_kind::DATA, None, Some(sender));
                message.headers.put(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
                cx.send(Message { dest: None, src: None, ..message });
            }
            return;
        };
        if dest.site() != Some(&self.site) {
            return self.route(cx, &dest, &sender, message, &Origin::Bridge);
        }
        // Also to itself, so that the application's credits bound the messages that wait for it.
        let member =
            if dest.is_site_master() { Some(cx.local().clone()) } else { dest.uuid().map(Address::Uuid) };
        let Some(member) = member.filter(|member| self.is_member(member)) else {
            return cx.discard(&message, DropReason::NotMember);
        };
        if self.has_room(cx, Some(&member), &message) {
            self.counts.to_member += 1;
            self.forward(cx, member, dest, sender, message);
        }
    }

    fn has_room(&self, cx: &mut Cx<'_>, dest: Option<&Address>, message: &Message) -> bool {
        let members = self.view.as_ref().map_or(&[][..], crate::View::members);
        let destinations = members.iter().map(Some).chain([None]);
        let queued = cx.queued_below(dest);
        // The sum is taken for long queues only, because it needs a look at each member.
        let part = INBOUND_TOTAL_MAX / (members.len() as u64 + 1);
        let has_room = queued < INBOUND_BYTES_MAX
            && (queued < part
                || destinations.map(|one| cx.queued_below(one)).sum::<u64>() < INBOUND_TOTAL_MAX);
        if !has_room {
            cx.discard(message, DropReason::QueueFull);
        }
        has_room
    }

    /// The answer to JGroups' request for the members of the site, as a text for operators.
    fn topology(&self, cx: &Cx<'_>, dest: Address) -> Message {
        let mut text = format!("{}\n", self.site);
        for member in self.view.iter().flat_map(|view| view.members()) {
            text += &format!("  {}", cx.shared().book.display(member));
            if let Some(phys) = cx.shared().book.phys(member) {
                text += &format!(" ({phys})");
            }
            if cx.is_local(member) {
                text += " (me)";
            }
            if self.masters.contains(member) {
                text += " // site master";
            }
            text += "\n";
        }
        let mut header = RelayHeader::new(relay_kind::TOPO_RSP, None, None);
        header.sites = vec![Some(text)];
        Message::empty(Some(dest)).with_header(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)))
    }
}
