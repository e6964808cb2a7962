//! Realms: key stores, versions and suites of TLS.

use super::effect_tests::Realm;
use super::tests::{parse, problems, refused, server};
use super::*;
use crate::security::role::{Permissions, Role};

const STORES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keystore/tests/data");

fn identities(ssl: &str) -> String {
    format!("<server-identities><ssl>{ssl}</ssl></server-identities>")
}

/// A server whose realm has this content.
fn realm(content: &str) -> ServerFile {
    server(&format!(
        "<security><credential-stores><credential-store name=\"c\" path=\"{STORES}/credentials.p12\">\
         <masked-credential masked=\"1Hc4Feq2wJs;pepper99;100\"/></credential-store></credential-stores><security-realms>\
         <security-realm name=\"r\">{content}</security-realm></security-realms></security>\
         <endpoints socket-binding=\"b\" security-realm=\"r\"/>"
    ))
}

#[test]
fn key_stores_of_java_are_the_certificates_of_the_server() {
    let directory = Realm::new("key-stores");
    let read = |keystore: &str| directory.read(">", "", &identities(keystore));
    let certificate = |keystore: &str| {
        let file = read(keystore);
        assert_eq!(refused(&file), [] as [String; 0], "{keystore}");
        file.apply(crate::Server::builder()).security.tls.unwrap().identity.certificate().to_vec()
    };
    let jks = format!("path=\"{STORES}/server.jks\" password=\"storepw\" key-password=\"keypw12\"");
    let first = certificate(&format!("<keystore {jks} alias=\"server\"/>"));
    let other = certificate(&format!("<keystore {jks} alias=\"other\" type=\"JKS\"/>"));
    assert_ne!(first, other);
    assert_ne!(
        certificate(&format!("<keystore path=\"{STORES}/server.jceks\" keystore-password=\"changeit\"/>")),
        other
    );
    let pkcs12 = format!("<keystore path=\"{STORES}/two-keys.p12\" password=\"changeit\"");
    let with_clients = format!("{pkcs12}/><truststore path=\"{STORES}/trusted.jks\" password=\"changeit\"/>");
    let shown = read(&with_clients);
    let shown = shown
        .effective(&shown.apply(crate::Server::builder()))
        .tls(shown.realm_files().unwrap().tls())
        .to_string();
    assert!(
        shown.contains("two-keys.p12\n")
            && shown.contains("trusted.jks (certificates of clients are optional)"),
        "{shown}"
    );
    for (wrong, expected) in [
        (
            format!("{pkcs12} alias=\"third\"/>"),
            "no key has the alias `third`; the aliases are: first, second",
        ),
        (format!("<keystore path=\"{STORES}/server.jks\" password=\"x\"/>"), "the password is wrong"),
        (format!("<keystore path=\"{STORES}/trusted.jks\" password=\"changeit\"/>"), "no private key in it"),
    ] {
        let all = refused(&read(&wrong)).join("\n");
        assert!(all.contains(expected), "{wrong}: {all}");
    }
}

#[test]
fn password_is_an_attribute_or_a_credential_of_a_store() {
    let of = |child: &str| realm(&identities(&format!("<keystore path=\"a.p12\">{child}</keystore>")));
    let password = |child: &str| {
        let file = of(child);
        assert_eq!(refused(&file), [] as [String; 0], "{child}");
        let files = file.realm_files().unwrap().tls().unwrap().clone();
        let IdentityFiles::Store(store) = files.identity else { panic!("{files:?}") };
        store.password.map(|password| password.read().unwrap().to_string())
    };
    assert_eq!(password("<credential-reference store=\"c\" alias=\"trust\"/>").unwrap(), "p\u{e4}ss-Trust");
    assert_eq!(password("<clear-text-credential clear-text=\"x\"/>").unwrap(), "x");
    assert_eq!(password("<masked-credential masked=\"1Hc4Feq2wJs;pepper99;100\"/>").unwrap(), "secret");
    assert_eq!(password(""), None);
    for (child, expected) in [
        ("<credential-reference store=\"d\"/>", "no credential store `d`; stores: c"),
        ("<command-credential command=\"x\"/>", "<command-credential>: no command is run"),
        (
            "<clear-text-credential clear-text=\"x\"/><credential-reference store=\"c\"/>",
            "more than one password",
        ),
    ] {
        let all = refused(&of(child)).join("\n");
        assert!(all.contains(expected), "{child}: {all}");
    }
    let unnamed = server(
        "<security><credential-stores><credential-store name=\"c\" path=\"x\"/></credential-stores></security>",
    );
    assert!(refused(&unnamed)[1].contains("credential store `c` has no password"), "{:?}", refused(&unnamed));
}

#[test]
fn made_certificate_is_written_once() {
    let directory = Realm::new("made");
    let keystore = "<keystore path=\"made.pfx\" password=\"x\" alias=\"server\" \
                    generate-self-signed-certificate-host=\"grid.example\"/>";
    let read = || directory.read(">", "", &identities(keystore));
    let certificate = |file: &ServerFile| {
        assert_eq!(refused(file), [] as [String; 0]);
        file.apply(crate::Server::builder()).security.tls.unwrap().identity.certificate().to_vec()
    };
    let made = read();
    assert!(!directory.path("made.pfx").exists(), "a check writes no file");
    assert_eq!(made.write_made_certificate().unwrap(), Some(&*directory.path("made.pfx")));
    let again = read();
    assert_eq!(certificate(&again), certificate(&made));
    assert_eq!(again.write_made_certificate().unwrap(), None);
}

#[test]
fn engine_selects_versions_and_suites() {
    let of = |engine: &str| realm(&identities(&format!("<keystore path=\"a.pem\"/><engine {engine}/>")));
    let names = |engine: &str| {
        let file = of(engine);
        assert_eq!(refused(&file), [] as [String; 0], "{engine}");
        file.realm_files().unwrap().tls().unwrap().protocols.names()
    };
    assert_eq!(names(""), [] as [&str; 0]);
    assert_eq!(names("enabled-protocols=\"TLSV1.1 TLSV1.3\" enabled-ciphersuites=\"DEFAULT\""), ["TLSv1.3"]);
    assert!(problems(&of("enabled-protocols=\"TLSv1.1 TLSv1.2\""))[0].contains("TLSv1.1 is not offered"));
    let suites = names(
        "enabled-ciphersuites=\"ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:DHE-RSA-AES256-SHA\" \
         enabled-ciphersuites-tls13=\"TLS_AES_256_GCM_SHA384\"",
    );
    let expected = [
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_AES_256_GCM_SHA384",
    ];
    assert_eq!(suites, expected);
    assert_eq!(names("enabled-ciphersuites=\"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"").len(), 4);
    for (engine, expected) in [
        ("enabled-protocols=\"TLSv1.1\"", "the server speaks TLSv1.2 and TLSv1.3"),
        ("enabled-protocols=\"TLSv9\"", "unknown protocol `TLSv9`"),
        ("enabled-ciphersuites=\"DHE-RSA-AES256-GCM-SHA384\"", "has none of these suites"),
        ("enabled-ciphersuites=\"HIGH:!aNULL\"", "`HIGH` selects suites by a property"),
    ] {
        let all = refused(&of(engine)).join("\n");
        assert!(all.contains(expected), "{engine}: {all}");
    }
    let shown = of("enabled-protocols=\"TLSv1.3\"");
    let shown =
        shown.effective(&crate::Server::builder()).tls(shown.realm_files().unwrap().tls()).to_string();
    assert!(shown.contains("TLS offers       TLSv1.3\n"), "{shown}");
}

/// A trust store with the certificate of localhost.
fn with_truststore(others: &str) -> String {
    let stores = format!(
        "<keystore path=\"{STORES}/two-keys.p12\" password=\"changeit\"/><truststore path=\"{STORES}/trusted.jks\" \
         password=\"changeit\"/>"
    );
    format!("{}{others}", identities(&stores))
}

#[test]
fn first_source_of_users_applies_and_a_distributed_realm_combines_them() {
    let directory = Realm::new("sources");
    let users = |others: &str| {
        let file = directory.read(">", "", &with_truststore(others));
        assert_eq!(refused(&file), [] as [String; 0], "{others}");
        let users = file.users.clone().unwrap();
        let names = ["alice", "bob", "localhost"].map(|name| users.get(name).is_some());
        let Some((_, ClientCertificates::Trusted(clients))) = &file.tls else { panic!("no trust store") };
        (names, clients.are_users)
    };
    assert_eq!(users(""), ([true, true, false], false));
    assert_eq!(users("<truststore-realm/>"), ([false, false, true], true));
    assert_eq!(users("<truststore-realm/><distributed-realm/>"), ([true; 3], true));
    let named = "<truststore-realm name=\"own\"/><distributed-realm realms=\"properties own\"/>";
    assert_eq!(users(named), ([true; 3], true));
    assert_eq!(
        users("<ldap-realm/><distributed-realm realms=\"properties\"/>"),
        ([true, true, false], false)
    );
    let warned = problems(&directory.read(">", "", &with_truststore("<truststore-realm/>"))).join("\n");
    assert!(warned.contains("warning: <properties-realm>: only the first source of users"), "{warned}");
    for (others, expected) in [
        ("<ldap-realm/>", "<ldap-realm>: there is no LDAP"),
        ("<local-realm/>", "<local-realm>: there is no local user"),
        ("<distributed-realm realms=\"trust\"/>", "no source `trust`; sources: properties"),
        ("<distributed-realm realms=\" , \"/>", "realms has no source of users"),
    ] {
        let all = refused(&directory.read(">", "", &with_truststore(others))).join("\n");
        assert!(all.contains(expected), "{others}: {all}");
    }
    let without = refused(&directory.read(">", "", "<truststore-realm/>")).join("\n");
    assert!(without.contains("truststore-realm needs the certificates of its users"), "{without}");
}

#[test]
fn common_name_of_a_certificate_is_a_role() {
    let directory = Realm::new("common-names");
    let read = |mapper: &str, others: &str| {
        let container = format!(
            "><security><authorization>{mapper}<role name=\"localhost\" permissions=\"READ\"/></authorization></security>"
        );
        directory.read(&container, "", &with_truststore(others))
    };
    let permissions = |file: &ServerFile| {
        assert_eq!(refused(file), [] as [String; 0]);
        file.users.as_ref().unwrap().get("localhost").unwrap().grants.permissions
    };
    let mapper = "<common-name-role-mapper/>";
    let reader = Permissions::new(&[crate::Permission::Read]);
    assert_eq!(permissions(&read(mapper, "<truststore-realm/>")), reader);
    assert_eq!(permissions(&read("", "<truststore-realm/>")), Permissions::default());
    let file = directory.read(">", "", &with_truststore("<truststore-realm/>"));
    assert_eq!(permissions(&file), Role::Admin.permissions(), "without authorization");
    let all = refused(&read(mapper, "")).join("\n");
    assert!(all.contains("users of a properties-realm are no distinguished names"), "{all}");
}

const ROLES: &str = "<infinispan><cache-container><security><authorization><role name=\"reader\" permissions=\"READ\"/>\
    <role name=\"admin\" permissions=\"MONITOR\"/></authorization></security><local-cache name=\"stock\"><security>\
    <authorization roles=\"reader\"/></security></local-cache></cache-container></infinispan>";

#[test]
fn users_of_an_option_have_the_roles_of_the_file() {
    let beside = OptionsBeside { has_users: true, has_schemas: false };
    let file = ServerFile::parse_beside("i.xml", ROLES, &Variables::new(), beside);
    assert_eq!(refused(&file), [] as [String; 0]);
    assert!(
        refused(&parse(ROLES))[0].contains("add users with --users, or a <server>"),
        "{:?}",
        parse(ROLES)
    );
    let directory = Realm::new("option");
    directory.write("users", "alice reader password:wonderland\nbob admin password:secret\n");
    let users = file.roles().read_users(directory.path("users")).unwrap();
    let grants = |name: &str| users.get(name).unwrap().grants.clone();
    assert_eq!(grants("alice").permissions, Permissions::new(&[crate::Permission::Read]));
    assert_eq!(grants("bob").permissions, Permissions::new(&[crate::Permission::Monitor]));
    assert_eq!(grants("bob").by_cache["stock"], Permissions::default());
    directory.write("users", "alice deployer password:wonderland\n");
    let error = file.roles().read_users(directory.path("users")).unwrap_err().to_string();
    assert!(
        error.ends_with("unknown role \"deployer\"; the roles of the server's file are admin, reader"),
        "{error}"
    );
    let open = parse("<infinispan><cache-container/></infinispan>");
    assert!(open.roles().read_users(directory.path("users")).unwrap().get("alice").is_some());
}

#[test]
fn context_initializer_needs_schemas_of_an_option() {
    let text = "<infinispan><cache-container><serialization><context-initializer class=\"org.shop.Initializer\"/>\
                </serialization></cache-container></infinispan>";
    assert!(
        refused(&parse(text))[0]
            .contains("the class org.shop.Initializer cannot be run; register its schemas with --schema")
    );
    let beside = OptionsBeside { has_users: false, has_schemas: true };
    let file = ServerFile::parse_beside("i.xml", text, &Variables::new(), beside);
    assert_eq!(refused(&file), [] as [String; 0]);
    assert!(problems(&file)[0].contains("org.shop.Initializer is not run"), "{:?}", problems(&file));
    let yaml = "infinispan:\n  cacheContainer:\n    serialization:\n      contextInitializers:\n        - class: a.B\n        - class: c.D\n";
    assert_eq!(refused(&parse(yaml)).len(), 2, "{:?}", refused(&parse(yaml)));
}

/// A server with two socket bindings, `b` and `c`.
fn with_two_bindings(endpoints: &str) -> ServerFile {
    parse(&format!(
        "<infinispan><cache-container/><server><interfaces><interface name=\"i\"><loopback/></interface></interfaces>\
         <socket-bindings default-interface=\"i\"><socket-binding name=\"b\" port=\"11222\"/><socket-binding name=\"c\" \
         port=\"11333\"/></socket-bindings>{endpoints}</server></infinispan>"
    ))
}

#[test]
fn further_endpoint_is_a_port_with_a_filter_of_its_own() {
    let filter = "<ip-filter><reject from=\"10.0.0.0/8\"/></ip-filter>";
    for endpoints in [
        format!(
            "<endpoints><endpoint socket-binding=\"b\"/><endpoint socket-binding=\"c\">{filter}</endpoint></endpoints>"
        ),
        format!(
            "<endpoints socket-binding=\"b\"><endpoint><hotrod-connector/><hotrod-connector socket-binding=\"c\">{filter}\
             </hotrod-connector></endpoint></endpoints>"
        ),
        format!(
            "<endpoints><endpoint socket-binding=\"c\"><rest-connector/></endpoint><endpoint socket-binding=\"b\"/>\
             <endpoint socket-binding=\"c\">{filter}</endpoint></endpoints>"
        ),
    ] {
        let file = with_two_bindings(&endpoints);
        assert_eq!(refused(&file), [] as [String; 0], "{endpoints}");
        assert_eq!(file.further_hosts().collect::<Vec<_>>(), ["127.0.0.1"]);
        let builder = file.apply(crate::Server::builder());
        assert!(builder.port == 11222 && builder.ip_filter.accepts([10, 0, 0, 1].into()));
        let [further] = &builder.further_ports[..] else { panic!("{:?}", builder.further_ports) };
        assert!(further.port == 11333 && !further.ip_filter.accepts([10, 0, 0, 1].into()));
        let shown = file.effective(&builder).to_string();
        assert!(shown.contains("further clients  127.0.0.1:11333\n"), "{shown}");
        assert!(problems(&file).iter().any(|one| one.contains("clients get no topology")));
    }
    for (second, expected) in [
        ("socket-binding=\"b\"", "a second endpoint of a socket-binding"),
        (
            "socket-binding=\"c\" require-ssl-client-auth=\"true\"",
            "a further endpoint has the security-realm",
        ),
        ("socket-binding=\"c\" security-realm=\"r\"", "a further endpoint has the security-realm"),
    ] {
        let file = with_two_bindings(&format!(
            "<endpoints><endpoint socket-binding=\"b\"/><endpoint {second}/></endpoints>"
        ));
        assert!(refused(&file)[0].contains(expected), "{second}: {:?}", refused(&file));
    }
}

#[test]
fn tokens_prove_the_names_of_known_users() {
    let pair = rcgen::KeyPair::generate().unwrap();
    let key = pair.public_key_pem().replace('\n', " ");
    let jwt = format!("<jwt issuer=\"https://issuer.example\" audience=\"shop grid\" public-key=\"{key}\"/>");
    let users = "<properties-realm><user-properties path=\"users.properties\"/></properties-realm>";
    let both = |attributes: &str, jwt: &str| {
        realm(&format!("<token-realm {attributes}>{jwt}</token-realm>{users}<distributed-realm/>"))
    };
    let file = both("auth-server-url=\"http://x\" client-id=\"c\"", &jwt);
    assert_eq!(refused(&file), [] as [String; 0]);
    let builder = file.apply(crate::Server::builder());
    assert!(builder.security.tokens.is_some());
    assert!(file.effective(&builder).to_string().contains("tokens           of known users\n"));
    assert!(problems(&file).iter().any(|one| one.contains("the user of a token is its claim sub")));
    let alone = format!("<token-realm>{jwt}</token-realm>");
    assert!(refused(&realm(&alone))[0].contains("name them with --users"), "{:?}", refused(&realm(&alone)));
    for (attributes, jwt, expected) in [
        ("principal-claim=\"username\"", &jwt[..], "the name of the user is the claim sub"),
        ("", "<jwt audience=\"a\"/>", "<jwt> needs public-key"),
        ("", "<jwt audience=\"a\" public-key=\"x\"/>", "public-key: "),
        ("", "<oauth2-introspection/>", "no request is made to the issuer"),
    ] {
        let all = refused(&both(attributes, jwt)).join("\n");
        assert!(all.contains(expected), "{attributes} {jwt}: {all}");
    }
}
