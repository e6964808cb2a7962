//! Encryption keys from files, and the system's random bytes.

use std::path::Path;

use consort_group::protocols::{RandomBytes, SecretKey, SymEncryptConfig};
use consort_keystore::{Limits, StoreType};
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
    fn random_bytes_are_not_repeated() {
        let mut random = OsRandom::new();
        let (mut one, mut two) = ([0; 32], [0; 32]);
        random.fill(&mut one).unwrap();
        random.fill(&mut two).unwrap();
        assert_ne!(one, two);
    }
}
