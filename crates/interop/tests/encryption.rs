//! Java and Consort members in one cluster whose messages are encrypted, or whose members authenticate each other.

use consort_interop::cluster::{earlier_multicasts_came, everybody_multicasts, exit, same_view, two_and_two};
use consort_interop::{Kind, Setting, in_own_network};
use serde_json::json;

/// Key stores by Java 17. All have the same key under the same alias.
const STORES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../keystore/tests/data");

/// The place of the encryption: below the layers that retransmit.
const ABOVE: &str = "<pbcast.NAKACK2";

fn encrypted(store: &str, kind: &str, cipher: &str) -> Setting {
    let layer = format!(
        "<SYM_ENCRYPT keystore_name=\"{STORES}/{store}\" keystore_type=\"{kind}\" store_password=\"changeit\" \
         alias=\"myKey\" {cipher}/>{ABOVE}"
    );
    Setting::edited("tcp.xml", &[(ABOVE, &layer)])
}

const CBC: &str = "sym_algorithm=\"AES/CBC/PKCS5Padding\" sym_iv_length=\"16\"";

/// Multicasts, unicasts, RPC and state between both kinds of members, and a coordinator's crash and leave.
async fn encrypted_cluster(setting: &Setting, java_first: bool) {
    let mut members = two_and_two(setting, java_first).await;
    for size in [1, 1_000, 100_000] {
        everybody_multicasts(&mut members, 200, size).await;
    }
    for at in 0..2 {
        let (own, other) = (members[at].name().to_owned(), members[1 - at].name().to_owned());
        let answer = members[at].run(&format!("rpc {other} hello 10000")).await;
        assert_eq!(answer, json!({ other.clone(): format!("hello@{other}") }), "from {own}");
        members[1 - at].run("reset").await;
        members[at].run(&format!("send 100 100 to {other} oob")).await;
        let seen = members[1 - at].run(&format!("expect {own} 100 20000")).await;
        assert_eq!(seen["received"], 100, "OOB from {own} to {other}");
    }
    members[0].run("state set of-A").await;
    assert_eq!(members[1].run("state fetch").await, json!({ "state": "of-A" }));
    members[1].run("state set of-B").await;
    assert_eq!(members[0].run("state fetch B").await, json!({ "state": "of-B" }));
    members.remove(0).kill();
    same_view(&mut members, "(3) [B, C, D]").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    members.remove(0).exit().await;
    same_view(&mut members, "(2) [C, D]").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    exit(members).await;
}

/// S000-90: the key is in a PKCS#12 store.
#[test]
fn encrypted_with_a_pkcs12_key_and_a_java_coordinator() {
    in_own_network("encrypted_with_a_pkcs12_key_and_a_java_coordinator", async {
        encrypted_cluster(&encrypted("aes.p12", "PKCS12", CBC), true).await;
    });
}

/// The key is in a JCEKS store, which is JGroups' default.
#[test]
fn encrypted_with_a_jceks_key_and_a_consort_coordinator() {
    in_own_network("encrypted_with_a_jceks_key_and_a_consort_coordinator", async {
        encrypted_cluster(&encrypted("aes.jceks", "JCEKS", CBC), false).await;
    });
}

/// JGroups' default cipher, AES alone.
#[test]
fn encrypted_with_the_default_cipher() {
    in_own_network("encrypted_with_the_default_cipher", async {
        encrypted_cluster(&encrypted("aes.p12", "PKCS12", ""), true).await;
    });
}

/// S000-57: members of either kind without the key, or with another one, stay alone.
#[test]
fn a_member_without_the_key_stays_alone() {
    in_own_network("a_member_without_the_key_stays_alone", async {
        let setting = encrypted("aes.p12", "PKCS12", CBC);
        let mut members = vec![setting.java("A").await, setting.consort("B").await];
        same_view(&mut members, "(2) [A, B]").await;
        // A join that is not answered ends soon.
        let soon = ("<pbcast.GMS", "<pbcast.GMS max_join_attempts=\"1\"");
        let other_key = encrypted("aes.p12", "PKCS12", CBC);
        let text = std::fs::read_to_string(&other_key.config).expect("the stack");
        std::fs::write(&other_key.config, text.replace(soon.0, soon.1).replace("\"myKey\"", "\"second\""))
            .expect("written");
        for strange in [Setting::edited("tcp.xml", &[soon]), other_key] {
            let strange = Setting {
                cluster: setting.cluster.clone(),
                properties: setting.properties.clone(),
                ..strange
            };
            let mut rogues = vec![strange.consort("R").await];
            same_view(&mut rogues, "(1) [R]").await;
            let mut java = vec![strange.java("J").await];
            same_view(&mut java, "(").await;
            let view = java[0].view().await;
            assert!(!view.contains('A') && !view.contains('B'), "{view}");
            same_view(&mut members, "(2) [A, B]").await;
            everybody_multicasts(&mut members, 100, 100).await;
            exit(rogues).await;
            exit(java).await;
        }
        exit(members).await;
    });
}

fn asymmetric(attributes: &str) -> Setting {
    let layer = format!("<ASYM_ENCRYPT {attributes}/>{ABOVE}");
    Setting::edited("tcp.xml", &[(ABOVE, &layer)])
}

/// The key changes with the crash of the coordinator, and with each leave.
#[test]
fn a_key_of_a_java_coordinator_reaches_all_members() {
    in_own_network("a_key_of_a_java_coordinator_reaches_all_members", async {
        let attributes = format!("{CBC} sym_keylength=\"256\" change_key_on_leave=\"true\"");
        encrypted_cluster(&asymmetric(&attributes), true).await;
    });
}

#[test]
fn a_key_of_a_consort_coordinator_reaches_all_members() {
    in_own_network("a_key_of_a_consort_coordinator_reaches_all_members", async {
        let attributes = format!("{CBC} change_key_on_leave=\"true\"");
        encrypted_cluster(&asymmetric(&attributes), false).await;
    });
}

/// With JGroups' defaults: AES alone, and the key stays when a member leaves that is not the coordinator.
#[test]
fn keys_are_exchanged_with_the_default_attributes() {
    in_own_network("keys_are_exchanged_with_the_default_attributes", async {
        encrypted_cluster(&asymmetric(""), true).await;
    });
}

/// Members fetch the key from the coordinator over TLS. All have one certificate of an authority that they trust.
fn with_ssl_key_exchange() -> String {
    format!(
        "<SSL_KEY_EXCHANGE keystore_name=\"{STORES}/certificates.p12\" truststore_name=\"{STORES}/trusted.p12\"/>\
         <ASYM_ENCRYPT {CBC} use_external_key_exchange=\"true\" change_key_on_leave=\"true\"/>{ABOVE}"
    )
}

#[test]
fn a_key_over_tls_of_a_java_coordinator_reaches_all_members() {
    in_own_network("a_key_over_tls_of_a_java_coordinator_reaches_all_members", async {
        encrypted_cluster(&Setting::edited("tcp.xml", &[(ABOVE, &with_ssl_key_exchange())]), true).await;
    });
}

#[test]
fn a_key_over_tls_of_a_consort_coordinator_reaches_all_members() {
    in_own_network("a_key_over_tls_of_a_consort_coordinator_reaches_all_members", async {
        encrypted_cluster(&Setting::edited("tcp.xml", &[(ABOVE, &with_ssl_key_exchange())]), false).await;
    });
}

/// As in JGroups' `asym-ssl.xml`: one store of all members, whose certificate has no authority, and the key stays when a
/// member leaves that is not the coordinator.
#[test]
fn a_key_over_tls_with_one_self_signed_certificate_reaches_all_members() {
    in_own_network("a_key_over_tls_with_one_self_signed_certificate_reaches_all_members", async {
        let layer = format!(
            "<SSL_KEY_EXCHANGE keystore_name=\"{STORES}/self-signed.p12\" port_range=\"10\"/>\
             <ASYM_ENCRYPT {CBC} use_external_key_exchange=\"true\"/>{ABOVE}"
        );
        encrypted_cluster(&Setting::edited("tcp.xml", &[(ABOVE, &layer)]), true).await;
    });
}

fn with_dh_key_exchange() -> String {
    format!(
        "<DH_KEY_EXCHANGE/><ASYM_ENCRYPT {CBC} sym_keylength=\"256\" use_external_key_exchange=\"true\" \
         change_key_on_leave=\"true\"/>{ABOVE}"
    )
}

#[test]
fn a_key_by_diffie_hellman_of_a_java_coordinator_reaches_all_members() {
    in_own_network("a_key_by_diffie_hellman_of_a_java_coordinator_reaches_all_members", async {
        encrypted_cluster(&Setting::edited("tcp.xml", &[(ABOVE, &with_dh_key_exchange())]), true).await;
    });
}

#[test]
fn a_key_by_diffie_hellman_of_a_consort_coordinator_reaches_all_members() {
    in_own_network("a_key_by_diffie_hellman_of_a_consort_coordinator_reaches_all_members", async {
        encrypted_cluster(&Setting::edited("tcp.xml", &[(ABOVE, &with_dh_key_exchange())]), false).await;
    });
}

fn built_in() -> String {
    format!("<ASYM_ENCRYPT {CBC} change_key_on_leave=\"true\"/>{ABOVE}")
}

/// Two groups with coordinators of different kinds, and a key each, merge and get a common key.
async fn groups_merge(layer: String, java_first: bool) {
    let setting = Setting::edited(
        "tcp.xml",
        &[
            (ABOVE, &layer),
            ("<FD_ALL3 timeout=\"40s\" interval=\"5s\" />", "<FD_ALL3 timeout=\"3s\" interval=\"500ms\" />"),
            ("min_interval=\"10s\"", "min_interval=\"1s\""),
            ("max_interval=\"30s\"", "max_interval=\"3s\" check_interval=\"4s\""),
        ],
    );
    let mut members = two_and_two(&setting, java_first).await;
    // A and B are of different kinds, and so are the members of their groups.
    members.swap(1, 3);
    for (member, ignored) in [(0, "B C"), (1, "B C"), (2, "A D"), (3, "A D")] {
        members[member].run(&format!("ignore {ignored}")).await;
    }
    same_view(&mut members[..2], "(2) [A, D]").await;
    same_view(&mut members[2..], "(2) [B, C]").await;
    everybody_multicasts(&mut members[..2], 100, 100).await;
    everybody_multicasts(&mut members[2..], 100, 100).await;
    for member in &mut members {
        member.run("ignore none").await;
    }
    same_view(&mut members, "(4) [").await;
    earlier_multicasts_came(&mut members).await;
    everybody_multicasts(&mut members, 500, 1_000).await;
    exit(members).await;
}

#[test]
fn groups_with_a_java_coordinator_of_the_whole_merge() {
    in_own_network("groups_with_a_java_coordinator_of_the_whole_merge", groups_merge(built_in(), true));
}

#[test]
fn groups_with_keys_over_tls_and_a_java_coordinator_merge() {
    let merge = groups_merge(with_ssl_key_exchange(), true);
    in_own_network("groups_with_keys_over_tls_and_a_java_coordinator_merge", merge);
}

#[test]
fn groups_with_keys_over_tls_and_a_consort_coordinator_merge() {
    let merge = groups_merge(with_ssl_key_exchange(), false);
    in_own_network("groups_with_keys_over_tls_and_a_consort_coordinator_merge", merge);
}

#[test]
fn groups_with_a_consort_coordinator_of_the_whole_merge() {
    in_own_network("groups_with_a_consort_coordinator_of_the_whole_merge", groups_merge(built_in(), false));
}

/// S000-57: a coordinator by JGroups would make a member without public key a member that reads nothing.
#[test]
fn a_member_without_a_public_key_stays_alone() {
    in_own_network("a_member_without_a_public_key_stays_alone", async {
        let setting = asymmetric(CBC);
        let mut members = vec![setting.consort("A").await, setting.java("B").await];
        same_view(&mut members, "(2) [A, B]").await;
        let soon = ("<pbcast.GMS", "<pbcast.GMS max_join_attempts=\"1\"");
        let plain = Setting {
            cluster: setting.cluster.clone(),
            properties: setting.properties.clone(),
            ..Setting::edited("tcp.xml", &[soon])
        };
        let mut rogues = vec![plain.consort("R").await];
        same_view(&mut rogues, "(1) [R]").await;
        same_view(&mut members, "(2) [A, B]").await;
        everybody_multicasts(&mut members, 100, 100).await;
        exit(rogues).await;
        exit(members).await;
    });
}

/// Members at listed ports form a cluster. Members of either kind at another port are refused with the reason.
async fn authenticated_cluster(token: &str, java_first: bool) {
    let layer = format!("<AUTH {token}/><pbcast.GMS");
    let setting = Setting::edited("tcp.xml", &[("<pbcast.GMS", &layer)]);
    let mut members = two_and_two(&setting, java_first).await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    for kind in [Kind::Java, Kind::Consort] {
        let why = setting.refused(kind, "R").await;
        assert!(kind == Kind::Java || why.contains("authentication failed"), "{kind:?}: {why}");
        same_view(&mut members, "(4) [A, B, C, D]").await;
    }
    exit(members).await;
}

/// Java's members match no `\d`, so the pattern has `[0-9]`.
#[test]
fn a_regular_expression_admits_and_refuses_with_a_java_coordinator() {
    in_own_network("a_regular_expression_admits_and_refuses_with_a_java_coordinator", async {
        let token = "auth_class=\"org.jgroups.auth.RegexMembership\" \
                     auth_token.match_string=\"127\\.0\\.0\\.[0-9]{1,3}:780[0-3]\"";
        authenticated_cluster(token, true).await;
    });
}

#[test]
fn a_fixed_membership_admits_and_refuses_with_a_consort_coordinator() {
    in_own_network("a_fixed_membership_admits_and_refuses_with_a_consort_coordinator", async {
        let token = "auth_class=\"org.jgroups.auth.FixedMembershipToken\" auth_token.fixed_members_value=\"\
                     127.0.0.1/7800,127.0.0.1/7801,127.0.0.1/7802,127.0.0.1/7803\"";
        authenticated_cluster(token, false).await;
    });
}

/// X509Token with the private key of a store, and JGroups' value.
fn certified(store: &str, value: &str) -> Setting {
    let layer = format!(
        "<AUTH auth_class=\"org.jgroups.auth.X509Token\" auth_token.keystore_path=\"{STORES}/{store}\" \
         auth_token.keystore_password=\"changeit\" auth_token.cert_alias=\"members\" \
         auth_token.auth_value=\"{value}\"/><pbcast.GMS"
    );
    Setting::edited("tcp.xml", &[("<pbcast.GMS", &layer)])
}

/// Members of both kinds with the same private key and value form a cluster, and those with another one do not join it.
async fn certified_cluster(store: &str, attributes: &str, java_first: bool) {
    let with_attributes = |store, value| {
        let mut setting = certified(store, value);
        let text = std::fs::read_to_string(&setting.config).expect("a configuration");
        std::fs::write(&setting.config, text.replace("<AUTH ", &format!("<AUTH {attributes} ")))
            .expect("written");
        setting.cluster = format!("certified-{java_first}");
        setting
    };
    let mut members = two_and_two(&with_attributes(store, "chris"), java_first).await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    for other in [certified("rogue.p12", "chris"), with_attributes(store, "bela")] {
        let other = Setting { cluster: format!("certified-{java_first}"), ..other };
        for kind in [Kind::Java, Kind::Consort] {
            let why = other.refused(kind, "R").await;
            assert!(kind == Kind::Java || why.contains("authentication failed"), "{kind:?}: {why}");
            same_view(&mut members, "(4) [A, B, C, D]").await;
        }
    }
    exit(members).await;
}

#[test]
fn a_certificate_in_a_jks_store_admits_and_refuses_with_a_java_coordinator() {
    in_own_network("a_certificate_in_a_jks_store_admits_and_refuses_with_a_java_coordinator", async {
        certified_cluster("members.jks", "auth_token.cert_password=\"members\"", true).await;
    });
}

#[test]
fn a_certificate_in_a_pkcs12_store_admits_and_refuses_with_a_consort_coordinator() {
    in_own_network("a_certificate_in_a_pkcs12_store_admits_and_refuses_with_a_consort_coordinator", async {
        certified_cluster("members.p12", "auth_token.keystore_type=\"PKCS12\"", false).await;
    });
}
