//! RELAY2 and RELAY3: messages to other sites (facts section 24.2).
//!
//! A site is a cluster. Its site masters are also members of bridges: clusters that the channel opens for them. A message to
//! another site goes to a site master, over a bridge to a master of that site, and from it to the member. Multicasts go to all
//! sites.
//!
//! Each member has one site master for its unicasts, and the first one relays all multicasts. A site master in turn has one
//! route per sender and site. Both stay while they exist, so that a member's messages keep their order.
//!
//! With RELAY3 members have addresses of their site, and messages cross sites without a common bridge: multicasts go on to all
//! sites that they have not visited, unicasts by forwarding rules.
//!
//! Bridges are not part of the stack: their messages leave as [`Event::Relay`] and enter as [`Event::FromBridge`].

mod config;
mod inbound;
mod known_sites;
mod limits;
mod outbound;
mod own_site;
mod routes;
mod sites;
mod sticky;
mod topology;
mod transit;

pub use crate::wire::{SITE_LIST_BYTES_MAX, SITES_MAX};
pub use config::{Relay2Config, Relay3Config, TopologyConfig};
pub use known_sites::{WAYS_BYTES_MAX, WAYS_MAX};
pub use limits::{
    ADDRESS_BYTES_MAX, INBOUND_BYTES_MAX, INBOUND_HEADERS_MAX, INBOUND_TOTAL_MAX, SITE_NAME_BYTES_MAX,
    SITE_NAMES_BYTES_MAX,
};
pub use topology::{TOPOLOGY_BYTES_MAX, TOPOLOGY_SITE_BYTES_MAX};

use config::Settings;
use known_sites::KnownSites;
use own_site::OwnSite;
use routes::Routes;
use topology::Topology;

use crate::credit::Creditors;
use crate::{
    Address, BridgeInput, Cx, DropReason, Event, ForwardRule, HeaderBody, HeaderIds, MessageBatch,
    OwedCredits, Pass, ProbeOut, Protocol, ProtocolId, RelayEvent, TimerKey, View,
};

/// Counts of messages.
#[derive(Default)]
struct Counts {
    to_master: u64,
    relayed: u64,
    to_member: u64,
    unreachable: u64,
}

/// The layer of RELAY2 or RELAY3.
pub struct Relay {
    settings: Settings,
    own: OwnSite,
    /// The site master of this member's own unicasts, which stays while it is one. A member that becomes site master may
    /// have another one.
    own_master: Option<Address>,
    is_own_master: bool,
    is_master: bool,
    routes: Routes,
    known: KnownSites,
    /// Whether a bridge has had a view since this member became site master.
    has_bridge_view: bool,
    /// Ways over other sites (RELAY3).
    forwards: Vec<ForwardRule>,
    /// The members of other sites (RELAY3).
    topology: Topology,
    /// Of unicasts and of multicasts.
    creditors: [Creditors; 2],
    counts: Counts,
}

fn raise(cx: &mut Cx<'_>, event: RelayEvent) {
    cx.raise(Event::Relay(Box::new(event)));
}

impl Relay {
    /// Creates RELAY2's layer.
    pub fn relay2(config: &Relay2Config) -> Self {
        Self::new(Settings::from(config))
    }

    /// Creates RELAY3's layer.
    pub fn relay3(config: &Relay3Config, topology: &TopologyConfig) -> Self {
        Self::new(Settings::relay3(config, topology))
    }

    fn new(settings: Settings) -> Self {
        let site = settings.site.clone();
        Self {
            own: OwnSite::new(site.clone(), settings.kind),
            settings,
            own_master: None,
            is_own_master: false,
            is_master: false,
            routes: Routes::new(site),
            known: KnownSites::default(),
            has_bridge_view: false,
            forwards: Vec::new(),
            topology: Topology::default(),
            creditors: [Creditors::new(), Creditors::new()],
            counts: Counts::default(),
        }
    }

    fn install(&mut self, cx: &mut Cx<'_>, view: &View) {
        let previous = self.own.view.replace(view.clone());
        let was_master = self.is_master;
        self.own.masters = self.settings.site_masters(view);
        self.is_master = self.own.masters.contains(cx.local());
        if self.own_master.as_ref().is_none_or(|master| !self.own.masters.contains(master)) {
            let chosen = sticky::choose(cx.local(), &self.own.masters, |master| master);
            self.own_master = if self.is_master { Some(cx.local().clone()) } else { chosen.cloned() };
        }
        self.is_own_master = self.own_master.as_ref() == Some(cx.local());
        self.routes.retain_senders(view.members());
        match (was_master, self.is_master) {
            (false, true) => raise(cx, RelayEvent::OpenBridges),
            (true, false) => {
                self.routes.clear();
                self.has_bridge_view = false;
                raise(cx, RelayEvent::CloseBridges);
            }
            _ => {}
        }
        self.announce(cx);
        self.own_view_changed(cx, previous.as_ref());
        let was_first = previous
            .as_ref()
            .is_some_and(|view| self.settings.site_masters(view).first() == Some(cx.local()));
        if view.is_merge() || !was_first {
            // Members of other subgroups know other sites, and the former first site master may not have announced its last change.
            return self.announce_known(cx, None);
        }
        let is_new = |member: &&Address| previous.as_ref().is_none_or(|view| !view.contains(member));
        view.members().iter().filter(is_new).for_each(|joiner| self.announce_known(cx, Some(joiner)));
    }
}

impl Protocol for Relay {
    fn name(&self) -> &'static str {
        self.settings.kind.name()
    }

    fn id(&self) -> ProtocolId {
        self.own.header_id()
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let is_relaying = self.is_relaying(cx);
        if !batch.messages.iter().any(|message| self.own.is_concerned(message, is_relaying)) {
            return;
        }
        // The rest of a batch goes before what is sent here, so that all messages are sent: they keep their order.
        for mut message in std::mem::take(&mut batch.messages) {
            let is_concerned = self.own.is_concerned(&message, is_relaying);
            if is_concerned && message.dest.is_some() {
                self.send_to_site(cx, message);
                continue;
            }
            if is_concerned {
                // It does not come up at this member.
                message.src.get_or_insert_with(|| cx.local().clone());
                self.relay_to_all(cx, &mut message);
            }
            cx.send(message);
        }
    }

    fn wants(&self, batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.own.header_id())
            || (self.is_master && batch.is_multicast() && !self.routes.is_empty())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let is_relaying = self.is_relaying(cx);
        for mut message in std::mem::take(&mut batch.messages) {
            match message.headers.take(self.own.header_id()) {
                Some(HeaderBody::Relay(header)) => self.handle(cx, *header, message),
                Some(_) => cx.discard(&message, DropReason::Malformed),
                None => {
                    if is_relaying && message.is_multicast() {
                        self.relay_to_all(cx, &mut message);
                    }
                    batch.messages.push(message);
                }
            }
        }
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::View(view) = event {
            self.install(cx, view);
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        let Event::FromBridge(input) = event else { return Pass::On };
        match &**input {
            BridgeInput::View { bridge, members } => {
                // A bridge that is being closed may still have views.
                if self.is_master {
                    let before = self.routes.names();
                    let refused = self.routes.set_members(*bridge, members);
                    if refused > 0 {
                        cx.count_drop(DropReason::QueueFull, |_| {
                            format!("no routes to {refused} site masters, whose sites are beyond the limits")
                        });
                    }
                    self.has_bridge_view = true;
                    self.announce(cx);
                    self.exchange_topology(cx, &config::difference(&self.routes.names(), &before));
                }
            }
            BridgeInput::Forwards(rules) => self.forwards.clone_from(rules),
            BridgeInput::Message { bridge, message } => self.take_from_bridge(cx, *bridge, message.clone()),
        }
        Pass::Stop
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        self.announce(cx);
    }

    fn owed_below(&mut self, src: &Address, is_multicast: bool, credit: u64) -> Option<OwedCredits> {
        self.creditors[usize::from(is_multicast)].take(src, credit)
    }

    fn first_hop(&self, dest: &Address) -> Option<Address> {
        if dest.site() == Some(&self.own.name) && !dest.is_site_master() {
            return self.own.within_site(dest);
        }
        self.own_master.clone().filter(|_| !self.is_own_master && dest.is_of_site())
    }

    fn probe(&self, out: &mut ProbeOut) {
        self.settings.shown.iter().for_each(|(name, value)| out.put(name, value));
        out.put("is_site_master", self.is_master);
        let list =
            |addresses: &[Address]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        out.put("site_masters", list(&self.own.masters));
        out.put("own_site_master", list(self.own_master.as_slice()));
        let routes = self.routes.lines().map(|(site, routes)| {
            let masters: Vec<Address> = routes.iter().map(|(_, master)| master.clone()).collect();
            format!("{site} --> {}", list(&masters))
        });
        out.put("routes", routes.collect::<Vec<_>>().join("\n"));
        out.put("sites", self.known.line());
        if self.own.is_relay3() {
            let rules = self.forwards.iter().map(|rule| format!("{} --> {}", rule.to(), rule.gateway()));
            out.put("forwards", rules.collect::<Vec<_>>().join("\n"));
            out.put("topology", self.topology.text());
        }
        out.put("num_forwarded_to_site_master", self.counts.to_master);
        out.put("num_relayed", self.counts.relayed);
        out.put("num_forwarded_to_local_mbr", self.counts.to_member);
        out.put("number_of_no_route_errors", self.counts.unreachable);
    }
}

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod relay3_tests;
#[cfg(test)]
mod tests;
