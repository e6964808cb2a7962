use std::sync::Arc;

use consort_hotrod::ServerAddress;
use consort_sasl::scram;
use consort_tls::TlsError;
use tokio::net::TcpStream;

use super::credentials::Credentials;
use super::driver::Driver;
use super::login::Login;
use super::stream::{Connector, Stream, Tls};
use crate::error::{ConnectionError, LoginError};

#[derive(Clone, Default)]
pub(crate) struct Security {
    connector: Option<Connector>,
    credentials: Option<Arc<Credentials>>,
}

impl Security {
    pub(crate) fn new(tls: Option<Tls>, credentials: Credentials) -> Result<Self, TlsError> {
        let connector = tls.map(Tls::connector).transpose()?;
        Ok(Self { connector, credentials: credentials.is_some().then(|| Arc::new(credentials)) })
    }

    pub(crate) async fn open(&self, host: &str, stream: TcpStream) -> Result<Stream, ConnectionError> {
        match &self.connector {
            Some(connector) => connector.connect(host, stream).await,
            None => Ok(Stream::Plain(stream)),
        }
    }

    pub(crate) fn login(&self, server: &ServerAddress) -> Result<Option<Login>, ConnectionError> {
        let Some(credentials) = &self.credentials else { return Ok(None) };
        let random = ring::rand::generate::<[u8; 18]>(&ring::rand::SystemRandom::new());
        let random = random.map_err(|_| LoginError::NoRandomness)?;
        let (nonce, server) = (scram::nonce(random.expose()), (server.host.to_string(), server.port));
        Ok(Some(Login::new(credentials.clone(), self.connector.is_some(), nonce, server)))
    }

    pub(crate) async fn greet(&self, driver: &mut Driver) -> Result<(), ConnectionError> {
        loop {
            driver.until(|connection| connection.is_open() || connection.derivation().is_some()).await?;
            let wanted = driver.handle.lock().derivation();
            let (Some(wanted), Some(credentials)) = (wanted, &self.credentials) else { return Ok(()) };
            let keys = credentials.keys(wanted).await?;
            let now = driver.handle.clock.now();
            driver.handle.lock().authenticate(now, &keys);
        }
    }
}
