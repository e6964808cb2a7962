//! Java's own formats: JKS, and JCEKS, which has secret keys too.
//!
//! Both begin with four bytes, a version and the number of entries, and end with a SHA-1 digest over the password, a
//! constant, and all bytes before.

use std::ops::ControlFlow;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA1_OUTPUT_LEN};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::der::{self, Der};
use crate::password_based::{md5_and_3des, utf16};
use crate::serialized::{Sealed, read_key, read_sealed};
use crate::{Budget, KeyStoreError, Request, SecretKey};

type Result<T> = std::result::Result<T, KeyStoreError>;

/// In the digest.
const WHITENER: &[u8] = b"Mighty Aphrodite";

const PRIVATE_KEY: u32 = 1;
const CERTIFICATE: u32 = 2;
const SECRET_KEY: u32 = 3;

/// Java's ciphers of private keys: that of JKS, and that of JCEKS.
const KEY_PROTECTOR: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x2a, 0x02, 0x11, 0x01, 0x01];
const MD5_AND_3DES: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x2a, 0x02, 0x13, 0x01];

struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(KeyStoreError::Malformed(what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(KeyStoreError::Malformed(what))?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// The length has 4 bytes.
    fn long(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let length = self.u32(what)? as usize;
        self.take(length, what)
    }

    /// The length has 2 bytes.
    fn text(&mut self, what: &'static str) -> Result<&'a str> {
        let (length, rest) = self.rest.split_first_chunk().ok_or(KeyStoreError::Malformed(what))?;
        self.rest = rest;
        let bytes = self.take(u16::from_be_bytes(*length).into(), what)?;
        std::str::from_utf8(bytes).map_err(|_| KeyStoreError::Malformed(what))
    }

    fn certificate(&mut self, version: u32) -> Result<&'a [u8]> {
        if version == 2 {
            self.text("type of a certificate")?;
        }
        self.long("certificate")
    }
}

pub(crate) enum Entry<'a> {
    /// Protected, with its chain.
    PrivateKey(&'a [u8], Vec<&'a [u8]>),
    Certificate(&'a [u8]),
    SecretKey(Sealed<'a>),
}

/// Visits all entries with their aliases, or until a visit ends it.
pub(crate) fn for_each_entry(
    file: &[u8],
    password: &str,
    budget: &mut Budget,
    visit: &mut impl FnMut(&str, Entry<'_>, &mut Budget) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut bytes = Bytes { rest: content(file, password)? };
    bytes.u32("first bytes")?;
    let version = bytes.u32("version")?;
    if version != 1 && version != 2 {
        return Err(KeyStoreError::Malformed("version"));
    }
    for _ in 0..bytes.u32("number of entries")? {
        budget.entry()?;
        let tag = bytes.u32("kind of an entry")?;
        let alias = bytes.text("alias")?;
        bytes.take(8, "date of an entry")?;
        let entry = match tag {
            PRIVATE_KEY => {
                let key = bytes.long("private key")?;
                let mut chain = Vec::new();
                for _ in 0..bytes.u32("number of certificates")? {
                    budget.entry()?;
                    chain.push(bytes.certificate(version)?);
                }
                Entry::PrivateKey(key, chain)
            }
            CERTIFICATE => Entry::Certificate(bytes.certificate(version)?),
            SECRET_KEY => {
                let (sealed, rest) = read_sealed(bytes.rest)?;
                bytes.rest = rest;
                Entry::SecretKey(sealed)
            }
            _ => return Err(KeyStoreError::Malformed("kind of an entry")),
        };
        if visit(alias, entry, budget)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// Checks the digest at the end.
fn content<'a>(file: &'a [u8], password: &str) -> Result<&'a [u8]> {
    let at =
        file.len().checked_sub(SHA1_OUTPUT_LEN).ok_or(KeyStoreError::Malformed("digest of the store"))?;
    let (content, wanted) = file.split_at(at);
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(&utf16(password));
    digest.update(WHITENER);
    digest.update(content);
    let is_right = bool::from(digest.finish().as_ref().ct_eq(wanted));
    if is_right { Ok(content) } else { Err(KeyStoreError::WrongPassword) }
}

pub(crate) fn secret_key(file: &[u8], request: &Request<'_>, budget: &mut Budget) -> Result<SecretKey> {
    let (mut present, mut found) = (Vec::new(), None);
    for_each_entry(file, request.store_password, budget, &mut |alias, entry, budget| {
        if !request.names(alias) {
            present.push(alias.to_owned());
            return Ok(ControlFlow::Continue(()));
        }
        let Entry::SecretKey(sealed) = entry else { return Err(KeyStoreError::NotSecret(alias.to_owned())) };
        found = Some(unseal(&sealed, request.key_password, budget)?);
        Ok(ControlFlow::Break(()))
    })?;
    found.ok_or_else(|| KeyStoreError::NoSuchAlias { alias: request.alias.to_owned(), present })
}

/// Decrypts a private key in PKCS#8.
pub(crate) fn private_key(
    protected: &[u8],
    password: &str,
    budget: &mut Budget,
) -> Result<Zeroizing<Vec<u8>>> {
    let what = "private key";
    let mut outer = Der::new(protected).enter(der::SEQUENCE, what)?;
    let (algorithm, parameters) = outer.algorithm(what)?;
    let content = outer.read(der::OCTETS, what)?;
    match algorithm {
        KEY_PROTECTOR => unprotect(content, password),
        MD5_AND_3DES => {
            let (salt, iterations) = salt_and_iterations(parameters)?;
            md5_and_3des(salt, iterations, password, content, budget)
        }
        _ => Err(KeyStoreError::Unsupported(der::dotted(algorithm))),
    }
}

/// Java's protection of a key in JKS: a salt, the key XORed with chained SHA-1 digests, and a digest of the key.
fn unprotect(content: &[u8], password: &str) -> Result<Zeroizing<Vec<u8>>> {
    let malformed = KeyStoreError::Malformed("private key");
    let (salt, rest) = content.split_at_checked(SHA1_OUTPUT_LEN).ok_or(malformed.clone())?;
    let (text, wanted) =
        rest.len().checked_sub(SHA1_OUTPUT_LEN).map(|at| rest.split_at(at)).ok_or(malformed)?;
    let password = utf16(password);
    let hash = |bytes: &[u8]| {
        let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        digest.update(&password);
        digest.update(bytes);
        digest.finish()
    };
    let mut plain = Zeroizing::new(text.to_vec());
    let mut mask = hash(salt);
    for block in plain.chunks_mut(SHA1_OUTPUT_LEN) {
        block.iter_mut().zip(mask.as_ref()).for_each(|(byte, mask)| *byte ^= mask);
        mask = hash(mask.as_ref());
    }
    if bool::from(hash(&plain).as_ref().ct_eq(wanted)) {
        Ok(plain)
    } else {
        Err(KeyStoreError::WrongPassword)
    }
}

fn salt_and_iterations(mut parameters: Der<'_>) -> Result<(&[u8], u64)> {
    let what = "parameters of a sealed key";
    let mut parameters = parameters.enter(der::SEQUENCE, what)?;
    Ok((parameters.read(der::OCTETS, what)?, parameters.number(what)?))
}

fn unseal(sealed: &Sealed<'_>, password: &str, budget: &mut Budget) -> Result<SecretKey> {
    if sealed.algorithm != "PBEWithMD5AndTripleDES" {
        return Err(KeyStoreError::Unsupported(sealed.algorithm.to_owned()));
    }
    let (salt, iterations) = salt_and_iterations(Der::new(sealed.parameters))?;
    let plain = md5_and_3des(salt, iterations, password, sealed.content, budget)?;
    read_key(&plain)
}
