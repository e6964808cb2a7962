//! `<server><security>`: the realm of the endpoint. Of the kinds of realms, users in properties files and certificates have a
//! counterpart.

use std::path::PathBuf;

use super::credentials::CredentialStores;
use super::document::Node;
use super::locations::{CONFIG_PATH, Locations};
use super::problem::{Place, Problems};
use super::realm_tls::{self, RealmTls};
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

/// The files of a properties realm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RealmUsers {
    pub(super) users: PathBuf,
    pub(super) groups: Option<PathBuf>,
    pub(super) place: Place,
}

#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Realm {
    pub(super) tls: Option<RealmTls>,
    pub(super) users: Option<RealmUsers>,
}

/// `<security>`: the elements of all realms, and the stores of their passwords.
#[derive(Default)]
pub(super) struct Realms<'n> {
    all: Vec<&'n Node>,
    stores: CredentialStores,
}

impl<'n> Realms<'n> {
    pub(super) fn collect(security: &'n Node, locations: Locations<'_>, problems: &mut Problems) -> Self {
        let mut section = Section::new(security);
        let stores = section.child("credential-stores", problems);
        let stores = stores.map(|stores| CredentialStores::read(stores, locations, problems));
        let realms = section.child("security-realms", problems);
        section.finish(problems);
        let mut all = Vec::new();
        if let Some(realms) = realms {
            let mut section = Section::new(realms);
            all = section.children("security-realm").chain(section.children("security-realms")).collect();
            section.finish(problems);
        }
        Self { all, stores: stores.unwrap_or_default() }
    }

    /// Returns the place of the first realm.
    pub(super) fn first(&self) -> Option<Place> {
        self.all.first().map(|realm| realm.place)
    }
}

/// Reads the realm that the endpoint names; Infinispan does not use the other realms, either.
pub(super) fn read(
    realms: &Realms<'_>,
    wanted: (&str, Place),
    locations: Locations<'_>,
    problems: &mut Problems,
) -> Option<Realm> {
    let (name, place) = wanted;
    let name_of = |realm: &Node| realm.get("name").map(|name| name.value.clone()).unwrap_or_default();
    let Some(node) = realms.all.iter().find(|realm| name_of(realm) == name) else {
        let known: Vec<String> = realms.all.iter().map(|realm| name_of(realm)).collect();
        problems.refuse(place, format!("no security realm `{name}`; realms: {}", known.join(", ")));
        return None;
    };
    for other in realms.all.iter().filter(|other| other.place != node.place) {
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
        realm.tls = realm_tls::read_identities(identities, &realms.stores, locations, problems);
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
