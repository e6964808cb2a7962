//! Messages of other sites with RELAY3's header: for this site, for others beyond it, or for all.

use super::limits::{bytes_of_address, is_within_limits};
use super::outbound::Origin;
use super::{ADDRESS_BYTES_MAX, INBOUND_HEADERS_MAX, Relay, SITE_NAME_BYTES_MAX};
use crate::{
    Address, Cx, DropReason, Flags, HeaderBody, Headers, Message, RelayHeader, Transient, relay_kind,
};

/// Returns whether other sites' names and addresses are within their bounds.
fn is_bounded(header: &RelayHeader) -> bool {
    let addresses = header.final_dest.iter().chain(&header.original_sender);
    let is_short = |site: &str| site.len() <= SITE_NAME_BYTES_MAX;
    addresses.clone().all(|one| one.site().is_none_or(is_short) && bytes_of_address(one) <= ADDRESS_BYTES_MAX)
        && header.visited.iter().all(Option::is_some)
        && is_within_limits(&header.visited)
        && is_within_limits(&header.sites)
}

/// Returns a header with the fields that its kind needs. The peer's other fields are not sent on.
fn needed_of(header: RelayHeader) -> RelayHeader {
    let mut needed = RelayHeader::new(header.kind, header.final_dest, header.original_sender);
    needed.visited = header.visited;
    match header.kind {
        relay_kind::SITE_UNREACHABLE
        | relay_kind::SITES_UP
        | relay_kind::SITES_DOWN
        | relay_kind::TOPO_RSP => needed.sites = header.sites,
        // A site gives other sites its own view only, so that `return_entire_cache` is not kept.
        _ => {}
    }
    needed
}

impl Relay {
    /// Handles a message of another site's master.
    pub(super) fn cross(&mut self, cx: &mut Cx<'_>, mut header: RelayHeader, mut message: Message) {
        // A sender of this site would be a forgery, or has come back over other sites.
        let sender = header.original_sender.as_ref().and_then(Address::site);
        let is_bounded = is_bounded(&header);
        if !is_bounded || sender.is_none_or(|site| *site == *self.own.name) {
            cx.discard(&message, DropReason::Malformed);
            if is_bounded {
                self.report_returned(cx, &header);
            }
            return;
        }
        message.headers = Headers(std::mem::take(&mut header.original_headers).into());
        let count = message.headers.0.len();
        cx.keep_headers_of_above(&mut message);
        if message.headers.0.len() < count {
            // Its site has RELAY3 below protocols that here are below it, which would answer in vain.
            return cx.discard(&message, DropReason::Unexpected);
        }
        if message.headers_length() > INBOUND_HEADERS_MAX {
            return cx.discard(&message, DropReason::Malformed);
        }
        let Some(sender) = self.sender_within(&header, &message) else {
            return cx.discard(&message, DropReason::Malformed);
        };
        message.flags = Flags(header.original_flags as u16);
        let mut header = needed_of(header);
        message.transient = Transient::NONE;
        message.dest = None;
        message.src = None;
        let Some(dest) = header.final_dest.clone() else {
            self.send_on(cx, &header, &mut message);
            header.original_sender = Some(sender);
            return self.multicast_within(cx, header, message);
        };
        match dest.site() {
            Some(site) if *site == *self.own.name => {
                header.original_sender = Some(sender);
                self.arrive(cx, &dest, header, message);
            }
            Some(_) => self.pass_through(cx, header, message),
            None if dest.is_site_master() => {
                self.send_on(cx, &header, &mut message);
                header.original_sender = Some(sender);
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

    /// Returns the sender under which members of this site receive the message. An announcement of sites has the neighbour
    /// on the bridge, because members keep the ways to the sites by neighbours. It is malformed if it has none.
    fn sender_within(&self, header: &RelayHeader, message: &Message) -> Option<Address> {
        if !matches!(header.kind, relay_kind::SITES_UP | relay_kind::SITES_DOWN) {
            return header.original_sender.clone();
        }
        let is_other = |site: &&str| **site != *self.own.name && site.len() <= SITE_NAME_BYTES_MAX;
        let site = message.src.as_ref().and_then(Address::site).filter(is_other)?;
        Some(Address::site_master(site))
    }

    /// A message of this site that comes back has not found its site.
    fn report_returned(&mut self, cx: &mut Cx<'_>, header: &RelayHeader) {
        let (Some(sender), Some(site)) =
            (&header.original_sender, header.final_dest.as_ref().and_then(Address::site))
        else {
            return;
        };
        let is_own = sender.site() == Some(&self.own.name) && self.own.is_member(sender);
        if header.kind == relay_kind::DATA && !header.visited.is_empty() && is_own && *site != *self.own.name
        {
            self.counts.unreachable += 1;
            self.report(cx, sender, relay_kind::SITE_UNREACHABLE, site, None);
        }
    }

    /// A message for another site goes on, unless it has been here.
    fn pass_through(&mut self, cx: &mut Cx<'_>, mut header: RelayHeader, message: Message) {
        let site = header.final_dest.as_ref().and_then(Address::site).unwrap_or_default().to_owned();
        let has_been_here = header.has_visited(&self.own.name);
        header.visited.push(Some(self.own.name.to_string()));
        if has_been_here || !is_within_limits(&header.visited) {
            return self.refuse(cx, &header, &message, &site, &Origin::Bridge);
        }
        self.route(cx, header, message, &Origin::Bridge);
    }

    /// A message for a member of this site or for its masters.
    fn arrive(&mut self, cx: &mut Cx<'_>, dest: &Address, mut header: RelayHeader, message: Message) {
        // The member that gets it may be a site master, which must not send it on again.
        header.visited = vec![Some(self.own.name.to_string())];
        // Also to itself, so that the application's credits bound the messages that wait for it.
        let member = if dest.is_site_master() { cx.local().clone() } else { dest.clone() };
        if !self.own.is_member(&member) {
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
            message.headers.put(self.own.header_id(), HeaderBody::Relay(Box::new(header)));
            cx.send(message);
        }
    }
}
