//! `<server-identities>` of a realm: the files with the certificates of the server and of its clients, versions and cipher suites.

use consort_tls::{IdentityFiles, ListenerFiles, ProtocolSettings, StoreFile, TrustFile};

use super::credentials::CredentialStores;
use super::document::{Attribute, Node};
use super::locations::{CONFIG_PATH, Locations};
use super::problem::{Place, Problems};
use super::section::Section;

/// The files of a realm with certificates, and their places.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct RealmTls {
    pub(super) files: ListenerFiles,
    pub(super) place: Place,
}

/// Formats of stores by Infinispan's names. The content decides, so that each name fits each of them.
const TYPES: [&str; 4] = ["PKCS12", "JKS", "JCEKS", "PEM"];

pub(super) fn read_identities(
    node: &Node,
    stores: &CredentialStores,
    locations: Locations<'_>,
    problems: &mut Problems,
) -> Option<RealmTls> {
    let mut section = Section::new(node);
    section.refuse(&[("kerberos", "clients cannot authenticate by Kerberos; use SCRAM")], problems);
    let ssl = section.child("ssl", problems);
    section.finish(problems);
    let ssl = ssl?;
    let mut section = Section::new(ssl);
    let (keystore, truststore) = (section.child("keystore", problems), section.child("truststore", problems));
    let engine = section.child("engine", problems);
    let protocols = engine.and_then(|engine| read_engine(engine, problems)).unwrap_or_default();
    section.finish(problems);
    let Some(keystore) = keystore else {
        let text = "<ssl> without <keystore>: clients would connect without TLS; add the <keystore> with the server's certificate, or \
                    remove <ssl>";
        problems.refuse(ssl.place, text);
        return None;
    };
    let identity = read_store(keystore, stores, locations, problems);
    let client_ca = truststore.and_then(|truststore| {
        let file = read_store(truststore, stores, locations, problems)?;
        Some(TrustFile::Store { file, are_users: false })
    });
    let identity = IdentityFiles::Store(identity?);
    let files = ListenerFiles { identity, client_ca, needs_clients: false, protocols };
    Some(RealmTls { files, place: keystore.place })
}

fn read_store(
    node: &Node,
    stores: &CredentialStores,
    locations: Locations<'_>,
    problems: &mut Problems,
) -> Option<StoreFile> {
    let mut section = Section::new(node);
    section.warn(&[("provider", "there are no providers of Java")], problems);
    if let Some(kind) = section.attribute("type").filter(|kind| !kind.value.is_empty())
        && !TYPES.iter().any(|own| own.eq_ignore_ascii_case(&kind.value))
    {
        let text = format!(
            "type of {}: `{}` is not read; convert it with keytool -importkeystore -deststoretype PKCS12",
            node.name, kind.value
        );
        problems.refuse(kind.place, text);
    }
    let password = stores.password(node, &mut section, &["password", "keystore-password"], problems);
    let mut file = StoreFile::new(locations.path(node, &mut section, CONFIG_PATH, problems)?);
    file.password = password;
    if node.name == "keystore" {
        file.alias = section.text("alias").map(str::to_owned);
        file.key_password = section.text("key-password").map(Into::into);
        file.self_signed_host = section.text("generate-self-signed-certificate-host").map(str::to_owned);
    }
    section.finish(problems);
    Some(file)
}

/// Names of protocols without counterpart: no client that insists on them can connect.
const OLD_PROTOCOLS: [&str; 5] = ["SSLV2HELLO", "SSLV2", "SSLV3", "TLSV1", "TLSV1.1"];

fn read_engine(node: &Node, problems: &mut Problems) -> Option<ProtocolSettings> {
    let mut section = Section::new(node);
    let protocols = section.attribute("enabled-protocols").filter(|list| !list.value.trim().is_empty());
    let (old, new) = ("enabled-ciphersuites", "enabled-ciphersuites-tls13");
    let [suites, suites_of_13] =
        [old, new].map(|name| section.attribute(name).filter(|list| !list.value.trim().is_empty()));
    section.finish(problems);
    let versions = match protocols {
        Some(protocols) => read_protocols(protocols, problems)?,
        None => Vec::new(),
    };
    let all = ProtocolSettings::supported_suites();
    let is_of_13 = |name: &str| !name.contains("_WITH_");
    let mut chosen = Vec::new();
    for (list, of_13) in [(suites, false), (suites_of_13, true)] {
        let known: Vec<&String> = all.iter().filter(|name| is_of_13(name) == of_13).collect();
        match list.filter(|list| list.value.trim() != "DEFAULT") {
            Some(list) => chosen.extend(read_suites(list, &known, problems)?),
            None => chosen.extend(known.into_iter().cloned()),
        }
    }
    if chosen.len() == all.len() {
        chosen.clear();
    }
    match ProtocolSettings::by_names(&versions, &chosen) {
        Ok(settings) => Some(settings),
        Err(error) => {
            problems.refuse(node.place, error.to_string());
            None
        }
    }
}

fn words(list: &Attribute) -> impl Iterator<Item = &str> {
    let is_separator =
        |character: char| character.is_whitespace() || matches!(character, ',' | ':' | '[' | ']');
    list.value.split(is_separator).filter(|word| !word.is_empty())
}

/// In any case, as Infinispan's test files have them.
fn read_protocols(list: &Attribute, problems: &mut Problems) -> Option<Vec<&'static str>> {
    let (mut versions, mut left_out) = (Vec::new(), Vec::new());
    for word in list.value.split([' ', ',', '\t', '\n', '[', ']']).filter(|word| !word.is_empty()) {
        match &*word.to_ascii_uppercase() {
            "TLSV1.2" => versions.push("TLSv1.2"),
            "TLSV1.3" => versions.push("TLSv1.3"),
            name if OLD_PROTOCOLS.contains(&name) => left_out.push(word),
            _ => {
                let text = format!(
                    "enabled-protocols: unknown protocol `{word}`; the server speaks TLSv1.2 and TLSv1.3"
                );
                problems.refuse(list.place, text);
                return None;
            }
        }
    }
    if versions.is_empty() {
        let text =
            "enabled-protocols: the server speaks TLSv1.2 and TLSv1.3; write one or both, or leave it out";
        problems.refuse(list.place, text);
        return None;
    }
    if !left_out.is_empty() {
        let text = format!(
            "enabled-protocols: {} is not offered, because it is broken; the server offers {}",
            left_out.join(", "),
            versions.join(", ")
        );
        problems.warn(list.place, text);
    }
    Some(versions)
}

/// OpenSSL's name of a suite of TLS 1.2.
fn openssl_name(java: &str) -> String {
    let name = java.trim_start_matches("TLS_").replace("_WITH", "").replace("AES_", "AES");
    name.replace('_', "-").replace("CHACHA20-POLY1305-SHA256", "CHACHA20-POLY1305")
}

/// Suites that the server does not have are left out, as Java's provider leaves out those that it does not have.
fn read_suites(list: &Attribute, known: &[&String], problems: &mut Problems) -> Option<Vec<String>> {
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for word in words(list) {
        let suite = known.iter().find(|name| **name == word || openssl_name(name) == word);
        match suite {
            Some(suite) if !found.contains(*suite) => found.push((*suite).clone()),
            Some(_) => {}
            None if word.contains(['!', '+', '@']) || word.starts_with('-') || !word.contains(['-', '_']) => {
                let text = format!(
                    "{}: `{word}` selects suites by a property; write their names, or leave it out: the server chooses among safe \
                     cipher suites",
                    list.name
                );
                problems.refuse(list.place, text);
                return None;
            }
            None => left_out.push(word),
        }
    }
    let all: Vec<&str> = known.iter().map(|name| &name[..]).collect();
    if found.is_empty() {
        let text = format!(
            "{}: the server has none of these suites; leave it out, or write some of {}",
            list.name,
            all.join(", ")
        );
        problems.refuse(list.place, text);
        return None;
    }
    if !left_out.is_empty() {
        let text =
            format!("{}: the server does not have {}, and offers the others", list.name, left_out.join(", "));
        problems.warn(list.place, text);
    }
    Some(found)
}
