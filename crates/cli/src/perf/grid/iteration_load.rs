//! One member iterates over all entries again and again.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use consort_cache::{EntryStream, Guarantee, RawCache};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// How a cache is iterated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// Up to four members at a time; every entry comes exactly once.
    Parallel,
    /// One member after the other; exactly once.
    Sequential,
    /// In parallel, without regard to rebalances: at most once.
    AtMostOnce,
    /// In parallel; segments whose owner is lost are sent again: at least once.
    AtLeastOnce,
}

/// How the reader takes entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Take {
    /// Entry by entry, to be kept.
    Entries,
    /// Entry by entry, as bytes of the received batch.
    Bytes,
    /// An answer of a member at a time.
    Answers,
}

pub(crate) fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct IterationLoad {
    pub(crate) way: Way,
    pub(crate) take: Take,
    pub(crate) batch: usize,
    pub(crate) readers: usize,
    /// A pass that has begun by then is completed.
    pub(crate) time_ms: u64,
}

#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub(crate) struct IterationResult {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) passes: u64,
    /// Until the last reader was done.
    pub(crate) seconds: f64,
}

impl IterationLoad {
    /// # Errors
    ///
    /// The first of an iteration.
    pub(crate) async fn run(self, cache: &RawCache) -> anyhow::Result<IterationResult> {
        let begin = Instant::now();
        let end = begin + Duration::from_millis(self.time_ms);
        let mut readers = JoinSet::new();
        for _ in 0..self.readers {
            let cache = cache.clone();
            readers.spawn(async move {
                let mut own = IterationResult::default();
                while own.passes == 0 || Instant::now() < end {
                    self.pass(&cache, &mut own).await?;
                }
                anyhow::Ok(own)
            });
        }
        let mut all = IterationResult::default();
        while let Some(reader) = readers.join_next().await {
            let own = reader.context("a reader")??;
            all.entries += own.entries;
            all.bytes += own.bytes;
            all.passes += own.passes;
        }
        Ok(IterationResult { seconds: begin.elapsed().as_secs_f64(), ..all })
    }

    async fn pass(self, cache: &RawCache, result: &mut IterationResult) -> anyhow::Result<()> {
        let mut entries = self.shape(cache.entries().batch(self.batch));
        match self.take {
            Take::Entries => {
                while let Some(entry) = entries.next().await {
                    result.bytes += entry?.1.len() as u64;
                    result.entries += 1;
                }
            }
            Take::Bytes => {
                while let Some(entry) = entries.next_bytes().await {
                    result.bytes += entry?.value.len() as u64;
                    result.entries += 1;
                }
            }
            Take::Answers => {
                while let Some(batch) = entries.next_batch().await {
                    let batch = batch?;
                    result.entries += batch.len() as u64;
                    result.bytes += batch.bytes().map(|entry| entry.value.len() as u64).sum::<u64>();
                }
            }
        }
        result.passes += 1;
        Ok(())
    }

    fn shape<T>(self, entries: EntryStream<T>) -> EntryStream<T> {
        match self.way {
            Way::Parallel => entries,
            Way::Sequential => entries.sequential(),
            Way::AtMostOnce => entries.guarantee(Guarantee::AtMostOnce),
            Way::AtLeastOnce => entries.guarantee(Guarantee::AtLeastOnce),
        }
    }
}
