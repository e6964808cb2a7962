//! TLS versions and cipher suites, by Java's names.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::{ALL_VERSIONS, SupportedCipherSuite, SupportedProtocolVersion};

use crate::TlsError;

/// Versions and cipher suites; by default all supported ones.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ProtocolSettings {
    versions: Vec<&'static SupportedProtocolVersion>,
    suites: Vec<SupportedCipherSuite>,
}

impl ProtocolSettings {
    /// Selects by names, such as `TLSv1.3` and `TLS_AES_256_GCM_SHA384`.
    ///
    /// # Errors
    ///
    /// The first unsupported name.
    pub fn by_names(versions: &[impl AsRef<str>], suites: &[impl AsRef<str>]) -> Result<Self, TlsError> {
        let all = ring::default_provider().cipher_suites;
        Ok(Self {
            versions: named("tls.protocols", versions, ALL_VERSIONS, |version| version_name(version))?,
            suites: named("tls.cipher_suites", suites, &all, suite_name)?,
        })
    }

    /// Returns the names of all supported cipher suites.
    pub fn supported_suites() -> Vec<String> {
        ring::default_provider().cipher_suites.iter().map(suite_name).collect()
    }

    /// Returns the names of the selected versions and cipher suites, none for all.
    pub fn names(&self) -> Vec<String> {
        let versions = self.versions.iter().map(|version| version_name(version));
        versions.chain(self.suites.iter().map(suite_name)).collect()
    }

    pub(crate) fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        if !self.suites.is_empty() {
            provider.cipher_suites.clone_from(&self.suites);
        }
        Arc::new(provider)
    }

    pub(crate) fn versions(&self) -> &[&'static SupportedProtocolVersion] {
        if self.versions.is_empty() { ALL_VERSIONS } else { &self.versions }
    }
}

fn named<T: Copy>(
    what: &'static str,
    names: &[impl AsRef<str>],
    all: &[T],
    name_of: impl Fn(&T) -> String,
) -> Result<Vec<T>, TlsError> {
    let find = |name: &str| all.iter().find(|one| name_of(one) == name).copied();
    let unknown = |name: &str| TlsError::Unsupported {
        what,
        name: name.to_owned(),
        supported: all.iter().map(&name_of).collect::<Vec<_>>().join(", "),
    };
    names.iter().map(|name| find(name.as_ref()).ok_or_else(|| unknown(name.as_ref()))).collect()
}

fn version_name(version: &SupportedProtocolVersion) -> String {
    match version.version {
        rustls::ProtocolVersion::TLSv1_2 => "TLSv1.2".to_owned(),
        rustls::ProtocolVersion::TLSv1_3 => "TLSv1.3".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Without rustls' prefix for suites of TLS 1.3.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [&str; 0] = [];

    #[test]
    fn versions_and_suites_have_javas_names() {
        let protocols = ProtocolSettings::by_names(&["TLSv1.3"], &["TLS_AES_256_GCM_SHA384"]).unwrap();
        assert_eq!(protocols.versions().len(), 1);
        assert_eq!(protocols.provider().cipher_suites.len(), 1);
        assert_eq!(ProtocolSettings::by_names(&NONE, &NONE).unwrap().versions().len(), 2);
        assert!(ProtocolSettings::by_names(&NONE, &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).is_ok());
    }

    #[test]
    fn unsupported_name_is_reported_with_the_supported_ones() {
        let error = ProtocolSettings::by_names(&["SSLv3"], &NONE).unwrap_err().to_string();
        assert_eq!(error, "tls.protocols: `SSLv3` is not supported, only TLSv1.3, TLSv1.2");
        let error =
            ProtocolSettings::by_names(&NONE, &["TLS_RSA_WITH_AES_128_CBC_SHA"]).unwrap_err().to_string();
        assert!(error.contains("TLS_AES_128_GCM_SHA256"), "{error}");
    }
}
