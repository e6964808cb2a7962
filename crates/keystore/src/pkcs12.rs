//! PKCS#12 (RFC 7292), as Java writes it: a secret key is a secret bag whose value is an encrypted private key info.

use std::ops::ControlFlow;

use zeroize::Zeroizing;

use crate::der::{self, Der};
use crate::password_based::{check_mac, decrypt};
use crate::{Budget, KeyStoreError, Request, SecretKey};

type Result<T> = std::result::Result<T, KeyStoreError>;

const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
const ENCRYPTED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x06];
/// The last byte is the kind.
const BAG: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x0a, 0x01];
pub(crate) const KEY: u8 = 1;
pub(crate) const SHROUDED: u8 = 2;
pub(crate) const CERTIFICATE: u8 = 3;
const SECRET: u8 = 5;
/// An X.509 certificate in a bag.
const X509: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
const FRIENDLY_NAME: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x14];
/// A key and its certificate have the same value.
const LOCAL_KEY_ID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x15];
/// Java's mark of a trusted certificate.
const TRUSTED: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf9, 0x66, 0xad, 0xca, 0x7b, 0x01, 0x01];
/// AES of any key size and mode.
const AES: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01];

pub(crate) struct Bag<'a> {
    pub(crate) kind: u8,
    pub(crate) value: &'a [u8],
    pub(crate) alias: Option<String>,
    pub(crate) key_id: &'a [u8],
    pub(crate) is_trusted: bool,
}

pub(crate) fn secret_key(file: &[u8], request: &Request<'_>, budget: &mut Budget) -> Result<SecretKey> {
    let mut present = Vec::new();
    let mut found = None;
    let all = for_each_bag(file, request.store_password, budget, &mut |bag, budget| {
        let Some(alias) = bag.alias.as_deref() else { return Ok(ControlFlow::Continue(())) };
        if !request.names(alias) {
            present.push(alias.to_owned());
            return Ok(ControlFlow::Continue(()));
        }
        if bag.kind != SECRET {
            return Err(KeyStoreError::NotSecret(alias.to_owned()));
        }
        found = Some(secret(bag.value, request.key_password, budget)?);
        Ok(ControlFlow::Break(()))
    });
    all?;
    found.ok_or_else(|| KeyStoreError::NoSuchAlias { alias: request.alias.to_owned(), present })
}

/// Visits all bags, or until a visit ends it. An error for contents with an unsupported cipher comes after the readable ones:
/// certificates often have another cipher than keys.
pub(crate) fn for_each_bag(
    file: &[u8],
    password: &str,
    budget: &mut Budget,
    visit: &mut impl FnMut(&Bag<'_>, &mut Budget) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut store = Der::new(file).enter(der::SEQUENCE, "PKCS12 store")?;
    if store.number("version of the PKCS12 store")? != 3 {
        return Err(KeyStoreError::Malformed("version of the PKCS12 store"));
    }
    let content = content(&mut store)?;
    if !store.is_empty() {
        check_integrity(store, password, content, budget)?;
    }
    let mut unsupported = None;
    let mut infos = Der::new(content).enter(der::SEQUENCE, "contents")?;
    while !infos.is_empty() {
        budget.entry()?;
        let bags = match safe_contents(&mut infos, password, budget) {
            Ok(bags) => bags,
            Err(KeyStoreError::Unsupported(what)) => {
                unsupported = Some(KeyStoreError::Unsupported(what));
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut bags = Der::new(&bags).enter(der::SEQUENCE, "bags")?;
        while !bags.is_empty() {
            budget.entry()?;
            let Some(bag) = bag(&mut bags)? else { continue };
            if visit(&bag, budget)?.is_break() {
                return Ok(());
            }
        }
    }
    unsupported.map_or(Ok(()), Err)
}

fn content<'a>(outer: &mut Der<'a>) -> Result<&'a [u8]> {
    let mut info = outer.enter(der::SEQUENCE, "content")?;
    if info.read(der::OID, "type of content")? != DATA {
        return Err(KeyStoreError::Unsupported("a signature of the store instead of a password".to_owned()));
    }
    info.enter(der::EXPLICIT_0, "content")?.read(der::OCTETS, "content")
}

fn check_integrity(mut store: Der<'_>, password: &str, content: &[u8], budget: &mut Budget) -> Result<()> {
    let what = "digest of the store";
    let mut mac = store.enter(der::SEQUENCE, what)?;
    let mut info = mac.enter(der::SEQUENCE, what)?;
    let (algorithm, _) = info.algorithm(what)?;
    let wanted = info.read(der::OCTETS, what)?;
    let salt = mac.read(der::OCTETS, what)?;
    let iterations = if mac.is_empty() { 1 } else { mac.number(what)? };
    check_mac(algorithm, password, (salt, iterations), content, wanted, budget)
}

/// Plain or encrypted.
fn safe_contents(infos: &mut Der<'_>, password: &str, budget: &mut Budget) -> Result<Zeroizing<Vec<u8>>> {
    let what = "encrypted content";
    let mut info = infos.enter(der::SEQUENCE, what)?;
    let kind = info.read(der::OID, what)?;
    let mut value = info.enter(der::EXPLICIT_0, what)?;
    match kind {
        DATA => Ok(Zeroizing::new(value.read(der::OCTETS, what)?.to_vec())),
        ENCRYPTED_DATA => {
            let mut data = value.enter(der::SEQUENCE, what)?;
            data.number(what)?;
            let mut content = data.enter(der::SEQUENCE, what)?;
            content.read(der::OID, what)?;
            let algorithm = content.algorithm(what)?;
            let text = content.read(der::IMPLICIT_0, what)?;
            decrypt(algorithm, password, text, budget)
        }
        _ => Err(KeyStoreError::Unsupported("contents for a public key".to_owned())),
    }
}

/// `None` for an unknown kind.
fn bag<'a>(bags: &mut Der<'a>) -> Result<Option<Bag<'a>>> {
    let what = "bag";
    let mut bag = bags.enter(der::SEQUENCE, what)?;
    let kind = match bag.read(der::OID, what)? {
        [prefix @ .., kind] if prefix == BAG => *kind,
        _ => return Ok(None),
    };
    let value = bag.read(der::EXPLICIT_0, what)?;
    let mut bag_of = Bag { kind, value, alias: None, key_id: &[], is_trusted: false };
    if bag.is_empty() {
        return Ok(Some(bag_of));
    }
    let mut attributes = bag.enter(der::SET, what)?;
    while !attributes.is_empty() {
        let mut attribute = attributes.enter(der::SEQUENCE, what)?;
        match attribute.read(der::OID, what)? {
            FRIENDLY_NAME if bag_of.alias.is_none() => {
                let name = attribute.enter(der::SET, what)?.read(der::BMP_STRING, what)?;
                let units = name.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
                let name = char::decode_utf16(units).map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER));
                bag_of.alias = Some(name.collect());
            }
            LOCAL_KEY_ID => bag_of.key_id = attribute.enter(der::SET, what)?.read(der::OCTETS, what)?,
            TRUSTED => bag_of.is_trusted = true,
            _ => {}
        }
    }
    Ok(Some(bag_of))
}

/// Decrypts a private key in PKCS#8.
pub(crate) fn shrouded(value: &[u8], password: &str, budget: &mut Budget) -> Result<Zeroizing<Vec<u8>>> {
    let what = "private key";
    let mut encrypted = Der::new(value).enter(der::SEQUENCE, what)?;
    let algorithm = encrypted.algorithm(what)?;
    decrypt(algorithm, password, encrypted.read(der::OCTETS, what)?, budget)
}

/// `None` for another type than X.509.
pub(crate) fn certificate(value: &[u8]) -> Result<Option<Vec<u8>>> {
    let what = "certificate";
    let mut bag = Der::new(value).enter(der::SEQUENCE, what)?;
    if bag.read(der::OID, what)? != X509 {
        return Ok(None);
    }
    Ok(Some(bag.enter(der::EXPLICIT_0, what)?.read(der::OCTETS, what)?.to_vec()))
}

fn secret(value: &[u8], password: &str, budget: &mut Budget) -> Result<SecretKey> {
    let what = "secret bag";
    let mut secret = Der::new(value).enter(der::SEQUENCE, what)?;
    match secret.read(der::OID, what)? {
        [prefix @ .., SHROUDED] if prefix == BAG => {}
        oid => return Err(KeyStoreError::Unsupported(format!("a secret of type {}", der::dotted(oid)))),
    }
    let encrypted = secret.enter(der::EXPLICIT_0, what)?.read(der::OCTETS, what)?;
    let mut encrypted = Der::new(encrypted).enter(der::SEQUENCE, what)?;
    let algorithm = encrypted.algorithm(what)?;
    let plain = decrypt(algorithm, password, encrypted.read(der::OCTETS, what)?, budget)?;
    let mut info = Der::new(&plain).enter(der::SEQUENCE, "decrypted key")?;
    info.number("decrypted key")?;
    let (oid, _) = info.algorithm("decrypted key")?;
    let bytes = info.read(der::OCTETS, "decrypted key")?;
    let algorithm = if oid.starts_with(AES) { "AES".to_owned() } else { der::dotted(oid) };
    Ok(SecretKey { algorithm, bytes: Zeroizing::new(bytes.to_vec()) })
}
