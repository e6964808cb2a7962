use std::io::{IsTerminal, Write};
use std::time::Duration;

use consort_procstat::grouped;

pub(crate) async fn every_second<T>(
    work: impl Future<Output = T>,
    count: impl Fn() -> u64,
    mut on_second: impl FnMut(u64),
) -> T {
    tokio::pin!(work);
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    let mut before = count();
    loop {
        tokio::select! {
            result = &mut work => return result,
            _ = second.tick() => {
                let now = count();
                // Another round counts from nothing.
                on_second(now.saturating_sub(before));
                before = now;
            }
        }
    }
}

pub(crate) async fn with_counter<T>(work: impl Future<Output = T>, count: impl Fn() -> u64, what: &str) -> T {
    let mut terminal = std::io::stderr();
    if !terminal.is_terminal() {
        return work.await;
    }
    let mut second = 0;
    let result = every_second(work, count, |done| {
        second += 1;
        let line = format!("second {second}: {} {what} here", grouped(done as f64));
        let _ = write!(std::io::stderr(), "\r  {line:<60}");
    })
    .await;
    if second > 0 {
        let _ = writeln!(terminal);
    }
    result
}
