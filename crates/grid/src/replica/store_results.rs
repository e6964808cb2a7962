//! The actions that wait for the store.

use consort_group::Address;

use crate::command::{Ack, Reply};
use crate::cx::Cx;
use crate::operation::{OperationError, StoreFailure};
use crate::persistence::Loaded;
use crate::replica::CacheReplica;
use crate::replica::iterate::publisher::fail_fetch;
use crate::replica::store::loads::{AwaitingLoad, Found};
use crate::replica::store::{Place, Then};

impl CacheReplica {
    pub(crate) fn acknowledge(&mut self, cx: &mut Cx, place: Place, to: Address, ack: Ack) {
        if self.store.is_backed() {
            self.when_stored(cx, Then::Ack { place, to, ack });
        } else {
            self.shared.send_ack(cx, &to, ack);
        }
    }

    fn when_stored(&mut self, cx: &mut Cx, then: Then) {
        if let Some(then) = self.store.await_writes(cx, then) {
            self.go_on(cx, then);
        }
    }

    fn go_on(&mut self, cx: &mut Cx, then: Then) {
        match then {
            Then::Ack { place, to, ack } => {
                if self.store.has_refused(&place) {
                    let (member, why) = (cx.local.clone().into(), self.store.failure());
                    let error = OperationError::StoreWriteFailed { member, why };
                    self.reply(cx, &to, ack.number, Reply::Failed(error));
                }
                // A refused write is in memory all the same, and its caller needs the acknowledgements of all owners before it
                // is finished.
                self.shared.send_ack(cx, &to, ack);
            }
            Then::Pulled if self.store.delays_pulled() => {}
            Then::Pulled => self.transfer.tell_pulled(&self.shared, cx),
        }
    }

    pub(crate) fn tell_when_stored(&mut self, cx: &mut Cx) {
        if self.store.is_backed() {
            self.when_stored(cx, Then::Pulled);
        } else {
            self.transfer.tell_pulled(&self.shared, cx);
        }
    }

    /// All requests before this number have ended.
    pub(crate) fn handle_stored(&mut self, cx: &mut Cx, number: u64, result: Result<(), StoreFailure>) {
        if self.store.note_stored(&mut self.shared, cx, number, result) {
            self.confirm(cx);
        }
        self.pass_barriers(cx);
    }

    fn pass_barriers(&mut self, cx: &mut Cx) {
        while let Some(then) = self.store.next_barrier() {
            self.go_on(cx, then);
        }
        if self.store.takes_owed_pulled() {
            self.tell_when_stored(cx);
        }
        while let Some(segment) = self.store.next_unpaused() {
            self.transfer.ask_again(&self.shared, cx, segment);
        }
    }

    pub(crate) fn handle_loaded(&mut self, cx: &mut Cx, number: u64, result: Result<Loaded, StoreFailure>) {
        let Some((waiting, found, failure)) = self.store.note_loaded(&mut self.shared, cx, number, result)
        else {
            return;
        };
        for waiting in waiting {
            self.go_on_with(cx, waiting, &found, failure.as_ref());
        }
        self.store.forget_at_hand();
    }

    fn go_on_with(
        &mut self,
        cx: &mut Cx,
        waiting: AwaitingLoad,
        loaded: &Found,
        failure: Option<&StoreFailure>,
    ) {
        let error = failure
            .map(|why| OperationError::StoreReadFailed { member: cx.local.clone().into(), why: why.clone() });
        let with = |mut found: Found| {
            found.extend(loaded.iter().map(|(place, entry)| (place.clone(), entry.clone())));
            found
        };
        match (waiting, error) {
            (AwaitingLoad::Call { from, topology, call }, None) => self.take_call(cx, &from, topology, call),
            (AwaitingLoad::Call { from, call, .. }, Some(error)) => {
                self.reply(cx, &from, call.number, Reply::Failed(error));
            }
            (AwaitingLoad::Pull { from, pull, found }, None) => self.send_chunk(cx, &from, pull, with(found)),
            // The member requests it again, perhaps from another owner. A member that merges would take a refusal for an empty
            // segment.
            (AwaitingLoad::Pull { .. }, Some(_)) => {}
            (AwaitingLoad::Merge(segment), failure) => {
                self.merge.merge_loaded(segment);
                if failure.is_none() {
                    self.resume_merge(cx);
                }
            }
            (AwaitingLoad::Fetch { from, fetch }, None) => {
                self.iterations.publish(&self.shared, &mut self.store, cx, &from, fetch, loaded.clone());
            }
            (AwaitingLoad::Fetch { from, fetch }, Some(error)) => {
                fail_fetch(&self.shared, cx, &from, fetch, error);
            }
        }
    }
}
