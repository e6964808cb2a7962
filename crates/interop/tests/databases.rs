//! Members that find each other through the rows of a PostgreSQL database (JDBC_PING2).

use std::os::unix::fs::PermissionsExt;

use consort_interop::cluster::{everybody_multicasts, exit, same_view};
use consort_interop::postgres::{DATABASE, DATABASE_USER, Postgres};
use consort_interop::{Member, Setting, eventually, in_own_network};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

const PORT: u16 = 5432;

/// Members that have formed two clusters find each other at the next interval of MERGE3.
const MERGED_SOON: [(&str, &str); 2] = [
    ("min_interval=\"10s\"", "min_interval=\"1s\""),
    ("max_interval=\"30s\"", "max_interval=\"3s\" check_interval=\"4s\""),
];

/// Stock TCP with JDBC_PING2 by this URL, login and further attributes.
fn setting(url: &str, (user, password): (&str, &str), attributes: &str) -> Setting {
    let jdbc_ping = format!(
        "<JDBC_PING2 connection_driver=\"org.postgresql.Driver\" connection_url=\"{url}\" \
         connection_username=\"{user}\" connection_password=\"{password}\" {attributes}"
    );
    let found_through_rows = [
        ("<TCPPING", &*jdbc_ping),
        ("initial_hosts=\"${jgroups.tcpping.initial_hosts:localhost[7800]}\"", ""),
        ("port_range=\"${jgroups.tcp.port_range:2}\"/>", "/>"),
    ];
    Setting::edited("tcp.xml", &[&found_through_rows[..], &MERGED_SOON].concat())
}

/// Returns the names of the members that have rows, that of the coordinator with an asterisk.
fn rows(server: &Postgres, setting: &Setting) -> String {
    let statement = format!(
        "SELECT string_agg(name || CASE WHEN coord THEN '*' ELSE '' END, ' ' ORDER BY name) FROM jgroups \
         WHERE cluster = '{}' AND address ~ '^uuid://[0-9a-f-]{{36}}$' AND ip ~ '^127.0.0.1:78[0-9][0-9]$'",
        setting.cluster
    );
    server.query(DATABASE, &statement)
}

async fn until_rows(server: &Postgres, setting: &Setting, wanted: &str) {
    eventually(&format!("rows {wanted}"), async || rows(server, setting) == wanted).await;
}

async fn start(setting: &Setting, name: &str, is_java: bool) -> Member {
    if is_java { setting.java(name).await } else { setting.consort(name).await }
}

/// Each kind reads the rows that the other kind writes: at a join, after a leave and after a kill of the coordinator.
async fn both_kinds(java_first: bool) {
    let server = Postgres::start(PORT, "").await;
    let setting = setting(&server.url(), DATABASE_USER, "remove_all_data_on_view_change=\"true\"");
    let mut members = Vec::new();
    for (name, is_java) in [("A", java_first), ("B", !java_first), ("C", java_first), ("D", !java_first)] {
        members.push(start(&setting, name, is_java).await);
    }
    same_view(&mut members, "(4) [A, B, C, D]").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    until_rows(&server, &setting, "A* B C D").await;
    members.remove(0).exit().await;
    same_view(&mut members, "(3) [B, C, D]").await;
    until_rows(&server, &setting, "B* C D").await;
    members.push(start(&setting, "E", java_first).await);
    same_view(&mut members, "(4) [B, C, D, E]").await;
    members.remove(0).kill();
    same_view(&mut members, "(3) [C, D, E]").await;
    until_rows(&server, &setting, "C* D E").await;
    members.push(start(&setting, "F", !java_first).await);
    same_view(&mut members, "(4) [C, D, E, F]").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    until_rows(&server, &setting, "C* D E F").await;
    exit(members).await;
    until_rows(&server, &setting, "").await;
}

#[test]
fn rows_with_a_java_coordinator() {
    in_own_network("rows_with_a_java_coordinator", both_kinds(true));
}

#[test]
fn rows_with_a_consort_coordinator() {
    in_own_network("rows_with_a_consort_coordinator", both_kinds(false));
}

/// The row of the killed coordinator names the address at which the new process listens.
async fn restarted_coordinator() {
    let server = Postgres::start(PORT, "").await;
    for attributes in
        ["", "remove_all_data_on_view_change=\"true\"", "remove_old_coords_on_view_change=\"true\""]
    {
        let setting = setting(&server.url(), DATABASE_USER, attributes);
        let mut members = Vec::new();
        for name in ["A", "B", "C"] {
            members.push(setting.consort(name).await);
        }
        same_view(&mut members, "(3) [A, B, C]").await;
        members.remove(0).kill();
        members.push(setting.consort("A").await);
        same_view(&mut members, "(3) [B, C, A]").await;
        let text = members[0].view().await;
        assert!(!text.starts_with("MergeView"), "{attributes}: {text}");
        exit(members).await;
    }
}

#[test]
fn killed_coordinator_that_starts_again_at_its_address_joins_the_others_through_rows() {
    in_own_network(
        "killed_coordinator_that_starts_again_at_its_address_joins_the_others_through_rows",
        restarted_coordinator(),
    );
}

async fn until_log(member: &Member, wanted: &str) {
    eventually(&format!("{wanted} in {}", member.log_text()), async || member.log_text().contains(wanted))
        .await;
    assert!(!member.log_text().contains(DATABASE_USER.1), "the log has the password: {}", member.log_text());
}

/// Members that are together stay together while the database is down, and those that started meanwhile join by a merge.
async fn unreachable() {
    let mut server = Postgres::start(PORT, "").await;
    let setting = setting(&server.url(), DATABASE_USER, "");
    let mut members = vec![setting.consort("A").await, setting.consort("B").await];
    same_view(&mut members, "(2) [A, B]").await;
    server.stop();
    let alone = setting.consort("C").await;
    until_log(&alone, "start the database, or correct connection_url").await;
    until_log(&alone, "a join has found no member").await;
    assert!(members[0].view().await.contains("(2) [A, B]"));
    server.resume().await;
    members.push(alone);
    same_view(&mut members, "(3) [").await;
    everybody_multicasts(&mut members, 100, 1_000).await;
    exit(members).await;
}

#[test]
fn members_stay_together_without_the_database_and_find_others_once_it_works() {
    in_own_network("members_stay_together_without_the_database_and_find_others_once_it_works", unreachable());
}

/// Each cause has a warning that names the remedy.
async fn refusals() {
    let server = Postgres::start(PORT, "").await;
    let (user, _) = DATABASE_USER;
    server.query("postgres", "CREATE DATABASE other");
    server.query("other", "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    server.query("postgres", "CREATE USER reader PASSWORD 'geheim'");
    server.query(
        DATABASE,
        "CREATE TABLE IF NOT EXISTS jgroups (address varchar(200) NOT NULL, name varchar(200), \
        cluster varchar(200) NOT NULL, ip varchar(200) NOT NULL, coord boolean, PRIMARY KEY (address))",
    );
    server
        .query(DATABASE, &format!("ALTER TABLE jgroups OWNER TO {user}; GRANT SELECT ON jgroups TO reader"));
    let of_database = |name: &str| server.url().replace(DATABASE, name);
    let read_only = server.url() + "?options=-c%20default_transaction_read_only=on";
    for (url, login, attributes, wanted) in [
        (server.url(), (user, "wrong"), "", "correct connection_username and connection_password"),
        (
            of_database("missing"),
            DATABASE_USER,
            "",
            "create the database, or correct its name in connection_url",
        ),
        (of_database("other"), DATABASE_USER, "", "initialize_sql has failed: permission denied"),
        (of_database("other"), DATABASE_USER, "initialize_sql=\"\"", "initialize_sql is empty"),
        (server.url(), ("reader", "geheim"), "", "grant the user SELECT, INSERT and DELETE"),
        (read_only.clone(), DATABASE_USER, "", "name the primary server in connection_url"),
        (
            read_only + "&amp;targetServerType=primary",
            DATABASE_USER,
            "",
            "no server of connection_url takes writes",
        ),
    ] {
        let member = setting(&url, login, attributes).consort("A").await;
        until_log(&member, wanted).await;
        member.exit().await;
    }
}

#[test]
fn each_failure_of_the_database_is_a_warning_with_its_remedy() {
    in_own_network("each_failure_of_the_database_is_a_warning_with_its_remedy", refusals());
}

/// A procedure in place of a deletion and an insertion, and a table in a schema of its own with other columns.
async fn own_statements() {
    let server = Postgres::start(PORT, "").await;
    let procedure = "insert_sp=\"CREATE PROCEDURE deleteAndInsert(addr varchar(200), name varchar(200), cluster varchar(200), \
        ip varchar(200), coord boolean) LANGUAGE SQL BEGIN ATOMIC DELETE from jgroups where address = addr; \
        INSERT INTO jgroups VALUES(addr, name, cluster, ip, coord); END\" \
        call_insert_sp=\"call deleteAndInsert(?,?,?,?,?);\"";
    let by_procedure = setting(&server.url(), DATABASE_USER, procedure);
    let mut members = vec![by_procedure.java("A").await, by_procedure.consort("B").await];
    same_view(&mut members, "(2) [A, B]").await;
    members.remove(0).exit().await;
    until_rows(&server, &by_procedure, "B*").await;
    exit(members).await;

    let (user, _) = DATABASE_USER;
    server.query(DATABASE, &format!("CREATE SCHEMA own AUTHORIZATION {user}"));
    let own = "initialize_sql=\"CREATE TABLE place (id text PRIMARY KEY, called text, grp text, spot text, lead char(1))\" \
        insert_single_sql=\"INSERT INTO place SELECT ?, ?, ?, ?, CASE WHEN ? THEN 'Y' ELSE 'N' END\" \
        delete_single_sql=\"DELETE FROM place WHERE id = ?\" \
        select_all_pingdata_sql=\"SELECT id, called, spot, lead FROM place WHERE grp = ?\"";
    let own = setting(&(server.url() + "?currentSchema=own"), DATABASE_USER, own);
    let mut members = vec![own.consort("A").await, own.consort("B").await];
    same_view(&mut members, "(2) [A, B]").await;
    let statement = "SELECT string_agg(called || lead, ' ' ORDER BY called) FROM own.place";
    eventually("rows of own columns", async || server.query(DATABASE, statement) == "AY BN").await;
    exit(members).await;
}

#[test]
fn own_statements_and_a_stored_procedure_replace_the_stock_ones() {
    in_own_network("own_statements_and_a_stored_procedure_replace_the_stock_ones", own_statements());
}

async fn over_tls() {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let mut server = Postgres::start(PORT, "").await;
    let data = server.directory().join("data");
    let roots = server.directory().join("ca.pem");
    std::fs::write(&roots, authority).expect("written");
    let roots = roots.display();
    // The server has a certificate, and no certificate of this host at first.
    for (name, modes) in [("db.example", &["require", "verify-ca"][..]), ("127.0.0.1", &["verify-full"])] {
        let params = CertificateParams::new(vec![name.to_owned()]).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        std::fs::write(data.join("server.crt"), certificate.pem()).expect("written");
        let file = data.join("server.key");
        std::fs::write(&file, key.serialize_pem()).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("its permissions");
        server.query("postgres", "ALTER SYSTEM SET ssl = on");
        server.stop();
        server.resume().await;
        for mode in modes {
            let url = format!("{}?sslmode={mode}&amp;sslrootcert={roots}", server.url());
            let encrypted = setting(&url, DATABASE_USER, "");
            let member = encrypted.consort("A").await;
            until_rows(&server, &encrypted, "A*").await;
            member.exit().await;
        }
        if name == "db.example" {
            let url = format!("{}?sslmode=verify-full&amp;sslrootcert={roots}", server.url());
            let member = setting(&url, DATABASE_USER, "").consort("A").await;
            until_log(&member, "certificate not valid for name").await;
            member.exit().await;
            // The system's authorities have not signed it.
            let url = format!("{}?sslmode=verify-ca", server.url());
            let member = setting(&url, DATABASE_USER, "").consort("A").await;
            until_log(&member, "a join has found no member").await;
            member.exit().await;
        }
    }
}

#[test]
fn database_over_tls_is_checked_as_the_mode_says() {
    in_own_network("database_over_tls_is_checked_as_the_mode_says", over_tls());
}
