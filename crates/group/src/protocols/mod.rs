//! The layers, one file each.

pub mod transport;

pub use transport::{BundlerKind, Transport, TransportKind, TransportLayerConfig, UnknownBundler};
pub mod nakack;

pub use nakack::{NakAck, NakAckConfig, NakAckKind};
pub mod unicast;

pub use unicast::{Unicast, UnicastConfig, UnicastKind};
pub mod stable;

pub use stable::{Stable, StableConfig};
pub mod discovery;

pub use discovery::{Discovery, DiscoveryConfig, FilePingConfig, MpingConfig, Source};
pub mod gms;

pub use gms::{DefaultPolicy, Gms, GmsConfig, MembershipPolicy};
pub mod merge3;

pub use merge3::{Merge3, Merge3Config};
pub mod fd_all3;

pub use fd_all3::{FdAll3, FdAll3Config};
pub mod verify_suspect;

pub use verify_suspect::{VerifySuspect, VerifySuspectConfig};
pub mod fd_sock2;

pub use fd_sock2::{FdSock2, FdSock2Config};
pub mod flow;

pub use flow::{FlowConfig, FlowControl, FlowKind, QueueConfig};
pub mod frag;

pub use frag::{Frag, FragConfig, FragKind};
pub mod barrier;

pub use barrier::{Barrier, BarrierConfig};
pub mod state_transfer;

pub use state_transfer::{StateTransfer, StateTransferConfig};
pub mod rsvp;

pub use rsvp::{Rsvp, RsvpConfig};
pub mod sequencer;

pub use sequencer::{Sequencer, SequencerConfig};
pub mod faults;

pub use faults::{
    Delay, DelayConfig, Discard, DiscardConfig, Duplicate, DuplicateConfig, Shuffle, ShuffleConfig,
};
pub mod delivery_time;

pub use delivery_time::{DeliveryTime, DeliveryTimeConfig};
pub mod red;

pub use red::{Red, RedConfig};
pub mod registry;
