//! The acknowledgement of a write owner to the caller, in a cache with or without a store.

use consort_group::Address;

use crate::command::{Ack, Body};
use crate::node::Cx;
use crate::replica::CacheReplica;
use crate::replica::store::writes::{Place, Then};

impl CacheReplica {
    /// Acknowledges a write to its caller once it is stored here.
    pub(crate) fn acknowledge(&mut self, cx: &mut Cx, place: Place, to: Address, ack: Ack) {
        if self.is_backed() {
            self.when_stored(cx, Then::Ack { place, to, ack });
        } else {
            self.send_ack(cx, &to, ack);
        }
    }

    /// Sends an acknowledgement, or counts it if this member is the caller.
    pub(crate) fn send_ack(&mut self, cx: &mut Cx, to: &Address, ack: Ack) {
        if *to == cx.local {
            let local = cx.local.clone();
            cx.calls.ack(&local, ack);
        } else {
            self.send(cx, to, Body::Ack(ack));
        }
    }
}
