//! A member's side: it connects to the key server, asks for the key, and checks its version.
//!
//! JGroups installs each key that it gets. Here a key of another version counts as none, and the next port is tried: several
//! servers of one host may have trusted certificates.

use std::collections::VecDeque;

use bytes::Bytes;
use zeroize::Zeroizing;

use super::server::close;
use super::{OPTIONS, SslKeyExchangeConfig};
use crate::protocols::key_exchange::{FETCHES_MAX, TOO_MANY, report_failure};
use crate::wire::{self, KEY_REQUEST, KEY_RESPONSE_BYTES_MAX, KeyResponseError};
use crate::{ConnId, Cx, Effect, Event, KeyRequest, PhysAddr, SecretKey, Time, Token};

enum Link {
    Connecting(Token),
    Reading { conn: ConnId, until: Time },
}

struct Fetch {
    request: KeyRequest,
    at: PhysAddr,
    /// The addresses to try next.
    left: VecDeque<PhysAddr>,
    link: Link,
    /// The response so far.
    bytes: Zeroizing<Vec<u8>>,
    /// Why other addresses gave no key.
    failures: Vec<String>,
}

#[derive(Default)]
pub(super) struct Client {
    /// The oldest first.
    fetches: Vec<Fetch>,
    fetched: u64,
    failed: u64,
}

impl Client {
    pub(super) const fn fetched(&self) -> u64 {
        self.fetched
    }

    pub(super) const fn failed(&self) -> u64 {
        self.failed
    }

    pub(super) fn forget_group(&mut self, cx: &mut Cx<'_>) {
        for fetch in std::mem::take(&mut self.fetches) {
            fetch.disconnect(cx);
        }
    }

    pub(super) fn fetch(&mut self, cx: &mut Cx<'_>, config: &SslKeyExchangeConfig, request: &KeyRequest) {
        let mut left: VecDeque<PhysAddr> = match request.server {
            Some(server) => VecDeque::from([server]),
            None => match cx.shared().book.phys(&request.sender) {
                Some(sender) => config.ports().map(|port| PhysAddr { port, ..sender }).collect(),
                None => VecDeque::new(),
            },
        };
        let Some(at) = left.pop_front() else {
            return self.give_up(cx, request, "its physical address is unknown");
        };
        if self.fetches.len() >= FETCHES_MAX {
            let oldest = self.fetches.remove(0);
            oldest.disconnect(cx);
            self.give_up(cx, &oldest.request, TOO_MANY);
        }
        let link = connect(cx, config, at);
        let bytes = Zeroizing::new(Vec::with_capacity(KEY_RESPONSE_BYTES_MAX));
        let failures = Vec::new();
        self.fetches.push(Fetch { request: request.clone(), at, left, link, bytes, failures });
    }

    fn give_up(&mut self, cx: &mut Cx<'_>, request: &KeyRequest, why: &str) {
        self.failed += 1;
        report_failure(cx, request, why);
    }

    /// Tries the next address.
    fn fail(&mut self, cx: &mut Cx<'_>, config: &SslKeyExchangeConfig, at: usize, why: &str) {
        let fetch = &mut self.fetches[at];
        fetch.failures.push(format!("{}: {why}", fetch.at));
        match fetch.left.pop_front() {
            Some(next) => {
                fetch.bytes.clear();
                (fetch.at, fetch.link) = (next, connect(cx, config, next));
            }
            None => {
                let fetch = self.fetches.remove(at);
                self.give_up(cx, &fetch.request, &fetch.failures.join("; "));
            }
        }
    }

    pub(super) fn connect_failed(
        &mut self,
        cx: &mut Cx<'_>,
        config: &SslKeyExchangeConfig,
        token: Token,
        why: String,
    ) {
        if let Some(at) = self.connecting(token) {
            self.fail(cx, config, at, &why);
        }
    }

    pub(super) fn connected(
        &mut self,
        cx: &mut Cx<'_>,
        config: &SslKeyExchangeConfig,
        token: Token,
        conn: ConnId,
    ) {
        let Some(at) = self.connecting(token) else { return close(cx, conn) };
        cx.request(Effect::Write { conn, frame: Bytes::from_static(&[KEY_REQUEST]) });
        self.fetches[at].link = Link::Reading { conn, until: cx.now() + config.socket_timeout };
    }

    pub(super) fn receive(
        &mut self,
        cx: &mut Cx<'_>,
        config: &SslKeyExchangeConfig,
        conn: ConnId,
        bytes: &[u8],
    ) {
        let Some(at) = self.reading(conn) else { return };
        let fetch = &mut self.fetches[at];
        // The buffer does not grow: a copy would stay in memory.
        let room = KEY_RESPONSE_BYTES_MAX.saturating_sub(fetch.bytes.len());
        fetch.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        match fetch.read() {
            Ok(key) => {
                close(cx, conn);
                let request = Box::new(self.fetches.remove(at).request);
                self.fetched += 1;
                cx.raise(Event::SecretKeyFetched { request, key: Ok(key) });
            }
            Err(None) if bytes.len() <= room => {}
            Err(why) => {
                close(cx, conn);
                let why = why.unwrap_or_else(|| KeyResponseError::Malformed.to_string());
                self.fail(cx, config, at, &why);
            }
        }
    }

    pub(super) fn closed(&mut self, cx: &mut Cx<'_>, config: &SslKeyExchangeConfig, conn: ConnId) {
        if let Some(at) = self.reading(conn) {
            let why = "it closed the connection without a key: it has none yet, or it does not trust the \
                       certificate of this member";
            self.fail(cx, config, at, why);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.fetches.iter().filter_map(Fetch::deadline).min()
    }

    pub(super) fn expire(&mut self, cx: &mut Cx<'_>, config: &SslKeyExchangeConfig) {
        let now = cx.now();
        let is_late = |fetch: &Fetch| fetch.deadline().is_some_and(|until| until <= now);
        while let Some(at) = self.fetches.iter().position(is_late) {
            self.fetches[at].disconnect(cx);
            self.fail(cx, config, at, "it sent no key in time");
        }
    }

    fn connecting(&self, token: Token) -> Option<usize> {
        self.fetches.iter().position(|fetch| matches!(fetch.link, Link::Connecting(own) if own == token))
    }

    fn reading(&self, conn: ConnId) -> Option<usize> {
        let is_it = |fetch: &Fetch| matches!(fetch.link, Link::Reading { conn: own, .. } if own == conn);
        self.fetches.iter().position(is_it)
    }
}

impl Fetch {
    fn deadline(&self) -> Option<Time> {
        match self.link {
            Link::Connecting(_) => None,
            Link::Reading { until, .. } => Some(until),
        }
    }

    fn disconnect(&self, cx: &mut Cx<'_>) {
        if let Link::Reading { conn, .. } = self.link {
            close(cx, conn);
        }
    }

    /// The error is the reason; without one, the response is not complete.
    fn read(&self) -> Result<SecretKey, Option<String>> {
        let (version, key) = match wire::decode_key_response(&self.bytes) {
            Ok(response) => response,
            Err(KeyResponseError::Incomplete) => return Err(None),
            Err(why) => return Err(Some(why.to_string())),
        };
        let key = SecretKey::new("AES", key.to_vec());
        if key.version() != version {
            return Err(Some("its key does not have the version that it names".to_owned()));
        }
        if version != self.request.version {
            return Err(Some("it has a key of another version".to_owned()));
        }
        Ok(key)
    }
}

fn connect(cx: &mut Cx<'_>, config: &SslKeyExchangeConfig, to: PhysAddr) -> Link {
    let effect = Effect::ConnectStream { to, timeout: config.socket_timeout, options: OPTIONS };
    Link::Connecting(cx.request(effect))
}
