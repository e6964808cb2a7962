//! `<server><security>`: the realm of the endpoint. Of the kinds of realms, users in properties files and certificates in PEM have
//! a counterpart.

use std::path::PathBuf;

use super::document::Node;
use super::locations::{CONFIG_PATH, Locations};
use super::problem::{Place, Problems};
use super::section::{Reasons, Section};

const REALM_WARNINGS: Reasons = &[
    ("cache-lifespan", "verified passwords are remembered by the server, until the users change"),
    ("cache-max-size", "verified passwords are remembered by the server, until the users change"),
    ("default-realm", "a server has one realm"),
];

const REALM_REFUSALS: Reasons = &[
    (
        "ldap-realm",
        "there is no LDAP; write the users into a properties-realm, or use tokens: --users with --token-key",
    ),
    ("local-realm", "there is no local user; use a properties-realm"),
    ("aggregate-realm", "a realm has one source of users; write them into a properties-realm"),
    ("distributed-realm", "a realm has one source of users; write them into a properties-realm"),
    (
        "token-realm",
        "users and roles are not read from tokens; name them with --users, and the issuer's key with --token-key and \
         --token-audience",
    ),
    (
        "truststore-realm",
        "a certificate names a user that has to be known; name the users with --users, and the certificates with <truststore>",
    ),
    ("evidence-decoder", "the common name of a certificate is the name of the user; leave it out"),
];

/// The certificate of the server, and those of CAs of clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RealmTls {
    pub(super) identity: PathBuf,
    pub(super) clients: Option<PathBuf>,
    pub(super) place: Place,
}

/// The files of a properties realm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RealmUsers {
    pub(super) users: PathBuf,
    pub(super) groups: Option<PathBuf>,
    pub(super) place: Place,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Realm {
    pub(super) tls: Option<RealmTls>,
    pub(super) users: Option<RealmUsers>,
}

/// Returns the elements of all realms.
pub(super) fn collect<'n>(security: &'n Node, problems: &mut Problems) -> Vec<&'n Node> {
    let mut section = Section::new(security);
    if let Some(stores) = section.child("credential-stores", problems)
        && !stores.children.is_empty()
    {
        let text = "credential-stores: the server does not read them, and a reference to one is refused. Write a secret as ${env.NAME}";
        problems.warn(stores.place, text);
    }
    let realms = section.child("security-realms", problems);
    section.finish(problems);
    let Some(realms) = realms else { return Vec::new() };
    let mut section = Section::new(realms);
    let found = section.children("security-realm").chain(section.children("security-realms")).collect();
    section.finish(problems);
    found
}

/// Reads the realm that the endpoint names; Infinispan does not use the other realms, either.
pub(super) fn read(
    realms: &[&Node],
    wanted: (&str, Place),
    locations: Locations<'_>,
    problems: &mut Problems,
) -> Option<Realm> {
    let (name, place) = wanted;
    let name_of = |realm: &Node| realm.get("name").map(|name| name.value.clone()).unwrap_or_default();
    let Some(node) = realms.iter().find(|realm| name_of(realm) == name) else {
        let known: Vec<String> = realms.iter().map(|realm| name_of(realm)).collect();
        problems.refuse(place, format!("no security realm `{name}`; realms: {}", known.join(", ")));
        return None;
    };
    for other in realms.iter().filter(|other| other.place != node.place) {
        problems.warn(other.place, format!("security realm `{}`: no endpoint uses it", name_of(other)));
    }
    let mut section = Section::new(node);
    section.text("name");
    section.warn(REALM_WARNINGS, problems);
    let has_refused_source =
        REALM_REFUSALS.iter().any(|(kind, _)| node.children.iter().any(|child| child.name == *kind));
    section.refuse(REALM_REFUSALS, problems);
    let mut realm = Realm::default();
    if let Some(identities) = section.child("server-identities", problems) {
        realm.tls = read_identities(identities, locations, problems);
    }
    if let Some(users) = section.child("properties-realm", problems) {
        realm.users = read_properties(users, locations, problems);
    } else if !has_refused_source {
        let text = format!(
            "security realm `{name}` has no users; add a properties-realm, or leave out security-realm at the endpoint"
        );
        // With TLS alone, Infinispan serves all clients without authentication, and so does Consort.
        if realm.tls.is_none() {
            problems.refuse(node.place, text);
        }
    }
    section.finish(problems);
    Some(realm)
}

fn read_properties(node: &Node, locations: Locations<'_>, problems: &mut Problems) -> Option<RealmUsers> {
    let mut section = Section::new(node);
    // Neither has an effect in Consort: no mechanism sends the name of the realm to clients, and no server task in Java reads the
    // attribute with the groups.
    section.text("name");
    section.text("groups-attribute");
    let users = section.child("user-properties", problems);
    let groups = section.child("group-properties", problems);
    section.finish(problems);
    let Some(users) = users else {
        problems.refuse(node.place, "properties-realm needs <user-properties path=\"users.properties\"/>");
        return None;
    };
    let place = users.place;
    let mut section = Section::new(users);
    section.text("digest-realm-name");
    // Whether the passwords are in cleartext follows from the comment `$ALGORITHM=…$` in the file, as in Infinispan.
    section.flag("plain-text", problems);
    let path = locations.path(users, &mut section, CONFIG_PATH, problems);
    section.finish(problems);
    let groups = groups.and_then(|groups| {
        let mut section = Section::new(groups);
        let path = locations.path(groups, &mut section, CONFIG_PATH, problems);
        section.finish(problems);
        path
    });
    Some(RealmUsers { users: path?, groups, place })
}

fn read_identities(node: &Node, locations: Locations<'_>, problems: &mut Problems) -> Option<RealmTls> {
    let mut section = Section::new(node);
    section.refuse(&[("kerberos", "clients cannot authenticate by Kerberos; use SCRAM")], problems);
    let ssl = section.child("ssl", problems);
    section.finish(problems);
    let ssl = ssl?;
    let mut section = Section::new(ssl);
    let (keystore, truststore) = (section.child("keystore", problems), section.child("truststore", problems));
    if let Some(engine) = section.child("engine", problems) {
        read_engine(engine, problems);
    }
    section.finish(problems);
    let Some(keystore) = keystore else {
        let text = "<ssl> without <keystore>: clients would connect without TLS; add the <keystore> with the server's certificate, or \
                    remove <ssl>";
        problems.refuse(ssl.place, text);
        return None;
    };
    let identity = read_pem(keystore, locations, problems);
    let clients = truststore.and_then(|truststore| read_pem(truststore, locations, problems));
    Some(RealmTls { identity: identity?, clients, place: keystore.place })
}

/// A store of certificates in PEM; those of Java need a conversion.
fn read_pem(node: &Node, locations: Locations<'_>, problems: &mut Problems) -> Option<PathBuf> {
    let mut section = Section::new(node);
    section.warn(
        &[
            ("provider", "there are no providers of Java"),
            ("alias", "a file in PEM has one certificate"),
            ("password", "a file in PEM has no password"),
            ("keystore-password", "a file in PEM has no password"),
            ("key-password", "a file in PEM has no password"),
        ],
        problems,
    );
    section.refuse(
        &[
            (
                "generate-self-signed-certificate-host",
                "no certificate is generated, because clients could not check it; make one, and name it as path",
            ),
            ("credential-reference", "a file in PEM has no password; leave it out"),
        ],
        problems,
    );
    let kind = section.text("type");
    let path = locations.path(node, &mut section, CONFIG_PATH, problems);
    section.finish(problems);
    let path = path?;
    let is_pem = match kind {
        Some(kind) => kind.eq_ignore_ascii_case("pem"),
        None => path.extension().is_some_and(|extension| matches!(extension.to_str(), Some("pem" | "crt"))),
    };
    if !is_pem {
        let file = path.display();
        let text = format!(
            "{}: {file} is read in PEM only; convert it with openssl pkcs12 -in {file} -nodes -out server.pem (a JKS first with \
             keytool -importkeystore -deststoretype PKCS12), and write path=\"server.pem\"",
            node.name
        );
        problems.refuse(node.place, text);
        return None;
    }
    Some(path)
}

fn read_engine(node: &Node, problems: &mut Problems) {
    let mut section = Section::new(node);
    let protocols = section.words("enabled-protocols").unwrap_or_default();
    let has = |name: &str| protocols.contains(&name);
    let are_both = has("TLSv1.2") && has("TLSv1.3") && protocols.len() == 2;
    if !protocols.is_empty() && !are_both {
        let text = "enabled-protocols: the server speaks TLSv1.2 and TLSv1.3; write both, or leave it out";
        problems.refuse(node.place, text);
    }
    section.refuse(
        &[
            ("enabled-ciphersuites", "the server chooses among safe cipher suites; leave it out"),
            ("enabled-ciphersuites-tls13", "the server chooses among safe cipher suites; leave it out"),
        ],
        problems,
    );
    section.finish(problems);
}
