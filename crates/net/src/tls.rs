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
    /// What is named does not do.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Unfit(#[from] consort_tls::TlsError),
    /// A name that no certificate has.
    #[error("tls.server_name: {0}")]
    Name(String),
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

    use consort_tls::{ClientCertificates, Identity, Roots};
    use rustls::pki_types::ServerName;
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
            let keystore = config.keystore_path.as_deref().ok_or(TlsError::Missing("tls.keystore_path"))?;
            let identity = Identity::from_files(keystore, keystore)?;
            let roots = Roots::from_file(config.truststore_path.as_deref().unwrap_or(keystore))?;
            let clients = match config.client_auth {
                ClientAuth::None => ClientCertificates::NotAsked,
                ClientAuth::Want => ClientCertificates::Asked(roots.clone()),
                ClientAuth::Need => ClientCertificates::Needed(roots.clone()),
            };
            let server = consort_tls::server(identity.clone(), clients)?;
            // We always show our certificate: whether it is asked for is the other side's setting.
            let client = consort_tls::client(roots, Some(identity))?;
            let server_name = config
                .server_name
                .clone()
                .map(|name| ServerName::try_from(name).map_err(|error| TlsError::Name(error.to_string())))
                .transpose()?;
            Ok(Some(Self {
                acceptor: TlsAcceptor::from(server),
                connector: TlsConnector::from(client),
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
}
