//! `consort mperf`: multicasts as JGroups' MPerf does them (S001, S003).

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use clap::Args;
use consort_channel::rpc::RpcDispatcher;
use consort_channel::{Address, Channel, Delivery, Message, Receiver};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::member::{self, Request, Work};
use super::report::{grouped, table};
use super::{Common, FIRST_PORT, member_name, process, start_others};

/// Measures multicasts: every member sends to all, itself included, and counts what it receives.
///
/// Nothing may be lost, duplicated or reordered; the command fails if something is.
#[derive(Args)]
#[command(
    after_help = "Example, on one host:\n  consort mperf --members 4 --threads 100 --size 1000 --time 10\n  \
    consort mperf --config udp.xml --size 20000"
)]
pub(crate) struct Mperf {
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Serialize, Deserialize)]
struct Test {
    threads: usize,
    size: usize,
    warmup_ms: u64,
    time_ms: u64,
}

/// What a member answers when its senders are done.
#[derive(Clone, Serialize, Deserialize)]
struct Sent {
    /// Messages that each of its senders has sent.
    per_sender: Vec<u64>,
    /// Messages that it received while it measured.
    received: u64,
    seconds: f64,
    cpu_s: f64,
}

/// What a member is asked at the end: how many messages there are from whom.
#[derive(Serialize, Deserialize)]
struct Question {
    /// By the member's address as text.
    sent: HashMap<String, Vec<u64>>,
    wait_ms: u64,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Verdict {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    rss_mb: f64,
}

#[derive(Serialize)]
struct Summary {
    test: &'static str,
    members: usize,
    threads: usize,
    size: usize,
    msgs_sec_node: f64,
    mb_sec_node: f64,
    cpu_s_per_mmsg: f64,
    rss_mb: f64,
    lost: u64,
    duplicated: u64,
    reordered: u64,
}

/// Bytes of sender and number that begin every message.
const HEAD: usize = 12;

/// One sender's messages at a receiver.
#[derive(Clone, Copy, Default)]
struct Row {
    next: u64,
    count: u64,
    duplicated: u64,
    reordered: u64,
}

/// Counts what arrives, and sends when told to.
#[derive(Default)]
struct Counter {
    received: AtomicU64,
    rows: Mutex<HashMap<Address, Vec<Row>>>,
    arrived: Notify,
    is_waited_for: AtomicBool,
}

impl Counter {
    fn count(rows: &mut Vec<Row>, bytes: &Bytes) {
        let Some(head) = bytes.get(..HEAD) else { return };
        let (sender, number) = head.split_at(4);
        let sender = u32::from_be_bytes(sender.try_into().unwrap_or_default()) as usize;
        let number = u64::from_be_bytes(number.try_into().unwrap_or_default());
        // As many senders as the command line allows; a wrong message must not make us take memory.
        if sender >= SENDERS_MAX {
            return;
        }
        if rows.len() <= sender {
            rows.resize(sender + 1, Row::default());
        }
        let row = &mut rows[sender];
        row.count += 1;
        if number < row.next {
            row.duplicated += 1;
        } else {
            row.reordered += u64::from(number > row.next);
            row.next = number + 1;
        }
    }
}

/// Senders per member at most.
const SENDERS_MAX: usize = 100_000;

impl Receiver for Counter {
    fn receive_batch(&self, mut delivery: Delivery) {
        let messages = delivery.take();
        let Some(src) = messages.first().and_then(|message| message.src.clone()) else { return };
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let own = rows.entry(src).or_default();
        for message in &messages {
            if let Some(bytes) = message.payload_bytes() {
                Self::count(own, bytes);
            }
        }
        drop(rows);
        self.received.fetch_add(messages.len() as u64, Relaxed);
        if self.is_waited_for.load(Relaxed) {
            self.arrived.notify_waiters();
        }
    }
}

/// One of a member's senders. Returns how many messages it has sent.
async fn sender(channel: Channel, nth: u32, size: usize, is_over: Arc<AtomicBool>) -> u64 {
    let mut number = 0_u64;
    let size = size.max(HEAD);
    while !is_over.load(Relaxed) {
        let mut bytes = BytesMut::zeroed(size);
        bytes[..4].copy_from_slice(&nth.to_be_bytes());
        bytes[4..HEAD].copy_from_slice(&number.to_be_bytes());
        if channel.send(Message::bytes(None, bytes.freeze())).await.is_err() {
            break;
        }
        number += 1;
        // A send that finds credits does not wait; the others want their turn.
        if number.is_multiple_of(16) {
            tokio::task::yield_now().await;
        }
    }
    number
}

impl Work for Counter {
    async fn start(self: Arc<Self>, dispatcher: RpcDispatcher, test: Bytes) -> anyhow::Result<Vec<u8>> {
        let test: Test = serde_json::from_slice(&test).context("the test's description")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let senders: Vec<_> = (0..test.threads.min(SENDERS_MAX) as u32)
            .map(|nth| tokio::spawn(sender(dispatcher.channel().clone(), nth, test.size, is_over.clone())))
            .collect();
        tokio::time::sleep(Duration::from_millis(test.warmup_ms)).await;
        let (start, cpu, before) = (Instant::now(), process::cpu(), self.received.load(Relaxed));
        tokio::time::sleep(Duration::from_millis(test.time_ms)).await;
        let received = self.received.load(Relaxed) - before;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), process::cpu().saturating_sub(cpu));
        is_over.store(true, Relaxed);
        let mut per_sender = Vec::new();
        for sender in senders {
            per_sender.push(sender.await.context("a sender")?);
        }
        Ok(serde_json::to_vec(&Sent { per_sender, received, seconds, cpu_s: cpu.as_secs_f64() })?)
    }

    async fn finish(self: Arc<Self>, _: RpcDispatcher, question: Bytes) -> anyhow::Result<Vec<u8>> {
        let question: Question = serde_json::from_slice(&question).context("the question")?;
        let until = Instant::now() + Duration::from_millis(question.wait_ms);
        self.is_waited_for.store(true, Relaxed);
        loop {
            let arrived = self.arrived.notified();
            let verdict = self.judge(&question);
            if verdict.lost == 0 || Instant::now() >= until {
                return Ok(serde_json::to_vec(&verdict)?);
            }
            let _ = tokio::time::timeout_at(until.into(), arrived).await;
        }
    }
}

impl Counter {
    fn judge(&self, question: &Question) -> Verdict {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut verdict = Verdict { rss_mb: process::peak_memory_mb(), ..Verdict::default() };
        let by_text: HashMap<String, &Vec<Row>> =
            rows.iter().map(|(src, rows)| (src.to_string(), rows)).collect();
        for (member, sent) in &question.sent {
            for (nth, &sent) in sent.iter().enumerate() {
                let row = by_text.get(member).and_then(|rows| rows.get(nth)).copied().unwrap_or_default();
                verdict.lost += sent.saturating_sub(row.count - row.duplicated);
                verdict.duplicated += row.duplicated;
                verdict.reordered += row.reordered;
            }
        }
        verdict
    }
}

impl Mperf {
    pub(crate) async fn run(mut self) -> anyhow::Result<ExitCode> {
        let is_local = !self.common.join_only && !self.common.start_none;
        if is_local {
            self.common.join.on_this_host(FIRST_PORT, self.common.members);
            self.common.join.name.get_or_insert_with(|| member_name(0));
        }
        let counter = Arc::new(Counter::default());
        let dispatcher = member::join(&self.common.join, counter.clone(), counter, 0).await?;
        if self.common.join_only {
            member::work_until_alone(dispatcher).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let names = (1..self.common.members).map(member_name);
        let others = if is_local { Some(start_others("mperf", &self.common.join, names)?) } else { None };
        member::wait_for_members(dispatcher.channel(), self.common.members).await?;
        let (sent, verdicts) = self.measure(&dispatcher).await?;
        dispatcher.channel().clone().close().await;
        drop(others);
        self.print(&sent, &verdicts)
    }

    async fn measure(
        &self,
        dispatcher: &RpcDispatcher,
    ) -> anyhow::Result<(Vec<(String, Sent)>, Vec<Verdict>)> {
        let common = &self.common;
        let test = Test {
            threads: common.threads,
            size: common.size,
            warmup_ms: common.warmup().as_millis() as u64,
            time_ms: common.measured().as_millis() as u64,
        };
        eprintln!(
            "{}: {} senders each, {} bytes, {} s after {} s of warm-up",
            dispatcher.channel().view_text(),
            test.threads,
            test.size,
            common.time,
            common.warmup
        );
        let limit = common.warmup() + common.measured() + Duration::from_secs(60);
        let answers = member::ask_all::<Sent>(dispatcher, Request::Start, &test, limit).await?;
        let mut sent = Vec::new();
        let mut question = Question { sent: HashMap::new(), wait_ms: 30_000 };
        for (member, answer) in answers {
            let name = dispatcher.channel().name_of(&member);
            let answer = answer.with_context(|| format!("member {name}"))?;
            question.sent.insert(member.to_string(), answer.per_sender.clone());
            sent.push((name, answer));
        }
        let limit = Duration::from_secs(60);
        let answers = member::ask_all::<Verdict>(dispatcher, Request::Finish, &question, limit).await?;
        let verdicts = answers.into_iter().map(|(_, verdict)| verdict).collect::<anyhow::Result<_>>()?;
        Ok((sent, verdicts))
    }

    fn print(&self, sent: &[(String, Sent)], verdicts: &[Verdict]) -> anyhow::Result<ExitCode> {
        let members = sent.len().max(1) as f64;
        let received: u64 = sent.iter().map(|(_, sent)| sent.received).sum();
        let rate: f64 =
            sent.iter().map(|(_, sent)| sent.received as f64 / sent.seconds).sum::<f64>() / members;
        let cpu: f64 = sent.iter().map(|(_, sent)| sent.cpu_s).sum();
        let summary = Summary {
            test: "mperf",
            members: sent.len(),
            threads: self.common.threads,
            size: self.common.size,
            msgs_sec_node: rate,
            mb_sec_node: rate * self.common.size as f64 / 1e6,
            cpu_s_per_mmsg: cpu * 1e6 / received.max(1) as f64,
            rss_mb: verdicts.iter().map(|verdict| verdict.rss_mb).fold(0.0, f64::max),
            lost: verdicts.iter().map(|verdict| verdict.lost).sum(),
            duplicated: verdicts.iter().map(|verdict| verdict.duplicated).sum(),
            reordered: verdicts.iter().map(|verdict| verdict.reordered).sum(),
        };
        if self.common.json {
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            let mut rows =
                vec![["member", "received/s", "MB/s", "CPU us/message"].map(str::to_owned).to_vec()];
            for (name, sent) in sent {
                let rate = sent.received as f64 / sent.seconds;
                rows.push(vec![
                    name.clone(),
                    grouped(rate),
                    format!("{:.1}", rate * self.common.size as f64 / 1e6),
                    format!("{:.2}", sent.cpu_s * 1e6 / sent.received.max(1) as f64),
                ]);
            }
            rows.push(vec![
                "mean".to_owned(),
                grouped(summary.msgs_sec_node),
                format!("{:.1}", summary.mb_sec_node),
                format!("{:.2}", summary.cpu_s_per_mmsg),
            ]);
            print!("{}", table(&rows));
            println!(
                "lost {}, duplicated {}, reordered {}; largest member {:.1} MB",
                summary.lost, summary.duplicated, summary.reordered, summary.rss_mb
            );
        }
        let is_sound = received > 0 && summary.lost + summary.duplicated + summary.reordered == 0;
        Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
