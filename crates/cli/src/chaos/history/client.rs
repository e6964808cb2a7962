//! Clients that use few keys from all members at once and record every operation.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use consort_group::Rng;
use tokio::task::JoinSet;

use super::record::{Completion, Consistency, Invocation, Outcome, Recorder, Verb, monotonic_ns};
use super::target::{Failure, Read, Target};

/// Few enough that clients of all members meet at each key.
const KEYS: u64 = 24;

/// A key's history ends then, so that a write with an unknown result does not make the checker's search long.
const KEY_LIFE_NS: u64 = 4_000_000_000;

/// The longest pause between a client's operations. It bounds a key's history, for which the checker needs
/// more than linear time.
const PAUSE_MAX_MS: u64 = 8;

pub(crate) struct HistoryClients {
    tasks: JoinSet<anyhow::Result<u64>>,
    is_over: Rc<Cell<bool>>,
}

impl HistoryClients {
    /// Needs a [`tokio::task::LocalSet`].
    pub(crate) fn start(target: &Target, recorder: &Rc<Recorder>, member: &str, clients: u32) -> Self {
        let is_over = Rc::new(Cell::new(false));
        let process = std::process::id();
        let seed = Rng::new(process.into()).next_u64();
        let mut tasks = JoinSet::new();
        for nth in 0..clients {
            let client = HistoryClient {
                target: target.clone(),
                recorder: recorder.clone(),
                name: format!("{member}-{process}-{nth}"),
                member: member.to_owned(),
                rng: Rng::new(seed ^ u64::from(nth)),
                written: 0,
                last: None,
            };
            let is_over = is_over.clone();
            tasks.spawn_local(client.work(is_over));
        }
        Self { tasks, is_over }
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<u64> {
        self.is_over.set(true);
        let mut operations = 0;
        while let Some(ended) = self.tasks.join_next().await {
            operations += ended.context("a client of the history")??;
        }
        Ok(operations)
    }
}

struct HistoryClient {
    target: Target,
    recorder: Rc<Recorder>,
    name: String,
    member: String,
    rng: Rng,
    written: u64,
    last: Option<(String, Read)>,
}

#[derive(Default)]
struct OperationResult {
    found: Option<Bytes>,
    done: Option<bool>,
}

impl HistoryClient {
    async fn work(mut self, is_over: Rc<Cell<bool>>) -> anyhow::Result<u64> {
        let mut operations = 0;
        while !is_over.get() {
            self.step().await.context("recording an operation")?;
            operations += 1;
            tokio::time::sleep(Duration::from_millis(1 + self.rng.below(PAUSE_MAX_MS))).await;
        }
        Ok(operations)
    }

    async fn step(&mut self) -> std::io::Result<()> {
        let (key, verb, last) = self.choose();
        let writes = !matches!(verb, Verb::Get | Verb::Take);
        let argument = writes.then(|| {
            self.written += 1;
            format!("{}/{}", self.name, self.written)
        });
        let expected = last.as_ref().filter(|_| verb == Verb::ReplaceIf).map(|read| text(&read.value));
        let consistency = if verb == Verb::Get { self.target.reads_are() } else { Consistency::Linearizable };
        let number = self.recorder.invoke(Invocation {
            client: self.name.clone(),
            member: self.member.clone(),
            key: key.clone(),
            operation: verb,
            argument: argument.clone(),
            expected,
            consistency,
            invoked_ns: monotonic_ns(),
        })?;
        let value = Bytes::from(argument.unwrap_or_default());
        let outcome = self.perform(verb, &key, last, value).await;
        let completed_ns = monotonic_ns();
        let completion = match outcome {
            Ok(OperationResult { found, done }) => Completion {
                outcome: Outcome::Ok,
                found: found.as_deref().map(text),
                done,
                error: None,
                completed_ns,
            },
            Err(Failure { is_uncertain, text }) => Completion {
                outcome: if is_uncertain { Outcome::Uncertain } else { Outcome::Unchanged },
                found: None,
                done: None,
                error: Some(text),
                completed_ns,
            },
        };
        self.recorder.complete(number, completion)
    }

    /// Half of the reads with a value are followed by a write that depends on it.
    fn choose(&mut self) -> (String, Verb, Option<Read>) {
        if let Some((key, read)) = self.last.take().filter(|_| self.rng.chance(0.5)) {
            return (key, Verb::ReplaceIf, Some(read));
        }
        let key = format!("{}-{}", monotonic_ns() / KEY_LIFE_NS, self.rng.below(KEYS));
        let verb = match self.rng.below(100) {
            0..40 => Verb::Get,
            40..55 => Verb::Put,
            55..75 => Verb::Swap,
            75..88 => Verb::PutIfAbsent,
            _ => Verb::Take,
        };
        (key, verb, None)
    }

    async fn perform(
        &mut self,
        verb: Verb,
        key: &str,
        last: Option<Read>,
        value: Bytes,
    ) -> Result<OperationResult, Failure> {
        let bytes = key.as_bytes();
        Ok(match verb {
            Verb::Get => {
                let read = self.target.get(bytes).await?;
                let found = read.as_ref().map(|read| read.value.clone());
                self.last = read.map(|read| (key.to_owned(), read));
                OperationResult { found, done: None }
            }
            Verb::Put => {
                self.target.put(bytes, &value).await?;
                OperationResult::default()
            }
            Verb::Swap => OperationResult { found: self.target.swap(bytes, &value).await?, done: None },
            Verb::PutIfAbsent => {
                OperationResult { found: None, done: Some(self.target.put_if_absent(bytes, &value).await?) }
            }
            Verb::ReplaceIf => {
                let Some(read) = last else { return Ok(OperationResult { found: None, done: Some(false) }) };
                OperationResult {
                    found: None,
                    done: Some(self.target.replace_if(bytes, &read, &value).await?),
                }
            }
            Verb::Take => OperationResult { found: self.target.take(bytes).await?, done: None },
        })
    }
}

fn text(value: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(value.as_ref()).into_owned()
}
