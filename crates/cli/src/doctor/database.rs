//! The database of JDBC_PING2.

use std::time::Duration;

use consort_group::config::{Property, ProtocolConfig};
use consort_group::database::JdbcUrl;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::findings::Findings;

const CHECKED: &str = "database with addresses (JDBC_PING2)";

/// Connects to the servers. A member logs in; its log names what the database refuses.
pub(super) async fn check(protocol: &ProtocolConfig, time_limit: Duration, findings: &mut Findings) {
    let url = match JdbcUrl::parse(protocol.get("connection_url").unwrap_or_default()) {
        Ok(url) => url,
        Err(why) => return findings.bad(CHECKED, why, "correct connection_url"),
    };
    let mut failures = Vec::new();
    for host in &url.hosts {
        match timeout(time_limit, TcpStream::connect((&*host.host, host.port))).await {
            Ok(Ok(_)) => return findings.good(CHECKED, format!("a server listens at {host}")),
            Ok(Err(error)) => failures.push(format!("{host}: {error}")),
            Err(_) => failures.push(format!("{host}: no answer within {time_limit:?}")),
        }
    }
    findings.bad(CHECKED, failures.join(", "), "start the database, or correct connection_url");
}
