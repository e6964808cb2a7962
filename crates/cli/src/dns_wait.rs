//! The wait for a DNS name before a member joins.
//!
//! A member looks up a name with the addresses of all members, such as a headless service of Kubernetes, once
//! when it starts. It joins when the name resolves to its own address, too: of any two members, the one listed
//! later then finds the other.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::net::lookup_host;
use tokio::time::{Instant, interval};

/// Names of services change within seconds, and resolvers cache them for some.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// # Errors
///
/// If `own` is no address.
pub(crate) async fn wait_until_resolved(name: &str, own: &str) -> anyhow::Result<()> {
    let own: IpAddr = own
        .parse()
        .with_context(|| format!("--bind {own}: with --wait-for-dns it has to be an IP address"))?;
    let (mut polls, mut logged_at) = (interval(POLL_INTERVAL), Instant::now());
    loop {
        polls.tick().await;
        let found = look_up(name).await;
        if found.as_ref().is_ok_and(|found| found.contains(&own)) {
            return Ok(());
        }
        if logged_at.elapsed() >= LOG_INTERVAL {
            logged_at = Instant::now();
            tracing::warn!("{}", reason_to_wait(name, own, &found));
        }
    }
}

async fn look_up(name: &str) -> Result<Vec<IpAddr>, String> {
    let found = lookup_host((name, 0)).await.map_err(|error| error.to_string())?;
    let mut found: Vec<IpAddr> = found.map(|address| address.ip().to_canonical()).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

fn reason_to_wait(name: &str, own: IpAddr, found: &Result<Vec<IpAddr>, String>) -> String {
    let found = match found {
        Ok(found) => {
            let found: Vec<String> = found.iter().map(IpAddr::to_string).collect();
            format!("it resolves to {}", found.join(", "))
        }
        Err(error) => format!("it cannot be looked up: {error}"),
    };
    format!(
        "not joining yet: {name} does not resolve to {own} ({found}). In Kubernetes the name has to be a headless service of this \
         pod with publishNotReadyAddresses; DNS has the address a few seconds after the pod"
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn member_with_a_resolved_name_does_not_wait() {
        timeout(LONG, wait_until_resolved("127.0.0.1", "127.0.0.1")).await.expect("at once").unwrap();
        timeout(LONG, wait_until_resolved("::1", "::1")).await.expect("at once").unwrap();
    }

    #[tokio::test]
    async fn bind_pattern_is_refused() {
        let error = wait_until_resolved("127.0.0.1", "site_local").await.unwrap_err();
        assert!(error.to_string().starts_with("--bind site_local: with --wait-for-dns"), "{error}");
    }

    #[test]
    fn log_line_names_the_missing_address_and_the_found_ones() {
        let own = IpAddr::from([10, 0, 0, 3]);
        let others = Ok(vec![IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])]);
        let line = reason_to_wait("shop.default.svc", own, &others);
        assert!(
            line.contains(
                "shop.default.svc does not resolve to 10.0.0.3 (it resolves to 10.0.0.1, 10.0.0.2)."
            ),
            "{line}"
        );
        let line = reason_to_wait("shop", own, &Err("no such name".to_owned()));
        assert!(
            line.contains("shop does not resolve to 10.0.0.3 (it cannot be looked up: no such name)."),
            "{line}"
        );
    }
}
