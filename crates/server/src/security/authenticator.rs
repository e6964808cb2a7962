//! Authentication of clients by SASL mechanisms (facts section 5.1).
//!
//! Responses do not reveal whether a user exists: an unknown name gets the same response after the same work as a wrong password.
//! Hashes run off the runtime's threads, few at a time and in short slices.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_hotrod::Text;
use consort_sasl::bearer::Bearer;
use consort_sasl::plain::Plain;
use consort_sasl::scram::{self, Hash, ScramError, Verifier};
use consort_sasl::{Malformed, Mechanism, prepare};
use ring::rand::SystemRandom;
use tokio::sync::{Notify, Semaphore};

use crate::compute_pool::processors;
use crate::limits::PASSWORD_THREADS_SHARE;
use crate::security::attempts::Attempts;
use crate::security::failed_logins::FailedLogins;
use crate::security::password_cache::PasswordCache;
use crate::security::secret::Secret;
use crate::security::sessions::{ActiveSessions, AuthSettings, AuthenticatedSession};
use crate::security::tokens::Tokens;
use crate::security::users::{User, UserEntry, Users};
use crate::security::{MechanismChoice, SecurityError};

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Rejection {
    /// The user does not exist, or has other credentials; the client does not learn which.
    #[error("ISPN006024: Invalid credentials")]
    Credentials,
    #[error("ISPN006025: Invalid mech '{0}'")]
    Mechanism(String),
    #[error("ISPN006024: Invalid credentials: acting as another user is not supported")]
    ActAs,
    #[error("ISPN006024: Invalid credentials: {0}")]
    Malformed(#[from] Malformed),
    #[error("ISPN006024: Invalid credentials: {0}")]
    Scram(ScramError),
    #[error("ISPN006024: Invalid credentials: invalid token: {0}")]
    Token(String),
    #[error("ISPN006024: {0}")]
    System(&'static str),
}

impl From<ScramError> for Rejection {
    fn from(error: ScramError) -> Self {
        match error {
            ScramError::Proof => Self::Credentials,
            error => Self::Scram(error),
        }
    }
}

pub(crate) struct Exchange {
    hash: Hash,
    waiting: scram::server::Last,
    user: Option<User>,
    name: String,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin<'a> {
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) certificate: Option<&'a str>,
}

pub(crate) enum Step {
    Challenge(Bytes),
    /// The last message to the client is optional.
    Authenticated(User, Option<Bytes>),
}

/// Then the thread pauses as long: even a low-priority thread is not preempted at once, and authenticated clients send thousands
/// of requests a second.
const HASHED_AT_ONCE: Duration = Duration::from_micros(50);

/// Between two readings of the clock: about 10 us.
const ITERATIONS_AT_ONCE: u32 = 32;

/// Characters of a mechanism's name that is repeated to clients; no known name is longer.
const NAME_MAX: usize = 20;

pub(crate) struct Authenticator {
    sessions: ActiveSessions,
    choice: MechanismChoice,
    tokens: Option<RwLock<Tokens>>,
    random: SystemRandom,
    hashing: Arc<Semaphore>,
    verified: PasswordCache,
    attempts: Attempts,
    failed: FailedLogins,
    /// Known once the servers share it; locked while the users change.
    secret: Mutex<Option<Secret>>,
}

impl Authenticator {
    /// Fails if the users cannot authenticate with the configured mechanisms.
    pub(crate) fn new(
        users: Users,
        choice: MechanismChoice,
        tokens: Option<Tokens>,
        handshake_timeout: Duration,
    ) -> Result<Self, SecurityError> {
        let settings = AuthSettings { mechanisms: choice.for_users(&users)?, users };
        let hashing = Arc::new(Semaphore::new((processors() / PASSWORD_THREADS_SHARE).max(1)));
        let random = SystemRandom::new();
        Ok(Self {
            sessions: ActiveSessions::new(settings),
            choice,
            tokens: tokens.map(RwLock::new),
            verified: PasswordCache::new(&random),
            random,
            hashing,
            attempts: Attempts::new(handshake_timeout),
            failed: FailedLogins::default(),
            secret: Mutex::default(),
        })
    }

    /// Returns how many connections end. After an error of [`Authenticator::new`], the previous users stay.
    pub(crate) fn replace(&self, users: Users) -> Result<usize, SecurityError> {
        let mechanisms = self.choice.for_users(&users)?;
        let secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        let users = match &*secret {
            Some(secret) => users.with_secret(secret),
            None => users,
        };
        let ended = self.sessions.replace(AuthSettings { mechanisms, users });
        self.verified.clear();
        Ok(ended)
    }

    pub(crate) fn secret(&self) -> Secret {
        self.sessions.settings().users.secret().clone()
    }

    pub(crate) fn set_secret(&self, secret: &Secret) {
        let mut known = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() == Some(secret) {
            return;
        }
        *known = Some(secret.clone());
        let settings = self.sessions.settings();
        let (users, mechanisms) = (settings.users.clone().with_secret(secret), settings.mechanisms.clone());
        self.sessions.replace(AuthSettings { users, mechanisms });
    }

    pub(crate) const fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    pub(crate) fn replace_tokens(&self, tokens: Tokens) {
        if let Some(known) = &self.tokens {
            *known.write().unwrap_or_else(PoisonError::into_inner) = tokens;
        }
    }

    pub(crate) fn register(&self, name: &Arc<str>, end: Arc<Notify>) -> Option<Arc<AuthenticatedSession>> {
        self.sessions.register(name, end)
    }

    /// At once or together with the next ones.
    pub(crate) fn note(&self, rejection: &Rejection, peer: Option<SocketAddr>) {
        if let Some(failed) = self.failed.count(peer, Instant::now()) {
            let (attempts, from) = (failed.attempts, failed.addresses());
            tracing::warn!(attempts, %from, last = %rejection, "logins failed");
        }
    }

    pub(crate) fn mechanisms(&self) -> Vec<Mechanism> {
        self.sessions.settings().mechanisms.clone()
    }

    pub(crate) fn names(&self, certificate: Option<&str>) -> Vec<Text> {
        let can_be_used =
            |mechanism: &&Mechanism| certificate.is_some() || **mechanism != Mechanism::External;
        let settings = self.sessions.settings();
        let usable = settings.mechanisms.iter().filter(can_be_used);
        usable.map(|mechanism| Text::from_static(mechanism.name())).collect()
    }

    /// An error ends the exchange. After failures of the name or address the response is delayed, which blocks no thread.
    pub(crate) async fn step(
        &self,
        exchange: &mut Option<Exchange>,
        mechanism: &str,
        message: &[u8],
        origin: Origin<'_>,
    ) -> Result<Step, Rejection> {
        let mut name = None;
        let step = self.decide(exchange, mechanism, message, origin.certificate, &mut name).await;
        let is_right = match &step {
            Ok(Step::Challenge(_)) | Err(Rejection::System(_)) => return step,
            Ok(Step::Authenticated(user, _)) => {
                name = Some(user.name.to_string());
                true
            }
            Err(_) => false,
        };
        let now = tokio::time::Instant::now();
        let delay = self.attempts.count(name.as_deref(), origin.peer, is_right, now);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        step
    }

    /// Sets the claimed name as soon as it is known.
    async fn decide(
        &self,
        exchange: &mut Option<Exchange>,
        mechanism: &str,
        message: &[u8],
        certificate: Option<&str>,
        name: &mut Option<String>,
    ) -> Result<Step, Rejection> {
        if let Some(begun) = exchange.take()
            && (mechanism.is_empty() || mechanism == begun.hash.mechanism())
        {
            *name = Some(begun.name);
            let last = begun.waiting.check(message)?;
            let user = begun.user.ok_or(Rejection::Credentials)?;
            return Ok(Step::Authenticated(user, Some(last.into())));
        }
        let offered =
            Mechanism::from_name(mechanism).filter(|one| self.sessions.settings().mechanisms.contains(one));
        match offered {
            Some(Mechanism::Scram(hash)) => {
                let (begun, challenge) = self.challenge(hash, message)?;
                *exchange = Some(begun);
                Ok(Step::Challenge(challenge))
            }
            Some(Mechanism::Plain) => Ok(Step::Authenticated(self.password(message, name).await?, None)),
            Some(Mechanism::External) => {
                let shown = certificate.ok_or(Rejection::Credentials)?;
                *name = Some(shown.to_owned());
                check_act_as(std::str::from_utf8(message).map_err(|_| Rejection::ActAs)?, shown)?;
                Ok(Step::Authenticated(self.verified_user(shown)?, None))
            }
            // Java's client waits for a last message, which is empty on success: facts section 5.1 have it otherwise.
            Some(Mechanism::OauthBearer) => Ok(Step::Authenticated(self.token(message)?, Some(Bytes::new()))),
            None => Err(Rejection::Mechanism(mechanism.chars().take(NAME_MAX).collect())),
        }
    }

    /// A decoy, which no password matches, stands for a missing user or verifier.
    fn user_and_verifier(&self, hash: Option<Hash>, name: &str) -> Option<(Option<User>, Verifier)> {
        let name = &*prepared(name);
        // The decoy is made in any case, so that the time is the same.
        let settings = self.sessions.settings();
        let decoy = settings.users.decoy(hash, name)?;
        let found = settings.users.get(name).and_then(|known| Some((known, known.verifier(hash)?)));
        Some(match found {
            Some((known, verifier)) => (Some(user(name, known)), verifier.clone()),
            None => (None, decoy),
        })
    }

    fn verified_user(&self, name: &str) -> Result<User, Rejection> {
        let prepared = prepare(name).map_err(|_| Rejection::Credentials)?;
        let settings = self.sessions.settings();
        let known = settings.users.get(&prepared).ok_or(Rejection::Credentials)?;
        Ok(user(&prepared, known))
    }

    fn token(&self, message: &[u8]) -> Result<User, Rejection> {
        let Bearer { act_as, token } = Bearer::read(message)?;
        let tokens = self.tokens.as_ref().ok_or(Rejection::Credentials)?;
        let name = tokens.read().unwrap_or_else(PoisonError::into_inner).owner(token);
        let name = name.map_err(Rejection::Token)?;
        check_act_as(act_as, &name)?;
        self.verified_user(&name)
    }

    fn challenge(&self, hash: Hash, message: &[u8]) -> Result<(Exchange, Bytes), Rejection> {
        let first = scram::server::First::read(message)?;
        check_act_as(first.act_as(), first.name())?;
        let (user, verifier) =
            self.user_and_verifier(Some(hash), first.name()).ok_or(Rejection::Credentials)?;
        let random = ring::rand::generate::<[u8; 18]>(&self.random);
        let random = random.map_err(|_| Rejection::System("no random numbers are available"))?;
        let name = prepared(first.name());
        let (waiting, challenge) = first.challenge(&verifier, &scram::nonce(random.expose()));
        Ok((Exchange { hash, waiting, user, name }, challenge.into()))
    }

    async fn password(&self, message: &[u8], claimed: &mut Option<String>) -> Result<User, Rejection> {
        let Plain { act_as, name, password } = Plain::read(message)?;
        *claimed = Some(prepared(name));
        check_act_as(act_as, name)?;
        let (user, verifier) = self.user_and_verifier(None, name).ok_or(Rejection::Credentials)?;
        let password = prepare(password).map_or_else(|_| password.to_owned(), std::borrow::Cow::into_owned);
        // The search also runs without such a user, so that the time is the same.
        let called = user.as_ref().map_or(name, |user| &user.name);
        if self.verified.contains(called, &verifier, &password, Instant::now())
            && let Some(user) = user
        {
            return Ok(user);
        }
        let permit = self.hashing.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Rejection::System("the server is shutting down"))?;
        // The permit moves into the task: it is not released before the task ends, even if the client disconnects.
        let hashing = tokio::task::spawn_blocking(move || {
            let is_right = matches_password(&verifier, &password);
            drop(permit);
            is_right.then_some((verifier, password))
        });
        let right = hashing.await.map_err(|_| Rejection::System("a password could not be hashed"))?;
        let (Some(user), Some((verifier, password))) = (user, right) else {
            return Err(Rejection::Credentials);
        };
        self.verified.add(&user.name, &verifier, &password, Instant::now());
        Ok(user)
    }
}

/// The computation takes half of a thread's time.
fn matches_password(verifier: &Verifier, password: &str) -> bool {
    let mut derivation = verifier.derivation(password);
    let mut begun = Instant::now();
    loop {
        if let Some(keys) = derivation.go_on(ITERATIONS_AT_ONCE) {
            return verifier.is_of(&keys);
        }
        let taken = begun.elapsed();
        if taken >= HASHED_AT_ONCE {
            std::thread::sleep(taken);
            begun = Instant::now();
        }
    }
}

/// Prepared for comparison, or unchanged if no user can have the name.
fn prepared(name: &str) -> String {
    prepare(name).map_or_else(|_| name.to_owned(), std::borrow::Cow::into_owned)
}

fn user(name: &str, known: &UserEntry) -> User {
    User { name: name.into(), permissions: known.grants.permissions }
}

fn check_act_as(act_as: &str, name: &str) -> Result<(), Rejection> {
    if act_as.is_empty() || act_as == name { Ok(()) } else { Err(Rejection::ActAs) }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::limits::{CONNECTIONS_PER_ADDRESS_MAX, LOGIN_FAILURES_FREE};

    /// With a lower limit a failing client would keep other clients of its address from logging in.
    #[tokio::test]
    async fn response_is_not_delayed_by_other_clients_of_its_address() {
        let users = Users::parse("users", "alice admin").unwrap();
        let choice = MechanismChoice {
            configured: None,
            has_certificates: true,
            has_tokens: false,
            is_confidential: true,
        };
        let authenticator = Authenticator::new(users, choice, None, Duration::from_secs(60)).unwrap();
        let peer = Some(([10, 0, 0, 1], 1_000).into());
        let login = async |certificate| {
            authenticator.step(&mut None, "EXTERNAL", b"", Origin { peer, certificate }).await.is_ok()
        };
        // Failures of other users do not delay a user that has logged in from the address.
        assert!(login(Some("alice")).await);
        for _ in 0..LOGIN_FAILURES_FREE {
            assert!(!login(None).await);
        }
        let mut cx = Context::from_waker(Waker::noop());
        let mut waiting: Vec<_> = (0..CONNECTIONS_PER_ADDRESS_MAX).map(|_| Box::pin(login(None))).collect();
        assert!(waiting.iter_mut().all(|failed| failed.as_mut().poll(&mut cx).is_pending()));
        assert_eq!(pin!(login(Some("alice"))).poll(&mut cx), Poll::Ready(true));
    }
}
