//! The layers, one file each.

pub mod transport;

pub use transport::{
    BundlerKind, Transport, TransportKind, TransportLayerConfig, TunnelConfig, UnknownBundler,
};
pub mod nakack;

pub use nakack::{NakAck, NakAckConfig, NakAckKind};
pub mod unicast;

pub use unicast::{Unicast, UnicastConfig, UnicastKind};
pub mod stable;

pub use stable::{Stable, StableConfig};
pub mod discovery;

pub use discovery::{
    Discovery, DiscoveryConfig, DnsPingConfig, FilePingConfig, Hosts, JdbcPing2Config, KubePingConfig,
    MpingBindConfig, MpingConfig, Names, Pods, RouterTlsConfig, Routers, Source, Store, StoreConfig,
    TcpGossipConfig, TcpPingConfig,
};
pub mod gms;

pub use gms::{DefaultPolicy, Gms, GmsConfig, MembershipPolicy};
pub mod merge3;

pub use merge3::{Merge3, Merge3Config};
pub mod fd_all;

pub use fd_all::{
    FdAll, FdAll2, FdAll2Config, FdAll3, FdAll3Config, FdAllConfig, HeartbeatConfig, HeartbeatDetector,
};
pub mod verify_suspect;

pub use verify_suspect::{VerifySuspect, VerifySuspectConfig};
mod ended_streams;
mod socket_ring;
mod stream_listener;

pub mod fd_sock;

pub use fd_sock::{FdSock, FdSockConfig};
pub mod fd_sock2;

pub use fd_sock2::{FdSock2, FdSock2Config};
pub mod flow;

pub use flow::{FlowConfig, FlowControl, FlowKind, QueueConfig};
pub mod frag;

pub use frag::{Frag, FragConfig, FragKind};
pub mod barrier;

pub use barrier::{Barrier, BarrierConfig};
pub mod state_sock;

pub use state_sock::StateSockConfig;
pub mod state_transfer;

pub use state_transfer::{StateConfig, StateTransfer, StateTransferConfig};
pub mod auth;

pub use auth::{Auth, AuthConfig, AuthTokenConfig, CertificateKey, TokenConfig, TokenSources};
pub mod encrypt;

pub use encrypt::{
    AsymEncrypt, AsymEncryptConfig, KeyPair, RandomBytes, SecretKey, SymEncrypt, SymEncryptConfig,
};
pub mod key_exchange;

pub use key_exchange::{DhKeyExchange, DhKeyExchangeConfig, SslKeyExchange, SslKeyExchangeConfig};
pub mod rsvp;

pub use rsvp::{Rsvp, RsvpConfig};
pub mod sequencer;

pub use sequencer::{Sequencer, SequencerConfig};
pub mod faults;

pub use faults::{
    Delay, DelayConfig, Discard, DiscardConfig, DiscardPayload, DiscardPayloadConfig, Duplicate,
    DuplicateConfig, Shuffle, ShuffleConfig,
};
pub mod delivery_time;

pub use delivery_time::{DeliveryTime, DeliveryTimeConfig};
pub mod red;

pub use red::{Red, RedConfig};
pub mod compress;

pub use compress::{Compress, CompressConfig};
pub mod size;

pub use size::{Size, SizeConfig};
pub mod size2;

pub use size2::{Size2, Size2Config};
pub mod rate;

pub use rate::{Rate, RateConfig};
pub mod stats;

pub use stats::{Stats, StatsConfig};
pub mod message_log;

pub use message_log::{HdrsConfig, MessageLog, MessageLogKind, SniffConfig, TraceConfig};
pub mod rate_limiter;

pub use rate_limiter::{RateLimiter, RateLimiter2Config, RateLimiterConfig};
pub mod non_blocking_sends;

pub use non_blocking_sends::{NonBlockingSends, NonBlockingSendsConfig};
pub mod inject_view;

pub use inject_view::{InjectView, InjectViewConfig};
pub mod perf;

pub use perf::{Perf, PerfConfig};
pub mod counter;

pub use counter::{Counter, CounterConfig};
pub mod fork;

pub use fork::{Fork, ForkConfig};
pub mod relay;

pub use relay::{Relay, Relay2Config, Relay3Config, TopologyConfig};
pub mod registry;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use crate::harness::{Harness, member, view};

    /// S000-71: no layer wraps a message into an event or another allocation.
    #[test]
    fn a_message_passes_a_whole_stack_without_an_allocation_of_its_own() {
        const COUNT: usize = 1_000;
        let flow = |kind| FlowControl::new(kind, FlowConfig::default(), Default::default());
        let layers: Vec<Box<dyn crate::Protocol>> = vec![
            Box::new(FdAll3::new(FdAll3Config::default())),
            Box::new(VerifySuspect::new(VerifySuspectConfig::default())),
            Box::new(NakAck::new(NakAckKind::NakAck2, NakAckConfig::default())),
            Box::new(Unicast::new(UnicastKind::Unicast3, UnicastConfig::default())),
            Box::new(Stable::new(StableConfig::default())),
            Box::new(flow(FlowKind::Ufc)),
            Box::new(flow(FlowKind::Mfc)),
            Box::new(Frag::new(FragKind::Frag2, FragConfig::default())),
        ];
        let mut harness = Harness::with_layers(1, layers);
        harness.install(view(1, &[1, 2])).become_server().take_down();
        for dest in [None, Some(member(2))] {
            let messages = (0..COUNT).map(|_| Message::bytes(dest.clone(), "hello")).collect();
            let used = allocation_counter::measure(|| {
                harness.send_batch(messages);
            });
            assert_eq!(harness.take_down().len(), COUNT);
            assert!(used.count_total < COUNT as u64 / 10, "{dest:?}: {} allocations", used.count_total);
        }
    }
}
