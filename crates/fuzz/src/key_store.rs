use consort_keystore::{
    KeyStoreError, Limits, Opening, StoreType, certificates, credential, secret_key, unmask,
};

use crate::bounds::bounded;
use crate::seen::Seen;

/// Stores by Java and OpenSSL, and raw keys; Java makes no JCEKS store with fewer than 10,000 iterations.
pub(crate) fn stores() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../keystore/tests/data/few-iterations.p12").to_vec(),
        include_bytes!("../../keystore/tests/data/openssl.p12").to_vec(),
        include_bytes!("../../keystore/tests/data/certificates.p12").to_vec(),
        include_bytes!("../../keystore/tests/data/few-iterations.jceks").to_vec(),
        include_bytes!("../../keystore/tests/data/private.jks").to_vec(),
        include_bytes!("../../keystore/tests/data/server.jceks").to_vec(),
        b"1Hc4Feq2wJs;pepper99;100".to_vec(),
        (0..32).collect(),
        b"000102030405060708090a0b0c0d0e0f".to_vec(),
    ]
}

/// Fewer than in production, so that an input with many iterations costs little.
const LIMITS: Limits = Limits { file: 64 * 1024, entries: 100, iterations: 25_000 };

const PASSWORD: &str = "changeit";

/// No error shows the password.
pub(crate) fn store(bytes: &[u8]) -> Seen {
    // Java's formats end with a digest, which mutations would always miss. So it is renewed.
    let renewed = with_digest(bytes);
    let mut seen = Seen::default();
    for (kind, file) in [(StoreType::Pkcs12, &renewed[..]), (StoreType::Raw, bytes)] {
        let (read, peak) =
            bounded(file.len(), || secret_key(file, kind, "mykey", PASSWORD, PASSWORD, &LIMITS));
        match &read {
            Ok(key) => assert!(key.bytes().len() <= file.len()),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.is_empty() && (!text.contains(PASSWORD) || names_alias(error)), "{text}");
            }
        }
        seen = Seen::one(read.is_ok() || seen.accepted > 0, peak.max(seen.peak));
    }
    let opening = Opening { password: PASSWORD, ..Opening::default() };
    let (read, peak) = bounded(renewed.len(), || certificates(&renewed, &opening, &LIMITS));
    if let Ok(read) = &read {
        assert!(
            read.chain().iter().chain(read.trusted()).all(|certificate| certificate.len() <= bytes.len())
        );
    }
    seen = Seen::one(read.is_ok() || seen.accepted > 0, peak.max(seen.peak));
    let (read, peak) = bounded(bytes.len(), || credential(&renewed, None, PASSWORD, &LIMITS));
    seen = Seen::one(read.is_ok() || seen.accepted > 0, peak.max(seen.peak));
    let masked = std::str::from_utf8(bytes).unwrap_or_default();
    let (read, peak) = bounded(bytes.len(), || unmask(masked, &LIMITS));
    Seen::one(read.is_ok() || seen.accepted > 0, peak.max(seen.peak))
}

/// Names from the file may contain the password by chance.
fn names_alias(error: &KeyStoreError) -> bool {
    matches!(
        error,
        KeyStoreError::NoSuchAlias { .. } | KeyStoreError::NotSecret(_) | KeyStoreError::Unsupported(_)
    )
}

fn with_digest(bytes: &[u8]) -> Vec<u8> {
    use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA1_OUTPUT_LEN};
    let is_javas = matches!(bytes.first_chunk(), Some([0xce, 0xce, 0xce, 0xce] | [0xfe, 0xed, 0xfe, 0xed]));
    let Some(length) = bytes.len().checked_sub(SHA1_OUTPUT_LEN).filter(|_| is_javas) else {
        return bytes.to_vec();
    };
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    PASSWORD.encode_utf16().for_each(|unit| digest.update(&unit.to_be_bytes()));
    digest.update(b"Mighty Aphrodite");
    digest.update(&bytes[..length]);
    [&bytes[..length], digest.finish().as_ref()].concat()
}
