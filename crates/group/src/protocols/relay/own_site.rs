//! The own site: its name, its view, and its site masters.

use std::sync::Arc;

use super::config::RelayKind;
use super::limits::bytes_of_address;
use super::{ADDRESS_BYTES_MAX, sticky};
use crate::{Address, Cx, HeaderBody, Message, Object, ProtocolId, RelayHeader, Transient, View, relay_kind};

/// The site of this member, as its view has it.
pub(super) struct OwnSite {
    pub(super) name: Arc<str>,
    pub(super) kind: RelayKind,
    pub(super) view: Option<View>,
    pub(super) masters: Vec<Address>,
}

impl OwnSite {
    pub(super) const fn new(name: Arc<str>, kind: RelayKind) -> Self {
        Self { name, kind, view: None, masters: Vec::new() }
    }

    pub(super) fn is_relay3(&self) -> bool {
        self.kind == RelayKind::Relay3
    }

    pub(super) fn header_id(&self) -> ProtocolId {
        self.kind.id()
    }

    pub(super) fn is_first_master(&self, cx: &Cx<'_>) -> bool {
        self.masters.first() == Some(cx.local())
    }

    /// Returns the address of a member of this site in messages to other sites.
    pub(super) fn in_site(&self, cx: &Cx<'_>, member: &Address) -> Address {
        if member.site().is_some() {
            return member.clone();
        }
        let name = cx.shared().book.name(member).map(|name| &**name);
        let name = if cx.is_local(member) { Some(&*cx.shared().name) } else { name };
        member.in_site(&self.name, name)
    }

    /// Returns the member of the view with the UUID of this address, which another site may have in another form.
    pub(super) fn member(&self, address: &Address) -> Option<&Address> {
        let uuid = address.uuid();
        self.view.as_ref()?.members().iter().find(|member| member.uuid() == uuid)
    }

    pub(super) fn is_member(&self, address: &Address) -> bool {
        self.member(address).is_some()
    }

    /// Returns the address of a member in messages within this site. RELAY2's members have plain addresses there.
    pub(super) fn within_site(&self, address: &Address) -> Option<Address> {
        if self.is_relay3() { Some(address.clone()) } else { address.uuid().map(Address::Uuid) }
    }

    /// Returns whether the layer handles a message of the application, because it goes to another site, to a site master or to
    /// all sites.
    pub(super) fn is_concerned(&self, message: &Message, is_relaying: bool) -> bool {
        match &message.dest {
            // With RELAY3, the members of the view have addresses of this site.
            Some(dest) if dest.site() == Some(&self.name) => {
                !self.view.as_ref().is_some_and(|view| view.contains(dest))
            }
            Some(dest) => dest.is_of_site(),
            None => is_relaying && message.transient.has(Transient::DONT_LOOPBACK),
        }
    }

    /// Returns the site master to which this member, which is none, forwards a message. `None` if that one has sent it.
    pub(super) fn master_instead(&self, message: &Message, sender: &Address) -> Option<Address> {
        let master = sticky::choose(sender, &self.masters, |master| master)?;
        (message.src.as_ref() != Some(master)).then(|| master.clone())
    }

    /// Returns whether a report of an unreachable member is accepted. Calls to the member fail with it, so that only the site
    /// of the member can send it, and not of members of this view.
    pub(super) fn may_report(&self, header: &RelayHeader, member: &Address) -> bool {
        let site = header.original_sender.as_ref().and_then(Address::site);
        site.is_some()
            && site == member.site()
            && !self.is_member(member)
            && bytes_of_address(member) <= ADDRESS_BYTES_MAX
    }

    /// Returns RELAY2's response to a TOPO_REQ: a text for operators.
    pub(super) fn topology_text(&self, cx: &Cx<'_>, dest: Address) -> Message {
        let mut text = format!("{}\n", self.name);
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
        Message::empty(Some(dest)).with_header(self.header_id(), HeaderBody::Relay(Box::new(header)))
    }

    /// Returns RELAY3's TOPO_RSP with the view of a site.
    pub(super) fn topology_message(&self, cx: &Cx<'_>, site: &str, view: &View) -> (RelayHeader, Message) {
        let sender = self.in_site(cx, &cx.local().clone());
        let mut header = RelayHeader::new(relay_kind::TOPO_RSP, None, Some(sender));
        header.sites = vec![Some(site.to_owned())];
        (header, Message::object(None, Object::View(view.without_subgroups())))
    }
}
