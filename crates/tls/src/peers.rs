//! Settings of members that trust each other's certificates, whatever names these have, as Java's stores make them.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, ClientConfig, DistinguishedName, Error, RootCertStore, ServerConfig};

use crate::server_check::with_any_name;
use crate::signatures::{Signatures, signature_checks};
use crate::{Identity, ProtocolSettings, TlsError, unfit};

/// Certificates that members trust: authorities, and members' own certificates.
#[derive(Clone, Debug)]
pub struct TrustedPeers {
    certificates: Vec<CertificateDer<'static>>,
    /// Absent: none of them can be an authority.
    authorities: Option<Arc<RootCertStore>>,
}

impl TrustedPeers {
    /// Takes certificates in DER.
    ///
    /// # Errors
    ///
    /// There are none.
    pub fn from_der(certificates: impl IntoIterator<Item = Vec<u8>>) -> Result<Self, TlsError> {
        let certificates: Vec<_> = certificates.into_iter().map(CertificateDer::from).collect();
        if certificates.is_empty() {
            return Err(unfit("there is no trusted certificate"));
        }
        let mut roots = RootCertStore::empty();
        // A certificate that cannot be an authority is still trusted itself.
        let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
        let authorities = (added > 0).then(|| Arc::new(roots));
        Ok(Self { certificates, authorities })
    }

    /// Returns the settings of a server that requires trusted certificates of clients, or none.
    ///
    /// # Errors
    ///
    /// Certificate and key do not match, or no suite is of a configured version.
    pub fn server(
        &self,
        protocols: &ProtocolSettings,
        identity: Identity,
        requires_certificates: bool,
    ) -> Result<Arc<ServerConfig>, TlsError> {
        let config = ServerConfig::builder_with_provider(protocols.provider());
        let config = config.with_protocol_versions(protocols.versions()).map_err(unfit)?;
        let config = match requires_certificates {
            true => config.with_client_cert_verifier(Arc::new(self.verifier(protocols)?)),
            false => config.with_no_client_auth(),
        };
        config.with_single_cert(identity.chain, identity.key).map(Arc::new).map_err(unfit)
    }

    /// Returns the settings of a client that trusts these servers, and has this certificate.
    ///
    /// # Errors
    ///
    /// As for [`TrustedPeers::server`].
    pub fn client(
        &self,
        protocols: &ProtocolSettings,
        identity: Identity,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let config = ClientConfig::builder_with_provider(protocols.provider());
        let config = config.with_protocol_versions(protocols.versions()).map_err(unfit)?;
        let verifier = Arc::new(self.verifier(protocols)?);
        let config = config.dangerous().with_custom_certificate_verifier(verifier);
        config.with_client_auth_cert(identity.chain, identity.key).map(Arc::new).map_err(unfit)
    }

    fn verifier(&self, protocols: &ProtocolSettings) -> Result<PeerVerifier, TlsError> {
        let provider = protocols.provider();
        let (mut servers, mut clients) = (None, None);
        if let Some(authorities) = &self.authorities {
            let builder = WebPkiServerVerifier::builder_with_provider(authorities.clone(), provider.clone());
            servers = Some(builder.build().map_err(unfit)?);
            let builder = WebPkiClientVerifier::builder_with_provider(authorities.clone(), provider.clone());
            clients = Some(builder.build().map_err(unfit)?);
        }
        Ok(PeerVerifier {
            trusted: self.certificates.clone(),
            servers,
            clients,
            signatures: Signatures(provider),
        })
    }
}

#[derive(Debug)]
struct PeerVerifier {
    trusted: Vec<CertificateDer<'static>>,
    servers: Option<Arc<WebPkiServerVerifier>>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    signatures: Signatures,
}

impl PeerVerifier {
    /// As Java, a certificate that is itself in the store is trusted without a check of its issuer and dates.
    fn is_trusted(&self, certificate: &CertificateDer<'_>) -> bool {
        self.trusted.iter().any(|own| own == certificate)
    }
}

const UNKNOWN: Error = Error::InvalidCertificate(CertificateError::UnknownIssuer);

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.is_trusted(certificate) {
            return Ok(ServerCertVerified::assertion());
        }
        let servers = self.servers.as_ref().ok_or(UNKNOWN)?;
        with_any_name(servers.verify_server_cert(certificate, intermediates, name, ocsp_response, now))
    }

    signature_checks!();
}

impl ClientCertVerifier for PeerVerifier {
    /// None, because a Java client whose store has only its issuer's certificate would find none of its own.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.is_trusted(certificate) {
            return Ok(ClientCertVerified::assertion());
        }
        let clients = self.clients.as_ref().ok_or(UNKNOWN)?;
        clients.verify_client_cert(certificate, intermediates, now)
    }

    signature_checks!();
}
