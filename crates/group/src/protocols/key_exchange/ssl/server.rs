//! The coordinator's side: it listens, and gives the group's key to each connection that asks for it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::{OPTIONS, SslKeyExchangeConfig};
use crate::protocols::encrypt::FETCH_KEY;
use crate::protocols::stream_listener::StreamListener;
use crate::wire::{self, KEY_REQUEST};
use crate::{
    Address, ConnId, Cx, DropReason, Effect, HeaderBody, Message, PhysAddr, ProtocolId, SecretKey, Time,
    Token,
};

/// The connections that have not asked for the key yet; one more closes the oldest.
const CLIENTS_MAX: usize = 64;
/// This member's own messages that wait for the server's address; more go without it, and receivers try all ports. The largest
/// are views: one of 4,096 members has less than 200 KiB.
const HELD_MESSAGES_MAX: usize = 64;

/// How long a former coordinator still serves the key. The leader of a merge makes the key of the merged group, and may not be its
/// coordinator. JGroups closes at once, which such a merge does not survive.
const LINGER_TIME: Duration = Duration::from_secs(60);

pub(super) struct Server {
    /// `None` is the transport's address.
    bind: Option<IpAddr>,
    /// Closed: this member is not coordinator, or no port was free.
    listener: StreamListener,
    /// This member is no longer coordinator, and closes then.
    close_at: Option<Time>,
    key: Option<SecretKey>,
    /// With the end of their time.
    clients: BTreeMap<ConnId, Time>,
    /// Messages that name the server, whose port is not known yet.
    held: Vec<Message>,
    served: u64,
}

impl Server {
    pub(super) const fn new(bind: Option<IpAddr>) -> Self {
        Self {
            bind,
            listener: StreamListener::Closed,
            close_at: None,
            key: None,
            clients: BTreeMap::new(),
            held: Vec::new(),
            served: 0,
        }
    }

    pub(super) const fn bind(&self) -> Option<IpAddr> {
        self.bind
    }

    /// 0: it does not listen.
    pub(super) fn port(&self) -> u16 {
        self.listener.port()
    }

    pub(super) const fn served(&self) -> u64 {
        self.served
    }

    pub(super) fn serve(&mut self, key: SecretKey) {
        self.key = Some(key);
    }

    // --- the listener ---

    pub(super) fn open(&mut self, cx: &mut Cx<'_>, config: &SslKeyExchangeConfig) {
        self.close_at = None;
        if self.listener.is_closed() {
            let (bind, ports) = (self.bind, config.ports().collect());
            let effect = Effect::ListenStreams { bind, ports, external: None, options: OPTIONS };
            self.listener = StreamListener::Opening(cx.request(effect));
        }
    }

    pub(super) fn is_opening(&self, token: Token) -> bool {
        self.listener.is_opening(token)
    }

    pub(super) fn listening(&mut self, cx: &mut Cx<'_>, token: Token, own: PhysAddr) {
        if !self.is_opening(token) {
            return;
        }
        // As JGroups: the host of the transport, unless the layer is bound to another address.
        let phys = cx.shared().phys;
        let own = if self.bind.is_none() { PhysAddr { port: own.port, ..phys } } else { own };
        tracing::debug!(%own, "serving the shared key");
        self.listener = StreamListener::Open(own);
        self.release(cx);
    }

    pub(super) fn open_failed(&mut self, cx: &mut Cx<'_>, why: &str) {
        cx.count_drop(DropReason::UnknownKey, |_| {
            format!("this member cannot serve the shared key ({why}): members that join it read nothing")
        });
        self.listener = StreamListener::Closed;
        self.release(cx);
    }

    fn release(&mut self, cx: &mut Cx<'_>) {
        for mut message in std::mem::take(&mut self.held) {
            if self.name_in(&mut message) {
                cx.send(message);
            }
        }
    }

    /// This member is not coordinator.
    pub(super) fn close_later(&mut self, now: Time) {
        if !self.listener.is_closed() {
            self.close_at.get_or_insert(now + LINGER_TIME);
        }
    }

    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        self.close_at = None;
        self.listener.close(cx);
        for conn in std::mem::take(&mut self.clients).into_keys() {
            close(cx, conn);
        }
        self.release(cx);
    }

    pub(super) fn forget_group(&mut self, cx: &mut Cx<'_>) {
        self.held.clear();
        self.close(cx);
        self.key = None;
    }

    // --- messages of ASYM_ENCRYPT ---

    /// Puts the server's address into a message whose receivers fetch the key. Returns false if the message has to
    /// wait for the address, and was taken.
    pub(super) fn name_in(&mut self, message: &mut Message) -> bool {
        if self.listener.is_closed() {
            return true;
        }
        let Some(HeaderBody::Encrypt(header)) = message.headers.get(ProtocolId::ASYM_ENCRYPT) else {
            return true;
        };
        if header.kind != FETCH_KEY || header.server.is_some() {
            return true;
        }
        match self.listener.address() {
            Some(own) => {
                let mut header = header.clone();
                header.server = Some(Address::Ip(own));
                message.headers.put(ProtocolId::ASYM_ENCRYPT, HeaderBody::Encrypt(header));
                true
            }
            _ if self.held.len() < HELD_MESSAGES_MAX => {
                self.held.push(std::mem::replace(message, Message::empty(None)));
                false
            }
            _ => true,
        }
    }

    // --- connections ---

    pub(super) fn has(&self, conn: ConnId) -> bool {
        self.clients.contains_key(&conn)
    }

    pub(super) fn accept(&mut self, cx: &mut Cx<'_>, config: &SslKeyExchangeConfig, conn: ConnId) {
        if self.listener.address().is_none() {
            return close(cx, conn);
        }
        if self.clients.len() >= CLIENTS_MAX
            && let Some((oldest, _)) = self.clients.pop_first()
        {
            close(cx, oldest);
        }
        self.clients.insert(conn, cx.now() + config.socket_timeout);
    }

    pub(super) fn receive(&mut self, cx: &mut Cx<'_>, conn: ConnId, bytes: &[u8]) {
        self.clients.remove(&conn);
        match (bytes.first(), &self.key) {
            (Some(&KEY_REQUEST), Some(key)) => {
                let frame = wire::encode_key_response(&key.version(), key.bytes());
                self.served += 1;
                cx.request(Effect::Write { conn, frame });
                cx.request(Effect::Close { conn, is_graceful: true });
            }
            (Some(&KEY_REQUEST), None) => close(cx, conn),
            _ => {
                cx.count_drop(DropReason::Malformed, |_| "a connection asked for no key".to_owned());
                close(cx, conn);
            }
        }
    }

    pub(super) fn closed(&mut self, conn: ConnId) {
        self.clients.remove(&conn);
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.clients.values().copied().chain(self.close_at).min()
    }

    pub(super) fn expire(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        if self.close_at.is_some_and(|at| at <= now) {
            self.close(cx);
        }
        for (conn, _) in self.clients.extract_if(.., |_, until| *until <= now) {
            close(cx, conn);
        }
    }
}

pub(super) fn close(cx: &mut Cx<'_>, conn: ConnId) {
    cx.request(Effect::Close { conn, is_graceful: false });
}
