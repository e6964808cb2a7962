use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use consort_client::ClientBuilder;
use consort_server::{Users, fuzzing};
use consort_tls::{ClientCertificates, Identity, Roots};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::Value as Json;

use crate::bounds::{bounded, bounded_by};
use crate::seen::Seen;

const USERS: [&str; 5] = [
    "# users\nadmin admin password:secret\n",
    "reader observer,monitor SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
     WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=\n",
    "\"with blanks\" application \"password:with blanks\"\n\nerin deployer\n",
    "a admin\nb monitor\nc observer\nd application\n",
    "j\u{f6}rg admin\r\n\t\"q\\\"uote\" monitor\n",
];

pub(crate) fn user_files() -> Vec<Vec<u8>> {
    USERS.map(|users| users.as_bytes().to_vec()).into()
}

/// The memory in total and for each byte: a user of a few bytes, and a file's secret.
const USERS_MEMORY: (u64, u64) = (64 * 1024, 512);

pub(crate) fn users(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = USERS_MEMORY.0 + USERS_MEMORY.1 * text.len() as u64;
    let (read, peak) = bounded_by(limit, || Users::parse("users.conf", &text));
    if let Err(error) = &read {
        let error = error.to_string();
        assert!(error.starts_with("users.conf"), "{error}");
    }
    Seen::one(read.is_ok(), peak)
}

const SEED: [u8; 32] = [7; 32];

/// A key pair of Ed25519 and its public key in PEM, the same in every run.
fn signer() -> &'static (Ed25519KeyPair, Vec<u8>) {
    static SIGNER: OnceLock<(Ed25519KeyPair, Vec<u8>)> = OnceLock::new();
    SIGNER.get_or_init(|| {
        let pair = Ed25519KeyPair::from_seed_unchecked(&SEED).expect("a seed of 32 bytes");
        let mut der = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00".to_vec();
        der.extend(pair.public_key().as_ref());
        let pem =
            format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(&der));
        (pair, pem.into_bytes())
    })
}

const BETWEEN: u8 = b'\n';

const TOKENS: [&str; 5] = [
    "{\"alg\":\"EdDSA\"}\n{\"sub\":\"user\",\"aud\":\"shop\",\"exp\":99999999999}",
    "{\"typ\":\"at+jwt\",\"alg\":\"EdDSA\",\"kid\":\"k\"}\n\
     {\"sub\":\"u\",\"aud\":[\"a\",\"shop\"],\"exp\":99999999999.5,\"nbf\":1,\"iss\":\"i\"}",
    "{\"alg\":\"EdDSA\",\"crit\":[\"b64\"],\"b64\":false}\n{\"sub\":\"u\",\"aud\":\"shop\",\"exp\":99999999999}",
    "{\"alg\":\"EdDSA\"}\n{\"sub\":1,\"aud\":{},\"exp\":\"never\"}",
    "{\"alg\":\"none\"}\n{\"sub\":\"u\",\"aud\":\"shop\",\"exp\":1}",
];

pub(crate) fn tokens() -> Vec<Vec<u8>> {
    TOKENS.map(|token| token.as_bytes().to_vec()).into()
}

/// Signs the input's header and claims, so that checks behind the signature run. The same bytes in compact form have no valid
/// signature, and the server refuses them.
pub(crate) fn token(bytes: &[u8]) -> Seen {
    let (pair, pem) = signer();
    let at = bytes.iter().position(|byte| *byte == BETWEEN).unwrap_or(bytes.len());
    let (header, claims) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
    let mut token = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = pair.sign(token.as_bytes());
    token.push('.');
    token.push_str(&URL_SAFE_NO_PAD.encode(signature.as_ref()));
    let ((owner, unsigned), peak) = bounded(64 * 1024 + token.len(), || {
        let owner = fuzzing::token_owner(pem, &token);
        (owner, fuzzing::token_owner(pem, &String::from_utf8_lossy(bytes)))
    });
    match &owner {
        Ok(owner) => check_claims(owner, header, claims),
        Err(reason) => assert!(!reason.is_empty() && !reason.contains('\n'), "{reason:?}"),
    }
    assert!(unsigned.is_err(), "a token without a signature is {unsigned:?}'s");
    // Tokens with readable claims are refused for those claims.
    let is_read = !matches!(&owner, Err(reason) if reason == "it is not a valid token");
    Seen::one(is_read, peak)
}

fn check_claims(owner: &str, header: &[u8], claims: &[u8]) {
    let header: Json = serde_json::from_slice(header).expect("the header was read");
    // The texts of other claims may be no UTF-8: they are not read.
    let claims: Json = serde_json::from_str(&String::from_utf8_lossy(claims)).expect("the claims were read");
    assert_eq!(header["alg"], "EdDSA");
    assert!(header.get("crit").is_none(), "{header}");
    assert_eq!(claims["sub"], owner);
    let is_for_us = |audience: &Json| audience == "shop";
    assert!(
        is_for_us(&claims["aud"]) || claims["aud"].as_array().is_some_and(|all| all.iter().any(is_for_us))
    );
    assert!(claims["exp"].as_f64().is_some_and(|seconds| seconds > 1.7e9), "{claims}");
}

/// The bytes before the seed of a private key of Ed25519 in DER (PKCS 8).
const PKCS8: &[u8] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

fn certified() -> &'static (String, String, Vec<u8>) {
    static CERTIFIED: OnceLock<(String, String, Vec<u8>)> = OnceLock::new();
    CERTIFIED.get_or_init(|| {
        let key = [PKCS8, &SEED].concat();
        let key = rcgen::KeyPair::try_from(&key[..]).expect("a key");
        let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        (certificate.pem(), key.serialize_pem(), certificate.der().to_vec())
    })
}

pub(crate) fn pems() -> Vec<Vec<u8>> {
    let (certificate, key, _) = certified();
    let public = String::from_utf8_lossy(&signer().1).into_owned();
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let texts = [
        format!("{certificate}{key}"),
        format!("{key}{certificate}{certificate}"),
        format!("Bag Attributes\n    friendlyName: x\n{certificate}\n{encrypted}"),
        public.repeat(3),
    ];
    texts.map(String::into_bytes).into()
}

/// The memory for keys and cipher suites, in total and for each byte.
const PEM_MEMORY: (u64, u64) = (512 * 1024, 256);

pub(crate) fn pem(bytes: &[u8]) -> Seen {
    let limit = PEM_MEMORY.0 + PEM_MEMORY.1 * bytes.len() as u64;
    let ((identity, roots, keys), peak) = bounded_by(limit, || {
        let identity = Identity::from_pem(bytes, bytes);
        let served =
            identity.and_then(|identity| consort_tls::server(identity, ClientCertificates::NotAsked));
        (served.map(drop), Roots::from_pem(bytes).map(drop), fuzzing::token_owner(bytes, "a.b.c"))
    });
    for error in [identity.as_ref().err(), roots.as_ref().err()].into_iter().flatten() {
        assert!(!error.to_string().is_empty());
    }
    let are_keys = matches!(&keys, Err(reason) if !reason.starts_with("keys: "));
    Seen::one(identity.is_ok() || roots.is_ok() || are_keys, peak)
}

pub(crate) fn certificates() -> Vec<Vec<u8>> {
    vec![certified().2.clone()]
}

pub(crate) fn certificate(bytes: &[u8]) -> Seen {
    let ((name, until), peak) = bounded(bytes.len(), || fuzzing::certificate(bytes));
    Seen::one(name.is_some() || until != 0, peak)
}

const URIS: [&str; 8] = [
    "hotrod://127.0.0.1:11222",
    "hotrods://user:hunter2@a,b:1,[::1]:2/?sasl_mechanism=SCRAM-SHA-512&client_intelligence=BASIC",
    "localhost",
    "hotrod://u%20x:%C3%B6@h?protocol_version=3.1&auth_realm=default&auth_server_name=s",
    "hotrod://h?cluster.NYC=n1;n2:5&cluster.LON=l&auth_token=a.b.c",
    "hotrods://h?trust_store_path=/nowhere.pem&sni_host_name=x&ssl_hostname_validation=false",
    "hotrod://h?connect_timeout=5&socket_timeout=7&tcp_no_delay=true",
    "hotrods://h?key_store_path=a&key_store_password=b&trust_store_type=PEM&ssl_protocol=TLSv1.3",
];

pub(crate) fn uris() -> Vec<Vec<u8>> {
    URIS.map(|uri| uri.as_bytes().to_vec()).into()
}

/// An error does not show the password before the `@`.
pub(crate) fn uri(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let (read, peak) = bounded(64 * 1024 + text.len(), || ClientBuilder::from_uri(&text));
    match &read {
        Ok(builder) => assert!(!builder.servers().is_empty()),
        Err(error) => {
            let error = error.to_string();
            assert!(!error.is_empty());
            let user = text.split_once(":hunter2@").filter(|(_, hosts)| !hosts.contains("hunter2"));
            let has_password = user.is_some_and(|(user, _)| !user.contains('?'));
            assert!(!has_password || !error.contains("hunter2"), "{error}");
        }
    }
    Seen::one(read.is_ok(), peak)
}
