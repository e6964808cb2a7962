//! TLS of SSL_KEY_EXCHANGE: certificates that are read again after some time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{AlertDescription, CertificateError, ClientConfig, Error, ServerConfig};
use tokio::sync::Mutex;

/// The TLS settings of both sides of a key exchange.
#[derive(Clone)]
pub struct KeyExchangeTls {
    /// Of the coordinator.
    pub server: Arc<ServerConfig>,
    /// Of members that fetch the key.
    pub client: Arc<ClientConfig>,
}

/// Reads the settings from files; the error is for the operator.
pub type ReadKeyExchangeTls = dyn Fn() -> Result<KeyExchangeTls, String> + Send + Sync;

pub(crate) struct ReloadedTls {
    read: Arc<ReadKeyExchangeTls>,
    threshold: Duration,
    /// With the time of the last attempt to read them. It is locked while they are read.
    current: Arc<Mutex<(KeyExchangeTls, Instant)>>,
}

impl ReloadedTls {
    pub(crate) fn new(first: KeyExchangeTls, read: Arc<ReadKeyExchangeTls>, threshold: Duration) -> Self {
        Self { read, threshold, current: Arc::new(Mutex::new((first, Instant::now()))) }
    }

    /// Files that cannot be read leave the former settings, and are not read again for each connection. The new settings stay,
    /// although the connection that caused the reading may have ended meanwhile.
    pub(crate) async fn current(&self) -> KeyExchangeTls {
        let mut current = self.current.clone().lock_owned().await;
        if current.1.elapsed() < self.threshold {
            return current.0.clone();
        }
        current.1 = Instant::now();
        let (read, former) = (self.read.clone(), current.0.clone());
        let reading = tokio::task::spawn_blocking(move || {
            match read() {
                Ok(tls) => current.0 = tls,
                Err(why) => tracing::warn!("SSL_KEY_EXCHANGE keeps its former certificates: {why}"),
            }
            current.0.clone()
        });
        reading.await.unwrap_or_else(|error| {
            tracing::warn!("SSL_KEY_EXCHANGE keeps its former certificates: {error}");
            former
        })
    }
}

/// Why a handshake failed, with a hint if the cause is known.
pub(crate) fn reason(error: &io::Error) -> String {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return error.to_string();
    };
    let hint = match error {
        Error::InvalidMessage(_) => "it does not send TLS: another program uses the port",
        Error::NoCertificatesPresented => {
            "it has no certificate, and require_client_authentication is set here"
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is not in our truststore_name, and none of the authorities there has signed it"
        }
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError,
        ) => "it does not trust our certificate: check its truststore_name",
        Error::AlertReceived(AlertDescription::CertificateRequired) => "it requires a certificate of ours",
        _ => return error.to_string(),
    };
    format!("{error} ({hint})")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Waker};

    use consort_testkit::Authority;
    use consort_tls::{Identity, ProtocolSettings, TrustedPeers};

    use super::*;
    use crate::tcp::tls::Tls;

    fn settings(identity: Identity) -> KeyExchangeTls {
        let trusted = TrustedPeers::from_der([identity.certificate().to_vec()]).unwrap();
        let protocols = ProtocolSettings::default();
        KeyExchangeTls {
            server: trusted.server(&protocols, identity.clone(), true).unwrap(),
            client: trusted.client(&protocols, identity).unwrap(),
        }
    }

    /// Members with one certificate that trust each other.
    pub(crate) fn tls(name: &str) -> Tls {
        let first = settings(Authority::new(name).certify("member", &[]).identity());
        let again = first.clone();
        let read = Arc::new(move || Ok(again.clone()));
        Tls::of_key_exchange(Arc::new(ReloadedTls::new(first, read, Duration::from_secs(3_600))))
    }

    fn reloaded(threshold: Duration) -> (ReloadedTls, KeyExchangeTls, Arc<AtomicU32>) {
        let authority = Authority::new(&format!("reloaded-{}", threshold.as_millis()));
        let identity = authority.certify("member", &[]).identity();
        let (first, reads) = (settings(identity.clone()), Arc::new(AtomicU32::new(0)));
        let counted = reads.clone();
        let read = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(settings(identity.clone())),
            _ => Err("no such file".to_owned()),
        };
        (ReloadedTls::new(first.clone(), Arc::new(read), threshold), first, reads)
    }

    #[tokio::test]
    async fn old_settings_are_read_again_and_stay_if_the_files_are_unreadable() {
        let (reloaded, first, reads) = reloaded(Duration::ZERO);
        let second = reloaded.current().await;
        assert!(!Arc::ptr_eq(&second.server, &first.server));
        let third = reloaded.current().await;
        assert!(Arc::ptr_eq(&third.server, &second.server) && Arc::ptr_eq(&third.client, &second.client));
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }

    /// The time limit of a handshake ends it while the files are read.
    #[tokio::test]
    async fn settings_that_were_read_stay_although_the_connection_has_ended() {
        let (mut reloaded, first, reads) = reloaded(Duration::ZERO);
        let (begin, wait) = std::sync::mpsc::channel();
        let (read, wait) = (reloaded.read.clone(), std::sync::Mutex::new(wait));
        reloaded.read = Arc::new(move || {
            wait.lock().unwrap().recv().unwrap();
            read()
        });
        {
            let mut ended = pin!(reloaded.current());
            assert!(ended.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        begin.send(()).unwrap();
        begin.send(()).unwrap();
        let current = reloaded.current().await;
        assert!(!Arc::ptr_eq(&current.server, &first.server), "the second time, there is no such file");
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn recent_settings_are_not_read_again() {
        let (reloaded, first, reads) = reloaded(Duration::from_secs(3_600));
        assert!(Arc::ptr_eq(&reloaded.current().await.server, &first.server));
        assert_eq!(reads.load(Ordering::Relaxed), 0);
    }
}
