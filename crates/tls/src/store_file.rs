//! Files of certificates as Infinispan reads them: PEM, or a key store of Java. The content decides.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use consort_keystore::{Certificates, Limits, Opening, certificates, credential, unmask};
use rcgen::{CertificateParams, DnType, KeyPair};
use zeroize::Zeroizing;

use crate::{Identity, TlsError, TrustedPeers, failed, private_key, secrets, unfit};

/// A password, or the place where it is.
#[derive(Clone, PartialEq, Eq)]
pub enum StorePassword {
    /// The password itself.
    Text(Zeroizing<String>),
    /// Masked as by Infinispan: `CIPHERTEXT;SALT;ITERATIONS`.
    Masked(Zeroizing<String>),
    /// In a credential store.
    Credential {
        /// The file.
        store: PathBuf,
        /// Its password.
        password: Box<Self>,
        /// The password's alias; `None`: the store has one password.
        alias: Option<String>,
    },
}

impl fmt::Debug for StorePassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a password")
    }
}

impl From<&str> for StorePassword {
    fn from(text: &str) -> Self {
        Self::Text(Zeroizing::new(text.to_owned()))
    }
}

impl StorePassword {
    /// Reads the password.
    ///
    /// # Errors
    ///
    /// The credential store cannot be read, or has no such alias.
    pub fn read(&self) -> Result<Zeroizing<String>, TlsError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Masked(masked) => unmask(masked, &Limits::default()).map_err(unfit),
            Self::Credential { store, password, alias } => {
                let limits = Limits::default();
                let wrong =
                    |error: &dyn fmt::Display| failed(&store.display().to_string(), error.to_string());
                let bytes =
                    secrets::read(store, "these passwords", limits.file).map_err(|error| wrong(&error))?;
                let read = credential(&bytes, alias.as_deref(), &password.read()?, &limits);
                read.map_err(|error| wrong(&error))
            }
        }
    }
}

/// A file of certificates, and perhaps a private key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreFile {
    /// The file.
    pub path: PathBuf,
    /// The password of a key store.
    pub password: Option<StorePassword>,
    /// The password of its private key; `None`: that of the store.
    pub key_password: Option<StorePassword>,
    /// The alias of the private key; `None`: the first one.
    pub alias: Option<String>,
    /// If the file is missing, a certificate of this host is made, signed by itself.
    pub self_signed_host: Option<String>,
}

impl StoreFile {
    /// Returns a file without passwords.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), password: None, key_password: None, alias: None, self_signed_host: None }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Reads certificate and private key, or makes them.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or lacks its content.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        if let Some(host) = self.self_signed_host.as_deref().filter(|_| !self.path.exists()) {
            return self_signed(host);
        }
        let bytes = secrets::read(&self.path, "this private key", Limits::default().file)
            .map_err(|error| self.unreadable(&error))?;
        if is_pem(&bytes) {
            return Ok(Identity {
                chain: crate::certificates(&self.name(), &bytes)?,
                key: private_key(&self.name(), &bytes)?,
            });
        }
        let store = self.open(&bytes)?;
        let key =
            store.private_key().ok_or_else(|| failed(&self.name(), "no private key in it".to_owned()))?;
        Ok(Identity::from_der(store.chain().to_vec(), key.to_vec()))
    }

    /// Reads trusted certificates.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no certificate.
    pub fn trusted(&self) -> Result<TrustedPeers, TlsError> {
        let bytes = secrets::read_bounded(&self.path, Limits::default().file)
            .map_err(|error| self.unreadable(&error))?;
        let all = if is_pem(&bytes) {
            crate::certificates(&self.name(), &bytes)?.into_iter().map(|own| own.to_vec()).collect()
        } else {
            self.open(&bytes)?.trusted().to_vec()
        };
        TrustedPeers::from_der(all).map_err(|error| failed(&self.name(), error.to_string()))
    }

    fn unreadable(&self, error: &std::io::Error) -> TlsError {
        failed(&self.name(), error.to_string())
    }

    fn open(&self, bytes: &[u8]) -> Result<Certificates, TlsError> {
        let password = self.password.as_ref().map(StorePassword::read).transpose()?.unwrap_or_default();
        let key_password = self.key_password.as_ref().map(StorePassword::read).transpose()?;
        let opening = Opening {
            password: &password,
            key_password: key_password.as_ref().map(|password| &***password),
            alias: self.alias.as_deref(),
        };
        certificates(bytes, &opening, &Limits::default())
            .map_err(|error| failed(&self.name(), error.to_string()))
    }

    /// Writes a made certificate and its key in PEM, so that clients that trust it trust the server after a restart, too.
    ///
    /// # Errors
    ///
    /// The file exists or cannot be written.
    pub fn write(&self, identity: &Identity) -> Result<(), TlsError> {
        write_new(&self.path, &identity.to_pem()).map_err(|error| failed(&self.name(), error.to_string()))
    }
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

pub(crate) fn is_pem(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ";
    bytes.windows(BEGIN.len()).any(|window| window == BEGIN)
}

/// As Infinispan's, but without an end after ten years, which no client would expect.
fn self_signed(host: &str) -> Result<Identity, TlsError> {
    let mut params = CertificateParams::new([host.to_owned()]).map_err(unfit)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, host);
    let key = KeyPair::generate().map_err(unfit)?;
    let certificate = params.self_signed(&key).map_err(unfit)?;
    Ok(Identity::from_der([certificate.der().to_vec()], key.serialize_der()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keystore/tests/data");

    fn file(name: &str, password: &str) -> StoreFile {
        StoreFile { password: Some(password.into()), ..StoreFile::new(format!("{STORES}/{name}")) }
    }

    #[test]
    fn identities_of_javas_stores_are_usable() {
        let own = StoreFile { key_password: Some("keypw12".into()), ..file("server.jks", "storepw") };
        let other = StoreFile { alias: Some("other".to_owned()), ..own.clone() };
        let two = [file("certificates.p12", "changeit"), file("server.jceks", "changeit")];
        for store in [own, other].into_iter().chain(two) {
            let identity = store.identity().unwrap();
            assert!(!identity.certificate().is_empty());
            crate::server(identity, crate::ClientCertificates::NotAsked).unwrap();
            assert!(store.trusted().is_ok());
        }
    }

    #[test]
    fn unusable_stores_are_named_and_passwords_are_not() {
        let error = |store: StoreFile| store.identity().unwrap_err().to_string();
        let wrong = error(file("server.jks", "geheim"));
        assert!(wrong.contains("server.jks: the password is wrong") && !wrong.contains("geheim"), "{wrong}");
        assert!(error(file("trusted.jks", "changeit")).ends_with("trusted.jks: no private key in it"));
        let alias = StoreFile { alias: Some("x".to_owned()), ..file("two-keys.p12", "changeit") };
        assert!(error(alias).contains("no key has the alias `x`; the aliases are: first, second"));
        assert!(error(StoreFile::new("missing.p12")).starts_with("missing.p12: No such file"));
        assert!(!format!("{:?}", file("server.jks", "geheim")).contains("geheim"));
    }

    #[test]
    fn password_of_a_credential_store_is_read() {
        let stored = |alias: &str, password: StorePassword| StorePassword::Credential {
            store: format!("{STORES}/credentials.p12").into(),
            password: Box::new(password),
            alias: Some(alias.to_owned()),
        };
        let masked = StorePassword::Masked(Zeroizing::new("1Hc4Feq2wJs;pepper99;100".to_owned()));
        for password in [masked, "secret".into()] {
            assert_eq!(*stored("trust", password).read().unwrap(), "p\u{e4}ss-Trust");
        }
        let error = stored("ldap", "secret".into()).read().unwrap_err().to_string();
        assert!(error.contains("credentials.p12: no key has the alias `ldap`"), "{error}");
    }

    #[test]
    fn made_certificate_is_kept_in_a_new_file() {
        let directory = std::env::temp_dir().join(format!("consort-made-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("server.pfx");
        let file = StoreFile { self_signed_host: Some("grid.example".to_owned()), ..file("x", "changeit") };
        let file = StoreFile { path, alias: Some("server".to_owned()), ..file };
        let made = file.identity().unwrap();
        assert!(!file.path.exists() && file.identity().unwrap().certificate() != made.certificate());
        file.write(&made).unwrap();
        assert_eq!(file.identity().unwrap().certificate(), made.certificate());
        assert!(crate::Roots::from_file(&file.path).is_ok(), "clients read it in spite of its name");
        assert!(file.write(&made).is_err(), "a file is never overwritten");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
