use std::sync::{Arc, Mutex, PoisonError};

use consort_sasl::scram::{Hash, Keys};
use consort_sasl::{Mechanism, prepare};

use crate::error::{ConnectionError, LoginError};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyDerivation {
    pub(crate) hash: Hash,
    pub(crate) salt: Vec<u8>,
    pub(crate) iterations: u32,
}

#[derive(Default)]
pub(crate) struct Credentials {
    user: Option<(String, String)>,
    token: Option<String>,
    only: Option<Mechanism>,
    /// The last derived keys: a user's verifier is the same on all servers of a cluster.
    derived: Mutex<Option<(KeyDerivation, Arc<Keys>)>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("Credentials").field("user", &user).field("only", &self.only).finish_non_exhaustive()
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        Self {
            user: self.user.clone(),
            token: self.token.clone(),
            only: self.only,
            derived: Mutex::default(),
        }
    }
}

impl Credentials {
    pub(crate) fn with_user(self, name: &str, password: &str) -> Self {
        Self { user: Some((name.to_owned(), password.to_owned())), ..self }
    }

    pub(crate) fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    pub(crate) fn with_only(self, mechanism: Mechanism) -> Self {
        Self { only: Some(mechanism), ..self }
    }

    pub(crate) const fn is_some(&self) -> bool {
        self.user.is_some() || self.token.is_some() || self.only.is_some()
    }

    pub(crate) const fn only(&self) -> Option<Mechanism> {
        self.only
    }

    pub(crate) fn user(&self) -> Option<(&str, &str)> {
        self.user.as_ref().map(|(name, password)| (&name[..], &password[..]))
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Whether the credentials suffice. EXTERNAL must be forced: certificates are unknown here.
    pub(crate) fn can(&self, mechanism: Mechanism) -> bool {
        if self.only.is_some_and(|only| only != mechanism) {
            return false;
        }
        match mechanism {
            Mechanism::External => self.only.is_some(),
            Mechanism::Scram(_) | Mechanism::Plain => self.user.is_some(),
            Mechanism::OauthBearer => self.token.is_some(),
        }
    }

    pub(crate) async fn keys(&self, wanted: KeyDerivation) -> Result<Arc<Keys>, ConnectionError> {
        let known = self.derived.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, keys)) = known.filter(|(derived, _)| *derived == wanted) {
            return Ok(keys);
        }
        let (_, password) = self.user().unwrap_or_default();
        let password = prepare(password).map_err(|_| LoginError::InvalidNameOrPassword)?.into_owned();
        let deriving = tokio::task::spawn_blocking(move || {
            let keys = Keys::derive(wanted.hash, &password, &wanted.salt, wanted.iterations);
            (wanted, Arc::new(keys))
        });
        let (wanted, keys) = deriving.await.map_err(|_| ConnectionError::ClosedLocally)?;
        *self.derived.lock().unwrap_or_else(PoisonError::into_inner) = Some((wanted, keys.clone()));
        Ok(keys)
    }
}
