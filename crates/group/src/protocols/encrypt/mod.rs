//! SYM_ENCRYPT: payloads are encrypted with a key that all members share.
//!
//! The layer is below NAKACK and UNICAST, so retransmissions pass it, too. Headers of layers above stay readable,
//! unless the payload is no byte array: then the whole message is encrypted into the payload of a new one. The format
//! has no authentication code: a changed cipher text decrypts to other bytes, and only wrong padding shows it (facts
//! section 22.2).
//!
//! Messages without the layer's header, or of another key, are discarded.

mod cipher;
mod key;

use bytes::Bytes;
use md5::{Digest as _, Md5};

use self::cipher::{BLOCK, Cipher, Mode};
pub use self::key::{RandomBytes, SecretKey};
use crate::config::Password;
use crate::wire;
use crate::{
    Cx, DropReason, EncryptHeader, HeaderBody, Message, MessageBatch, Object, Payload, ProbeOut, Protocol,
    ProtocolId, StackCount,
};

crate::properties! {
    /// SYM_ENCRYPT's properties.
    SymEncryptConfig {
        /// The cipher as a Java transformation: `AES/CBC/PKCS5Padding`, `AES/CTR/NoPadding`, or
        /// `AES/ECB/PKCS5Padding`, for which `AES` stands.
        sym_algorithm: String = "AES".to_owned(),
        /// The length of the initialization vector in bytes: 16, or 0 with ECB.
        sym_iv_length: u32 = 0,
        /// The file with the key.
        keystore_name: String = String::new(),
        /// The format of the file: `PKCS12`, `JCEKS`, `JKS`, or `RAW` for the key's bytes or hexadecimal
        /// digits. The reader detects the first three by the file's content.
        keystore_type: String = "JCEKS".to_owned(),
        /// The password of the file. If not set, `changeit`.
        store_password: Password = Password::new("changeit"),
        /// The password of the key. If not set, that of the file.
        key_password: Password = Password::new(""),
        /// The name of the key in the file.
        alias: String = "mykey".to_owned(),
    }
}

impl SymEncryptConfig {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The attribute that is unknown or contradicts another, and a text for the operator.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let mode = Mode::parse(&self.sym_algorithm).map_err(|why| ("sym_algorithm", why))?;
        let length = self.sym_iv_length;
        if mode.has_iv() && length as usize != BLOCK {
            let why = format!("sym_algorithm ({}) needs sym_iv_length=\"16\"", self.sym_algorithm);
            return Err(("sym_iv_length", format!("{why}, not {length}")));
        }
        if !mode.has_iv() && length != 0 {
            let why =
                format!("sym_iv_length ({length}) has to be 0 with sym_algorithm ({})", self.sym_algorithm);
            return Err(("sym_iv_length", format!("{why}, or use AES/CBC/PKCS5Padding")));
        }
        if self.keystore_name.trim().is_empty() {
            let why = "keystore_name is missing: name the file with the key that all members share";
            return Err(("keystore_name", why.to_owned()));
        }
        Ok(())
    }

    /// Returns the key's password.
    pub fn password_of_key(&self) -> &Password {
        if self.key_password.is_empty() { &self.store_password } else { &self.key_password }
    }
}

/// The bytes requested at once; each is used once.
const RANDOM_BYTES: usize = 64 * BLOCK;

/// Random bytes come in larger pieces because a request is a system call.
struct Vectors {
    source: Box<dyn RandomBytes>,
    bytes: Bytes,
}

impl Vectors {
    fn next(&mut self) -> Result<Bytes, String> {
        if self.bytes.len() < BLOCK {
            let mut bytes = vec![0; RANDOM_BYTES];
            self.source.fill(&mut bytes)?;
            self.bytes = bytes.into();
        }
        Ok(self.bytes.split_to(BLOCK))
    }
}

/// The SYM_ENCRYPT layer.
pub struct SymEncrypt {
    config: SymEncryptConfig,
    cipher: Cipher,
    /// The key's MD5, by which receivers recognise it.
    version: Bytes,
    vectors: Vectors,
    encrypted: u64,
    decrypted: u64,
    rejected: u64,
}

impl SymEncrypt {
    /// Creates the layer.
    ///
    /// # Errors
    ///
    /// The attribute that cannot be used, and a text for the operator.
    pub fn new(
        config: SymEncryptConfig,
        key: &SecretKey,
        random: Box<dyn RandomBytes>,
    ) -> Result<Self, (&'static str, String)> {
        config.check()?;
        let mode = Mode::parse(&config.sym_algorithm).map_err(|why| ("sym_algorithm", why))?;
        let cipher = Cipher::new(key, mode).map_err(|why| ("keystore_name", why))?;
        let version = Bytes::copy_from_slice(&Md5::digest(key.bytes()));
        let vectors = Vectors { source: random, bytes: Bytes::new() };
        Ok(Self { config, cipher, version, vectors, encrypted: 0, decrypted: 0, rejected: 0 })
    }

    /// Returns false if it must not be sent.
    fn encrypt(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        let iv = if self.cipher.mode().has_iv() {
            match self.vectors.next() {
                Ok(iv) => Some(iv),
                Err(why) => {
                    self.rejected += 1;
                    cx.count_drop(DropReason::Unexpected, |_| format!("no initialization vector: {why}"));
                    return false;
                }
            }
        } else {
            None
        };
        let mut needs_deserialization = false;
        let vector = iv.as_deref().unwrap_or_default();
        match &mut message.payload {
            payload if !has_payload(payload) => {}
            Payload::Bytes(Some(bytes)) | Payload::Nio { direct: false, bytes: Some(bytes) } => {
                if !bytes.is_empty() {
                    *bytes = self.cipher.encrypt(vector, bytes).into();
                }
            }
            _ => {
                message.src.get_or_insert_with(|| cx.local().clone());
                let text = self.cipher.encrypt(vector, &wire::encode_typed(message));
                let envelope = Message::bytes(message.dest.clone(), text);
                let (transient, ticket, credit) = (message.transient, message.ticket, message.credit);
                *message = Message { transient, ticket, credit, ..envelope };
                needs_deserialization = true;
            }
        }
        let version = Some(self.version.clone());
        let header = EncryptHeader { kind: 0, needs_deserialization, version, server: None, iv };
        message.headers.put(ProtocolId::SYM_ENCRYPT, HeaderBody::Encrypt(Box::new(header)));
        self.encrypted += 1;
        true
    }

    /// The error is the reason to discard it.
    fn decrypt(&self, message: &mut Message) -> Result<(), DropReason> {
        let Some(HeaderBody::Encrypt(header)) = message.headers.take(ProtocolId::SYM_ENCRYPT) else {
            return Err(DropReason::MissingHeader);
        };
        if header.kind != 0 {
            return Err(DropReason::Unexpected);
        }
        if header.version.as_ref() != Some(&self.version) {
            return Err(DropReason::UnknownKey);
        }
        if !has_payload(&message.payload) {
            return Ok(());
        }
        let (Payload::Bytes(Some(bytes)) | Payload::Nio { bytes: Some(bytes), .. }) = &mut message.payload
        else {
            return Err(DropReason::Malformed);
        };
        if !bytes.is_empty() {
            let plain = self.cipher.decrypt(header.iv.as_deref().unwrap_or_default(), bytes);
            *bytes = plain.map_err(|_| DropReason::Malformed)?.into();
        }
        if header.needs_deserialization {
            let mut inner = wire::decode_typed(bytes).map_err(|_| DropReason::Malformed)?;
            if inner.dest != message.dest {
                return Err(DropReason::WrongDestination);
            }
            inner.transient = message.transient;
            inner.credit = message.credit;
            if inner.src.is_none() {
                inner.src.clone_from(&message.src);
            }
            *message = inner;
        }
        Ok(())
    }

    fn reject(&mut self, cx: &mut Cx<'_>, message: &Message, why: DropReason) {
        self.rejected += 1;
        cx.absorb(message);
        let what = match why {
            DropReason::MissingHeader => "is not encrypted: all members need SYM_ENCRYPT with the same key",
            DropReason::UnknownKey => {
                "is encrypted with another key: compare `version` of SYM_ENCRYPT at all members"
            }
            _ => "cannot be decrypted: it is damaged, or sym_algorithm differs among members",
        };
        cx.count_drop(why, |book| {
            let src = message.src.as_ref().map_or_else(|| "?".to_owned(), |src| book.member(src).to_string());
            format!("message from {src} {what}")
        });
    }
}

/// As JGroups: null and no payload are not encrypted.
fn has_payload(payload: &Payload) -> bool {
    match payload {
        Payload::Empty => false,
        Payload::Bytes(bytes) | Payload::Nio { bytes, .. } => bytes.is_some(),
        Payload::Object(object) => **object != Object::Null,
        Payload::Composite(messages) => !messages.is_empty(),
        Payload::Batch(batch) => !batch.messages.is_empty(),
        Payload::Long(_) | Payload::Fragment(_) => true,
    }
}

impl Protocol for SymEncrypt {
    fn name(&self) -> &'static str {
        "SYM_ENCRYPT"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::SYM_ENCRYPT
    }

    fn start(&mut self, _cx: &mut Cx<'_>) {
        if self.cipher.mode() == Mode::Ecb {
            tracing::warn!(
                sym_algorithm = self.config.sym_algorithm,
                "equal blocks of payloads are encrypted to equal blocks; \
                 set sym_algorithm=\"AES/CBC/PKCS5Padding\" and sym_iv_length=\"16\" at all members"
            );
        }
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| self.encrypt(cx, message));
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let mut decrypted: Vec<Message> = Vec::with_capacity(batch.len());
        let mut others = Vec::new();
        for mut message in batch.messages.drain(..) {
            let kind = (message.is_multicast(), message.is_oob(), message.is_totally_ordered());
            let src = message.src.clone();
            if let Err(why) = self.decrypt(&mut message) {
                self.reject(cx, &message, why);
                continue;
            }
            self.decrypted += 1;
            // A message that was encrypted as a whole has its own flags, and the source may be another member.
            let is_same = (message.is_multicast(), message.is_oob(), message.is_totally_ordered()) == kind;
            if is_same && message.src == src {
                decrypted.push(message);
            } else {
                others.push(message);
            }
        }
        batch.messages = decrypted;
        others.into_iter().for_each(|message| cx.deliver(message));
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::RejectedMessages, self.rejected)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("version", self.version.iter().map(|byte| format!("{byte:02X}")).collect::<String>());
        out.put("num_encrypted", self.encrypted);
        out.put("num_decrypted", self.decrypted);
        out.put("num_rejected", self.rejected);
    }
}

#[cfg(test)]
pub(super) mod tests;
