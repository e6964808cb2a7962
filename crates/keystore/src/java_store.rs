//! Java's own formats: JKS, and JCEKS, which has secret keys too.
//!
//! Both begin with four bytes, a version and the number of entries, and end with a SHA-1 digest over the password, a
//! constant, and all bytes before.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA1_OUTPUT_LEN};
use subtle::ConstantTimeEq;

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

    fn certificate(&mut self) -> Result<()> {
        self.text("type of a certificate")?;
        self.long("certificate").map(|_| ())
    }
}

pub(crate) fn secret_key(file: &[u8], request: &Request<'_>, budget: &mut Budget) -> Result<SecretKey> {
    let at =
        file.len().checked_sub(SHA1_OUTPUT_LEN).ok_or(KeyStoreError::Malformed("digest of the store"))?;
    let (content, wanted) = file.split_at(at);
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(&utf16(request.store_password));
    digest.update(WHITENER);
    digest.update(content);
    if !bool::from(digest.finish().as_ref().ct_eq(wanted)) {
        return Err(KeyStoreError::WrongPassword);
    }
    let mut bytes = Bytes { rest: content };
    bytes.u32("first bytes")?;
    let version = bytes.u32("version")?;
    if version != 1 && version != 2 {
        return Err(KeyStoreError::Malformed("version"));
    }
    let count = bytes.u32("number of entries")?;
    let mut present = Vec::new();
    for _ in 0..count {
        budget.entry()?;
        let tag = bytes.u32("kind of an entry")?;
        let alias = bytes.text("alias")?;
        bytes.take(8, "date of an entry")?;
        let is_wanted = request.names(alias);
        if is_wanted && tag != SECRET_KEY {
            return Err(KeyStoreError::NotSecret(alias.to_owned()));
        }
        match tag {
            PRIVATE_KEY => {
                bytes.long("private key")?;
                for _ in 0..bytes.u32("number of certificates")? {
                    if version == 2 {
                        bytes.certificate()?;
                    } else {
                        bytes.long("certificate")?;
                    }
                }
            }
            CERTIFICATE if version == 2 => bytes.certificate()?,
            CERTIFICATE => bytes.long("certificate").map(|_| ())?,
            SECRET_KEY => {
                let (sealed, rest) = read_sealed(bytes.rest)?;
                bytes.rest = rest;
                if is_wanted {
                    return unseal(&sealed, request.key_password, budget);
                }
            }
            _ => return Err(KeyStoreError::Malformed("kind of an entry")),
        }
        present.push(alias.to_owned());
    }
    Err(KeyStoreError::NoSuchAlias { alias: request.alias.to_owned(), present })
}

fn unseal(sealed: &Sealed<'_>, password: &str, budget: &mut Budget) -> Result<SecretKey> {
    if sealed.algorithm != "PBEWithMD5AndTripleDES" {
        return Err(KeyStoreError::Unsupported(sealed.algorithm.to_owned()));
    }
    let what = "parameters of a sealed key";
    let mut parameters = Der::new(sealed.parameters).enter(der::SEQUENCE, what)?;
    let salt = parameters.read(der::OCTETS, what)?;
    let iterations = parameters.number(what)?;
    let plain = md5_and_3des(salt, iterations, password, sealed.content, budget)?;
    read_key(&plain)
}
