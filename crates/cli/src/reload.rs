//! What a server reads again while it serves, with SIGHUP: its users, and its certificate, key and roots of its clients'
//! certificates.

use std::path::PathBuf;

use consort_server::{ClientCertificates, Identity, Roots, Server, TlsError, TlsHandle, Users, UsersHandle};
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;

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
    tls: Option<(TlsFiles, TlsHandle)>,
}

impl Reload {
    pub(crate) fn new(server: &Server, users: Option<PathBuf>, tls: Option<TlsFiles>) -> Self {
        Self { users: users.zip(server.users()), tls: tls.zip(server.tls()) }
    }

    /// Reads all of it whenever the signal comes. What is wrong with one file is told, and changes nothing of what is in others.
    pub(crate) async fn whenever(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            if let Some((file, users)) = self.users.clone() {
                // Passwords in it are hashed.
                let read = move || users.replace(Users::read(file)?).map_err(anyhow::Error::from);
                match spawn_blocking(read).await {
                    Ok(Ok(ended)) => {
                        tracing::info!("users read again; connections of removed ones that end: {ended}");
                    }
                    Ok(Err(error)) => tracing::error!("the users stay as they are: {error}"),
                    Err(error) => tracing::error!("the users stay as they are: {error}"),
                }
            }
            if let Some((files, tls)) = self.tls.clone() {
                let read =
                    move || files.read().and_then(|(identity, clients)| tls.replace(identity, clients));
                match spawn_blocking(read).await {
                    Ok(Ok(())) => {
                        tracing::info!("certificate and key read again; they are for connections to come");
                    }
                    Ok(Err(error)) => tracing::error!("certificate and key stay as they are: {error}"),
                    Err(error) => tracing::error!("certificate and key stay as they are: {error}"),
                }
            }
        }
    }
}
