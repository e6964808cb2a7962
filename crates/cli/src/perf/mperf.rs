//! `consort mperf`: multicasts as JGroups' MPerf (S001, S003).

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::{BufMut, Bytes, BytesMut};
use clap::Args;
use consort_channel::rpc::RpcDispatcher;
use consort_channel::{Address, Channel, Delivery, Message, Receiver};
use consort_procstat::{grouped, process};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::cluster::Answer;
use super::member::{Request, Work};
use super::stop_condition::StopCondition;
use super::{Cluster, Common, range};
use crate::terminal::Escaped;

/// Measure multicasts: every member sends to all, itself included, and counts the messages that it receives.
///
/// Lost, duplicated and reordered messages are counted, and the command fails if there are any.
#[derive(Args)]
#[command(after_help = "The exit code is 1 if a message was lost, duplicated or reordered.\n\n\
    Examples, on one host:\n  \
    consort mperf --members 4 --threads 100 --size 1000 --time 10\n  \
    consort mperf --config udp.xml --size 20000\n\n\
    Example, as JGroups' MPerf counts:\n  \
    consort mperf --messages 1000000")]
pub(crate) struct Mperf {
    #[command(flatten)]
    common: Common,
    /// End when every member has received this many messages of each member, instead of after --time; no warm-up
    #[arg(long, value_name = "N", conflicts_with_all = ["time", "warmup"], value_parser = range::count)]
    messages: Option<u64>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Test {
    threads: usize,
    size: usize,
    stop: StopCondition,
    members: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct Sent {
    per_sender: Vec<u64>,
    received: u64,
    seconds: f64,
    cpu_s: f64,
}

#[derive(Serialize, Deserialize)]
struct Question {
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
    /// In a test by number; the slowest member has all.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

/// How long a test by number waits for a missing message.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The mark that begins every message: `sender * LAP + number % LAP`.
const HEAD: usize = 4;

/// A sender's marks repeat then. Messages up to half as many too early or too late are recognised.
const LAP: u32 = 256;

#[derive(Clone, Copy, Default)]
struct Row {
    next: u64,
    count: u64,
    duplicated: u64,
    reordered: u64,
}

struct Counter {
    received: AtomicU64,
    rows: Mutex<HashMap<Address, Vec<Row>>>,
    arrived: Notify,
    awaited: AtomicU64,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            received: AtomicU64::new(0),
            rows: Mutex::default(),
            arrived: Notify::new(),
            awaited: AtomicU64::new(u64::MAX),
        }
    }
}

impl Row {
    fn count(&mut self, place: u32) {
        self.count += 1;
        let ahead = place.wrapping_sub(self.next as u32) % LAP;
        if ahead >= LAP / 2 {
            self.duplicated += 1;
        } else {
            self.reordered += u64::from(ahead > 0);
            self.next += u64::from(ahead) + 1;
        }
    }
}

impl Counter {
    fn count(rows: &mut Vec<Row>, bytes: &Bytes) {
        let Some(mark) = bytes.first_chunk::<HEAD>() else { return };
        let mark = u32::from_be_bytes(*mark);
        let sender = (mark / LAP) as usize;
        // As many senders as the command line allows; a wrong message must not make us take memory.
        if sender >= SENDERS_MAX {
            return;
        }
        if rows.len() <= sender {
            rows.resize(sender + 1, Row::default());
        }
        rows[sender].count(mark % LAP);
    }
}

/// Windows on one table of marks, so that the test measures neither the allocator nor the filling of memory
/// (JGroups' MPerf sends one payload again and again).
struct Payloads {
    marks: Bytes,
    size: usize,
}

impl Payloads {
    fn new(senders: u32, size: usize) -> Self {
        let mut marks = BytesMut::with_capacity(senders as usize * LAP as usize * HEAD + size);
        (0..senders * LAP).for_each(|mark| marks.put_u32(mark));
        marks.put_bytes(0, size);
        Self { marks: marks.freeze(), size: size.max(HEAD) }
    }

    fn of(&self, sender: u32, number: u64) -> Bytes {
        let mark = sender * LAP + (number % u64::from(LAP)) as u32;
        let at = mark as usize * HEAD;
        self.marks.slice(at..at + self.size)
    }
}

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
        let count = messages.len() as u64;
        if self.received.fetch_add(count, Relaxed) + count >= self.awaited.load(Relaxed) {
            self.arrived.notify_waiters();
        }
    }
}

async fn sender(
    channel: Channel,
    payloads: Arc<Payloads>,
    nth: u32,
    count: u64,
    is_over: Arc<AtomicBool>,
) -> u64 {
    let mut number = 0_u64;
    while number < count && !is_over.load(Relaxed) {
        if channel.send(Message::bytes(None, payloads.of(nth, number))).await.is_err() {
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
    const COUNTED: &'static str = "messages received";

    fn counted(&self) -> u64 {
        self.received.load(Relaxed)
    }

    async fn start(self: Arc<Self>, dispatcher: RpcDispatcher, test: Bytes) -> anyhow::Result<Vec<u8>> {
        let test: Test = serde_json::from_slice(&test).context("the test's description")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let count = test.threads.min(SENDERS_MAX) as u32;
        let payloads = Arc::new(Payloads::new(count, test.size));
        let senders: Vec<_> = (0..count)
            .map(|nth| {
                let share = test.stop.share(nth.into(), count.into());
                let (channel, payloads) = (dispatcher.channel().clone(), payloads.clone());
                tokio::spawn(sender(channel, payloads, nth, share, is_over.clone()))
            })
            .collect();
        if let StopCondition::Time { warmup_ms, .. } = test.stop {
            tokio::time::sleep(Duration::from_millis(warmup_ms)).await;
        }
        let (start, cpu, before) = (Instant::now(), process::cpu(), self.received.load(Relaxed));
        let received = match test.stop {
            StopCondition::Time { time_ms, .. } => {
                tokio::time::sleep(Duration::from_millis(time_ms)).await;
                self.received.load(Relaxed) - before
            }
            // The others may have begun before this member: earlier messages count.
            StopCondition::Number(own) => self.wait_for(own.saturating_mul(test.members)).await,
        };
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
        // Any message may be one of the missing.
        self.awaited.store(0, Relaxed);
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
    /// Ends early if no messages come for a while.
    async fn wait_for(&self, count: u64) -> u64 {
        self.awaited.store(count, Relaxed);
        let mut before = 0;
        loop {
            let arrived = self.arrived.notified();
            let received = self.received.load(Relaxed);
            if received >= count {
                return received;
            }
            if tokio::time::timeout(SILENCE_MAX, arrived).await.is_err() && received == before {
                return self.received.load(Relaxed);
            }
            before = received;
        }
    }

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
        let counter = Arc::<Counter>::default();
        let cluster = Cluster::assemble("mperf", &mut self.common, counter.clone(), counter).await?;
        let Some(cluster) = cluster else { return Ok(ExitCode::SUCCESS) };
        let (sent, verdicts) = self.measure(&cluster).await?;
        cluster.close().await;
        self.print(&sent, &verdicts)
    }

    async fn measure(
        &self,
        cluster: &Cluster<Counter>,
    ) -> anyhow::Result<(Vec<Answer<Sent>>, Vec<Answer<Verdict>>)> {
        let common = &self.common;
        let stop = StopCondition::new(self.messages, common);
        let members = cluster.members() as u64;
        let test = Test { threads: common.threads, size: common.size, stop, members };
        let text = stop.text(common, "messages");
        eprintln!(
            "{}: {} senders each, {} bytes, {text}",
            Escaped(cluster.view_text()),
            test.threads,
            test.size
        );
        let sent = cluster.start::<Sent>(&test, stop.limit(common)).await?;
        let counts = sent.iter().map(|sent| (sent.member.to_string(), sent.content.per_sender.clone()));
        let question = Question { sent: counts.collect(), wait_ms: 30_000 };
        let verdicts = cluster.ask(Request::Finish, &question, Duration::from_secs(60)).await?;
        Ok((sent, verdicts))
    }

    fn print(&self, answers: &[Answer<Sent>], verdicts: &[Answer<Verdict>]) -> anyhow::Result<ExitCode> {
        let sent: Vec<&Sent> = answers.iter().map(|answer| &answer.content).collect();
        let sum = |count: fn(&Verdict) -> u64| verdicts.iter().map(|verdict| count(&verdict.content)).sum();
        let members = sent.len().max(1) as f64;
        let received: u64 = sent.iter().map(|sent| sent.received).sum();
        let rate: f64 = sent.iter().map(|sent| sent.received as f64 / sent.seconds).sum::<f64>() / members;
        let cpu: f64 = sent.iter().map(|sent| sent.cpu_s).sum();
        let seconds = sent.iter().map(|sent| sent.seconds).fold(0.0, f64::max);
        let summary = Summary {
            test: "mperf",
            members: sent.len(),
            threads: self.common.threads,
            size: self.common.size,
            msgs_sec_node: rate,
            mb_sec_node: rate * self.common.size as f64 / 1e6,
            cpu_s_per_mmsg: cpu * 1e6 / received.max(1) as f64,
            rss_mb: verdicts.iter().map(|verdict| verdict.content.rss_mb).fold(0.0, f64::max),
            lost: sum(|verdict| verdict.lost),
            duplicated: sum(|verdict| verdict.duplicated),
            reordered: sum(|verdict| verdict.reordered),
            messages: self.messages,
            seconds: self.messages.map(|_| seconds),
        };
        let mut rows = vec![["member", "received/s", "MB/s", "CPU us/message"].map(str::to_owned).to_vec()];
        for Answer { name, content: sent, .. } in answers {
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
        self.common.show(&summary, &rows)?;
        if !self.common.json {
            if self.messages.is_some() {
                println!("{} messages at every member in {seconds:.2} s", grouped(received as f64 / members));
            }
            println!(
                "lost {}, duplicated {}, reordered {}; largest member {:.1} MB",
                summary.lost, summary.duplicated, summary.reordered, summary.rss_mb
            );
        }
        let is_sound = received > 0 && summary.lost + summary.duplicated + summary.reordered == 0;
        Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(numbers: impl IntoIterator<Item = u64>) -> Row {
        let payloads = Payloads::new(3, 1_000);
        let mut rows = Vec::new();
        for number in numbers {
            let payload = payloads.of(2, number);
            assert_eq!(payload.len(), 1_000);
            Counter::count(&mut rows, &payload);
        }
        assert_eq!(rows[..2].iter().map(|row| row.count).sum::<u64>(), 0);
        rows[2]
    }

    #[test]
    fn numbers_in_order_are_neither_duplicates_nor_reordered() {
        let row = counted(0..1_000);
        assert_eq!((row.count, row.next, row.duplicated, row.reordered), (1_000, 1_000, 0, 0));
    }

    #[test]
    fn a_duplicate_and_a_gap_are_distinguished_across_laps() {
        let row = counted((0..300).chain([299]).chain(310..600));
        assert_eq!((row.count, row.next, row.duplicated, row.reordered), (591, 600, 1, 1));
    }

    #[test]
    fn marks_without_a_sender_take_no_memory() {
        let mut rows = Vec::new();
        Counter::count(&mut rows, &Bytes::from_static(&[0xff; 4]));
        Counter::count(&mut rows, &Bytes::from_static(&[0; 3]));
        assert!(rows.is_empty());
    }
}
