use std::collections::BTreeMap;

use consort_group::Address;

use crate::command::OperationId;

#[derive(Default)]
pub(crate) struct Watermarks {
    finished: BTreeMap<Address, u64>,
}

impl Watermarks {
    pub(crate) fn heard(&mut self, caller: &Address, finished: u64) {
        match self.finished.get_mut(caller) {
            Some(known) => *known = finished.max(*known),
            None => {
                self.finished.insert(caller.clone(), finished);
            }
        }
    }

    pub(crate) fn of(&self, caller: &Address) -> u64 {
        self.finished.get(caller).copied().unwrap_or(0)
    }

    pub(crate) fn is_finished(&self, operation: &OperationId) -> bool {
        operation.number < self.of(&operation.caller)
    }

    /// A caller that is not a member has no operations under way.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&Address) -> bool) {
        self.finished.retain(|caller, _| is_kept(caller));
    }
}
