use std::io;
use std::sync::Arc;
use std::time::Duration;

use consort_group::{PhysAddr, Version};

use crate::bind_error::BindError;
use crate::config::{EdgeKind, TransportConfig};
use crate::edge::Edge;
use crate::effects::{EffectSettings, StreamSettings};
use crate::shared_loopback::BoundShared;
use crate::signals::Signals;
#[cfg(feature = "tls")]
use crate::tcp::key_exchange_tls::{KeyExchangeTls, ReadKeyExchangeTls, ReloadedTls};
use crate::tcp::links::LinkSettings;
use crate::tcp::tls::Tls;
use crate::tcp::{BoundTcp, link_settings};
use crate::tunnel_edge::BoundTunnel;
use crate::udp::BoundUdp;

/// Bound sockets, not yet read.
pub struct BoundEdge {
    bound: Bound,
    effect_links: LinkSettings,
    router_links: LinkSettings,
    key_exchange: Option<Tls>,
}

enum Bound {
    Tcp(Box<BoundTcp>),
    Udp(Box<BoundUdp>),
    Shared(BoundShared),
    Tunnel(Box<BoundTunnel>),
}

impl BoundEdge {
    /// Binds a transport's sockets; if no address fits or the system refuses, no socket is left open.
    pub fn bind(config: &TransportConfig, version: Version) -> Result<Self, BindError> {
        // No pause between attempts, because layers request each attempt and count them. FD_SOCK2's sockets have no
        // TLS. They are never reaped, because they are idle while all is well.
        let effect_links = LinkSettings {
            reconnect_pause: Duration::ZERO,
            reaper_interval: Duration::ZERO,
            ..link_settings(config, version, None)
        };
        let is_tunnel = config.kind == EdgeKind::Tunnel;
        let tls = Tls::to_routers(if is_tunnel { &config.tls } else { &config.router_tls })?;
        let router_links = LinkSettings { tls, ..effect_links.clone() };
        let choose = || config.bind_addr.choose_of_host(config.ip_version);
        let bound = match config.kind {
            EdgeKind::SharedLoopback => Bound::Shared(BoundShared::bind(config)),
            EdgeKind::Tcp => Bound::Tcp(Box::new(BoundTcp::bind(config, version, &choose()?)?)),
            EdgeKind::Udp => Bound::Udp(Box::new(BoundUdp::bind(config, &choose()?)?)),
            EdgeKind::Tunnel => Bound::Tunnel(Box::new(BoundTunnel::bind(config, &choose()?)?)),
        };
        Ok(Self { bound, effect_links, router_links, key_exchange: None })
    }

    /// Sets the certificates of SSL_KEY_EXCHANGE. They are read again for a connection if that was longer ago than
    /// `reload_threshold`.
    #[cfg(feature = "tls")]
    pub fn set_key_exchange(
        &mut self,
        first: KeyExchangeTls,
        read: Arc<ReadKeyExchangeTls>,
        reload_threshold: Duration,
    ) {
        let tls = ReloadedTls::new(first, read, reload_threshold);
        self.key_exchange = Some(Tls::of_key_exchange(Arc::new(tls)));
    }

    /// Returns the address to advertise.
    pub fn phys_addr(&self) -> PhysAddr {
        match &self.bound {
            Bound::Tcp(bound) => bound.own(),
            Bound::Udp(bound) => bound.own(),
            Bound::Shared(bound) => bound.own(),
            Bound::Tunnel(bound) => bound.own(),
        }
    }

    /// Returns whether one packet reaches all members.
    pub fn has_multicast(&self) -> bool {
        match &self.bound {
            Bound::Tcp(_) => false,
            Bound::Udp(bound) => bound.has_multicast(),
            // A router sends a multicast to all members.
            Bound::Shared(_) | Bound::Tunnel(_) => true,
        }
    }

    /// Layers with sockets of their own use them.
    pub(crate) fn effect_settings(&self) -> EffectSettings {
        let tls = match &self.bound {
            Bound::Tcp(bound) => bound.tls(),
            Bound::Udp(_) | Bound::Shared(_) | Bound::Tunnel(_) => None,
        };
        EffectSettings {
            links: self.effect_links.clone(),
            router_links: self.router_links.clone(),
            streams: StreamSettings {
                options: self.effect_links.options,
                tls,
                key_exchange: self.key_exchange.clone(),
            },
            is_tunnel: matches!(self.bound, Bound::Tunnel(_)),
        }
    }

    /// Registers the sockets with the current runtime.
    pub(crate) fn open(self, signals: &Arc<Signals>) -> io::Result<Box<dyn Edge>> {
        Ok(match self.bound {
            Bound::Tcp(bound) => Box::new(bound.open(signals)?),
            Bound::Udp(bound) => Box::new(bound.open(signals)?),
            Bound::Shared(bound) => Box::new(bound.open(signals)),
            Bound::Tunnel(bound) => bound,
        })
    }
}
