//! Authentication and authorization of clients.
//!
//! Without users every client may do everything; with users the server first answers only PING and authentication ([`pre_auth`]).
//! The [`authenticator`] uses the file of [`users`]. From then on every request needs a permission of the user's [`role`]s
//! ([`access`]), as long as the user exists ([`sessions`]).

pub(crate) mod access;
mod attempts;
pub(crate) mod authenticator;
mod failed_logins;
pub(crate) mod operator_tasks;
mod password_cache;
pub(crate) mod properties;
pub(crate) mod rate_limited_log;
pub(crate) mod requirement;
pub(crate) mod role;
pub(crate) mod scope;
pub(crate) mod secret;
mod sessions;
pub(crate) mod tls;
mod tokens;
pub(crate) mod users;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_sasl::Mechanism;
use consort_tls::{ClientCertificates, Identity, ProtocolSettings, TlsError};
use tokio::net::TcpStream;

pub use role::{Permission, Role};
pub use tokens::{TokenKeyError, Tokens};
pub use users::{LineError, Users, UsersError, VERIFIER_ITERATIONS, line_for};

use self::authenticator::Authenticator;
use self::requirement::Requirement;
use self::tls::{Tls, TlsSettings};
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::transport::socket::Stream;

/// Contradictory security settings; the server does not listen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// Mechanisms or a key for tokens without users.
    #[error("mechanisms and tokens need users; configure a file of users")]
    MechanismsWithoutUsers,
    /// Passwords or tokens would be sent in cleartext.
    #[error(
        "{0} sends a password or token in cleartext, and this server has no TLS; \
         configure TLS, or allow cleartext on a trusted network"
    )]
    CleartextSecret(Mechanism),
    /// A requirement of a mechanism is missing.
    #[error("{mechanism} cannot be offered: {reason}")]
    Unavailable {
        /// The mechanism.
        mechanism: Mechanism,
        /// The missing requirement.
        reason: &'static str,
    },
    /// No user can authenticate.
    #[error("no user can authenticate with the offered mechanisms")]
    NoMechanism,
    /// Certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SecuritySettings {
    pub(crate) tls: Option<TlsSettings>,
    pub(crate) tls_protocols: ProtocolSettings,
    pub(crate) users: Option<Users>,
    pub(crate) tokens: Option<Tokens>,
    /// By default all that are possible without risk.
    pub(crate) mechanisms: Option<Vec<Mechanism>>,
    pub(crate) allow_cleartext: bool,
    pub(crate) public_metrics: bool,
    pub(crate) allows_weaker: bool,
    pub(crate) handshake_timeout: Option<Duration>,
}

pub(crate) struct Security {
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) authenticator: Option<Arc<Authenticator>>,
    pub(crate) requirement: Arc<Requirement>,
    pub(crate) public_metrics: bool,
    pub(crate) handshake_timeout: Duration,
}

impl Security {
    pub(crate) fn new(settings: SecuritySettings) -> Result<Self, SecurityError> {
        let SecuritySettings {
            tls,
            tls_protocols,
            users,
            tokens,
            mechanisms,
            allow_cleartext,
            public_metrics,
            allows_weaker,
            handshake_timeout,
        } = settings;
        let requirement = Arc::new(Requirement::new(users.is_some(), allows_weaker));
        let handshake_timeout = handshake_timeout.unwrap_or(HANDSHAKE_TIMEOUT);
        let tls = tls.map(|tls| Tls::new(tls, tls_protocols)).transpose()?.map(Arc::new);
        let Some(users) = users else {
            return match (mechanisms, tokens) {
                (Some(_), _) | (_, Some(_)) => Err(SecurityError::MechanismsWithoutUsers),
                (None, None) => {
                    Ok(Self { tls, authenticator: None, requirement, public_metrics, handshake_timeout })
                }
            };
        };
        let choice = MechanismChoice {
            configured: mechanisms,
            has_certificates: tls.as_ref().is_some_and(|tls| tls.requests_certificates),
            has_tokens: tokens.is_some(),
            is_confidential: tls.is_some() || allow_cleartext,
        };
        let authenticator = Some(Arc::new(Authenticator::new(users, choice, tokens, handshake_timeout)?));
        Ok(Self { tls, authenticator, requirement, public_metrics, handshake_timeout })
    }

    pub(crate) fn certificate_expiry(&self) -> Option<i64> {
        self.tls.as_ref().map(|tls| tls.expiry())
    }

    /// On a port with TLS, a client whose first byte has a `response_without_tls` gets it. Returns the name in the client's
    /// certificate, too.
    pub(crate) async fn open(
        &self,
        stream: TcpStream,
        response_without_tls: fn(u8) -> Option<Bytes>,
    ) -> io::Result<(Stream, Option<Arc<str>>)> {
        match &self.tls {
            Some(tls) => tls.accept(stream, response_without_tls).await,
            None => Ok((Stream::Plain(stream), None)),
        }
    }
}

pub(crate) struct MechanismChoice {
    configured: Option<Vec<Mechanism>>,
    has_certificates: bool,
    has_tokens: bool,
    /// The connection is encrypted, or cleartext is allowed.
    is_confidential: bool,
}

impl MechanismChoice {
    pub(crate) fn for_users(&self, users: &Users) -> Result<Vec<Mechanism>, SecurityError> {
        let missing = |mechanism| missing(users, self.has_certificates, self.has_tokens, mechanism);
        let is_cleartext = |mechanism: Mechanism| mechanism.tells_secret() && !self.is_confidential;
        let offered: Vec<Mechanism> = match &self.configured {
            None => Mechanism::ALL
                .into_iter()
                .filter(|&mechanism| !is_cleartext(mechanism) && missing(mechanism).is_none())
                .collect(),
            Some(configured) => {
                for &mechanism in configured {
                    if let Some(reason) = missing(mechanism) {
                        return Err(SecurityError::Unavailable { mechanism, reason });
                    }
                    if is_cleartext(mechanism) {
                        return Err(SecurityError::CleartextSecret(mechanism));
                    }
                }
                Mechanism::ALL.into_iter().filter(|mechanism| configured.contains(mechanism)).collect()
            }
        };
        if offered.is_empty() { Err(SecurityError::NoMechanism) } else { Ok(offered) }
    }
}

/// A handle that replaces the users of a running server.
#[derive(Clone)]
pub struct UsersHandle(Arc<Authenticator>);

impl std::fmt::Debug for UsersHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a server's users")
    }
}

impl UsersHandle {
    pub(crate) const fn new(authenticator: Arc<Authenticator>) -> Self {
        Self(authenticator)
    }

    /// Replaces the server's users. Clients authenticate against the new users. New permissions apply from the next request on,
    /// also on open connections. The connections of removed users are closed at once; their number is returned. A new password
    /// applies to later logins only.
    ///
    /// # Errors
    ///
    /// No new user can authenticate with the server's mechanisms, or a configured mechanism has no user any more. The previous
    /// users stay.
    pub fn replace(&self, users: Users) -> Result<usize, SecurityError> {
        self.0.replace(users)
    }
}

/// A handle that replaces the accepted tokens of a running server.
#[derive(Clone)]
pub struct TokensHandle(Arc<Authenticator>);

impl std::fmt::Debug for TokensHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a server's tokens")
    }
}

impl TokensHandle {
    pub(crate) fn new(authenticator: Arc<Authenticator>) -> Option<Self> {
        authenticator.has_tokens().then_some(Self(authenticator))
    }

    /// Accepts these tokens from now on, and no others. Clients that have authenticated before stay connected.
    pub fn replace(&self, tokens: Tokens) {
        self.0.replace_tokens(tokens);
    }
}

/// A handle that replaces a running server's certificate, key and roots of client certificates.
#[derive(Clone)]
pub struct TlsHandle(Arc<Tls>);

impl std::fmt::Debug for TlsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a server's TLS")
    }
}

impl TlsHandle {
    pub(crate) const fn new(tls: Arc<Tls>) -> Self {
        Self(tls)
    }

    /// Uses this certificate and these roots for new connections. Open connections go on; earlier TLS sessions are not resumed.
    ///
    /// # Errors
    ///
    /// Certificate and key do not match, or client certificates are requested now and were not at the server's start, or vice
    /// versa. The previous identity stays.
    pub fn replace(&self, identity: Identity, clients: ClientCertificates) -> Result<(), TlsError> {
        self.0.replace(TlsSettings { identity, clients })
    }
}

fn missing(
    users: &Users,
    has_certificates: bool,
    has_tokens: bool,
    mechanism: Mechanism,
) -> Option<&'static str> {
    match mechanism {
        Mechanism::Scram(hash) if !users.have_verifier(Some(hash)) => Some("no user has a verifier for it"),
        Mechanism::Plain if !users.have_verifier(None) => Some("no user has a password"),
        Mechanism::External if !has_certificates => Some("there are no client certificates"),
        Mechanism::OauthBearer if !has_tokens => Some("there is no key for tokens"),
        Mechanism::Scram(_) | Mechanism::Plain | Mechanism::External | Mechanism::OauthBearer => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(
        users: &str,
        mechanisms: Option<Vec<Mechanism>>,
        open: bool,
    ) -> Result<Vec<&'static str>, String> {
        let users = Some(Users::parse("users", users).unwrap());
        offered_by(SecuritySettings {
            users,
            mechanisms,
            allow_cleartext: open,
            ..SecuritySettings::default()
        })
    }

    fn offered_by(settings: SecuritySettings) -> Result<Vec<&'static str>, String> {
        let security = Security::new(settings).map_err(|error| error.to_string())?;
        Ok(security.authenticator.unwrap().mechanisms().iter().map(|one| one.name()).collect())
    }

    const ALICE: &str = "alice admin password:wonderland";

    #[test]
    fn cleartext_mechanism_is_refused_without_tls_unless_allowed() {
        assert_eq!(offered(ALICE, None, false).unwrap(), ["SCRAM-SHA-512", "SCRAM-SHA-384", "SCRAM-SHA-256"]);
        let all = ["SCRAM-SHA-512", "SCRAM-SHA-384", "SCRAM-SHA-256", "PLAIN"];
        assert_eq!(offered(ALICE, None, true).unwrap(), all);
        let plain = Some(vec![Mechanism::Plain]);
        let refused = offered(ALICE, plain.clone(), false).unwrap_err();
        assert!(refused.starts_with("PLAIN sends a password or token in cleartext"), "{refused}");
        assert_eq!(offered(ALICE, plain, true).unwrap(), ["PLAIN"]);
    }

    #[test]
    fn tokens_are_refused_without_tls_unless_cleartext_is_allowed() {
        let key = rcgen::KeyPair::generate().unwrap().public_key_pem();
        let offered = |mechanisms, open| {
            offered_by(SecuritySettings {
                users: Some(Users::parse("users", "alice admin").unwrap()),
                tokens: Some(Tokens::from_pem("keys".to_owned(), key.as_bytes(), "shop").unwrap()),
                mechanisms,
                allow_cleartext: open,
                ..SecuritySettings::default()
            })
        };
        let tokens = || Some(vec![Mechanism::OauthBearer]);
        let refused = offered(tokens(), false).unwrap_err();
        assert!(refused.starts_with("OAUTHBEARER sends a password or token in cleartext"), "{refused}");
        assert_eq!(offered(None, false).unwrap_err(), SecurityError::NoMechanism.to_string());
        assert_eq!(offered(tokens(), true).unwrap(), ["OAUTHBEARER"]);
        assert_eq!(offered(None, true).unwrap(), ["OAUTHBEARER"]);
    }

    #[test]
    fn mechanism_that_no_user_can_use_is_refused() {
        let none = Security::new(SecuritySettings {
            mechanisms: Some(vec![Mechanism::Plain]),
            ..SecuritySettings::default()
        });
        assert_eq!(none.err(), Some(SecurityError::MechanismsWithoutUsers));
        let external = offered(ALICE, Some(vec![Mechanism::External]), false).unwrap_err();
        assert_eq!(external, "EXTERNAL cannot be offered: there are no client certificates");
        let nobody = offered("carol monitor", None, true).unwrap_err();
        assert_eq!(nobody, SecurityError::NoMechanism.to_string());
    }
}
