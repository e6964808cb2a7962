//! The shared key, and former ones for messages in flight.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use subtle::ConstantTimeEq;

use crate::Time;
use crate::protocols::encrypt::SecretKey;
use crate::protocols::encrypt::cipher::Mode;
use crate::protocols::encrypt::message_cipher::MessageCipher;

/// How long a former key decrypts. Senders encrypt retransmissions anew, so that only messages in flight need it, and
/// members that have not got the new key yet.
pub(super) const FORMER_KEY_TIME: Duration = Duration::from_secs(120);
/// The most versions that are remembered as former ones.
const RETIRED_MAX: usize = 1_024;

/// A shared key. Its memory is cleared.
pub(super) struct SharedKey {
    key: SecretKey,
    cipher: MessageCipher,
}

impl SharedKey {
    /// The error is for the operator.
    pub(super) fn new(bytes: Vec<u8>, mode: Mode) -> Result<Self, String> {
        let key = SecretKey::new("AES", bytes);
        let cipher = MessageCipher::new(&key, mode)?;
        Ok(Self { key, cipher })
    }

    pub(super) const fn key(&self) -> &SecretKey {
        &self.key
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.key.bytes()
    }

    pub(super) const fn cipher(&self) -> &MessageCipher {
        &self.cipher
    }

    /// The time does not depend on the key. It may be a random one, from wrong padding.
    pub(super) fn has_version(&self, version: &[u8]) -> bool {
        self.cipher.version()[..].ct_eq(version).into()
    }
}

pub(super) struct KeyRing {
    former_max: usize,
    current: Option<SharedKey>,
    /// With the times of their replacement, the newest first.
    former: VecDeque<(Time, SharedKey)>,
    /// Versions that do not become current again: a replayed view would bring back a key that former members have.
    retired: VecDeque<Bytes>,
}

impl KeyRing {
    pub(super) fn new(former_max: usize) -> Self {
        Self { former_max, current: None, former: VecDeque::new(), retired: VecDeque::new() }
    }

    pub(super) fn install(&mut self, now: Time, key: SharedKey) {
        self.drop_expired(now);
        if let Some(before) = self.current.replace(key) {
            self.retired.push_front(before.cipher.version().clone());
            self.retired.truncate(RETIRED_MAX);
            self.former.push_front((now, before));
            self.former.truncate(self.former_max);
        }
    }

    pub(super) fn drop_expired(&mut self, now: Time) {
        self.former.retain(|(since, _)| now.since(*since) <= FORMER_KEY_TIME);
    }

    pub(super) const fn current(&self) -> Option<&SharedKey> {
        self.current.as_ref()
    }

    pub(super) fn is_current(&self, version: &Bytes) -> bool {
        self.current.as_ref().is_some_and(|key| key.cipher.version() == version)
    }

    pub(super) fn is_retired(&self, version: &Bytes) -> bool {
        self.retired.contains(version)
    }

    pub(super) fn find(&mut self, now: Time, version: &Bytes) -> Option<&MessageCipher> {
        if !self.is_current(version) {
            self.drop_expired(now);
        }
        let current = self.current.iter();
        let mut all = current.chain(self.former.iter().map(|(_, key)| key)).map(SharedKey::cipher);
        all.find(|cipher| cipher.version() == version)
    }

    pub(super) fn former_count(&self) -> usize {
        self.former.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.former_max);
    }
}
