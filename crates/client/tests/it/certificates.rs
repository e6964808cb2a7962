//! Certificates that a test makes for itself.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use consort_tls::{Identity, Roots};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

/// An authority, and the files that it has written.
pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) directory: PathBuf,
}

/// The files of a certificate.
pub(crate) struct Files {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Files {
    pub(crate) fn identity(&self) -> Identity {
        Identity::from_files(&self.cert, &self.key).unwrap()
    }
}

impl Authority {
    /// A new one with a directory of its own.
    pub(crate) fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("consort-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("ca.pem"), certificate.pem()).unwrap();
        Self { issuer: Issuer::new(params, key), directory }
    }

    /// Its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::from_file(self.file()).unwrap()
    }

    /// A certificate of somebody with this name, for servers with these hosts.
    pub(crate) fn certify(&self, name: &str, hosts: &[&str]) -> Files {
        let mut names = DistinguishedName::new();
        names.push(DnType::CommonName, name);
        self.certify_subject(names, name, hosts)
    }

    /// The same with this subject; the name is that of its files.
    pub(crate) fn certify_subject(&self, subject: DistinguishedName, name: &str, hosts: &[&str]) -> Files {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = subject;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |what: &str, text: String| {
            let path = self.directory.join(format!("{}-{what}.pem", name.replace(' ', "-")));
            std::fs::write(&path, text).unwrap();
            path
        };
        Files { cert: file("cert", certificate.pem()), key: file("key", key.serialize_pem()) }
    }

    /// A key for tokens: its file, and what signs with it. The tokens name an audience and a user, and are
    /// good for so many seconds.
    pub(crate) fn tokens(&self) -> (PathBuf, impl Fn(&str, &str, i64) -> String + use<>) {
        let key = KeyPair::generate().unwrap();
        let file = self.directory.join("tokens.pem");
        std::fs::write(&file, key.public_key_pem()).unwrap();
        let signs = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let random = ring::rand::SystemRandom::new();
        let signer = ring::signature::EcdsaKeyPair::from_pkcs8(signs, &key.serialize_der(), &random).unwrap();
        let token = move |audience: &str, user: &str, good_for: i64| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let until = now.saturating_add_signed(good_for);
            let claims = format!(r#"{{"aud":"{audience}","sub":"{user}","exp":{until}}}"#);
            let encoded = |text: &[u8]| URL_SAFE_NO_PAD.encode(text);
            let said =
                format!("{}.{}", encoded(br#"{"alg":"ES256","typ":"JWT"}"#), encoded(claims.as_bytes()));
            let signed = signer.sign(&random, said.as_bytes()).unwrap();
            format!("{said}.{}", encoded(signed.as_ref()))
        };
        (file, token)
    }

    /// The same as [`Authority::certify`], certificate and key in one file.
    pub(crate) fn certify_in_one(&self, name: &str) -> PathBuf {
        let Files { cert, key } = self.certify(name, &[]);
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let both = self.directory.join(format!("{name}.pem"));
        std::fs::write(&both, read(&cert) + &read(&key)).unwrap();
        both
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
