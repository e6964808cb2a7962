//! Transport settings with JGroups' names and defaults; the book's reference documents the fields.

use std::net::IpAddr;
use std::time::Duration;

use crate::bind_addr::{BindAddr, IpVersion};
use crate::groups::DefaultGroups;

/// The kind of edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EdgeKind {
    /// A TCP connection per peer, for `TCP` and `TCP_NIO2`.
    #[default]
    Tcp,
    /// Datagrams, with IP multicast.
    Udp,
    /// Queues in the process (`SHARED_LOOPBACK`).
    SharedLoopback,
    /// Connections to routers, which the transport's layer opens (`TUNNEL`).
    Tunnel,
}

/// TLS for TCP, and of connections to routers. The names are JGroups' `tls.*`; the stores are PEM files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsConfig {
    /// Whether connections are encrypted at all.
    pub enabled: bool,
    /// PEM file with this member's certificate chain and private key.
    pub keystore_path: Option<String>,
    /// PEM file with the private key; the key store's, if absent. JGroups does not have it.
    pub key_path: Option<String>,
    /// PEM file with the trusted certificates; the key store's, if absent.
    pub truststore_path: Option<String>,
    /// Whether a connecting member must present a certificate.
    pub client_auth: ClientAuth,
    /// The name that a peer's certificate must have; the peer's address, if absent.
    pub server_name: Option<String>,
    /// TLS versions, by Java's names; 1.2 and 1.3, if empty.
    pub protocols: Vec<String>,
    /// Cipher suites, by Java's names; all supported ones, if empty.
    pub cipher_suites: Vec<String>,
}

/// A connecting member's certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientAuth {
    /// Not requested.
    #[default]
    None,
    /// Requested, and checked if present.
    Want,
    /// Required.
    Need,
}

/// Settings of the diagnostics socket, which answers probe requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiagConfig {
    /// Whether to listen at all.
    pub enabled: bool,
    /// Whether to listen on the multicast group.
    pub enable_udp: bool,
    /// Whether to listen on a TCP port.
    pub enable_tcp: bool,
    /// The address to listen on over TCP, and the interface on which to join the group; all, if absent.
    pub bind_addr: Option<BindAddr>,
    /// The multicast group.
    pub mcast_addr: IpAddr,
    /// The port of both.
    pub port: u16,
    /// TCP: how many ports after `port` to try.
    pub port_range: u16,
    /// Time to live of requests' multicasts.
    pub ttl: u32,
    /// The passcode that a request must prove, if set.
    pub passcode: Option<String>,
}

impl Default for DiagConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            enable_udp: true,
            enable_tcp: false,
            bind_addr: None,
            mcast_addr: DefaultGroups::PROBE.v4,
            port: 7500,
            port_range: 50,
            ttl: 8,
            passcode: None,
        }
    }
}

/// The transport's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransportConfig {
    /// The kind of edge.
    pub kind: EdgeKind,
    /// Selectors of the address to bind.
    pub bind_addr: BindAddr,
    /// IP versions to consider if a selector leaves the choice.
    pub ip_version: IpVersion,
    /// The port to receive on; 0 = any. JGroups' default in the class is 0 for UDP and 7800 for TCP.
    pub bind_port: u16,
    /// How many ports after `bind_port` to try.
    pub port_range: u16,
    /// The address to advertise instead of the bound one (behind address translation).
    pub external_addr: Option<IpAddr>,
    /// The port to advertise with `external_addr`; 0 = the bound one.
    pub external_port: u16,
    /// Whether to accept peers of any version. If false, major and minor version must be this member's.
    pub accept_any_version: bool,

    /// TCP: timeout of a connection attempt.
    pub sock_conn_timeout: Duration,
    /// TCP: whether to send small segments at once. JGroups' default is false. Here it is true: the edge already
    /// gathers frames into one write, so that Nagle's algorithm would only add latency.
    pub tcp_nodelay: bool,
    /// TCP: seconds a close waits for unsent data; `None` = the kernel's default.
    pub linger: Option<Duration>,
    /// TCP: the socket's receive buffer; `None` = the kernel's own tuning.
    pub recv_buf_size: Option<usize>,
    /// TCP: the socket's send buffer; `None` = the kernel's own tuning.
    pub send_buf_size: Option<usize>,
    /// TCP: idle time after which a connection is closed; zero = never.
    pub conn_expire_time: Duration,
    /// TCP: interval between searches for idle connections; zero = never.
    pub reaper_interval: Duration,
    /// TCP: timeout for the set-up bytes of an accepted connection.
    pub peer_addr_read_timeout: Duration,
    /// TCP: the longest frame, above which the connection is closed; 0 = [`Self::FRAME_LEN_MAX`].
    pub max_length: usize,
    /// Bytes of data that may be queued for one peer (TCP) or for the socket (UDP). More is dropped and counted, and
    /// retransmitted later. The default is above the credits of UFC and MFC together (2 x 4 MB in the stock files),
    /// so that flow control is the usual limit.
    pub send_queue_bytes: usize,
    /// Bytes of control traffic that may be queued, as `send_queue_bytes`. Only a peer that has not read for a long
    /// time can fill it.
    pub control_queue_bytes: usize,

    /// UDP: the multicast group.
    pub mcast_addr: IpAddr,
    /// UDP: the group's port: 7600 in JGroups' class, 45588 in udp.xml.
    pub mcast_port: u16,
    /// UDP: whether to use the group. If false, each member gets a datagram of its own.
    pub ip_mcast: bool,
    /// UDP: time to live of multicasts.
    pub ip_ttl: u32,
    /// UDP: traffic class.
    pub tos: u32,
    /// UDP: send buffer of the socket for unicasts. The same socket sends multicasts: the larger of the two sizes
    /// applies.
    pub ucast_send_buf_size: usize,
    /// UDP: receive buffer of the socket for unicasts.
    pub ucast_recv_buf_size: usize,
    /// UDP: see `ucast_send_buf_size`.
    pub mcast_send_buf_size: usize,
    /// UDP: receive buffer of the group's socket.
    pub mcast_recv_buf_size: usize,
    /// UDP: tasks that read the socket for unicasts; 1 = the driver reads it.
    pub ucast_receiver_threads: usize,
    /// UDP: tasks that read the group's socket; 1 = the driver reads it.
    pub mcast_receiver_threads: usize,

    /// Diagnostics, for probe.
    pub diag: DiagConfig,
    /// TLS between members; for TUNNEL to routers.
    pub tls: TlsConfig,
    /// TLS of TCPGOSSIP's connections to routers.
    pub router_tls: TlsConfig,
}

impl TransportConfig {
    /// `max_length`'s default, 64 MiB: a thousand of the stock files' largest bundles.
    pub const FRAME_LEN_MAX: usize = 64 * 1024 * 1024;

    /// Returns TCP's defaults (tcp.xml's port).
    pub fn tcp() -> Self {
        Self::default()
    }

    /// Returns UDP's defaults (udp.xml's group).
    pub fn udp() -> Self {
        Self { kind: EdgeKind::Udp, bind_port: 0, ..Self::default() }
    }

    /// Returns TUNNEL's defaults.
    pub fn tunnel() -> Self {
        Self { kind: EdgeKind::Tunnel, bind_port: 0, port_range: 0, ..Self::default() }
    }

    /// Returns the longest frame in bytes.
    pub fn frame_len_max(&self) -> usize {
        if self.max_length == 0 { Self::FRAME_LEN_MAX } else { self.max_length }
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            kind: EdgeKind::Tcp,
            bind_addr: BindAddr::default(),
            ip_version: IpVersion::Dual,
            bind_port: 7800,
            port_range: 10,
            external_addr: None,
            external_port: 0,
            accept_any_version: false,
            sock_conn_timeout: Duration::from_millis(2000),
            tcp_nodelay: true,
            linger: None,
            recv_buf_size: None,
            send_buf_size: None,
            conn_expire_time: Duration::ZERO,
            reaper_interval: Duration::ZERO,
            peer_addr_read_timeout: Duration::from_millis(1000),
            max_length: 0,
            send_queue_bytes: 16 * 1024 * 1024,
            control_queue_bytes: 8 * 1024 * 1024,
            mcast_addr: DefaultGroups::TRANSPORT.v4,
            mcast_port: 45588,
            ip_mcast: true,
            ip_ttl: 8,
            tos: 0,
            ucast_send_buf_size: 200_000,
            ucast_recv_buf_size: 5_000_000,
            mcast_send_buf_size: 6_500_000,
            mcast_recv_buf_size: 5_000_000,
            ucast_receiver_threads: 1,
            mcast_receiver_threads: 1,
            diag: DiagConfig::default(),
            tls: TlsConfig::default(),
            router_tls: TlsConfig::default(),
        }
    }
}
