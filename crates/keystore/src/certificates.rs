//! A private key with its certificates, and trusted certificates, of a store as `keytool` and OpenSSL write it.

use std::fmt;
use std::ops::ControlFlow;

use zeroize::Zeroizing;

use crate::der::{self, Der};
use crate::ec_key::with_public_key;
use crate::java_store::{self, Entry};
use crate::pkcs12::{self, Bag};
use crate::{Budget, KeyStoreError, Limits, SEQUENCE};

type Result<T> = std::result::Result<T, KeyStoreError>;

/// The private key and the certificates of a store.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Certificates {
    /// In PKCS#8; absent in a trust store.
    private_key: Option<Zeroizing<Vec<u8>>>,
    chain: Vec<Vec<u8>>,
    trusted: Vec<Vec<u8>>,
}

impl Certificates {
    /// Returns the first private key, as a PKCS#8 structure. That of an elliptic curve contains the public key.
    pub fn private_key(&self) -> Option<&[u8]> {
        self.private_key.as_ref().map(|key| &key[..])
    }

    /// Returns the private key's certificate, and those of its issuers.
    pub fn chain(&self) -> &[Vec<u8>] {
        &self.chain
    }

    /// Returns the trusted certificates. As in Java, these are entries without a private key, and the certificate
    /// of each private key.
    pub fn trusted(&self) -> &[Vec<u8>] {
        &self.trusted
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.private_key.is_some() { "a private key, " } else { "" };
        write!(f, "Certificates({key}{} in its chain, {} trusted)", self.chain.len(), self.trusted.len())
    }
}

/// How a store is opened, and which of its private keys is used.
#[derive(Clone, Copy, Default)]
pub struct Opening<'a> {
    /// The password of the store.
    pub password: &'a str,
    /// The password of the private key, if it has one of its own.
    pub key_password: Option<&'a str>,
    /// The alias of the private key, in any case; `None`: the first one.
    pub alias: Option<&'a str>,
}

impl Opening<'_> {
    fn is_wanted(&self, alias: Option<&str>) -> bool {
        self.alias
            .is_none_or(|wanted| alias.is_some_and(|alias| alias.to_lowercase() == wanted.to_lowercase()))
    }

    fn key_password(&self) -> &str {
        self.key_password.unwrap_or(self.password)
    }
}

/// Reads the private key and the certificates of a store. The file's first bytes determine the format.
///
/// # Errors
///
/// A malformed or too large file, an unknown format, no key with the alias, or a wrong password.
pub fn certificates(file: &[u8], opening: &Opening<'_>, limits: &Limits) -> Result<Certificates> {
    if file.len() > limits.file {
        return Err(KeyStoreError::TooLarge { bytes: file.len(), limit: limits.file });
    }
    let mut budget = Budget { entries: limits.entries, iterations: limits.iterations };
    match file.first_chunk::<4>() {
        Some([SEQUENCE, ..]) => {
            let mut found = Found::default();
            pkcs12::for_each_bag(file, opening.password, &mut budget, &mut |bag, budget| {
                found.add(bag, opening, budget)?;
                Ok(ControlFlow::Continue(()))
            })?;
            found.finish(opening)
        }
        Some(&crate::JCEKS | &crate::JKS) => of_java_store(file, opening, &mut budget),
        _ => Err(KeyStoreError::NotStore),
    }
}

fn no_alias(opening: &Opening<'_>, present: Vec<String>) -> KeyStoreError {
    KeyStoreError::NoSuchAlias { alias: opening.alias.unwrap_or_default().to_owned(), present }
}

fn of_java_store(file: &[u8], opening: &Opening<'_>, budget: &mut Budget) -> Result<Certificates> {
    let mut all = Certificates::default();
    let mut present = Vec::new();
    let trust = |trusted: &mut Vec<Vec<u8>>, certificate: &[u8]| {
        if !trusted.iter().any(|own| own == certificate) {
            trusted.push(certificate.to_vec());
        }
    };
    java_store::for_each_entry(file, opening.password, budget, &mut |alias, entry, budget| {
        match entry {
            Entry::Certificate(certificate) => trust(&mut all.trusted, certificate),
            Entry::PrivateKey(key, chain) => {
                let leaf = chain.first().ok_or(KeyStoreError::NoCertificate)?;
                trust(&mut all.trusted, leaf);
                present.push(alias.to_owned());
                if all.private_key.is_none() && opening.is_wanted(Some(alias)) {
                    let key = java_store::private_key(key, opening.key_password(), budget)?;
                    all.private_key = Some(with_public_key(key, Names::of(leaf)?.public)?);
                    all.chain = chain.iter().map(|certificate| certificate.to_vec()).collect();
                }
            }
            Entry::SecretKey(_) => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if all.private_key.is_none() && opening.alias.is_some() {
        return Err(no_alias(opening, present));
    }
    Ok(all)
}

#[derive(Default)]
struct Found {
    /// The wanted ones, each with the id that it shares with its certificate.
    keys: Vec<(Zeroizing<Vec<u8>>, Vec<u8>)>,
    /// The ids and aliases of all keys.
    key_ids: Vec<Vec<u8>>,
    aliases: Vec<String>,
    certificates: Vec<Certificate>,
}

struct Certificate {
    bytes: Vec<u8>,
    key_id: Vec<u8>,
    is_trusted: bool,
}

impl Found {
    fn add(&mut self, bag: &Bag<'_>, opening: &Opening<'_>, budget: &mut Budget) -> Result<()> {
        let key_id = bag.key_id.to_vec();
        if matches!(bag.kind, pkcs12::KEY | pkcs12::SHROUDED) {
            self.key_ids.push(key_id.clone());
            self.aliases.extend(bag.alias.clone());
            if !opening.is_wanted(bag.alias.as_deref()) {
                return Ok(());
            }
        }
        match bag.kind {
            pkcs12::KEY => self.keys.push((Zeroizing::new(bag.value.to_vec()), key_id)),
            pkcs12::SHROUDED => {
                self.keys.push((pkcs12::shrouded(bag.value, opening.key_password(), budget)?, key_id));
            }
            pkcs12::CERTIFICATE => {
                if let Some(bytes) = pkcs12::certificate(bag.value)? {
                    self.certificates.push(Certificate { bytes, key_id, is_trusted: bag.is_trusted });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn of_key(&self, key_id: &[u8]) -> Option<&Certificate> {
        self.certificates.iter().find(|own| !own.key_id.is_empty() && own.key_id == key_id)
    }

    fn finish(mut self, opening: &Opening<'_>) -> Result<Certificates> {
        let aliases = std::mem::take(&mut self.aliases);
        let leaves = self.key_ids.iter().filter_map(|key_id| self.of_key(key_id));
        let entries = self.certificates.iter().filter(|own| own.is_trusted);
        let mut trusted: Vec<Vec<u8>> = Vec::new();
        for certificate in entries.chain(leaves) {
            if !trusted.contains(&certificate.bytes) {
                trusted.push(certificate.bytes.clone());
            }
        }
        let Some((key, key_id)) = self.keys.first() else {
            if opening.alias.is_some() {
                return Err(no_alias(opening, aliases));
            }
            return Ok(Certificates { private_key: None, chain: Vec::new(), trusted });
        };
        let leaf = self.of_key(key_id).ok_or(KeyStoreError::NoCertificate)?;
        let mut chain = vec![leaf.bytes.clone()];
        while let Some(issuer) = self.issuer_of(chain.last().map_or(&[], |last| last), &chain)? {
            chain.push(issuer);
        }
        let key = with_public_key(key.clone(), Names::of(&leaf.bytes)?.public)?;
        Ok(Certificates { private_key: Some(key), chain, trusted })
    }

    /// Each certificate is in the chain once, so that it ends.
    fn issuer_of(&self, certificate: &[u8], chain: &[Vec<u8>]) -> Result<Option<Vec<u8>>> {
        let issuer = Names::of(certificate)?.issuer;
        for own in &self.certificates {
            if Names::of(&own.bytes)?.subject == issuer && !chain.contains(&own.bytes) {
                return Ok(Some(own.bytes.clone()));
            }
        }
        Ok(None)
    }
}

/// The parts of an X.509 certificate that link it with others and with its key.
struct Names<'a> {
    issuer: &'a [u8],
    subject: &'a [u8],
    public: &'a [u8],
}

impl<'a> Names<'a> {
    fn of(certificate: &'a [u8]) -> Result<Self> {
        let what = "certificate";
        let mut body = Der::new(certificate).enter(der::SEQUENCE, what)?.enter(der::SEQUENCE, what)?;
        // The version is absent in those of version 1.
        if body.tag() == Some(der::EXPLICIT_0) {
            body.read(der::EXPLICIT_0, what)?;
        }
        body.read(der::INTEGER, what)?;
        body.read(der::SEQUENCE, what)?;
        let issuer = body.read(der::SEQUENCE, what)?;
        body.read(der::SEQUENCE, what)?;
        let subject = body.read(der::SEQUENCE, what)?;
        let mut info = body.enter(der::SEQUENCE, what)?;
        info.read(der::SEQUENCE, what)?;
        // The first byte counts the unused bits of the last one.
        let public = info.read(der::BIT_STRING, what)?.get(1..).ok_or(KeyStoreError::Malformed(what))?;
        Ok(Self { issuer, subject, public })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Java 17 wrote them with `keytool`: a key whose certificate a CA signed, with the CA; a key with its own signature; the CA
    /// alone; and the first with `keystore.pkcs12.legacy`.
    macro_rules! store {
        ($name:literal) => {
            include_bytes!(concat!("../tests/data/", $name))
        };
    }

    const CHANGEIT: Opening<'static> = Opening { password: "changeit", key_password: None, alias: None };

    fn read(file: &[u8]) -> Result<Certificates> {
        certificates(file, &CHANGEIT, &Limits::default())
    }

    fn common_name(certificate: &[u8]) -> String {
        let subject = Names::of(certificate).unwrap().subject;
        String::from_utf8_lossy(&subject[subject.len() - subject.len().min(7)..])
            .chars()
            .filter(char::is_ascii_alphabetic)
            .collect()
    }

    #[test]
    fn a_private_key_has_its_chain_and_the_trusted_certificates() {
        let store = read(store!("certificates.p12")).unwrap();
        assert_eq!(store.chain().len(), 2);
        let subject = |at: usize| Names::of(&store.chain()[at]).unwrap().subject.to_vec();
        assert_eq!(Names::of(&store.chain()[0]).unwrap().issuer, subject(1), "the issuer follows");
        assert!(common_name(&store.chain()[0]).ends_with("member"));
        assert!(common_name(&store.chain()[1]).ends_with("ca"));
        assert_eq!(store.trusted(), [store.chain()[1].clone(), store.chain()[0].clone()]);
        let key = store.private_key().unwrap();
        let random = ring::rand::SystemRandom::new();
        let algorithm = &ring::signature::ECDSA_P256_SHA256_ASN1_SIGNING;
        assert!(ring::signature::EcdsaKeyPair::from_pkcs8(algorithm, key, &random).is_ok());
        assert_eq!(format!("{store:?}"), "Certificates(a private key, 2 in its chain, 2 trusted)");
    }

    #[test]
    fn a_self_signed_certificate_trusts_itself() {
        let store = read(store!("self-signed.p12")).unwrap();
        assert_eq!((store.chain(), store.trusted().len()), (store.trusted(), 1));
        assert!(ring::signature::RsaKeyPair::from_pkcs8(store.private_key().unwrap()).is_ok());
    }

    #[test]
    fn a_trust_store_has_no_private_key() {
        let store = read(store!("trusted.p12")).unwrap();
        assert_eq!((store.private_key(), store.chain().len(), store.trusted().len()), (None, 0, 1));
        assert!(common_name(&store.trusted()[0]).ends_with("ca"));
    }

    fn signs(key: &[u8]) -> bool {
        let random = ring::rand::SystemRandom::new();
        let algorithm = &ring::signature::ECDSA_P256_SHA256_ASN1_SIGNING;
        ring::signature::EcdsaKeyPair::from_pkcs8(algorithm, key, &random).is_ok()
            || ring::signature::RsaKeyPair::from_pkcs8(key).is_ok()
    }

    #[test]
    fn javas_own_formats_have_private_keys_and_certificates() {
        let own = Opening { password: "storepw", key_password: Some("keypw12"), alias: Some("Server") };
        let read = |opening: &Opening<'_>| certificates(store!("server.jks"), opening, &Limits::default());
        for (alias, name) in [("Server", "localhost"), ("other", "other")] {
            let store = read(&Opening { alias: Some(alias), ..own }).unwrap();
            assert!(signs(store.private_key().unwrap()), "{alias}");
            assert!(name.ends_with(&common_name(&store.chain()[0])[2..]), "{alias}");
            assert_eq!((store.chain().len(), store.trusted().len()), (1, 2));
        }
        assert!(read(&Opening { alias: None, ..own }).unwrap().private_key().is_some());
        assert_eq!(read(&Opening { key_password: None, ..own }), Err(KeyStoreError::WrongPassword));
        let missing = read(&Opening { alias: Some("none"), ..own }).unwrap_err().to_string();
        assert!(missing.contains("no key has the alias `none`") && missing.contains("other"), "{missing}");
        let store = certificates(store!("server.jceks"), &CHANGEIT, &Limits::default()).unwrap();
        assert!(signs(store.private_key().unwrap()) && store.chain().len() == 1);
        let trusted = certificates(store!("trusted.jks"), &CHANGEIT, &Limits::default()).unwrap();
        assert_eq!((trusted.private_key(), trusted.trusted()), (None, store.chain()));
    }

    #[test]
    fn alias_selects_the_private_key() {
        let read = |alias| {
            certificates(store!("two-keys.p12"), &Opening { alias, ..CHANGEIT }, &Limits::default()).unwrap()
        };
        assert!(common_name(&read(Some("SECOND")).chain()[0]).ends_with("second"));
        assert_eq!(read(None), read(Some("first")));
        let missing = Opening { alias: Some("third"), ..CHANGEIT };
        let missing = certificates(store!("two-keys.p12"), &missing, &Limits::default()).unwrap_err();
        assert!(missing.to_string().contains("the aliases are: first, second"), "{missing}");
    }

    #[test]
    fn stores_that_cannot_be_read_are_refused_with_the_reason() {
        let wrong = certificates(
            store!("certificates.p12"),
            &Opening { password: "wrong", ..CHANGEIT },
            &Limits::default(),
        );
        assert_eq!(wrong, Err(KeyStoreError::WrongPassword));
        assert_eq!(read(b"no store"), Err(KeyStoreError::NotStore));
        let error = read(store!("legacy-certificates.p12")).unwrap_err().to_string();
        assert!(error.contains("not supported; convert it"), "{error}");
        let few = Limits { entries: 2, ..Limits::default() };
        assert_eq!(
            certificates(store!("certificates.p12"), &CHANGEIT, &few),
            Err(KeyStoreError::TooManyEntries)
        );
        let small = Limits { file: 100, ..Limits::default() };
        assert!(matches!(
            certificates(store!("certificates.p12"), &CHANGEIT, &small),
            Err(KeyStoreError::TooLarge { limit: 100, .. })
        ));
    }

    #[test]
    fn damaged_stores_cause_errors_and_no_panic() {
        for store in [&store!("self-signed.p12")[..], store!("server.jks"), store!("server.jceks")] {
            for cut in (0..store.len()).step_by(97) {
                assert!(read(&store[..cut]).is_err(), "{cut}");
            }
        }
    }
}
