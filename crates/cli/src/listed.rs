//! A name that stands for all members, as a headless service's does in Kubernetes, is looked up once, when a member
//! starts. So a member starts once the name stands for itself as well: of any two, the one that is listed later then finds
//! the other, however many start at once.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::net::lookup_host;
use tokio::time::{Instant, interval};

/// Names of services change within seconds, and resolvers cache them for some.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The interval of log lines while it waits.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Waits until this name resolves to this address as well, and logs the reason.
///
/// # Errors
///
/// If `own` is no address.
pub(crate) async fn wait_until_listed(name: &str, own: &str) -> anyhow::Result<()> {
    let own: IpAddr =
        own.parse().with_context(|| format!("--bind {own}: with --listed-at it has to be an IP address"))?;
    let (mut looks, mut told) = (interval(LOOK_EVERY), Instant::now());
    loop {
        looks.tick().await;
        let found = look_up(name).await;
        if found.as_ref().is_ok_and(|found| found.contains(&own)) {
            return Ok(());
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
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
            format!("it stands for {}", found.join(", "))
        }
        Err(error) => format!("it cannot be looked up, {error}"),
    };
    format!(
        "not joining yet: {name} does not stand for {own} ({found}); in Kubernetes it is a headless service of this pod's \
         with publishNotReadyAddresses, and DNS knows it a few seconds after the pod has its address"
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn listed_member_continues_at_once() {
        timeout(LONG, wait_until_listed("127.0.0.1", "127.0.0.1")).await.expect("at once").unwrap();
        timeout(LONG, wait_until_listed("::1", "::1")).await.expect("at once").unwrap();
    }

    #[tokio::test]
    async fn an_own_address_is_an_address() {
        let error = wait_until_listed("127.0.0.1", "site_local").await.unwrap_err();
        assert!(error.to_string().starts_with("--bind site_local: with --listed-at"), "{error}");
    }

    #[test]
    fn it_is_told_for_what_a_member_waits() {
        let own = IpAddr::from([10, 0, 0, 3]);
        let others = Ok(vec![IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])]);
        let told = reason_to_wait("shop.default.svc", own, &others);
        assert!(
            told.contains("shop.default.svc does not stand for 10.0.0.3 (it stands for 10.0.0.1, 10.0.0.2);"),
            "{told}"
        );
        let told = reason_to_wait("shop", own, &Err("no such name".to_owned()));
        assert!(
            told.contains("shop does not stand for 10.0.0.3 (it cannot be looked up, no such name);"),
            "{told}"
        );
    }
}
