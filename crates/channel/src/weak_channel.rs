use std::sync::{Arc, PoisonError};

use consort_group::{Address, Member, Message, PhysAddr};
use consort_net::{Command, DriverWaker, Submitter};

use crate::gate::weight;
use crate::shared::Shared;

/// A channel that does not keep its member running ([`crate::UpHandler::opened`]).
#[derive(Clone)]
pub struct WeakChannel {
    shared: Arc<Shared>,
    driver: Submitter,
}

impl std::fmt::Debug for WeakChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "channel of {}", self.shared.name)
    }
}

impl WeakChannel {
    pub(crate) fn new(shared: Arc<Shared>, driver: Submitter) -> Self {
        Self { shared, driver }
    }

    /// Returns the member's address.
    pub fn address(&self) -> &Address {
        &self.shared.local
    }

    /// Returns its logical name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        &self.shared.cluster
    }

    /// Returns its physical address.
    pub fn physical_address(&self) -> PhysAddr {
        self.shared.phys
    }

    /// Returns the driver's waker; the driver then asks handlers for messages and deadlines.
    pub fn waker(&self) -> DriverWaker {
        self.driver.waker()
    }

    pub(crate) fn submitter(&self) -> Submitter {
        self.driver.clone()
    }

    /// Returns a member's name, or the address without one.
    pub fn name_of(&self, member: &Address) -> String {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner).display(member)
    }

    /// Returns a member for errors and logs.
    pub fn member(&self, address: &Address) -> Member {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner).member(address)
    }

    /// Never waits, because responses must not wait behind requests.
    pub(crate) fn submit(&self, message: Message) {
        self.shared.gate.force(&message.dest, weight(message.length()));
        // After the channel is closed, no caller waits for a response.
        let _ = self.driver.submit(Command::Send(message));
    }
}
