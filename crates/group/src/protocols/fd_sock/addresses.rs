//! The addresses of the members' server sockets.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use crate::wire::{SOCKET_ADDRESSES_MAX, encode_socket_addresses};
use crate::{Address, Cx, DropReason, PhysAddr};

pub(super) struct SocketAddresses {
    all: BTreeMap<Address, PhysAddr>,
    /// This member has told the others its own address.
    pub(super) is_announced: bool,
    /// The requests to the coordinator that are left.
    pub(super) tries_left: u32,
}

impl SocketAddresses {
    pub(super) const fn new(tries: u32) -> Self {
        Self { all: BTreeMap::new(), is_announced: false, tries_left: tries }
    }

    pub(super) fn get(&self, member: &Address) -> Option<PhysAddr> {
        self.all.get(member).copied()
    }

    pub(super) fn set_own(&mut self, local: Address, own: PhysAddr) {
        self.all.insert(local, own);
    }

    pub(super) fn forget(&mut self, member: &Address) {
        self.all.remove(member);
    }

    /// Addresses of members that a later view has are kept, too; [`SocketAddresses::retain`] removes the others.
    pub(super) fn learn(&mut self, cx: &mut Cx<'_>, all: impl IntoIterator<Item = (Address, PhysAddr)>) {
        for (member, address) in all {
            let is_usable = address.ip.is_some() && address.port != 0;
            // Addresses that others have made up must not take the places of members.
            let is_member = cx.view().is_some_and(|view| view.contains(&member));
            let has_room =
                is_member || self.all.len() < SOCKET_ADDRESSES_MAX || self.all.contains_key(&member);
            if is_usable && has_room {
                self.all.insert(member, address);
            } else {
                cx.count_drop(DropReason::QueueFull, |book| {
                    format!("server socket {address} of {}", book.member(&member))
                });
            }
        }
    }

    pub(super) fn retain(&mut self, is_member: impl Fn(&Address) -> bool) {
        self.all.retain(|member, _| is_member(member));
    }

    pub(super) fn encode(&self) -> Bytes {
        encode_socket_addresses(self.all.iter().map(|(member, &address)| (member, address)))
    }
}

impl fmt::Display for SocketAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.all).finish()
    }
}
