//! Servers of one cluster on this host, a process each.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, timeout};

use crate::join::Join;
use crate::perf::grid::free_ports;
use crate::perf::{Others, member_name};

/// The default port of clients: the first server listens there if it can.
const FIRST_PORT: u16 = 11_222;

const START_TIME_MAX: Duration = Duration::from_secs(60);
const END_TIME_MAX: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// They end with this process, because their input ends with it.
pub(super) struct Servers {
    join: Join,
    processes: Others,
    inputs: Vec<Option<ChildStdin>>,
    addresses: Vec<SocketAddr>,
}

impl Servers {
    /// One after the other, so that they need not merge.
    pub(super) async fn start(join: &Join, count: usize) -> anyhow::Result<Self> {
        let mut join = join.clone();
        join.on_this_host(free_ports(count + 1)?, count + 1)?;
        let mut servers =
            Self { join, processes: Others(Vec::new()), inputs: Vec::new(), addresses: Vec::new() };
        for nth in 0..count {
            let port = FIRST_PORT + nth as u16;
            // Another server may be there; the system knows a port that is free.
            let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
            let (child, input, address) = launch(&servers.join, nth, if is_free { port } else { 0 }).await?;
            servers.processes.0.push(child);
            servers.inputs.push(Some(input));
            servers.addresses.push(address);
        }
        Ok(servers)
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// As `kill -9` does. Returns its name.
    pub(super) fn kill_last(&mut self) -> anyhow::Result<String> {
        let last = self.addresses.len() - 1;
        self.kill(last)?;
        Ok(member_name(last))
    }

    pub(super) fn kill(&mut self, nth: usize) -> anyhow::Result<()> {
        let process = self.processes.0.get_mut(nth).context("a server to kill")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    pub(super) async fn start_last_again(&mut self) -> anyhow::Result<()> {
        self.start_again(self.addresses.len() - 1).await
    }

    pub(super) async fn start_again(&mut self, nth: usize) -> anyhow::Result<()> {
        let (child, input, _) = launch(&self.join, nth, self.addresses[nth].port()).await?;
        self.processes.0[nth] = child;
        self.inputs[nth] = Some(input);
        Ok(())
    }

    pub(super) async fn wait_for_any_end(&mut self) -> anyhow::Result<(String, ExitStatus)> {
        let mut looks = tokio::time::interval(Duration::from_secs(1));
        loop {
            looks.tick().await;
            for (nth, child) in self.processes.0.iter_mut().enumerate() {
                if let Some(status) = child.try_wait()? {
                    return Ok((member_name(nth), status));
                }
            }
        }
    }

    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        let until = Instant::now() + END_TIME_MAX;
        // One after the other: the last one has no other server to hand data to.
        for (child, input) in self.processes.0.iter_mut().zip(&mut self.inputs) {
            drop(input.take());
            while child.try_wait()?.is_none() {
                if Instant::now() > until {
                    bail!("servers have not ended within {} s, and were killed", END_TIME_MAX.as_secs());
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }
}

async fn launch(join: &Join, nth: usize, port: u16) -> anyhow::Result<(Child, ChildStdin, SocketAddr)> {
    let name = member_name(nth);
    let program = std::env::current_exe().context("where is this program?")?;
    let mut command = Command::new(program);
    if std::env::var_os("CONSORT_LOG").is_none() {
        // One of them is killed on purpose.
        command.env("CONSORT_LOG", "error");
    }
    command
        .args(["server", "--with-parent"])
        .arg(format!("--port={port}"))
        .args(join.arguments(&name))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C is for the parent process.
        .process_group(0);
    let mut child = command.spawn().with_context(|| format!("starting server {name}"))?;
    let input = child.stdin.take().context("its input")?;
    let output = child.stdout.take().context("its output")?;
    let reading = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map(|_| line)
    });
    let line = timeout(START_TIME_MAX, reading).await;
    let line = match line {
        Ok(Ok(Ok(line))) => line,
        _ => String::new(),
    };
    let address = line.strip_prefix("Hot Rod on ").and_then(|rest| rest.split(',').next()?.parse().ok());
    let Some(address) = address else {
        let _ = child.kill();
        let _ = child.wait();
        bail!(
            "server {name} does not serve: {}",
            if line.is_empty() { "it says nothing" } else { line.trim() }
        );
    };
    Ok((child, input, address))
}
