//! The SASL authentication of a connection: a state machine without IO and randomness.

use std::sync::Arc;

use consort_hotrod::ops::auth;
use consort_sasl::bearer::Bearer;
use consort_sasl::plain::Plain;
use consort_sasl::scram::client::{Challenged, First, Last};
use consort_sasl::scram::{Hash, Keys, ScramError};
use consort_sasl::{Mechanism, prepare};

use super::credentials::{Credentials, KeyDerivation};
use crate::error::LoginError;

#[derive(Debug)]
pub(crate) enum LoginStep {
    Send(auth::Request),
    /// Derive keys from the password, which takes time.
    Derive,
    /// Both sides are authenticated.
    Done,
}

#[derive(Debug)]
enum State {
    Started,
    /// One message held the credentials.
    CredentialsSent(Mechanism),
    Challenging(First, Hash),
    Deriving(Challenged),
    Proving(Last, Hash),
    Over,
}

#[derive(Debug)]
pub(crate) struct Login {
    credentials: Arc<Credentials>,
    is_private: bool,
    nonce: String,
    server: (String, u16),
    state: State,
}

impl Login {
    /// The nonce must be new and random.
    pub(crate) fn new(
        credentials: Arc<Credentials>,
        is_private: bool,
        nonce: String,
        server: (String, u16),
    ) -> Self {
        Self { credentials, is_private, nonce, server, state: State::Started }
    }

    pub(crate) fn refused(&mut self, message: &str) -> LoginError {
        let message = message.to_owned();
        let mechanism = match std::mem::replace(&mut self.state, State::Over) {
            State::Started | State::Over => return LoginError::NotAsked(message),
            State::CredentialsSent(mechanism) => mechanism,
            State::Challenging(_, hash) | State::Proving(_, hash) => Mechanism::Scram(hash),
            State::Deriving(challenged) => Mechanism::Scram(challenged.hash()),
        };
        LoginError::Rejected { mechanism, message }
    }

    pub(crate) fn answered(&mut self, response: &auth::Response) -> Result<LoginStep, LoginError> {
        match (std::mem::replace(&mut self.state, State::Over), response) {
            (State::Started, auth::Response::Mechanisms(names)) => {
                let offered: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
                self.choose(&offered).map(LoginStep::Send)
            }
            (State::CredentialsSent(_), auth::Response::Done) => Ok(LoginStep::Done),
            // The response to a token is empty if the token is valid; else it says why it is not.
            (State::CredentialsSent(Mechanism::OauthBearer), auth::Response::Challenge(said))
                if said.is_empty() =>
            {
                Ok(LoginStep::Done)
            }
            (State::CredentialsSent(mechanism @ Mechanism::OauthBearer), auth::Response::Challenge(said)) => {
                let message = String::from_utf8_lossy(said).into_owned();
                Err(LoginError::Rejected { mechanism, message })
            }
            (State::Challenging(first, hash), auth::Response::Challenge(challenge)) => {
                self.state = State::Deriving(first.challenged(challenge).map_err(wrong(hash))?);
                Ok(LoginStep::Derive)
            }
            (State::Proving(last, hash), auth::Response::Challenge(signature)) => {
                last.check(signature).map_err(wrong(hash))?;
                Ok(LoginStep::Done)
            }
            // Success without the server's signature is a failure.
            (State::Challenging(_, hash) | State::Proving(_, hash), _) => {
                Err(LoginError::OutOfTurn(Mechanism::Scram(hash)))
            }
            (State::CredentialsSent(mechanism), _) => Err(LoginError::OutOfTurn(mechanism)),
            (State::Started | State::Deriving(_) | State::Over, _) => {
                Err(LoginError::NotAsked("unexpected response".to_owned()))
            }
        }
    }

    fn choose(&mut self, offered: &[&str]) -> Result<auth::Request, LoginError> {
        let usable = |mechanism: &&Mechanism| self.credentials.can(**mechanism);
        let known: Vec<Mechanism> =
            Mechanism::ALL.into_iter().filter(|mechanism| offered.contains(&mechanism.name())).collect();
        let usable: Vec<Mechanism> = known.iter().filter(usable).copied().collect();
        // An impostor that offers only this mechanism must not get the password.
        let is_safe = |mechanism: &Mechanism| {
            self.is_private || !mechanism.tells_secret() || self.credentials.only() == Some(*mechanism)
        };
        let Some(&mechanism) = usable.iter().find(|mechanism| is_safe(mechanism)) else {
            let reason = if usable.is_empty() {
                "the client has no credentials for these mechanisms"
            } else {
                "without TLS the client sends a password or token in clear text only if that mechanism is forced"
            };
            return Err(LoginError::NoMechanism { offered: offered.join(", "), reason });
        };
        let (state, message) = self.begin(mechanism)?;
        self.state = state;
        Ok(auth::Request::Step(mechanism.name().into(), message.into()))
    }

    fn begin(&self, mechanism: Mechanism) -> Result<(State, Vec<u8>), LoginError> {
        let message = match mechanism {
            Mechanism::External => Vec::new(),
            Mechanism::Scram(hash) => {
                let (name, _) = self.credentials.user().unwrap_or_default();
                let name = prepare(name).map_err(|_| LoginError::InvalidNameOrPassword)?;
                let (first, message) = First::begin(hash, &name, &self.nonce);
                return Ok((State::Challenging(first, hash), message));
            }
            Mechanism::OauthBearer => {
                let token = self.credentials.token().unwrap_or_default();
                Bearer { act_as: "", token }.write(&self.server.0, self.server.1)
            }
            Mechanism::Plain => {
                let (name, password) = self.credentials.user().unwrap_or_default();
                Plain { act_as: "", name, password }.write()
            }
        };
        Ok((State::CredentialsSent(mechanism), message))
    }

    pub(crate) fn derivation(&self) -> Option<KeyDerivation> {
        let State::Deriving(challenged) = &self.state else { return None };
        let (hash, salt) = (challenged.hash(), challenged.salt().to_vec());
        Some(KeyDerivation { hash, salt, iterations: challenged.iterations() })
    }

    /// Returns the next request if the login waited for the keys.
    pub(crate) fn authenticate(&mut self, keys: &Keys) -> Option<auth::Request> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Deriving(challenged) => {
                let hash = challenged.hash();
                let (last, message) = challenged.prove(keys);
                self.state = State::Proving(last, hash);
                Some(auth::Request::Step(Mechanism::Scram(hash).name().into(), message.into()))
            }
            other => {
                self.state = other;
                None
            }
        }
    }
}

fn wrong(hash: Hash) -> impl Fn(ScramError) -> LoginError {
    move |error| LoginError::Scram { mechanism: Mechanism::Scram(hash), error }
}

#[cfg(test)]
mod tests {
    use consort_hotrod::Text;

    use super::*;

    fn login(credentials: Credentials, is_private: bool) -> Login {
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        Login::new(Arc::new(credentials), is_private, nonce, ("h".to_owned(), 1))
    }

    fn offer(names: &[&'static str]) -> auth::Response {
        auth::Response::Mechanisms(names.iter().map(|name| Text::from_static(name)).collect())
    }

    fn chosen(credentials: Credentials, is_private: bool, names: &[&'static str]) -> Result<String, String> {
        match login(credentials, is_private).answered(&offer(names)) {
            Ok(LoginStep::Send(auth::Request::Step(mechanism, _))) => Ok(mechanism.to_string()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    fn user() -> Credentials {
        Credentials::default().with_user("user", "pencil")
    }

    const ALL: &[&str] =
        &["PLAIN", "SCRAM-SHA-256", "DIGEST-MD5", "EXTERNAL", "SCRAM-SHA-512", "OAUTHBEARER"];

    #[test]
    fn the_strongest_is_taken_that_both_sides_can() {
        assert_eq!(chosen(user(), true, ALL).unwrap(), "SCRAM-SHA-512");
        assert_eq!(chosen(user(), true, &["PLAIN", "SCRAM-SHA-256"]).unwrap(), "SCRAM-SHA-256");
        assert_eq!(chosen(user(), true, &["PLAIN"]).unwrap(), "PLAIN");
        assert_eq!(chosen(Credentials::default().with_token("t"), true, ALL).unwrap(), "OAUTHBEARER");
        let external = Credentials::default().with_only(Mechanism::External);
        assert_eq!(chosen(external, true, ALL).unwrap(), "EXTERNAL");
        assert_eq!(chosen(user().with_only(Mechanism::Plain), true, ALL).unwrap(), "PLAIN");
    }

    #[test]
    fn a_password_is_not_sent_as_it_is_unless_that_is_wanted() {
        let refused = chosen(user(), false, &["PLAIN"]).unwrap_err();
        assert!(refused.starts_with("the server offers PLAIN; without TLS"), "{refused}");
        assert_eq!(chosen(user().with_only(Mechanism::Plain), false, &["PLAIN"]).unwrap(), "PLAIN");
        assert_eq!(chosen(user(), false, &["PLAIN", "SCRAM-SHA-256"]).unwrap(), "SCRAM-SHA-256");
        let refused = chosen(user(), true, &["GSSAPI", "EXTERNAL"]).unwrap_err();
        assert_eq!(
            refused,
            "the server offers GSSAPI, EXTERNAL; the client has no credentials for these mechanisms"
        );
    }

    #[test]
    fn a_token_is_not_sent_without_tls_unless_that_is_wanted() {
        let token = || Credentials::default().with_token("t");
        let refused = chosen(token(), false, &["OAUTHBEARER"]).unwrap_err();
        assert!(refused.starts_with("the server offers OAUTHBEARER; without TLS"), "{refused}");
        let wanted = token().with_only(Mechanism::OauthBearer);
        assert_eq!(chosen(wanted, false, &["OAUTHBEARER"]).unwrap(), "OAUTHBEARER");
    }

    #[test]
    fn a_good_token_is_answered_by_nothing() {
        let token_sent = || {
            let mut login = login(Credentials::default().with_token("a.b.c"), true);
            login.answered(&offer(&["OAUTHBEARER"])).unwrap();
            login
        };
        let said = |text: &'static str| auth::Response::Challenge(bytes::Bytes::from_static(text.as_bytes()));
        assert!(matches!(token_sent().answered(&said("")), Ok(LoginStep::Done)));
        assert!(matches!(token_sent().answered(&auth::Response::Done), Ok(LoginStep::Done)));
        let error = token_sent().answered(&said("eyJzdGF0dXMiOiJpbnZhbGlkX3Rva2VuIn0=")).unwrap_err();
        assert!(matches!(error, LoginError::Rejected { mechanism: Mechanism::OauthBearer, .. }), "{error}");
    }

    const SERVER_FIRST: &[u8] =
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn proving() -> Login {
        let mut login = login(user(), false);
        login.answered(&offer(&["SCRAM-SHA-256"])).unwrap();
        let challenge = auth::Response::Challenge(bytes::Bytes::from_static(SERVER_FIRST));
        assert!(matches!(login.answered(&challenge), Ok(LoginStep::Derive)));
        let KeyDerivation { hash, salt, iterations } = login.derivation().unwrap();
        let keys = Keys::derive(hash, "pencil", &salt, iterations);
        assert!(login.authenticate(&keys).is_some());
        assert!(login.authenticate(&keys).is_none());
        login
    }

    /// RFC 7677, section 3.
    #[test]
    fn the_server_has_to_show_that_it_knows_the_user() {
        let signature = |text: &'static str| auth::Response::Challenge(text.as_bytes().to_vec().into());
        let right = signature("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        assert!(matches!(proving().answered(&right), Ok(LoginStep::Done)));
        let other = signature("v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        let error = proving().answered(&other).unwrap_err();
        assert!(matches!(error, LoginError::Scram { error: ScramError::Impostor, .. }), "{error}");
        let error = proving().answered(&auth::Response::Done).unwrap_err();
        assert_eq!(error, LoginError::OutOfTurn(Mechanism::Scram(Hash::Sha256)));
    }

    #[test]
    fn a_refusal_says_what_was_refused() {
        let refused = proving().refused("ISPN006024: Invalid credentials").to_string();
        assert_eq!(refused, "authentication failed (SCRAM-SHA-256): ISPN006024: Invalid credentials");
        let refused = login(user(), false).refused("ISPN006007").to_string();
        assert_eq!(refused, "the server does not offer authentication: ISPN006007");
    }
}
