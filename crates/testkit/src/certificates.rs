//! Certificates and tokens that tests generate. Functions panic if files cannot be read or written.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use consort_tls::{Identity, Roots};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority and its files.
pub struct Authority {
    /// The key and the name with which it signs.
    pub issuer: Issuer<'static, KeyPair>,
    /// The directory of its files.
    pub directory: PathBuf,
}

/// The files of a certificate.
pub struct Files {
    /// The certificate.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Files {
    /// Reads the certificate and its key.
    pub fn identity(&self) -> Identity {
        Identity::from_files(&self.cert, &self.key).unwrap()
    }
}

impl Authority {
    /// Creates an authority with its own directory.
    pub fn new(name: &str) -> Self {
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

    /// Returns the file of the authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Reads the authority's own certificate.
    pub fn roots(&self) -> Roots {
        Roots::from_file(self.file()).unwrap()
    }

    /// Creates a certificate with this name, for servers with these hosts.
    pub fn certify(&self, name: &str, hosts: &[&str]) -> Files {
        let mut names = DistinguishedName::new();
        names.push(DnType::CommonName, name);
        self.certify_subject(names, name, hosts)
    }

    /// Creates a certificate with this subject; `name` is that of its files.
    pub fn certify_subject(&self, subject: DistinguishedName, name: &str, hosts: &[&str]) -> Files {
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

    /// Creates a key for tokens: its file, and a function that signs a token for an audience, a user and a
    /// lifetime in seconds.
    pub fn tokens(&self) -> (PathBuf, impl Fn(&str, &str, i64) -> String + use<>) {
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
            let content =
                format!("{}.{}", encoded(br#"{"alg":"ES256","typ":"JWT"}"#), encoded(claims.as_bytes()));
            let signed = signer.sign(&random, content.as_bytes()).unwrap();
            format!("{content}.{}", encoded(signed.as_ref()))
        };
        (file, token)
    }

    /// As [`Authority::certify`], with certificate and key in one file.
    pub fn certify_in_one(&self, name: &str, hosts: &[&str]) -> PathBuf {
        let Files { cert, key } = self.certify(name, hosts);
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
