//! Each option of a file has an effect on the server.

use consort_conf::Variables;
use consort_hotrod::ops::counter::CounterKind;

use super::tests::{parse, refused};
use super::*;
use crate::security::role::{Permissions, Role};

/// A server with one container and one connector, and a realm with these identities.
pub(super) fn whole(container: &str, endpoint: &str, connector: &str, identities: &str) -> String {
    format!(
        "<infinispan><cache-container {container}</cache-container><server><interfaces><interface name=\"i\"><loopback/></interface>\
         </interfaces><socket-bindings default-interface=\"i\"><socket-binding name=\"b\" port=\"11222\"/></socket-bindings>\
         <security><security-realms><security-realm name=\"r\">{identities}<properties-realm>\
         <user-properties path=\"users.properties\"/><group-properties path=\"groups.properties\"/></properties-realm>\
         </security-realm></security-realms></security><endpoints socket-binding=\"b\" security-realm=\"r\"><endpoint {endpoint}>\
         <hotrod-connector>{connector}</hotrod-connector></endpoint></endpoints></server></infinispan>"
    )
}

fn builder(container: &str, endpoint: &str, connector: &str) -> ServerBuilder {
    let file = parse(&whole(container, endpoint, connector, ""));
    assert_eq!(refused(&file), [] as [String; 0]);
    file.apply(crate::Server::builder())
}

#[test]
fn server_has_the_settings_of_endpoint_and_container() {
    let default = builder(">", "", "");
    assert!(!default.security.public_metrics && default.security.mechanisms.is_none());
    assert!(default.data.is_none() && default.default_cache.is_none());
    assert!(
        default.advertised.is_none() && default.advertised_port.is_none() && default.ip_filter.is_empty()
    );
    assert!(builder(">", "metrics-auth=\"false\"", "").security.public_metrics);
    assert!(!builder(">", "metrics-auth=\"true\"", "").security.public_metrics);
    let sasl = "<authentication><sasl mechanisms=\"SCRAM-SHA-384 PLAIN\"/></authentication>";
    let mechanisms = builder(">", "", sasl).security.mechanisms.unwrap();
    assert_eq!(mechanisms.iter().map(|one| one.name()).collect::<Vec<_>>(), ["SCRAM-SHA-384", "PLAIN"]);
    let filter = "<ip-filter><reject from=\"127.0.0.0/8\"/></ip-filter>";
    assert!(!builder(">", "", filter).ip_filter.accepts([127, 0, 0, 1].into()));
    let state = "><global-state><persistent-location path=\"/var/lib/grid\"/></global-state>";
    assert_eq!(builder(state, "", "").data, Some("/var/lib/grid".into()));
    let stock = builder("default-cache=\"stock\"><local-cache name=\"stock\"/>", "", "");
    assert_eq!(stock.default_cache.as_deref(), Some("stock"));
    let transport = "><transport initial-cluster-size=\"3\" initial-cluster-timeout=\"5s\"/>";
    let size = |text: &str| parse(&whole(text, "", "", "")).cluster().unwrap().initial_size;
    assert_eq!(size(transport), Some((3, Duration::from_secs(5))));
    assert_eq!(size("><transport initial-cluster-size=\"3\"/>"), Some((3, Duration::from_secs(60))));
    assert_eq!(size("><transport/>"), None);
    let definitions = builder(
        "><local-cache-configuration name=\"t\"/><counters><weak-counter name=\"w\" initial-value=\"4\"/>\
         <strong-counter name=\"s\"><upper-bound value=\"9\"/></strong-counter></counters>",
        "",
        "",
    )
    .definitions
    .unwrap();
    assert_eq!(definitions.templates.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["t"]);
    let counter = |at: usize| &definitions.counters[at];
    assert!(counter(0).0 == "s" && counter(1).0 == "w" && counter(1).1.initial == 4, "{definitions:?}");
    let (_, bounded) = counter(0);
    assert_eq!(bounded.kind, CounterKind::Bounded { lower: i64::MIN, upper: 9 });
}

#[test]
fn stack_without_a_layer_that_members_need_is_refused() {
    let file = parse(
        "<infinispan><jgroups><stack name=\"own\"><TCP/>\n<pbcast.GMS/></stack></jgroups><cache-container>\
         <transport stack=\"own\"/></cache-container></infinispan>",
    );
    assert!(refused(&file)[0].starts_with("2:1: GMS needs a discovery below it"), "{:?}", refused(&file));
}

/// A directory with a server's file and the files of its realm.
pub(super) struct Realm(PathBuf);

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Realm {
    pub(super) fn new(name: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("consort-{}-server-file-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let realm = Self(directory);
        realm.write("users.properties", "alice=wonderland\nbob=secret\n");
        realm.write("groups.properties", "bob=reader\n");
        realm
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(super) fn read(&self, container: &str, endpoint: &str, identities: &str) -> ServerFile {
        self.write("infinispan.xml", &whole(container, endpoint, "", identities));
        ServerFile::read(self.path("infinispan.xml"), &Variables::new())
    }
}

#[test]
fn certificates_of_a_realm_are_those_of_the_server() {
    let realm = Realm::new("certificates");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    realm.write("ca.pem", &made.cert.pem());
    realm.write("server.pem", &format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()));
    let identities = |keystore: &str| {
        format!(
            "<server-identities><ssl><keystore path=\"{keystore}\"/><truststore path=\"ca.pem\"/></ssl></server-identities>"
        )
    };
    let clients = |file: &ServerFile| {
        assert_eq!(refused(file), [] as [String; 0]);
        file.apply(crate::Server::builder()).security.tls.unwrap().clients
    };
    let asked = realm.read(">", "", &identities("server.pem"));
    let is_required = |clients| match clients {
        ClientCertificates::Trusted(trusted) => Some(trusted.is_required),
        _ => None,
    };
    assert_eq!(is_required(clients(&asked)), Some(false));
    let needed = realm.read(">", "require-ssl-client-auth=\"true\"", &identities("server.pem"));
    assert_eq!(is_required(clients(&needed)), Some(true));
    assert!(!realm.read(">", "", "").apply(crate::Server::builder()).has_tls());
    realm.write("broken.pem", "nothing");
    let broken = realm.read(">", "", &identities("broken.pem"));
    assert!(refused(&broken)[0].contains("broken.pem"), "{:?}", refused(&broken));
    assert!(!broken.is_startable(false));
}

/// As at SIGHUP.
#[test]
fn users_of_a_realm_are_read_again() {
    let realm = Realm::new("users");
    let files = realm.read(">", "", "").realm_files().unwrap();
    let count = || files.read_users().unwrap().unwrap().count();
    assert_eq!(count(), 2);
    realm.write("users.properties", "carol=secret\n");
    assert_eq!(count(), 1);
    realm.write("users.properties", "#$ALGORITHM=encrypted$\ncarol=secret\n");
    let error = files.read_users().err().unwrap().to_string();
    assert!(error.contains("users.properties:2: "), "{error}");
    realm.write("users.properties", "#\n");
    let error = files.read_users().err().unwrap().to_string();
    assert!(error.ends_with("has no users: no client could authenticate; add some"), "{error}");
}

#[test]
fn roles_of_a_user_are_those_of_groups_and_with_another_mapping_of_the_name() {
    let realm = Realm::new("roles");
    let grants = |mapping: &str| {
        let file = realm.read(
            &format!(
                "><security><authorization {mapping}><role name=\"alice\" permissions=\"ALL\"/>\
                 <role name=\"reader\" permissions=\"READ\"/></authorization></security>"
            ),
            "",
            "",
        );
        assert_eq!(refused(&file), [] as [String; 0]);
        let users = file.users.unwrap();
        ["alice", "bob"].map(|name| users.get(name).unwrap().grants.permissions)
    };
    let reader = Permissions::new(&[crate::Permission::Read]);
    assert_eq!(grants("group-only-mapping=\"false\""), [Role::Admin.permissions(), reader]);
    for mapping in ["group-only-mapping=\"true\"", ""] {
        assert_eq!(grants(mapping), [Permissions::default(), reader], "{mapping}");
    }
}

#[test]
fn template_with_wildcards_is_kept_and_makes_the_default_cache() {
    let caches = "<distributed-cache-configuration name=\"org.*\" owners=\"3\"/>\
                  <distributed-cache-configuration name=\"org.b*\" owners=\"4\"/>";
    let of = |default: &str| parse(&whole(&format!("{default}>{caches}"), "", "", ""));
    let file = of("default-cache=\"org.a\"");
    assert_eq!(refused(&file), [] as [String; 0]);
    let definitions = file.definitions();
    let templates: Vec<&str> = definitions.templates.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(templates, ["org.*", "org.b*"]);
    let [cache] = &definitions.all[..] else { panic!("{:?}", definitions.all) };
    let text = crate::catalog::definition::to_text(cache).to_string();
    assert!(&*cache.config.name == "org.a" && text.contains("\"owners\":3"), "{text}");
    assert!(
        refused(&of("default-cache=\"org.b1\""))[0].contains("2 templates with wildcards match `org.b1`")
    );
    assert!(refused(&of("default-cache=\"com\""))[0].contains("no cache `com` is defined"));
}

#[test]
fn template_of_another_kind_gives_the_settings_that_both_kinds_have() {
    let text = |caches: &str| {
        let file = parse(&whole(&format!(">{caches}"), "", "", ""));
        assert_eq!(refused(&file), [] as [String; 0], "{caches}");
        crate::catalog::definition::to_text(&file.definitions().all[0]).to_string()
    };
    let count = "<memory max-count=\"7\"/>";
    let base = |kind: &str, attributes: &str| {
        format!("<{kind}-configuration name=\"t\" {attributes}>{count}</{kind}-configuration>")
    };
    let distributed =
        base("distributed-cache", "mode=\"SYNC\" owners=\"3\" segments=\"8\" l1-lifespan=\"5\"");
    for kind in ["local-cache", "replicated-cache", "invalidation-cache"] {
        let cache = text(&format!("{distributed}<{kind} name=\"a\" configuration=\"t\"/>"));
        assert!(cache.contains(&format!("{{\"{kind}\":")) && cache.contains("\"max-count\":7"), "{cache}");
        let cache = text(&format!(
            "{}<distributed-cache name=\"a\" owners=\"2\" configuration=\"t\"/>",
            base(kind, "statistics=\"true\"")
        ));
        assert!(cache.contains("{\"distributed-cache\":") && cache.contains("\"max-count\":7"), "{cache}");
    }
}

#[test]
fn included_files_stand_for_their_elements() {
    let directory = Realm::new("includes");
    std::fs::create_dir_all(directory.path("parts")).unwrap();
    directory.write("parts/a.xml", "<local-cache name=\"a\"><xi:include href=\"b.xml\"/></local-cache>");
    directory.write("parts/b.xml", "<memory max-count=\"${count:7}\"/>");
    directory.write("self.xml", "<local-cache name=\"s\"><include href=\"self.xml\"/></local-cache>");
    directory.write("broken.xml", "<local-cache name=\"x\"");
    let with = |href: &str| directory.read(&format!("><xi:include href=\"{href}\"/>"), "", "");
    let file = with("parts/a.xml");
    assert_eq!(refused(&file), [] as [String; 0]);
    let text = crate::catalog::definition::to_text(&file.definitions().all[0]).to_string();
    assert!(text.contains("\"max-count\":7"), "{text}");
    assert!(file.uses_variable("count") && !file.uses_variable("other"));
    for (href, expected) in [
        ("missing.xml", "missing.xml cannot be read: No such file"),
        ("self.xml", "at most 64 files are included, and 8 by each other"),
        ("broken.xml", "broken.xml:1:1: this is not XML"),
    ] {
        let all = refused(&with(href)).join("\n");
        assert!(all.contains(expected), "{href}: {all}");
    }
}
