//! Encryption keys from files, and the system's random bytes.

use std::path::Path;

use consort_group::protocols::{KeyPair, RandomBytes, SecretKey, SymEncryptConfig, TokenConfig};
use consort_keystore::{Limits, Opening, StoreType};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// The error names the file.
pub(crate) fn secret_key(config: &SymEncryptConfig) -> Result<SecretKey, String> {
    let name = config.keystore_name.trim();
    let fail = |error: &dyn std::fmt::Display| format!("cannot read a key from `{name}`: {error}");
    let kind: StoreType = config.keystore_type.parse().map_err(|error| fail(&error))?;
    let limits = Limits::default();
    let bytes = read_secret(name, "the cluster's secret key", &limits).map_err(|error| fail(&error))?;
    let (store, key) = (config.store_password.text(), config.password_of_key().text());
    let read = consort_keystore::secret_key(&bytes, kind, &config.alias, store, key, &limits);
    let key = read.map_err(|error| fail(&error))?;
    Ok(SecretKey::new(key.algorithm(), key.bytes().to_vec()))
}

/// Reads the private key of AUTH's X509Token. The error names the file.
pub(crate) fn certificate_keys(config: &TokenConfig) -> Result<KeyPair, String> {
    let name = config.keystore_path.trim();
    let fail = |error: &dyn std::fmt::Display| format!("cannot read a private key from `{name}`: {error}");
    let limits = Limits::default();
    let bytes = read_secret(name, "the cluster's private key", &limits).map_err(|error| fail(&error))?;
    let key_password = Some(config.cert_password.text()).filter(|password| !password.is_empty());
    let opening = Opening {
        password: config.keystore_password.text(),
        key_password,
        alias: Some(config.cert_alias.trim()),
    };
    let store = consort_keystore::certificates(&bytes, &opening, &limits).map_err(|error| fail(&error))?;
    let key = store.private_key().ok_or_else(|| fail(&"it has none"))?;
    KeyPair::from_private_key(key).map_err(|error| fail(&error))
}

/// Reads a file with a secret; warns if every user of this host can read it.
pub(crate) fn read_secret(
    name: &str,
    secret: &'static str,
    limits: &Limits,
) -> std::io::Result<Zeroizing<Vec<u8>>> {
    consort_tls::secrets::read(Path::new(name), secret, limits.file)
}

pub(crate) struct OsRandom(SystemRandom);

impl OsRandom {
    pub(crate) fn new() -> Self {
        Self(SystemRandom::new())
    }
}

impl RandomBytes for OsRandom {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), String> {
        self.0.fill(out).map_err(|_| "the operating system has no random bytes".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use consort_group::config::Password;

    use super::*;

    fn config(name: &str, kind: &str) -> SymEncryptConfig {
        SymEncryptConfig {
            keystore_name: name.to_owned(),
            keystore_type: kind.to_owned(),
            alias: "myKey".to_owned(),
            ..SymEncryptConfig::default()
        }
    }

    const STORE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keystore/tests/data/aes.p12");

    #[test]
    fn a_key_is_read_from_a_file() {
        let key = secret_key(&config(STORE, "pkcs12")).unwrap();
        assert_eq!(format!("{key:?}"), "SecretKey(AES, 16 bytes)");
    }

    #[test]
    fn an_error_names_the_file_and_no_password() {
        let error = secret_key(&config("missing.p12", "PKCS12")).unwrap_err();
        assert!(error.starts_with("cannot read a key from `missing.p12`: "), "{error}");
        let error = secret_key(&config(STORE, "BKS")).unwrap_err();
        assert!(error.contains("keystore_type `BKS` is none of PKCS12"), "{error}");
        let wrong = SymEncryptConfig { store_password: Password::new("geheim"), ..config(STORE, "JCEKS") };
        let error = secret_key(&wrong).unwrap_err();
        assert!(error.contains("the password is wrong") && !error.contains("geheim"), "{error}");
        assert!(secret_key(&config("/dev/zero", "RAW")).unwrap_err().contains("at most 1048576 are read"));
    }

    #[test]
    fn the_passwords_of_the_file_and_of_the_key_are_used() {
        let store = STORE.replace("aes.p12", "keypass.jceks");
        let with = |key_password: &str| SymEncryptConfig {
            store_password: Password::new("storepw"),
            key_password: Password::new(key_password),
            alias: "mykey".to_owned(),
            ..config(&store, "JCEKS")
        };
        assert_eq!(format!("{:?}", secret_key(&with("keypw")).unwrap()), "SecretKey(AES, 24 bytes)");
        assert!(secret_key(&with("storepw")).is_err());
        assert!(secret_key(&SymEncryptConfig { alias: "other".to_owned(), ..with("keypw") }).is_err());
    }

    #[test]
    fn private_key_of_a_certificate_is_read_from_stores_of_either_format() {
        let config = |file: &str, password: &str, alias: &str| TokenConfig {
            keystore_path: STORE.replace("aes.p12", file),
            keystore_password: Password::new("changeit"),
            cert_password: Password::new(password),
            cert_alias: alias.to_owned(),
            ..TokenConfig::default()
        };
        for (file, password) in [("members.jks", "members"), ("members.p12", "")] {
            certificate_keys(&config(file, password, "members")).unwrap();
            let error = certificate_keys(&config(file, password, "other")).unwrap_err();
            assert!(error.contains(file) && error.contains("no key has the alias `other`"), "{error}");
        }
        assert!(certificate_keys(&config("members.jks", "", "members")).unwrap_err().contains("password"));
        let of_a_curve = certificate_keys(&config("server.jks", "", "x")).unwrap_err();
        assert!(of_a_curve.starts_with("cannot read a private key from"), "{of_a_curve}");
    }

    #[test]
    fn random_bytes_are_not_repeated() {
        let mut random = OsRandom::new();
        let (mut one, mut two) = ([0; 32], [0; 32]);
        random.fill(&mut one).unwrap();
        random.fill(&mut two).unwrap();
        assert_ne!(one, two);
    }
}
