//! The protocols by their names in configurations.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::discovery::Source;
use super::*;
use crate::config::{HostPort, Position, Properties, Property, PropertyInfo, ProtocolConfig};
use crate::{Protocol, ProtocolId, Version};

/// Resolves names in attributes, with errors for the operator.
pub trait Resolver {
    /// Returns the addresses of the host with this name, for AUTH; fails if there are none.
    fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String>;

    /// Returns this host's address that a list of selectors matches, for `bind_addr` of FD_SOCK, FD_SOCK2, MPING,
    /// SSL_KEY_EXCHANGE and STATE_SOCK.
    ///
    /// # Errors
    ///
    /// If no address matches.
    fn own(&mut self, selectors: &str) -> Result<IpAddr, String>;

    /// Returns the content of a file with hosts, for TCPPING; fails if it cannot be read, or if files are not read here.
    fn hosts_file(&mut self, path: &str) -> Result<String, String> {
        Err(format!("`{path}` is not read here: set initial_hosts"))
    }

    /// Reads the key that all members of an encrypted cluster share; fails if no readable key store has it.
    fn secret_key(&mut self, _config: &SymEncryptConfig) -> Result<SecretKey, String> {
        Err("key stores are not read here: set the protocol in the stack's file".to_owned())
    }

    /// Returns a source of unpredictable bytes, because the stack's generator is predictable from its seed; fails if there is
    /// none.
    fn random_bytes(&mut self) -> Result<Box<dyn RandomBytes>, String> {
        Err("no source of unpredictable bytes is set".to_owned())
    }

    /// Returns a new RSA key pair, for ASYM_ENCRYPT.
    ///
    /// # Errors
    ///
    /// If there are no unpredictable bytes.
    fn key_pair(&mut self, bits: u32) -> Result<KeyPair, String> {
        KeyPair::generate(bits, &mut *self.random_bytes()?)
    }

    /// Reads the key pair of a certificate, for AUTH's X509Token; fails if no readable key store has it.
    fn certificate_keys(&mut self, _config: &TokenConfig) -> Result<KeyPair, String> {
        Err("key stores are not read here: set the protocol in the stack's file".to_owned())
    }

    /// Returns the ports that members may use, by default JGroups'.
    fn ports(&self) -> RangeInclusive<u16> {
        7800..=7810
    }
}

/// Simulated hosts have no interfaces to select from.
impl<F: FnMut(&str) -> Result<Vec<IpAddr>, String>> Resolver for F {
    fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String> {
        self(name)
    }

    fn own(&mut self, selectors: &str) -> Result<IpAddr, String> {
        Err(format!("`{selectors}` is not an IP address"))
    }
}

/// An attribute's invalid value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{protocol}: {what}")]
pub struct ValueError {
    /// The protocol.
    pub protocol: String,
    /// The description, with the attribute.
    pub what: String,
    /// The attribute's position.
    pub position: Position,
}

struct LayerBuilder<'c, 'r> {
    config: &'c ProtocolConfig,
    resolver: &'r mut dyn Resolver,
}

impl LayerBuilder<'_, '_> {
    fn fail(&self, position: Position, what: String) -> ValueError {
        ValueError { protocol: self.config.short_name().to_owned(), what, position }
    }

    fn fail_at(&self, position: Position, name: &str, why: &str) -> ValueError {
        self.fail(position, format!("attribute {name}: {why}"))
    }

    /// The error is at the attribute, or at the protocol if it is not set.
    fn check(&self, result: Result<(), (&str, String)>) -> Result<(), ValueError> {
        result.map_err(|(name, why)| self.fail_of(name, why))
    }

    fn fail_of(&self, name: &str, why: String) -> ValueError {
        let place = self.config.attributes.iter().find(|(own, _, _)| own == name);
        self.fail(place.map_or(self.config.position, |(_, _, position)| *position), why)
    }

    fn properties<P: Properties + Default>(&self) -> Result<P, ValueError> {
        let mut properties = P::default();
        for (name, value, position) in &self.config.attributes {
            if let Some(Err(why)) = properties.set(name, value) {
                return Err(self.fail_at(*position, name, &why));
            }
        }
        Ok(properties)
    }

    fn value_or<V: Property>(&self, name: &str, default: V) -> Result<V, ValueError> {
        match self.config.attributes.iter().find(|(own, _, _)| own == name) {
            Some((_, value, position)) => V::parse(value).map_err(|why| self.fail_at(*position, name, &why)),
            None => Ok(default),
        }
    }

    fn tcpping(&mut self, config: TcpPingConfig) -> Result<Source, ValueError> {
        let path = config.initial_hosts_file.trim();
        let (name, text) = if path.is_empty() {
            ("initial_hosts", config.initial_hosts.clone())
        } else {
            let name = "initial_hosts_file";
            let read = self.resolver.hosts_file(path);
            (name, read.map_err(|why| self.fail_of(name, format!("attribute {name}: {why}")))?)
        };
        let hosts = Hosts::parse(&text, *self.resolver.ports().start());
        let hosts = hosts.map_err(|why| self.fail_of(name, format!("attribute {name}: {why}")))?;
        Ok(Source::TcpPing(Hosts::new(config, hosts)))
    }

    fn tcpgossip(&self, config: TcpGossipConfig) -> Result<Source, ValueError> {
        let default = vec![HostPort { host: "localhost".to_owned(), port: 12001 }];
        let hosts: Vec<HostPort> = self.value_or("initial_hosts", default)?;
        self.check(config.check(hosts.len()))?;
        Ok(Source::TcpGossip(Routers::new(hosts, config)))
    }

    fn tunnel(&self, layer: TransportLayerConfig) -> Result<Transport, ValueError> {
        let config: TunnelConfig = self.properties()?;
        let default = vec![HostPort { host: "localhost".to_owned(), port: 12001 }];
        let hosts: Vec<HostPort> = self.value_or("gossip_router_hosts", default)?;
        self.check(config.check(hosts.len()))?;
        Ok(Transport::tunnel(layer, config, hosts))
    }

    fn sym_encrypt(&mut self, config: SymEncryptConfig) -> Result<SymEncrypt, ValueError> {
        self.check(config.check())?;
        let key = self.resolver.secret_key(&config);
        let key = key.map_err(|why| self.fail_of("keystore_name", why))?;
        let random = self.resolver.random_bytes().map_err(|why| self.fail(self.config.position, why))?;
        let layer = SymEncrypt::new(config, &key, random);
        layer.map_err(|(name, why)| self.fail_of(name, why))
    }

    fn asym_encrypt(&mut self, config: AsymEncryptConfig) -> Result<AsymEncrypt, ValueError> {
        self.check(config.check())?;
        let pair = match config.use_external_key_exchange {
            true => KeyPair::absent(),
            false => {
                let pair = self.resolver.key_pair(config.asym_keylength);
                pair.map_err(|why| self.fail_of("asym_keylength", why))?
            }
        };
        let random = self.resolver.random_bytes().map_err(|why| self.fail(self.config.position, why))?;
        AsymEncrypt::new(config, pair, random).map_err(|(name, why)| self.fail_of(name, why))
    }

    fn auth(&mut self, config: AuthConfig, token: AuthTokenConfig) -> Result<Auth, ValueError> {
        let layer = Auth::new(config, token, &mut OfResolver(self.resolver));
        layer.map_err(|(name, why)| self.fail_of(name, why))
    }

    fn own_address(&mut self, name: &str) -> Result<Option<IpAddr>, ValueError> {
        let place =
            self.config.attributes.iter().find(|(own, value, _)| own == name && !value.trim().is_empty());
        let Some((_, value, position)) = place else { return Ok(None) };
        let found = value.trim().parse().or_else(|_| self.resolver.own(value));
        found.map(Some).map_err(|why| self.fail_at(*position, name, &why))
    }
}

struct OfResolver<'r>(&'r mut dyn Resolver);

impl TokenSources for OfResolver<'_> {
    fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String> {
        self.0.hosts(name)
    }

    fn certificate_key(&mut self, config: &TokenConfig) -> Result<CertificateKey, String> {
        Ok((self.0.certificate_keys(config)?, self.0.random_bytes()?))
    }
}

type Make = fn(&mut LayerBuilder<'_, '_>) -> Result<Box<dyn Protocol>, ValueError>;

/// A protocol usable in configurations.
pub struct Entry {
    /// The name without package.
    pub name: &'static str,
    /// The properties of this layer's own.
    pub properties: fn() -> Vec<PropertyInfo>,
    make: Make,
}

macro_rules! entries {
    ($($name:literal: [$($properties:ty),+] $make:expr;)+) => {
        /// All protocols but transports.
        pub const ENTRIES: &[Entry] = &[$(Entry {
            name: $name,
            properties: || [$(<$properties as Properties>::list()),+].concat(),
            make: |builder| {
                let make: fn(&mut LayerBuilder<'_, '_>, $(entries!(@ignore $properties)),+) -> Result<_, ValueError> = $make;
                let layer = make(builder, $(entries!(@properties builder $properties)),+)?;
                Ok(Box::new(layer))
            },
        }),+];
    };
    (@ignore $properties:ty) => { $properties };
    (@properties $builder:ident $properties:ty) => { $builder.properties::<$properties>()? };
}

crate::properties! {
    /// The listen address of FD_SOCK.
    FdSockBindConfig {
        /// The address to listen on, or selectors as in the transport's `bind_addr`. The transport's address if
        /// not set.
        bind_addr: String = String::new(),
    }
}

crate::properties! {
    /// The listen address of STATE_SOCK.
    StateSockBindConfig {
        /// The address to listen on, or selectors as in the transport's `bind_addr`. The transport's address if
        /// not set.
        bind_addr: String = String::new(),
    }
}

crate::properties! {
    /// The listen address of SSL_KEY_EXCHANGE.
    SslKeyExchangeBindConfig {
        /// The address to listen on, or selectors as in the transport's `bind_addr`. The transport's address if
        /// not set.
        bind_addr: String = String::new(),
    }
}

crate::properties! {
    /// The listen address of FD_SOCK2.
    FdSock2BindConfig {
        /// The address to listen on, or selectors as in the transport's `bind_addr`. All addresses if not
        /// set.
        bind_addr: String = String::new(),
    }
}

entries! {
    "PING": [DiscoveryConfig] |_, c| Ok(Discovery::new(Source::Ping, c));
    "TCPPING": [DiscoveryConfig, TcpPingConfig] |m, c, config| Ok(Discovery::new(m.tcpping(config)?, c));
    "MPING": [DiscoveryConfig, MpingConfig, MpingBindConfig] |m, c, config, _| {
        let bind = m.own_address("bind_addr")?;
        Ok(Discovery::new(Source::Mping { config, bind }, c))
    };
    "FILE_PING": [DiscoveryConfig, StoreConfig, FilePingConfig]
        |_, c, store, config| Ok(Discovery::new(Source::Store(Box::new(Store::of_files(store, config))), c));
    "JDBC_PING2": [DiscoveryConfig, StoreConfig, JdbcPing2Config] |m, c, store, config| {
        m.check(config.check())?;
        Ok(Discovery::new(Source::Store(Box::new(Store::of_table(store, config))), c))
    };
    "TCPGOSSIP": [DiscoveryConfig, TcpGossipConfig, RouterTlsConfig]
        |m, c, config, _| Ok(Discovery::new(m.tcpgossip(config)?, c));
    "DNS_PING": [DiscoveryConfig, DnsPingConfig] |m, c, config| {
        Ok(Discovery::new(Source::Dns(Names::new(config, m.resolver.ports())), c))
    };
    "KUBE_PING": [DiscoveryConfig, KubePingConfig] |m, c, config| {
        m.check(config.check())?;
        Ok(Discovery::new(Source::Kube(Box::new(Pods::new(config, *m.resolver.ports().start()))), c))
    };
    "LOCAL_PING": [DiscoveryConfig] |_, c| Ok(Discovery::new(Source::Local { is_loopback: false }, c));
    "SHARED_LOOPBACK_PING": [DiscoveryConfig] |_, c| Ok(Discovery::new(Source::Local { is_loopback: true }, c));
    "MERGE3": [Merge3Config] |_, c| Ok(Merge3::new(c));
    "FD_SOCK": [FdSockConfig, FdSockBindConfig] |m, c, _| {
        m.check(c.check())?;
        Ok(FdSock::new(c).bound_to(m.own_address("bind_addr")?))
    };
    "FD_SOCK2": [FdSock2Config, FdSock2BindConfig] |m, c, _| {
        m.check(c.check())?;
        Ok(FdSock2::new(c).bound_to(m.own_address("bind_addr")?))
    };
    "FD_ALL": [FdAllConfig] |m, c| m.check(c.check()).map(|()| FdAll::new(c));
    "FD_ALL2": [FdAll2Config] |m, c| m.check(c.check()).map(|()| FdAll2::new(c));
    "FD_ALL3": [FdAll3Config] |m, c| m.check(c.check()).map(|()| FdAll3::new(c));
    "VERIFY_SUSPECT": [VerifySuspectConfig] |_, c| Ok(VerifySuspect::first_version(c));
    "VERIFY_SUSPECT2": [VerifySuspectConfig] |_, c| Ok(VerifySuspect::new(c));
    "BARRIER": [BarrierConfig] |_, c| Ok(Barrier::new(c));
    "NAKACK2": [NakAckConfig] |_, c| Ok(NakAck::new(NakAckKind::NakAck2, c));
    "NAKACK3": [NakAckConfig] |_, c| Ok(NakAck::new(NakAckKind::NakAck3, c));
    "NAKACK4": [NakAckConfig] |_, c| Ok(NakAck::new(NakAckKind::NakAck4, c));
    "UNICAST3": [UnicastConfig] |_, c| Ok(Unicast::new(UnicastKind::Unicast3, c));
    "UNICAST4": [UnicastConfig] |_, c| Ok(Unicast::new(UnicastKind::Unicast4, c));
    "STABLE": [StableConfig] |_, c| Ok(Stable::new(c));
    "GMS": [GmsConfig] |_, c| Ok(Gms::new(c));
    "MFC": [FlowConfig] |_, c| Ok(FlowControl::new(FlowKind::Mfc, c, QueueConfig::default()));
    "UFC": [FlowConfig] |_, c| Ok(FlowControl::new(FlowKind::Ufc, c, QueueConfig::default()));
    "MFC_NB": [FlowConfig, QueueConfig] |_, c, queue| Ok(FlowControl::new(FlowKind::MfcNb, c, queue));
    "UFC_NB": [FlowConfig, QueueConfig] |_, c, queue| Ok(FlowControl::new(FlowKind::UfcNb, c, queue));
    "AUTH": [AuthConfig, AuthTokenConfig] |m, c, token| m.auth(c, token);
    "SYM_ENCRYPT": [SymEncryptConfig] |m, c| m.sym_encrypt(c);
    "ASYM_ENCRYPT": [AsymEncryptConfig] |m, c| m.asym_encrypt(c);
    "SSL_KEY_EXCHANGE": [SslKeyExchangeConfig, SslKeyExchangeBindConfig] |m, c, _| {
        m.check(c.check())?;
        Ok(SslKeyExchange::new(c, m.own_address("bind_addr")?))
    };
    "DH_KEY_EXCHANGE": [DhKeyExchangeConfig] |m, c| {
        m.check(c.check())?;
        let random = m.resolver.random_bytes().map_err(|why| m.fail(m.config.position, why))?;
        Ok(DhKeyExchange::new(c, random))
    };
    "FRAG": [FragConfig] |_, c| Ok(Frag::new(FragKind::Frag, c));
    "FRAG2": [FragConfig] |_, c| Ok(Frag::new(FragKind::Frag2, c));
    "FRAG3": [FragConfig] |_, c| Ok(Frag::new(FragKind::Frag3, c));
    "FRAG4": [FragConfig] |_, c| Ok(Frag::new(FragKind::Frag4, c));
    "STATE_TRANSFER": [StateTransferConfig] |_, c| Ok(StateTransfer::new(c));
    "STATE": [StateConfig] |m, c| m.check(c.check()).map(|()| StateTransfer::in_chunks(c));
    "STATE_SOCK": [StateSockConfig, StateSockBindConfig] |m, c, _| {
        m.check(c.check())?;
        Ok(StateTransfer::over_sockets(c, m.own_address("bind_addr")?))
    };
    "RSVP": [RsvpConfig] |_, c| Ok(Rsvp::new(c));
    "SEQUENCER": [SequencerConfig] |_, c| Ok(Sequencer::new(c));
    "DELIVERY_TIME": [DeliveryTimeConfig] |_, c| Ok(DeliveryTime::new(c));
    "TIME": [DeliveryTimeConfig] |_, c| Ok(DeliveryTime::named_time(c));
    "RED": [RedConfig] |_, c| Ok(Red::new(c));
    "DISCARD": [DiscardConfig] |_, c| Ok(Discard::new(c));
    "DELAY": [DelayConfig] |_, c| Ok(Delay::new(c));
    "SHUFFLE": [ShuffleConfig] |_, c| Ok(Shuffle::new(c));
    "DUPL": [DuplicateConfig] |_, c| Ok(Duplicate::new(c));
    "COMPRESS": [CompressConfig] |m, c| m.check(c.check()).map(|()| Compress::new(c));
    "DISCARD_PAYLOAD": [DiscardPayloadConfig] |_, c| Ok(DiscardPayload::new(c));
    "SIZE": [SizeConfig] |_, c| Ok(Size::new(c));
    "SIZE2": [Size2Config] |m, c| m.check(c.check()).map(|()| Size2::new(c));
    "RATE": [RateConfig] |m, c| m.check(c.check()).map(|()| Rate::new(c));
    "STATS": [StatsConfig] |_, c| Ok(Stats::new(c));
    "TRACE": [TraceConfig] |_, c| Ok(MessageLog::new(MessageLogKind::Trace(c)));
    "HDRS": [HdrsConfig] |_, c| Ok(MessageLog::new(MessageLogKind::Hdrs(c)));
    "SNIFF": [SniffConfig] |_, c| Ok(MessageLog::new(MessageLogKind::Sniff(c)));
    "PERF": [PerfConfig] |m, c| m.check(c.check()).map(|()| Perf::new(c));
    "RATE_LIMITER": [RateLimiterConfig] |m, c| m.check(c.check()).map(|()| RateLimiter::new(c));
    "RATE_LIMITER2": [RateLimiter2Config] |m, c| m.check(c.check()).map(|()| RateLimiter::second(c));
    "NON_BLOCKING_SENDS": [NonBlockingSendsConfig] |_, c| Ok(NonBlockingSends::new(c));
    "INJECT_VIEW": [InjectViewConfig] |_, c| Ok(InjectView::new(c));
    "COUNTER": [CounterConfig] |m, c| m.check(c.check()).map(|()| Counter::new(c));
    "FORK": [ForkConfig] |_, c| Ok(Fork::new(c));
    "RELAY2": [Relay2Config] |m, c| m.check(c.check()).map(|()| Relay::relay2(&c));
    "RELAY3": [Relay3Config, TopologyConfig] |m, c, topology| m.check(c.check()).map(|()| Relay::relay3(&c, &topology));
}

/// The transports' names; the edge configures sockets.
pub const TRANSPORTS: &[(&str, TransportKind)] = &[
    ("TCP", TransportKind::Tcp),
    ("TCP_NIO2", TransportKind::TcpNio2),
    ("UDP", TransportKind::Udp),
    ("SHARED_LOOPBACK", TransportKind::SharedLoopback),
    ("TUNNEL", TransportKind::Tunnel),
];

/// The attributes that the transport's layer reads, not the edge or the channel.
pub const TRANSPORT_ATTRIBUTES: &[&str] = &[
    "bundler_type",
    "bundler.max_size",
    "enable_suspect_events",
    "who_has_cache_timeout",
    "rtt.enabled",
    "version",
];

/// Returns [`TRANSPORT_ATTRIBUTES`] with their defaults and descriptions.
pub fn transport_properties() -> Vec<PropertyInfo> {
    let TransportLayerConfig {
        bundler,
        max_size,
        who_has_cache_timeout,
        rtt_enabled,
        enable_suspect_events,
        ..
    } = TransportLayerConfig::new(TransportKind::Tcp);
    let documented = [
        (bundler.name().to_owned(), "How messages are packed into packets."),
        (max_size.to_string(), "The maximum size of a packet in bytes."),
        (
            enable_suspect_events.show(),
            "Whether a member is suspected as soon as the connection to it breaks (TCP, TCP_NIO2). With FD_SOCK2 \
             there is no need for it.",
        ),
        (who_has_cache_timeout.show(), "The minimum time between two discoveries for an unknown member."),
        (rtt_enabled.show(), "Whether round-trip probes of peers are answered."),
        (Version::V5_5_7.show(), "The version of JGroups in packets, which all members need."),
    ];
    let named = TRANSPORT_ATTRIBUTES.iter().zip(documented);
    named.map(|(&name, (default, doc))| PropertyInfo { name, default, doc: doc.to_owned() }).collect()
}

/// Returns the properties that a transport's layer has beyond [`TRANSPORT_ATTRIBUTES`], with their descriptions.
pub fn own_transport_properties(name: &str) -> Vec<PropertyInfo> {
    if name == TransportKind::Tunnel.name() { TunnelConfig::list() } else { Vec::new() }
}

/// Returns all protocols' names.
pub fn names() -> BTreeSet<&'static str> {
    TRANSPORTS.iter().map(|(name, _)| *name).chain(ENTRIES.iter().map(|entry| entry.name)).collect()
}

/// Creates a layer; `None`: not one of these protocols. Unknown attributes are ignored, because the reader checks names.
pub fn layer(
    config: &ProtocolConfig,
    resolver: &mut dyn Resolver,
) -> Option<Result<Box<dyn Protocol>, ValueError>> {
    let entry = ENTRIES.iter().find(|entry| entry.name == config.short_name())?;
    Some((entry.make)(&mut LayerBuilder { config, resolver }))
}

/// With it, only the attributes themselves are checked.
struct AnyAddress;

impl Resolver for AnyAddress {
    fn hosts(&mut self, _name: &str) -> Result<Vec<IpAddr>, String> {
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    }

    fn own(&mut self, _selectors: &str) -> Result<IpAddr, String> {
        Ok(IpAddr::from([127, 0, 0, 1]))
    }

    fn hosts_file(&mut self, _path: &str) -> Result<String, String> {
        Ok(String::new())
    }

    fn secret_key(&mut self, _config: &SymEncryptConfig) -> Result<SecretKey, String> {
        Ok(SecretKey::new("AES", vec![0; 16]))
    }

    fn random_bytes(&mut self) -> Result<Box<dyn RandomBytes>, String> {
        Ok(Box::new(NoBytes))
    }

    fn key_pair(&mut self, _bits: u32) -> Result<KeyPair, String> {
        Ok(KeyPair::absent())
    }

    fn certificate_keys(&mut self, _config: &TokenConfig) -> Result<KeyPair, String> {
        Ok(KeyPair::absent())
    }
}

/// The checked layer never sends.
struct NoBytes;

impl RandomBytes for NoBytes {
    fn fill(&mut self, _out: &mut [u8]) -> Result<(), String> {
        Err("values are checked here, and nothing is sent".to_owned())
    }
}

/// Returns the errors of each attribute, or else of their combination, without looking up names.
pub fn value_errors(config: &ProtocolConfig) -> Vec<ValueError> {
    let error_of = |config: &ProtocolConfig| match transport(config) {
        Some(made) => made.err(),
        None => layer(config, &mut AnyAddress).and_then(Result::err),
    };
    let of_attributes = config.attributes.iter().filter_map(|attribute| {
        let alone = ProtocolConfig { attributes: vec![attribute.clone()], ..config.clone() };
        error_of(&alone).filter(|error| error.what.starts_with(&format!("attribute {}: ", attribute.0)))
    });
    let errors: Vec<ValueError> = of_attributes.collect();
    if errors.is_empty() { error_of(config).into_iter().collect() } else { errors }
}

/// Parses a layer's settings, for callers that create it themselves; fails if a value is invalid.
pub fn properties<P: Properties + Default>(config: &ProtocolConfig) -> Result<P, ValueError> {
    let mut no_hosts = |_: &str| Ok(Vec::new());
    LayerBuilder { config, resolver: &mut no_hosts }.properties()
}

/// Returns the id of a protocol's headers.
pub fn id(name: &str) -> Option<ProtocolId> {
    let config =
        ProtocolConfig { name: name.to_owned(), attributes: Vec::new(), position: Position::default() };
    let mut loopback = |_: &str| Ok(vec![IpAddr::from([127, 0, 0, 1])]);
    let own = layer(&config, &mut loopback).and_then(Result::ok).map(|layer| layer.id());
    let own = own.or_else(|| transport(&config).and_then(Result::ok).map(|(layer, _)| layer.id()));
    // A layer that needs a key or another file cannot be created here.
    own.or_else(|| (0..=i16::from(u8::MAX)).map(ProtocolId).find(|id| id.name() == Some(name)))
        .filter(|_| names().contains(name))
}

/// Creates the transport's layer, with its version; `None`: no transport.
pub fn transport(config: &ProtocolConfig) -> Option<Result<(Transport, Version), ValueError>> {
    let (_, kind) = TRANSPORTS.iter().find(|(name, _)| *name == config.short_name())?;
    let mut layer = TransportLayerConfig::new(*kind);
    let mut no_hosts = |_: &str| Ok(Vec::new());
    let builder = LayerBuilder { config, resolver: &mut no_hosts };
    let mut make = || {
        layer.bundler = builder.value_or("bundler_type", layer.bundler)?;
        layer.max_size = builder.value_or("bundler.max_size", layer.max_size)?;
        layer.who_has_cache_timeout =
            builder.value_or("who_has_cache_timeout", layer.who_has_cache_timeout)?;
        layer.enable_suspect_events =
            builder.value_or("enable_suspect_events", layer.enable_suspect_events)?;
        layer.rtt_enabled = builder.value_or("rtt.enabled", layer.rtt_enabled)?;
        let version = builder.value_or("version", Version::V5_5_7)?;
        let transport = match kind {
            TransportKind::Tunnel => builder.tunnel(layer.clone())?,
            _ => Transport::new(layer.clone()),
        };
        Ok((transport, version))
    };
    Some(make())
}

impl Property for BundlerKind {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: UnknownBundler| error.to_string())
    }
    fn show(&self) -> String {
        self.name().to_owned()
    }
}

impl Property for Version {
    fn parse(text: &str) -> Result<Self, String> {
        let numbers: Vec<u16> = text.split('.').map_while(|number| number.parse().ok()).collect();
        match numbers[..] {
            [major @ 0..32, minor @ 0..32, micro @ 0..64] => Ok(Self::new(major, minor, micro)),
            _ => Err(format!("`{text}` is not a version such as 5.5.7")),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, attributes: &[(&str, &str)]) -> ProtocolConfig {
        let position = Position { line: 3, column: 5, ..Position::default() };
        let attributes =
            attributes.iter().map(|&(name, value)| (name.to_owned(), value.to_owned(), position)).collect();
        ProtocolConfig { name: name.to_owned(), attributes, position }
    }

    #[derive(Default)]
    struct KeyedHost {
        key_pair_bits: Option<u32>,
    }

    impl Resolver for KeyedHost {
        fn hosts(&mut self, _name: &str) -> Result<Vec<IpAddr>, String> {
            Ok(vec![[127, 0, 0, 1].into()])
        }
        fn own(&mut self, selectors: &str) -> Result<IpAddr, String> {
            Err(format!("no address matches {selectors}"))
        }
        fn secret_key(&mut self, config: &SymEncryptConfig) -> Result<SecretKey, String> {
            Ok(SecretKey::new(if config.alias == "other" { "DESede" } else { "AES" }, vec![7; 16]))
        }
        fn random_bytes(&mut self) -> Result<Box<dyn RandomBytes>, String> {
            Ok(Box::new(encrypt::tests::Counting(0)))
        }
        fn key_pair(&mut self, bits: u32) -> Result<KeyPair, String> {
            self.key_pair_bits = Some(bits);
            Ok(KeyPair::absent())
        }
    }

    fn made(config: &ProtocolConfig) -> Result<Box<dyn Protocol>, ValueError> {
        layer(config, &mut KeyedHost::default()).expect("a known protocol")
    }

    #[test]
    fn every_protocol_is_made_under_the_name_it_has() {
        for entry in ENTRIES {
            let attributes: &[_] = match entry.name {
                "SYM_ENCRYPT" => &[("keystore_name", "keys.p12")],
                "JDBC_PING2" => &[("connection_url", "jdbc:postgresql://db/grid")],
                "RELAY2" | "RELAY3" => &[("site", "lon"), ("config", "relay.xml")],
                "AUTH" => {
                    &[("auth_class", "org.jgroups.auth.RegexMembership"), ("auth_token.match_string", ".*")]
                }
                _ => &[],
            };
            assert_eq!(made(&config(entry.name, attributes)).unwrap().name(), entry.name);
            assert_eq!(id(entry.name), Some(made(&config(entry.name, attributes)).unwrap().id()));
        }
        for (name, _) in TRANSPORTS {
            assert_eq!(transport(&config(name, &[])).unwrap().unwrap().0.name(), *name);
        }
    }

    #[test]
    fn key_pair_of_asym_encrypt_has_the_size_of_its_attribute() {
        for (attributes, bits) in [(&[][..], 2_048), (&[("asym_keylength", "4096")], 4_096)] {
            let mut host = KeyedHost::default();
            layer(&config("ASYM_ENCRYPT", attributes), &mut host).expect("a known protocol").unwrap();
            assert_eq!(host.key_pair_bits, Some(bits));
        }
    }

    /// JGroups' members would fail at each message.
    #[test]
    fn sym_encrypt_refuses_settings_that_jgroups_cannot_use() {
        let error = |attributes: &[(&str, &str)]| {
            let all: Vec<_> = [&[("keystore_name", "keys.p12")][..], attributes].concat();
            let error = made(&config("SYM_ENCRYPT", &all)).err().unwrap();
            assert_eq!(error.position.line, 3);
            error.to_string()
        };
        for (attributes, text) in [
            (vec![("sym_algorithm", "AES/CBC/PKCS5Padding")], "needs sym_iv_length=\"16\""),
            (vec![("sym_iv_length", "16")], "sym_iv_length (16) has to be 0"),
            (vec![("sym_algorithm", "AES/GCM/NoPadding"), ("sym_iv_length", "12")], "tls.enabled"),
            (vec![("sym_algorithm", "Blowfish")], "AES/CBC/PKCS5Padding"),
            (vec![("alias", "other")], "is for DESede"),
            (vec![("keystore_name", "")], "keystore_name is missing"),
        ] {
            let error = error(&attributes);
            assert!(error.starts_with("SYM_ENCRYPT: ") && error.contains(text), "{error}");
        }
        let error = made(&config("SYM_ENCRYPT", &[])).err().unwrap().to_string();
        assert!(error.contains("keystore_name is missing"), "{error}");
    }

    #[test]
    fn sym_encrypt_is_refused_where_key_stores_are_not_read() {
        let config = config("SYM_ENCRYPT", &[("keystore_name", "keys.p12")]);
        let error = layer(&config, &mut |_: &str| Ok(Vec::new())).unwrap().err().unwrap();
        assert!(error.to_string().starts_with("SYM_ENCRYPT: key stores are not read here"), "{error}");
    }

    #[test]
    fn packages_do_not_matter_and_attributes_do() {
        let layer = made(&config("pbcast.STABLE", &[("max_bytes", "4M")])).unwrap();
        let mut out = crate::ProbeOut::default();
        layer.probe(&mut out);
        assert!(out.attributes.contains(&("max_bytes".to_owned(), "4000000".to_owned())));
    }

    #[test]
    fn a_wrong_value_names_attribute_and_place() {
        let error = made(&config("UFC", &[("max_credits", "plenty")])).err().unwrap();
        assert_eq!(error.position, Position { line: 3, column: 5, ..Position::default() });
        assert!(error.to_string().starts_with("UFC: attribute max_credits: `plenty`"), "{error}");
        let error = transport(&config("TCP", &[("version", "5.x")])).unwrap().err().unwrap();
        assert_eq!(error.to_string(), "TCP: attribute version: `5.x` is not a version such as 5.5.7");
    }

    #[test]
    fn every_wrong_value_of_a_protocol_is_an_error() {
        let texts = |config: &ProtocolConfig| -> Vec<String> {
            value_errors(config).iter().map(ToString::to_string).collect()
        };
        let wrong =
            config("UFC", &[("max_credits", "many"), ("max_block_time", "1s"), ("min_threshold", "x")]);
        assert_eq!(
            texts(&wrong),
            [
                "UFC: attribute max_credits: `many` is not a number of bytes such as 60000, 60K or 2M",
                "UFC: attribute min_threshold: `x` is not a f64",
            ]
        );
        assert_eq!(texts(&config("TCP", &[("version", "5.x"), ("bundler_type", "x")])).len(), 2);
        assert!(texts(&config("FD_ALL3", &[("interval", "50s"), ("timeout", "60s")])).is_empty());
        let wrong = texts(&config("FD_ALL3", &[("interval", "60s"), ("timeout", "50s")]));
        assert!(wrong[0].contains("interval (60s) must be shorter than timeout (50s)"), "{wrong:?}");
        assert!(texts(&config("TCPPING", &[("initial_hosts", "nowhere[7800]")])).is_empty());
        assert!(texts(&config("NO_PROTOCOL", &[])).is_empty());
    }

    #[test]
    fn fd_sock2_connects_from_any_port_only() {
        assert!(made(&config("FD_SOCK2", &[("client_bind_port", "0")])).is_ok());
        let error = made(&config("FD_SOCK2", &[("client_bind_port", "7950")])).err().unwrap();
        assert!(error.to_string().starts_with("FD_SOCK2: client_bind_port (7950) is refused"), "{error}");
        assert_eq!(error.position.line, 3);
    }

    /// Selectors match the host's one interface.
    fn bound(attributes: &[(&str, &str)]) -> Result<String, ValueError> {
        struct Host;
        impl Resolver for Host {
            fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String> {
                Err(format!("no address of {name}"))
            }
            fn own(&mut self, selectors: &str) -> Result<IpAddr, String> {
                if selectors == "match-interface:eth.*" {
                    Ok([10, 0, 0, 5].into())
                } else {
                    Err("none".into())
                }
            }
        }
        let layer = layer(&config("FD_SOCK2", attributes), &mut Host).unwrap()?;
        let mut out = crate::ProbeOut::default();
        layer.probe(&mut out);
        let shown: Vec<_> = out.attributes.into_iter().filter(|(name, _)| name == "bind_addr").collect();
        let [(_, bind)] = &shown[..] else { panic!("{shown:?}") };
        Ok(bind.clone())
    }

    #[test]
    fn fd_sock2_listens_on_the_address_that_is_set_or_selected() {
        assert_eq!(bound(&[]).unwrap(), "");
        assert_eq!(bound(&[("bind_addr", "")]).unwrap(), "");
        assert_eq!(bound(&[("bind_addr", "10.1.2.3")]).unwrap(), "10.1.2.3");
        assert_eq!(bound(&[("bind_addr", "match-interface:eth.*")]).unwrap(), "10.0.0.5");
        let error = bound(&[("bind_addr", "site_local"), ("client_bind_port", "0")]).unwrap_err();
        assert_eq!(error.to_string(), "FD_SOCK2: attribute bind_addr: none");
        assert_eq!(error.position.line, 3);
    }

    /// A host whose files have this content, if they exist.
    struct HostWithFiles(Option<&'static str>);

    impl Resolver for HostWithFiles {
        fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String> {
            Err(format!("no address of {name}"))
        }
        fn own(&mut self, _selectors: &str) -> Result<IpAddr, String> {
            Err("none".into())
        }
        fn hosts_file(&mut self, path: &str) -> Result<String, String> {
            self.0.map(str::to_owned).ok_or_else(|| format!("`{path}`: No such file"))
        }
    }

    #[test]
    fn unresolvable_host_is_no_error_of_the_stack() {
        for name in ["TCPPING", "TCPGOSSIP"] {
            let config = config(name, &[("initial_hosts", "nowhere[7800]")]);
            assert!(layer(&config, &mut HostWithFiles(None)).unwrap().is_ok());
        }
    }

    #[test]
    fn hosts_of_tcpping_are_read_from_a_file_and_an_unreadable_file_is_refused() {
        let config = config("TCPPING", &[("initial_hosts", "a"), ("initial_hosts_file", "hosts.txt")]);
        let error =
            |file| layer(&config, &mut HostWithFiles(file)).unwrap().err().map(|error| error.to_string());
        assert_eq!(error(Some("10.0.0.1[7800]\n# all")), None);
        let text = error(None).unwrap();
        assert_eq!(text, "TCPPING: attribute initial_hosts_file: `hosts.txt`: No such file");
        let text = error(Some("a[x]")).unwrap();
        assert!(text.starts_with("TCPPING: attribute initial_hosts_file: `x` in `a[x]`"), "{text}");
        assert_eq!(value_errors(&config), [], "files are not read to check values");
    }
}
