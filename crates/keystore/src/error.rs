//! Errors of key stores.

/// An unreadable key. No text contains a key or a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyStoreError {
    /// A file above the limit.
    #[error("the file has {bytes} bytes; at most {limit} are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many entries.
    #[error("the key store has too many entries")]
    TooManyEntries,
    /// Too many iterations.
    #[error("the key store wants {0} iterations to derive a key, which are too many")]
    TooManyIterations(u64),
    /// No key store.
    #[error(
        "the file is no PKCS12, JCEKS or JKS key store; \
         for a file with the key's bytes or hexadecimal digits set keystore_type=\"RAW\""
    )]
    UnknownFormat,
    /// No key store.
    #[error("the file is no PKCS12, JKS or JCEKS key store")]
    NotStore,
    /// A private key without a certificate.
    #[error("the key store's private key has no certificate")]
    NoCertificate,
    /// An unknown type.
    #[error("keystore_type `{0}` is none of PKCS12, JCEKS, JKS, RAW")]
    UnknownType(String),
    /// A malformed part.
    #[error("the key store is malformed at: {0}")]
    Malformed(&'static str),
    /// A wrong password.
    #[error("the password is wrong, or the key store is damaged")]
    WrongPassword,
    /// An unsupported cipher, digest or key derivation.
    #[error(
        "the key store uses {0}, which is not supported; \
         convert it: keytool -importkeystore -srckeystore OLD -destkeystore NEW -deststoretype PKCS12"
    )]
    Unsupported(String),
    /// No such alias.
    #[error("no key has the alias `{alias}`; the aliases are: {}", list(present))]
    NoSuchAlias {
        /// The alias.
        alias: String,
        /// The file's aliases.
        present: Vec<String>,
    },
    /// A certificate or a private key.
    #[error(
        "the entry `{0}` is not a secret key; create one with keytool -genseckey -keyalg AES -keysize 256 \
         -storetype PKCS12"
    )]
    NotSecret(String),
    /// A raw key's wrong length.
    #[error("a raw key has 16, 24 or 32 bytes, or twice as many hexadecimal digits; the file has {0} bytes")]
    RawLength(usize),
}

/// The most aliases in an error.
const SHOWN: usize = 10;

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "(none)".to_owned();
    }
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown}, …") } else { shown }
}
