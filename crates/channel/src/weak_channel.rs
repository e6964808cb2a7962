//! A handle of a channel for its up handlers.

use std::sync::{Arc, PoisonError};

use consort_group::{Address, Member, Message, PhysAddr};
use consort_net::{Command, DriverWaker, Submitter};

use crate::gate::weight;
use crate::shared::Shared;

/// A channel that does not keep its member running, for up handlers ([`crate::UpHandler::opened`]).
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

    /// Returns this member's address.
    pub fn address(&self) -> &Address {
        &self.shared.local
    }

    /// Returns this member's logical name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        &self.shared.cluster
    }

    /// Returns this member's physical address.
    pub fn physical_address(&self) -> PhysAddr {
        self.shared.phys
    }

    /// Returns a waker of the member's driver, which then asks its up handlers for messages and deadlines.
    pub fn waker(&self) -> DriverWaker {
        self.driver.waker()
    }

    /// Returns a member's logical name, or its address if the name is unknown.
    pub fn name_of(&self, member: &Address) -> String {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner).display(member)
    }

    /// Returns a member with its name, for errors and logs.
    pub fn member(&self, address: &Address) -> Member {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner).member(address)
    }

    /// Sends without waiting for capacity: responses must not wait behind requests.
    pub(crate) fn submit(&self, message: Message) {
        self.shared.gate.force(&message.dest, weight(message.length()));
        // After the channel is closed, no caller waits for a response.
        let _ = self.driver.submit(Command::Send(message));
    }
}
