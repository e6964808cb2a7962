//! Messages of other sites with RELAY3's header: for this site, for others beyond it, or for all.

use super::outbound::Origin;
use super::{Relay, SITE_NAME_BYTES_MAX, SITES_MAX};
use crate::{
    Address, Cx, DropReason, Flags, HeaderBody, Headers, Message, RelayHeader, Transient, relay_kind,
};

impl Relay {
    /// Handles a message of another site's master.
    pub(super) fn cross(&mut self, cx: &mut Cx<'_>, mut header: RelayHeader, mut message: Message) {
        // A sender of this site would be a forgery, or has come back over other sites.
        let sender = header.original_sender.as_ref().and_then(Address::site);
        let is_named =
            |site: &Option<String>| site.as_ref().is_some_and(|site| site.len() <= SITE_NAME_BYTES_MAX);
        let is_valid = sender.is_some_and(|site| *site != *self.site && site.len() <= SITE_NAME_BYTES_MAX)
            && header.visited.len() <= SITES_MAX
            && header.visited.iter().all(is_named);
        if !is_valid {
            return cx.discard(&message, DropReason::Malformed);
        }
        message.headers = Headers(std::mem::take(&mut header.original_headers).into());
        let count = message.headers.0.len();
        cx.keep_headers_of_above(&mut message);
        if message.headers.0.len() < count {
            // Its site has RELAY3 below protocols that here are below it, which would answer in vain.
            return cx.discard(&message, DropReason::Unexpected);
        }
        message.flags = Flags(header.original_flags as u16);
        message.transient = Transient::NONE;
        message.dest = None;
        message.src = None;
        let Some(dest) = header.final_dest.clone() else {
            self.send_on(cx, &header, &mut message);
            return self.multicast_within(cx, header, message);
        };
        match dest.site() {
            Some(site) if *site == *self.site => self.arrive(cx, &dest, header, message),
            Some(_) => self.pass_through(cx, header, message),
            None if dest.is_site_master() => {
                self.send_on(cx, &header, &mut message);
                if header.kind == relay_kind::TOPO_RSP {
                    header.final_dest = None;
                    self.multicast_within(cx, header, message.with_flags(Flags::OOB));
                } else {
                    self.arrive(cx, &dest, header, message);
                }
            }
            None => cx.discard(&message, DropReason::Malformed),
        }
    }

    /// A message for another site goes on, unless it has been here.
    fn pass_through(&mut self, cx: &mut Cx<'_>, mut header: RelayHeader, message: Message) {
        let is_loop = header.visited.iter().flatten().any(|site| **site == *self.site);
        let site = header.final_dest.as_ref().and_then(Address::site).unwrap_or_default().to_owned();
        if is_loop || header.visited.len() >= SITES_MAX {
            return self.refuse(cx, &header, &message, &site, &Origin::Bridge);
        }
        header.visited.push(Some(self.site.to_string()));
        self.route(cx, header, message, &Origin::Bridge);
    }

    /// A message for a member of this site or for its masters.
    fn arrive(&mut self, cx: &mut Cx<'_>, dest: &Address, header: RelayHeader, message: Message) {
        // Also to itself, so that the application's credits bound the messages that wait for it.
        let member = if dest.is_site_master() { cx.local().clone() } else { dest.clone() };
        if !self.is_member(&member) {
            return self.refuse_member(cx, &header, &message, &Origin::Bridge);
        }
        if self.has_room(cx, Some(&member), &message) {
            self.counts.to_member += 1;
            self.send_within(cx, member, header, message);
        }
    }

    fn multicast_within(&mut self, cx: &mut Cx<'_>, mut header: RelayHeader, mut message: Message) {
        if self.has_room(cx, None, &message) {
            // Flags of the site: the members' site masters must not send it on.
            message.flags |= Flags::NO_RELAY;
            header.visited.clear();
            message.headers.put(self.header_id(), HeaderBody::Relay(Box::new(header)));
            cx.send(message);
        }
    }
}
