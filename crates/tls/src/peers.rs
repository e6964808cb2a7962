//! Settings of members that trust each other's certificates, whatever names these have, as Java's stores make them.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, ClientConfig, DistinguishedName, Error, RootCertStore, ServerConfig};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::server_check::{client_with_verifier, with_any_name};
use crate::signatures::signature_checks;
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
        // Another certificate is still trusted itself.
        let authorities = certificates.iter().filter(|certificate| is_authority(certificate)).cloned();
        let (added, _) = roots.add_parsable_certificates(authorities);
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
            true => config.with_client_cert_verifier(Arc::new(self.verifier(protocols, true)?)),
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
        client_with_verifier(protocols, Arc::new(self.verifier(protocols, true)?), Some(identity))
    }

    /// Returns the certificates in DER.
    pub fn certificates(&self) -> impl Iterator<Item = &[u8]> {
        self.certificates.iter().map(AsRef::as_ref)
    }

    fn verifier(&self, protocols: &ProtocolSettings, is_required: bool) -> Result<PeerVerifier, TlsError> {
        let provider = protocols.provider();
        let (mut servers, mut clients) = (None, None);
        if let Some(authorities) = &self.authorities {
            let builder = WebPkiServerVerifier::builder_with_provider(authorities.clone(), provider.clone());
            servers = Some(builder.build().map_err(unfit)?);
            let builder = WebPkiClientVerifier::builder_with_provider(authorities.clone(), provider.clone());
            clients = Some(builder.build().map_err(unfit)?);
        }
        Ok(PeerVerifier { trusted: self.certificates.clone(), servers, clients, provider, is_required })
    }
}

/// A server's trusted certificates of clients.
#[derive(Clone, Debug)]
pub struct TrustedClients {
    /// The certificates.
    pub trusted: TrustedPeers,
    /// Refuse clients without a certificate.
    pub is_required: bool,
    /// Only clients whose certificate is itself among the trusted ones are users.
    pub are_users: bool,
}

impl TrustedClients {
    pub(crate) fn verifier(
        &self,
        protocols: &ProtocolSettings,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        Ok(Arc::new(self.trusted.verifier(protocols, self.is_required)?))
    }

    /// Whether the owner of a verified certificate may be a user.
    pub fn may_be_user(&self, certificate: &[u8]) -> bool {
        !self.are_users || self.trusted.certificates().any(|own| own == certificate)
    }
}

/// As Java: the key of a member's own certificate certifies no others.
fn is_authority(certificate: &[u8]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    let may_certify =
        matches!(certificate.basic_constraints(), Ok(Some(constraints)) if constraints.value.ca);
    // Absent, the key is for everything.
    let may_sign = match certificate.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
        Err(_) => false,
    };
    may_certify && may_sign
}

#[derive(Debug)]
struct PeerVerifier {
    trusted: Vec<CertificateDer<'static>>,
    servers: Option<Arc<WebPkiServerVerifier>>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    provider: Arc<CryptoProvider>,
    is_required: bool,
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
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

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

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

    use super::*;

    struct Certified {
        certificate: CertificateDer<'static>,
        issuer: Issuer<'static, KeyPair>,
    }

    fn params(name: &str, is_ca: IsCa) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = is_ca;
        params
    }

    /// It signs itself if there is no issuer.
    fn certified(params: CertificateParams, by: Option<&Certified>) -> Certified {
        let key = KeyPair::generate().unwrap();
        let certificate = match by {
            Some(by) => params.signed_by(&key, &by.issuer),
            None => params.self_signed(&key),
        };
        Certified { certificate: certificate.unwrap().into(), issuer: Issuer::new(params, key) }
    }

    /// Both as a server's and as a client's certificate.
    fn accepts(trusted: &[&Certified], presented: &[&Certified]) -> bool {
        let trusted = TrustedPeers::from_der(trusted.iter().map(|own| own.certificate.to_vec())).unwrap();
        let verifier = trusted.verifier(&ProtocolSettings::default(), true).unwrap();
        let chain: Vec<_> = presented.iter().map(|own| own.certificate.clone()).collect();
        let name = ServerName::try_from("any.example").unwrap();
        let as_server = verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now());
        let as_client = verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now());
        assert_eq!(as_server.is_ok(), as_client.is_ok(), "{as_server:?} {as_client:?}");
        as_server.is_ok()
    }

    #[test]
    fn only_a_certificate_of_the_store_itself_may_be_a_user_if_those_are_the_users() {
        let authority = certified(params("authority", IsCa::Ca(BasicConstraints::Unconstrained)), None);
        let user = certified(params("user", IsCa::NoCa), Some(&authority));
        let other = certified(params("user", IsCa::NoCa), Some(&authority));
        let stored = [&authority, &user].map(|own| own.certificate.to_vec());
        let trusted = TrustedPeers::from_der(stored).unwrap();
        let mut clients = TrustedClients { trusted, is_required: false, are_users: true };
        assert!(clients.may_be_user(&user.certificate) && !clients.may_be_user(&other.certificate));
        clients.are_users = false;
        assert!(clients.may_be_user(&other.certificate));
        let is_mandatory = |clients: &TrustedClients| {
            clients.verifier(&ProtocolSettings::default()).unwrap().client_auth_mandatory()
        };
        assert!(!is_mandatory(&clients));
        clients.is_required = true;
        assert!(is_mandatory(&clients));
    }

    #[test]
    fn only_authorities_certify_others() {
        let authority = certified(params("authority", IsCa::Ca(BasicConstraints::Unconstrained)), None);
        let member = certified(params("member", IsCa::NoCa), Some(&authority));
        assert!(accepts(&[&authority], &[&member]) && accepts(&[&authority], &[&authority]));
        assert!(accepts(&[&member], &[&member]) && !accepts(&[&member], &[&authority]));
        for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa] {
            let own = certified(params("own", is_ca), None);
            let rogue = certified(params("rogue", IsCa::NoCa), Some(&own));
            assert!(accepts(&[&own], &[&own]) && !accepts(&[&own], &[&rogue]));
            assert!(!accepts(&[&own, &authority], &[&rogue, &own]));
        }
    }

    #[test]
    fn authority_whose_key_is_for_something_else_certifies_no_member() {
        let mut for_lists = params("lists", IsCa::Ca(BasicConstraints::Unconstrained));
        for_lists.key_usages = vec![KeyUsagePurpose::CrlSign];
        let for_lists = certified(for_lists, None);
        let mut for_both = params("both", IsCa::Ca(BasicConstraints::Unconstrained));
        for_both.key_usages = vec![KeyUsagePurpose::CrlSign, KeyUsagePurpose::KeyCertSign];
        let for_both = certified(for_both, None);
        let by = |issuer| certified(params("member", IsCa::NoCa), Some(issuer));
        assert!(!accepts(&[&for_lists], &[&by(&for_lists)]) && accepts(&[&for_both], &[&by(&for_both)]));
    }
}
