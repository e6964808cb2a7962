//! Finds out who a client is, by SASL's mechanisms (facts section 5.1).
//!
//! Whether a name is a user's does not show: who asks for nobody is answered as who has the wrong password, with the same
//! words after the same work. SCRAM costs a server some hashes, PLAIN as many as the password's iterations: that is done off
//! the runtime's threads, for few at a time, and a little at a time; and not again for a password that was right a short time
//! ago ([`VerifiedPasswords`]).

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

use crate::bounds::PASSWORDS_SHARE;
use crate::security::access::User;
use crate::security::attempts::Attempts;
use crate::security::failed::FailedLogins;
use crate::security::roll::{Admitted, Offer, Roll};
use crate::security::secret::Secret;
use crate::security::tokens::Tokens;
use crate::security::users::{Known, Users};
use crate::security::verified::VerifiedPasswords;
use crate::security::{Choice, SecurityError};

/// A client has not shown who it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Rejection {
    /// There is no such user, or it would have shown something else. Nobody is told which.
    #[error("ISPN006024: Invalid credentials")]
    Credentials,
    /// It is not offered.
    #[error("ISPN006025: Invalid mech '{0}'")]
    Mechanism(String),
    /// It wants to act as somebody else.
    #[error("ISPN006024: Invalid credentials: nobody acts as another user here")]
    Another,
    /// Not a message of the mechanism.
    #[error("ISPN006024: Invalid credentials: {0}")]
    Malformed(#[from] Malformed),
    /// An exchange that is not gone on with.
    #[error("ISPN006024: Invalid credentials: {0}")]
    Scram(ScramError),
    /// A token that is not good.
    #[error("ISPN006024: Invalid credentials: the token is not good: {0}")]
    Token(String),
    /// The system has failed.
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

/// An exchange that is under way.
pub(crate) struct Exchange {
    hash: Hash,
    waiting: scram::server::Last,
    /// Nobody, if there is no such user.
    user: Option<User>,
    /// As the client has it, for the count of failures.
    name: String,
}

/// From where a client logs in, and what its connection shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin<'a> {
    pub(crate) peer: Option<SocketAddr>,
    /// The name in the certificate that it has shown.
    pub(crate) certificate: Option<&'a str>,
}

/// How an exchange goes on.
pub(crate) enum Step {
    /// With this, to which the client answers.
    Challenge(Bytes),
    /// The client is who it says; and this is the last that it is told, if there is something.
    Admitted(User, Option<Bytes>),
}

/// How long a password is hashed before others have their turn, for as long: even a thread that steps back is not interrupted
/// at once when another one has something to do, and clients that are known ask thousands of times a second.
const HASHED_AT_ONCE: Duration = Duration::from_micros(50);

/// Iterations between two looks at the clock: some ten microseconds.
const ITERATIONS_AT_ONCE: u32 = 32;

/// Names of mechanisms that are repeated to clients: none is longer.
const NAME_MAX: usize = 20;

/// Who can show to be a user, and how.
pub(crate) struct Authenticator {
    roll: Roll,
    /// Which mechanisms users can be offered.
    choice: Choice,
    /// Whose tokens are believed.
    tokens: Option<RwLock<Tokens>>,
    random: SystemRandom,
    /// Passwords that may be hashed at a time.
    hashing: Arc<Semaphore>,
    /// Those that need not be hashed again.
    verified: VerifiedPasswords,
    attempts: Attempts,
    failed: FailedLogins,
    /// What the servers share, once it is known. Held while the users change.
    secret: Mutex<Option<Secret>>,
}

impl Authenticator {
    /// # Errors
    ///
    /// If users could not show who they are in the ways that are wanted.
    pub(crate) fn new(
        users: Users,
        choice: Choice,
        tokens: Option<Tokens>,
        patience: Duration,
    ) -> Result<Self, SecurityError> {
        let offer = Offer { mechanisms: choice.for_users(&users)?, users };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let hashing = Arc::new(Semaphore::new((cores / PASSWORDS_SHARE).max(1)));
        let random = SystemRandom::new();
        Ok(Self {
            roll: Roll::new(offer),
            choice,
            tokens: tokens.map(RwLock::new),
            verified: VerifiedPasswords::new(&random),
            random,
            hashing,
            attempts: Attempts::new(patience),
            failed: FailedLogins::default(),
            secret: Mutex::default(),
        })
    }

    /// From now on these are the users. Returns how many connections end for it.
    ///
    /// # Errors
    ///
    /// If they could not show who they are in the ways that are wanted; those of before stay.
    pub(crate) fn replace(&self, users: Users) -> Result<usize, SecurityError> {
        let mechanisms = self.choice.for_users(&users)?;
        let secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        let users = match &*secret {
            Some(secret) => users.with_secret(secret),
            None => users,
        };
        let ended = self.roll.replace(Offer { mechanisms, users });
        self.verified.clear();
        Ok(ended)
    }

    /// The secret from which everything follows that clients are told of names that are no user's.
    pub(crate) fn secret(&self) -> Secret {
        self.roll.offer().users.secret().clone()
    }

    /// From now on it follows from this secret, which all servers have.
    pub(crate) fn take_secret(&self, secret: &Secret) {
        let mut known = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() == Some(secret) {
            return;
        }
        *known = Some(secret.clone());
        let offer = self.roll.offer();
        let (users, mechanisms) = (offer.users.clone().with_secret(secret), offer.mechanisms.clone());
        self.roll.replace(Offer { users, mechanisms });
    }

    /// Whether tokens are believed at all.
    pub(crate) const fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// From now on these tokens are believed, if any are.
    pub(crate) fn replace_tokens(&self, tokens: Tokens) {
        if let Some(known) = &self.tokens {
            *known.write().unwrap_or_else(PoisonError::into_inner) = tokens;
        }
    }

    /// A client that has shown to be this user, as in [`Roll::admit`].
    pub(crate) fn admit(&self, name: &Arc<str>, end: Arc<Notify>) -> Option<Arc<Admitted>> {
        self.roll.admit(name, end)
    }

    /// Tells of a client that has not shown who it is, now or with the next ones.
    pub(crate) fn note(&self, rejection: &Rejection, peer: Option<SocketAddr>) {
        if let Some(failed) = self.failed.count(peer, Instant::now()) {
            let (attempts, from) = (failed.attempts, failed.addresses());
            tracing::warn!(attempts, %from, last = %rejection, "logins have failed");
        }
    }

    /// Those that it offers, the strongest first.
    pub(crate) fn mechanisms(&self) -> Vec<Mechanism> {
        self.roll.offer().mechanisms.clone()
    }

    /// The names of those that a client can use, with a certificate or without.
    pub(crate) fn names(&self, certificate: Option<&str>) -> Vec<Text> {
        let can_be_used =
            |mechanism: &&Mechanism| certificate.is_some() || **mechanism != Mechanism::External;
        let offer = self.roll.offer();
        let usable = offer.mechanisms.iter().filter(can_be_used);
        usable.map(|mechanism| Text::from_static(mechanism.name())).collect()
    }

    /// A message of a client. After an error there is no exchange under way. After failures of the same name or from the same
    /// address the answer waits, which holds no thread.
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
            Ok(Step::Admitted(user, _)) => {
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

    /// The same at once. The name is the one that the client claims, as soon as it is known.
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
            return Ok(Step::Admitted(user, Some(last.into())));
        }
        let offered =
            Mechanism::from_name(mechanism).filter(|one| self.roll.offer().mechanisms.contains(one));
        match offered {
            Some(Mechanism::Scram(hash)) => {
                let (begun, challenge) = self.challenge(hash, message)?;
                *exchange = Some(begun);
                Ok(Step::Challenge(challenge))
            }
            Some(Mechanism::Plain) => Ok(Step::Admitted(self.password(message, name).await?, None)),
            Some(Mechanism::External) => {
                let shown = certificate.ok_or(Rejection::Credentials)?;
                *name = Some(shown.to_owned());
                check_act_as(std::str::from_utf8(message).map_err(|_| Rejection::Another)?, shown)?;
                Ok(Step::Admitted(self.shown(shown)?, None))
            }
            // Java's client waits for a last word, which is empty if all is well: facts section 5.1 have it otherwise.
            Some(Mechanism::OauthBearer) => Ok(Step::Admitted(self.token(message)?, Some(Bytes::new()))),
            None => Err(Rejection::Mechanism(mechanism.chars().take(NAME_MAX).collect())),
        }
    }

    /// Who is called so, and what it is known by: nobody, and what nobody can show, if there is none.
    fn known(&self, hash: Option<Hash>, name: &str) -> Option<(Option<User>, Verifier)> {
        let name = &*prepared(name);
        // It is made in any case, so that it takes the same time.
        let offer = self.roll.offer();
        let decoy = offer.users.decoy(hash, name)?;
        let found = offer.users.get(name).and_then(|known| Some((known, known.verifier(hash)?)));
        Some(match found {
            Some((known, verifier)) => (Some(user(name, known)), verifier.clone()),
            None => (None, decoy),
        })
    }

    /// Who is called so by somebody whom we believe.
    fn shown(&self, name: &str) -> Result<User, Rejection> {
        let prepared = prepare(name).map_err(|_| Rejection::Credentials)?;
        let offer = self.roll.offer();
        let known = offer.users.get(&prepared).ok_or(Rejection::Credentials)?;
        Ok(user(&prepared, known))
    }

    /// Whose token that is.
    fn token(&self, message: &[u8]) -> Result<User, Rejection> {
        let Bearer { act_as, token } = Bearer::read(message)?;
        let tokens = self.tokens.as_ref().ok_or(Rejection::Credentials)?;
        let name = tokens.read().unwrap_or_else(PoisonError::into_inner).owner(token);
        let name = name.map_err(Rejection::Token)?;
        check_act_as(act_as, &name)?;
        self.shown(&name)
    }

    fn challenge(&self, hash: Hash, message: &[u8]) -> Result<(Exchange, Bytes), Rejection> {
        let first = scram::server::First::read(message)?;
        check_act_as(first.act_as(), first.name())?;
        let (user, verifier) = self.known(Some(hash), first.name()).ok_or(Rejection::Credentials)?;
        let random = ring::rand::generate::<[u8; 18]>(&self.random);
        let random = random.map_err(|_| Rejection::System("there are no random numbers"))?;
        let name = prepared(first.name());
        let (waiting, challenge) = first.challenge(&verifier, &scram::nonce(random.expose()));
        Ok((Exchange { hash, waiting, user, name }, challenge.into()))
    }

    /// Who has this name and password.
    async fn password(&self, message: &[u8], claimed: &mut Option<String>) -> Result<User, Rejection> {
        let Plain { act_as, name, password } = Plain::read(message)?;
        *claimed = Some(prepared(name));
        check_act_as(act_as, name)?;
        let (user, verifier) = self.known(None, name).ok_or(Rejection::Credentials)?;
        let password = prepare(password).map_or_else(|_| password.to_owned(), std::borrow::Cow::into_owned);
        // Looked for also where there is no such user, so that it takes the same time.
        let called = user.as_ref().map_or(name, |user| &user.name);
        if self.verified.has(called, &verifier, &password, Instant::now())
            && let Some(user) = user
        {
            return Ok(user);
        }
        let turn = self.hashing.clone().acquire_owned().await;
        let turn = turn.map_err(|_| Rejection::System("it ends"))?;
        // The turn goes with the work: it is not free before, also if the client is gone.
        let hashing = tokio::task::spawn_blocking(move || {
            let is_right = fits(&verifier, &password);
            drop(turn);
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

/// Whether that is the password, found out in half of the time of a thread.
fn fits(verifier: &Verifier, password: &str) -> bool {
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

/// A name as it is compared; as it is where it can be nobody's.
fn prepared(name: &str) -> String {
    prepare(name).map_or_else(|_| name.to_owned(), std::borrow::Cow::into_owned)
}

fn user(name: &str, known: &Known) -> User {
    User { name: name.into(), permissions: known.permissions }
}

fn check_act_as(act_as: &str, name: &str) -> Result<(), Rejection> {
    if act_as.is_empty() || act_as == name { Ok(()) } else { Err(Rejection::Another) }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::bounds::{CONNECTIONS_PER_ADDRESS_MAX, LOGIN_FAILURES_FREE};

    /// As many as an address has connections, each of which waits for its own answer: a limit would let a client that fails
    /// keep others of its address from logging in.
    #[tokio::test]
    async fn an_answer_does_not_wait_for_others_of_its_address() {
        let users = Users::parse("users", "alice admin").unwrap();
        let choice = Choice { named: None, has_certificates: true, has_tokens: false, hides_secrets: true };
        let authenticator = Authenticator::new(users, choice, None, Duration::from_secs(60)).unwrap();
        let peer = Some(([10, 0, 0, 1], 1_000).into());
        let login = async |certificate| {
            authenticator.step(&mut None, "EXTERNAL", b"", Origin { peer, certificate }).await.is_ok()
        };
        // Failures of others do not slow a user that has logged in from the address.
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
