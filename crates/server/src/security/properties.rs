//! Users of Infinispan's `users.properties` and `groups.properties`.
//!
//! A line of the first is `NAME=SECRETS`. With `$ALGORITHM=encrypted$` in a comment, secrets are `ALGORITHM:BASE64`, with semicolons
//! between them; that of SCRAM is a byte 5, the numbers of iterations and of salt bytes in groups of seven bits, the salt, and the
//! salted password (RFC 5802). Otherwise it is the password. A line of the second is `NAME=GROUP[,GROUP…]`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use consort_conf::{PropertiesError, Property, read_properties};
use consort_sasl::prepare;
use consort_sasl::scram::{Hash, Verifier};

use crate::security::role::Grants;
use crate::security::secret::Secret;
use crate::security::users::{UserEntry, Users};

/// The users of a file; each costs memory and, with a password in cleartext, three hashes.
pub(crate) const USERS_MAX: usize = 100_000;

const ITERATED_SALTED: u8 = 5;

fn properties(text: &str) -> Result<Vec<Property>, PropertiesError> {
    read_properties(text, USERS_MAX)
}

/// A comment's `$NAME=VALUE$`.
fn comment<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let start = format!("${name}=");
    let mut comments = text.lines().map(str::trim).filter(|line| line.starts_with('#'));
    comments.find_map(|line| {
        let (_, rest) = line.split_once(&start)?;
        rest.split_once('$').map(|(value, _)| value)
    })
}

/// Seven bits a byte, the highest first; a set highest bit means that more follow.
fn packed(bytes: &mut &[u8]) -> Option<u32> {
    let mut number: u32 = 0;
    loop {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number = number.checked_mul(1 << 7)?.checked_add(u32::from(first & 0x7f))?;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
}

fn hash_of(algorithm: &str) -> Option<Hash> {
    match algorithm {
        "scram-sha-256" => Some(Hash::Sha256),
        "scram-sha-384" => Some(Hash::Sha384),
        "scram-sha-512" => Some(Hash::Sha512),
        _ => None,
    }
}

fn verifier(hash: Hash, text: &str) -> Option<Verifier> {
    let text = text.trim();
    let bytes = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok()?;
    let (kind, mut rest) = bytes.split_first()?;
    if *kind != ITERATED_SALTED {
        return None;
    }
    let iterations = packed(&mut rest)?;
    let salt_len = packed(&mut rest)? as usize;
    let (salt, salted) = rest.split_at_checked(salt_len)?;
    Verifier::from_salted(hash, salted, salt.to_vec(), iterations)
}

fn verifiers(line: usize, name: &str, text: &str) -> Result<Vec<Verifier>, PropertiesError> {
    let wrong = |reason: String| PropertiesError { line, reason };
    let mut found = Vec::new();
    for secret in text.split(';').filter(|secret| !secret.is_empty()) {
        let Some((algorithm, secret)) = secret.split_once(':') else {
            return Err(wrong(format!("user {name}: a secret is ALGORITHM:BASE64")));
        };
        let Some(hash) = hash_of(algorithm) else { continue };
        let verifier = verifier(hash, secret);
        found.push(
            verifier
                .ok_or_else(|| wrong(format!("user {name}: the secret for {algorithm} cannot be read")))?,
        );
    }
    if found.is_empty() {
        return Err(wrong(format!(
            "user {name} has no secret for scram-sha-512, scram-sha-384 or scram-sha-256"
        )));
    }
    Ok(found)
}

/// The groups of each user.
pub(crate) fn groups(text: &str) -> Result<BTreeMap<String, BTreeSet<String>>, PropertiesError> {
    let mut all = BTreeMap::new();
    for Property { name, value, .. } in properties(text)? {
        let groups = value.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned);
        all.insert(name, groups.collect());
    }
    Ok(all)
}

/// Reads the users, with the permissions that a function has for a user's name and groups.
pub(crate) fn users(
    text: &str,
    groups: &BTreeMap<String, BTreeSet<String>>,
    mut grants_of: impl FnMut(&str, &BTreeSet<String>) -> Arc<Grants>,
) -> Result<Users, PropertiesError> {
    let is_encrypted = match comment(text, "ALGORITHM") {
        Some("encrypted") => true,
        None | Some("clear") => false,
        Some(other) => {
            return Err(PropertiesError {
                line: 1,
                reason: format!("unknown algorithm {other}; it is clear or encrypted"),
            });
        }
    };
    let none = BTreeSet::new();
    let mut users = Users::without_entries(Secret::from_file_text(text));
    for Property { line, name, value } in properties(text)? {
        let wrong = |reason: String| PropertiesError { line, reason };
        let prepared =
            prepare(&name).map_err(|_| wrong(format!("{name:?} is not a valid name")))?.into_owned();
        let grants = grants_of(&name, groups.get(&name).unwrap_or(&none));
        let entry = if is_encrypted {
            UserEntry::with_verifiers(grants, verifiers(line, &name, &value)?)
        } else {
            let password =
                prepare(&value).map_err(|_| wrong(format!("user {name}: the password is not valid")))?;
            UserEntry::with_password(grants, password.into_owned())
        };
        users.add(prepared, entry);
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::role::{Permission, Permissions};

    fn all(_: &str, groups: &BTreeSet<String>) -> Arc<Grants> {
        let is_admin = groups.contains("admin");
        let permissions =
            if is_admin { Permissions::new(&[Permission::Admin]) } else { Permissions::default() };
        Arc::new(permissions.into())
    }

    fn read(text: &str) -> Result<Users, PropertiesError> {
        users(text, &groups("alice=admin, ops\nbob=\n").unwrap(), all)
    }

    /// A salted password for SCRAM-SHA-512 in Elytron's encoding.
    fn encoded(password: &str) -> String {
        let (salt, iterations) = (b"salty salt".to_vec(), 4_096_u32);
        let mut bytes = vec![ITERATED_SALTED, 0x80 | 32, 0, salt.len() as u8];
        bytes.extend(&salt);
        let mut salted = [0; 64];
        let rounds = std::num::NonZeroU32::new(iterations).unwrap();
        ring::pbkdf2::derive(
            ring::pbkdf2::PBKDF2_HMAC_SHA512,
            rounds,
            &salt,
            password.as_bytes(),
            &mut salted,
        );
        bytes.extend(salted);
        STANDARD.encode(bytes)
    }

    #[test]
    fn encrypted_secrets_are_verifiers_of_the_password() {
        let secret = encoded("wonderland");
        let text = format!(
            "#$REALM_NAME=default$\n#$ALGORITHM=encrypted$\nalice=scram-sha-1\\:AAAA;scram-sha-512\\:{secret};digest-md5\\:AA==\n"
        );
        let users = read(&text).unwrap();
        let alice = users.get("alice").unwrap();
        assert!(alice.verifier(Some(Hash::Sha512)).unwrap().fits("wonderland"));
        assert!(!alice.verifier(Some(Hash::Sha512)).unwrap().fits("other"));
        assert!(alice.verifier(Some(Hash::Sha256)).is_none());
        assert!(alice.grants.permissions.contain(Permission::Admin));
        assert_eq!(read(&text.replace("\\:", ":")).unwrap().count(), 1);
    }

    #[test]
    fn passwords_in_cleartext_have_all_verifiers() {
        let users = read("# a comment\nalice=wonder\\=land\nbob : secret\n").unwrap();
        assert!(users.get("alice").unwrap().verifier(Some(Hash::Sha256)).unwrap().fits("wonder=land"));
        assert!(users.get("bob").unwrap().verifier(Some(Hash::Sha512)).unwrap().fits("secret"));
        assert!(!users.get("bob").unwrap().grants.permissions.contain(Permission::Admin));
        assert_eq!(read("#\n").unwrap().count(), 0);
    }

    #[test]
    fn error_names_the_line() {
        for (text, line, expected) in [
            ("#$ALGORITHM=encrypted$\nalice=x\n", 2, "ALGORITHM:BASE64"),
            ("#$ALGORITHM=encrypted$\nalice=digest-md5:AA==\n", 2, "has no secret"),
            ("#$ALGORITHM=encrypted$\n\nalice=scram-sha-256:AA==\n", 3, "cannot be read"),
            ("#$ALGORITHM=rot13$\n", 1, "unknown algorithm"),
            ("alice=x\nbob=\\u00\n", 2, "escape"),
            ("alice=\n", 1, "not valid"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.line == line && error.reason.contains(expected), "{text}: {error:?}");
        }
    }

    #[test]
    fn broken_secrets_are_errors() {
        for secret in ["", "AA==", "BQ==", "Bf////////8=", "BaAAfw==", "not base64"] {
            assert!(
                read(&format!("#$ALGORITHM=encrypted$\nalice=scram-sha-256:{secret}\n")).is_err(),
                "{secret}"
            );
        }
    }
}
