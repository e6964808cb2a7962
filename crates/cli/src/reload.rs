//! What a server reads again while it serves, with SIGHUP: its users, keys for their tokens, its certificate, key and roots of its
//! clients' certificates, and the caches that it is to have.

use std::path::PathBuf;

use consort_server::{
    CacheDefinitions, CachesHandle, ClientCertificates, Identity, Roots, Server, TlsError, TlsHandle,
    TokenKeyError, Tokens, TokensHandle, Users, UsersHandle,
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
            Some(issuer) => tokens.issuer(issuer),
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

/// What is read again, as far as the server was told of it.
pub(crate) struct Files {
    pub(crate) users: Option<PathBuf>,
    pub(crate) tokens: Option<TokenFile>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) caches: Option<PathBuf>,
}

/// The same, and by what it is handed over.
pub(crate) struct Reload {
    users: Option<(PathBuf, UsersHandle)>,
    tokens: Option<(TokenFile, TokensHandle)>,
    tls: Option<(TlsFiles, TlsHandle)>,
    caches: Option<(PathBuf, CachesHandle)>,
}

impl Reload {
    pub(crate) fn new(server: &Server, files: Files) -> Self {
        Self {
            users: files.users.zip(server.users()),
            tokens: files.tokens.zip(server.tokens()),
            tls: files.tls.zip(server.tls()),
            caches: files.caches.map(|file| (file, server.caches())),
        }
    }

    /// Reads all of it whenever the signal comes. What is wrong with one file is told, and changes nothing of what is in others.
    pub(crate) async fn whenever(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            if let Some((file, users)) = self.users.clone() {
                // Passwords in it are hashed.
                let read = beside(move || Ok(users.replace(Users::read(file)?)?));
                told("the users stay as they are", read, |ended| {
                    format!("users read again; connections of removed ones that end: {ended}")
                })
                .await;
            }
            if let Some((file, tokens)) = self.tokens.clone() {
                let read = beside(move || {
                    tokens.replace(file.read()?);
                    Ok(())
                });
                told("the keys for tokens stay as they are", read, |()| {
                    "keys for tokens read again".to_owned()
                })
                .await;
            }
            if let Some((files, tls)) = self.tls.clone() {
                let read = beside(move || {
                    let (identity, clients) = files.read()?;
                    Ok(tls.replace(identity, clients)?)
                });
                told("certificate and key stay as they are", read, |()| {
                    "certificate and key read again; they are for connections to come".to_owned()
                })
                .await;
            }
            if let Some((file, caches)) = self.caches.clone() {
                let make = async {
                    let definitions = beside(move || Ok(CacheDefinitions::read(file)?)).await?;
                    Ok(caches.make(&definitions).await?)
                };
                told("the caches stay as they are", make, |made| {
                    format!("definitions of caches read again; caches that are new: {}", made.len())
                })
                .await;
            }
        }
    }
}

/// Reads where that holds nobody up.
async fn beside<T: Send + 'static>(
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    spawn_blocking(read).await?
}

/// Tells what has come of it.
async fn told<T>(
    stays: &str,
    reading: impl Future<Output = anyhow::Result<T>>,
    done: impl FnOnce(T) -> String,
) {
    match reading.await {
        Ok(read) => tracing::info!("{}", done(read)),
        Err(error) => tracing::error!("{stays}: {error:#}"),
    }
}
