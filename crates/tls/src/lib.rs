//! TLS settings of clients and servers, with certificates and keys from PEM files and Java's key stores. TLS 1.2 and 1.3, with
//! ring.
//!
//! ```
//! use consort_tls::{Identity, Roots, TlsError};
//!
//! let error = Roots::from_pem(b"no certificate").unwrap_err();
//! assert!(!error.to_string().is_empty());
//! let error = Identity::from_files("missing.pem", "missing.pem").unwrap_err();
//! assert!(matches!(error, TlsError::File { .. }));
//! ```

#![forbid(unsafe_code)]

mod listener_files;
mod peers;
mod protocol_settings;
pub mod secrets;
mod server_check;
mod signatures;
mod store_file;

use std::path::Path;
use std::sync::Arc;

pub use listener_files::{IdentityFiles, ListenerFiles, TrustFile};
pub use peers::{TrustedClients, TrustedPeers};
pub use protocol_settings::ProtocolSettings;
pub use server_check::{ServerCheck, client_with_check};
pub use store_file::{StoreFile, StorePassword};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// TLS could not be set up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A key or trust store in a Java format.
    #[error(
        "{0} looks like a PKCS12 or JKS store; give a PEM file instead \
         (openssl pkcs12 -in store.p12 -out store.pem -nodes)"
    )]
    NotPem(String),
    /// An unsupported version or cipher suite.
    #[error("{what}: `{name}` is not supported, only {supported}")]
    Unsupported {
        /// The setting.
        what: &'static str,
        /// Its name.
        name: String,
        /// Supported ones.
        supported: String,
    },
    /// An unreadable file.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// Unusable certificates or key.
    #[error("tls: {0}")]
    Unfit(String),
}

fn unfit(error: impl std::fmt::Display) -> TlsError {
    TlsError::Unfit(error.to_string())
}

/// A certificate chain and its private key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads certificates and key, which may be in one file. Logs a warning if every user of this host can read the key.
    ///
    /// # Errors
    ///
    /// A file cannot be read or lacks its content.
    pub fn from_files(chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, TlsError> {
        let (chain_path, key_path) = (chain.as_ref(), key.as_ref());
        let chain = certificates(&chain_path.display().to_string(), &pem(chain_path)?)?;
        let pem = pem(key_path)?;
        secrets::warn_if_open(key_path, "this private key");
        Ok(Self { chain, key: private_key(&key_path.display().to_string(), &pem)? })
    }

    /// Reads both from PEM texts, which may be the same, and which errors call `chain` and `key`.
    ///
    /// # Errors
    ///
    /// A text is invalid, `chain` has no certificate, or `key` has no unencrypted private key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Ok(Self { chain: certificates("chain", chain)?, key: private_key("key", key)? })
    }

    /// Takes the certificate with those of its issuers in DER, and a private key in PKCS#8.
    pub fn from_der(chain: impl IntoIterator<Item = Vec<u8>>, key: Vec<u8>) -> Self {
        let chain = chain.into_iter().map(CertificateDer::from).collect();
        Self { chain, key: PrivateKeyDer::Pkcs8(key.into()) }
    }

    fn to_pem(&self) -> String {
        let block = |label: &str, der: &[u8]| {
            let digits = STANDARD.encode(der);
            let lines =
                digits.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>().join("\n");
            format!("-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
        };
        let chain = self.chain.iter().map(|certificate| block("CERTIFICATE", certificate));
        let key = match &self.key {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        chain.chain([block(key, self.key.secret_der())]).collect()
    }

    /// Returns the certificate in DER.
    pub fn certificate(&self) -> &[u8] {
        self.chain.first().map_or(&[], AsRef::as_ref)
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// Trusted certificates.
#[derive(Clone, Debug)]
pub struct Roots(Arc<RootCertStore>);

impl Roots {
    /// Returns the system's trusted certificates.
    ///
    /// # Errors
    ///
    /// There are none.
    pub fn from_system() -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        // Systems have certificates that rustls cannot parse; the others suffice.
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if added == 0 {
            Err(unfit("this system has no trusted certificates"))
        } else {
            Ok(Self(Arc::new(roots)))
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read or has no certificates.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TlsError> {
        Self::from_named(&path.as_ref().display().to_string(), &pem(path.as_ref())?)
    }

    /// Reads a PEM text, which errors call `roots`.
    ///
    /// # Errors
    ///
    /// The text is invalid, has no certificates, or one that is not an authority's.
    pub fn from_pem(roots: &[u8]) -> Result<Self, TlsError> {
        Self::from_named("roots", roots)
    }

    fn from_named(name: &str, pem: &[u8]) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for trusted in certificates(name, pem)? {
            roots.add(trusted).map_err(unfit)?;
        }
        Ok(Self(Arc::new(roots)))
    }
}

/// A server's request for client certificates.
#[derive(Clone, Debug, Default)]
pub enum ClientCertificates {
    /// Not requested.
    #[default]
    NotAsked,
    /// Requested, and checked if presented.
    Asked(Roots),
    /// Required.
    Needed(Roots),
    /// Requested or required, as Java checks them: a certificate that is itself trusted needs no authority.
    Trusted(TrustedClients),
}

/// Returns a server's settings.
///
/// # Errors
///
/// Certificate and key do not match.
pub fn server(identity: Identity, clients: ClientCertificates) -> Result<Arc<ServerConfig>, TlsError> {
    server_with_protocols(&ProtocolSettings::default(), identity, clients)
}

/// Returns a server's settings with these versions and suites.
///
/// # Errors
///
/// Certificate and key do not match, or no suite is of a configured version.
pub fn server_with_protocols(
    protocols: &ProtocolSettings,
    identity: Identity,
    clients: ClientCertificates,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = protocols.provider();
    let verifier = |roots: Roots| WebPkiClientVerifier::builder_with_provider(roots.0, provider.clone());
    let config = ServerConfig::builder_with_provider(provider.clone());
    let config = config.with_protocol_versions(protocols.versions()).map_err(unfit)?;
    let config = match clients {
        ClientCertificates::NotAsked => config.with_no_client_auth(),
        ClientCertificates::Asked(roots) => {
            config.with_client_cert_verifier(verifier(roots).allow_unauthenticated().build().map_err(unfit)?)
        }
        ClientCertificates::Needed(roots) => {
            config.with_client_cert_verifier(verifier(roots).build().map_err(unfit)?)
        }
        ClientCertificates::Trusted(clients) => {
            config.with_client_cert_verifier(clients.verifier(protocols)?)
        }
    };
    config.with_single_cert(identity.chain, identity.key).map(Arc::new).map_err(unfit)
}

/// Returns a client's settings. `identity` is for servers that request a certificate.
///
/// # Errors
///
/// Certificate and key do not match.
pub fn client(roots: Roots, identity: Option<Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    client_with_protocols(&ProtocolSettings::default(), roots, identity)
}

/// Returns a client's settings with these versions and suites.
///
/// # Errors
///
/// As for [`server_with_protocols`].
pub fn client_with_protocols(
    protocols: &ProtocolSettings,
    roots: Roots,
    identity: Option<Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_provider(protocols.provider());
    let config = config.with_protocol_versions(protocols.versions()).map_err(unfit)?;
    let config = config.with_root_certificates(roots.0);
    let config = match identity {
        Some(identity) => config.with_client_auth_cert(identity.chain, identity.key).map_err(unfit)?,
        None => config.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

fn failed(path: &str, reason: String) -> TlsError {
    TlsError::File { path: path.to_owned(), reason }
}

fn pem(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = std::fs::read(path);
    // A server writes a certificate that it makes in PEM, whatever the name.
    let is_pem = read.as_ref().is_ok_and(|bytes| store_file::is_pem(bytes));
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let not_pem = || TlsError::NotPem(path.display().to_string());
    if !is_pem && ["p12", "pfx", "jks", "pkcs12"].contains(&ending.to_ascii_lowercase().as_str()) {
        return Err(not_pem());
    }
    let bytes = read.map_err(|error| failed(&path.display().to_string(), error.to_string()))?;
    if is_java_store(&bytes) { Err(not_pem()) } else { Ok(bytes) }
}

/// JKS begins with its own magic number, PKCS12 with a DER sequence whose first element is the version, 3.
fn is_java_store(bytes: &[u8]) -> bool {
    let length = match bytes.get(1) {
        Some(&byte) if byte > 0x80 => usize::from(byte - 0x80),
        _ => 0,
    };
    bytes.starts_with(&[0xfe, 0xed, 0xfe, 0xed])
        || (bytes.first() == Some(&0x30)
            && bytes.get(2 + length..).is_some_and(|rest| rest.starts_with(&[2, 1, 3])))
}

/// Why there is no key.
fn no_key(pem: &[u8]) -> String {
    let is_encrypted = String::from_utf8_lossy(pem).contains("BEGIN ENCRYPTED PRIVATE KEY");
    if is_encrypted {
        "its private key is encrypted: decrypt it (openssl pkey -in FILE -out PLAIN)".into()
    } else {
        "no private key in it".into()
    }
}

/// Errors call the text by this name.
fn certificates(name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| failed(name, error.to_string()))?;
    if certificates.is_empty() { Err(failed(name, "no certificate in it".into())) } else { Ok(certificates) }
}

/// The first one. Errors call the text by this name.
fn private_key(name: &str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => failed(name, no_key(pem)),
        error => failed(name, error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_files_are_named() {
        let error = |path: &str| Identity::from_files(path, path).unwrap_err().to_string();
        assert!(error("store.p12").starts_with("store.p12 looks like a PKCS12 or JKS store"));
        assert!(error("not-there.pem").starts_with("not-there.pem: "));
        let roots = Roots::from_file("Cargo.toml").unwrap_err().to_string();
        assert_eq!(roots, "Cargo.toml: no certificate in it");
    }

    #[test]
    fn java_stores_are_recognised_by_their_content() {
        assert!(is_java_store(&[0x30, 0x82, 0x0a, 0x10, 2, 1, 3, 0x30]));
        assert!(is_java_store(&[0x30, 0x80, 2, 1, 3, 0x30]));
        assert!(is_java_store(&[0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2]));
        // A certificate in DER, and truncated bytes.
        assert!(!is_java_store(&[0x30, 0x82, 0x0a, 0x10, 0x30, 0x82]));
        assert!(!is_java_store(b"-----BEGIN"));
        assert!(!is_java_store(&[0x30]));
        assert!(!is_java_store(&[0x30, 0xff, 2, 1, 3]));
    }

    #[test]
    fn missing_and_encrypted_keys_are_reported() {
        assert_eq!(no_key(b"-----BEGIN CERTIFICATE-----"), "no private key in it");
        assert!(no_key(b"-----BEGIN ENCRYPTED PRIVATE KEY-----").contains("is encrypted"));
    }
}
