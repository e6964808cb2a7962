//! The certificates of SSL_KEY_EXCHANGE, from stores as `keytool` writes them.

use std::sync::Arc;

use consort_group::config::ProtocolConfig;
use consort_group::protocols::SslKeyExchangeConfig;
use consort_group::protocols::registry::{self, ValueError};
use consort_keystore::{Certificates, Limits, Opening, certificates};
use consort_net::{BoundEdge, KeyExchangeTls};
use consort_tls::{Identity, ProtocolSettings, TlsError, TrustedPeers};

use crate::key_store::read_secret;

/// The attribute at which the operator finds the cause, and the cause.
type Failure = (&'static str, String);

/// Reads the certificates, and lets the edge read them again from time to time.
///
/// # Errors
///
/// A file cannot be read or lacks its content, or a name is unknown.
pub(crate) fn set_certificates(edge: &mut BoundEdge, protocol: &ProtocolConfig) -> Result<(), ValueError> {
    let config: SslKeyExchangeConfig = registry::properties(protocol)?;
    let first = read(&config).map_err(|(name, why)| {
        let place = protocol.attributes.iter().find(|(own, _, _)| own == name);
        let position = place.map_or(protocol.position, |(_, _, position)| *position);
        let what = format!("attribute {name}: {why}");
        ValueError { protocol: protocol.short_name().to_owned(), what, position }
    })?;
    let reload_threshold = config.reload_threshold;
    let again = move || read(&config).map_err(|(name, why)| format!("{name}: {why}"));
    edge.set_key_exchange(first, Arc::new(again), reload_threshold);
    Ok(())
}

fn read(config: &SslKeyExchangeConfig) -> Result<KeyExchangeTls, Failure> {
    let own = store("keystore_name", &config.keystore_name, config.keystore_password.text())?;
    let fail = |why: &str| ("keystore_name", format!("`{}`: {why}", config.keystore_name.trim()));
    let key = own.private_key().ok_or_else(|| fail("it has no private key"))?;
    let identity = Identity::from_der(own.chain().to_vec(), key.to_vec());
    let trusted = if config.truststore_name.trim().is_empty() {
        own.trusted().to_vec()
    } else {
        let password = config.truststore_password.text();
        store("truststore_name", &config.truststore_name, password)?.trusted().to_vec()
    };
    let trusted = TrustedPeers::from_der(trusted).map_err(|error| ("truststore_name", error.to_string()))?;
    let protocols = protocols(config)?;
    let needs = config.require_client_authentication;
    let tls = |error: TlsError| fail(&error.to_string());
    Ok(KeyExchangeTls {
        server: trusted.server(&protocols, identity.clone(), needs).map_err(tls)?,
        client: trusted.client(&protocols, identity).map_err(tls)?,
    })
}

fn store(attribute: &'static str, name: &str, password: &str) -> Result<Certificates, Failure> {
    let name = name.trim();
    let fail = |error: &dyn std::fmt::Display| {
        (attribute, format!("cannot read certificates from `{name}`: {error}"))
    };
    let limits = Limits::default();
    let bytes = read_secret(name, "this private key", &limits).map_err(|error| fail(&error))?;
    certificates(&bytes, &Opening { password, ..Opening::default() }, &limits).map_err(|error| fail(&error))
}

fn protocols(config: &SslKeyExchangeConfig) -> Result<ProtocolSettings, Failure> {
    let versions = config.versions().unwrap_or_default();
    ProtocolSettings::by_names(&versions, &config.ciphers()).map_err(|error| match error {
        TlsError::Unsupported { name, supported, .. } => {
            ("enabled_ciphers", format!("`{name}` is not supported, only {supported}"))
        }
        error => ("enabled_ciphers", error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use consort_group::config::Password;

    use super::*;

    const STORES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keystore/tests/data");

    fn config(keys: &str, trusted: &str) -> SslKeyExchangeConfig {
        let path = |name: &str| if name.is_empty() { String::new() } else { format!("{STORES}/{name}") };
        SslKeyExchangeConfig {
            keystore_name: path(keys),
            truststore_name: path(trusted),
            ..SslKeyExchangeConfig::default()
        }
    }

    fn failure(config: &SslKeyExchangeConfig) -> Failure {
        read(config).err().expect("refused")
    }

    #[test]
    fn stores_by_java_are_read() {
        for (keys, trusted) in
            [("certificates.p12", ""), ("certificates.p12", "trusted.p12"), ("self-signed.p12", "")]
        {
            if let Err((name, why)) = read(&config(keys, trusted)) {
                panic!("{keys} {trusted}: {name}: {why}");
            }
        }
    }

    #[test]
    fn unusable_store_is_named_with_its_attribute() {
        let (name, why) = failure(&config("not-there.p12", ""));
        assert!(name == "keystore_name" && why.contains("not-there.p12`: No such file"), "{why}");
        let (name, why) = failure(&config("trusted.p12", ""));
        assert!(name == "keystore_name" && why.contains("it has no private key"), "{why}");
        let (name, why) = failure(&config("self-signed.p12", "legacy-certificates.p12"));
        assert!(name == "truststore_name" && why.contains("-deststoretype PKCS12"), "{why}");
        let wrong = SslKeyExchangeConfig {
            keystore_password: Password::new("geheim"),
            ..config("self-signed.p12", "")
        };
        assert_eq!(failure(&wrong).0, "keystore_name");
        let wrong = SslKeyExchangeConfig {
            truststore_password: Password::new("geheim"),
            ..config("self-signed.p12", "trusted.p12")
        };
        assert_eq!(failure(&wrong).0, "truststore_name");
        let unknown = SslKeyExchangeConfig {
            enabled_ciphers: "TLS_RSA_WITH_AES_128_CBC_SHA".to_owned(),
            ..config("self-signed.p12", "")
        };
        let (name, why) = failure(&unknown);
        assert!(name == "enabled_ciphers" && why.contains("TLS_AES_128_GCM_SHA256"), "{why}");
        let of_other_version = SslKeyExchangeConfig {
            enabled_ciphers: "TLS_AES_128_GCM_SHA256".to_owned(),
            ssl_protocol: "TLSv1.2".to_owned(),
            ..config("self-signed.p12", "")
        };
        assert_eq!(failure(&of_other_version).0, "keystore_name");
    }
}
