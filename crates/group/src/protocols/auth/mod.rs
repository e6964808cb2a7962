//! AUTH: joiners, merging groups and coordinators prove that they belong to the cluster.
//!
//! The layer, directly below GMS, adds a token to join and merge requests and checks received ones (facts section
//! 22.5). A refused joiner gets the reason, a refused merge a rejection.
//!
//! Tokens can be read and sent again by everyone on the network, and members claim their own physical addresses. So AUTH only keeps wrongly configured
//! members out. Against attackers a cluster needs SYM_ENCRYPT or TLS.

mod certificate_token;
mod token;

pub use self::certificate_token::CertificateKey;
use self::certificate_token::Unaccepted;
use self::token::AuthToken;
pub use self::token::{AuthTokenConfig, TokenConfig, TokenSources};
use crate::wire::{self, JoinRsp};
use crate::{
    Address, AuthHeader, Cx, DropReason, Flags, GmsHeader, GmsKind, HeaderBody, HeaderIds, Message,
    MessageBatch, Payload, ProbeOut, Protocol, ProtocolId, StackCount,
};

crate::properties! {
    /// AUTH's properties.
    AuthConfig {
        /// The Java class of the token: `org.jgroups.auth.FixedMembershipToken`,
        /// `org.jgroups.auth.RegexMembership` or `org.jgroups.auth.X509Token`.
        auth_class: String = String::new(),
        /// Whether a coordinator's answers to joiners and its part in merges are authenticated, too.
        auth_coord: bool = true,
    }
}

/// JGroups' text.
const FAILED: &str = "authentication failed";
const NO_HEADER: &str = "no AUTH header found in message";

/// The AUTH layer.
pub struct Auth {
    config: AuthConfig,
    token_config: AuthTokenConfig,
    token: AuthToken,
    accepted: u64,
    refused: u64,
}

impl Auth {
    /// Creates the layer. The error is the unusable attribute and a text for the operator.
    pub fn new(
        config: AuthConfig,
        token_config: AuthTokenConfig,
        sources: &mut dyn TokenSources,
    ) -> Result<Self, (&'static str, String)> {
        let token = AuthToken::new(&config.auth_class, &token_config.0, sources)?;
        Ok(Self { config, token_config, token, accepted: 0, refused: 0 })
    }

    fn authenticated_kind(&self, message: &Message) -> Option<GmsKind> {
        let Some(HeaderBody::Gms(header)) = message.headers.get(ProtocolId::GMS) else { return None };
        let is_needed = match header.kind {
            GmsKind::JoinReq | GmsKind::JoinReqWithStateTransfer | GmsKind::MergeReq => true,
            GmsKind::JoinRsp => self.config.auth_coord && !is_refusal(message),
            GmsKind::MergeRsp | GmsKind::InstallMergeView => self.config.auth_coord,
            _ => false,
        };
        is_needed.then_some(header.kind)
    }

    /// Returns false if it must not pass.
    fn admit(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        let header = message.headers.take(ProtocolId::AUTH);
        let Some(kind) = self.authenticated_kind(message) else { return true };
        let Some(src) = message.src.clone() else {
            cx.discard(message, DropReason::Malformed);
            return false;
        };
        let (why, answer) = match header {
            Some(HeaderBody::Auth(header)) => {
                match self.token.check(cx.now(), &cx.shared().book, &src, &header) {
                    Ok(()) => {
                        self.accepted += 1;
                        return true;
                    }
                    Err(Unaccepted::Refused(why)) => (why, Some(FAILED)),
                    Err(Unaccepted::Deferred(why)) => (why, None),
                }
            }
            _ => ("it has no token".to_owned(), Some(NO_HEADER)),
        };
        self.refused += 1;
        cx.absorb(message);
        cx.count_drop(DropReason::NotAuthenticated, |book| {
            format!("{kind:?} of {}, because {why}", book.member(&src))
        });
        if let Some(answer) = answer {
            self.reject(cx, kind, src, answer);
        }
        false
    }

    fn reject(&self, cx: &mut Cx<'_>, kind: GmsKind, to: Address, why: &str) {
        let gms = |kind, merge_rejected| {
            HeaderBody::Gms(Box::new(GmsHeader { kind, member: None, merge_id: None, merge_rejected }))
        };
        let mut message = match kind {
            GmsKind::JoinReq | GmsKind::JoinReqWithStateTransfer => {
                let rsp = JoinRsp { view: None, digest: None, fail_reason: Some(why.to_owned()) };
                let payload = Payload::Bytes(Some(wire::encode_join_rsp(&rsp)));
                Message::new(Some(to), payload).with_header(ProtocolId::GMS, gms(GmsKind::JoinRsp, false))
            }
            GmsKind::MergeReq => {
                let mut message = Message::empty(Some(to))
                    .with_flags(Flags::OOB)
                    .with_header(ProtocolId::GMS, gms(GmsKind::MergeRsp, true));
                if self.config.auth_coord {
                    message.headers.put(ProtocolId::AUTH, self.header());
                }
                message
            }
            _ => return,
        };
        message.src = Some(cx.local().clone());
        cx.send(message);
    }

    fn header(&self) -> HeaderBody {
        let header: AuthHeader = self.token.header();
        HeaderBody::Auth(Box::new(header))
    }
}

fn is_refusal(message: &Message) -> bool {
    let rsp = message.payload_bytes().map(wire::decode_join_rsp);
    matches!(rsp, Some(Ok(JoinRsp { fail_reason: Some(_), .. })))
}

impl Protocol for Auth {
    fn name(&self) -> &'static str {
        "AUTH"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::AUTH
    }

    fn down(&mut self, _cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        for message in &mut batch.messages {
            if self.authenticated_kind(message).is_some() {
                message.headers.put(ProtocolId::AUTH, self.header());
            }
        }
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(ProtocolId::GMS)
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| self.admit(cx, message));
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::RejectedMessages, self.refused)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put_all(&self.token_config);
        out.put("token", self.token.class());
        out.put("num_accepted", self.accepted);
        out.put("num_refused", self.refused);
    }
}

#[cfg(test)]
mod tests;
