use std::path::PathBuf;

use crate::{ClientCertificates, Identity, Roots, TlsError};

/// The PEM files of a server. They can be read again while it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenerFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key, which may be in the same file.
    pub key: PathBuf,
    /// The CAs of client certificates; without them, clients present none.
    pub client_ca: Option<PathBuf>,
    /// Refuse clients without a certificate of these CAs.
    pub needs_clients: bool,
}

impl ListenerFiles {
    /// Reads all files.
    ///
    /// # Errors
    ///
    /// With the first file that cannot be used.
    pub fn read(&self) -> Result<(Identity, ClientCertificates), TlsError> {
        let roots = self.client_ca.as_ref().map(Roots::from_file).transpose()?;
        let clients = match roots {
            None => ClientCertificates::NotAsked,
            Some(roots) if self.needs_clients => ClientCertificates::Needed(roots),
            Some(roots) => ClientCertificates::Asked(roots),
        };
        Ok((Identity::from_files(&self.certificate, &self.key)?, clients))
    }
}
