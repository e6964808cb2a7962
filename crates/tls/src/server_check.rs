//! Clients that check less of a server's certificate than its name and authority.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, Error};

use crate::signatures::signature_checks;
use crate::{Identity, ProtocolSettings, Roots, TlsError, unfit};

/// The check of a server's certificate.
#[derive(Clone, Debug)]
pub enum ServerCheck {
    /// A trusted authority has signed it, and it has the server's name.
    Full(Roots),
    /// A trusted authority has signed it.
    AnyName(Roots),
    /// None. The connection is encrypted, and any server is accepted.
    Nothing,
}

/// Returns a client's settings with this check. `identity` is for servers that request a certificate.
///
/// # Errors
///
/// Certificate and key do not match, or the trusted certificates are unusable.
pub fn client_with_check(
    check: ServerCheck,
    identity: Option<Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let settings = ProtocolSettings::default();
    let provider = settings.provider();
    let roots = match check {
        ServerCheck::Full(roots) => return crate::client(roots, identity),
        ServerCheck::AnyName(roots) => Some(roots),
        ServerCheck::Nothing => None,
    };
    let authority = match roots {
        Some(roots) => {
            let verifier = WebPkiServerVerifier::builder_with_provider(roots.0, provider.clone());
            Some(verifier.build().map_err(unfit)?)
        }
        None => None,
    };
    client_with_verifier(&settings, Arc::new(Verifier { authority, provider }), identity)
}

pub(crate) fn client_with_verifier(
    protocols: &ProtocolSettings,
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_provider(protocols.provider());
    let config = config.with_protocol_versions(protocols.versions()).map_err(unfit)?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier);
    let config = match identity {
        Some(identity) => config.with_client_auth_cert(identity.chain, identity.key).map_err(unfit)?,
        None => config.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// Accepts a certificate that has only a wrong name: the verifier checks the name last.
pub(crate) fn with_any_name(outcome: Result<ServerCertVerified, Error>) -> Result<ServerCertVerified, Error> {
    match outcome {
        Err(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Ok(ServerCertVerified::assertion()),
        outcome => outcome,
    }
}

#[derive(Debug)]
struct Verifier {
    /// Absent: any certificate is accepted.
    authority: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        with_any_name(authority.verify_server_cert(certificate, intermediates, name, ocsp_response, now))
    }

    signature_checks!();
}
