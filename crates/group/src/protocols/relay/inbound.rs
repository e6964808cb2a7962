//! Messages with the header of RELAY2 or RELAY3 from members of the site, and with that of RELAY2 from bridges.

use super::outbound::Origin;
use super::{INBOUND_BYTES_MAX, INBOUND_HEADERS_MAX, INBOUND_TOTAL_MAX, Relay, SITE_NAME_BYTES_MAX, raise};
use crate::{
    Address, Cx, DropReason, HeaderBody, Message, Object, Payload, ProtocolId, RelayEvent, RelayHeader,
    Transient, relay_kind,
};

impl Relay {
    /// Handles a message of a member of the site.
    pub(super) fn handle(&mut self, cx: &mut Cx<'_>, header: RelayHeader, mut message: Message) {
        if self.own.is_relay3() && header.kind != relay_kind::DATA && self.is_master {
            // Such as a request for the members of all sites.
            let Some(dest) = header.final_dest.as_ref().filter(|_| !message.is_multicast()) else {
                return self.take(cx, &header, &message);
            };
            match dest.site() {
                None if dest.is_site_master() && !header.has_visited(&self.own.name) => {
                    self.send_on(cx, &header, &mut message);
                }
                Some(site) if *site != *self.own.name => {
                    return self.route(cx, header, message, &Origin::Notice);
                }
                _ => {}
            }
        }
        match header.kind {
            relay_kind::DATA => self.handle_data(cx, header, message),
            _ => self.take(cx, &header, &message),
        }
    }

    /// Handles a message between layers.
    fn take(&mut self, cx: &mut Cx<'_>, header: &RelayHeader, message: &Message) {
        match header.kind {
            relay_kind::SITES_UP | relay_kind::SITES_DOWN => {
                cx.absorb(message);
                self.receive_announcement(cx, header);
            }
            relay_kind::SITE_UNREACHABLE => {
                cx.absorb(message);
                // RELAY2 has the site in the destination.
                let site =
                    header.final_dest.as_ref().and_then(Address::site).filter(|_| !self.own.is_relay3());
                let mut sites =
                    header.sites.iter().flatten().map(String::as_str).filter(|_| self.own.is_relay3());
                // A report is about one message.
                let site = site.or_else(|| sites.next()).filter(|site| site.len() <= SITE_NAME_BYTES_MAX);
                if let Some(site) = site {
                    raise(cx, RelayEvent::SiteUnreachable(site.into()));
                }
            }
            relay_kind::MEMBER_UNREACHABLE if self.own.is_relay3() => {
                cx.absorb(message);
                if let Payload::Object(object) = &message.payload
                    && let Object::Address(member) = &**object
                    && self.own.may_report(header, member)
                {
                    raise(cx, RelayEvent::MemberUnreachable(member.clone()));
                }
            }
            relay_kind::TOPO_REQ => {
                cx.absorb(message);
                let from = header.original_sender.as_ref().filter(|_| self.own.is_relay3());
                if let Some(from) = from.or(message.src.as_ref()).filter(|from| !cx.is_local(from)) {
                    self.answer_topology(cx, header, from);
                }
            }
            relay_kind::TOPO_RSP if self.own.is_relay3() => {
                cx.absorb(message);
                self.receive_topology(cx, header, message);
            }
            _ => cx.discard(message, DropReason::Unexpected),
        }
    }

    fn handle_data(&mut self, cx: &mut Cx<'_>, header: RelayHeader, mut message: Message) {
        let Some(sender) = header.original_sender.clone().filter(Address::is_of_site) else {
            return cx.discard(&message, DropReason::Malformed);
        };
        let Some(dest) = header.final_dest.clone().filter(|_| !message.is_multicast()) else {
            // With RELAY3 JGroups puts the header on multicasts of the site, too.
            if self.own.is_relay3() && sender.site() == Some(&self.own.name) && self.is_relaying(cx) {
                self.relay_to_all(cx, &mut message);
            }
            return self.deliver(cx, None, sender, message);
        };
        let is_to_all = self.own.is_relay3() && dest.is_site_master() && dest.site().is_none();
        if is_to_all && self.is_master {
            if !header.has_visited(&self.own.name) {
                self.send_on(cx, &header, &mut message);
            }
            return self.deliver(cx, Some(dest), sender, message);
        }
        let is_own_site = dest.site() == Some(&self.own.name);
        let is_here = is_own_site
            && if dest.is_site_master() { self.is_master } else { dest.uuid() == cx.local().uuid() };
        if is_here {
            return self.deliver(cx, Some(dest), sender, message);
        }
        if is_own_site && !dest.is_site_master() {
            return self.forward_to_member(cx, dest, header, message);
        }
        if self.is_master && !is_own_site {
            return self.route(cx, header, message, &Origin::Member);
        }
        // The member takes this one for a site master, after a change of views or with other settings.
        match self.own.master_instead(&message, &sender).filter(|master| !cx.is_local(master)) {
            Some(master) => {
                cx.absorb(&message);
                cx.keep_headers_of_above(&mut message);
                self.send_within(cx, master, header, message);
            }
            None => {
                let site = dest.site().unwrap_or_default().to_owned();
                self.refuse(cx, &header, &message, &site, &Origin::Member);
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

    fn forward_to_member(
        &mut self,
        cx: &mut Cx<'_>,
        dest: Address,
        header: RelayHeader,
        mut message: Message,
    ) {
        if !self.own.is_member(&dest) {
            return self.refuse_member(cx, &header, &message, &Origin::Member);
        }
        let Some(member) = self.own.within_site(&dest) else { return };
        cx.absorb(&message);
        cx.keep_headers_of_above(&mut message);
        self.counts.to_member += 1;
        self.send_within(cx, member, header, message);
    }

    /// Handles a message of another site's master.
    pub(super) fn take_from_bridge(&mut self, cx: &mut Cx<'_>, bridge: usize, mut message: Message) {
        // The bridge returns credits itself.
        message.credit = 0;
        let Some(HeaderBody::Relay(header)) = message.headers.take(self.own.header_id()) else {
            return cx.discard(&message, DropReason::MissingHeader);
        };
        if self.own.is_relay3() {
            return self.cross(cx, *header, message);
        }
        match header.kind {
            relay_kind::DATA => self.relayed(cx, *header, message),
            relay_kind::TOPO_REQ => {
                if let Some(src) = message.src {
                    self.answer_topology_over(cx, bridge, src);
                }
            }
            _ => cx.discard(&message, DropReason::Unexpected),
        }
    }

    fn relayed(&mut self, cx: &mut Cx<'_>, header: RelayHeader, mut message: Message) {
        // A sender of this site would be a forgery: its messages do not come over a bridge.
        let sender = header.original_sender.filter(Address::is_of_site);
        let Some(sender) = sender.filter(|sender| sender.site() != Some(&self.own.name)) else {
            return cx.discard(&message, DropReason::Malformed);
        };
        cx.keep_headers_of_above(&mut message);
        if message.headers_length() > INBOUND_HEADERS_MAX {
            return cx.discard(&message, DropReason::Malformed);
        }
        message.transient = Transient::NONE;
        let Some(dest) = header.final_dest else {
            if self.has_room(cx, None, &message) {
                let header = RelayHeader::new(relay_kind::DATA, None, Some(sender));
                message.headers.put(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
                cx.send(Message { dest: None, src: None, ..message });
            }
            return;
        };
        if dest.site() != Some(&self.own.name) {
            let header = RelayHeader::new(relay_kind::DATA, Some(dest), Some(sender));
            return self.route(cx, header, message, &Origin::Bridge);
        }
        // Also to itself, so that the application's credits bound the messages that wait for it.
        let member =
            if dest.is_site_master() { Some(cx.local().clone()) } else { dest.uuid().map(Address::Uuid) };
        let Some(member) = member.filter(|member| self.own.is_member(member)) else {
            return cx.discard(&message, DropReason::NotMember);
        };
        if self.has_room(cx, Some(&member), &message) {
            self.counts.to_member += 1;
            let header = RelayHeader::new(relay_kind::DATA, Some(dest), Some(sender));
            self.send_within(cx, member, header, message);
        }
    }

    /// Returns whether few enough bytes of bridges wait for the destination. If not, the message is dropped.
    pub(super) fn has_room(&self, cx: &mut Cx<'_>, dest: Option<&Address>, message: &Message) -> bool {
        let members = self.own.view.as_ref().map_or(&[][..], crate::View::members);
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
}
