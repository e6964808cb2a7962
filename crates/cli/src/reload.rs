use std::path::PathBuf;

use anyhow::Context;
use consort_server::{
    CacheDefinitions, CachesHandle, FileRoles, ListenerFiles, RealmFiles, Server, TlsHandle, TokenKeyError,
    Tokens, TokensHandle, Users, UsersHandle,
};
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;

#[derive(Clone, Debug)]
pub(crate) struct TokenFile {
    pub(crate) keys: PathBuf,
    pub(crate) audience: String,
    pub(crate) issuer: Option<String>,
}

impl TokenFile {
    /// # Errors
    ///
    /// With the file and its error.
    pub(crate) fn read(&self) -> Result<Tokens, TokenKeyError> {
        let tokens = Tokens::from_file(&self.keys, &self.audience)?;
        Ok(match &self.issuer {
            Some(issuer) => tokens.issuer(issuer),
            None => tokens,
        })
    }
}

/// The file of the users.
#[derive(Clone, Debug)]
pub(crate) enum UsersFile {
    /// Of `--users`, with the roles of `--config`.
    Own(PathBuf, Option<Box<FileRoles>>),
    /// Of the realm of `--config`.
    Realm(Box<RealmFiles>),
}

impl UsersFile {
    /// # Errors
    ///
    /// With the file and its error.
    pub(crate) fn read(&self) -> anyhow::Result<Users> {
        match self {
            Self::Own(file, None) => Ok(Users::read(file)?),
            Self::Own(file, Some(roles)) => Ok(roles.read_users(file)?),
            Self::Realm(files) => files.read_users()?.context("the realm of --config has no users"),
        }
    }
}

/// The files that a server reads again.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) users: Option<UsersFile>,
    pub(crate) tokens: Option<TokenFile>,
    pub(crate) tls: Option<ListenerFiles>,
    pub(crate) caches: Option<PathBuf>,
}

impl Files {
    pub(crate) const fn are_none(&self) -> bool {
        self.users.is_none() && self.tokens.is_none() && self.tls.is_none() && self.caches.is_none()
    }
}

pub(crate) struct Reload {
    has_files: bool,
    users: Option<(UsersFile, UsersHandle)>,
    tokens: Option<(TokenFile, TokensHandle)>,
    tls: Option<(ListenerFiles, TlsHandle)>,
    caches: Option<(PathBuf, CachesHandle)>,
}

impl Reload {
    pub(crate) fn new(server: &Server, files: Files) -> Self {
        Self {
            has_files: !files.are_none(),
            users: files.users.zip(server.users()),
            tokens: files.tokens.zip(server.tokens()),
            tls: files.tls.zip(server.tls()),
            caches: files.caches.map(|file| (file, server.caches())),
        }
    }

    /// An error in one file does not affect the others.
    pub(crate) async fn reload_on(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            if !self.has_files {
                tracing::info!(
                    "SIGHUP: there are no files to read again; --config is read at the start only"
                );
            }
            if let Some((file, users)) = self.users.clone() {
                // Passwords in it are hashed.
                let read = run_blocking(move || Ok(users.replace(file.read()?)?));
                log_outcome("users not reloaded", read, |ended| {
                    format!("users reloaded; {ended} connections of removed users end")
                })
                .await;
            }
            if let Some((file, tokens)) = self.tokens.clone() {
                let read = run_blocking(move || {
                    tokens.replace(file.read()?);
                    Ok(())
                });
                log_outcome("token keys not reloaded", read, |()| "token keys reloaded".to_owned()).await;
            }
            if let Some((files, tls)) = self.tls.clone() {
                let read = run_blocking(move || {
                    let (identity, clients) = files.read()?;
                    Ok(tls.replace(identity, clients)?)
                });
                log_outcome("certificate and key not reloaded", read, |()| {
                    "certificate and key reloaded for new connections".to_owned()
                })
                .await;
            }
            if let Some((file, caches)) = self.caches.clone() {
                let make = async {
                    let definitions = run_blocking(move || Ok(CacheDefinitions::read(file)?)).await?;
                    Ok(caches.make(&definitions).await?)
                };
                log_outcome("caches not reloaded", make, |made| {
                    format!("cache definitions reloaded; {} new caches", made.len())
                })
                .await;
            }
        }
    }
}

async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    spawn_blocking(read).await?
}

async fn log_outcome<T>(
    failure: &str,
    reading: impl Future<Output = anyhow::Result<T>>,
    done: impl FnOnce(T) -> String,
) {
    match reading.await {
        Ok(read) => tracing::info!("{}", done(read)),
        Err(error) => tracing::error!("{failure}: {error:#}"),
    }
}
