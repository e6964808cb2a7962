//! Whether every key has all its copies, and whether they are equal (`[8] Validate`). Every owner sends
//! digests of its copies.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Context, bail};
use consort_cache::{CacheManager, Phase, RawCache};
use serde::{Deserialize, Serialize};

use super::target::key;

const TURN: u32 = 500;

#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Copies(pub(crate) Vec<(u32, u64)>);

/// # Errors
///
/// If owners change meanwhile.
pub(crate) async fn own(manager: &CacheManager, cache: &RawCache, keys: u32) -> anyhow::Result<Copies> {
    let before = cache.topology().context("no topology")?;
    if before.phase != Phase::Stable {
        bail!("a rebalance is under way");
    }
    let mut copies = Vec::new();
    for number in 1..=keys {
        let key = key(number);
        let segment = before.current.segment_of(&key);
        // An owner reads its own copy.
        if before.current.owners(segment).any(|owner| owner == manager.address())
            && let Some(entry) = cache.get_with_metadata(&key[..]).await?
        {
            let mut hasher = DefaultHasher::new();
            (&entry.value[..], entry.version).hash(&mut hasher);
            copies.push((number, hasher.finish()));
        }
        if number % TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    if cache.topology().is_none_or(|after| after.id != before.id) {
        bail!("the owners have changed meanwhile");
    }
    Ok(Copies(copies))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) keys: u32,
    pub(crate) missing: u32,
    pub(crate) incomplete: u32,
    pub(crate) different: u32,
}

impl Verdict {
    pub(crate) fn of(keys: u32, wanted: usize, all: &[Copies]) -> Self {
        let mut found: BTreeMap<u32, (usize, u64, bool)> = BTreeMap::new();
        for &(key, digest) in all.iter().flat_map(|copies| &copies.0) {
            let (count, first, is_equal) = found.entry(key).or_insert((0, digest, true));
            *count += 1;
            *is_equal &= *first == digest;
        }
        Self {
            keys,
            missing: keys - found.len() as u32,
            incomplete: found.values().filter(|(count, ..)| *count < wanted).count() as u32,
            different: found.values().filter(|(.., is_equal)| !is_equal).count() as u32,
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.missing + self.incomplete + self.different == 0
    }

    pub(crate) fn text(&self, wanted: usize) -> String {
        let grouped = |number: u32| consort_procstat::grouped(number.into());
        if self.is_good() {
            return format!("{} keys: each has {wanted} equal copies", grouped(self.keys));
        }
        format!(
            "{} keys: {} are missing, {} have fewer than {wanted} copies, {} have copies that differ",
            grouped(self.keys),
            grouped(self.missing),
            grouped(self.incomplete),
            grouped(self.different)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_copies_are_counted() {
        let good = [Copies(vec![(1, 7), (2, 8)]), Copies(vec![(2, 8), (3, 9)]), Copies(vec![(1, 7), (3, 9)])];
        let verdict = Verdict::of(3, 2, &good);
        assert!(verdict.is_good());
        assert_eq!(verdict.text(2), "3 keys: each has 2 equal copies");
        let bad = [Copies(vec![(1, 7), (2, 8)]), Copies(vec![(2, 9)])];
        let verdict = Verdict::of(4, 2, &bad);
        assert_eq!(verdict, Verdict { keys: 4, missing: 2, incomplete: 1, different: 1 });
        assert!(!verdict.is_good());
        assert_eq!(
            verdict.text(2),
            "4 keys: 2 are missing, 1 have fewer than 2 copies, 1 have copies that differ"
        );
    }
}
