//! Java and Consort members in one cluster over TLS, each of which shows a certificate and asks for one.

use std::path::{Path, PathBuf};

use consort_interop::cluster::{everybody_multicasts, exit, same_view};
use consort_interop::{Member, Setting, in_own_network, java_program};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

const PASSWORD: &str = "changeit";

/// The certificates and roots of members: PEM for ours, a PKCS12 store of the same for Java's.
struct Certificates {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    fn new(directory: PathBuf) -> Self {
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "members");
        let key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&key).expect("a certificate").pem();
        std::fs::write(directory.join("ca.pem"), authority).expect("written");
        Self { directory, issuer: Issuer::new(params, key) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn pem(&self, name: &str) -> PathBuf {
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = self.file(&format!("{name}.pem"));
        std::fs::write(&path, certificate.pem() + &key.serialize_pem()).expect("written");
        path
    }

    fn pkcs12(&self, name: &str) -> PathBuf {
        let store = self.file(&format!("{name}.p12"));
        let mut making = java_program("consort.interop.KeyStores");
        making.arg(self.pem(name)).arg(self.file("ca.pem")).arg(PASSWORD).arg(&store);
        assert!(making.status().expect("Java runs").success(), "{making:?}");
        store
    }
}

/// The setting of the cluster with this member's files.
fn with(setting: &mut Setting, own: &Path, roots: &Path) {
    setting.properties.retain(|(name, _)| !name.starts_with("members."));
    for (name, path) in [("members.own", own), ("members.roots", roots)] {
        setting.properties.push((name.to_owned(), path.display().to_string()));
    }
}

async fn over_tls(java_first: bool) {
    let include = "<include file=\"${transport-config:tcp-default.xml}\" />";
    let transport = format!(
        "<TCP bind_addr=\"127.0.0.1\" bind_port=\"7800\" diag.enabled=\"false\" tls.enabled=\"true\" \
         tls.client_auth=\"NEED\" tls.keystore_path=\"${{members.own}}\" tls.keystore_password=\"{PASSWORD}\" \
         tls.truststore_path=\"${{members.roots}}\" tls.truststore_password=\"{PASSWORD}\"/>"
    );
    let mut setting = Setting::edited("tcp.xml", &[(include, &transport)]);
    let certificates = Certificates::new(setting.config.with_extension("certificates"));
    let mut members: Vec<Member> = Vec::new();
    for (name, is_java) in [("A", java_first), ("B", !java_first), ("C", java_first), ("D", !java_first)] {
        members.push(if is_java {
            let store = certificates.pkcs12(name);
            with(&mut setting, &store, &store);
            setting.java(name).await
        } else {
            with(&mut setting, &certificates.pem(name), &certificates.file("ca.pem"));
            setting.consort(name).await
        });
    }
    same_view(&mut members, "(4) [A, B, C, D]").await;
    for (count, size) in [(1_000, 1), (1_000, 1_000), (100, 100_000)] {
        everybody_multicasts(&mut members, count, size).await;
    }
    // A member without a certificate of the authority is refused by both kinds.
    let stranger = Certificates::new(certificates.file("strangers"));
    with(&mut setting, &stranger.pem("X"), &stranger.file("ca.pem"));
    let mut alone = setting.consort("X").await;
    assert!(alone.view().await.contains("(1) [X]"), "{}", alone.view().await);
    same_view(&mut members, "(4) [A, B, C, D]").await;
    alone.exit().await;
    exit(members).await;
}

#[test]
fn members_of_both_kinds_over_tls_with_a_java_coordinator() {
    in_own_network("members_of_both_kinds_over_tls_with_a_java_coordinator", over_tls(true));
}

#[test]
fn members_of_both_kinds_over_tls_with_a_consort_coordinator() {
    in_own_network("members_of_both_kinds_over_tls_with_a_consort_coordinator", over_tls(false));
}
