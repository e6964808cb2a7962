//! TLS on the server's port, and who a client's certificate says it is.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use consort_hotrod::{
    Intelligence, Opcode, Output, ProtocolVersion, REQUEST_MAGIC, RequestContext, Response, Status,
};
use consort_tls::{ClientCertificates, Identity, TlsError};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use x509_parser::parse_x509_certificate;

use crate::http;
use crate::stream::Stream;

/// What a server shows, and what it asks its clients for.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    pub(crate) identity: Identity,
    pub(crate) clients: ClientCertificates,
}

/// Shakes hands.
pub(crate) struct Tls {
    /// With the certificate, key and roots of now.
    acceptor: RwLock<TlsAcceptor>,
    /// Whether clients may show certificates.
    pub(crate) asks_clients: bool,
    /// Until when the certificate is good, in seconds since 1970.
    good_until: AtomicI64,
}

impl Tls {
    pub(crate) fn new(TlsSettings { identity, clients }: TlsSettings) -> Result<Self, TlsError> {
        let asks_clients = !matches!(clients, ClientCertificates::NotAsked);
        let good_until = AtomicI64::new(good_until(identity.certificate()));
        let acceptor = TlsAcceptor::from(consort_tls::server(identity, clients)?);
        Ok(Self { acceptor: RwLock::new(acceptor), asks_clients, good_until })
    }

    /// Until when the certificate is good, in seconds since 1970.
    pub(crate) fn good_until(&self) -> i64 {
        self.good_until.load(Ordering::Relaxed)
    }

    /// Handshakes that begin from now on are with these.
    ///
    /// # Errors
    ///
    /// If certificate and key do not fit each other, or clients are asked for certificates now and were not, or the other way
    /// round: how users may show who they are follows from that. What was there stays.
    pub(crate) fn replace(&self, TlsSettings { identity, clients }: TlsSettings) -> Result<(), TlsError> {
        if self.asks_clients == matches!(clients, ClientCertificates::NotAsked) {
            let why = "whether clients are asked for certificates is decided when the server starts";
            return Err(TlsError::Unfit(why.to_owned()));
        }
        let good_until = good_until(identity.certificate());
        let acceptor = TlsAcceptor::from(consort_tls::server(identity, clients)?);
        self.good_until.store(good_until, Ordering::Relaxed);
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    /// The stream within TLS, and the name in the certificate that the client has shown.
    pub(crate) async fn accept(&self, mut stream: TcpStream) -> io::Result<(Stream, Option<Arc<str>>)> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 {
            if first == [REQUEST_MAGIC] {
                return Err(refuse(&mut stream, &hot_rod_only_tls()).await);
            }
            if http::begins_with(first[0]) {
                return Err(refuse(&mut stream, &http::only_tls()).await);
            }
        }
        let acceptor = self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone();
        let stream = acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let name = shown.and_then(|certificate| common_name(certificate));
        Ok((Stream::Tls(Box::new(Mutex::new(stream))), name))
    }
}

/// A client that does not know of TLS is told so in a way that it understands.
async fn refuse(stream: &mut TcpStream, answer: &[u8]) -> io::Error {
    let _ = stream.write_all(answer).await;
    let _ = stream.shutdown().await;
    io::Error::new(io::ErrorKind::InvalidData, "a client without TLS")
}

fn hot_rod_only_tls() -> Bytes {
    let asked = RequestContext {
        version: ProtocolVersion::NEWEST,
        opcode: Opcode::Ping,
        intelligence: Intelligence::Basic,
    };
    let mut output = Output::new();
    let text = "this server speaks TLS only: connect with hotrods:// or use_ssl";
    Response::error(0, Status::InvalidMagic, text).encode(asked, &mut output);
    output.into_bytes()
}

/// Until when a certificate is good, in seconds since 1970; 0 if it does not say.
pub(crate) fn good_until(certificate: &[u8]) -> i64 {
    parse_x509_certificate(certificate).map_or(0, |(_, read)| read.validity().not_after.timestamp())
}

/// The common name of a certificate's subject, if it has just one.
pub(crate) fn common_name(certificate: &[u8]) -> Option<Arc<str>> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    name.as_str().ok().map(Arc::from)
}
