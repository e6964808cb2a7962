//! Messages to other sites: to the site master, and from it to a bridge.

use super::{Relay2, sticky};
use crate::{
    Address, BridgeSend, Cx, DropReason, Event, Flags, HeaderBody, HeldCredit, Message, ProtocolId,
    RelayEvent, RelayHeader, Transient, relay_kind,
};

/// Where a message for another site comes from.
pub(super) enum Origin {
    /// This member's application.
    Own,
    /// A member of this site.
    Member,
    /// Another site.
    Bridge,
}

impl Relay2 {
    /// Returns whether this member sends the site's multicasts over the bridges. If several masters did, as in JGroups,
    /// other sites would get copies.
    pub(super) fn is_relaying(&self, cx: &Cx<'_>) -> bool {
        self.config.relay_multicasts && self.is_first_master(cx) && !self.routes.is_empty()
    }

    /// The site master of this member's own messages.
    fn master(&self, cx: &mut Cx<'_>) -> Option<Address> {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::RandomSiteMaster) {
            let nth = cx.rng().below(self.masters.len().max(1) as u64) as usize;
            return self.masters.get(nth).cloned();
        }
        let _ = cx;
        self.own_master.clone()
    }

    /// Sends the application's message for a member of a site or for a site master.
    pub(super) fn send_to_site(&mut self, cx: &mut Cx<'_>, message: Message) {
        let Some(dest) = message.dest.clone() else { return };
        let sender = self.in_site(cx, &cx.local().clone());
        let Some(site) = dest.site() else {
            return self.refuse(cx, &message, "", &Origin::Own);
        };
        if *site == *self.site {
            // Also to itself, so that order and credits are those of other unicasts.
            let member = if !dest.is_site_master() {
                dest.uuid().map(Address::Uuid)
            } else if self.is_master {
                Some(cx.local().clone())
            } else {
                self.master(cx)
            };
            return match member {
                Some(member) => self.forward(cx, member, dest, sender, message),
                None => self.refuse(cx, &message, &self.site.clone(), &Origin::Own),
            };
        }
        match self.master(cx) {
            Some(master) if cx.is_local(&master) => self.route(cx, &dest, &sender, message, &Origin::Own),
            Some(master) => {
                self.counts.to_master += 1;
                self.forward(cx, master, dest, sender, message);
            }
            None => self.refuse(cx, &message, site, &Origin::Own),
        }
    }

    /// Sends a message within the site, with its final destination.
    pub(super) fn forward(
        &mut self,
        cx: &mut Cx<'_>,
        next: Address,
        final_dest: Address,
        sender: Address,
        mut message: Message,
    ) {
        let header = RelayHeader::new(relay_kind::DATA, Some(final_dest), Some(sender));
        message.headers.put(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
        message.dest = Some(next);
        message.src = None;
        message.credit = 0;
        message.transient = Transient::NONE;
        cx.send(message);
    }

    /// Sends a message over the bridge to another site. Only a site master has routes.
    pub(super) fn route(
        &mut self,
        cx: &mut Cx<'_>,
        dest: &Address,
        sender: &Address,
        message: Message,
        origin: &Origin,
    ) {
        let Some(site) = dest.site() else { return cx.discard(&message, DropReason::UnknownAddress) };
        let Some((bridge, master)) = self.route_of(cx, site, sender) else {
            return self.refuse(cx, &message, site, origin);
        };
        if message.ticket != 0 {
            Self::acknowledge(cx, message.ticket, true);
        }
        let credit = message.src.clone().map(|src| HeldCredit {
            src,
            is_multicast: message.is_multicast(),
            bytes: u64::from(message.credit),
        });
        let credit = credit.filter(|credit| credit.bytes > 0);
        let bridged = Self::bridged(cx, master, Some(dest.clone()), sender.clone(), message);
        self.counts.relayed += 1;
        Self::raise(cx, RelayEvent::Send(BridgeSend { bridge, message: bridged, credit }));
    }

    fn route_of(&mut self, cx: &mut Cx<'_>, site: &str, sender: &Address) -> Option<super::routes::Route> {
        #[cfg(feature = "injected-bugs")]
        if cx.has_bug(crate::InjectedBug::RandomSiteMaster) {
            return self.routes.pick_any(site, cx.rng());
        }
        let _ = cx;
        let is_member = sender.site() == Some(&self.site) && self.is_member(sender);
        self.routes.pick(site, sender, is_member)
    }

    /// Sends a copy of the site's multicast to each other site. Application and bridges have equal parts of its credit.
    pub(super) fn relay_to_all(&mut self, cx: &mut Cx<'_>, message: &mut Message) {
        let Some(src) = message.src.clone().filter(|_| !message.flags.has(Flags::NO_RELAY)) else { return };
        let sender = self.in_site(cx, &src);
        let sites = self.routes.names();
        let share = message.credit / (sites.len() as u32 + 1);
        for site in sites {
            let Some((bridge, master)) = self.route_of(cx, &site, &sender) else { continue };
            let bytes = u64::from(share);
            let credit = (share > 0).then(|| HeldCredit { src: src.clone(), is_multicast: true, bytes });
            message.credit -= share;
            let bridged = Self::bridged(cx, master, None, sender.clone(), message.clone());
            self.counts.relayed += 1;
            Self::raise(cx, RelayEvent::Send(BridgeSend { bridge, message: bridged, credit }));
        }
    }

    fn bridged(
        cx: &Cx<'_>,
        master: Address,
        final_dest: Option<Address>,
        sender: Address,
        mut message: Message,
    ) -> Message {
        cx.keep_headers_of_above(&mut message);
        let mut header = RelayHeader::new(relay_kind::DATA, final_dest, Some(sender));
        header.original_flags = message.flags.0 as i16;
        message.headers.put(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
        Message { dest: Some(master), src: None, credit: 0, ticket: 0, transient: Transient::NONE, ..message }
    }

    /// Sends a SITE_UNREACHABLE to a sender of this site. A sender of another site gets none, as in JGroups.
    pub(super) fn refuse(&mut self, cx: &mut Cx<'_>, message: &Message, site: &str, origin: &Origin) {
        self.counts.unreachable += 1;
        cx.count_drop(DropReason::UnknownAddress, |_| {
            format!("no route to site `{}`", site.chars().take(100).collect::<String>())
        });
        match (origin, &message.src) {
            (Origin::Own, _) => {
                if message.ticket != 0 {
                    Self::acknowledge(cx, message.ticket, false);
                }
                Self::raise(cx, RelayEvent::SiteUnreachable(site.into()));
            }
            (Origin::Member, Some(src)) => {
                let dest = src.clone();
                cx.absorb(message);
                let header =
                    RelayHeader::new(relay_kind::SITE_UNREACHABLE, Some(Address::site_master(site)), None);
                let answer = Message::empty(Some(dest))
                    .with_flags(Flags::OOB)
                    .with_header(ProtocolId::RELAY2, HeaderBody::Relay(Box::new(header)));
                cx.send(answer);
            }
            (Origin::Member, None) | (Origin::Bridge, _) => {}
        }
    }

    /// RSVP below does not see a message that goes to a bridge.
    fn acknowledge(cx: &mut Cx<'_>, ticket: u32, is_complete: bool) {
        let is_awaited = cx.below.iter().any(|slot| slot.protocol.id() == ProtocolId::RSVP);
        if is_awaited {
            cx.raise(Event::RsvpDone { ticket, is_complete });
        }
    }

    /// Returns the site master to which a member's message goes that came to this member, which is none.
    pub(super) fn master_instead(&self, message: &Message, sender: &Address) -> Option<Address> {
        let master = sticky::choose(sender, &self.masters, |master| master)?;
        (message.src.as_ref() != Some(master)).then(|| master.clone())
    }
}
