//! Passwords of a credential store as WildFly Elytron writes it, and masked passwords: Infinispan's server files refer to both.
//!
//! A credential is a secret key whose alias names its type, and whose bytes are an octet string in DER with the password.

use des::Des;
use md5::{Digest as _, Md5};
use zeroize::Zeroizing;

use crate::der::{self, Der};
use crate::password_based::cbc;
use crate::{Budget, KeyStoreError, Limits, StoreType, secret_key};

type Result<T> = std::result::Result<T, KeyStoreError>;
type Password = Zeroizing<String>;

/// The type of a password in cleartext, in an alias.
const CLEAR: &str = "/passwordcredential/clear/";

/// The password of masked passwords, which is no secret: masking keeps them from a glance, as in Infinispan.
const MASK: &[u8] = b"somearbitrarycrazystringthatdoesnotmatter";

/// The digits of PicketBox's form of base 64.
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz./";

/// The most characters of a masked password.
const MASKED_MAX: usize = 4_096;

/// Reads the password with an alias, in any case, from a credential store. Without an alias, the store has one password.
///
/// # Errors
///
/// A malformed or too large file, a wrong password, or no such alias.
pub fn credential(
    file: &[u8],
    alias: Option<&str>,
    store_password: &str,
    limits: &Limits,
) -> Result<Password> {
    let read =
        |alias: &str| secret_key(file, StoreType::Pkcs12, alias, store_password, store_password, limits);
    let key = match alias {
        Some(alias) => read(&format!("{alias}{CLEAR}")),
        None => match read("") {
            Err(KeyStoreError::NoSuchAlias { present, .. }) if present.len() == 1 => read(&present[0]),
            other => other,
        },
    };
    let key = key.map_err(|error| match error {
        KeyStoreError::NoSuchAlias { present, .. } => {
            let mut present: Vec<String> =
                present.iter().map(|own| own.trim_end_matches(CLEAR).to_owned()).collect();
            present.sort_unstable();
            KeyStoreError::NoSuchAlias { alias: alias.unwrap_or_default().to_owned(), present }
        }
        other => other,
    })?;
    text(Der::new(key.bytes()).read(der::OCTETS, "password")?)
}

fn text(bytes: &[u8]) -> Result<Password> {
    let text = std::str::from_utf8(bytes).map_err(|_| KeyStoreError::Malformed("password"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Reads a masked password, `CIPHERTEXT;SALT;ITERATIONS`.
///
/// # Errors
///
/// A text of another form, or too many iterations.
pub fn unmask(masked: &str, limits: &Limits) -> Result<Password> {
    let malformed = KeyStoreError::Malformed("masked password");
    let mut parts = masked.split(';');
    let (Some(cipher_text), Some(salt), Some(iterations), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed);
    };
    if masked.len() > MASKED_MAX || salt.len() < 8 {
        return Err(malformed);
    }
    let cipher_text = decode(cipher_text).ok_or(malformed.clone())?;
    let mut budget = Budget { entries: limits.entries, iterations: limits.iterations };
    let iterations = budget.iterate(iterations.trim().parse().map_err(|_| malformed.clone())?)?.get();
    let mut derived = Zeroizing::new(Vec::with_capacity(16));
    derived.extend_from_slice(&Md5::new().chain_update(MASK).chain_update(&salt.as_bytes()[..8]).finalize());
    for _ in 1..iterations {
        let digest = Md5::digest(&derived[..]);
        derived.clear();
        derived.extend_from_slice(&digest);
    }
    text(&cbc::<Des>(&derived[..8], &derived[8..], &cipher_text)?)
}

/// Bits before the first byte are padding.
fn decode(digits: &str) -> Option<Vec<u8>> {
    let padding = digits.len() * 6 % 8;
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for (at, digit) in digits.bytes().enumerate() {
        let value = DIGITS.iter().position(|own| *own == digit)? as u32;
        (bits, count) = (bits << 6 | value, count + 6);
        if at * 6 < padding && count >= padding {
            count -= padding;
            bits &= (1 << count) - 1;
        }
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elytron 2.7 wrote them.
    const STORES: [&[u8]; 2] =
        [include_bytes!("../tests/data/credentials.p12"), include_bytes!("../tests/data/credentials.jceks")];

    #[test]
    fn passwords_of_stores_by_elytron_are_read() {
        for store in STORES {
            let read = |alias, password| credential(store, alias, password, &Limits::default());
            assert_eq!(*read(Some("keystore"), "secret").unwrap(), "p\u{e4}ss-keystore");
            assert_eq!(*read(Some("Trust"), "secret").unwrap(), "p\u{e4}ss-Trust");
            assert_eq!(read(Some("trust"), "wrong"), Err(KeyStoreError::WrongPassword));
            for alias in [Some("ldap"), None] {
                let error = read(alias, "secret").unwrap_err().to_string();
                assert!(error.ends_with("the aliases are: keystore, trust"), "{error}");
            }
        }
    }

    #[test]
    fn masked_password_of_elytron_is_read() {
        let unmasked = |text: &str| unmask(text, &Limits::default());
        assert_eq!(*unmasked("1Hc4Feq2wJs;pepper99;100").unwrap(), "secret");
        for wrong in
            ["", "1Hc4Feq2wJs", "1Hc4Feq2wJs;pepper99", "1Hc4Feq2wJs;pep;100", "1Hc4Feq2wJs;pepper99;x"]
        {
            assert_eq!(unmasked(wrong), Err(KeyStoreError::Malformed("masked password")), "{wrong}");
        }
        assert!(unmasked("1Hc4Feq2wJs;pepper99;0").is_err() && unmasked("1Hc4Feq2wJt;pepper99;100").is_err());
        assert!(matches!(unmasked("1Hc4Feq2wJs;pepper99;9000000"), Err(KeyStoreError::TooManyIterations(_))));
        assert!(unmasked(&format!("{};pepper99;1", "1".repeat(MASKED_MAX))).is_err());
    }
}
