//! Messages from the network: which are decrypted, and which bring keys.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::key_ring::SharedKey;
use super::{AsymEncrypt, FAILED_DECRYPTIONS_MAX, ID, KeyOfMerge, Received, gms_header};
use crate::protocols::encrypt::message_cipher::MessageCipher;
use crate::wire::{self, MemberKeys, ViewForm};
use crate::{
    Address, Cx, DropReason, EncryptHeader, GmsKind, HeaderBody, Message, NakAckHeader, Payload, Severity,
    Transient, UnicastHeader, ViewId,
};

impl AsymEncrypt {
    /// The error is the reason to discard the message.
    pub(super) fn receive(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> Result<Received, DropReason> {
        let header = match message.headers.take(ID) {
            Some(HeaderBody::Encrypt(header)) => Some(*header),
            Some(_) => return Err(DropReason::Malformed),
            None => None,
        };
        let src = message.src.clone().ok_or(DropReason::Malformed)?;
        if message.is_multicast() && !self.is_member(&src) {
            return Err(DropReason::NotMember);
        }
        let gms = gms_header(message).map(|gms| (gms.kind, gms.merge_rejected));
        if let Some((GmsKind::MergeReq | GmsKind::MergeRsp, _)) = gms {
            // The connection's first message may be one that only the merge makes readable.
            message.transient |= Transient::BEFORE_CONNECTION;
        }
        if self.config.use_external_key_exchange
            && let Some((kind, _)) = gms
        {
            return self.receive_external(cx, kind, header, message, &src);
        }
        match (gms, header) {
            (Some((GmsKind::MergeReq | GmsKind::ViewAck, _)), _)
            | (Some((GmsKind::GetDigestReq | GmsKind::GetDigestRsp, _)), _)
            | (Some((GmsKind::MergeRsp, true)), None) => Ok(()),
            (_, None) => Err(DropReason::MissingHeader),
            (Some((kind, _)), Some(header)) if header.kind == 1 => {
                self.receive_with_keys(cx, kind, &header, message, &src)
            }
            (
                Some((GmsKind::JoinReq | GmsKind::JoinReqWithStateTransfer | GmsKind::MergeRsp, _)),
                Some(_),
            ) => Err(DropReason::MissingHeader),
            (_, Some(header)) if header.kind == 0 => self.decrypt(cx, &header, message),
            _ => Err(DropReason::Unexpected),
        }
        .map(|()| Received::Readable)
    }

    fn receive_with_keys(
        &mut self,
        cx: &mut Cx<'_>,
        kind: GmsKind,
        header: &EncryptHeader,
        message: &mut Message,
        src: &Address,
    ) -> Result<(), DropReason> {
        let block = message.payload_bytes().ok_or(DropReason::Malformed)?;
        let (keys, payload) = wire::decode_key_block(block).map_err(|_| DropReason::Malformed)?;
        message.payload = Payload::Bytes(Some(payload).filter(|payload| !payload.is_empty()));
        match kind {
            GmsKind::JoinReq | GmsKind::JoinReqWithStateTransfer => {
                // A joiner speaks for itself only.
                let own: Vec<&MemberKeys> = keys.iter().filter(|keys| keys.member == *src).collect();
                let [own] = own[..] else { return Err(DropReason::Malformed) };
                self.publics.learn(src, &own.public);
                Ok(())
            }
            GmsKind::MergeRsp => {
                if self.merges.asked.contains(src) {
                    self.learn(cx, &keys);
                }
                Ok(())
            }
            GmsKind::JoinRsp | GmsKind::View | GmsKind::InstallMergeView => {
                if self.may_bring_key(kind, src) {
                    self.learn(cx, &keys);
                    if let Some(key) = self.brought_key(cx, header, &keys) {
                        return self.install(cx, key, kind, header, message);
                    }
                }
                self.decrypt(cx, header, message)
            }
            _ => Err(DropReason::Unexpected),
        }
    }

    fn learn(&mut self, cx: &Cx<'_>, keys: &[MemberKeys]) {
        let others: BTreeMap<&Address, &Bytes> = keys
            .iter()
            .filter(|keys| !cx.is_local(&keys.member))
            .map(|keys| (&keys.member, &keys.public))
            .collect();
        others.into_iter().for_each(|(member, public)| self.publics.learn(member, public));
    }

    /// Whether a message may bring the shared key. A joiner accepts it from coordinators that it has asked, a member from
    /// members, and from the leader of a merge that it has agreed to. So a member that AUTH refuses, or that has not been
    /// asked, cannot replace the key.
    pub(super) fn may_bring_key(&self, kind: GmsKind, src: &Address) -> bool {
        match kind {
            GmsKind::View => self.is_member(src),
            GmsKind::JoinRsp => self.is_alone() && self.coordinators.contains(src),
            GmsKind::InstallMergeView => self.merges.leader.as_ref() == Some(src),
            _ => false,
        }
    }

    /// Returns the new key in this member's entry, if it is the key that the header names.
    fn brought_key(&mut self, cx: &Cx<'_>, header: &EncryptHeader, keys: &[MemberKeys]) -> Option<SharedKey> {
        let version = header.version.as_ref()?;
        // A group of several has other keys since; a replayed view must not bring one back.
        let is_replayed = !self.is_alone() && self.ring.is_retired(version);
        if self.ring.is_current(version) || is_replayed {
            return None;
        }
        let own = keys.iter().find(|keys| cx.is_local(&keys.member) && !keys.shared.is_empty())?;
        if !self.failed_decryptions.has_fewer(cx.now(), FAILED_DECRYPTIONS_MAX) {
            return None;
        }
        let bytes = self.pair.decrypt(self.vectors.source(), &own.shared);
        // Wrong padding gives random bytes, whose length or version does not fit.
        let key = bytes.and_then(|bytes| SharedKey::new(bytes.to_vec(), self.mode).ok());
        let key = key.filter(|key| key.has_version(version));
        if key.is_none() {
            self.failed_decryptions.add();
        }
        key
    }

    /// A key that does not decrypt the message is not installed.
    pub(super) fn install(
        &mut self,
        cx: &mut Cx<'_>,
        key: SharedKey,
        kind: GmsKind,
        header: &EncryptHeader,
        message: &mut Message,
    ) -> Result<(), DropReason> {
        key.cipher().decrypt(header, message)?;
        let view = view_id(kind, message);
        let sender = message.src.clone().ok_or(DropReason::Malformed)?;
        let version = super::hex(key.cipher().version());
        let server = header.server.clone();
        match kind {
            // GMS, or AUTH, may ignore the message; then the group keeps its key.
            GmsKind::InstallMergeView => {
                let view = view.ok_or(DropReason::Malformed)?;
                // An earlier merge's view that is sent again has its leader's current key, too.
                let is_later = |own: &KeyOfMerge| own.sender == sender && own.view.id > view.id;
                if self.merges.key.as_ref().is_some_and(is_later) {
                    return Ok(());
                }
                self.merges.key = Some(KeyOfMerge { since: cx.now(), view, key, sender, server });
            }
            GmsKind::JoinRsp if self.view.is_some() => match view {
                Some(view) => {
                    self.merges.key = Some(KeyOfMerge { since: cx.now(), view, key, sender, server });
                }
                // A refusal has a key for itself alone.
                None => return Ok(()),
            },
            // Views may arrive out of order, and an attacker may hold one back: the key of a later view stays.
            GmsKind::View
                if view.as_ref().zip(self.key_view.as_ref()).is_some_and(|(new, own)| new.id < own.id) =>
            {
                return Ok(());
            }
            _ => {
                self.set_key(cx, key, server);
                self.key_view = view.or_else(|| self.key_view.take());
            }
        }
        tracing::debug!(version, ?kind, "received a new shared key");
        self.received_keys += 1;
        self.decrypted += 1;
        Ok(())
    }

    pub(super) fn decrypt(
        &mut self,
        cx: &Cx<'_>,
        header: &EncryptHeader,
        message: &mut Message,
    ) -> Result<(), DropReason> {
        let version = header.version.as_ref().ok_or(DropReason::UnknownKey)?;
        let is_current = self.ring.is_current(version);
        // A former member has the former keys.
        let is_member = !is_current && message.src.as_ref().is_some_and(|src| self.is_member(src));
        let cipher = if is_current || is_member { self.ring.find(cx.now(), version) } else { None };
        match cipher.or_else(|| cipher_of_merge(self.merges.key_for_messages(cx.now()), version, message)) {
            Some(cipher) => cipher.decrypt(header, message)?,
            None if passes_with_unknown_key(message, is_member) => return Ok(()),
            None => return Err(DropReason::UnknownKey),
        }
        self.decrypted += 1;
        Ok(())
    }

    pub(super) fn reject(&mut self, cx: &mut Cx<'_>, message: &Message, why: DropReason) {
        cx.absorb(message);
        // Around a join and a change of the key, some messages come before the key or the view that they need.
        let is_expected = matches!(why, DropReason::NotMember | DropReason::UnknownKey)
            && (self.is_alone() || self.pending.len() > 0);
        let severity = if is_expected { Severity::Expected } else { Severity::Unexpected };
        self.rejected += u64::from(!is_expected);
        let text = match why {
            DropReason::MissingHeader => {
                "is not encrypted: all members need ASYM_ENCRYPT with the same use_external_key_exchange"
            }
            DropReason::Unexpected => {
                "brings keys in another way: use_external_key_exchange differs among members"
            }
            DropReason::QueueFull => "waits for a key, and too many messages and keys do so already",
            DropReason::UnknownKey => "is encrypted with a key that this member does not have",
            DropReason::NotMember => "is a multicast of a member outside the view",
            _ => "cannot be decrypted: it is damaged, or sym_algorithm differs among members",
        };
        cx.count_drop_of(why, severity, |book| {
            let src = message.src.as_ref().map_or_else(|| "?".to_owned(), |src| book.member(src).to_string());
            format!("message from {src} {text}")
        });
    }
}

/// Returns the cipher of a merge whose view has not been installed.
///
/// A merge leader's merge view waits behind its earlier unicast messages. This member has rejected them, because it did not
/// have the key of the leader's group; now the leader encrypts them with the merge's key.
fn cipher_of_merge<'a>(
    of_merge: Option<&'a KeyOfMerge>,
    version: &[u8],
    message: &Message,
) -> Option<&'a MessageCipher> {
    let KeyOfMerge { key, sender, .. } = of_merge?;
    (message.src.as_ref() == Some(sender) && key.has_version(version)).then(|| key.cipher())
}

/// Returns the view that a decrypted message brings.
fn view_id(kind: GmsKind, message: &Message) -> Option<ViewId> {
    let bytes = message.payload_bytes()?;
    if kind == GmsKind::JoinRsp {
        return wire::decode_join_rsp(bytes).ok()?.view.map(|view| view.id().clone());
    }
    match wire::decode_view_and_digest(bytes).ok()?.0? {
        ViewForm::Full(view) => Some(view.id().clone()),
        ViewForm::Delta(delta) => Some(delta.id.clone()),
    }
}

/// Whether a message without payload, which no key encrypts, passes with an unknown version.
///
/// The last number of a member's multicasts shows that one is missing, perhaps the view with the new key; only this makes
/// the layers above request it. Acknowledgements and requests for the first message keep connections between groups
/// with different keys alive, so that the plain messages of a merge arrive.
fn passes_with_unknown_key(message: &Message, is_member: bool) -> bool {
    let is_multicast = message.is_multicast();
    !super::has_payload(&message.payload)
        && message.headers.0.iter().any(|header| match &header.body {
            HeaderBody::Gms(header) => header.kind == GmsKind::CancelMerge,
            HeaderBody::NakAck2(header) | HeaderBody::NakAck4(header) => {
                is_multicast && is_member && matches!(header, NakAckHeader::HighestSeqno { .. })
            }
            HeaderBody::Unicast3(header) | HeaderBody::Unicast4(header) => {
                !is_multicast
                    && matches!(header, UnicastHeader::Ack { .. } | UnicastHeader::SendFirstSeqno { .. })
            }
            _ => false,
        })
}
