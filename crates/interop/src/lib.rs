//! Java JGroups members next to Consort's, for tests (`cargo xtask test --only interop`).
//!
//! A [`Member`] is a process that takes commands on its standard input: a JVM (`interop/java`) or a Consort
//! member (`consort-member`). Both take the same commands.

#![forbid(unsafe_code)]

pub mod cluster;
mod jgroups;
mod member;
mod network;
pub mod postgres;
mod setting;
mod tool;

pub use consort_testbed::Network;
pub use jgroups::{java_libraries, java_program};
pub use member::{Kind, Member, built};
pub use network::{in_network, in_own_network};
pub use setting::Setting;
pub use tool::Tool;

/// Waits until a condition holds.
///
/// # Panics
///
/// If it does not within [`PATIENCE`].
pub async fn eventually(condition: &str, holds: impl AsyncFnMut() -> bool) {
    eventually_or(holds, async || format!("never: {condition}")).await;
}

/// The same with a text for the panic that is made when time is up.
///
/// # Panics
///
/// If the condition does not hold within [`PATIENCE`].
pub async fn eventually_or(mut holds: impl AsyncFnMut() -> bool, failure_text: impl AsyncFnOnce() -> String) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("{}", failure_text().await);
    }
}

/// The timeout of a command by default.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);
