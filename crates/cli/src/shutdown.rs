//! On a signal a member hands over its data and leaves. A second signal ends it at once.

use std::time::{Duration, Instant};

use consort_cache::{CacheManager, LEAVE_TIMEOUT};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT (Ctrl-C). From its creation on they no longer end the process by themselves.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Completes at the second one. Both may be pending, and then their order is not known.
    pub(crate) async fn second(&mut self) {
        self.next().await;
        self.next().await;
    }
}

/// The input ends with the process that started this one.
pub(crate) async fn end_of_input() {
    let mut input = tokio::io::stdin();
    let mut bytes = [0; 64];
    while input.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
}

/// Other members first get the entries that only this member has. `at_once` completes with a reason to abandon
/// the handover.
///
/// # Errors
///
/// If other members may not have all entries.
pub(crate) async fn leave_gracefully(
    manager: CacheManager,
    at_once: impl Future<Output = &'static str>,
    mut report: impl FnMut(&str),
) -> anyhow::Result<()> {
    let others = manager.view().map_or(0, |view| view.len().saturating_sub(1));
    if others > 0 {
        report(&format!(
            "-- leaving: handing entries over, for at most {} s; another signal ends it at once",
            LEAVE_TIMEOUT.as_secs()
        ));
    }
    let begin = Instant::now();
    let closing = manager.clone().close();
    tokio::select! {
        closed = closing => closed?,
        reason = at_once => {
            report(&format!("-- {reason}: ending at once"));
            manager.abort().await;
            anyhow::bail!("{reason} before other members had all entries");
        }
    }
    if others > 0 {
        report(&format!("-- left: other members have all entries, after {}", seconds(begin.elapsed())));
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
