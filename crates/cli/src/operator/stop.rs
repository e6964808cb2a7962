//! The wait of `consort cluster stop` until the servers have ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{address, cell, items};
use crate::terminal::Escaped;

/// Requests end after 15 s at most, and the servers wait for each other for 90 s.
const WAIT_TIME_MAX: Duration = Duration::from_secs(120);
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A host that has gone does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The members that accept clients, by name.
fn endpoints(members: &Value) -> BTreeMap<String, String> {
    let serves = |member: &&Value| member["host"].is_string();
    items(&members["members"]).filter(serves).map(|member| (cell(&member["name"]), address(member))).collect()
}

/// Waits until no server accepts connections any more, reports each end, and returns the servers that still do.
pub(super) async fn wait_for_end(
    members: &Value,
    longest: Duration,
    mut report: impl FnMut(String),
) -> BTreeMap<String, String> {
    let (mut left, begin) = (endpoints(members), Instant::now());
    loop {
        for (name, at) in left.clone() {
            if matches!(timeout(CONNECT_TIMEOUT, TcpStream::connect(&at)).await, Ok(Ok(_))) {
                continue;
            }
            report(format!("{} has ended ({})", Escaped(&name), Escaped(at)));
            left.remove(&name);
        }
        if left.is_empty() || begin.elapsed() >= longest {
            return left;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// # Errors
///
/// If servers still accept connections after [`WAIT_TIME_MAX`].
pub(super) async fn end(members: &Value, report: impl FnMut(String)) -> anyhow::Result<()> {
    let left = wait_for_end(members, WAIT_TIME_MAX, report).await;
    let left: Vec<String> = left.into_iter().map(|(name, at)| format!("{name} ({at})")).collect();
    anyhow::ensure!(
        left.is_empty(),
        "still accept connections after {} s: {}; a supervisor may have started them again: see their logs",
        WAIT_TIME_MAX.as_secs(),
        Escaped(left.join(", "))
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn servers_have_ended_when_they_accept_no_connections() {
        let [first, second] = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let (at, port_of_second) = (port(&first), port(&second));
        let members = json!({"members": [
            {"name": "A", "host": "127.0.0.1", "port": at},
            {"name": "B", "host": "127.0.0.1", "port": port_of_second},
            {"name": "C", "host": null, "port": null},
        ]});
        drop(second);
        let mut reports = Vec::new();
        let left = wait_for_end(&members, Duration::ZERO, |report| reports.push(report)).await;
        assert_eq!(reports, [format!("B has ended (127.0.0.1:{port_of_second})")]);
        assert_eq!(left, BTreeMap::from([("A".to_owned(), format!("127.0.0.1:{at}"))]));
        drop(first);
        assert_eq!(wait_for_end(&members, Duration::ZERO, drop).await, BTreeMap::new());
    }
}
