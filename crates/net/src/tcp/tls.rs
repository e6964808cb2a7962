//! TLS for TCP, with certificates on both sides.

use std::io;
use std::net::SocketAddr;

#[cfg(feature = "tls")]
pub(crate) use with_rustls::{Tls, reason};
#[cfg(not(feature = "tls"))]
pub(crate) use without::{Tls, reason};

/// No member's data has gone over the connection.
#[derive(Debug, thiserror::Error)]
#[error("no TLS between this member ({own}) and {peer}: {reason}")]
pub(crate) struct HandshakeError {
    own: SocketAddr,
    peer: SocketAddr,
    reason: String,
}

pub(crate) fn is_handshake(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<HandshakeError>())
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::io;

    use crate::bind_error::TlsError;
    use crate::config::TlsConfig;

    /// This build has no TLS.
    #[derive(Clone)]
    pub(crate) enum Tls {}

    impl Tls {
        pub(crate) fn new(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
            if config.enabled { Err(TlsError::NotBuilt) } else { Ok(None) }
        }

        pub(crate) fn to_routers(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
            Self::new(config)
        }

        pub(crate) fn named(self, _name: &str) -> Self {
            self
        }
    }

    pub(crate) fn reason(_error: &io::Error) -> Option<String> {
        None
    }
}

#[cfg(feature = "tls")]
mod with_rustls {
    use std::io;
    use std::net::SocketAddr;
    use std::sync::Arc;

    use consort_tls::{ClientCertificates, Identity, ProtocolSettings, Roots};
    use rustls::pki_types::ServerName;
    use rustls::{AlertDescription, CertificateError, Error};
    use tokio::net::TcpStream;
    use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

    use super::HandshakeError;
    use crate::bind_error::TlsError;
    use crate::config::{ClientAuth, TlsConfig};
    use crate::tcp::key_exchange_tls::{self, ReloadedTls};

    #[derive(Clone)]
    pub(crate) struct Tls {
        settings: Settings,
        server_name: Option<ServerName<'static>>,
    }

    #[derive(Clone)]
    enum Settings {
        Members {
            acceptor: TlsAcceptor,
            connector: TlsConnector,
        },
        /// Only this member opens connections.
        Routers(TlsConnector),
        KeyExchange(Arc<ReloadedTls>),
    }

    impl Tls {
        /// Returns `None` if TLS is off.
        pub(crate) fn new(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
            if !config.enabled {
                return Ok(None);
            }
            let keystore = config.keystore_path.as_deref().ok_or(TlsError::Missing("tls.keystore_path"))?;
            let key = config.key_path.as_deref().unwrap_or(keystore);
            let identity = Identity::from_files(keystore, key)?;
            let roots = Roots::from_file(config.truststore_path.as_deref().unwrap_or(keystore))?;
            let protocols = ProtocolSettings::by_names(&config.protocols, &config.cipher_suites)?;
            let clients = match config.client_auth {
                ClientAuth::None => ClientCertificates::NotAsked,
                ClientAuth::Want => ClientCertificates::Asked(roots.clone()),
                ClientAuth::Need => ClientCertificates::Needed(roots.clone()),
            };
            let server = consort_tls::server_with_protocols(&protocols, identity.clone(), clients)?;
            // The client always presents its certificate; whether it is requested is the peer's setting.
            let client = consort_tls::client_with_protocols(&protocols, roots, Some(identity))?;
            let (acceptor, connector) = (TlsAcceptor::from(server), TlsConnector::from(client));
            let settings = Settings::Members { acceptor, connector };
            Ok(Some(Self { settings, server_name: Self::server_name(config)? }))
        }

        pub(crate) const fn of_key_exchange(tls: Arc<ReloadedTls>) -> Self {
            Self { settings: Settings::KeyExchange(tls), server_name: None }
        }

        /// For connections that only this member opens. A key store is needed if the router requires certificates.
        pub(crate) fn to_routers(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
            if !config.enabled {
                return Ok(None);
            }
            let keystore = config.keystore_path.as_deref();
            if keystore.is_none() && config.key_path.is_some() {
                return Err(TlsError::KeyAlone);
            }
            let key = |keystore| config.key_path.as_deref().unwrap_or(keystore);
            let identity =
                keystore.map(|keystore| Identity::from_files(keystore, key(keystore))).transpose()?;
            let trusted = config.truststore_path.as_deref().or(keystore);
            let roots = Roots::from_file(trusted.ok_or(TlsError::NoRoots)?)?;
            let protocols = ProtocolSettings::by_names(&config.protocols, &config.cipher_suites)?;
            let client = consort_tls::client_with_protocols(&protocols, roots, identity)?;
            let settings = Settings::Routers(TlsConnector::from(client));
            Ok(Some(Self { settings, server_name: Self::server_name(config)? }))
        }

        fn server_name(config: &TlsConfig) -> Result<Option<ServerName<'static>>, TlsError> {
            let name = config.server_name.clone().map(ServerName::try_from).transpose();
            name.map_err(|error| TlsError::Name(error.to_string()))
        }

        /// Requires this name in the peer's certificate, unless `tls.server_name` is set.
        pub(crate) fn named(mut self, name: &str) -> Self {
            if self.server_name.is_none() {
                self.server_name = ServerName::try_from(name.to_owned()).ok();
            }
            self
        }

        pub(crate) async fn connect(
            self,
            to: SocketAddr,
            stream: TcpStream,
        ) -> io::Result<TlsStream<TcpStream>> {
            let name = self.server_name.unwrap_or_else(|| ServerName::from(to.ip()));
            let own = stream.local_addr()?;
            let connector = match self.settings {
                Settings::Members { connector, .. } | Settings::Routers(connector) => connector,
                Settings::KeyExchange(tls) => {
                    let connector = TlsConnector::from(tls.current().await.client);
                    let connected = connector.connect(name, stream).await;
                    return Ok(connected.map_err(|error| with_reason(&error))?.into());
                }
            };
            let connected = connector.connect(name, stream).await;
            Ok(connected.map_err(|error| with_addresses(own, to, &error))?.into())
        }

        pub(crate) async fn accept(self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
            let (own, peer) = (stream.local_addr()?, stream.peer_addr()?);
            let acceptor = match self.settings {
                Settings::Members { acceptor, .. } => acceptor,
                Settings::Routers(_) => {
                    return Err(io::Error::other("connections to routers are not accepted"));
                }
                Settings::KeyExchange(tls) => {
                    let acceptor = TlsAcceptor::from(tls.current().await.server);
                    let accepted = acceptor.accept(stream).await;
                    return Ok(accepted.map_err(|error| with_reason(&error))?.into());
                }
            };
            let accepted = acceptor.accept(stream).await;
            Ok(accepted.map_err(|error| with_addresses(own, peer, &error))?.into())
        }
    }

    fn with_reason(error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), key_exchange_tls::reason(error))
    }

    /// Adds a hint if the cause is known.
    fn with_addresses(own: SocketAddr, peer: SocketAddr, error: &io::Error) -> io::Error {
        let reason = reason(error).unwrap_or_else(|| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                format!("it closed the connection ({error}); is tls.enabled set there?")
            }
            _ => error.to_string(),
        });
        io::Error::new(error.kind(), HandshakeError { own, peer, reason })
    }

    pub(crate) fn reason(error: &io::Error) -> Option<String> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let hint = match error {
            Error::InvalidMessage(_) => "it does not send TLS: is tls.enabled set there?",
            Error::NoCertificatesPresented => "tls.client_auth is need here",
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                "no authority in our tls.truststore_path has signed its certificate"
            }
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => {
                "set tls.server_name to a name in its certificate, or give it a certificate with its address"
            }
            Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
                "it does not trust our certificate: check its authorities (tls.truststore_path of a member, --tls-client-ca of a \
                 router)"
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                "it requires a certificate (tls.client_auth is need, or it is a router with --tls-client-required), and received none \
                 from us"
            }
            Error::AlertReceived(_) => "it refuses this connection; see its log",
            _ => return Some(error.to_string()),
        };
        Some(format!("{error} ({hint})"))
    }
}
