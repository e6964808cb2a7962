//! The entries of a replica: how they are written to the container and to the store, and how they are loaded from the store.

pub(crate) mod loads;
pub(crate) mod refused_removals;
pub(crate) mod writes;

use bytes::Bytes;
use consort_group::Address;

use crate::command::Ack;
use crate::persistence::StoreSettings;
use crate::replica::store::writes::Persistence;
use crate::{Segment, Version};

/// The entries of a replica. Each write of one goes to the container, and to the store if the cache has one here.
#[derive(Default)]
pub(crate) struct Store {
    /// The state of the store, if there is one.
    pub(crate) persistence: Option<Box<Persistence>>,
}

impl Store {
    /// Returns the entries of a cache that has a store here, if there are settings for one.
    pub(crate) fn new(settings: Option<StoreSettings>) -> Self {
        Self { persistence: settings.map(|settings| Box::new(Persistence::new(settings))) }
    }
}

/// A key of a segment.
pub(crate) type Place = (Segment, Bytes);

/// The request or barrier of a number.
pub(crate) enum Wait {
    Write {
        place: Place,
        version: Version,
    },
    RemoveSegment(Segment),
    Clear,
    /// A topology is being persisted.
    Remember(u32),
    /// An action to execute once all earlier requests have ended.
    Barrier(Then),
}

pub(crate) enum Then {
    Ack { place: Place, to: Address, ack: Ack },
    Pulled,
}
