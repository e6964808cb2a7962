//! Messages to other sites: to the site master, and from it to a bridge.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::limits::is_within_limits;
use super::{Relay, SITE_NAME_BYTES_MAX, raise};
use crate::{
    Address, BridgeSend, Cx, DropReason, Event, Flags, HeaderBody, HeldCredit, Message, Object, Payload,
    ProtocolId, RelayEvent, RelayHeader, Transient, relay_kind,
};

/// Where a message for another site comes from.
pub(super) enum Origin {
    /// This member's application.
    Own,
    /// A member of this site.
    Member,
    /// Another site.
    Bridge,
    /// A site master's layer. There is no sender to report to.
    Notice,
}

/// RSVP below does not see a message that goes to a bridge.
fn acknowledge(cx: &mut Cx<'_>, ticket: u32, is_complete: bool) {
    let is_awaited = cx.below.iter().any(|slot| slot.protocol.id() == ProtocolId::RSVP);
    if is_awaited {
        cx.raise(Event::RsvpDone { ticket, is_complete });
    }
}

impl Relay {
    /// Returns whether this member sends the site's multicasts over the bridges. If several masters did, as in JGroups,
    /// other sites would get copies.
    pub(super) fn is_relaying(&self, cx: &Cx<'_>) -> bool {
        self.settings.relay_multicasts && self.own.is_first_master(cx) && !self.routes.is_empty()
    }

    /// The site master of this member's own messages.
    fn master(&self, cx: &mut Cx<'_>) -> Option<Address> {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::RandomSiteMaster) {
            let nth = cx.rng().below(self.own.masters.len().max(1) as u64) as usize;
            return self.own.masters.get(nth).cloned();
        }
        let _ = cx;
        self.own_master.clone()
    }

    /// Sends the application's message for a member of a site or for a site master.
    pub(super) fn send_to_site(&mut self, cx: &mut Cx<'_>, mut message: Message) {
        let Some(dest) = message.dest.clone() else { return };
        let sender = self.own.in_site(cx, &cx.local().clone());
        let mut header = RelayHeader::new(relay_kind::DATA, Some(dest.clone()), Some(sender));
        let is_to_all = self.own.is_relay3() && dest.is_site_master() && dest.site().is_none();
        let Some(site) = dest.site().or(is_to_all.then_some(&*self.own.name)).map(str::to_owned) else {
            return self.refuse(cx, &header, &message, "", &Origin::Own);
        };
        if is_to_all && self.is_master {
            self.send_on(cx, &header, &mut message);
            header.visited = vec![Some(self.own.name.to_string())];
        }
        if *site == *self.own.name {
            // Also to itself, so that order and credits are those of other unicasts.
            let member = if !dest.is_site_master() {
                self.own.within_site(&dest)
            } else if self.is_master {
                Some(cx.local().clone())
            } else {
                self.master(cx)
            };
            return match member {
                Some(member)
                    if self.own.is_relay3() && !dest.is_site_master() && !self.own.is_member(&member) =>
                {
                    self.refuse_member(cx, &header, &message, &Origin::Own);
                }
                Some(member) => self.send_within(cx, member, header, message),
                None => self.refuse(cx, &header, &message, &self.own.name.clone(), &Origin::Own),
            };
        }
        match self.master(cx) {
            Some(master) if cx.is_local(&master) => self.route(cx, header, message, &Origin::Own),
            Some(master) => {
                self.counts.to_master += 1;
                self.send_within(cx, master, header, message);
            }
            None => self.refuse(cx, &header, &message, &site, &Origin::Own),
        }
    }

    /// Sends a message within the site, with its final destination.
    pub(super) fn send_within(
        &mut self,
        cx: &mut Cx<'_>,
        next: Address,
        header: RelayHeader,
        mut message: Message,
    ) {
        message.headers.put(self.own.header_id(), HeaderBody::Relay(Box::new(header)));
        message.dest = Some(next);
        message.src = None;
        message.credit = 0;
        message.transient = Transient::NONE;
        cx.send(message);
    }

    /// Sends a message over the bridge to its final destination's site. Only a site master has routes.
    pub(super) fn route(&mut self, cx: &mut Cx<'_>, header: RelayHeader, message: Message, origin: &Origin) {
        let site = header.final_dest.as_ref().and_then(Address::site).map(str::to_owned);
        let (Some(site), Some(sender)) = (site, header.original_sender.clone()) else {
            return cx.discard(&message, DropReason::UnknownAddress);
        };
        let Some((bridge, master)) = self.way_to(cx, &site, &sender) else {
            return self.refuse(cx, &header, &message, &site, origin);
        };
        if message.ticket != 0 {
            acknowledge(cx, message.ticket, true);
        }
        let credit = message.src.clone().map(|src| HeldCredit {
            src,
            is_multicast: message.is_multicast(),
            bytes: u64::from(message.credit),
        });
        let credit = credit.filter(|credit| credit.bytes > 0);
        let bridged = self.bridged(cx, master, header, message);
        self.counts.relayed += 1;
        raise(cx, RelayEvent::Send(BridgeSend { bridge, message: bridged, credit }));
    }

    /// The route to a site, or to the gateway of the first rule that matches and has one.
    fn way_to(&mut self, cx: &mut Cx<'_>, site: &str, sender: &Address) -> Option<super::routes::Route> {
        if let Some(route) = self.route_of(cx, site, sender) {
            return Some(route);
        }
        if site.len() > SITE_NAME_BYTES_MAX {
            // Rules would be matched with it.
            return None;
        }
        let rules = self.forwards.iter().filter(|rule| rule.matches(site) && self.routes.has(rule.gateway()));
        let gateway = rules.map(|rule| rule.gateway().to_owned()).next()?;
        self.route_of(cx, &gateway, sender)
    }

    fn route_of(&mut self, cx: &mut Cx<'_>, site: &str, sender: &Address) -> Option<super::routes::Route> {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::RandomSiteMaster) {
            return self.routes.pick_any(site, cx.rng());
        }
        let _ = cx;
        let is_member = sender.site() == Some(&self.own.name) && self.own.is_member(sender);
        self.routes.pick(site, sender, is_member)
    }

    /// Sends a copy of the site's multicast to each other site. Application and bridges have equal parts of its credit.
    pub(super) fn relay_to_all(&mut self, cx: &mut Cx<'_>, message: &mut Message) {
        let Some(src) = message.src.clone().filter(|_| !message.flags.has(Flags::NO_RELAY)) else { return };
        let header = RelayHeader::new(relay_kind::DATA, None, Some(self.own.in_site(cx, &src)));
        self.send_on(cx, &header, message);
    }

    /// Sends copies of a message to all sites that it has not visited.
    pub(super) fn send_on(&mut self, cx: &mut Cx<'_>, header: &RelayHeader, message: &mut Message) {
        let sites = self.not_visited(header);
        if sites.is_empty() {
            return;
        }
        let Some(header) = &self.with_visited(cx, header) else { return };
        let share = message.credit / (sites.len() as u32 + 1);
        let is_multicast = message.is_multicast();
        for site in &sites {
            let credit = message.src.clone().filter(|_| share > 0).map(|src| HeldCredit {
                src,
                is_multicast,
                bytes: u64::from(share),
            });
            if self.send_copy(cx, header, message, site, credit) {
                message.credit -= share;
            }
        }
    }

    /// Sends copies of this member's message to these sites. Each has their names, so that none sends it to another one.
    pub(super) fn send_to_sites(
        &mut self,
        cx: &mut Cx<'_>,
        header: &RelayHeader,
        message: &Message,
        sites: &[Arc<str>],
    ) {
        let Some(header) = &self.with_visited(cx, header) else { return };
        for site in sites {
            self.send_copy(cx, header, message, site, None);
        }
    }

    fn send_copy(
        &mut self,
        cx: &mut Cx<'_>,
        header: &RelayHeader,
        message: &Message,
        site: &str,
        credit: Option<HeldCredit>,
    ) -> bool {
        let Some(sender) = &header.original_sender else { return false };
        let Some((bridge, master)) = self.route_of(cx, site, sender) else { return false };
        let bridged = self.bridged(cx, master, header.clone(), message.clone());
        self.counts.relayed += 1;
        raise(cx, RelayEvent::Send(BridgeSend { bridge, message: bridged, credit }));
        true
    }

    /// The sites with a route, without those that the message has visited.
    fn not_visited(&self, header: &RelayHeader) -> Vec<Arc<str>> {
        let visited: BTreeSet<&str> = header.visited.iter().flatten().map(String::as_str).collect();
        self.routes.names().into_iter().filter(|site| !visited.contains(&**site)).collect()
    }

    /// Returns the header with the sites that the message has visited, this one and those that it goes to now (RELAY3).
    /// `None`, and counted, if they are too many for the receivers, which would discard the message.
    fn with_visited(&self, cx: &mut Cx<'_>, header: &RelayHeader) -> Option<RelayHeader> {
        let mut header = header.clone();
        if self.own.is_relay3() {
            let names = self.routes.names();
            let mut all: BTreeSet<&str> = names.iter().map(|name| &**name).collect();
            all.extend(header.visited.iter().flatten().map(String::as_str));
            all.insert(&self.own.name);
            header.visited = all.into_iter().map(|name| Some(name.to_owned())).collect();
            if !is_within_limits(&header.visited) {
                cx.count_drop(DropReason::QueueFull, |_| {
                    "a message has visited more sites than a header may have: it is not sent on".to_owned()
                });
                return None;
            }
        }
        Some(header)
    }

    fn bridged(
        &self,
        cx: &Cx<'_>,
        master: Address,
        mut header: RelayHeader,
        mut message: Message,
    ) -> Message {
        cx.keep_headers_of_above(&mut message);
        header.original_flags = message.flags.0 as i16;
        if self.own.is_relay3() {
            // Headers of the bridge's own protocols must not mix with them.
            header.original_headers = std::mem::take(&mut message.headers).0.into_vec();
        }
        message.headers.put(self.own.header_id(), HeaderBody::Relay(Box::new(header)));
        Message { dest: Some(master), src: None, credit: 0, ticket: 0, transient: Transient::NONE, ..message }
    }

    /// Sends a SITE_UNREACHABLE to a sender of this site, and with RELAY3 to one of another site.
    pub(super) fn refuse(
        &mut self,
        cx: &mut Cx<'_>,
        header: &RelayHeader,
        message: &Message,
        site: &str,
        origin: &Origin,
    ) {
        self.counts.unreachable += 1;
        cx.count_drop(DropReason::UnknownAddress, |_| {
            format!("no route to site `{}`", site.chars().take(100).collect::<String>())
        });
        match (origin, &message.src) {
            (Origin::Own, _) => {
                if message.ticket != 0 {
                    acknowledge(cx, message.ticket, false);
                }
                raise(cx, RelayEvent::SiteUnreachable(site.into()));
            }
            (Origin::Member, Some(src)) => {
                cx.absorb(message);
                // The member that has sent the message is not always the one that has made it.
                let sender = header.original_sender.clone().filter(|_| self.own.is_relay3());
                self.report(cx, sender.as_ref().unwrap_or(src), relay_kind::SITE_UNREACHABLE, site, None);
            }
            (Origin::Bridge, _) if self.own.is_relay3() && header.kind == relay_kind::DATA => {
                if let Some(sender) = &header.original_sender {
                    self.report(cx, sender, relay_kind::SITE_UNREACHABLE, site, None);
                }
            }
            (Origin::Notice, _) => cx.absorb(message),
            (Origin::Member, None) | (Origin::Bridge, _) => {}
        }
    }

    /// Sends a MBR_UNREACHABLE to the sender (RELAY3).
    pub(super) fn refuse_member(
        &mut self,
        cx: &mut Cx<'_>,
        header: &RelayHeader,
        message: &Message,
        origin: &Origin,
    ) {
        cx.discard(message, DropReason::NotMember);
        let (Some(dest), true) =
            (&header.final_dest, self.own.is_relay3() && header.kind == relay_kind::DATA)
        else {
            return;
        };
        self.counts.unreachable += 1;
        if matches!(origin, Origin::Own) {
            if message.ticket != 0 {
                acknowledge(cx, message.ticket, false);
            }
            raise(cx, RelayEvent::MemberUnreachable(dest.clone()));
        } else if let Some(sender) = &header.original_sender {
            let site = self.own.name.clone();
            self.report(cx, sender, relay_kind::MEMBER_UNREACHABLE, &site, Some(dest));
        }
    }

    /// Sends a report to the sender of a message that did not arrive. A report that does not arrive causes no further one.
    pub(super) fn report(
        &mut self,
        cx: &mut Cx<'_>,
        to: &Address,
        kind: u8,
        site: &str,
        member: Option<&Address>,
    ) {
        let payload = member
            .map_or(Payload::Empty, |member| Payload::Object(Box::new(Object::Address(member.clone()))));
        let message = Message::new(None, payload).with_flags(Flags::OOB);
        if !self.own.is_relay3() {
            let header = RelayHeader::new(kind, Some(Address::site_master(site)), None);
            return self.send_within(cx, to.clone(), header, message);
        }
        let sender = self.own.in_site(cx, &cx.local().clone());
        let mut header = RelayHeader::new(kind, Some(to.clone()), Some(sender));
        if member.is_none() {
            header.sites = vec![Some(site.to_owned())];
        }
        self.dispatch(cx, header, message);
    }
}
