//! Tokens that somebody else has signed: JSON Web Tokens (RFC 7519), by a public key. `jsonwebtoken` reads them and looks at
//! their claims; the signatures are ring's.

use std::collections::HashSet;
use std::path::Path;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::Verifier;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Seconds by which the clocks of servers and of who signs may differ.
const LEEWAY: u64 = 30;

/// A key for tokens that cannot be used. Nothing was started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{file}: {reason}; a PEM file with a PUBLIC KEY of RSA, of P-256 or P-384, or of Ed25519 is expected"
)]
pub struct TokenKeyError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Whose tokens are believed, and which of them.
#[derive(Clone, Debug)]
pub struct Tokens {
    key: DecodingKey,
    validation: Validation,
}

/// What is read of a token: the rest is looked at by the library.
#[derive(Deserialize)]
struct Claims {
    sub: String,
}

impl Tokens {
    /// Believes tokens that are signed by the key in this PEM file and made for this audience. They have to say for how long
    /// they are good (`exp`) and whose they are (`sub`): that is the user's name.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or has no such key.
    pub fn from_file(key: impl AsRef<Path>, audience: &str) -> Result<Self, TokenKeyError> {
        let file = key.as_ref().display().to_string();
        let wrong = |reason: String| TokenKeyError { file: file.clone(), reason };
        let info = SubjectPublicKeyInfoDer::from_pem_file(key.as_ref());
        let info = info.map_err(|error| wrong(error.to_string()))?;
        Self::from_der(&info, audience).ok_or_else(|| wrong("its key is of another kind".to_owned()))
    }

    /// The same with the key in DER.
    fn from_der(info: &[u8], audience: &str) -> Option<Self> {
        let (_, info) = SubjectPublicKeyInfo::from_der(info).ok()?;
        let key = &info.subject_public_key.data;
        let parameters = info.algorithm.parameters.as_ref();
        let curve = parameters.and_then(|curve| curve.as_oid().ok()).map(|curve| curve.to_id_string());
        let (key, algorithms) = match (&info.algorithm.algorithm.to_id_string()[..], curve.as_deref()) {
            ("1.2.840.113549.1.1.1", _) => {
                use Algorithm::{PS256, PS384, PS512, RS256, RS384, RS512};
                (DecodingKey::from_rsa_der(key), vec![RS256, RS384, RS512, PS256, PS384, PS512])
            }
            ("1.2.840.10045.2.1", Some("1.2.840.10045.3.1.7")) => {
                (DecodingKey::from_ec_der(key), vec![Algorithm::ES256])
            }
            ("1.2.840.10045.2.1", Some("1.3.132.0.34")) => {
                (DecodingKey::from_ec_der(key), vec![Algorithm::ES384])
            }
            ("1.3.101.112", _) => (DecodingKey::from_ed_der(key), vec![Algorithm::EdDSA]),
            _ => return None,
        };
        // Another library of the process may have installed one, which then does the same.
        let _ = CRYPTO.install_default();
        let mut validation = Validation::new(algorithms[0]);
        validation.algorithms = algorithms;
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        Some(Self { key, validation })
    }

    /// Only those that this issuer has made (`iss`).
    #[must_use]
    pub fn issued_by(mut self, issuer: &str) -> Self {
        self.validation.iss = Some(HashSet::from([issuer.to_owned()]));
        self.validation.required_spec_claims.insert("iss".to_owned());
        self
    }

    /// Whose token it is, if it is good.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn owner(&self, token: &str) -> Result<String, String> {
        let read = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation);
        read.map(|token| token.claims.sub).map_err(|error| told(&error))
    }
}

/// What is wrong with a token, in words that say nothing of what is in it.
fn told(error: &Error) -> String {
    let told = match error.kind() {
        ErrorKind::ExpiredSignature => "it has expired",
        ErrorKind::ImmatureSignature => "it is not good yet",
        ErrorKind::InvalidSignature => "its signature is not that of the key",
        ErrorKind::InvalidAlgorithm => "it is signed in another way than the key signs",
        ErrorKind::InvalidAudience => "it is for somebody else",
        ErrorKind::InvalidIssuer => "it is of another issuer",
        ErrorKind::MissingRequiredClaim(claim) => return format!("it does not say {claim}"),
        ErrorKind::InvalidClaimFormat(claim) => return format!("its {claim} is none"),
        _ => "it is no token",
    };
    told.to_owned()
}

/// What the library takes signatures from. It only reads tokens here, and has its keys as they are.
static CRYPTO: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| {
        let with: &'static dyn VerificationAlgorithm = match algorithm {
            Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
            Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
            Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
            Algorithm::ES256 => &signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::ES384 => &signature::ECDSA_P384_SHA384_FIXED,
            Algorithm::EdDSA => &signature::ED25519,
            _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
        };
        if key.family() != algorithm.family() {
            return Err(ErrorKind::InvalidKeyFormat.into());
        }
        let key = UnparsedPublicKey::new(with, key.try_get_as_bytes()?.to_vec());
        Ok(Box::new(Signed { algorithm: *algorithm, key }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// A key, and how it signs.
struct Signed {
    algorithm: Algorithm,
    key: UnparsedPublicKey<Vec<u8>>,
}

impl Verifier<Vec<u8>> for Signed {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), jsonwebtoken::signature::Error> {
        self.key.verify(message, signed).map_err(|_| jsonwebtoken::signature::Error::new())
    }
}

impl JwtVerifier for Signed {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    /// The key of RFC 7515, appendix A.3, in DER.
    fn key_of_the_rfc() -> Vec<u8> {
        let mut der =
            b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\
                        \x03\x42\x00\x04"
                .to_vec();
        for part in
            ["f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"]
        {
            der.extend(URL_SAFE_NO_PAD.decode(part).unwrap());
        }
        der
    }

    /// RFC 7515, appendix A.3: it is signed, but names nobody, and has expired.
    const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.\
        eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
        DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

    #[test]
    fn the_signature_of_the_rfc_is_right_and_another_is_not() {
        let mut tokens = Tokens::from_der(&key_of_the_rfc(), "shop").unwrap();
        tokens.validation.required_spec_claims.clear();
        assert_eq!(tokens.owner(TOKEN).unwrap_err(), "it is no token", "it has no sub");
        let other = TOKEN.replace(".DtEh", ".EtEh");
        assert_eq!(tokens.owner(&other).unwrap_err(), "its signature is not that of the key");
    }

    #[test]
    fn nothing_but_the_keys_own_way_to_sign_is_believed() {
        let tokens = Tokens::from_der(&key_of_the_rfc(), "shop").unwrap();
        let with_header = |header: &str| {
            let (_, rest) = TOKEN.split_once('.').unwrap();
            tokens.owner(&format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header))).unwrap_err()
        };
        for header in [r#"{"alg":"HS256"}"#, r#"{"alg":"RS256"}"#, r#"{"alg":"ES384"}"#, r#"{"alg":"EdDSA"}"#]
        {
            assert_eq!(with_header(header), "it is signed in another way than the key signs");
        }
        for header in [r#"{"alg":"none"}"#, "{}", "nonsense"] {
            assert_eq!(with_header(header), "it is no token", "{header}");
        }
        for nonsense in ["", ".", "..", "a.b.c", "a.b.c.d"] {
            assert_eq!(tokens.owner(nonsense).unwrap_err(), "it is no token");
        }
    }

    #[test]
    fn a_file_without_a_key_is_named() {
        let error = Tokens::from_file("Cargo.toml", "shop").unwrap_err().to_string();
        assert!(error.starts_with("Cargo.toml: ") && error.ends_with("or of Ed25519 is expected"), "{error}");
        assert!(Tokens::from_der(b"\x30\x00", "shop").is_none());
    }
}
