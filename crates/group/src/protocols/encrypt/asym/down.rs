//! Messages towards the network: which are encrypted, and which carry keys.

use bytes::Bytes;

use super::key_pair::encrypt_for;
use super::key_ring::SharedKey;
use super::public_keys::PublicKeys;
use super::{AsymEncrypt, ID, SealedKeys, gms_header, note_asked};
use crate::protocols::encrypt::message_cipher::Vectors;
use crate::wire::{self, JoinRsp, MemberKeys, ViewForm};
use crate::{
    Address, Cx, DropReason, EncryptHeader, GmsKind, HeaderBody, Message, NakAckHeader, Payload, Severity,
};

/// The key changes that wait for the next view message. Messages before it are encrypted with the former key, which all
/// members have; the response to a leaver is among them.
#[derive(Default)]
pub(super) struct Due {
    /// The next view needs a new key.
    pub(super) key: bool,
    /// The next view carries the shared key for all members.
    pub(super) distribution: bool,
}

/// The members for which a message carries the shared key.
enum Receivers<'a> {
    NoMember,
    One(&'a Address),
    All,
}

impl Receivers<'_> {
    fn has(&self, member: &Address) -> bool {
        match self {
            Self::NoMember => false,
            Self::One(one) => *one == member,
            Self::All => true,
        }
    }
}

impl AsymEncrypt {
    /// Returns false if it must not be sent.
    pub(super) fn send(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        let Some(gms) = gms_header(message) else { return self.send_encrypted(cx, message) };
        let dest = message.dest.clone();
        let is_external = self.config.use_external_key_exchange;
        match gms.kind {
            GmsKind::JoinReq | GmsKind::JoinReqWithStateTransfer => {
                dest.iter().for_each(|dest| note_asked(&mut self.coordinators, dest));
                let own = cx.local().clone();
                is_external || self.send_with_public_keys(&[own], message)
            }
            GmsKind::MergeRsp if !gms.merge_rejected => {
                self.merges.leader = dest;
                let members = self.members();
                is_external || self.send_with_public_keys(&members, message)
            }
            GmsKind::MergeReq => {
                dest.iter().for_each(|dest| note_asked(&mut self.merges.asked, dest));
                true
            }
            GmsKind::MergeRsp | GmsKind::ViewAck | GmsKind::GetDigestReq | GmsKind::GetDigestRsp => true,
            // A refused joiner reads the reason with the group's key if it has a certificate that SSL_KEY_EXCHANGE trusts. With
            // DH_KEY_EXCHANGE, which answers only members of the view, it cannot read it.
            kind @ (GmsKind::JoinRsp | GmsKind::View) if is_external => self.send_external(cx, kind, message),
            GmsKind::JoinRsp => self.send_join_rsp(cx, message),
            GmsKind::View => self.send_view(cx, message),
            GmsKind::InstallMergeView if dest.as_ref() != Some(cx.local()) => {
                if self.merges.note_led(gms.merge_id.clone().as_ref()) {
                    self.make_key(cx);
                }
                match is_external {
                    true => self.send_external(cx, GmsKind::InstallMergeView, message),
                    false => self.send_merge_view(cx, message),
                }
            }
            GmsKind::LeaveRsp => self.encrypt(cx, message),
            _ => self.send_encrypted(cx, message),
        }
    }

    /// A member that is alone sends no view, so that its new key is due with the next message.
    fn send_encrypted(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        if self.due.key && self.is_alone() {
            self.make_key(cx);
        }
        self.encrypt(cx, message)
    }

    fn send_join_rsp(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        let rsp = message.payload_bytes().and_then(|bytes| wire::decode_join_rsp(bytes).ok());
        let Some(dest) = message.dest.clone() else { return self.encrypt(cx, message) };
        match rsp {
            Some(JoinRsp { fail_reason: None, view: Some(view), .. }) if view.contains(&dest) => {
                let mut members = self.members();
                if !members.contains(&dest) {
                    members.push(dest.clone());
                }
                self.send_with_keys(cx, message, &members, &Receivers::One(&dest))
            }
            // A refused joiner must not get the key, and has to read the reason: it gets a key for this message alone.
            _ => {
                let sent = self.random_key().and_then(|key| {
                    let Self { publics, vectors, .. } = self;
                    let members = std::slice::from_ref(&dest);
                    let to = Recipients { publics, members, receivers: &Receivers::One(&dest) };
                    encrypt_with_keys(cx, &key, &mut SealedKeys::default(), vectors, message, &to)
                });
                self.note_sent(cx, sent)
            }
        }
    }

    fn send_view(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        let members = self.members();
        if let Some(dest) = message.dest.clone() {
            // The member has missed the view, and with it perhaps the key.
            let receivers = if self.is_member(&dest) { Receivers::One(&dest) } else { Receivers::NoMember };
            return self.send_with_keys(cx, message, &members, &receivers);
        }
        if is_retransmission(message) {
            return self.send_with_keys(cx, message, &members, &Receivers::All);
        }
        let receivers = if self.has_new_key(cx) { Receivers::All } else { Receivers::NoMember };
        self.send_with_keys(cx, message, &members, &receivers)
    }

    /// Returns whether the view that is to be sent brings a key, which is made if it is due.
    pub(super) fn has_new_key(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.due.key {
            self.make_key(cx);
        }
        std::mem::take(&mut self.due.distribution)
    }

    /// Only the merged group's members get the key, not all whose public key is known.
    fn send_merge_view(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        let view = message.payload_bytes().and_then(|bytes| wire::decode_view_and_digest(bytes).ok());
        let members = match view {
            Some((Some(ViewForm::Full(view)), _)) => view.members().to_vec(),
            _ => Vec::new(),
        };
        self.send_with_keys(cx, message, &members, &Receivers::All)
    }

    fn members(&self) -> Vec<Address> {
        self.view.as_ref().map(|view| view.members().to_vec()).unwrap_or_default()
    }

    fn send_with_public_keys(&mut self, members: &[Address], message: &mut Message) -> bool {
        let version = self.ring.current().map(|key| key.cipher().version().clone());
        let own = |member: &Address| self.publics.of(member).cloned();
        let keys = members.iter().filter_map(|member| {
            // A joiner has no view, so that its own key is not among the members'.
            let public = own(member).or_else(|| self.view.is_none().then(|| self.pair.public().clone()))?;
            Some(MemberKeys { member: member.clone(), public, shared: Bytes::new() })
        });
        let keys: Vec<MemberKeys> = keys.collect();
        let header = EncryptHeader { kind: 1, needs_deserialization: false, version, server: None, iv: None };
        put_keys(message, &keys, header);
        true
    }

    fn send_with_keys(
        &mut self,
        cx: &mut Cx<'_>,
        message: &mut Message,
        members: &[Address],
        receivers: &Receivers<'_>,
    ) -> bool {
        let Self { ring, sealed, publics, vectors, .. } = self;
        let Some(key) = ring.current() else { return drop_without_key(cx) };
        let to = Recipients { publics, members, receivers };
        let sent = encrypt_with_keys(cx, key, sealed, vectors, message, &to);
        self.note_sent(cx, sent)
    }

    pub(super) fn encrypt(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        let of_merge = self.merges.key_for_messages(cx.now());
        let of_merge = of_merge.filter(|key| message.dest.as_ref() == Some(&key.sender));
        let key = of_merge.map(|key| &key.key).or_else(|| self.ring.current());
        let Some(key) = key else { return drop_without_key(cx) };
        let sent = key.cipher().encrypt(cx, &mut self.vectors, message).map(|header| {
            message.headers.put(ID, HeaderBody::Encrypt(Box::new(header)));
        });
        self.note_sent(cx, sent)
    }

    pub(super) fn note_sent(&mut self, cx: &mut Cx<'_>, sent: Result<(), String>) -> bool {
        match sent {
            Ok(()) => self.encrypted += 1,
            Err(why) => {
                self.rejected += 1;
                cx.count_drop(DropReason::Unexpected, |_| format!("no random bytes: {why}"));
                return false;
            }
        }
        true
    }
}

/// A message of a layer above is sent again once the key has come.
pub(super) fn drop_without_key(cx: &mut Cx<'_>) -> bool {
    cx.count_drop_of(DropReason::UnknownKey, Severity::Expected, |_| {
        "message that was to be sent before the shared key has come".to_owned()
    });
    false
}

/// The members whose public keys a message carries, and those for which it carries the shared key.
struct Recipients<'a> {
    publics: &'a PublicKeys,
    members: &'a [Address],
    receivers: &'a Receivers<'a>,
}

fn encrypt_with_keys(
    cx: &Cx<'_>,
    key: &SharedKey,
    sealed: &mut SealedKeys,
    vectors: &mut Vectors,
    message: &mut Message,
    to: &Recipients<'_>,
) -> Result<(), String> {
    let header = key.cipher().encrypt(cx, vectors, message)?;
    let Recipients { publics, members, receivers } = *to;
    let mut keys = Vec::new();
    for member in members {
        let public = publics.of(member).cloned().unwrap_or_default();
        let shared = match receivers.has(member) {
            true => sealed.of(key.cipher().version(), member, &public, |public| {
                encrypt_for(public, vectors.source(), key.bytes()).unwrap_or_default()
            }),
            false => Bytes::new(),
        };
        if shared.is_empty() && receivers.has(member) {
            let name = cx.shared().book.member(member);
            tracing::warn!(member = %name, "this member's public key is unknown or unusable: it gets no shared key");
        }
        if !public.is_empty() {
            keys.push(MemberKeys { member: member.clone(), public, shared });
        }
    }
    put_keys(message, &keys, EncryptHeader { kind: 1, ..header });
    Ok(())
}

/// The keys come in front of the payload.
fn put_keys(message: &mut Message, keys: &[MemberKeys], header: EncryptHeader) {
    let bytes = wire::encode_key_block(keys, message.payload_bytes().map_or(&[], |bytes| bytes));
    message.payload = Payload::Bytes(Some(bytes));
    message.headers.put(ID, HeaderBody::Encrypt(Box::new(header)));
}

pub(super) fn is_retransmission(message: &Message) -> bool {
    message.headers.0.iter().any(|header| {
        matches!(header.body, HeaderBody::NakAck2(NakAckHeader::XmitRsp { .. }))
            || matches!(header.body, HeaderBody::NakAck4(NakAckHeader::XmitRsp { .. }))
    })
}
