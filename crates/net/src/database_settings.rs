//! Settings of a database, for tests.

use consort_group::config::{Password, Property};
use consort_group::database::{DatabaseSettings, JdbcUrl, SqlStatement};

/// Settings with JDBC_PING2's statements. `url` follows `jdbc:postgresql://`.
pub(crate) fn database_settings(url: &str) -> DatabaseSettings {
    let statement = |text: &str| SqlStatement::parse(text).unwrap();
    DatabaseSettings {
        url: JdbcUrl::parse(&format!("jdbc:postgresql://{url}")).unwrap(),
        user: "grid".to_owned(),
        password: Password::new("geheim"),
        initialize: String::new(),
        create_procedure: String::new(),
        insert: statement("INSERT INTO jgroups values (?, ?, ?, ?, ?)"),
        call: None,
        delete: statement("DELETE FROM jgroups WHERE address=?"),
        select: statement("SELECT address, name, ip, coord FROM jgroups WHERE cluster=?"),
    }
}
