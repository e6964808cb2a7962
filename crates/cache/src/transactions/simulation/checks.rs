//! Rules for the history of a run, compared with the order of the writes that the world knows.
//!
//! * **Atomicity**: a committed transaction has made each of its writes once, one that is rolled back none, and one of a lost
//!   program all or none.
//! * **Serializability**: there is an order of all transactions and single writes in which each has read the values that the
//!   writers before it have left. It exists if the graph of their dependencies has no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::client::{Attempt, Outcome, Place, writer};
use super::world::Applied;

/// A value of a key, from its write to the next one.
#[derive(Debug)]
struct Period {
    /// `None` at the beginning.
    writer: Option<u64>,
    is_present: bool,
    from: Duration,
    until: Duration,
}

type Periods = BTreeMap<Place, Vec<Period>>;

/// The keys' values in their order.
fn periods(log: &[Applied]) -> Result<Periods, String> {
    let mut periods = Periods::new();
    for Applied { space, key, value, by, at } in log {
        let place = (space.clone(), key.clone());
        let of_key = periods.entry(place.clone()).or_insert_with(|| {
            vec![Period { writer: None, is_present: false, from: Duration::ZERO, until: Duration::MAX }]
        });
        let last = of_key.last_mut().expect("a key has a first period");
        last.until = *at;
        let writer = value.as_ref().map(writer).or(*by);
        if writer.is_none() {
            return Err(format!("atomicity: {place:?} was removed without a decision"));
        }
        of_key.push(Period { writer, is_present: value.is_some(), from: *at, until: Duration::MAX });
    }
    Ok(periods)
}

fn check_atomicity(attempts: &[Attempt], periods: &Periods) -> Result<(), String> {
    for attempt in attempts {
        let mut counts = BTreeSet::new();
        for place in attempt.writes.keys() {
            let of_key = periods.get(place).into_iter().flatten();
            counts.insert(of_key.filter(|period| period.writer == Some(attempt.number)).count());
        }
        let is_right = match attempt.outcome {
            Outcome::Committed => counts.iter().all(|count| *count == 1),
            Outcome::RolledBack => counts.iter().all(|count| *count == 0),
            Outcome::Unknown => counts.len() <= 1 && counts.iter().all(|count| *count <= 1),
        };
        if !is_right {
            return Err(format!("atomicity: writes were made {counts:?} times by {attempt:?}"));
        }
    }
    Ok(())
}

/// The period that a transaction has read. An absent key may have been absent more than once: then its time decides, or nothing.
fn period_of<'p>(
    attempt: &Attempt,
    place: &Place,
    periods: &'p [Period],
) -> Result<Option<(usize, &'p Period)>, String> {
    let wanted = attempt.reads[place];
    let (from, until) = attempt.times;
    let all = periods.iter().enumerate();
    let found: Vec<_> = match wanted {
        Some(writer) => {
            all.filter(|(_, period)| period.is_present && period.writer == Some(writer)).collect()
        }
        None => {
            let is_then =
                |period: &Period| !period.is_present && period.from <= until && period.until >= from;
            all.filter(|(_, period)| is_then(period)).collect()
        }
    };
    match found[..] {
        [one] => Ok(Some(one)),
        [] => Err(format!("serializability: {place:?} never had the value read by {attempt:?}")),
        _ => Ok(None),
    }
}

fn check_serializability(attempts: &[Attempt], periods: &Periods) -> Result<(), String> {
    let never = [Period { writer: None, is_present: false, from: Duration::ZERO, until: Duration::MAX }];
    let mut later: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for of_key in periods.values() {
        for pair in of_key.windows(2) {
            if let (Some(one), Some(next)) = (pair[0].writer, pair[1].writer) {
                later.entry(one).or_default().insert(next);
            }
        }
    }
    let has_written = |attempt: &&Attempt| {
        let wrote = |period: &Period| period.writer == Some(attempt.number);
        attempt.outcome == Outcome::Committed
            || (attempt.outcome == Outcome::Unknown && periods.values().flatten().any(wrote))
    };
    for attempt in attempts.iter().filter(has_written) {
        for place in attempt.reads.keys() {
            let of_key = periods.get(place).map_or(&never[..], |of_key| of_key);
            let Some((nth, period)) = period_of(attempt, place, of_key)? else { continue };
            if let Some(writer) = period.writer.filter(|writer| *writer != attempt.number) {
                later.entry(writer).or_default().insert(attempt.number);
            }
            let next = of_key.get(nth + 1).and_then(|next| next.writer);
            if let Some(next) = next.filter(|next| *next != attempt.number) {
                later.entry(attempt.number).or_default().insert(next);
            }
        }
    }
    match circle(later) {
        None => Ok(()),
        Some(circle) => {
            let named: Vec<_> = attempts.iter().filter(|one| circle.contains(&one.number)).collect();
            Err(format!("serializability: no order of {named:#?}"))
        }
    }
}

/// Removes transactions without earlier ones, as long as there are any.
fn circle(mut later: BTreeMap<u64, BTreeSet<u64>>) -> Option<BTreeSet<u64>> {
    loop {
        let targets: BTreeSet<u64> = later.values().flatten().copied().collect();
        let before = later.len();
        later.retain(|one, _| targets.contains(one));
        if later.is_empty() {
            return None;
        }
        if later.len() == before {
            let ends: BTreeSet<u64> = later.keys().copied().collect();
            for next in later.values_mut() {
                next.retain(|one| ends.contains(one));
            }
            let before = later.len();
            later.retain(|_, next| !next.is_empty());
            if later.len() == before {
                return Some(later.into_keys().collect());
            }
        }
    }
}

/// Keys of local caches of lost members are left out.
pub(super) fn check(log: &[Applied], attempts: &[Attempt], lost: &[String]) -> Result<(), String> {
    let is_kept = |space: &str| !lost.iter().any(|member| space.ends_with(&format!("@{member}")));
    let log: Vec<Applied> = log.iter().filter(|applied| is_kept(&applied.space)).cloned().collect();
    let mut attempts = attempts.to_vec();
    for attempt in &mut attempts {
        attempt.reads.retain(|(space, _), _: &mut Option<u64>| is_kept(space));
        attempt.writes.retain(|(space, _), _| is_kept(space));
    }
    let periods = periods(&log)?;
    check_atomicity(&attempts, &periods)?;
    check_serializability(&attempts, &periods)
}

#[test]
fn write_skew_and_partial_commit_are_found() {
    let key = |name: &'static str| ("a".to_owned(), Bytes::from(name));
    let applied = |name: &'static str, number, millis| Applied {
        space: "a".to_owned(),
        key: Bytes::from(name),
        value: Some(super::client::value(number, 0)),
        by: None,
        at: Duration::from_millis(millis),
    };
    let attempt = |number, read, written| Attempt {
        number,
        reads: BTreeMap::from([(key(read), None)]),
        writes: BTreeMap::from([(key(written), true)]),
        outcome: Outcome::Committed,
        times: (Duration::from_millis(1), Duration::from_millis(9)),
    };
    let skewed = [attempt(1, "x", "y"), attempt(2, "y", "x")];
    let log = [applied("y", 1, 5), applied("x", 2, 5)];
    assert!(check(&log, &skewed, &[]).unwrap_err().starts_with("serializability"));
    assert_eq!(check(&log[..1], &skewed[..1], &[]), Ok(()));
    assert!(check(&log[..1], &skewed, &[]).unwrap_err().starts_with("atomicity"));
}
