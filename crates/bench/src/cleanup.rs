//! Ends all child processes with the bench, also by a signal, which drops no guard: the bench and its children
//! are a process group, which a thread kills.

use std::io;

use anyhow::Context;
use rustix::process::{Signal, getpgrp, getpid, kill_current_process_group, setpgid};
use tokio::signal::unix::{SignalKind, signal};

/// # Errors
///
/// If the system does not allow that; then nothing has changed.
pub(crate) fn with_children() -> anyhow::Result<()> {
    let (sender, started) = std::sync::mpsc::sync_channel(1);
    let is_leader = getpgrp() == getpid();
    let listening = std::thread::Builder::new().name("ending".to_owned()).spawn(move || {
        let listened = listen(|| {
            let _ = sender.send(Ok(()));
        });
        if let Err(error) = listened {
            let _ = sender.send(Err(error));
        }
    });
    listening.context("a thread for signals")?;
    started.recv().context("the thread for signals has ended")?.context("signals")?;
    // A process that already leads a group was started by a shell, whose Ctrl-C goes to that group: it keeps the group.
    if !is_leader {
        setpgid(None, None).context("a process group")?;
        // Ctrl-C goes to the waiting parent process, and ends that.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).context("the parent's end")?;
    }
    Ok(())
}

/// `listens` is called when no signal is missed any more.
fn listen(listens: impl FnOnce()) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        listens();
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
        eprintln!("bench: ended by a signal, with all that it has started");
        kill_current_process_group(Signal::KILL)?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, kill_process};

    use super::*;

    const VARIABLE: &str = "CONSORT_BENCH_ENDS";
    const PATIENCE: Duration = Duration::from_secs(60);

    /// This test's program again, which has started another process and prints its id.
    fn starter() -> (Child, u32) {
        // Without the name of the crate, as the test program lists it.
        let module = module_path!().split_once("::").map_or("", |(_, module)| module);
        let test = format!("{module}::started_process_ends_with_a_signal");
        let mut starter = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(VARIABLE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(starter.stdout.take().unwrap()).lines();
        let started =
            lines.map_while(Result::ok).find_map(|line| line.strip_prefix("started ")?.parse().ok());
        (starter, started.expect("it has started something"))
    }

    /// A zombie does not run.
    fn runs(id: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    }

    #[test]
    fn started_process_ends_with_a_signal() {
        if std::env::var_os(VARIABLE).is_some() {
            with_children().unwrap();
            // A process that ignores signals, and one below it.
            let script = "trap '' TERM INT HUP; sleep 600 & echo started $!; wait";
            let status = Command::new("sh").args(["-c", script]).status();
            panic!("it has been killed before: {status:?}");
        }
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let (mut starter, started) = starter();
            assert!(runs(started));
            kill_process(Pid::from_child(&starter), signal).unwrap();
            assert!(!starter.wait().unwrap().success());
            let until = Instant::now() + PATIENCE;
            while runs(started) {
                assert!(Instant::now() < until, "{started} has been left behind");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
