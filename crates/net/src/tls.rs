//! TLS for TCP (facts 4.5): the same bytes within a TLS stream, with certificates on either side.

#[cfg(feature = "tls")]
pub(crate) use with_rustls::Tls;
#[cfg(not(feature = "tls"))]
pub(crate) use without::Tls;

/// TLS could not be set up. Nothing has been opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// This build has no TLS.
    #[error("tls.enabled is set, but this program was built without the feature \"tls\"")]
    NotBuilt,
    /// A file is needed and not named.
    #[error("tls needs {0}")]
    Missing(&'static str),
    /// A key or trust store in a format of Java's.
    #[error(
        "{0} looks like a PKCS12 or JKS store; give a PEM file instead \
         (openssl pkcs12 -in store.p12 -out store.pem -nodes)"
    )]
    NotPem(String),
    /// A file cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
    /// Certificates or key do not fit.
    #[error("tls: {0}")]
    Unfit(String),
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::io;
    use std::net::SocketAddr;

    use tokio::net::TcpStream;

    use super::TlsError;
    use crate::config::TlsConfig;
    use crate::tcp::stream::Stream;

    /// There is none.
    #[derive(Clone)]
    pub(crate) enum Tls {}

    impl Tls {
        pub(crate) fn new(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
            if config.enabled { Err(TlsError::NotBuilt) } else { Ok(None) }
        }

        pub(crate) async fn connect(self, _to: SocketAddr, _stream: TcpStream) -> io::Result<Stream> {
            match self {}
        }

        pub(crate) async fn accept(self, _stream: TcpStream) -> io::Result<Stream> {
            match self {}
        }
    }
}

#[cfg(feature = "tls")]
mod with_rustls {
    use std::io;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio::net::TcpStream;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::TlsError;
    use crate::config::{ClientAuth, TlsConfig};
    use crate::tcp::stream::Stream;

    /// Both sides' settings, ready to shake hands.
    #[derive(Clone)]
    pub(crate) struct Tls {
        acceptor: TlsAcceptor,
        connector: TlsConnector,
        server_name: Option<ServerName<'static>>,
    }

    impl Tls {
        /// Reads the files; `None` if TLS is off.
        pub(crate) fn new(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
            if !config.enabled {
                return Ok(None);
            }
            let unfit = |error: &dyn std::fmt::Display| TlsError::Unfit(error.to_string());
            let keystore = config.keystore_path.as_deref().ok_or(TlsError::Missing("tls.keystore_path"))?;
            let chain = certificates(keystore)?;
            let key = PrivateKeyDer::from_pem_file(keystore)
                .map_err(|error| TlsError::File { path: keystore.into(), reason: error.to_string() })?;
            let mut roots = RootCertStore::empty();
            for trusted in certificates(config.truststore_path.as_deref().unwrap_or(keystore))? {
                roots.add(trusted).map_err(|error| unfit(&error))?;
            }
            let roots = Arc::new(roots);
            let provider = Arc::new(rustls::crypto::ring::default_provider());

            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
            let server = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .map_err(|error| unfit(&error))?;
            let server = match config.client_auth {
                ClientAuth::None => server.with_no_client_auth(),
                ClientAuth::Want => server.with_client_cert_verifier(
                    verifier.allow_unauthenticated().build().map_err(|error| unfit(&error))?,
                ),
                ClientAuth::Need => {
                    server.with_client_cert_verifier(verifier.build().map_err(|error| unfit(&error))?)
                }
            };
            let server =
                server.with_single_cert(chain.clone(), key.clone_key()).map_err(|error| unfit(&error))?;
            // We always show our certificate: whether it is asked for is the other side's setting.
            let client = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| unfit(&error))?
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)
                .map_err(|error| unfit(&error))?;
            let server_name = config
                .server_name
                .clone()
                .map(|name| ServerName::try_from(name).map_err(|error| unfit(&error)))
                .transpose()?;
            Ok(Some(Self {
                acceptor: TlsAcceptor::from(Arc::new(server)),
                connector: TlsConnector::from(Arc::new(client)),
                server_name,
            }))
        }

        pub(crate) async fn connect(self, to: SocketAddr, stream: TcpStream) -> io::Result<Stream> {
            let name = self.server_name.unwrap_or_else(|| ServerName::from(to.ip()));
            let stream = self.connector.connect(name, stream).await?;
            Ok(Stream::Tls(Box::new(stream.into())))
        }

        pub(crate) async fn accept(self, stream: TcpStream) -> io::Result<Stream> {
            let stream = self.acceptor.accept(stream).await?;
            Ok(Stream::Tls(Box::new(stream.into())))
        }
    }

    fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let ending = Path::new(path).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ["p12", "pfx", "jks", "pkcs12"].contains(&ending.to_ascii_lowercase().as_str()) {
            return Err(TlsError::NotPem(path.into()));
        }
        let failed = |reason: String| TlsError::File { path: path.into(), reason };
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| failed(error.to_string()))?;
        if certificates.is_empty() { Err(failed("no certificate in it".into())) } else { Ok(certificates) }
    }
}
