use super::*;

/// Java 17 wrote the stores in `tests/data` with `KeyStore.setKeyEntry`, and OpenSSL 3 `openssl.p12`. The bytes of each
/// secret key count up from 0.
macro_rules! store {
    ($name:literal) => {
        include_bytes!(concat!("../tests/data/", $name))
    };
}

fn read(file: &[u8], alias: &str) -> Result<SecretKey, KeyStoreError> {
    read_with(file, alias, "changeit", "changeit")
}

fn read_with(file: &[u8], alias: &str, store: &str, key: &str) -> Result<SecretKey, KeyStoreError> {
    secret_key(file, StoreType::Pkcs12, alias, store, key, &Limits::default())
}

fn counting(length: u8) -> Vec<u8> {
    (0..length).collect()
}

#[test]
fn keys_of_stores_by_java_are_read() {
    for store in
        [&store!("aes.p12")[..], store!("legacy.p12"), store!("aes.jceks"), store!("few-iterations.p12")]
    {
        let key = read(store, "myKey").unwrap();
        assert_eq!((key.algorithm(), key.bytes()), ("AES", &counting(16)[..]));
        let key = read(store, "SECOND").unwrap();
        assert_eq!((key.algorithm(), key.bytes()), ("AES", &counting(32)[..]));
    }
}

#[test]
fn a_key_with_a_password_of_its_own_is_read() {
    for store in [&store!("keypass.p12")[..], store!("keypass.jceks")] {
        assert_eq!(read_with(store, "mykey", "storepw", "keypw").unwrap().bytes(), counting(24));
        assert!(read_with(store, "mykey", "storepw", "storepw").is_err());
        assert_eq!(read_with(store, "mykey", "wrong", "keypw"), Err(KeyStoreError::WrongPassword));
    }
}

/// It is serialized as another class than a `SecretKeySpec`.
#[test]
fn a_key_of_another_algorithm_names_it() {
    assert_eq!(read(store!("desedefactory.jceks"), "mykey").unwrap().algorithm(), "DESede");
    assert_eq!(read(store!("desede.p12"), "mykey").unwrap().algorithm(), "OID 1.3.14.3.2.17");
}

#[test]
fn an_entry_that_is_no_secret_key_is_refused() {
    for store in [&store!("private.jks")[..], store!("private.jceks")] {
        assert_eq!(read(store, "test"), Err(KeyStoreError::NotSecret("test".to_owned())));
    }
    for store in [&store!("private.p12")[..], store!("openssl.p12")] {
        assert_eq!(read(store, "mykey"), Err(KeyStoreError::NotSecret("mykey".to_owned())));
    }
}

#[test]
fn an_unknown_alias_is_reported_with_those_of_the_store() {
    for store in [&store!("aes.p12")[..], store!("aes.jceks")] {
        let error = read(store, "other").unwrap_err().to_string();
        assert!(error.starts_with("no key has the alias `other`; the aliases are: "), "{error}");
        assert!(error.contains("mykey") && error.contains("second"), "{error}");
    }
}

#[test]
fn wrong_passwords_and_damage_are_noticed() {
    for store in [&store!("aes.p12")[..], store!("aes.jceks"), store!("legacy.p12")] {
        assert_eq!(read_with(store, "mykey", "changeIt", "changeit"), Err(KeyStoreError::WrongPassword));
        let mut damaged = store.to_vec();
        // A byte of the salt of the first key.
        let at = damaged.len() / 2;
        damaged[at] ^= 1;
        assert_eq!(read(&damaged, "mykey"), Err(KeyStoreError::WrongPassword));
    }
}

#[test]
fn a_cut_or_changed_store_is_an_error_and_no_panic() {
    for store in [&store!("few-iterations.p12")[..], store!("openssl.p12"), store!("aes.jceks")] {
        for length in 0..store.len() {
            assert!(read(&store[..length], "mykey").is_err());
        }
    }
}

#[test]
fn a_store_beyond_a_limit_is_refused() {
    let with = |limits: Limits, store: &[u8]| {
        secret_key(store, StoreType::Jceks, "mykey", "changeit", "changeit", &limits).unwrap_err()
    };
    let store = store!("aes.p12");
    let small = Limits { file: 100, ..Limits::default() };
    assert_eq!(with(small, store), KeyStoreError::TooLarge { bytes: store.len(), limit: 100 });
    let hurried = Limits { iterations: 9_999, ..Limits::default() };
    assert_eq!(with(hurried, store), KeyStoreError::TooManyIterations(10_000), "of the digest");
    let hurried = Limits { iterations: 19_999, ..Limits::default() };
    assert_eq!(with(hurried, store), KeyStoreError::TooManyIterations(10_000), "of the key");
    assert!(matches!(with(hurried, store!("aes.jceks")), KeyStoreError::TooManyIterations(_)));
    for store in [&store[..], store!("aes.jceks")] {
        let few = Limits { entries: 0, ..Limits::default() };
        assert_eq!(with(few, store), KeyStoreError::TooManyEntries);
    }
}

#[test]
fn raw_keys_are_bytes_or_digits() {
    let raw = |file: &[u8]| secret_key(file, StoreType::Raw, "", "", "", &Limits::default());
    for length in [16, 24, 32] {
        assert_eq!(raw(&counting(length)).unwrap().bytes(), counting(length));
        let digits: String = (0..length).map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(raw(format!("{digits}\n").as_bytes()).unwrap().bytes(), counting(length));
    }
    assert_eq!(raw(b"too short"), Err(KeyStoreError::RawLength(9)));
    assert_eq!(read(&counting(16), "mykey"), Err(KeyStoreError::UnknownFormat));
}

#[test]
fn types_are_known_by_javas_names() {
    assert_eq!("pkcs12".parse(), Ok(StoreType::Pkcs12));
    assert_eq!("JCEKS".parse(), Ok(StoreType::Jceks));
    assert_eq!(" jks ".parse(), Ok(StoreType::Jks));
    assert_eq!("BKS".parse::<StoreType>(), Err(KeyStoreError::UnknownType("BKS".to_owned())));
}

#[test]
fn debug_output_does_not_show_a_key() {
    assert_eq!(format!("{:?}", read(store!("aes.p12"), "mykey").unwrap()), "SecretKey(AES, 16 bytes)");
}
