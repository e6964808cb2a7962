//! Keys derived from passwords: PKCS#5 2.1 (RFC 8018), PKCS#12 (RFC 7292 appendix B) and Java's own derivation of JCEKS.

use aes::cipher::generic_array::GenericArray;
use aes::cipher::{BlockDecrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes192, Aes256};
use des::TdesEde3;
use md5::{Digest as _, Md5};
use ring::{digest, hmac, pbkdf2};
use zeroize::Zeroizing;

use crate::der::{self, Der};
use crate::{Budget, KeyStoreError};

type Result<T> = std::result::Result<T, KeyStoreError>;
type Secret = Zeroizing<Vec<u8>>;

const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d];
const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0c];
/// SHA-1, 224, 256, 384, 512: the last byte is 7 to 11.
const HMAC: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02];
const PBE_SHA1_3DES: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x01, 0x03];
const DES_EDE3_CBC: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x03, 0x07];
/// CBC with 128, 192 and 256 bits: the last byte is 2, 22, 42.
const AES: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01];
const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
/// SHA-256, 384 and 512: the last byte is 1 to 3.
const SHA2: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];

fn unsupported(oid: &[u8]) -> KeyStoreError {
    KeyStoreError::Unsupported(der::dotted(oid))
}

/// The higher byte comes first.
pub(crate) fn utf16(password: &str) -> Secret {
    Zeroizing::new(password.encode_utf16().flat_map(u16::to_be_bytes).collect())
}

/// The algorithm is of PKCS#5 or PKCS#12.
pub(crate) fn decrypt(
    algorithm: (&[u8], Der<'_>),
    password: &str,
    text: &[u8],
    budget: &mut Budget,
) -> Result<Secret> {
    let (oid, parameters) = algorithm;
    match oid {
        PBES2 => pbes2(parameters, password, text, budget),
        PBE_SHA1_3DES => {
            let what = "parameters of PBEWithSHA1AndDESede";
            let mut parameters = Der::new(parameters_of(parameters, what)?);
            let salt = parameters.read(der::OCTETS, what)?;
            let iterations = parameters.number(what)?;
            let iterations = budget.iterate(iterations.saturating_mul(3))?.get() / 3;
            let sha1 = &digest::SHA1_FOR_LEGACY_USE_ONLY;
            let key = pkcs12_key(sha1, KEY, password, salt, iterations, 24);
            let iv = pkcs12_key(sha1, VECTOR, password, salt, iterations, 8);
            cbc::<TdesEde3>(&key, &iv, text)
        }
        _ => Err(unsupported(oid)),
    }
}

fn parameters_of<'a>(mut outer: Der<'a>, what: &'static str) -> Result<&'a [u8]> {
    outer.read(der::SEQUENCE, what)
}

fn pbes2(outer: Der<'_>, password: &str, text: &[u8], budget: &mut Budget) -> Result<Secret> {
    let what = "parameters of PBES2";
    let mut parameters = Der::new(parameters_of(outer, what)?);
    let (derivation, mut own) = parameters.algorithm(what)?;
    let (cipher, mut of_cipher) = parameters.algorithm(what)?;
    if derivation != PBKDF2 {
        return Err(unsupported(derivation));
    }
    let mut own = own.enter(der::SEQUENCE, what)?;
    let salt = own.read(der::OCTETS, what)?;
    let iterations = budget.iterate(own.number(what)?)?;
    if own.tag() == Some(der::INTEGER) {
        own.number(what)?;
    }
    let hmac = if own.is_empty() { 7 } else { hmac_number(own.algorithm(what)?.0)? };
    let algorithm = match hmac {
        7 => pbkdf2::PBKDF2_HMAC_SHA1,
        9 => pbkdf2::PBKDF2_HMAC_SHA256,
        10 => pbkdf2::PBKDF2_HMAC_SHA384,
        11 => pbkdf2::PBKDF2_HMAC_SHA512,
        _ => return Err(KeyStoreError::Unsupported("HMAC with SHA-224".to_owned())),
    };
    let iv = of_cipher.read(der::OCTETS, what)?;
    let derive = |length| {
        let mut key = Zeroizing::new(vec![0; length]);
        pbkdf2::derive(algorithm, iterations, salt, password.as_bytes(), &mut key);
        key
    };
    match cipher {
        [prefix @ .., 2] if prefix == AES => cbc::<Aes128>(&derive(16), iv, text),
        [prefix @ .., 22] if prefix == AES => cbc::<Aes192>(&derive(24), iv, text),
        [prefix @ .., 42] if prefix == AES => cbc::<Aes256>(&derive(32), iv, text),
        DES_EDE3_CBC => cbc::<TdesEde3>(&derive(24), iv, text),
        _ => Err(unsupported(cipher)),
    }
}

fn hmac_number(oid: &[u8]) -> Result<u8> {
    match oid {
        [prefix @ .., number @ 7..=11] if prefix == HMAC => Ok(*number),
        _ => Err(unsupported(oid)),
    }
}

/// Purposes of bytes in PKCS#12.
const KEY: u8 = 1;
const VECTOR: u8 = 2;
const MAC: u8 = 3;

/// In constant time.
pub(crate) fn check_mac(
    algorithm: &[u8],
    password: &str,
    (salt, iterations): (&[u8], u64),
    content: &[u8],
    wanted: &[u8],
    budget: &mut Budget,
) -> Result<()> {
    let (digest, hmac) = match algorithm {
        SHA1 => (&digest::SHA1_FOR_LEGACY_USE_ONLY, hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
        [prefix @ .., 1] if prefix == SHA2 => (&digest::SHA256, hmac::HMAC_SHA256),
        [prefix @ .., 2] if prefix == SHA2 => (&digest::SHA384, hmac::HMAC_SHA384),
        [prefix @ .., 3] if prefix == SHA2 => (&digest::SHA512, hmac::HMAC_SHA512),
        _ => return Err(unsupported(algorithm)),
    };
    let iterations = budget.iterate(iterations)?.get();
    let key = pkcs12_key(digest, MAC, password, salt, iterations, digest.output_len());
    let key = hmac::Key::new(hmac, &key);
    hmac::verify(&key, content, wanted).map_err(|_| KeyStoreError::WrongPassword)
}

/// RFC 7292, appendix B.2, with its names.
fn pkcs12_key(
    digest: &'static digest::Algorithm,
    id: u8,
    password: &str,
    salt: &[u8],
    iterations: u32,
    length: usize,
) -> Secret {
    let v = digest.block_len();
    let mut password = utf16(password);
    password.extend([0, 0]);
    let filled = |bytes: &[u8]| -> Secret {
        let length = bytes.len().div_ceil(v) * v;
        Zeroizing::new(bytes.iter().copied().cycle().take(length).collect())
    };
    let mut i = filled(salt);
    i.extend_from_slice(&filled(&password));
    let mut out = Zeroizing::new(Vec::with_capacity(length + digest.output_len()));
    while out.len() < length {
        let mut context = digest::Context::new(digest);
        context.update(&vec![id; v]);
        context.update(&i);
        let mut a = context.finish();
        for _ in 1..iterations {
            a = digest::digest(digest, a.as_ref());
        }
        out.extend_from_slice(a.as_ref());
        let b: Secret = Zeroizing::new(a.as_ref().iter().copied().cycle().take(v).collect());
        for block in i.chunks_exact_mut(v) {
            let mut carry = 1;
            for (byte, add) in block.iter_mut().zip(b.iter()).rev() {
                carry += u16::from(*byte) + u16::from(*add);
                *byte = carry as u8;
                carry >>= 8;
            }
        }
    }
    out.truncate(length);
    out
}

/// Java's `PBEWithMD5AndTripleDES`.
pub(crate) fn md5_and_3des(
    salt: &[u8],
    iterations: u64,
    password: &str,
    text: &[u8],
    budget: &mut Budget,
) -> Result<Secret> {
    let mut salt: [u8; 8] = salt.try_into().map_err(|_| KeyStoreError::Malformed("salt"))?;
    // Java refuses other passwords here, because it uses one byte of each character.
    if !password.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Err(KeyStoreError::WrongPassword);
    }
    let iterations = budget.iterate(iterations.saturating_mul(2))?.get() / 2;
    if salt[..4] == salt[4..] {
        // Java inverts the first half then, with an error in one index.
        for at in 0..2 {
            let first = salt[at];
            salt[at] = salt[3 - at];
            salt[2] = first;
        }
    }
    let mut derived = Zeroizing::new(Vec::with_capacity(32));
    for half in salt.chunks_exact(4) {
        let mut hashed = Zeroizing::new(Vec::with_capacity(16));
        hashed.extend_from_slice(half);
        for _ in 0..iterations {
            let digest = Md5::new().chain_update(&hashed[..]).chain_update(password).finalize();
            hashed.clear();
            hashed.extend_from_slice(&digest);
        }
        derived.extend_from_slice(&hashed);
    }
    cbc::<TdesEde3>(&derived[..24], &derived[24..], text)
}

/// Removes the padding of PKCS#5.
pub(crate) fn cbc<C: KeyInit + BlockDecrypt + BlockSizeUser>(
    key: &[u8],
    iv: &[u8],
    text: &[u8],
) -> Result<Secret> {
    let size = C::block_size();
    let cipher = C::new_from_slice(key).map_err(|_| KeyStoreError::Malformed("length of a derived key"))?;
    if iv.len() != size || text.is_empty() || !text.len().is_multiple_of(size) {
        return Err(KeyStoreError::Malformed("length of a cipher text"));
    }
    let mut plain = Zeroizing::new(text.to_vec());
    for block in plain.chunks_exact_mut(size) {
        cipher.decrypt_block(GenericArray::from_mut_slice(block));
    }
    plain.iter_mut().zip(iv.iter().chain(text)).for_each(|(byte, before)| *byte ^= before);
    let padding = usize::from(plain.last().copied().unwrap_or_default());
    let length = plain.len().checked_sub(padding).filter(|_| (1..=size).contains(&padding));
    let length = length.filter(|&length| plain[length..].iter().all(|byte| usize::from(*byte) == padding));
    plain.truncate(length.ok_or(KeyStoreError::WrongPassword)?);
    Ok(plain)
}
