//! The wait of `consort cluster stop` until the servers have ended.

use std::collections::BTreeMap;
use std::time::Duration;

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

/// Removes and reports each server whose port accepts no connections any more, until none is left. A server keeps its port until it
/// has left the cluster.
async fn wait_for_end(left: &mut BTreeMap<String, String>, mut report: impl FnMut(String)) {
    while !left.is_empty() {
        for (name, at) in left.clone() {
            if matches!(timeout(CONNECT_TIMEOUT, TcpStream::connect(&at)).await, Ok(Ok(_))) {
                continue;
            }
            left.remove(&name);
            report(format!("{} has ended ({})", Escaped(&name), Escaped(at)));
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// # Errors
///
/// If servers still accept connections after [`WAIT_TIME_MAX`].
pub(super) async fn end(members: &Value, report: impl FnMut(String)) -> anyhow::Result<()> {
    let mut left = endpoints(members);
    let ended = timeout(WAIT_TIME_MAX, wait_for_end(&mut left, report)).await;
    let left: Vec<String> = left.into_iter().map(|(name, at)| format!("{name} ({at})")).collect();
    anyhow::ensure!(
        ended.is_ok(),
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
    use tokio::sync::Notify;

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
        let (mut left, mut reports, reported) = (endpoints(&members), Vec::new(), Notify::new());
        let report = |report| {
            reports.push(report);
            reported.notify_one();
        };
        tokio::select! {
            () = wait_for_end(&mut left, report) => panic!("A accepts connections"),
            () = reported.notified() => {}
        }
        assert_eq!(reports, [format!("B has ended (127.0.0.1:{port_of_second})")]);
        assert_eq!(left, BTreeMap::from([("A".to_owned(), format!("127.0.0.1:{at}"))]));
        drop(first);
        wait_for_end(&mut left, drop).await;
    }
}
