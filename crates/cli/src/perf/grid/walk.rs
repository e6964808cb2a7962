//! Going through everything in a cache, again and again, from one member.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use consort_cache::{EntryStream, Guarantee, RawCache};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// How a cache is gone through.
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
    /// Entry by entry, where it lies.
    Bytes,
    /// An answer of a member at a time.
    Answers,
}

/// The name of an option's value, as it is typed.
pub(crate) fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The order to a member.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Walking {
    pub(crate) way: Way,
    pub(crate) take: Take,
    pub(crate) batch: usize,
    /// Walks at the same time.
    pub(crate) readers: usize,
    /// A pass that has begun by then is ended.
    pub(crate) time_ms: u64,
}

/// The results.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Walked {
    pub(crate) entries: u64,
    /// Of the values.
    pub(crate) bytes: u64,
    pub(crate) passes: u64,
    /// Until the last reader was done.
    pub(crate) seconds: f64,
}

impl Walking {
    /// Goes through everything until the time is over.
    ///
    /// # Errors
    ///
    /// The first of a walk.
    pub(crate) async fn carry_out(self, cache: &RawCache) -> anyhow::Result<Walked> {
        let begin = Instant::now();
        let end = begin + Duration::from_millis(self.time_ms);
        let mut readers = JoinSet::new();
        for _ in 0..self.readers {
            let cache = cache.clone();
            readers.spawn(async move {
                let mut own = Walked::default();
                while own.passes == 0 || Instant::now() < end {
                    self.pass(&cache, &mut own).await?;
                }
                anyhow::Ok(own)
            });
        }
        let mut all = Walked::default();
        while let Some(reader) = readers.join_next().await {
            let own = reader.context("a reader")??;
            all.entries += own.entries;
            all.bytes += own.bytes;
            all.passes += own.passes;
        }
        Ok(Walked { seconds: begin.elapsed().as_secs_f64(), ..all })
    }

    async fn pass(self, cache: &RawCache, walked: &mut Walked) -> anyhow::Result<()> {
        let mut walk = self.shape(cache.entries().batch(self.batch));
        match self.take {
            Take::Entries => {
                while let Some(entry) = walk.next().await {
                    walked.bytes += entry?.1.len() as u64;
                    walked.entries += 1;
                }
            }
            Take::Bytes => {
                while let Some(entry) = walk.next_bytes().await {
                    walked.bytes += entry?.value.len() as u64;
                    walked.entries += 1;
                }
            }
            Take::Answers => {
                while let Some(batch) = walk.next_batch().await {
                    let batch = batch?;
                    walked.entries += batch.len() as u64;
                    walked.bytes += batch.bytes().map(|entry| entry.value.len() as u64).sum::<u64>();
                }
            }
        }
        walked.passes += 1;
        Ok(())
    }

    fn shape<T>(self, walk: EntryStream<T>) -> EntryStream<T> {
        match self.way {
            Way::Parallel => walk,
            Way::Sequential => walk.sequential(),
            Way::AtMostOnce => walk.guarantee(Guarantee::AtMostOnce),
            Way::AtLeastOnce => walk.guarantee(Guarantee::AtLeastOnce),
        }
    }
}
