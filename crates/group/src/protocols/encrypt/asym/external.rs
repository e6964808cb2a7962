//! An external exchange of keys: a protocol below fetches the key that a message names (facts section 22.4).
//!
//! Join requests and merge responses go in clear. Join responses, merge views, and views with a new key name the server of the
//! key. JGroups' member fetches the key before it handles the next message; here such messages wait for their key, and others
//! go on. Layers above order and repeat them.

use bytes::Bytes;

use super::down::{drop_without_key, is_retransmission};
use super::key_ring::SharedKey;
use super::{AsymEncrypt, ID, Received};
use crate::protocols::encrypt::{CountPerSecond, FETCH_KEY};
use crate::{
    Address, Cx, DropReason, EncryptHeader, Event, GmsKind, HeaderBody, KeyRequest, Message, SecretKey, Time,
    View,
};

/// The keys that are fetched at once. A group has one new key at a time, and a merge one more.
const PENDING_KEYS_MAX: usize = 4;
/// The messages that wait for keys; one more is discarded, and its sender repeats it.
const WAITING_MESSAGES_MAX: usize = 64;
/// A view of 4,096 members has less than 200 KiB.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The keys that are fetched in a second. Each costs a handshake, and a forged message can name any server.
const FETCHES_PER_SECOND_MAX: u32 = 10;

struct Waiting {
    version: Bytes,
    kind: GmsKind,
    header: EncryptHeader,
    message: Message,
}

#[derive(Default)]
pub(super) struct PendingKeys {
    versions: Vec<Bytes>,
    messages: Vec<Waiting>,
    fetches: CountPerSecond,
}

impl PendingKeys {
    pub(super) const fn len(&self) -> usize {
        self.versions.len()
    }

    fn has_room_for(&self, message: &Message) -> bool {
        let bytes: usize = self.messages.iter().map(|waiting| waiting.message.length()).sum();
        self.messages.len() < WAITING_MESSAGES_MAX && bytes + message.length() <= WAITING_BYTES_MAX
    }

    /// Returns whether the key has to be fetched; the error is the reason that it is not.
    fn begin(&mut self, now: Time, version: &Bytes) -> Result<bool, DropReason> {
        if self.versions.contains(version) {
            return Ok(false);
        }
        let has_room = self.versions.len() < PENDING_KEYS_MAX;
        if !has_room || !self.fetches.is_below(now, FETCHES_PER_SECOND_MAX) {
            return Err(DropReason::QueueFull);
        }
        self.fetches.add();
        self.versions.push(version.clone());
        Ok(true)
    }

    fn take(&mut self, version: &Bytes) -> Vec<Waiting> {
        self.versions.retain(|own| own != version);
        self.messages.extract_if(.., |waiting| waiting.version == *version).collect()
    }
}

impl AsymEncrypt {
    // --- messages from the network ---

    /// Handles a message of GMS.
    pub(super) fn receive_external(
        &mut self,
        cx: &mut Cx<'_>,
        kind: GmsKind,
        header: Option<EncryptHeader>,
        message: &mut Message,
        src: &Address,
    ) -> Result<Received, DropReason> {
        match (kind, header) {
            (GmsKind::MergeReq | GmsKind::ViewAck | GmsKind::GetDigestReq | GmsKind::GetDigestRsp, _)
            | (GmsKind::JoinReq | GmsKind::JoinReqWithStateTransfer | GmsKind::MergeRsp, None) => {
                Ok(Received::Readable)
            }
            (_, None) => Err(DropReason::MissingHeader),
            // JGroups retransmits a view without the server's address; the sender of the view has the key, too.
            (GmsKind::JoinRsp | GmsKind::View | GmsKind::InstallMergeView, Some(header))
                if matches!(header.kind, 0 | FETCH_KEY) =>
            {
                self.receive_with_fetch(cx, kind, header, message, src)
            }
            (_, Some(header)) if header.kind == 0 => {
                self.decrypt(cx, &header, message).map(|()| Received::Readable)
            }
            _ => Err(DropReason::Unexpected),
        }
    }

    fn receive_with_fetch(
        &mut self,
        cx: &mut Cx<'_>,
        kind: GmsKind,
        header: EncryptHeader,
        message: &mut Message,
        src: &Address,
    ) -> Result<Received, DropReason> {
        let version = header.version.clone().ok_or(DropReason::UnknownKey)?;
        // A group of several has other keys since; a replayed view must not bring one back.
        let is_replayed = !self.is_alone() && self.ring.is_retired(&version);
        let of_merge = self.merges.key_for_messages(cx.now());
        let is_known = self.ring.is_current(&version)
            || of_merge.is_some_and(|own| own.key.has_version(&version) && own.sender == *src);
        if is_known || is_replayed || cx.is_local(src) || !self.may_bring_key(kind, src) {
            return self.decrypt(cx, &header, message).map(|()| Received::Readable);
        }
        if !self.pending.has_room_for(message) {
            return Err(DropReason::QueueFull);
        }
        if self.pending.begin(cx.now(), &version)? {
            let server = match &header.server {
                Some(Address::Ip(server)) => Some(*server),
                _ => None,
            };
            let key_length = self.config.sym_keylength as usize / 8;
            let request = KeyRequest { version: version.clone(), server, sender: src.clone(), key_length };
            cx.lower(Event::FetchSecretKey(Box::new(request)));
        }
        let message = std::mem::replace(message, Message::empty(None));
        self.pending.messages.push(Waiting { version, kind, header, message });
        Ok(Received::Waits)
    }

    /// The exchange has a result: the messages that wait for it are delivered or discarded.
    pub(super) fn key_fetched(&mut self, cx: &mut Cx<'_>, version: &Bytes, key: Result<&SecretKey, &String>) {
        for Waiting { kind, header, mut message, .. } in self.pending.take(version) {
            let read = key
                .map_err(|_| DropReason::UnknownKey)
                .and_then(|key| self.read_with(cx, key, kind, &header, &mut message));
            match read {
                Ok(()) => cx.deliver(message),
                Err(why) => self.reject(cx, &message, why),
            }
        }
    }

    fn read_with(
        &mut self,
        cx: &mut Cx<'_>,
        key: &SecretKey,
        kind: GmsKind,
        header: &EncryptHeader,
        message: &mut Message,
    ) -> Result<(), DropReason> {
        // Meanwhile another message may have brought the key, or the sender may have left.
        let src = message.src.clone().ok_or(DropReason::Malformed)?;
        let version = key.version();
        if self.ring.is_current(&version) || !self.may_bring_key(kind, &src) {
            return self.decrypt(cx, header, message);
        }
        let key = SharedKey::new(key.bytes().to_vec(), self.mode).map_err(|_| DropReason::UnknownKey)?;
        self.install(cx, key, kind, header, message)
    }

    // --- messages towards the network ---

    /// Members without the current key fetch it. Returns false if the message must not be sent.
    pub(super) fn send_external(&mut self, cx: &mut Cx<'_>, kind: GmsKind, message: &mut Message) -> bool {
        if !self.is_fetch_due(cx, kind, message) {
            return self.encrypt(cx, message);
        }
        // The exchange below adds the address of this member's own server.
        let is_coordinator = self.view.as_ref().and_then(View::coordinator) == Some(cx.local());
        let server = self.key_server.clone().filter(|_| !is_coordinator);
        let Some(key) = self.ring.current() else { return drop_without_key(cx) };
        let sent = key.cipher().encrypt(cx, &mut self.vectors, message).map(|header| {
            let header = EncryptHeader { kind: FETCH_KEY, server, ..header };
            message.headers.put(ID, HeaderBody::Encrypt(Box::new(header)));
        });
        self.note_sent(cx, sent)
    }

    fn is_fetch_due(&mut self, cx: &mut Cx<'_>, kind: GmsKind, message: &Message) -> bool {
        match (kind, &message.dest) {
            (GmsKind::View, Some(dest)) => self.is_member(dest),
            (GmsKind::View, None) if !is_retransmission(message) => self.has_new_key(cx),
            _ => true,
        }
    }
}
