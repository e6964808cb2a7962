pub(crate) mod loads;
pub(crate) mod refused_removals;
pub(crate) mod writes;

use bytes::Bytes;
use consort_group::Address;

use crate::command::Ack;
use crate::persistence::StoreSettings;
use crate::replica::store::writes::Persistence;
use crate::{Segment, Version};

#[derive(Default)]
pub(crate) struct Store {
    pub(crate) persistence: Option<Box<Persistence>>,
}

impl Store {
    pub(crate) fn new(settings: Option<StoreSettings>) -> Self {
        Self { persistence: settings.map(|settings| Box::new(Persistence::new(settings))) }
    }
}

pub(crate) type Place = (Segment, Bytes);

pub(crate) enum Wait {
    Write {
        place: Place,
        version: Version,
    },
    RemoveSegment(Segment),
    Clear,
    Remember(u32),
    /// For the time when all earlier requests have ended.
    Barrier(Then),
}

pub(crate) enum Then {
    Ack { place: Place, to: Address, ack: Ack },
    Pulled,
}
