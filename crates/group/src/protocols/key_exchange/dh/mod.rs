//! DH_KEY_EXCHANGE: members ask the sender of a message for its key, which it encrypts with a key of a Diffie-Hellman exchange.
//!
//! It keeps the key from listeners. Nothing authenticates either side, so that an attacker that sends packets gets the key, or
//! gives another one. JGroups answers all; here only members of the view get an answer.

mod keys;

use std::time::Duration;

use bytes::Bytes;

use self::keys::{DhPair, Group, PublicKey, Unusable};
use super::{FETCHES_MAX, TOO_MANY, check_algorithm, report_failure};
use crate::protocols::encrypt::{EcbKey, RandomBytes};
use crate::{
    Address, Control, CountPerSecond, Cx, DhHeader, DropReason, Event, HeaderBody, HeaderIds, KeyRequest,
    Message, MessageBatch, Pass, ProbeOut, Protocol, ProtocolId, SecretKey, Time, TimerKey,
};

crate::properties! {
    /// DH_KEY_EXCHANGE's properties.
    DhKeyExchangeConfig {
        /// The algorithm of the group's key: `AES`.
        secret_key_algorithm: String = "AES".to_owned(),
        /// A request without an answer is repeated after this time, twice at most.
        timeout: Duration = Duration::from_secs(2),
    }
}

impl DhKeyExchangeConfig {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The attribute that cannot be used, and a text for the operator.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        check_algorithm(&self.secret_key_algorithm)?;
        if self.timeout.is_zero() {
            return Err(("timeout", "timeout must be greater than 0".to_owned()));
        }
        Ok(())
    }
}

/// The requests for a key, the first included.
const TRIES_MAX: u32 = 3;

/// The requests that are answered in a second. Each costs some milliseconds. Requests without a usable key cost little, and do
/// not count: they must not keep joiners waiting.
const ANSWERS_PER_SECOND_MAX: u32 = 100;

/// The answers with a usable key of Diffie-Hellman and without the wanted key that are decrypted in a second; then answers are
/// ignored until the next one. Each costs some milliseconds. Anyone can send them under the address of a member, and the right
/// answer is lost if it arrives after them: as many as a member answers requests.
const WRONG_ANSWERS_PER_SECOND_MAX: u32 = ANSWERS_PER_SECOND_MAX;

const ID: ProtocolId = ProtocolId::DH_KEY_EXCHANGE;

const REPEAT: TimerKey = TimerKey(1);

struct Fetch {
    request: KeyRequest,
    pair: DhPair,
    tries: u32,
    repeat_at: Time,
}

impl Fetch {
    /// Returns the key of an answer if it is the wanted one.
    fn read(&self, public: &PublicKey, encrypted: &Bytes) -> Option<SecretKey> {
        let session = self.pair.session_key(public).ok()?;
        let cipher = session.get(..self.request.key_length).and_then(EcbKey::new)?;
        let key = SecretKey::new("AES", cipher.decrypt(encrypted)?);
        (key.version() == self.request.version).then_some(key)
    }
}

/// The DH_KEY_EXCHANGE layer.
pub struct DhKeyExchange {
    config: DhKeyExchangeConfig,
    random: Box<dyn RandomBytes>,
    /// The key that this member has.
    key: Option<SecretKey>,
    /// This member's own pairs for answers with this key.
    pairs: Vec<(Group, DhPair)>,
    /// The group of the last answer: JGroups refuses requests in another one.
    group: Group,
    /// The oldest first.
    fetches: Vec<Fetch>,
    answers: CountPerSecond,
    wrong_answers: CountPerSecond,
    served: u64,
    fetched: u64,
    failed: u64,
}

impl DhKeyExchange {
    /// Creates the layer of a config that [`DhKeyExchangeConfig::check`] accepts.
    pub fn new(config: DhKeyExchangeConfig, random: Box<dyn RandomBytes>) -> Self {
        Self {
            config,
            random,
            key: None,
            pairs: Vec::new(),
            group: Group::Bits2048,
            fetches: Vec::new(),
            answers: CountPerSecond::default(),
            wrong_answers: CountPerSecond::default(),
            served: 0,
            fetched: 0,
            failed: 0,
        }
    }

    fn forget_group(&mut self, cx: &mut Cx<'_>) {
        (self.key, self.pairs, self.fetches) = (None, Vec::new(), Vec::new());
        cx.disarm(REPEAT);
    }

    // --- the requester ---

    fn fetch(&mut self, cx: &mut Cx<'_>, request: &KeyRequest) {
        if self.fetches.len() >= FETCHES_MAX {
            let oldest = self.fetches.remove(0);
            self.give_up(cx, &oldest.request, TOO_MANY);
        }
        match self.ask(cx, self.group, &request.sender) {
            Ok(pair) => {
                let repeat_at = cx.now() + self.config.timeout;
                self.fetches.push(Fetch { request: request.clone(), pair, tries: 1, repeat_at });
            }
            Err(why) => self.give_up(cx, request, &why),
        }
    }

    fn ask(&mut self, cx: &mut Cx<'_>, group: Group, member: &Address) -> Result<DhPair, String> {
        let pair = DhPair::generate(group, &mut *self.random)?;
        send(cx, member, DhHeader { dh_key: pair.public().clone(), secret: None });
        Ok(pair)
    }

    fn give_up(&mut self, cx: &mut Cx<'_>, request: &KeyRequest, why: &str) {
        self.failed += 1;
        report_failure(cx, request, why);
    }

    fn repeat(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now();
        while let Some(at) = self.fetches.iter().position(|fetch| fetch.repeat_at <= now) {
            let Fetch { request, pair, tries, .. } = self.fetches.remove(at);
            if tries >= TRIES_MAX {
                self.give_up(cx, &request, "it does not answer");
                continue;
            }
            match self.ask(cx, pair.group().other_default(), &request.sender) {
                Ok(pair) => {
                    let (tries, repeat_at) = (tries + 1, now + self.config.timeout);
                    self.fetches.insert(at, Fetch { request, pair, tries, repeat_at });
                }
                Err(why) => self.give_up(cx, &request, &why),
            }
        }
    }

    /// The error is the reason to discard the response.
    fn receive_key(
        &mut self,
        cx: &mut Cx<'_>,
        src: &Address,
        dh_key: &Bytes,
        encrypted: &Bytes,
        version: &Bytes,
    ) -> Result<(), DropReason> {
        let is_it = |fetch: &Fetch| fetch.request.sender == *src && fetch.request.version == *version;
        let at = self.fetches.iter().position(is_it).ok_or(DropReason::Unexpected)?;
        let fetch = &self.fetches[at];
        let public = PublicKey::decode(dh_key).ok().filter(|public| public.group == fetch.pair.group());
        let public = public.ok_or(DropReason::Malformed)?;
        if !self.wrong_answers.has_fewer(cx.now(), WRONG_ANSWERS_PER_SECOND_MAX) {
            return Err(DropReason::QueueFull);
        }
        let Some(key) = fetch.read(&public, encrypted) else {
            self.wrong_answers.add();
            return Err(DropReason::Malformed);
        };
        self.group = public.group;
        self.fetched += 1;
        let request = Box::new(self.fetches.remove(at).request);
        cx.raise(Event::SecretKeyFetched { request, key: Ok(key) });
        Ok(())
    }

    // --- the answering member ---

    fn answer(&mut self, cx: &mut Cx<'_>, src: &Address, dh_key: &Bytes) -> Result<(), DropReason> {
        if !cx.view().is_some_and(|view| view.contains(src)) {
            return Err(DropReason::NotMember);
        }
        let Some(key) = self.key.clone() else { return Err(DropReason::UnknownKey) };
        let public = PublicKey::decode(dh_key).map_err(|Unusable| DropReason::Malformed)?;
        if !self.answers.try_add(cx.now(), ANSWERS_PER_SECOND_MAX) {
            return Err(DropReason::QueueFull);
        }
        if !self.pairs.iter().any(|(group, _)| *group == public.group) {
            let pair = DhPair::generate(public.group, &mut *self.random);
            self.pairs.push((public.group, pair.map_err(|_| DropReason::Unexpected)?));
        }
        let pair = self.pairs.iter().find(|(group, _)| *group == public.group);
        let (_, pair) = pair.ok_or(DropReason::Unexpected)?;
        let session = pair.session_key(&public).map_err(|Unusable| DropReason::Malformed)?;
        let cipher = session.get(..key.bytes().len()).and_then(EcbKey::new).ok_or(DropReason::Malformed)?;
        let secret = Some((cipher.encrypt(key.bytes()).into(), key.version()));
        send(cx, src, DhHeader { dh_key: pair.public().clone(), secret });
        self.served += 1;
        Ok(())
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: DhHeader, message: &Message) {
        let Some(src) = message.src.clone() else { return cx.discard(message, DropReason::Malformed) };
        let DhHeader { dh_key, secret } = header;
        let received = match secret {
            None => self.answer(cx, &src, &dh_key),
            Some((encrypted, version)) => self.receive_key(cx, &src, &dh_key, &encrypted, &version),
        };
        match received {
            Ok(()) => cx.absorb(message),
            Err(why) => cx.discard(message, why),
        }
    }

    fn arm(&self, cx: &mut Cx<'_>) {
        match self.fetches.iter().map(|fetch| fetch.repeat_at).min() {
            Some(at) => {
                let rest = at.since(cx.now());
                cx.arm(REPEAT, rest);
            }
            None => cx.disarm(REPEAT),
        }
    }
}

fn send(cx: &mut Cx<'_>, to: &Address, header: DhHeader) {
    let message = Message::empty(Some(to.clone())).with_header(ID, HeaderBody::Dh(Box::new(header)));
    let src = Some(cx.local().clone());
    cx.send(Message { src, ..message });
}

impl Protocol for DhKeyExchange {
    fn name(&self) -> &'static str {
        "DH_KEY_EXCHANGE"
    }

    fn id(&self) -> ProtocolId {
        ID
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(ID)
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| match message.headers.take(ID) {
            Some(HeaderBody::Dh(header)) => {
                self.receive(cx, *header, message);
                false
            }
            _ => true,
        });
        self.arm(cx);
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::FetchSecretKey(request) => {
                self.fetch(cx, request);
                self.arm(cx);
            }
            Event::ServeSecretKey(key) => {
                self.pairs.clear();
                self.key = Some(key.clone());
            }
            Event::Connect | Event::Disconnect => {
                self.forget_group(cx);
                return Pass::On;
            }
            _ => return Pass::On,
        }
        Pass::Stop
    }

    /// A member that has left cannot answer.
    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::Lost(members) = control {
            let lost: Vec<Fetch> =
                self.fetches.extract_if(.., |fetch| members.contains(&fetch.request.sender)).collect();
            for fetch in lost {
                self.give_up(cx, &fetch.request, "it is no member any more");
            }
            self.arm(cx);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, _key: TimerKey) {
        self.repeat(cx);
        self.arm(cx);
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("num_served_keys", self.served);
        out.put("num_fetched_keys", self.fetched);
        out.put("num_failed_fetches", self.failed);
    }
}

#[cfg(test)]
mod tests;
