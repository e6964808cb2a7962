use std::path::{Path, PathBuf};

use crate::store_file::StoreFile;
use crate::{ClientCertificates, Identity, ProtocolSettings, Roots, TlsError, TrustedClients};

/// The files with a server's certificate chain and private key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IdentityFiles {
    /// In PEM; both may be in one file.
    Pem {
        /// The certificate chain.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// A file that may be a key store of Java.
    Store(StoreFile),
}

impl IdentityFiles {
    /// Reads certificate and private key.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or lacks its content.
    pub fn read(&self) -> Result<Identity, TlsError> {
        match self {
            Self::Pem { certificate, key } => Identity::from_files(certificate, key),
            Self::Store(file) => file.identity(),
        }
    }
}

/// The certificates that a server trusts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TrustFile {
    /// CAs in PEM.
    Pem(PathBuf),
    /// CAs, and certificates of clients, in a file that may be a key store of Java.
    Store {
        /// The file.
        file: StoreFile,
        /// Only clients whose certificate itself is in the file are users.
        are_users: bool,
    },
}

impl TrustFile {
    /// Returns the path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Pem(path) => path,
            Self::Store { file, .. } => &file.path,
        }
    }
}

/// The files of a server with TLS. They can be read again while it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct ListenerFiles {
    /// The certificate chain and the private key.
    pub identity: IdentityFiles,
    /// The CAs of client certificates; without them, clients present none.
    pub client_ca: Option<TrustFile>,
    /// Refuse clients without a certificate of these CAs.
    pub needs_clients: bool,
    /// Versions and cipher suites. They apply from the start of a server on.
    pub protocols: ProtocolSettings,
}

impl ListenerFiles {
    /// Reads all files.
    ///
    /// # Errors
    ///
    /// With the first file that cannot be used.
    pub fn read(&self) -> Result<(Identity, ClientCertificates), TlsError> {
        let clients = self.clients()?;
        Ok((self.identity.read()?, clients))
    }

    fn clients(&self) -> Result<ClientCertificates, TlsError> {
        let is_required = self.needs_clients;
        Ok(match &self.client_ca {
            None => ClientCertificates::NotAsked,
            Some(TrustFile::Pem(path)) if is_required => ClientCertificates::Needed(Roots::from_file(path)?),
            Some(TrustFile::Pem(path)) => ClientCertificates::Asked(Roots::from_file(path)?),
            Some(TrustFile::Store { file, are_users }) => {
                let (trusted, are_users) = (file.trusted()?, *are_users);
                ClientCertificates::Trusted(TrustedClients { trusted, is_required, are_users })
            }
        })
    }

    /// Returns the file with the certificate.
    pub fn certificate(&self) -> &Path {
        match &self.identity {
            IdentityFiles::Pem { certificate, .. } => certificate,
            IdentityFiles::Store(file) => &file.path,
        }
    }
}
