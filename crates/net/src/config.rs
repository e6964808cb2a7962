//! What can be set on the transport: [`TransportConfig`], with JGroups' names and defaults (facts 4, 5, 9 and 25).

use std::net::IpAddr;
use std::time::Duration;

use crate::bind_addr::{BindAddr, IpVersion};
use crate::groups::DefaultGroups;

/// Which edge carries the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EdgeKind {
    /// One TCP connection per peer. `TCP` and `TCP_NIO2` speak the same bytes and are the same edge here.
    #[default]
    Tcp,
    /// Datagrams, with IP multicast to reach everybody at once.
    Udp,
    /// Packets handed over within the process (`SHARED_LOOPBACK`).
    SharedLoopback,
}

/// TLS for TCP. The names are JGroups' `tls.*`; the stores are PEM files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsConfig {
    /// Whether connections are encrypted at all.
    pub enabled: bool,
    /// PEM file with our certificate chain and private key.
    pub keystore_path: Option<String>,
    /// PEM file with the certificates we trust; the key store's, if absent.
    pub truststore_path: Option<String>,
    /// Whether a connecting member has to show a certificate.
    pub client_auth: ClientAuth,
    /// The name a server's certificate must carry; its address, if absent.
    pub server_name: Option<String>,
    /// The versions of TLS that are spoken, by Java's names; 1.2 and 1.3, if none is named.
    pub protocols: Vec<String>,
    /// The cipher suites, by Java's names; all that there are, if none is named.
    pub cipher_suites: Vec<String>,
}

/// Whether a connecting member has to show a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientAuth {
    /// It is not asked.
    #[default]
    None,
    /// It is asked, and checked if it shows one.
    Want,
    /// Without a good one it is turned away.
    Need,
}

/// Where probe's requests are answered (facts 25).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiagConfig {
    /// Whether anything listens at all.
    pub enabled: bool,
    /// Whether to listen on the multicast group.
    pub enable_udp: bool,
    /// Whether to listen on a TCP port.
    pub enable_tcp: bool,
    /// Which of the host's addresses to listen on over TCP, and whose interface to hear the group on; all, if absent.
    pub bind_addr: Option<BindAddr>,
    /// The multicast group.
    pub mcast_addr: IpAddr,
    /// The port, of both.
    pub port: u16,
    /// TCP: how many ports after `port` to try.
    pub port_range: u16,
    /// Time to live of requests.
    pub ttl: u32,
    /// What a request must know, if set.
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
    /// Which edge.
    pub kind: EdgeKind,
    /// Which of the host's addresses to use.
    pub bind_addr: BindAddr,
    /// Which addresses are considered when a selector leaves the choice.
    pub ip_version: IpVersion,
    /// The port to receive on; 0 = any. JGroups' class default is 0 for UDP, 7800 for TCP.
    pub bind_port: u16,
    /// How many ports after `bind_port` to try.
    pub port_range: u16,
    /// The address to advertise instead of the one we are bound to (behind address translation).
    pub external_addr: Option<IpAddr>,
    /// The port to advertise together with `external_addr`; 0 = the one we are bound to.
    pub external_port: u16,
    /// Whether peers of any version are let in. Off: major and minor must be ours.
    pub accept_any_version: bool,

    /// TCP: how long a connection attempt may take.
    pub sock_conn_timeout: Duration,
    /// TCP: whether small segments go out at once. JGroups' default is false; here it is true, because the edge
    /// gathers what belongs together itself, and Nagle's wait for acknowledgements only adds latency.
    pub tcp_nodelay: bool,
    /// TCP: seconds a close waits for unsent data; `None` = the kernel's default.
    pub linger: Option<Duration>,
    /// TCP: the socket's receive buffer; `None` = the kernel's own tuning.
    pub recv_buf_size: Option<usize>,
    /// TCP: the socket's send buffer; `None` = the kernel's own tuning.
    pub send_buf_size: Option<usize>,
    /// TCP: idle connections are closed after this time; zero = never.
    pub conn_expire_time: Duration,
    /// TCP: how often to look for idle connections; zero = never.
    pub reaper_interval: Duration,
    /// TCP: how long a peer that connected may take for its set-up bytes.
    pub peer_addr_read_timeout: Duration,
    /// TCP: a longer frame closes the connection; 0 = [`Self::FRAME_LEN_MAX`].
    pub max_length: usize,
    /// Bytes that may wait for one peer (TCP) or for the socket (UDP) on the data lane. More is dropped and counted;
    /// retransmission repairs it. Above the credits of UFC and MFC together (2 x 4 MB in the stock files), so that
    /// flow control is the usual limit and this the last resort.
    pub send_queue_bytes: usize,
    /// The same for the control lane. Only a peer that has not read for a long time can fill it.
    pub control_queue_bytes: usize,

    /// UDP: the group.
    pub mcast_addr: IpAddr,
    /// UDP: the group's port. 7600 in JGroups' class, 45588 in udp.xml.
    pub mcast_port: u16,
    /// UDP: whether to use the group at all; otherwise everybody gets a datagram of its own.
    pub ip_mcast: bool,
    /// UDP: time to live of multicasts.
    pub ip_ttl: u32,
    /// UDP: traffic class.
    pub tos: u32,
    /// UDP: send buffer of the socket for unicasts. The same socket sends multicasts: the larger of the two counts.
    pub ucast_send_buf_size: usize,
    /// UDP: receive buffer of the socket for unicasts.
    pub ucast_recv_buf_size: usize,
    /// UDP: see `ucast_send_buf_size`.
    pub mcast_send_buf_size: usize,
    /// UDP: receive buffer of the group's socket.
    pub mcast_recv_buf_size: usize,
    /// UDP: tasks that read the socket for unicasts; 1 = the driver reads it itself.
    pub ucast_receiver_threads: usize,
    /// UDP: tasks that read the group's socket; 1 = the driver reads it itself.
    pub mcast_receiver_threads: usize,

    /// Probe.
    pub diag: DiagConfig,
    /// TLS.
    pub tls: TlsConfig,
}

impl TransportConfig {
    /// The longest TCP frame unless `max_length` says otherwise: a thousand of the largest bundles in the stock
    /// files, a sixteenth of what would hurt a small member.
    pub const FRAME_LEN_MAX: usize = 64 * 1024 * 1024;

    /// A TCP transport with JGroups' defaults (tcp.xml's port).
    pub fn tcp() -> Self {
        Self::default()
    }

    /// A UDP transport with JGroups' defaults (udp.xml's group).
    pub fn udp() -> Self {
        Self { kind: EdgeKind::Udp, bind_port: 0, ..Self::default() }
    }

    /// The longest frame that is read.
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
        }
    }
}
