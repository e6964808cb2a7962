//! A key's cipher on messages (facts section 22.2).

use bytes::Bytes;

use super::cipher::{BLOCK, Cipher, Mode};
use super::key::RandomBytes;
use crate::wire;
use crate::{Cx, DropReason, EncryptHeader, Message, MessageBatch, Object, Payload, SecretKey};

/// Parses and checks a transformation and the length of its initialization vector.
///
/// # Errors
///
/// The attribute that cannot be used, and a text for the operator.
pub(super) fn checked_mode(algorithm: &str, iv_length: u32) -> Result<Mode, (&'static str, String)> {
    let mode = Mode::parse(algorithm).map_err(|why| ("sym_algorithm", why))?;
    if mode.has_iv() && iv_length as usize != BLOCK {
        let why = format!("sym_algorithm ({algorithm}) needs sym_iv_length=\"16\"");
        return Err(("sym_iv_length", format!("{why}, not {iv_length}")));
    }
    if !mode.has_iv() && iv_length != 0 {
        let why = format!("sym_iv_length ({iv_length}) has to be 0 with sym_algorithm ({algorithm})");
        return Err(("sym_iv_length", format!("{why}, or use AES/CBC/PKCS5Padding")));
    }
    Ok(mode)
}

pub(super) fn warn_if_ecb(mode: Mode, sym_algorithm: &str) {
    if mode == Mode::Ecb {
        tracing::warn!(
            sym_algorithm,
            "equal blocks of payloads are encrypted to equal blocks; \
             set sym_algorithm=\"AES/CBC/PKCS5Padding\" and sym_iv_length=\"16\" at all members"
        );
    }
}

/// Returns a key's version as probe shows it.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The bytes requested at once; each is used once.
const RANDOM_BYTES: usize = 64 * BLOCK;

/// Random bytes come in larger pieces because a request is a system call.
pub(super) struct Vectors {
    source: Box<dyn RandomBytes>,
    bytes: Bytes,
}

impl Vectors {
    pub(super) fn new(source: Box<dyn RandomBytes>) -> Self {
        Self { source, bytes: Bytes::new() }
    }

    /// Returns the source, for keys.
    pub(super) fn source(&mut self) -> &mut dyn RandomBytes {
        &mut *self.source
    }

    fn next(&mut self) -> Result<Bytes, String> {
        if self.bytes.len() < BLOCK {
            let mut bytes = vec![0; RANDOM_BYTES];
            self.source.fill(&mut bytes)?;
            self.bytes = bytes.into();
        }
        Ok(self.bytes.split_to(BLOCK))
    }
}

pub(super) struct MessageCipher {
    cipher: Cipher,
    /// The key's MD5, by which receivers recognise it.
    version: Bytes,
}

impl MessageCipher {
    /// The error is for the operator.
    pub(super) fn new(key: &SecretKey, mode: Mode) -> Result<Self, String> {
        let cipher = Cipher::new(key, mode)?;
        Ok(Self { cipher, version: key.version() })
    }

    pub(super) const fn mode(&self) -> Mode {
        self.cipher.mode()
    }

    pub(super) const fn version(&self) -> &Bytes {
        &self.version
    }

    /// Versions are visible on the network, so that their comparison needs no constant time.
    pub(super) fn is_of(&self, header: &EncryptHeader) -> bool {
        header.version.as_ref() == Some(&self.version)
    }

    /// Returns the header that the message needs. Without random bytes the message must not be sent.
    pub(super) fn encrypt(
        &self,
        cx: &Cx<'_>,
        vectors: &mut Vectors,
        message: &mut Message,
    ) -> Result<EncryptHeader, String> {
        let iv = if self.cipher.mode().has_iv() { Some(vectors.next()?) } else { None };
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
        Ok(EncryptHeader {
            kind: 0,
            needs_deserialization,
            version: Some(self.version.clone()),
            server: None,
            iv,
        })
    }

    /// The error is the reason to discard it.
    pub(super) fn decrypt(&self, header: &EncryptHeader, message: &mut Message) -> Result<(), DropReason> {
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
}

/// As JGroups: null and no payload are not encrypted.
pub(super) fn has_payload(payload: &Payload) -> bool {
    match payload {
        Payload::Empty => false,
        Payload::Bytes(bytes) | Payload::Nio { bytes, .. } => bytes.is_some(),
        Payload::Object(object) => **object != Object::Null,
        Payload::Composite(messages) => !messages.is_empty(),
        Payload::Batch(batch) => !batch.messages.is_empty(),
        Payload::Long(_) | Payload::Fragment(_) => true,
    }
}

/// Keeps the messages that `decrypt` admits. One that was encrypted as a whole has its own flags, and the source may be
/// another member: it follows in a batch of its own.
pub(super) fn decrypt_batch(
    cx: &mut Cx<'_>,
    batch: &mut MessageBatch,
    mut decrypt: impl FnMut(&mut Cx<'_>, &mut Message) -> bool,
) {
    let mut decrypted: Vec<Message> = Vec::with_capacity(batch.len());
    let mut others = Vec::new();
    for mut message in batch.messages.drain(..) {
        let kind = (message.is_multicast(), message.is_oob(), message.is_totally_ordered());
        let src = message.src.clone();
        if !decrypt(cx, &mut message) {
            continue;
        }
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
