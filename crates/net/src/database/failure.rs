//! Failures of requests on a database, with what an operator can do.

use std::error::Error as _;

use consort_group::database::DatabaseSettings;

/// Bytes of a server's text in a failure.
const TEXT_BYTES_MAX: usize = 1_000;

/// A request that failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection. Further attempts are delayed.
    Connect(String),
    /// The login, or a statement.
    Database(tokio_postgres::Error),
    Other(String),
}

impl Failure {
    /// Returns the SQLSTATE of PostgreSQL.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Database(error) => error.code().map(|code| code.code()),
            _ => None,
        }
    }
}

/// Unique violation, serialization failure, deadlock: another member has changed the same rows at the same time.
pub(super) fn is_conflict(code: &str) -> bool {
    matches!(code, "23505" | "40001" | "40P01")
}

pub(super) fn is_missing_table(code: &str) -> bool {
    code == "42P01"
}

/// Returns the description of a failure and its remedy. `created`: why the table could not be created.
pub(super) fn describe(failure: &Failure, settings: &DatabaseSettings, created: Option<&str>) -> String {
    let error = match failure {
        Failure::Connect(text) => {
            return format!("{text}; start the database, or correct connection_url");
        }
        Failure::Other(text) => return text.clone(),
        Failure::Database(error) => error,
    };
    let text = text_of(error);
    match (failure.code(), remedy(failure.code().unwrap_or_default(), settings, created)) {
        (Some(code), Some(remedy)) => format!("{text} (SQLSTATE {code}); {remedy}"),
        (Some(code), None) => format!("{text} (SQLSTATE {code})"),
        _ => text,
    }
}

/// Returns the text of an error with its causes, bounded and without control characters.
pub(super) fn text_of(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return bounded(error.message());
    }
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    bounded(&text)
}

fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].replace(char::is_control, " ")
}

fn remedy(code: &str, settings: &DatabaseSettings, created: Option<&str>) -> Option<String> {
    let text = match code {
        "28P01" | "28000" => {
            "correct connection_username and connection_password, or let the server's pg_hba.conf admit the user and \
             this host"
        }
        "3D000" => "create the database, or correct its name in connection_url",
        code if is_missing_table(code) => {
            let created = match created {
                Some(why) => format!("initialize_sql has failed: {why}"),
                None if settings.initialize.trim().is_empty() => "initialize_sql is empty".to_owned(),
                None => "initialize_sql does not create it".to_owned(),
            };
            return Some(format!("create the table, or allow the user to create it ({created})"));
        }
        "42501" => "grant the user SELECT, INSERT and DELETE on the table",
        "25006" => {
            "name the primary server in connection_url, or all servers with the parameter targetServerType=primary"
        }
        "42703" | "42804" | "42601" | "22P02" => "correct the statements, or the table's columns",
        "53300" => "raise max_connections of the server",
        "57P01" | "57P02" | "57P03" => "the member tries again",
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use consort_group::config::{Password, Property};
    use consort_group::database::{JdbcUrl, SqlStatement};

    use super::*;

    fn settings(initialize: &str) -> DatabaseSettings {
        DatabaseSettings {
            url: JdbcUrl::parse("jdbc:postgresql://db/grid").unwrap(),
            user: String::new(),
            password: Password::new(""),
            initialize: initialize.to_owned(),
            create_procedure: String::new(),
            insert: SqlStatement::default(),
            call: None,
            delete: SqlStatement::default(),
            select: SqlStatement::default(),
        }
    }

    #[test]
    fn each_usual_failure_has_a_remedy() {
        for (code, expected) in [
            ("28P01", "connection_password"),
            ("28000", "pg_hba.conf"),
            ("3D000", "create the database"),
            ("42501", "grant the user"),
            ("25006", "targetServerType=primary"),
            ("53300", "max_connections"),
        ] {
            let remedy = remedy(code, &settings(""), None).unwrap();
            assert!(remedy.contains(expected), "{code}: {remedy}");
        }
        assert_eq!(remedy("XX000", &settings(""), None), None);
    }

    #[test]
    fn remedy_for_a_missing_table_names_why_it_was_not_created() {
        let text = |initialize: &str, created| remedy("42P01", &settings(initialize), created).unwrap();
        assert!(text("CREATE TABLE a", Some("permission denied")).contains("has failed: permission denied"));
        assert!(text(" ", None).contains("initialize_sql is empty"));
        assert!(text("CREATE TABLE a", None).contains("does not create it"));
    }
}
