use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use consort_tls::{ClientCertificates, Identity, ProtocolSettings, TlsError, TrustedClients};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use x509_parser::parse_x509_certificate;

use crate::transport::socket::Stream;

#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    pub(crate) identity: Identity,
    pub(crate) clients: ClientCertificates,
}

/// The settings of new connections.
#[derive(Clone)]
struct Acceptor {
    tls: TlsAcceptor,
    /// They decide which certificates name a user.
    clients: Option<TrustedClients>,
}

impl Acceptor {
    fn new(
        TlsSettings { identity, clients }: TlsSettings,
        protocols: &ProtocolSettings,
    ) -> Result<Self, TlsError> {
        let trusted = match &clients {
            ClientCertificates::Trusted(trusted) => Some(trusted.clone()),
            _ => None,
        };
        let tls = TlsAcceptor::from(consort_tls::server_with_protocols(protocols, identity, clients)?);
        Ok(Self { tls, clients: trusted })
    }

    fn user_of(&self, certificate: &[u8]) -> Option<Arc<str>> {
        let may_be_user = self.clients.as_ref().is_none_or(|clients| clients.may_be_user(certificate));
        if may_be_user { common_name(certificate) } else { None }
    }
}

pub(crate) struct Tls {
    acceptor: RwLock<Acceptor>,
    protocols: ProtocolSettings,
    pub(crate) requests_certificates: bool,
    /// In seconds since 1970.
    expiry: AtomicI64,
}

impl Tls {
    pub(crate) fn new(settings: TlsSettings, protocols: ProtocolSettings) -> Result<Self, TlsError> {
        let requests_certificates = !matches!(settings.clients, ClientCertificates::NotAsked);
        let expiry = AtomicI64::new(expiry(settings.identity.certificate()));
        let acceptor = RwLock::new(Acceptor::new(settings, &protocols)?);
        Ok(Self { acceptor, protocols, requests_certificates, expiry })
    }

    pub(crate) fn expiry(&self) -> i64 {
        self.expiry.load(Ordering::Relaxed)
    }

    /// As [`crate::TlsHandle::replace`]; the mechanisms of users depend on whether certificates are requested.
    pub(crate) fn replace(&self, settings: TlsSettings) -> Result<(), TlsError> {
        if self.requests_certificates == matches!(settings.clients, ClientCertificates::NotAsked) {
            let why = "requesting client certificates can only be changed by a restart of the server";
            return Err(TlsError::Unfit(why.to_owned()));
        }
        let expiry = expiry(settings.identity.certificate());
        let acceptor = Acceptor::new(settings, &self.protocols)?;
        self.expiry.store(expiry, Ordering::Relaxed);
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    pub(crate) async fn accept(
        &self,
        mut stream: TcpStream,
        response_without_tls: fn(u8) -> Option<Bytes>,
    ) -> io::Result<(Stream, Option<Arc<str>>)> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1
            && let Some(response) = response_without_tls(first[0])
        {
            return Err(refuse(&mut stream, &response).await);
        }
        let acceptor = self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone();
        let stream = acceptor.tls.accept(stream).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let name = certificate.and_then(|certificate| acceptor.user_of(certificate));
        Ok((Stream::Tls(Box::new(Mutex::new(stream))), name))
    }
}

async fn refuse(stream: &mut TcpStream, answer: &[u8]) -> io::Error {
    let _ = stream.write_all(answer).await;
    let _ = stream.shutdown().await;
    io::Error::new(io::ErrorKind::InvalidData, "a client without TLS")
}

/// In seconds since 1970, or 0 if the certificate has none.
pub(crate) fn expiry(certificate: &[u8]) -> i64 {
    parse_x509_certificate(certificate).map_or(0, |(_, read)| read.validity().not_after.timestamp())
}

pub(crate) fn common_name(certificate: &[u8]) -> Option<Arc<str>> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    name.as_str().ok().map(Arc::from)
}
