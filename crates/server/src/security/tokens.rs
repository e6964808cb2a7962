//! JSON Web Tokens (RFC 7519) of an identity provider. `jsonwebtoken` parses tokens and checks claims; ring verifies signatures.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::Verifier;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::{self, PemObject};
use serde::Deserialize;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The tolerated difference between the clocks of servers and issuers, in seconds.
const LEEWAY: u64 = 30;

/// An unusable file of token keys; nothing was started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{file}: {reason}; a PEM file with one or more PUBLIC KEYs of RSA, P-256, P-384 or Ed25519 is expected"
)]
pub struct TokenKeyError {
    /// The file.
    pub file: String,
    /// The reason.
    pub reason: String,
}

/// Each key may have to be tried on a token of an unauthenticated client. An issuer has one key, two during a rotation.
const KEYS_MAX: usize = 8;

/// The accepted tokens: the keys, the audience and the issuer.
#[derive(Clone, Debug)]
pub struct Tokens {
    keys: Vec<Key>,
    validation: Validation,
}

#[derive(Clone, Debug)]
struct Key {
    key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

/// The library checks the others.
#[derive(Deserialize)]
struct Claims {
    sub: String,
}

impl Tokens {
    /// Accepts tokens signed by a key in this PEM file, of up to eight, and issued for this audience. They need an expiry (`exp`)
    /// and a subject (`sub`), the user's name.
    ///
    /// # Errors
    ///
    /// The file cannot be read, has no key, a key of an unsupported kind, or more than eight.
    pub fn from_file(keys: impl AsRef<Path>, audience: &str) -> Result<Self, TokenKeyError> {
        let file = keys.as_ref().display().to_string();
        match std::fs::read(keys.as_ref()) {
            Ok(pem) => Self::from_pem(file, &pem, audience),
            Err(error) => Err(TokenKeyError { file, reason: error.to_string() }),
        }
    }

    pub(crate) fn from_pem(file: String, pem: &[u8], audience: &str) -> Result<Self, TokenKeyError> {
        let wrong = |reason: String| TokenKeyError { file: file.clone(), reason };
        let unread = |error: pem::Error| wrong(error.to_string());
        let mut read = Vec::new();
        for (at, info) in SubjectPublicKeyInfoDer::pem_slice_iter(pem).enumerate() {
            if at == KEYS_MAX {
                return Err(wrong(format!("it has more than {KEYS_MAX} keys")));
            }
            let key = Key::from_der(&info.map_err(unread)?);
            read.push(key.ok_or_else(|| wrong(format!("the kind of key {} is not supported", at + 1)))?);
        }
        if read.is_empty() { Err(wrong("it has no key".to_owned())) } else { Ok(Self::new(read, audience)) }
    }

    fn new(keys: Vec<Key>, audience: &str) -> Self {
        // Another library of the process may have installed a provider already; it does the same.
        let _ = CRYPTO.install_default();
        let mut validation = Validation { leeway: LEEWAY, validate_nbf: true, ..Validation::default() };
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        Self { keys, validation }
    }

    /// Accepts only tokens of this issuer (`iss`).
    #[must_use]
    pub fn issuer(mut self, issuer: &str) -> Self {
        self.validation.set_issuer(&[issuer]);
        self.validation.required_spec_claims.insert("iss".to_owned());
        self
    }

    /// Accepts tokens for one of these audiences, and, if there are some, of one of these issuers only.
    #[must_use]
    pub(crate) fn accepting(mut self, audiences: &[&str], issuers: &[&str]) -> Self {
        self.validation.set_audience(audiences);
        if !issuers.is_empty() {
            self.validation.set_issuer(issuers);
            self.validation.required_spec_claims.insert("iss".to_owned());
        }
        self
    }

    /// Returns the user's name, or the reason why the token is refused.
    pub(crate) fn owner(&self, token: &str) -> Result<String, String> {
        check_header(token)?;
        let mut wrong = ErrorKind::InvalidAlgorithm;
        for Key { key, algorithms } in &self.keys {
            let validation = Validation { algorithms: algorithms.clone(), ..self.validation.clone() };
            match jsonwebtoken::decode::<Claims>(token, key, &validation).map_err(Error::into_kind) {
                Ok(token) => return Ok(token.claims.sub),
                // Another key may have signed the token.
                Err(ErrorKind::InvalidAlgorithm) => {}
                Err(ErrorKind::InvalidSignature) => wrong = ErrorKind::InvalidSignature,
                Err(other) => return Err(refusal(&other)),
            }
        }
        Err(refusal(&wrong))
    }
}

impl Key {
    fn from_der(info: &[u8]) -> Option<Self> {
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
        Some(Self { key, algorithms })
    }
}

/// The library does not check these fields. The signature is not verified yet, so they can only cause a refusal.
#[derive(Deserialize)]
struct TokenHeader {
    /// RFC 7519, section 5.1; RFC 9068, section 2.1.
    typ: Option<serde_json::Value>,
    /// Extensions that must be understood (RFC 7515, section 4.1.11); none is.
    crit: Option<serde_json::Value>,
}

/// Others, such as logout tokens, do not authenticate a user.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];

fn check_header(token: &str) -> Result<(), String> {
    let malformed = || "it is not a valid token".to_owned();
    let header = token.split('.').next().unwrap_or_default();
    let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| malformed())?;
    let header: TokenHeader = serde_json::from_slice(&header).map_err(|_| malformed())?;
    if header.crit.is_some() {
        return Err("it has critical extensions (crit), which are not supported".to_owned());
    }
    let Some(kind) = header.typ else { return Ok(()) };
    let kind = kind.as_str().unwrap_or_default().to_ascii_lowercase();
    let kind = kind.strip_prefix("application/").unwrap_or(&kind);
    if TYPES.contains(&kind) { Ok(()) } else { Err("it is a token of another type (typ)".to_owned()) }
}

/// The reason has no contents of the token.
fn refusal(wrong: &ErrorKind) -> String {
    let text = match wrong {
        ErrorKind::ExpiredSignature => "it has expired",
        ErrorKind::ImmatureSignature => "it is not valid yet",
        ErrorKind::InvalidSignature => "its signature is invalid",
        ErrorKind::InvalidAlgorithm => "its algorithm does not match the keys",
        ErrorKind::InvalidAudience => "it is for another audience",
        ErrorKind::InvalidIssuer => "it is from another issuer",
        ErrorKind::MissingRequiredClaim(claim) => return format!("it has no claim {claim}"),
        ErrorKind::InvalidClaimFormat(claim) => return format!("its claim {claim} is malformed"),
        _ => "it is not a valid token",
    };
    text.to_owned()
}

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
        Ok(Box::new(KeyVerifier { algorithm: *algorithm, key }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

struct KeyVerifier {
    algorithm: Algorithm,
    key: UnparsedPublicKey<Vec<u8>>,
}

impl Verifier<Vec<u8>> for KeyVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), jsonwebtoken::signature::Error> {
        self.key.verify(message, signed).map_err(|_| jsonwebtoken::signature::Error::new())
    }
}

impl JwtVerifier for KeyVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use ring::rand::SystemRandom;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
        KeyPair,
    };
    use serde_json::{Value, json};

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

    fn of_the_rfc() -> Tokens {
        Tokens::new(vec![Key::from_der(&key_of_the_rfc()).unwrap()], "shop")
    }

    /// RFC 7515, appendix A.3: the token is signed, has no subject, and has expired.
    const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.\
        eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
        DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

    #[test]
    fn signature_of_the_rfc_is_valid_and_another_is_not() {
        let mut tokens = of_the_rfc();
        tokens.validation.required_spec_claims.clear();
        assert_eq!(tokens.owner(TOKEN).unwrap_err(), "it is not a valid token", "it has no subject");
        let other = TOKEN.replace(".DtEh", ".EtEh");
        assert_eq!(tokens.owner(&other).unwrap_err(), "its signature is invalid");
    }

    #[test]
    fn token_with_another_algorithm_than_the_keys_is_refused() {
        let tokens = of_the_rfc();
        let with_header = |header: &str| {
            let (_, rest) = TOKEN.split_once('.').unwrap();
            tokens.owner(&format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header))).unwrap_err()
        };
        for header in [r#"{"alg":"HS256"}"#, r#"{"alg":"RS256"}"#, r#"{"alg":"ES384"}"#, r#"{"alg":"EdDSA"}"#]
        {
            assert_eq!(with_header(header), "its algorithm does not match the keys");
        }
        for header in [r#"{"alg":"none"}"#, "{}", "nonsense"] {
            assert_eq!(with_header(header), "it is not a valid token", "{header}");
        }
        for nonsense in ["", ".", "..", "a.b.c", "a.b.c.d"] {
            assert_eq!(tokens.owner(nonsense).unwrap_err(), "it is not a valid token");
        }
    }

    #[test]
    fn token_with_critical_extensions_or_of_another_type_is_refused() {
        let mut tokens = of_the_rfc();
        tokens.validation.required_spec_claims.clear();
        let with_header = |header: &str| {
            let (_, rest) = TOKEN.split_once('.').unwrap();
            tokens.owner(&format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header))).unwrap_err()
        };
        for crit in [r#"["b64"]"#, r#"["exp"]"#, "[]", "true", r#""exp""#] {
            let text = with_header(&format!(r#"{{"alg":"ES256","crit":{crit}}}"#));
            assert_eq!(text, "it has critical extensions (crit), which are not supported");
        }
        for kind in [r#""logout+jwt""#, r#""JOSE""#, r#""""#, "1", r#""application/""#, r#"["JWT"]"#] {
            let text = with_header(&format!(r#"{{"alg":"ES256","typ":{kind}}}"#));
            assert_eq!(text, "it is a token of another type (typ)", "{kind}");
        }
        // These are refused by their signature, which covers the header.
        for kind in ["JWT", "jwt", "at+jwt", "application/at+JWT"] {
            let text = with_header(&format!(r#"{{"alg":"ES256","typ":"{kind}"}}"#));
            assert_eq!(text, "its signature is invalid", "{kind}");
        }
    }

    struct Issuer {
        key: EcdsaKeyPair,
        random: SystemRandom,
    }

    impl Issuer {
        fn new() -> Self {
            let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
            let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            let key = EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap();
            Self { key, random }
        }

        fn tokens(&self) -> Tokens {
            let (mut der, public) = (key_of_the_rfc(), self.key.public_key().as_ref());
            let begin = der.len() - public.len();
            der[begin..].copy_from_slice(public);
            Tokens::new(vec![Key::from_der(&der).unwrap()], "shop")
        }

        fn sign(&self, claims: &Value) -> String {
            let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256"}"#);
            let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
            let signature = self.key.sign(&self.random, signed.as_bytes()).unwrap();
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
        }
    }

    #[test]
    fn token_is_accepted_in_its_time_for_its_audience_and_from_its_issuer() {
        let issuer = Issuer::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let with = |name: &str, value: Value| {
            let mut claims = json!({"sub": "alice", "aud": "shop", "exp": now + 600, "iss": "idp"});
            claims[name] = value;
            claims
        };
        let without = |name: &str| {
            let mut claims = with("sub", "alice".into());
            claims.as_object_mut().unwrap().remove(name);
            claims
        };
        let tokens = issuer.tokens();
        let owner = |claims: Value| tokens.owner(&issuer.sign(&claims));
        let alice = Ok("alice".to_owned());
        let refused = |why: &str| Err(why.to_owned());
        // Ten seconds of tolerance for a slow test.
        assert_eq!(owner(with("exp", (now - LEEWAY + 10).into())), alice, "clocks may differ");
        assert_eq!(owner(with("exp", (now - LEEWAY - 10).into())), refused("it has expired"));
        assert_eq!(owner(with("nbf", (now + LEEWAY - 10).into())), alice);
        assert_eq!(owner(with("nbf", (now + LEEWAY + 600).into())), refused("it is not valid yet"));
        assert_eq!(owner(with("aud", "stock".into())), refused("it is for another audience"));
        assert_eq!(owner(with("aud", json!(["stock", "shop"]))), alice);
        assert_eq!(owner(without("exp")), refused("it has no claim exp"));
        assert_eq!(owner(without("aud")), refused("it has no claim aud"));
        assert!(owner(without("sub")).is_err());
        assert_eq!(owner(without("iss")), alice, "no issuer is expected");

        let tokens = issuer.tokens().issuer("idp");
        let owner = |claims: Value| tokens.owner(&issuer.sign(&claims));
        assert_eq!(owner(with("sub", "alice".into())), alice);
        assert_eq!(owner(with("iss", "other".into())), refused("it is from another issuer"));
        assert_eq!(owner(without("iss")), refused("it has no claim iss"));

        let tokens = issuer.tokens().accepting(&["grid", "stock"], &["idp", "second"]);
        let owner = |claims: Value| tokens.owner(&issuer.sign(&claims));
        assert_eq!(owner(with("aud", "stock".into())), alice);
        assert_eq!(owner(with("sub", "alice".into())), refused("it is for another audience"));
        let of_second = json!({"sub": "alice", "aud": "grid", "exp": now + 600, "iss": "second"});
        assert_eq!(owner(of_second), alice);
        let of_third = json!({"sub": "alice", "aud": "grid", "exp": now + 600, "iss": "third"});
        assert_eq!(owner(of_third), refused("it is from another issuer"));
    }

    /// RFC 7515, appendix A.2: the claims of [`TOKEN`], signed by an RSA key of 2,048 bits.
    #[test]
    fn rsa_signature_of_the_rfc_is_valid_and_another_is_not() {
        let modulus = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL\
                       -yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUs\
                       LA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmou\
                       dF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
        let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5\
                         jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb\
                         1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QO\
                         YEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        let mut der = b"\x30\x82\x01\x22\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x03\x82\x01\x0f\x00\
                        \x30\x82\x01\x0a\x02\x82\x01\x01\x00"
            .to_vec();
        der.extend(URL_SAFE_NO_PAD.decode(modulus).unwrap());
        der.extend(b"\x02\x03\x01\x00\x01");
        let mut tokens = Tokens::new(vec![Key::from_der(&der).unwrap()], "shop");
        tokens.validation.required_spec_claims.clear();
        let claims = TOKEN.split('.').nth(1).unwrap();
        let with = |header: &str, signature: &str| {
            tokens.owner(&format!("{}.{claims}.{signature}", URL_SAFE_NO_PAD.encode(header))).unwrap_err()
        };
        assert_eq!(with(r#"{"alg":"RS256"}"#, signature), "it is not a valid token", "it has no subject");
        for algorithm in ["RS384", "RS512", "PS256", "PS384", "PS512"] {
            let text = with(&format!(r#"{{"alg":"{algorithm}"}}"#), signature);
            assert_eq!(text, "its signature is invalid", "{algorithm}");
        }
        let text = with(r#"{"alg":"RS256"}"#, &signature.replace("cC4h", "cC4i"));
        assert_eq!(text, "its signature is invalid");
        assert_eq!(with(r#"{"alg":"ES256"}"#, signature), "its algorithm does not match the keys");
    }

    #[test]
    fn tokens_signed_by_p256_p384_and_ed25519_keys_are_accepted() {
        let random = SystemRandom::new();
        // Valid until the year 2100.
        let claims = json!({"sub": "alice", "aud": "shop", "exp": 4_102_444_800_u64}).to_string();
        let owner = |algorithm: &str, key: &[u8], sign: &dyn Fn(&[u8]) -> Vec<u8>| {
            let pem = rcgen::KeyPair::try_from(key).unwrap().public_key_pem();
            let tokens = Tokens::from_pem("keys".to_owned(), pem.as_bytes(), "shop").unwrap();
            let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{algorithm}"}}"#));
            let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(&claims));
            let signature = URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
            tokens.owner(&format!("{signed}.{signature}"))
        };
        let curves =
            [("ES256", &ECDSA_P256_SHA256_FIXED_SIGNING), ("ES384", &ECDSA_P384_SHA384_FIXED_SIGNING)];
        for (name, algorithm) in curves {
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            let key = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
            let sign = |bytes: &[u8]| key.sign(&random, bytes).unwrap().as_ref().to_vec();
            assert_eq!(owner(name, document.as_ref(), &sign), Ok("alice".to_owned()), "{name}");
        }
        let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let key = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let sign = |bytes: &[u8]| key.sign(bytes).as_ref().to_vec();
        assert_eq!(owner("EdDSA", document.as_ref(), &sign), Ok("alice".to_owned()));
    }

    #[test]
    fn a_file_without_a_key_is_named() {
        let error = Tokens::from_file("Cargo.toml", "shop").unwrap_err().to_string();
        assert!(error.starts_with("Cargo.toml: it has no key; a PEM file"), "{error}");
        assert!(Key::from_der(b"\x30\x00").is_none());
    }
}
