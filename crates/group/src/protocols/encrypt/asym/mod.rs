//! ASYM_ENCRYPT: the coordinator makes the shared key and sends it to each member, encrypted with its public key (facts
//! section 22.3).
//!
//! A join request carries the joiner's public key; the response, views with a new key, and merge views carry the shared
//! key. They stay readable for members that do not have the key yet: the layer recognises them by the GMS header.
//!
//! With an external exchange, messages carry no keys: a protocol below fetches the key that a message names (module
//! `external`, facts section 22.4).
//!
//! Nothing authenticates public keys or senders: the layer keeps listeners out, and members without the protocol. It does
//! not stop an attacker that sends packets under the address of a member. AUTH and the checks in `may_bring_key` make it
//! harder; TLS stops it.

mod down;
mod external;
mod key_pair;
mod key_ring;
mod public_keys;
mod up;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use self::down::Due;
use self::external::PendingKeys;
pub use self::key_pair::KeyPair;
use self::key_ring::{FORMER_KEY_TIME, KeyRing, SharedKey};
use self::public_keys::PublicKeys;
use super::RandomBytes;
use super::cipher::Mode;
use super::message_cipher::{Vectors, checked_mode, decrypt_batch, has_payload, hex, warn_if_ecb};
use crate::wire::KEY_BLOCK_MEMBERS_MAX;
use crate::{
    Address, Control, CountPerSecond, Cx, Event, GmsHeader, HeaderBody, MergeId, Message, MessageBatch, Pass,
    ProbeOut, Protocol, ProtocolId, StackCount, Time, View, ViewId,
};

crate::properties! {
    /// ASYM_ENCRYPT's properties.
    AsymEncryptConfig {
        /// The algorithm of the members' key pairs: `RSA`. Not used with `use_external_key_exchange`.
        asym_algorithm: String = "RSA".to_owned(),
        /// The size of this member's RSA key in bits, 1024 to 8192. Not used with `use_external_key_exchange`.
        asym_keylength: u32 = 2_048,
        /// The cipher as a Java transformation: `AES/CBC/PKCS5Padding`, `AES/CTR/NoPadding`, or
        /// `AES/ECB/PKCS5Padding`, for which `AES` stands.
        sym_algorithm: String = "AES".to_owned(),
        /// The length of the initialization vector in bytes: 16, or 0 with ECB.
        sym_iv_length: u32 = 0,
        /// The size of the shared key in bits: 128, 192 or 256.
        sym_keylength: u32 = 128,
        /// Whether the coordinator makes a new key when a member leaves or crashes, so that it cannot decrypt later
        /// messages.
        change_key_on_leave: bool = false,
        /// Whether a new coordinator makes a new key.
        change_key_on_coord_leave: bool = true,
        /// The number of former keys that still decrypt messages in flight, 0 to 20. Each does for 2 minutes.
        key_map_max_size: u32 = 20,
        /// Whether a protocol below exchanges the shared key (SSL_KEY_EXCHANGE or DH_KEY_EXCHANGE). All members need the same value.
        use_external_key_exchange: bool = false,
    }
}

/// JGroups' default.
const FORMER_KEYS_MAX: u32 = 20;

impl AsymEncryptConfig {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The attribute that is unknown or contradicts another, and a text for the operator.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        checked_mode(&self.sym_algorithm, self.sym_iv_length)?;
        // An external exchange uses no key pair.
        if !self.use_external_key_exchange {
            self.check_key_pair()?;
        }
        let bits = self.sym_keylength;
        if !matches!(bits, 128 | 192 | 256) {
            return Err(("sym_keylength", format!("sym_keylength ({bits}) is none of 128, 192, 256 bits")));
        }
        let keys = self.key_map_max_size;
        if keys > FORMER_KEYS_MAX {
            let why = format!("key_map_max_size ({keys}) is more than {FORMER_KEYS_MAX}");
            return Err(("key_map_max_size", why));
        }
        Ok(())
    }

    fn check_key_pair(&self) -> Result<(), (&'static str, String)> {
        let asym = self.asym_algorithm.trim().to_ascii_uppercase();
        if !matches!(asym.as_str(), "RSA" | "RSA/ECB/PKCS1PADDING") {
            let why = format!("asym_algorithm ({}) is not RSA", self.asym_algorithm);
            return Err(("asym_algorithm", why));
        }
        let bits = self.asym_keylength;
        if !KeyPair::BITS.contains(&bits) {
            let why = format!("asym_keylength ({bits}) is not one of 1024 to 8192 bits; use 2048 or more");
            return Err(("asym_keylength", why));
        }
        Ok(())
    }
}

/// The merges that this member takes part in. JGroups runs one at a time.
#[derive(Default)]
struct Merges {
    /// The leader that this member has responded to; it may bring a key.
    leader: Option<Address>,
    /// The members that this member, as leader, has asked; they may bring public keys.
    asked: Vec<Address>,
    /// The led merges that have a key, for retransmissions.
    with_key: VecDeque<MergeId>,
    /// The key of a merge view that has come. GMS may ignore the view; then the group keeps its key.
    key: Option<KeyOfMerge>,
}

struct KeyOfMerge {
    /// It serves messages for [`FORMER_KEY_TIME`], as its sender keeps the key after the next change.
    since: Time,
    view: ViewId,
    key: SharedKey,
    /// Before the view is installed, the key serves messages from and to this member.
    sender: Address,
    /// The server of an external exchange that has the key.
    server: Option<Address>,
}

impl Merges {
    /// The key of the merge view that has come, while it serves messages.
    fn key_for_messages(&self, now: Time) -> Option<&KeyOfMerge> {
        self.key.as_ref().filter(|key| now.since(key.since) <= FORMER_KEY_TIME)
    }
}

/// Shared keys that this member's private key did not decrypt, in a second; then entries for this member are ignored until the
/// next one. Each costs milliseconds, a tenth of a CPU at most, and a peer that tries many could learn from them. A lower bound
/// would let fewer forged messages hold back the coordinator's key.
const FAILED_DECRYPTIONS_MAX: u32 = 100;

/// A shared key, encrypted for members. An encryption costs some 50 microseconds, and a view with a new key needs one for each
/// member.
#[derive(Default)]
struct SealedKeys {
    version: Bytes,
    /// With the public key for which each is encrypted.
    keys: BTreeMap<Address, (Bytes, Bytes)>,
}

impl SealedKeys {
    /// `seal` encrypts the key of this version for the owner of a public key that has none yet.
    fn of(
        &mut self,
        version: &Bytes,
        member: &Address,
        public: &Bytes,
        seal: impl FnOnce(&Bytes) -> Bytes,
    ) -> Bytes {
        if self.version != *version {
            *self = Self { version: version.clone(), keys: BTreeMap::new() };
        }
        match self.keys.get(member) {
            Some((own, sealed)) if own == public => return sealed.clone(),
            _ => {}
        }
        if self.keys.len() >= KEY_BLOCK_MEMBERS_MAX {
            self.keys.clear();
        }
        let sealed = seal(public);
        self.keys.insert(member.clone(), (public.clone(), sealed.clone()));
        sealed
    }
}

/// The most members that a joiner or merge leader asks at once; the oldest is forgotten.
const ASKED_MAX: usize = 256;
/// Enough for all that overlap.
const MERGES_MAX: usize = 20;

impl Merges {
    /// A merge view may arrive after the merge: its number counts, although GMS does not install it.
    fn follow_view(&mut self) {
        let Self { with_key, leader, .. } = std::mem::take(self);
        *self = Self { with_key, leader, ..Self::default() };
    }

    /// Returns whether the merge has no key yet.
    fn note_led(&mut self, id: Option<&MergeId>) -> bool {
        let Some(id) = id.filter(|id| !self.with_key.contains(id)) else { return false };
        self.with_key.push_front(id.clone());
        self.with_key.truncate(MERGES_MAX);
        true
    }
}

fn note_asked(list: &mut Vec<Address>, member: &Address) {
    if !list.contains(member) {
        if list.len() >= ASKED_MAX {
            list.remove(0);
        }
        list.push(member.clone());
    }
}

/// The ASYM_ENCRYPT layer.
pub struct AsymEncrypt {
    config: AsymEncryptConfig,
    mode: Mode,
    pair: KeyPair,
    vectors: Vectors,
    ring: KeyRing,
    /// The view that brought the current key, or in which this member made it.
    key_view: Option<ViewId>,
    failed_decryptions: CountPerSecond,
    /// The keys that the external exchange fetches, with the messages that wait for them.
    pending: PendingKeys,
    /// The server of the external exchange that had the current key; absent if this member made it.
    key_server: Option<Address>,
    /// The current key's entries in messages, by member: a retransmission encrypts none again.
    sealed: SealedKeys,
    publics: PublicKeys,
    view: Option<View>,
    due: Due,
    /// The coordinators that this joiner has asked; they may bring the key.
    coordinators: Vec<Address>,
    merges: Merges,
    encrypted: u64,
    decrypted: u64,
    rejected: u64,
    made_keys: u64,
    received_keys: u64,
}

const ID: ProtocolId = ProtocolId::ASYM_ENCRYPT;

/// A message that is not rejected.
enum Received {
    Readable,
    /// The layer has taken it, until its key has been fetched.
    Waits,
}

impl AsymEncrypt {
    /// Creates the layer. The key pair is generated once, because that takes long.
    ///
    /// # Errors
    ///
    /// The attribute that cannot be used, and a text for the operator.
    pub fn new(
        config: AsymEncryptConfig,
        pair: KeyPair,
        random: Box<dyn RandomBytes>,
    ) -> Result<Self, (&'static str, String)> {
        config.check()?;
        let mode = checked_mode(&config.sym_algorithm, config.sym_iv_length)?;
        let former_max = config.key_map_max_size as usize;
        Ok(Self {
            config,
            mode,
            pair,
            vectors: Vectors::new(random),
            ring: KeyRing::new(former_max),
            key_view: None,
            failed_decryptions: CountPerSecond::default(),
            pending: PendingKeys::default(),
            key_server: None,
            sealed: SealedKeys::default(),
            publics: PublicKeys::default(),
            view: None,
            due: Due::default(),
            coordinators: Vec::new(),
            merges: Merges::default(),
            encrypted: 0,
            decrypted: 0,
            rejected: 0,
            made_keys: 0,
            received_keys: 0,
        })
    }

    fn is_member(&self, member: &Address) -> bool {
        self.view.as_ref().is_some_and(|view| view.contains(member))
    }

    /// Before the join as well.
    fn is_alone(&self) -> bool {
        self.view.as_ref().is_none_or(|view| view.len() == 1)
    }

    fn random_key(&mut self) -> Result<SharedKey, String> {
        let mut bytes = vec![0; self.config.sym_keylength as usize / 8];
        self.vectors.source().fill(&mut bytes)?;
        SharedKey::new(bytes, self.mode)
    }

    /// Makes a key current. The external exchange serves it from now on.
    fn set_key(&mut self, cx: &mut Cx<'_>, key: SharedKey, server: Option<Address>) {
        if self.config.use_external_key_exchange {
            cx.lower(Event::ServeSecretKey(key.key().clone()));
        }
        self.key_server = server;
        self.ring.install(cx.now(), key);
    }

    /// Makes the shared key of the group.
    fn make_key(&mut self, cx: &mut Cx<'_>) {
        match self.random_key() {
            Ok(key) => {
                tracing::debug!(version = hex(key.cipher().version()), "made a new shared key");
                self.set_key(cx, key, None);
                self.key_view = self.view.as_ref().map(|view| view.id().clone());
                self.made_keys += 1;
                self.due.key = false;
                self.due.distribution = true;
            }
            Err(why) => tracing::warn!("no shared key can be made: {why}"),
        }
    }

    fn follow_view(&mut self, cx: &mut Cx<'_>, view: &View) {
        let before = self.view.replace(view.clone());
        self.ring.drop_expired(cx.now());
        let local = cx.local().clone();
        self.publics.learn(&local, self.pair.public());
        self.publics.follow(view);
        if view.len() > 1 {
            self.coordinators.clear();
        }
        let key = self.merges.key.take();
        self.merges.follow_view();
        // Then the merged group's coordinator makes none of its own.
        let has_key_of_merge = key.as_ref().is_some_and(|key| key.view == *view.id());
        match key {
            Some(KeyOfMerge { view, key, server, .. }) if has_key_of_merge => {
                self.set_key(cx, key, server);
                self.key_view = Some(view);
            }
            // An earlier merge's view comes first.
            key => self.merges.key = key.filter(|key| key.view.id > view.id().id),
        }
        self.due.distribution = view.is_merge();
        if view.coordinator() != Some(&local) {
            self.due.key = false;
            return;
        }
        let Some(before) = before else {
            // A coordinator that refused this member's join knows the current key.
            return self.make_key(cx);
        };
        if self.ring.current().is_none() {
            return self.make_key(cx);
        }
        let has_left = before.members().iter().any(|member| !view.contains(member));
        let is_new_coordinator = before.coordinator() != Some(&local);
        let needs_key = self.config.change_key_on_leave && has_left
            || self.config.change_key_on_coord_leave && is_new_coordinator;
        // The leader makes a merge's key when it sends the merge view.
        self.due.key |= if view.is_merge() { has_left && needs_key && !has_key_of_merge } else { needs_key };
    }

    fn forget_group(&mut self) {
        self.ring.clear();
        self.key_view = None;
        self.publics.clear();
        self.view = None;
        self.due = Due::default();
        self.coordinators.clear();
        self.merges = Merges::default();
        self.pending = PendingKeys::default();
        self.key_server = None;
    }
}

fn gms_header(message: &Message) -> Option<&GmsHeader> {
    match message.headers.get(ProtocolId::GMS) {
        Some(HeaderBody::Gms(header)) => Some(header),
        _ => None,
    }
}

impl Protocol for AsymEncrypt {
    fn name(&self) -> &'static str {
        "ASYM_ENCRYPT"
    }

    fn id(&self) -> ProtocolId {
        ID
    }

    fn start(&mut self, _cx: &mut Cx<'_>) {
        warn_if_ecb(self.mode, &self.config.sym_algorithm);
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| self.send(cx, message));
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        decrypt_batch(cx, batch, |cx, message| match self.receive(cx, message) {
            Ok(Received::Readable) => true,
            Ok(Received::Waits) => false,
            Err(why) => {
                self.reject(cx, message, why);
                false
            }
        });
    }

    fn down_event(&mut self, _cx: &mut Cx<'_>, event: &Event) -> Pass {
        if matches!(event, Event::Connect | Event::Disconnect) {
            self.forget_group();
        }
        Pass::On
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        let Event::SecretKeyFetched { request, key } = event else { return Pass::On };
        self.key_fetched(cx, request, key.as_ref().ok());
        Pass::Stop
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.follow_view(cx, view);
        }
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::RejectedMessages, self.rejected)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        let version = self.ring.current().map(|key| hex(key.cipher().version()));
        out.put("version", version.unwrap_or_default());
        out.put("num_former_keys", self.ring.former_count());
        out.put("num_public_keys", self.publics.len());
        out.put("num_made_keys", self.made_keys);
        out.put("num_received_keys", self.received_keys);
        out.put("num_pending_keys", self.pending.len());
        out.put("num_encrypted", self.encrypted);
        out.put("num_decrypted", self.decrypted);
        out.put("num_rejected", self.rejected);
    }
}

#[cfg(test)]
mod tests;
