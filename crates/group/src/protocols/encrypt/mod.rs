//! SYM_ENCRYPT and ASYM_ENCRYPT: payloads are encrypted with a key that all members share. With SYM_ENCRYPT each member
//! reads it from a file; with ASYM_ENCRYPT the coordinator makes and distributes it.
//!
//! The layer is below NAKACK and UNICAST, so retransmissions pass it, too. Headers of layers above stay readable,
//! unless the payload is no byte array: then the whole message is encrypted into the payload of a new one. The format
//! has no authentication code: a changed cipher text decrypts to other bytes, and only wrong padding shows it (facts
//! section 22.2).
//!
//! Messages without the layer's header, or of another key, are discarded.

mod asym;
mod cipher;
mod key;
mod message_cipher;

pub use self::asym::{AsymEncrypt, AsymEncryptConfig, KeyPair};
pub(super) use self::cipher::EcbKey;
use self::cipher::Mode;
pub use self::key::RandomBytes;
use self::message_cipher::{MessageCipher, Vectors, checked_mode, decrypt_batch, hex, warn_if_ecb};
pub use crate::SecretKey;
use crate::config::Password;
use crate::{Cx, DropReason, HeaderBody, Message, MessageBatch, ProbeOut, Protocol, ProtocolId, StackCount};

/// The kind of a header with which the receiver fetches the key from an external exchange.
pub(super) const FETCH_KEY: u8 = 2;

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
        checked_mode(&self.sym_algorithm, self.sym_iv_length)?;
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

/// The SYM_ENCRYPT layer.
pub struct SymEncrypt {
    config: SymEncryptConfig,
    cipher: MessageCipher,
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
        let cipher = MessageCipher::new(key, mode).map_err(|why| ("keystore_name", why))?;
        Ok(Self { config, cipher, vectors: Vectors::new(random), encrypted: 0, decrypted: 0, rejected: 0 })
    }

    /// Returns false if it must not be sent.
    fn encrypt(&mut self, cx: &mut Cx<'_>, message: &mut Message) -> bool {
        match self.cipher.encrypt(cx, &mut self.vectors, message) {
            Ok(header) => {
                message.headers.put(ProtocolId::SYM_ENCRYPT, HeaderBody::Encrypt(Box::new(header)));
                self.encrypted += 1;
                true
            }
            Err(why) => {
                self.rejected += 1;
                cx.count_drop(DropReason::Unexpected, |_| format!("no initialization vector: {why}"));
                false
            }
        }
    }

    /// The error is the reason to discard it.
    fn decrypt(&self, message: &mut Message) -> Result<(), DropReason> {
        let Some(HeaderBody::Encrypt(header)) = message.headers.take(ProtocolId::SYM_ENCRYPT) else {
            return Err(DropReason::MissingHeader);
        };
        if header.kind != 0 {
            return Err(DropReason::Unexpected);
        }
        if !self.cipher.is_of(&header) {
            return Err(DropReason::UnknownKey);
        }
        self.cipher.decrypt(&header, message)
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

impl Protocol for SymEncrypt {
    fn name(&self) -> &'static str {
        "SYM_ENCRYPT"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId::SYM_ENCRYPT
    }

    fn start(&mut self, _cx: &mut Cx<'_>) {
        warn_if_ecb(self.cipher.mode(), &self.config.sym_algorithm);
    }

    fn down(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        batch.messages.retain_mut(|message| self.encrypt(cx, message));
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        decrypt_batch(cx, batch, |cx, message| match self.decrypt(message) {
            Ok(()) => {
                self.decrypted += 1;
                true
            }
            Err(why) => {
                self.reject(cx, message, why);
                false
            }
        });
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        vec![(StackCount::RejectedMessages, self.rejected)]
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("version", hex(self.cipher.version()));
        out.put("num_encrypted", self.encrypted);
        out.put("num_decrypted", self.decrypted);
        out.put("num_rejected", self.rejected);
    }
}

#[cfg(test)]
pub(super) mod tests;
