//! JDBC URLs of PostgreSQL: `jdbc:postgresql://HOST:PORT,HOST:PORT/DATABASE?PARAMETER=VALUE&…`.

use std::fmt;
use std::time::Duration;

use crate::config::{HostPort, Password, Property};

/// The default port of PostgreSQL.
const PORT: u16 = 5432;

const SCHEME: &str = "jdbc:postgresql:";

/// The hosts of a URL. Each attempt to connect takes time.
const HOSTS_MAX: usize = 16;

/// Parameters that tune Java's driver, without effect here.
const UNUSED: &[&str] = &[
    "adaptiveFetch",
    "assumeMinServerVersion",
    "autosave",
    "binaryTransfer",
    "binaryTransferDisable",
    "binaryTransferEnable",
    "cleanupSavepoints",
    "databaseMetadataCacheFields",
    "databaseMetadataCacheFieldsMiB",
    "defaultRowFetchSize",
    "disableColumnSanitiser",
    "hostRecheckSeconds",
    "logUnclosedConnections",
    "logServerErrorDetail",
    "loggerFile",
    "loggerLevel",
    "preferQueryMode",
    "preparedStatementCacheQueries",
    "preparedStatementCacheSizeMiB",
    "prepareThreshold",
    "quoteReturningIdentifiers",
    "readOnlyMode",
    "receiveBufferSize",
    "reWriteBatchedInserts",
    "sendBufferSize",
    "tcpKeepAlive",
    "tcpNoDelay",
    "unknownLength",
];

/// Parameters that have an effect.
const USED: &[&str] = &[
    "user",
    "password",
    "ssl",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "connectTimeout",
    "loginTimeout",
    "socketTimeout",
    "ApplicationName",
    "currentSchema",
    "options",
    "targetServerType",
    "loadBalanceHosts",
    "maxResultBuffer",
];

/// Encryption of the connection to a database (`sslmode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it, without a check of its certificate.
    #[default]
    Prefer,
    /// TLS without a check of the server's certificate.
    Require,
    /// TLS; a trusted authority has signed the server's certificate.
    VerifyCa,
    /// TLS; the certificate is that of the host, too.
    VerifyFull,
}

/// A URL of a PostgreSQL database. Debug output, logs and probe hide its password.
#[derive(Clone, PartialEq, Default)]
pub struct JdbcUrl {
    shown: String,
    /// The servers, in the order in which they are tried.
    pub hosts: Vec<HostPort>,
    /// The database; the user's name if absent.
    pub database: Option<String>,
    /// The user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Password>,
    /// TLS.
    pub tls: TlsMode,
    /// A PEM file of trusted authorities; those of the system if absent.
    pub root_certificates: Option<String>,
    /// A PEM file with this client's certificate.
    pub certificate: Option<String>,
    /// A PEM file with the certificate's key.
    pub key: Option<String>,
    /// The time limit for a connection to one server.
    pub connect_timeout: Option<Duration>,
    /// The time limit for one statement.
    pub socket_timeout: Option<Duration>,
    /// The name of this client in the server's lists.
    pub application_name: Option<String>,
    /// The schema of the table.
    pub schema: Option<String>,
    /// Settings of the session, as options of the server's command.
    pub options: Option<String>,
    /// Whether only a server that takes writes is used.
    pub is_primary_wanted: bool,
}

impl JdbcUrl {
    /// Returns whether it is unset.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        let seconds = || match value.parse() {
            Ok(0) => Ok(None),
            Ok(seconds) => Ok(Some(Duration::from_secs(seconds))),
            Err(_) => Err(format!("parameter {name}: not a number of seconds")),
        };
        match name {
            "user" => self.user = Some(value),
            "password" => self.password = Some(Password::new(value)),
            "sslmode" => self.tls = tls_mode(&value)?,
            // Without sslmode, as Java's driver.
            "ssl" if value.is_empty() || value == "true" => self.tls = TlsMode::VerifyFull,
            "ssl" => self.tls = TlsMode::Disable,
            "sslrootcert" => self.root_certificates = Some(value),
            "sslcert" => self.certificate = Some(value),
            "sslkey" => self.key = Some(value),
            "connectTimeout" | "loginTimeout" => self.connect_timeout = seconds()?,
            "socketTimeout" => self.socket_timeout = seconds()?,
            "ApplicationName" => self.application_name = Some(value),
            "currentSchema" => self.schema = Some(value),
            "options" => self.options = Some(value),
            "targetServerType" => match &*value {
                "any" => self.is_primary_wanted = false,
                "primary" | "master" => self.is_primary_wanted = true,
                _ => {
                    return Err(
                        "parameter targetServerType: use `primary` or `any`: rows are written".to_owned()
                    );
                }
            },
            "loadBalanceHosts" if value == "false" => {}
            "loadBalanceHosts" => {
                let why = "parameter loadBalanceHosts: the hosts are tried in their order: remove it, and give members \
                           URLs with other orders";
                return Err(why.to_owned());
            }
            "maxResultBuffer" => {
                let why = "parameter maxResultBuffer: the bound is 4 MiB for a request: remove it, and delete the rows of \
                           members that have crashed";
                return Err(why.to_owned());
            }
            name if UNUSED.contains(&name) => {}
            name => {
                return Err(format!(
                    "parameter {name} is not supported: remove it (supported are user, password, sslmode, sslrootcert, \
                     sslcert, sslkey, connectTimeout, socketTimeout, ApplicationName, currentSchema, options, \
                     targetServerType)"
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for JdbcUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Errors name parameters and not their values, which may be passwords.
impl Property for JdbcUrl {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let Some(rest) = text.strip_prefix(SCHEME) else { return Err(other_database(text)) };
        let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // Also where a password's `/` or the lack of `//` makes it part of the database.
        if place.contains('@') {
            let why = "set user and password by connection_username and connection_password, or by the parameters user \
                       and password; in the database's name write %40 for `@`";
            return Err(why.to_owned());
        }
        let mut url = Self { shown: shown(place, parameters), ..Self::default() };
        let (hosts, database) = match place.strip_prefix("//") {
            Some(place) => place.split_once('/').unwrap_or((place, "")),
            None => ("", place.strip_prefix('/').unwrap_or(place)),
        };
        url.hosts = hosts_of(hosts)?;
        url.database = Some(decoded("database", database)?).filter(|database| !database.is_empty());
        let mut parameters: Vec<&str> = parameters.split('&').filter(|one| !one.is_empty()).collect();
        // `sslmode` wins.
        parameters.sort_by_key(|parameter| *parameter != "ssl" && !parameter.starts_with("ssl="));
        for parameter in parameters {
            let is_known = |name: &str| USED.contains(&name) || UNUSED.contains(&name);
            let (name, value) = match parameter.split_once('=') {
                Some(parameter) => parameter,
                None if is_known(parameter) => (parameter, ""),
                // It may be a part of a password.
                None => {
                    let why = "a parameter has no value: write NAME=VALUE, and in values %26 for `&`; in a password before \
                               the host, ? and & have no place: set connection_password";
                    return Err(why.to_owned());
                }
            };
            url.set(name, decoded(name, value)?)?;
        }
        match (&url.certificate, &url.key) {
            (Some(_), None) | (None, Some(_)) => Err("sslcert and sslkey belong together".to_owned()),
            _ => Ok(url),
        }
    }
    fn show(&self) -> String {
        self.shown.clone()
    }
}

/// Returns the URL without passwords.
fn shown(place: &str, parameters: &str) -> String {
    let shown = parameters.split('&').filter(|one| !one.is_empty()).map(|parameter| {
        match parameter.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("password") => {
                format!("{name}=(not shown)")
            }
            _ => parameter.to_owned(),
        }
    });
    let shown = shown.collect::<Vec<_>>().join("&");
    let separator = if shown.is_empty() { "" } else { "?" };
    format!("{SCHEME}{place}{separator}{shown}")
}

fn tls_mode(value: &str) -> Result<TlsMode, String> {
    Ok(match value {
        "disable" => TlsMode::Disable,
        "prefer" => TlsMode::Prefer,
        "require" => TlsMode::Require,
        "verify-ca" => TlsMode::VerifyCa,
        "verify-full" => TlsMode::VerifyFull,
        _ => {
            return Err(
                "parameter sslmode: none of disable, prefer, require, verify-ca, verify-full".to_owned()
            );
        }
    })
}

fn other_database(text: &str) -> String {
    let mut parts = text.split(':');
    let scheme = [parts.next(), parts.next()].map(Option::unwrap_or_default).join(":");
    let is_plain = scheme.len() <= 40 && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == ':');
    let scheme = if is_plain { format!("`{scheme}` is not supported: ") } else { String::new() };
    format!(
        "{scheme}only PostgreSQL is (jdbc:postgresql://HOST:PORT/DATABASE); use FILE_PING in a directory that all \
         members share, DNS_PING or TCPPING"
    )
}

fn hosts_of(text: &str) -> Result<Vec<HostPort>, String> {
    let hosts: Vec<&str> = text.split(',').collect();
    if hosts.len() > HOSTS_MAX {
        return Err(format!("{} hosts are more than {HOSTS_MAX}", hosts.len()));
    }
    hosts.into_iter().map(host_of).collect()
}

fn host_of(text: &str) -> Result<HostPort, String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port.filter(|port| !port.is_empty()) {
        // The text may be a user and a part of a password.
        Some(port) => port.parse().map_err(|_| "a host has no valid port: write HOST:PORT".to_owned())?,
        None => PORT,
    };
    Ok(HostPort { host: if host.is_empty() { "localhost" } else { host }.to_owned(), port })
}

/// Decodes `%41` and `+`.
fn decoded(name: &str, text: &str) -> Result<String, String> {
    let fail = || format!("parameter {name}: `%` must precede two hexadecimal digits of UTF-8");
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(fail);
                bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
                rest = tail;
            }
            (b'%', _) => return Err(fail()),
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| fail())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> JdbcUrl {
        JdbcUrl::parse(text).unwrap()
    }

    fn hosts(text: &str) -> Vec<String> {
        parsed(text).hosts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn url_names_hosts_and_database() {
        assert_eq!(hosts("jdbc:postgresql://db:5433/grid"), ["db:5433"]);
        assert_eq!(
            hosts("jdbc:postgresql://a,b:1,[::1],[::1]:2/grid"),
            ["a:5432", "b:1", "[::1]:5432", "[::1]:2"]
        );
        assert_eq!(hosts("jdbc:postgresql:grid"), ["localhost:5432"]);
        for (text, database) in [
            ("jdbc:postgresql://db/grid?user=a", Some("grid")),
            ("jdbc:postgresql:my%20grid", Some("my grid")),
            ("jdbc:postgresql:/", None),
            ("jdbc:postgresql://db", None),
            ("jdbc:postgresql://db/", None),
        ] {
            assert_eq!(parsed(text).database.as_deref(), database, "{text}");
        }
        assert!(parsed("").is_empty() && !parsed("jdbc:postgresql:/").is_empty());
    }

    #[test]
    fn parameters_of_the_url_are_used() {
        let url = parsed(
            "jdbc:postgresql://db/grid?user=a%26b&password=p+q&sslmode=verify-full&sslrootcert=/ca.pem&sslcert=/c.pem\
             &sslkey=/k.pem&connectTimeout=2&socketTimeout=3&ApplicationName=x&currentSchema=s&options=-c%20a=b\
             &targetServerType=primary&prepareThreshold=0&ssl=true",
        );
        assert_eq!(
            (url.user.as_deref(), url.password.as_ref().map(Password::text)),
            (Some("a&b"), Some("p q"))
        );
        assert_eq!((url.tls, url.root_certificates.as_deref()), (TlsMode::VerifyFull, Some("/ca.pem")));
        assert_eq!((url.certificate.as_deref(), url.key.as_deref()), (Some("/c.pem"), Some("/k.pem")));
        assert_eq!(url.connect_timeout, Some(Duration::from_secs(2)));
        assert_eq!(url.socket_timeout, Some(Duration::from_secs(3)));
        assert_eq!((url.application_name.as_deref(), url.schema.as_deref()), (Some("x"), Some("s")));
        assert_eq!((url.options.as_deref(), url.is_primary_wanted), (Some("-c a=b"), true));
        for (text, tls) in [
            ("", TlsMode::Prefer),
            ("?sslmode=disable", TlsMode::Disable),
            ("?sslmode=prefer", TlsMode::Prefer),
            ("?sslmode=require&ssl=true", TlsMode::Require),
            ("?sslmode=verify-ca", TlsMode::VerifyCa),
            ("?ssl=true", TlsMode::VerifyFull),
            ("?ssl", TlsMode::VerifyFull),
            ("?ssl=false", TlsMode::Disable),
            ("?sslmode=require&ssl", TlsMode::Require),
            ("?ssl&sslmode=require", TlsMode::Require),
            ("?ssl=false&sslmode=verify-ca", TlsMode::VerifyCa),
        ] {
            assert_eq!(parsed(&format!("jdbc:postgresql://db/grid{text}")).tls, tls, "{text}");
        }
        assert_eq!(parsed("jdbc:postgresql:/?connectTimeout=0").connect_timeout, None);
        assert_eq!(parsed("jdbc:postgresql:/?loginTimeout=4").connect_timeout, Some(Duration::from_secs(4)));
        assert_eq!(parsed("jdbc:postgresql:/?loadBalanceHosts=false").hosts.len(), 1);
    }

    #[test]
    fn password_is_not_shown() {
        let url = parsed("jdbc:postgresql://db/grid?user=a&password=geheim&sslmode=require");
        let text = "jdbc:postgresql://db/grid?user=a&password=(not shown)&sslmode=require";
        assert_eq!((url.show(), format!("{url:?}")), (text.to_owned(), text.to_owned()));
        for text in [
            "jdbc:postgresql://a:geheim@db/grid",
            "jdbc:postgresql://db/grid?sslpassword=geheim",
            "jdbc:postgresql://db/grid?password=geheim%",
            "jdbc:mysql://a:geheim@db/grid?password=geheim",
            "a:geheim@db",
            "jdbc:postgresql://db/grid?sslmode=geheim",
            "jdbc:postgresql:a:geheim@db/grid",
            "jdbc:postgresql:/a:geheim@db/grid",
            "jdbc:postgresql://a:geheim/x@db/grid",
            "jdbc:postgresql://a:geheim?x@db/grid",
            "jdbc:postgresql://a:1?geheim@db/grid",
            "jdbc:postgresql://db/grid?geheim",
            "jdbc:postgresql://db/grid?user=a&password=b&geheim%",
        ] {
            let error = JdbcUrl::parse(text).unwrap_err();
            assert!(!error.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn other_databases_and_unsupported_parameters_are_refused() {
        for (text, expected) in [
            ("jdbc:mysql://db/grid", "`jdbc:mysql` is not supported: only PostgreSQL is"),
            ("jdbc:hsqldb:hsql://localhost/", "`jdbc:hsqldb` is not supported"),
            ("db", "`db:` is not supported"),
            ("jdbc:postgresql://db:x/grid", "a host has no valid port: write HOST:PORT"),
            ("jdbc:postgresql://db/a@b", "in the database's name write %40"),
            ("jdbc:postgresql://db/grid?loadBalanceHosts=true", "are tried in their order: remove it"),
            ("jdbc:postgresql://db/grid?maxResultBuffer=10M", "the bound is 4 MiB for a request: remove it"),
            (
                "jdbc:postgresql://db/grid?gssEncMode=require",
                "parameter gssEncMode is not supported: remove it",
            ),
            ("jdbc:postgresql://db/grid?sslmode=allow", "none of disable, prefer"),
            ("jdbc:postgresql://db/grid?targetServerType=secondary", "use `primary` or `any`"),
            ("jdbc:postgresql://db/grid?connectTimeout=soon", "connectTimeout: not a number of seconds"),
            ("jdbc:postgresql://db/grid?sslcert=/c.pem", "sslcert and sslkey belong together"),
            ("jdbc:postgresql://db/grid?user=%zz", "parameter user: `%` must precede"),
            ("jdbc:postgresql://db/grid?user=%ff", "parameter user: `%` must precede"),
        ] {
            let error = JdbcUrl::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many = format!("jdbc:postgresql://{}/grid", ["a"; 17].join(","));
        assert_eq!(JdbcUrl::parse(&many).unwrap_err(), "17 hosts are more than 16");
    }
}
