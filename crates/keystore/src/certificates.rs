//! A private key with its certificates, and trusted certificates, of a PKCS#12 store as `keytool` and OpenSSL write it.

use std::fmt;
use std::ops::ControlFlow;

use zeroize::Zeroizing;

use crate::der::{self, Der};
use crate::ec_key::with_public_key;
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

/// Reads the private key and the certificates of a PKCS#12 store.
///
/// # Errors
///
/// A malformed or too large file, another format, or a wrong password.
pub fn certificates(file: &[u8], password: &str, limits: &Limits) -> Result<Certificates> {
    if file.len() > limits.file {
        return Err(KeyStoreError::TooLarge { bytes: file.len(), limit: limits.file });
    }
    match file.first_chunk::<4>() {
        Some([SEQUENCE, ..]) => {}
        Some(&crate::JCEKS | &crate::JKS) => {
            return Err(KeyStoreError::Unsupported(
                "the format of JKS and JCEKS for certificates".to_owned(),
            ));
        }
        _ => return Err(KeyStoreError::NotPkcs12),
    }
    let mut budget = Budget { entries: limits.entries, iterations: limits.iterations };
    let mut found = Found::default();
    pkcs12::for_each_bag(file, password, &mut budget, &mut |bag, budget| {
        found.add(bag, password, budget)?;
        Ok(ControlFlow::Continue(()))
    })?;
    found.finish()
}

#[derive(Default)]
struct Found {
    /// Each with the id that it shares with its certificate.
    keys: Vec<(Zeroizing<Vec<u8>>, Vec<u8>)>,
    certificates: Vec<Certificate>,
}

struct Certificate {
    bytes: Vec<u8>,
    key_id: Vec<u8>,
    is_trusted: bool,
}

impl Found {
    fn add(&mut self, bag: &Bag<'_>, password: &str, budget: &mut Budget) -> Result<()> {
        let key_id = bag.key_id.to_vec();
        match bag.kind {
            pkcs12::KEY => self.keys.push((Zeroizing::new(bag.value.to_vec()), key_id)),
            pkcs12::SHROUDED => self.keys.push((pkcs12::shrouded(bag.value, password, budget)?, key_id)),
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

    fn finish(self) -> Result<Certificates> {
        let leaves = self.keys.iter().filter_map(|(_, key_id)| self.of_key(key_id));
        let entries = self.certificates.iter().filter(|own| own.is_trusted);
        let mut trusted: Vec<Vec<u8>> = Vec::new();
        for certificate in entries.chain(leaves) {
            if !trusted.contains(&certificate.bytes) {
                trusted.push(certificate.bytes.clone());
            }
        }
        let Some((key, key_id)) = self.keys.first() else {
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

    fn read(file: &[u8]) -> Result<Certificates> {
        certificates(file, "changeit", &Limits::default())
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

    #[test]
    fn stores_that_cannot_be_read_are_refused_with_the_reason() {
        let wrong = certificates(store!("certificates.p12"), "wrong", &Limits::default());
        assert_eq!(wrong, Err(KeyStoreError::WrongPassword));
        assert_eq!(read(b"no store"), Err(KeyStoreError::NotPkcs12));
        for store in [&store!("private.jks")[..], store!("private.jceks")] {
            let error = read(store).unwrap_err().to_string();
            assert!(error.contains("JKS") && error.contains("-deststoretype PKCS12"), "{error}");
        }
        let error = read(store!("legacy-certificates.p12")).unwrap_err().to_string();
        assert!(error.contains("not supported; convert it"), "{error}");
        let few = Limits { entries: 2, ..Limits::default() };
        assert_eq!(
            certificates(store!("certificates.p12"), "changeit", &few),
            Err(KeyStoreError::TooManyEntries)
        );
        let small = Limits { file: 100, ..Limits::default() };
        assert!(matches!(
            certificates(store!("certificates.p12"), "changeit", &small),
            Err(KeyStoreError::TooLarge { limit: 100, .. })
        ));
    }

    #[test]
    fn damaged_stores_cause_errors_and_no_panic() {
        let store = store!("self-signed.p12");
        for cut in (0..store.len()).step_by(97) {
            assert!(read(&store[..cut]).is_err(), "{cut}");
        }
    }
}
