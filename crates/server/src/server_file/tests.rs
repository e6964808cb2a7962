use consort_conf::Variables;

use super::document::{NESTING_MAX, PARTS_MAX};
use super::problem::PROBLEMS_MAX;
use super::*;
use crate::catalog::definition::without_effect::tests as without_effect;
use crate::security::role::Role;

/// As in Infinispan's distribution.
const DISTRIBUTION: &str = include_str!("../../tests/infinispan.xml");

pub(super) fn parse(text: &str) -> ServerFile {
    ServerFile::parse("i.xml", text, &Variables::new().with("set", "7"))
}

/// Within a container.
fn container(text: &str) -> ServerFile {
    parse(&format!("<infinispan><cache-container>\n{text}\n</cache-container></infinispan>"))
}

/// Within a container of a server with users.
fn secured(text: &str) -> ServerFile {
    parse(&format!(
        "<infinispan><cache-container>\n{text}\n</cache-container><server><interfaces><interface name=\"i\"><loopback/></interface>\
         </interfaces><socket-bindings default-interface=\"i\"><socket-binding name=\"b\" port=\"11222\"/></socket-bindings>\
         <security><security-realms><security-realm name=\"r\"><properties-realm><user-properties path=\"u\"/></properties-realm>\
         </security-realm></security-realms></security><endpoints socket-binding=\"b\" security-realm=\"r\"><endpoint>\
         <hotrod-connector/></endpoint></endpoints></server></infinispan>"
    ))
}

/// Within a server, with an interface and a binding.
pub(super) fn server(text: &str) -> ServerFile {
    parse(&format!(
        "<infinispan><cache-container/><server><interfaces><interface name=\"i\"><loopback/></interface></interfaces>\
         <socket-bindings default-interface=\"i\" port-offset=\"100\"><socket-binding name=\"b\" port=\"11222\"/>\
         </socket-bindings>\n{text}\n</server></infinispan>"
    ))
}

/// The lines of `--check`, without options.
fn effective(file: &ServerFile) -> String {
    file.effective(&file.apply(crate::Server::builder())).to_string()
}

pub(super) fn problems(file: &ServerFile) -> Vec<String> {
    file.problems().iter().map(|problem| problem.to_string().replace("i.xml:", "")).collect()
}

pub(super) fn refused(file: &ServerFile) -> Vec<String> {
    let refused = file.problems().iter().filter(|problem| problem.severity == Severity::Refused);
    refused.map(|problem| format!("{}: {}", problem.place, problem.text)).collect()
}

#[test]
fn file_of_the_distribution_has_its_cluster_address_and_realm() {
    let variables = Variables::new().with("infinispan.bind.port", "11000").with("infinispan.node.name", "A");
    let file = ServerFile::parse("infinispan.xml", DISTRIBUTION, &variables);
    assert!(file.is_startable(false) && !file.is_startable(true), "{:?}", file.problems());
    assert_eq!(file.address(), Some(("127.0.0.1", 11000)));
    let cluster = file.cluster().unwrap();
    assert_eq!((&cluster.name[..], cluster.member.as_deref()), ("cluster", Some("A")));
    assert_eq!(cluster.stack.as_ref().unwrap().config.protocols[0].short_name(), "TCP");
    assert!(file.needs_authentication() && !file.has_users());
    let all = problems(&file);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].contains("50:7: warning: endpoint without"));
}

#[test]
fn authorization_without_users_is_refused() {
    let with = |endpoints: &str, realm: &str| {
        let file = parse(&format!(
            "<infinispan><cache-container><security><authorization/></security></cache-container><server>\
             <interfaces><interface name=\"i\"><loopback/></interface></interfaces>\
             <socket-bindings default-interface=\"i\"><socket-binding name=\"b\" port=\"11222\"/></socket-bindings>\
             <security><security-realms><security-realm name=\"r\">{realm}</security-realm></security-realms></security>\
             <endpoints socket-binding=\"b\" {endpoints}/></server></infinispan>"
        ));
        refused(&file).join("\n")
    };
    let tls = "<server-identities><ssl><keystore path=\"server.pem\"/></ssl></server-identities>";
    let users = "<properties-realm><user-properties path=\"users.properties\"/></properties-realm>";
    assert!(with("", users).contains("its endpoint names no security-realm, so no user has a role"));
    assert!(
        with("security-realm=\"r\"", tls)
            .contains("the security-realm of its endpoint has no users; add a properties-realm")
    );
    assert_eq!(with("security-realm=\"r\"", &format!("{tls}{users}")), "");
    let alone = container("<security><authorization/></security>");
    assert!(refused(&alone)[0].contains("the file has no <server>, so no user has a role"), "{alone:?}");
    let off = container("<security><authorization enabled=\"false\"/></security>");
    assert_eq!(refused(&off), [] as [String; 0]);
}

/// The cap on problems must not decide whether a server starts.
#[test]
fn file_with_more_warnings_than_are_kept_is_refused_for_one_problem() {
    let warnings = "<local-cache-configuration name=\"w\" start=\"LAZY\"/>\n";
    let warnings: String =
        (0..2 * PROBLEMS_MAX).map(|at| warnings.replace("\"w\"", &format!("\"w{at}\""))).collect();
    let file = parse(&format!(
        "<infinispan><cache-container>{warnings}</cache-container><server><interfaces><interface name=\"i\"><loopback/>\
         </interface></interfaces><socket-bindings default-interface=\"i\"><socket-binding name=\"b\" port=\"1\"/>\
         </socket-bindings><endpoints socket-binding=\"b\"><hotrod-connector/><ip-filters/></endpoints></server></infinispan>"
    ));
    let count = |severity| file.problems().iter().filter(|problem| problem.severity == severity).count();
    assert_eq!(
        (count(Severity::Warning), file.problem_count(Severity::Warning)),
        (PROBLEMS_MAX, 2 * PROBLEMS_MAX)
    );
    assert!(refused(&file)[0].contains("unknown element <ip-filters>"), "{:?}", refused(&file));
    assert!(!file.is_startable(false));
}

#[test]
fn tls_without_a_certificate_of_the_server_is_refused() {
    let with = |stores: &str| {
        let text = format!(
            "<security><security-realms><security-realm name=\"r\"><server-identities><ssl>{stores}</ssl></server-identities>\
             <properties-realm><user-properties path=\"u\"/></properties-realm></security-realm></security-realms></security>\
             <endpoints socket-binding=\"b\" security-realm=\"r\"><endpoint><hotrod-connector/></endpoint></endpoints>"
        );
        refused(&server(&text)).join("\n")
    };
    for stores in ["<truststore path=\"ca.pem\"/>", ""] {
        assert!(with(stores).contains("<ssl> without <keystore>"), "{stores}: {}", with(stores));
    }
    assert_eq!(with("<keystore path=\"server.pem\"/><truststore path=\"ca.pem\"/>"), "");
}

#[test]
fn all_problems_are_reported_with_places_and_alternatives() {
    let file = container(
        "<transport raft-members=\"a\" lock-timeout=\"5\"/>\n\
         <distributed-cache name=\"a\" owners=\"0\" l1-lifespan=\"10s\" remote-timeout=\"17s\">\n\
         <memory max-size=\"5XB\"/>\n\
         <backups><backup site=\"LON\"/></backups>\n\
         <persistence><string-keyed-jdbc-store/></persistence>\n\
         </distributed-cache>\n\
         <nonsense/>",
    );
    let all = problems(&file);
    let expected = [
        "2:12: refused: raft-members of transport: there is no Raft",
        "2:29: warning: lock-timeout of transport",
        "3:29: refused: cache `a`: owners of distributed-cache cannot be 0",
        "3:40: warning: cache `a`: l1-lifespan of distributed-cache has no effect: servers do not cache entries",
        "3:58: warning: cache `a`: remote-timeout of distributed-cache has no effect",
        "4:9: refused: cache `a`: max-size of memory cannot be 5XB",
        "5:1: refused: cache `a`: 'backups of distributed-cache' is not supported",
        "6:14: refused: cache `a`: string-keyed-jdbc-store of persistence: entries are stored in files",
        "8:1: refused: unknown element <nonsense> in <cache-container>",
    ];
    assert_eq!(all.len(), expected.len(), "{all:#?}");
    for (problem, expected) in all.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}\n{expected}");
    }
    assert!(!file.is_startable(false));
}

#[test]
fn problems_of_the_stack_have_their_places() {
    let file = parse(
        "<infinispan>\n<jgroups>\n  <stack name=\"own\" extends=\"tcp\">\n    <TCP bind_prt=\"1\"/>\n    \
         <FD_ALL3 <!-- not XML -->/></stack></jgroups></infinispan>",
    );
    assert!(
        refused(&file)[0].contains("this is not XML") || refused(&file)[0].contains("attributes"),
        "{file:?}"
    );
    let file = parse(
        "<infinispan>\n<jgroups>\n  <stack name=\"own\" extends=\"tcp\">\n    <TCP bind_prt=\"1\" bind_addr=\"${none}\"/>\n  \
         </stack>\n</jgroups>\n<cache-container><transport stack=\"own\"/></cache-container></infinispan>",
    );
    assert_eq!(refused(&file), ["4:10: unknown attribute `bind_prt` of TCP; did you mean `bind_port`?"]);
    let unknown = container("\n\n     <transport\n  stack=\"tpc\"/>");
    assert_eq!(refused(&unknown), ["5:3: no stack `tpc`; stacks: tcp, kubernetes, udp, tunnel"]);
}

#[test]
fn variables_are_replaced_and_unset_ones_are_refused() {
    let file = container(
        "<local-cache name=\"${name:c}\">\n<memory max-count=\"${set}\"/><expiration lifespan=\"${none}\"/></local-cache>",
    );
    assert_eq!(refused(&file).len(), 1, "{:?}", refused(&file));
    assert!(
        refused(&file)[0].starts_with("3:41: lifespan: variable `none` is not set"),
        "{:?}",
        refused(&file)
    );
    assert!(effective(&file).contains("c {\"local-cache\":{\"memory\":{\"max-count\":7}"));
}

#[test]
fn caches_have_the_settings_of_their_templates() {
    let file = container(
        "<distributed-cache-configuration name=\"base\" owners=\"3\"><memory max-count=\"5\"/></distributed-cache-configuration>\
         <distributed-cache-configuration name=\"next\" configuration=\"base\"><expiration lifespan=\"5\"/>\
         </distributed-cache-configuration>\
         <distributed-cache name=\"a\" configuration=\"next\" owners=\"1\" aliases=\"x\"><memory when-full=\"EXCEPTION\"/></distributed-cache>\
         <replicated-cache name=\"b\" configuration=\"org.infinispan.REPL_ASYNC\"/>",
    );
    assert_eq!(problems(&file), [] as [String; 0]);
    let text = effective(&file);
    let line = text.lines().find(|line| line.starts_with("cache") && line.contains(" a ")).unwrap();
    for part in ["\"owners\":1", "\"max-count\":5", "EXCEPTION", "\"lifespan\":5"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(text.contains("b {\"replicated-cache\":{\"mode\":\"ASYNC\""), "{text}");
    let names: Vec<&str> = file.definitions.templates.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["base", "next"]);
}

#[test]
fn caches_that_cannot_be_created_are_refused() {
    for (text, expected) in [
        ("<local-cache name=\"a\" configuration=\"none\"/>", "2:23: no template `none`"),
        ("<local-cache-configuration name=\"t\" configuration=\"t\"/>", "extends itself"),
        ("<local-cache name=\"a\"/><local-cache name=\"a\"/>", "2:24: `a` is defined more than once"),
        (
            "<local-cache name=\"a-*\"/>",
            "a name with wildcards is that of a template, as in Infinispan: write <local-cache-configuration>",
        ),
        ("<local-cache/>", "needs the attribute `name`"),
        ("<local-cache name=\"___a\"/>", "reserved"),
        ("<scattered-cache name=\"a\"/>", "scattered caches"),
        ("<local-cache name=\"a\"><memory>x</memory></local-cache>", "text within <memory>"),
        ("<local-cache name=\"a\"><memory/><memory/></local-cache>", "memory is defined more than once"),
        (
            "<local-cache-configuration name=\"t\"><memory max-count=\"5\"/></local-cache-configuration>\
             <local-cache name=\"a\" configuration=\"t\"><memory max-count=\"6\"/><memory max-count=\"7\"/></local-cache>",
            "2:128: cache `a`: cache configuration cannot be read: memory is defined more than once",
        ),
        (
            "<local-cache-configuration name=\"t\"/><local-cache name=\"a\" configuration=\"t\">x</local-cache>",
            "cache `a`: text within <local-cache>",
        ),
        (
            "<local-cache-configuration name=\"t\"><memory/></local-cache-configuration>\
             <local-cache name=\"a\" configuration=\"t\"><memory>x</memory></local-cache>",
            "cache `a`: text within <memory>",
        ),
    ] {
        let file = container(text);
        assert!(
            refused(&file).iter().any(|problem| problem.contains(expected)),
            "{text}: {:?}",
            refused(&file)
        );
    }
}

#[test]
fn settings_without_effect_are_warnings() {
    let file = container(
        "<jmx enabled=\"true\"/><metrics gauges=\"true\"/>\n\
         <local-cache name=\"a\" statistics=\"true\"><indexing storage=\"filesystem\"/>\n\
         <locking acquire-timeout=\"5\"/><transaction locking=\"PESSIMISTIC\"/><expiration interval=\"5\"/>\n\
         <persistence><file-store path=\"x\"/></persistence></local-cache>",
    );
    assert!(file.is_startable(false), "{:?}", refused(&file));
    let all = problems(&file);
    for part in [
        "jmx",
        "gauges",
        "indexing",
        "acquire-timeout",
        "locking of transaction",
        "interval",
        "path of file-store",
    ] {
        assert!(
            all.iter().any(|problem| problem.contains(part) && problem.contains("warning")),
            "{part}: {all:#?}"
        );
    }
    let harmless = container(
        "<local-cache name=\"a\" statistics=\"true\" simple-cache=\"false\" start=\"EAGER\"/><jmx enabled=\"false\"/>",
    );
    assert_eq!(problems(&harmless), [] as [String; 0]);
}

#[test]
fn indexing_that_is_not_supported_is_left_out_with_a_warning() {
    let indexing = |of: &str, name: &str| {
        container(&format!(
            "<{of} name=\"a\"><indexing {name}>\n<indexed-entities><indexed-entity>shop.Book</indexed-entity></indexed-entities></indexing></{of}>"
        ))
    };
    let (indexed, left_out) =
        (indexing("local-cache", ""), indexing("local-cache", "indexing-mode=\"manual\""));
    assert_eq!(problems(&indexed), [] as [String; 0]);
    let is_indexed = |file: &ServerFile| file.definitions().all.iter().any(|one| one.indexing.is_some());
    assert!(is_indexed(&indexed) && !is_indexed(&left_out));
    for (file, why) in [
        (left_out, "indexing-mode of indexing cannot be manual"),
        (indexing("invalidation-cache", ""), "indexing of invalidation-cache"),
    ] {
        assert!(file.is_startable(false), "{:?}", refused(&file));
        let all = problems(&file);
        assert!(
            all.len() == 1 && all[0].contains(why) && all[0].contains("queries scan all entries"),
            "{all:?}"
        );
    }
}

#[test]
fn settings_of_all_tables_are_warnings_unless_they_agree_with_the_behaviour() {
    for (element, setting, other, _) in without_effect::all() {
        let name = setting.name();
        let with = |value: &str| problems(&container(&without_effect::cache_with(element, name, value)));
        let all = with(other);
        let expected = format!("warning: cache `c`: {name} of {element} has no effect: {}", setting.why);
        assert!(all.len() == 1 && all[0].ends_with(&expected), "{name}={other}: {all:?}, not {expected}");
        for value in setting.agreeing {
            assert_eq!(with(value), [] as [String; 0], "{name} of {element}: {value}");
        }
    }
}

#[test]
fn stores_and_persistent_counters_need_a_directory() {
    let mut file = container(
        "<local-cache name=\"a\"><persistence><file-store/></persistence></local-cache>\n\
         <counters><strong-counter name=\"n\" storage=\"PERSISTENT\"/></counters>",
    );
    assert_eq!(refused(&file), [] as [String; 0]);
    file.check_without_data();
    let all = refused(&file);
    assert!(
        all.len() == 2 && all[0].contains("`a` is persistent") && all[1].contains("`counter n`"),
        "{all:?}"
    );
}

#[test]
fn counters_are_read_in_older_and_newer_forms() {
    let file = container(
        "<counters num-owners=\"2\" reliability=\"CONSISTENT\"><strong-counter name=\"a\" initial-value=\"1\"><lower-bound value=\"0\"/>\
         </strong-counter><strong-counter name=\"b\" upper-bound=\"9\"/><weak-counter name=\"c\" concurrency-level=\"4\"/></counters>",
    );
    assert_eq!(refused(&file), [] as [String; 0]);
    let text = format!("{:?}", file.definitions.counters);
    assert!(text.contains("Bounded { lower: 0, upper: 9223372036854775807 }"), "{text}");
    assert!(text.contains("upper: 9 }") && text.contains("Weak { concurrency: 4 }"), "{text}");
    for wrong in [
        "<strong-counter name=\"a\" lower-bound=\"5\"/>",
        "<strong-counter name=\"a\"/><weak-counter name=\"a\"/>",
        "<strong-counter/>",
        "<strong-counter name=\"a\" lifespan=\"5\"/>",
    ] {
        assert_eq!(refused(&container(&format!("<counters>{wrong}</counters>"))).len(), 1, "{wrong}");
    }
}

#[test]
fn default_cache_has_to_be_defined() {
    let file = parse(
        "<infinispan><cache-container default-cache=\"a\"><local-cache name=\"a\"/></cache-container></infinispan>",
    );
    assert_eq!((file.default_cache.as_deref(), refused(&file).len()), (Some("a"), 0));
    let file = parse("<infinispan><cache-container default-cache=\"a\"/></infinispan>");
    assert_eq!(refused(&file), ["1:30: default-cache: no cache `a` is defined"]);
}

#[test]
fn endpoint_has_a_port_with_offset_and_an_address_filter() {
    let file = server(
        "<endpoints socket-binding=\"b\"><endpoint><ip-filter><accept from=\"10.0.0.0/8\"/><reject from=\"0.0.0.0/0\"/></ip-filter>\
         <hotrod-connector name=\"h\" external-host=\"grid\" external-port=\"443\"/></endpoint></endpoints>",
    );
    assert_eq!(problems(&file), [] as [String; 0]);
    assert_eq!(file.address(), Some(("127.0.0.1", 11322)));
    let text = effective(&file);
    for part in ["accept 10.0.0.0/8, reject 0.0.0.0/0", "advertised host  grid", "advertised port  443"] {
        assert!(text.contains(part), "{text}");
    }
    let zero = server(
        "<endpoints socket-binding=\"b\"><endpoint><hotrod-connector external-port=\"0\"/></endpoint></endpoints>",
    );
    assert!(
        refused(&zero)[0].contains("external-port of hotrod-connector cannot be `0`"),
        "{:?}",
        refused(&zero)
    );
}

#[test]
fn filter_of_a_connector_rejects_addresses() {
    let filter = "<ip-filter><reject from=\"127.0.0.0/8\"/></ip-filter>";
    let file = server(&format!(
        "<endpoints socket-binding=\"b\"><endpoint><hotrod-connector>{filter}</hotrod-connector></endpoint></endpoints>"
    ));
    assert_eq!(problems(&file), [] as [String; 0]);
    let filter_of = |file: &ServerFile| file.endpoint.as_ref().unwrap().filter.clone();
    assert!(
        !filter_of(&file).accepts([127, 0, 0, 1].into()) && filter_of(&file).accepts([10, 0, 0, 1].into())
    );
    let second = server(&format!(
        "<endpoints socket-binding=\"b\"><endpoint>{filter}<hotrod-connector>{filter}</hotrod-connector></endpoint></endpoints>"
    ));
    assert!(refused(&second)[0].contains("a second ip-filter"), "{:?}", refused(&second));
}

/// The files with which interop tests start Infinispan's server.
#[test]
fn files_of_infinispan_servers_in_tests_are_read() {
    let variables = Variables::new()
        .with("infinispan.node.name", "A")
        .with("infinispan.bind.port", "11222")
        .with("consort.tls.port", "11223");
    let open = include_str!("../../../../interop/infinispan-server/infinispan.xml");
    let file = ServerFile::parse("i.xml", open, &variables);
    assert_eq!((refused(&file), file.address()), (Vec::new(), Some(("127.0.0.1", 11222))));
    assert_eq!(problems(&file).len(), 1, "a rest-connector: {:?}", problems(&file));
    let secured = include_str!("../../../../interop/infinispan-server/secured.xml");
    let secured = ServerFile::parse("i.xml", secured, &variables);
    let all = refused(&secured);
    assert!(all.len() == 1 && all[0].contains("a further endpoint has the security-realm"), "{all:?}");
}

#[test]
fn parts_of_a_server_without_counterpart_are_refused() {
    for (text, expected) in [
        ("<endpoints socket-binding=\"none\"/>", "no socket-binding `none`; socket-bindings: b"),
        ("<endpoints socket-binding=\"b\" security-realm=\"r\"/>", "no security realm `r`"),
        (
            "<endpoints socket-binding=\"b\"><resp-connector/></endpoints>",
            "<resp-connector>: there is no RESP protocol",
        ),
        (
            "<endpoints socket-binding=\"b\"><endpoint/><endpoint/></endpoints>",
            "a second endpoint of a socket-binding",
        ),
        (
            "<endpoints socket-binding=\"b\"><hotrod-connector><authentication><sasl mechanisms=\"SCRAM-SHA-512 DIGEST-MD5\"/>\
             </authentication></hotrod-connector></endpoints>",
            "mechanisms: the server does not have DIGEST-MD5",
        ),
        ("<endpoints socket-binding=\"b\" require-ssl-client-auth=\"true\"/>", "needs a <truststore>"),
        ("", "<server> needs <endpoints"),
        (
            "<security><security-realms><security-realm name=\"r\"><ldap-realm url=\"x\"/></security-realm></security-realms>\
             </security><endpoints socket-binding=\"b\" security-realm=\"r\"/>",
            "<ldap-realm>: there is no LDAP",
        ),
        (
            "<security><security-realms><security-realm name=\"r\"><server-identities><ssl><keystore path=\"a.p12\" type=\"BCFKS\" \
             password=\"p\"/></ssl></server-identities></security-realm></security-realms></security>\
             <endpoints socket-binding=\"b\" security-realm=\"r\"/>",
            "`BCFKS` is not read; convert it",
        ),
    ] {
        let all = refused(&server(text));
        assert!(all.iter().any(|problem| problem.contains(expected)), "{text}: {all:?}");
    }
}

#[test]
fn roles_of_a_container_have_their_permissions() {
    let file = container(
        "<security><authorization group-only-mapping=\"false\"><identity-role-mapper/>\
         <role name=\"reader\" permissions=\"ALL_READ LISTEN\"/><role name=\"all\" permissions=\"ALL\"/></authorization></security>",
    );
    let roles = file.roles.as_ref().unwrap();
    assert!(!roles.only_groups && roles.roles["all"] == Role::Admin.permissions(), "{roles:?}");
    let reader = roles.roles["reader"];
    assert!(reader.contain(crate::Permission::BulkRead) && !reader.contain(crate::Permission::Write));
    let predefined = container("<security><authorization/></security>");
    assert_eq!(predefined.roles.as_ref().unwrap().roles.len(), Role::ALL.len());
    let wrong =
        secured("<security><authorization><role name=\"r\" permissions=\"FLY\"/></authorization></security>");
    assert!(refused(&wrong)[0].contains("unknown permission `FLY`"), "{:?}", refused(&wrong));
}

#[test]
fn json_and_yaml_give_the_settings_of_xml() {
    let xml = parse(
        "<infinispan><jgroups><stack name=\"own\" extends=\"tcp\"><TCP bind_port=\"7900\"/></stack></jgroups>\
         <cache-container default-cache=\"a\"><transport stack=\"own\" cluster=\"shop\" node-name=\"${set}\"/>\
         <security><authorization><role name=\"r\" permissions=\"READ LISTEN\"/></authorization></security>\
         <distributed-cache-configuration name=\"t\" owners=\"3\"/><distributed-cache name=\"a\" configuration=\"t\" aliases=\"x y\"/>\
         <counters><strong-counter name=\"n\" initial-value=\"3\"/></counters></cache-container>\
         <server><interfaces><interface name=\"i\"><inet-address value=\"127.0.0.1\"/></interface></interfaces>\
         <socket-bindings default-interface=\"i\" port-offset=\"1\"><socket-binding name=\"b\" port=\"100\"/></socket-bindings>\
         <security><security-realms><security-realm name=\"r\"><properties-realm><user-properties path=\"u\"/></properties-realm>\
         </security-realm></security-realms></security><endpoints socket-binding=\"b\" security-realm=\"r\"><endpoint>\
         <hotrod-connector name=\"h\"><authentication><sasl mechanisms=\"SCRAM-SHA-256 PLAIN\"/></authentication></hotrod-connector>\
         </endpoint></endpoints></server></infinispan>",
    );
    let json = parse(
        r#"{"infinispan": {"jgroups": {"stacks": {"own": {"stack": {"extends": "tcp", "TCP": {"bind_port": 7900}}}}},
        "cache-container": {"default-cache": "a", "transport": {"stack": "own", "cluster": "shop", "node-name": "${set}"},
        "security": {"authorization": {"roles": {"r": {"permissions": ["READ", "LISTEN"]}}}},
        "caches": {"t": {"distributed-cache-configuration": {"owners": 3}},
        "a": {"distributed-cache": {"configuration": "t", "aliases": ["x", "y"]}}},
        "counters": {"n": {"strong-counter": {"initial-value": 3}}}},
        "server": {"interfaces": [{"name": "i", "inet-address": {"value": "127.0.0.1"}}],
        "socket-bindings": {"default-interface": "i", "port-offset": 1, "socket-binding": [{"name": "b", "port": 100}]},
        "security": {"security-realms": [{"name": "r", "properties-realm": {"user-properties": {"path": "u"}}}]},
        "endpoints": {"endpoint": {"socket-binding": "b", "security-realm": "r", "connectors": {"h": {"hotrod-connector":
        {"authentication": {"sasl": {"mechanisms": ["SCRAM-SHA-256", "PLAIN"]}}}}}}}}}}"#,
    );
    let yaml = parse(
        "infinispan:\n  jgroups:\n    stacks:\n      own:\n        stack:\n          extends: tcp\n          TCP:\n            bindPort: 7900\n  \
         cacheContainer:\n    defaultCache: a\n    transport:\n      stack: own\n      cluster: shop\n      nodeName: ${set}\n    \
         security:\n      authorization:\n        roles:\n          r:\n            permissions:\n              - READ\n              \
         - LISTEN\n    caches:\n      t:\n        distributedCacheConfiguration:\n          owners: 3\n      a:\n        \
         distributedCache:\n          configuration: t\n          aliases: [x, y]\n    counters:\n      n:\n        strongCounter:\n          \
         initialValue: 3\n  server:\n    interfaces:\n      - name: i\n        inetAddress:\n          value: 127.0.0.1\n    \
         socketBindings:\n      defaultInterface: i\n      portOffset: 1\n      socketBinding:\n        - name: b\n          port: 100\n    \
         security:\n      securityRealms:\n        - name: r\n          propertiesRealm:\n            userProperties:\n              path: u\n    \
         endpoints:\n      - socketBinding: b\n        securityRealm: r\n        hotrodConnector:\n          authentication:\n            \
         sasl:\n              mechanisms: SCRAM-SHA-256 PLAIN\n",
    );
    assert_eq!(problems(&xml), [] as [String; 0]);
    for other in [&json, &yaml] {
        assert_eq!(problems(other), [] as [String; 0]);
        assert_eq!(effective(other), effective(&xml));
        let stack = |file: &ServerFile| {
            file.cluster().unwrap().stack.as_ref().unwrap().config.protocols[0]
                .get("bind_port")
                .map(str::to_owned)
        };
        assert_eq!((stack(other), stack(other)), (stack(&xml), Some("7900".to_owned())));
    }
}

#[test]
fn problems_in_yaml_have_their_places() {
    let file = parse(
        "infinispan:\n  cacheContainer:\n    jmx:\n      enabled: true\n    caches:\n      a:\n        localCache:\n          memory:\n            \
         maxSize: 5XB\n    nonsense: 1\n",
    );
    let all = problems(&file);
    assert!(all[0].starts_with("3:5: warning: jmx"), "{all:#?}");
    assert!(all[1].starts_with("9:13: refused: cache `a`: max-size of memory cannot be 5XB"), "{all:#?}");
    assert!(all[2].starts_with("10:5: refused: unknown attribute `nonsense` of cache-container"), "{all:#?}");
    for (text, expected) in [
        ("infinispan:\n  a: &x 1\n  b: *x\n", "3:6: aliases"),
        ("infinispan:\n  a: 1\n  a: 2\n", "3:3: `a` is defined more than once"),
        ("infinispan: [", "neither JSON nor YAML"),
        ("just text", "1:1: a text where an object"),
        ("infinispan: {}\n---\ninfinispan: {}\n", "second document"),
        ("infinispan: [[1]]", "a list where an object"),
        ("infinispan: {a: [1, {}]}", "either texts or objects"),
    ] {
        assert!(
            refused(&parse(text)).iter().any(|problem| problem.contains(expected)),
            "{text}: {:?}",
            refused(&parse(text))
        );
    }
    let deep = format!("infinispan: {}1{}", "{a: ".repeat(NESTING_MAX), "}".repeat(NESTING_MAX));
    assert!(refused(&parse(&deep))[0].contains("nested deeper"));
    assert!(
        is_server_file("infinispan:\n  server:\n")
            && is_server_file("{\"infinispan\": {}}")
            && !is_server_file("caches:\n")
    );
}

#[test]
fn caches_have_roles_of_their_own() {
    let roles = "<security><authorization><role name=\"r\" permissions=\"READ\"/><role name=\"w\" permissions=\"ALL\"/>\
                 </authorization></security>";
    let file = secured(&format!(
        "{roles}<local-cache name=\"open\"/><local-cache name=\"all\"><security><authorization/></security></local-cache>\
         <local-cache name=\"few\"><security><authorization roles=\"r\"/></security></local-cache>"
    ));
    assert_eq!(problems(&file), [] as [String; 0]);
    let settings = file.roles.as_ref().unwrap();
    let of = |own: &[&str]| cache_roles::permissions(&file.access, &own.iter().copied().collect(), settings);
    let (none, reader, writer) = (of(&[]), of(&["r"]), of(&["w"]));
    use crate::Permission::{Create, Read, Write};
    assert!(none["open"].contain(Write) && !none["open"].contain(Create) && !none["few"].contain(Read));
    assert!(reader["few"].contain(Read) && !reader["few"].contain(Write) && !writer["few"].contain(Read));
    assert!(!reader.contains_key("all"), "the user's permissions apply");
    let few = "<local-cache name=\"few\"><security><authorization roles=\"r x\"/></security></local-cache>";
    assert!(refused(&secured(few))[0].contains("needs <security><authorization> in the container"));
    assert!(refused(&secured(&format!("{roles}{few}")))[0].contains("the container has no role `x`"));
}

#[test]
fn files_are_bounded() {
    let deep = format!("<infinispan>{}", "<a>".repeat(NESTING_MAX + 1));
    assert!(refused(&parse(&deep))[0].contains("nested deeper"), "{:?}", refused(&parse(&deep)));
    let wide =
        format!("<infinispan {}/>", (0..=PARTS_MAX).map(|at| format!("a{at}=\"\" ")).collect::<String>());
    assert!(refused(&parse(&wide))[0].contains("more than"));
    let long = format!("<infinispan>{}</infinispan>", " ".repeat(FILE_BYTES_MAX));
    assert!(refused(&parse(&long))[0].contains("the limit is"));
    let many = container(&"<x/>\n".repeat(10 * PROBLEMS_MAX));
    assert_eq!(many.problems().len(), PROBLEMS_MAX);
    assert_eq!(many.problem_count(Severity::Refused), 10 * PROBLEMS_MAX);
}

#[test]
fn text_that_is_no_server_file_is_refused() {
    for (text, expected) in [
        ("", "one object `infinispan` was expected"),
        ("<!-- x -->", "the file has no element"),
        ("<config/>", "<config> where <infinispan> was expected"),
        ("<infinispan>", "ends within an element"),
        ("<infinispan/>", "the file has no <cache-container>"),
        ("<infinispan><cache-container/></infinispan><x/>", "second outermost"),
        ("<infinispan a='1' a='2'/>", "attributes"),
    ] {
        let all = refused(&parse(text));
        assert!(all.iter().any(|problem| problem.contains(expected)), "{text}: {all:?}");
    }
    assert!(is_server_file("\u{feff}<infinispan/>") && !is_server_file("<config/>") && !is_server_file("x"));
}
