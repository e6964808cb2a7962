//! SSL_KEY_EXCHANGE: the coordinator serves the group's key over TLS, to members whose certificate it trusts.
//!
//! The layer knows connections of bytes; the driver adds TLS and checks certificates on both sides
//! ([`StreamSecurity::KeyExchange`]).

mod client;
mod server;

use std::net::IpAddr;
use std::time::Duration;

use self::client::Client;
use self::server::Server;
use super::check_algorithm;
use crate::config::Password;
use crate::{
    Control, Cx, Event, MessageBatch, Outcome, Pass, ProbeOut, Protocol, ProtocolId, StreamOptions,
    StreamSecurity, TimerKey, Token,
};

crate::properties! {
    /// SSL_KEY_EXCHANGE's properties.
    SslKeyExchangeConfig {
        /// The port on which the coordinator serves the key. If it is taken, the next ports are tried.
        port: u16 = 2_157,
        /// How many ports after `port` are tried, by the coordinator and by members that do not know its port.
        port_range: u16 = 5,
        /// The PKCS#12 file with this member's private key and its certificates.
        keystore_name: String = "keystore.jks".to_owned(),
        /// The format of the file: `PKCS12`. Java also writes PKCS#12 under the name `JKS`.
        keystore_type: String = "pkcs12".to_owned(),
        /// The password of the file.
        keystore_password: Password = Password::new("changeit"),
        /// The PKCS#12 file with the trusted certificates. If not set, `keystore_name`.
        truststore_name: String = String::new(),
        /// The format of the file with the trusted certificates, as `keystore_type`.
        truststore_type: String = "PKCS12".to_owned(),
        /// The password of the file with the trusted certificates.
        truststore_password: Password = Password::new("changeit"),
        /// The files are read again for a connection if they were read longer ago.
        reload_threshold: Duration = Duration::from_secs(60),
        /// The algorithm of the group's key: `AES`.
        secret_key_algorithm: String = "AES".to_owned(),
        /// Whether a member must have a trusted certificate to get the key. Without it, each program that connects gets the key.
        require_client_authentication: bool = true,
        /// The version of TLS: `TLSv1.3`, `TLSv1.2`, or `TLS` for both.
        ssl_protocol: String = "TLS".to_owned(),
        /// The cipher suites by Java's names, separated by commas. If not set, all supported ones.
        enabled_ciphers: String = String::new(),
        /// The time limit of a connection, with its TLS handshake, and of the response.
        socket_timeout: Duration = Duration::from_secs(1),
    }
}

impl SslKeyExchangeConfig {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The attribute that is unknown or contradicts another, and a text for the operator.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let Self { port, port_range, .. } = *self;
        if port == 0 {
            return Err(("port", "port must not be 0, because members connect to it".to_owned()));
        }
        if port.checked_add(port_range).is_none() {
            let why = format!("port_range ({port_range}) leads beyond port 65535");
            return Err(("port_range", why));
        }
        check_algorithm(&self.secret_key_algorithm)?;
        for (name, kind) in
            [("keystore_type", &self.keystore_type), ("truststore_type", &self.truststore_type)]
        {
            if !matches!(kind.trim().to_ascii_uppercase().as_str(), "PKCS12" | "JKS") {
                let why = "convert it: keytool -importkeystore -srckeystore OLD -destkeystore NEW \
                           -deststoretype PKCS12";
                return Err((name, format!("{name} ({kind}) is not PKCS12; {why}")));
            }
        }
        if self.versions().is_none() {
            let why = format!("ssl_protocol ({}) is none of TLS, TLSv1.2, TLSv1.3", self.ssl_protocol);
            return Err(("ssl_protocol", why));
        }
        if self.socket_timeout.is_zero() {
            return Err(("socket_timeout", "socket_timeout must be greater than 0".to_owned()));
        }
        Ok(())
    }

    /// Returns the versions of TLS by Java's names, none for all; `None` is an unknown name.
    pub fn versions(&self) -> Option<Vec<&str>> {
        match self.ssl_protocol.trim() {
            "TLS" => Some(Vec::new()),
            version @ ("TLSv1.2" | "TLSv1.3") => Some(vec![version]),
            _ => None,
        }
    }

    /// Returns the cipher suites by Java's names, none for all.
    pub fn ciphers(&self) -> Vec<&str> {
        self.enabled_ciphers.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
    }

    fn ports(&self) -> std::ops::RangeInclusive<u16> {
        self.port..=self.port.saturating_add(self.port_range)
    }
}

const OPTIONS: StreamOptions =
    StreamOptions { keep_alive: false, recv_buf: None, security: StreamSecurity::KeyExchange };

/// Connections whose time is over are closed.
const EXPIRE: TimerKey = TimerKey(1);

/// The SSL_KEY_EXCHANGE layer.
pub struct SslKeyExchange {
    config: SslKeyExchangeConfig,
    server: Server,
    client: Client,
}

impl SslKeyExchange {
    /// Creates the layer of a config that [`SslKeyExchangeConfig::check`] accepts. It listens on this address; absent:
    /// the transport's.
    pub fn new(config: SslKeyExchangeConfig, bind: Option<IpAddr>) -> Self {
        Self { config, server: Server::new(bind), client: Client::default() }
    }

    fn close_all(&mut self, cx: &mut Cx<'_>) {
        self.server.forget_group(cx);
        self.client.forget_group(cx);
        cx.disarm(EXPIRE);
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        match self.server.next_deadline().into_iter().chain(self.client.next_deadline()).min() {
            Some(at) => {
                let rest = at.since(cx.now());
                cx.arm(EXPIRE, rest);
            }
            None => cx.disarm(EXPIRE),
        }
    }
}

impl Protocol for SslKeyExchange {
    fn name(&self) -> &'static str {
        "SSL_KEY_EXCHANGE"
    }

    /// It has no headers.
    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn start(&mut self, _cx: &mut Cx<'_>) {
        if !self.config.require_client_authentication {
            tracing::warn!(
                "each program that connects gets the shared key: set require_client_authentication=\"true\" at all members"
            );
        }
    }

    fn wants(&self, _batch: &MessageBatch, _headers: crate::HeaderIds) -> bool {
        false
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| self.server.name_in(message));
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::FetchSecretKey(request) => self.client.fetch(cx, &self.config, request),
            Event::ServeSecretKey(key) => self.server.serve(key.clone()),
            Event::Connect | Event::Disconnect => {
                self.close_all(cx);
                return Pass::On;
            }
            _ => return Pass::On,
        }
        Pass::Stop
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        let Control::View(view) = control else { return };
        if view.coordinator() == Some(cx.local()) {
            self.server.open(cx, &self.config);
        } else {
            self.server.close_later(cx.now());
            #[cfg(feature = "injected-bugs")]
            if cx.has_bug(crate::InjectedBug::KeyServerClosed) {
                self.server.close(cx);
            }
        }
        self.arm(cx);
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.close_all(cx);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        self.server.expire(cx);
        self.client.expire(cx, &self.config);
        self.arm(cx);
    }

    fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        match outcome {
            Outcome::Listening(own) => self.server.listening(cx, token, own),
            Outcome::Failed(why) if self.server.is_opening(token) => self.server.open_failed(cx, &why),
            Outcome::Failed(why) => self.client.connect_failed(cx, &self.config, token, why),
            Outcome::Accepted { conn, .. } => self.server.accept(cx, &self.config, conn),
            Outcome::Connected(conn) => self.client.connected(cx, &self.config, token, conn),
            Outcome::Frame { conn, frame } => {
                if self.server.has(conn) {
                    self.server.receive(cx, conn, &frame);
                } else {
                    self.client.receive(cx, &self.config, conn, &frame);
                }
            }
            Outcome::Closed { conn, .. } => {
                self.server.closed(conn);
                self.client.closed(cx, &self.config, conn);
            }
            _ => {}
        }
        self.arm(cx);
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put("bind_addr", self.server.bind().map_or_else(String::new, |ip| ip.to_string()));
        out.put_all(&self.config);
        out.put("actual_port", self.server.port());
        out.put("num_served_keys", self.server.served());
        out.put("num_fetched_keys", self.client.fetched());
        out.put("num_failed_fetches", self.client.failed());
    }
}

#[cfg(test)]
mod tests;
