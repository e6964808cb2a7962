//! The views of other sites, which site masters send each other (RELAY3). RELAY2 responds to a request with a text.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::limits::bytes_of_address;
use super::outbound::Origin;
use super::{Relay, SITE_NAME_BYTES_MAX, SITES_MAX, raise};
use crate::{
    Address, BridgeSend, Cx, DropReason, Flags, Message, Object, Payload, RelayEvent, RelayHeader, Severity,
    View, relay_kind,
};

/// The most bytes of another site's view. A member counts with the bytes of its names and 64 more.
pub const TOPOLOGY_SITE_BYTES_MAX: usize = 1 << 20;

/// The most bytes of the views of all sites.
pub const TOPOLOGY_BYTES_MAX: usize = 16 << 20;

/// The latest views of other sites.
#[derive(Default)]
pub(super) struct Topology {
    views: BTreeMap<Arc<str>, View>,
    bytes: usize,
}

fn bytes_of(view: &View) -> usize {
    view.members().iter().chain([&view.id().creator]).map(bytes_of_address).sum()
}

impl Topology {
    /// Keeps the view of a site, and returns false if it is beyond the limits. The former view is removed in any case, because it
    /// is out of date.
    fn put(&mut self, site: &str, view: &View) -> bool {
        // The subgroups of a merge view are not used.
        let view = view.without_subgroups();
        let bytes = bytes_of(&view);
        self.bytes -= self.views.remove(site).map_or(0, |former| bytes_of(&former));
        if site.len() > SITE_NAME_BYTES_MAX
            || self.views.len() >= SITES_MAX
            || bytes > TOPOLOGY_SITE_BYTES_MAX
            || self.bytes + bytes > TOPOLOGY_BYTES_MAX
        {
            return false;
        }
        self.bytes += bytes;
        self.views.insert(site.into(), view);
        true
    }

    pub(super) fn remove(&mut self, sites: &[Arc<str>]) {
        for site in sites {
            self.bytes -= self.views.remove(site).map_or(0, |view| bytes_of(&view));
        }
    }

    /// Returns whether a site has several members, of which another one can become site master.
    pub(super) fn has_several(&self, site: &str) -> bool {
        self.views.get(site).is_some_and(|view| view.len() > 1)
    }

    /// One line per site.
    pub(super) fn text(&self) -> String {
        let line = |(site, view): (&Arc<str>, &View)| {
            let members: Vec<String> = view.members().iter().map(ToString::to_string).collect();
            format!("{site}: {}", members.join(", "))
        };
        self.views.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl Relay {
    /// Answers the request of a member for the views of sites. Only members of this site get those of other sites.
    pub(super) fn answer_topology(&mut self, cx: &mut Cx<'_>, request: &RelayHeader, from: &Address) {
        if !self.own.is_relay3() {
            let answer = self.own.topology_text(cx, from.clone());
            if self.own.is_member(from) && self.has_room(cx, Some(from), &answer) {
                cx.send(answer);
            }
            return;
        }
        if !self.settings.has_global_views {
            return;
        }
        let mut views: Vec<(Arc<str>, View)> = Vec::new();
        views.extend(self.own.view.clone().map(|view| (self.own.name.clone(), view)));
        if request.return_entire_cache {
            views.extend(self.topology.views.iter().map(|(site, view)| (site.clone(), view.clone())));
        }
        for (site, view) in views {
            let (mut header, message) = self.own.topology_message(cx, &site, &view);
            header.final_dest = Some(from.clone());
            self.dispatch(cx, header, message.with_flags(Flags::OOB));
        }
    }

    /// Keeps the view of another site that this site or a member of the own one has sent.
    pub(super) fn receive_topology(&mut self, cx: &mut Cx<'_>, header: &RelayHeader, message: &Message) {
        let site = header.sites.iter().flatten().next();
        let (Some(site), Payload::Object(object)) = (site, &message.payload) else {
            return cx.count_drop(DropReason::Malformed, |_| "a topology without site or view".to_owned());
        };
        let Object::View(view) = &**object else {
            return cx.count_drop(DropReason::Malformed, |_| "a topology without view".to_owned());
        };
        let sender = header.original_sender.as_ref().and_then(Address::site);
        if sender.is_none_or(|sender| *sender != **site && *sender != *self.own.name) {
            // A new site master of JGroups also sends the views of third sites, which send theirs themselves.
            return cx.count_drop_of(DropReason::Unexpected, Severity::Expected, |_| {
                format!("the view of site `{site}` from another site")
            });
        }
        if **site == *self.own.name || !self.settings.has_global_views {
            return;
        }
        if !self.topology.put(site, view) {
            cx.count_drop(DropReason::QueueFull, |_| "the topology of a site is too large".to_owned());
        }
    }

    /// Sends the new view of this site to other sites. A joiner requests the views of all sites.
    pub(super) fn own_view_changed(&mut self, cx: &mut Cx<'_>, previous: Option<&View>) {
        if !self.own.is_relay3() || !self.settings.has_global_views {
            return;
        }
        if self.own.is_first_master(cx) {
            let sites: Vec<Arc<str>> = self.routes.names().into_iter().collect();
            return self.send_view(cx, &sites);
        }
        if let (None, Some(master)) = (previous, self.own.masters.first().cloned()) {
            // Also a joiner that is a site master, because other sites do not send their views again.
            let sender = self.own.in_site(cx, &cx.local().clone());
            let mut header = RelayHeader::new(
                relay_kind::TOPO_REQ,
                Some(Address::site_master(&self.own.name)),
                Some(sender),
            );
            header.return_entire_cache = true;
            self.send_within(cx, master, header, Message::empty(None).with_flags(Flags::OOB));
        }
    }

    /// Exchanges views with sites to which this member had no route, if it is first site master. The former one may have exchanged
    /// views with them before.
    pub(super) fn exchange_topology(&mut self, cx: &mut Cx<'_>, sites: &[Arc<str>]) {
        if self.own.is_relay3() && self.own.is_first_master(cx) {
            self.request_views(cx, sites);
            self.send_view(cx, sites);
        }
    }

    /// Sends the view of this site to other sites.
    fn send_view(&mut self, cx: &mut Cx<'_>, sites: &[Arc<str>]) {
        let Some(view) = self.own.view.clone().filter(|_| self.settings.has_global_views) else { return };
        let (mut header, message) = self.own.topology_message(cx, &self.own.name.clone(), &view);
        header.final_dest = Some(Address::all_site_masters());
        self.send_to_sites(cx, &header, &message, sites);
    }

    /// Requests the views of these sites.
    fn request_views(&mut self, cx: &mut Cx<'_>, sites: &[Arc<str>]) {
        if self.settings.has_global_views {
            let sender = self.own.in_site(cx, &cx.local().clone());
            let header =
                RelayHeader::new(relay_kind::TOPO_REQ, Some(Address::all_site_masters()), Some(sender));
            self.send_to_sites(cx, &header, &Message::empty(None), sites);
        }
    }

    /// Sends a message that this member has made to its final destination.
    pub(super) fn dispatch(&mut self, cx: &mut Cx<'_>, header: RelayHeader, message: Message) {
        let Some(dest) = header.final_dest.clone() else { return };
        if dest.site() == Some(&self.own.name) {
            // Requests need no credits, so that responses need room. The peer may have invented the member.
            let Some(member) = self.own.member(&dest).cloned() else { return };
            if self.has_room(cx, Some(&member), &message) {
                self.send_within(cx, member, header, message);
            }
            return;
        }
        // A lost view is sent again with the next change.
        self.route(cx, header, message, &Origin::Notice);
    }

    /// RELAY2's answer over a bridge.
    pub(super) fn answer_topology_over(&self, cx: &mut Cx<'_>, bridge: usize, src: Address) {
        let message = self.own.topology_text(cx, src);
        raise(cx, RelayEvent::Send(BridgeSend { bridge, message, credit: None }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ViewId;
    use crate::harness::member;

    fn view(site: &str, members: u64, name: &str) -> View {
        let members: Vec<Address> = (1..=members).map(|n| member(n).in_site(site, Some(name))).collect();
        View::new(ViewId { creator: member(1), id: 1 }, members)
    }

    #[test]
    fn views_of_sites_are_bounded_in_number_and_bytes() {
        let mut topology = Topology::default();
        assert!(topology.put("nyc", &view("nyc", 2, "A")));
        assert!(topology.has_several("nyc") && !topology.has_several("sfo"));
        assert_eq!(topology.text(), "nyc: A:nyc, A:nyc");
        let bytes = topology.bytes;
        assert!(topology.put("nyc", &view("nyc", 1, "A")) && topology.bytes < bytes);
        assert!(!topology.put(&"x".repeat(SITE_NAME_BYTES_MAX + 1), &view("x", 1, "A")));
        let large = "x".repeat(TOPOLOGY_SITE_BYTES_MAX - 1_000);
        assert!(!topology.put("nyc", &view("nyc", 1, &"x".repeat(TOPOLOGY_SITE_BYTES_MAX))));
        assert_eq!((topology.text().as_str(), topology.bytes), ("", 0), "the former view is out of date");
        assert!((0..16).all(|n| topology.put(&n.to_string(), &view("s", 1, &large))));
        assert!(!topology.put("last", &view("s", 1, &"x".repeat(TOPOLOGY_SITE_BYTES_MAX - 500))));
        let sites: Vec<Arc<str>> = (0..16).map(|n| n.to_string().into()).chain(["nyc".into()]).collect();
        topology.remove(&sites);
        assert_eq!(topology.bytes, 0);
        assert!((0..SITES_MAX).all(|n| topology.put(&n.to_string(), &view("s", 1, "A"))));
        assert!(!topology.put("one more", &view("s", 1, "A")));
    }
    #[test]
    fn merged_views_count_without_their_subgroups_and_with_their_creator() {
        let part = view("nyc", 2, &"x".repeat(TOPOLOGY_SITE_BYTES_MAX));
        let members = vec![member(1).in_site("nyc", Some("A"))];
        let merged = |creator: &str| {
            let creator = member(1).in_site("nyc", Some(creator));
            View::merged(ViewId { creator, id: 2 }, members.clone(), vec![part.clone()])
        };
        let mut topology = Topology::default();
        assert!(topology.put("nyc", &merged("A")));
        assert_eq!(topology.bytes, 2 * (64 + 4));
        assert!(!topology.views["nyc"].is_merge(), "their bytes are free");
        assert!(!topology.put("nyc", &merged(&"x".repeat(TOPOLOGY_SITE_BYTES_MAX))));
    }
}
