//! Member processes in network namespaces that a switch joins.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use consort_netns::{Hosts, KillOnDrop, Links};
use tokio::sync::{mpsc, oneshot};

use super::member::{Line, Order, Reply, State};
use crate::perf::member_name;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A stopped member never sends a report.
const STATE_TIMEOUT: Duration = Duration::from_millis(500);
const JOIN_TIME_MAX: Duration = Duration::from_secs(120);
pub(crate) const ORDER_TIME_MAX: Duration = Duration::from_secs(300);
/// The limits of a member's channel, caches and calls add up to this.
const END_TIME_MAX: Duration = Duration::from_secs(150);
const UNSOLICITED_MAX: usize = 2;

struct Process {
    child: KillOnDrop,
    input: ChildStdin,
    answers: Arc<Mutex<HashMap<u64, oneshot::Sender<Reply>>>>,
    unsolicited: mpsc::Receiver<Reply>,
}

pub(crate) struct Cluster {
    members: Vec<Option<Process>>,
    hosts: Hosts,
    directory: Directory,
    arguments: Vec<String>,
    next_order: u64,
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Cluster {
    pub(crate) fn new(places: usize, mut arguments: Vec<String>) -> anyhow::Result<Self> {
        let hosts = Hosts::start(places, Links { mtu: 1_500, limit: None }).context(
            "hosts are network namespaces, for which one has to be root: `unshare -rn consort chaos` may do",
        )?;
        let directory = std::env::temp_dir().join(format!("consort-chaos-{}", std::process::id()));
        std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let all: Vec<String> = hosts.all().iter().map(|host| format!("{}[7800]", host.address())).collect();
        arguments.push(format!("-Djgroups.tcpping.initial_hosts={}", all.join(",")));
        arguments.push("-Djgroups.tcp.port_range=0".to_owned());
        arguments.push(format!("--directory={}", directory.display()));
        let members = (0..places).map(|_| None).collect();
        Ok(Self { members, hosts, directory: Directory(directory), arguments, next_order: 1 })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory.0
    }

    pub(crate) fn running_members(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&place| self.members[place].is_some()).collect()
    }

    fn process(&mut self, place: usize) -> anyhow::Result<&mut Process> {
        self.members[place].as_mut().with_context(|| format!("{} does not run", member_name(place)))
    }

    pub(crate) async fn start(&mut self, place: usize) -> anyhow::Result<()> {
        let name = member_name(place);
        let host = &self.hosts.all()[place];
        let program = std::env::current_exe().context("where is this program?")?;
        let mut command: Command = host.command(program);
        command
            .arg("chaos")
            .args(&self.arguments)
            .arg(format!("--place={place}"))
            .arg(format!("--name={name}"))
            .arg(format!("--bind={}", host.address()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = KillOnDrop(command.spawn().with_context(|| format!("starting member {name}"))?);
        let input = child.0.stdin.take().context("its input")?;
        let output = BufReader::new(child.0.stdout.take().context("its output")?);
        let answers: Arc<Mutex<HashMap<u64, oneshot::Sender<Reply>>>> = Arc::default();
        let (replies, unsolicited) = mpsc::channel(UNSOLICITED_MAX);
        let waiting = answers.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(Line { number, reply }) = serde_json::from_str(&line) else { continue };
                let asked = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
                match asked {
                    Some(asked) => drop(asked.send(reply)),
                    None if number == 0 => drop(replies.blocking_send(reply)),
                    None => {}
                }
            }
            // Callers that wait for a response get an error.
            waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        let mut process = Process { child, input, answers, unsolicited };
        match tokio::time::timeout(JOIN_TIME_MAX, process.unsolicited.recv()).await {
            Ok(Some(Reply::Ready)) => {}
            Ok(other) => bail!("{name} ends instead of joining: {other:?}"),
            Err(_) => bail!("{name} has not joined within {JOIN_TIME_MAX:?}"),
        }
        self.members[place] = Some(process);
        Ok(())
    }

    pub(crate) fn order(
        &mut self,
        place: usize,
        order: Order,
        limit: Duration,
    ) -> impl Future<Output = anyhow::Result<Reply>> + use<> {
        let number = self.next_order;
        self.next_order += 1;
        let (asked, answer) = oneshot::channel();
        let line = serde_json::to_string(&(number, order));
        let sent = self.process(place).and_then(|process| {
            process.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(number, asked);
            Ok(writeln!(process.input, "{}", line?)?)
        });
        let name = member_name(place);
        async move {
            sent.with_context(|| format!("{name} does not read its input"))?;
            match tokio::time::timeout(limit, answer).await {
                Ok(Ok(Reply::Failed(why))) => bail!("{name}: {why}"),
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(_)) => bail!("{name} has ended instead of an answer to {order:?}"),
                Err(_) => bail!("{name} does not answer to {order:?} within {limit:?}"),
            }
        }
    }

    pub(crate) async fn order_all(&mut self, order: Order) -> anyhow::Result<Vec<(usize, Reply)>> {
        let mut asked = Vec::new();
        for place in self.running_members() {
            asked.push((place, self.order(place, order, ORDER_TIME_MAX)));
        }
        let mut answers = Vec::new();
        for (place, answer) in asked {
            answers.push((place, answer.await?));
        }
        Ok(answers)
    }

    async fn states(&mut self) -> Vec<(usize, State)> {
        let mut asked = Vec::new();
        for place in self.running_members() {
            asked.push((place, self.order(place, Order::Look, STATE_TIMEOUT)));
        }
        let mut states = Vec::new();
        for (place, answer) in asked {
            if let Ok(Reply::State(state)) = answer.await {
                states.push((place, state));
            }
        }
        states
    }

    pub(crate) async fn coordinator(&mut self) -> anyhow::Result<usize> {
        let states = self.states().await;
        let (_, state) = states.first().context("no member responds")?;
        let is_it = |place: &usize| member_name(*place) == state.coordinator;
        self.running_members()
            .into_iter()
            .find(is_it)
            .with_context(|| format!("no member `{}`", state.coordinator))
    }

    pub(crate) async fn wait_until_complete(
        &mut self,
        members: usize,
        limit: Duration,
    ) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        loop {
            let states = self.states().await;
            let is_whole =
                |state: &State| state.members == members && state.is_stable && state.segments_left == 0;
            if states.len() == self.running_members().len() && states.iter().all(|(_, state)| is_whole(state))
            {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > limit {
                bail!("no {members} members with all their entries within {limit:?}: {states:?}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    pub(crate) fn kill(&mut self, place: usize) -> anyhow::Result<()> {
        let mut process = self.members[place].take().context("no member")?;
        process.child.0.kill()?;
        process.child.0.wait()?;
        Ok(())
    }

    pub(crate) fn signal(&mut self, place: usize, name: &str) -> anyhow::Result<()> {
        let id = self.process(place)?.child.0.id();
        let status = Command::new("kill").args(["-s", name, &id.to_string()]).status().context("kill")?;
        if !status.success() {
            bail!("kill -s {name}: {status}");
        }
        Ok(())
    }

    /// Returns its clients' results, and whether it ended well.
    pub(crate) async fn wait_for_end(&mut self, place: usize) -> anyhow::Result<(Option<Reply>, bool)> {
        let mut process = self.members[place].take().context("no member")?;
        let mut last = None;
        let ended = async {
            // Its output ends with it.
            while let Some(reply) = process.unsolicited.recv().await {
                last = Some(reply);
            }
        };
        if tokio::time::timeout(END_TIME_MAX, ended).await.is_err() {
            bail!("{} has not ended within {END_TIME_MAX:?}", member_name(place));
        }
        Ok((last, process.child.0.wait()?.success()))
    }

    pub(crate) fn cut(&self, place: usize) -> anyhow::Result<()> {
        Ok(self.hosts.cut(place)?)
    }

    pub(crate) fn heal(&self, place: usize) -> anyhow::Result<()> {
        Ok(self.hosts.heal(place)?)
    }
}
