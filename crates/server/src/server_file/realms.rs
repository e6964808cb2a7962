//! `<server><security>`: the realm of the endpoint. Of the kinds of realms, users in properties files and certificates have a
//! counterpart.

use std::path::PathBuf;

use consort_tls::TrustFile;

use super::credentials::CredentialStores;
use super::document::Node;
use super::locations::{CONFIG_PATH, Locations};
use super::problem::{Place, Problems};
use super::realm_tls::{self, RealmTls};
use super::section::{Reasons, Section};
use crate::security::Tokens;

const REALM_WARNINGS: Reasons = &[
    ("cache-lifespan", "verified passwords are remembered by the server, until the users change"),
    ("cache-max-size", "verified passwords are remembered by the server, until the users change"),
    ("default-realm", "a server has one realm"),
];

/// The sources of users of a realm, with Infinispan's default of `name`.
const SOURCES: [(&str, &str); 6] = [
    (PROPERTIES, "properties"),
    (TRUSTSTORE, "trust"),
    (TOKEN, "token"),
    ("ldap-realm", "ldap"),
    ("local-realm", "local"),
    ("aggregate-realm", ""),
];

const PROPERTIES: &str = "properties-realm";
const TRUSTSTORE: &str = "truststore-realm";
const TOKEN: &str = "token-realm";
const DISTRIBUTED: &str = "distributed-realm";

const SOURCE_REFUSALS: Reasons = &[
    (
        "ldap-realm",
        "there is no LDAP; write the users into a properties-realm, or use tokens: --users with --token-key",
    ),
    ("local-realm", "there is no local user; use a properties-realm"),
    (
        "aggregate-realm",
        "a user has one source; write the users into a properties-realm, or combine sources with <distributed-realm/>",
    ),
];

const REALM_REFUSALS: Reasons =
    &[("evidence-decoder", "the common name of a certificate is the name of the user; leave it out")];

/// The files of a properties realm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RealmUsers {
    pub(super) users: PathBuf,
    pub(super) groups: Option<PathBuf>,
    pub(super) place: Place,
}

#[derive(Clone, Default, Debug)]
pub(super) struct Realm {
    pub(super) tls: Option<RealmTls>,
    /// The first user of a name applies.
    pub(super) sources: Vec<UserSource>,
    /// Tokens that prove the name of a known user.
    pub(super) tokens: Option<Tokens>,
}

/// Users of a realm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum UserSource {
    /// Of properties files.
    Properties(RealmUsers),
    /// The owners of the certificates in the trust store.
    Certificates(Place),
}

impl UserSource {
    pub(super) const fn place(&self) -> Place {
        match self {
            Self::Properties(users) => users.place,
            Self::Certificates(place) => *place,
        }
    }
}

impl Realm {
    pub(super) const fn has_users(&self) -> bool {
        !self.sources.is_empty()
    }
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
    section.refuse(REALM_REFUSALS, problems);
    let mut realm = Realm::default();
    if let Some(identities) = section.child("server-identities", problems) {
        realm.tls = realm_tls::read_identities(identities, &realms.stores, locations, problems);
    }
    let sources = effective_sources(&mut section, problems);
    for source in &sources {
        let refusal = SOURCE_REFUSALS.iter().find(|(kind, _)| *kind == source.name);
        match (&source.name[..], refusal) {
            (_, Some((kind, why))) => problems.refuse(source.place, format!("<{kind}>: {why}")),
            (TOKEN, None) => realm.tokens = read_tokens(source, problems),
            (TRUSTSTORE, None) => realm.sources.extend(read_truststore(source, &mut realm.tls, problems)),
            (_, None) => {
                realm
                    .sources
                    .extend(read_properties(source, locations, problems).map(UserSource::Properties));
            }
        }
    }
    if let Some(token_realm) = sources.iter().find(|source| source.name == TOKEN)
        && realm.tokens.is_some()
    {
        check_tokens(token_realm, &realm, locations, problems);
    }
    // With TLS alone, Infinispan serves all clients without authentication, and so does Consort.
    if sources.is_empty() && realm.tls.is_none() {
        let text = format!(
            "security realm `{name}` has no users; add a properties-realm, or leave out security-realm at the endpoint"
        );
        problems.refuse(node.place, text);
    }
    section.finish(problems);
    Some(realm)
}

/// As in Infinispan, the first source applies, and with `<distributed-realm>` those that it names, or all.
fn effective_sources<'n>(section: &mut Section<'n>, problems: &mut Problems) -> Vec<&'n Node> {
    let distributed = section.child(DISTRIBUTED, problems);
    let mut all: Vec<(String, &Node)> = Vec::new();
    for child in &section.node.children {
        let Some((kind, default)) = SOURCES.iter().find(|(kind, _)| *kind == child.name) else { continue };
        section.mark(kind);
        let name = child.get("name").map_or(*default, |name| &name.value);
        all.push((name.to_owned(), child));
    }
    let Some(node) = distributed else {
        for (_, other) in all.iter().skip(1) {
            let text = format!(
                "<{}>: only the first source of users of a realm applies, as in Infinispan; add <distributed-realm/> for all",
                other.name
            );
            problems.warn(other.place, text);
        }
        return all.into_iter().take(1).map(|(_, node)| node).collect();
    };
    let mut distributed = Section::new(node);
    distributed.text("name");
    let names = distributed.words("realms");
    distributed.finish(problems);
    let Some(names) = names else { return all.into_iter().map(|(_, node)| node).collect() };
    if names.is_empty() {
        let text = "distributed-realm: realms has no source of users; name some, or leave realms out for all";
        problems.refuse(node.place, text);
    }
    let mut chosen = Vec::new();
    for name in names {
        match all.iter().find(|(own, _)| own == name) {
            Some((_, node)) => chosen.push(*node),
            None => {
                let known: Vec<&str> = all.iter().map(|(name, _)| &name[..]).collect();
                let text = format!("distributed-realm: no source `{name}`; sources: {}", known.join(", "));
                problems.refuse(node.place, text);
            }
        }
    }
    chosen
}

/// A user of a token has to be known, because its roles are not read from the token.
fn check_tokens(node: &Node, realm: &Realm, locations: Locations<'_>, problems: &mut Problems) {
    if realm.has_users() || locations.options.has_users {
        let text = "token-realm: the user of a token is its claim sub, and has to be known by another source or by --users; its roles \
                    are those of that user, not those of the token";
        problems.warn(node.place, text);
    } else {
        let text = "token-realm: users and roles are not read from tokens; name them with --users, or combine a properties-realm with \
                    it by <distributed-realm/>";
        problems.refuse(node.place, text);
    }
}

fn read_tokens(node: &Node, problems: &mut Problems) -> Option<Tokens> {
    let mut section = Section::new(node);
    // The first two are for Infinispan's console.
    for name in ["auth-server-url", "client-id", "name"] {
        section.text(name);
    }
    if let Some(claim) = section.attribute("principal-claim").filter(|claim| claim.value != "sub") {
        let text = format!(
            "principal-claim: the name of the user is the claim sub, and cannot be `{}`",
            claim.value
        );
        problems.refuse(claim.place, text);
    }
    section.refuse(
        &[(
            "oauth2-introspection",
            "no request is made to the issuer for each token; write <jwt> with its public-key, or use --token-key",
        )],
        problems,
    );
    let jwt = section.child("jwt", problems);
    section.finish(problems);
    let jwt = jwt?;
    let mut section = Section::new(jwt);
    section.warn(
        &[
            ("jku-timeout", NO_FETCH),
            ("client-ssl-context", NO_FETCH),
            ("host-name-verification-policy", NO_FETCH),
            ("connection-timeout", NO_FETCH),
            ("read-timeout", NO_FETCH),
        ],
        problems,
    );
    let (audiences, issuers) = (section.words("audience"), section.words("issuer"));
    let key = section.text("public-key");
    section.finish(problems);
    let (Some(key), Some(audiences)) = (key, audiences) else {
        let text = "<jwt> needs public-key, because keys are not fetched from the issuer, and audience, because a token for another \
                    service is no proof here; --token-key has several keys in a file";
        problems.refuse(jwt.place, text);
        return None;
    };
    match Tokens::from_pem("public-key".to_owned(), pem_of(key).as_bytes(), "") {
        Ok(tokens) => Some(tokens.accepting(&audiences, &issuers.unwrap_or_default())),
        Err(error) => {
            problems.refuse(jwt.place, error.to_string());
            None
        }
    }
}

const NO_FETCH: &str = "keys are not fetched from the issuer";

/// An attribute of XML has spaces in place of line ends.
fn pem_of(key: &str) -> String {
    const MARKS: [&str; 2] = ["-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"];
    let body = key.trim().trim_start_matches(MARKS[0]).trim_end_matches(MARKS[1]);
    let digits: String = body.split_whitespace().collect();
    format!("{}\n{digits}\n{}\n", MARKS[0], MARKS[1])
}

/// The trust store of the certificate of the server has those of the users.
fn read_truststore(node: &Node, tls: &mut Option<RealmTls>, problems: &mut Problems) -> Option<UserSource> {
    let mut section = Section::new(node);
    section.text("name");
    section.finish(problems);
    match tls.as_mut().and_then(|tls| tls.files.client_ca.as_mut()) {
        Some(TrustFile::Store { are_users, .. }) => {
            *are_users = true;
            Some(UserSource::Certificates(node.place))
        }
        _ => {
            let text = "truststore-realm needs the certificates of its users: add a <truststore> beside the <keystore>";
            problems.refuse(node.place, text);
            None
        }
    }
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
