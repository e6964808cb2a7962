//! What a server reads again while it serves, with SIGHUP: its users, keys for their tokens, and its certificate, key and roots
//! of its clients' certificates.

use std::path::PathBuf;

use consort_server::{
    ClientCertificates, Identity, Roots, Server, TlsError, TlsHandle, TokenKeyError, Tokens, TokensHandle,
    Users, UsersHandle,
};
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;

/// Where the keys for tokens are, and which of their tokens are good.
#[derive(Clone, Debug)]
pub(crate) struct TokenFile {
    pub(crate) keys: PathBuf,
    pub(crate) audience: String,
    /// Whatever says so, unless it is named.
    pub(crate) issuer: Option<String>,
}

impl TokenFile {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// With the file, and what is wrong with it.
    pub(crate) fn read(&self) -> Result<Tokens, TokenKeyError> {
        let tokens = Tokens::from_file(&self.keys, &self.audience)?;
        Ok(match &self.issuer {
            Some(issuer) => tokens.issued_by(issuer),
            None => tokens,
        })
    }
}

/// The files of a server's TLS.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
    /// Without a certificate no client gets in.
    pub(crate) needs_clients: bool,
}

impl TlsFiles {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// With the file, and what is wrong with it.
    pub(crate) fn read(&self) -> Result<(Identity, ClientCertificates), TlsError> {
        let roots = self.client_ca.as_ref().map(Roots::from_file).transpose()?;
        let clients = match roots {
            None => ClientCertificates::NotAsked,
            Some(roots) if self.needs_clients => ClientCertificates::Needed(roots),
            Some(roots) => ClientCertificates::Asked(roots),
        };
        Ok((Identity::from_files(&self.certificate, &self.key)?, clients))
    }
}

/// What is read again, and by what it is handed over.
pub(crate) struct Reload {
    users: Option<(PathBuf, UsersHandle)>,
    tokens: Option<(TokenFile, TokensHandle)>,
    tls: Option<(TlsFiles, TlsHandle)>,
}

impl Reload {
    pub(crate) fn new(
        server: &Server,
        users: Option<PathBuf>,
        tokens: Option<TokenFile>,
        tls: Option<TlsFiles>,
    ) -> Self {
        let tokens = tokens.zip(server.tokens());
        Self { users: users.zip(server.users()), tokens, tls: tls.zip(server.tls()) }
    }

    /// Reads all of it whenever the signal comes. What is wrong with one file is told, and changes nothing of what is in others.
    pub(crate) async fn whenever(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            if let Some((file, users)) = self.users.clone() {
                // Passwords in it are hashed.
                let read = move || Ok(users.replace(Users::read(file)?)?);
                told("the users stay as they are", read, |ended| {
                    format!("users read again; connections of removed ones that end: {ended}")
                })
                .await;
            }
            if let Some((file, tokens)) = self.tokens.clone() {
                let read = move || file.read().map(|read| tokens.replace(read)).map_err(anyhow::Error::from);
                told("the keys for tokens stay as they are", read, |()| {
                    "keys for tokens read again".to_owned()
                })
                .await;
            }
            if let Some((files, tls)) = self.tls.clone() {
                let read = move || {
                    let (identity, clients) = files.read()?;
                    Ok(tls.replace(identity, clients)?)
                };
                told("certificate and key stay as they are", read, |()| {
                    "certificate and key read again; they are for connections to come".to_owned()
                })
                .await;
            }
        }
    }
}

/// Reads where that holds nobody up, and tells what has come of it.
async fn told<T: Send + 'static>(
    stays: &str,
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    done: impl FnOnce(T) -> String,
) {
    match spawn_blocking(read).await.map_err(anyhow::Error::from).flatten() {
        Ok(read) => tracing::info!("{}", done(read)),
        Err(error) => tracing::error!("{stays}: {error:#}"),
    }
}
