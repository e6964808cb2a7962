//! An external exchange of keys: a protocol below fetches the key that a message names (facts section 22.4).
//!
//! Join requests and merge responses go in clear. Join responses, merge views, and views with a new key name the server of the
//! key. JGroups' member fetches the key before it handles the next message; here such messages wait for their key, and others
//! go on. Layers above order and repeat them.

use bytes::Bytes;

use super::down::{drop_without_key, is_retransmission};
use super::key_ring::SharedKey;
use super::{AsymEncrypt, ID, Received};
use crate::protocols::encrypt::FETCH_KEY;
use crate::wire;
use crate::{
    Address, CountPerSecond, Cx, DropReason, EncryptHeader, Event, GmsKind, HeaderBody, KeyRequest, Message,
    Payload, SecretKey, Time, View,
};

/// The keys that are fetched at once. A group has one new key at a time, and a merge another. One more ends the oldest fetch,
/// because a forged message can name a server that never answers.
const PENDING_KEYS_MAX: usize = 4;
/// The messages that wait for keys; one more is discarded, and its sender repeats it.
const WAITING_MESSAGES_MAX: usize = 64;
/// With headers. A view of 4,096 members has less than 200 KiB.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The keys that are fetched in a second. Each costs a handshake, and a forged message can name any server.
const FETCHES_PER_SECOND_MAX: u32 = 10;

struct Waiting {
    /// The fetch that this message asks for. The one under way may be that of another message with the same version.
    request: KeyRequest,
    kind: GmsKind,
    header: EncryptHeader,
    message: Message,
    /// The bytes of the message with its headers.
    size: usize,
}

#[derive(Default)]
pub(super) struct PendingKeys {
    /// Of different versions, the oldest first.
    fetches: Vec<KeyRequest>,
    messages: Vec<Waiting>,
    begun: CountPerSecond,
}

impl PendingKeys {
    pub(super) const fn len(&self) -> usize {
        self.fetches.len()
    }

    fn has_room_for(&self, size: usize) -> bool {
        let bytes: usize = self.messages.iter().map(|waiting| waiting.size).sum();
        self.messages.len() < WAITING_MESSAGES_MAX && bytes + size <= WAITING_BYTES_MAX
    }

    fn is_fetching(&self, version: &Bytes) -> bool {
        self.fetches.iter().any(|own| own.version == *version)
    }

    /// Returns the messages of the fetch that ends for this one; the error is the reason that the key is not fetched.
    fn begin(&mut self, now: Time, request: &KeyRequest) -> Result<Vec<Waiting>, DropReason> {
        if !self.begun.try_add(now, FETCHES_PER_SECOND_MAX) {
            return Err(DropReason::QueueFull);
        }
        let ended = if self.fetches.len() < PENDING_KEYS_MAX {
            Vec::new()
        } else {
            let oldest = self.fetches.remove(0);
            self.take(&oldest.version)
        };
        self.fetches.push(request.clone());
        Ok(ended)
    }

    /// Returns the messages that a result decides about. A failure decides only if it is that of the fetch, not of an earlier one.
    fn end(&mut self, request: &KeyRequest, is_success: bool) -> Vec<Waiting> {
        let is_it = |own: &KeyRequest| own == request || is_success && own.version == request.version;
        let Some(at) = self.fetches.iter().position(is_it) else { return Vec::new() };
        self.fetches.remove(at);
        self.take(&request.version)
    }

    fn take(&mut self, version: &Bytes) -> Vec<Waiting> {
        self.messages.extract_if(.., |waiting| waiting.request.version == *version).collect()
    }
}

/// A copy, because a slice would keep the whole packet.
fn copy_of(message: &Message) -> Result<Message, DropReason> {
    // Other payloads are not encrypted, and a list of small messages would take more memory than its bytes.
    if !matches!(message.payload, Payload::Empty | Payload::Bytes(_) | Payload::Nio { .. }) {
        return Err(DropReason::Malformed);
    }
    let copy = wire::decode_typed(&wire::encode_typed(message)).map_err(|_| DropReason::Malformed)?;
    Ok(Message { transient: message.transient, credit: message.credit, ticket: message.ticket, ..copy })
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
        let is_possible = |version: &Bytes| version.len() == SecretKey::VERSION_LEN;
        let version = header.version.clone().filter(is_possible).ok_or(DropReason::UnknownKey)?;
        // A group of several has other keys since; a replayed view must not bring one back.
        let is_replayed = !self.is_alone() && self.ring.is_retired(&version);
        let of_merge = self.merges.key_for_messages(cx.now());
        let is_known = self.ring.is_current(&version)
            || of_merge.is_some_and(|own| own.key.has_version(&version) && own.sender == *src);
        if is_known || is_replayed || cx.is_local(src) || !self.may_bring_key(kind, src) {
            return self.decrypt(cx, &header, message).map(|()| Received::Readable);
        }
        message.headers.put(ID, HeaderBody::Encrypt(Box::new(header)));
        let size = wire::message_size(message, 0, None);
        if !self.pending.has_room_for(size) {
            return Err(DropReason::QueueFull);
        }
        let mut copy = copy_of(message)?;
        let Some(HeaderBody::Encrypt(header)) = copy.headers.take(ID) else {
            return Err(DropReason::Malformed);
        };
        let request = self.request(&header, &version, src);
        if !self.pending.is_fetching(&request.version) {
            self.fetch(cx, &request)?;
        }
        self.pending.messages.push(Waiting { request, kind, header: *header, message: copy, size });
        Ok(Received::Waits)
    }

    fn request(&self, header: &EncryptHeader, version: &[u8], src: &Address) -> KeyRequest {
        let server = match &header.server {
            Some(Address::Ip(server)) => Some(*server),
            _ => None,
        };
        KeyRequest {
            // A copy, too: the exchange may keep the request longer than this layer keeps the message.
            version: Bytes::copy_from_slice(version),
            server,
            sender: src.clone(),
            key_length: self.config.sym_keylength as usize / 8,
        }
    }

    /// The error is the reason that the key is not fetched.
    fn fetch(&mut self, cx: &mut Cx<'_>, request: &KeyRequest) -> Result<(), DropReason> {
        for ended in self.pending.begin(cx.now(), request)? {
            self.reject(cx, &ended.message, DropReason::QueueFull);
        }
        cx.lower(Event::FetchSecretKey(Box::new(request.clone())));
        Ok(())
    }

    /// The exchange has a result: the messages that wait for it are delivered or discarded. After a failure, those that name
    /// another server or have another sender begin again: the first one may have been forged.
    pub(super) fn key_fetched(&mut self, cx: &mut Cx<'_>, request: &KeyRequest, key: Option<&SecretKey>) {
        let messages = self.pending.end(request, key.is_some());
        let Some(key) = key else {
            let (failed, others): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|waiting| waiting.request == *request);
            for waiting in failed {
                self.reject(cx, &waiting.message, DropReason::UnknownKey);
            }
            return self.begin_again(cx, others);
        };
        for Waiting { kind, header, mut message, .. } in messages {
            match self.read_with(cx, key, kind, &header, &mut message) {
                Ok(()) => cx.deliver(message),
                Err(why) => self.reject(cx, &message, why),
            }
        }
    }

    fn begin_again(&mut self, cx: &mut Cx<'_>, messages: Vec<Waiting>) {
        let Some(next) = messages.first().map(|waiting| waiting.request.clone()) else { return };
        match self.fetch(cx, &next) {
            Ok(()) => self.pending.messages.extend(messages),
            Err(why) => messages.iter().for_each(|waiting| self.reject(cx, &waiting.message, why)),
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
