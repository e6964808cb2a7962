//! Numbered messages: their payload, and the count of received ones, as in the Java member (`interop/README.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};

const NUMBER_LEN: usize = 4;
const HEAD_LEN: usize = 8;

/// A prime, so that pieces joined at the wrong place show.
const PERIOD: usize = 251;

/// A short message has as much of it as fits.
pub(crate) fn payload(number: u32, run: u32, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    if size >= NUMBER_LEN {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    if size >= HEAD_LEN {
        bytes.extend_from_slice(&run.to_be_bytes());
        let filling = filling(number, run);
        while bytes.len() < size {
            let left = PERIOD.min(size - bytes.len());
            bytes.extend_from_slice(&filling[..left]);
        }
    }
    bytes.resize(size, 0);
    bytes
}

/// Computed once: computing it for every byte would cost more than the transport of the message.
fn filling(number: u32, run: u32) -> [u8; PERIOD] {
    let [.., low] = run.to_be_bytes();
    let first = (HEAD_LEN as u64 + u64::from(number)) % PERIOD as u64;
    std::array::from_fn(|at| ((first as usize + at) % PERIOD) as u8 ^ low)
}

fn is_filled(rest: &[u8], number: u32, run: u32) -> bool {
    let filling = filling(number, run);
    rest.chunks(PERIOD).all(|chunk| chunk == &filling[..chunk.len()])
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The run is unique to its sender.
pub(crate) struct Identity {
    run: u32,
    number: u32,
}

impl Identity {
    /// `None` if the message is too short for it.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        Some(Self { run: number_at(bytes, NUMBER_LEN)?, number: number_at(bytes, 0)? })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.run, self.number)
    }
}

#[derive(Default)]
struct Run {
    seen: BTreeSet<u32>,
    next: u32,
}

#[derive(Default)]
pub(crate) struct Tally {
    runs: BTreeMap<u32, Run>,
    received: u64,
    duplicates: u64,
    out_of_order: u64,
    corrupt: u64,
}

impl Tally {
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// If order is not guaranteed, only duplicates and corrupt messages are noted.
    pub(crate) fn add(&mut self, bytes: &[u8], is_ordered: bool) {
        self.received += 1;
        let Some(number) = number_at(bytes, 0) else { return };
        let run = number_at(bytes, NUMBER_LEN).unwrap_or(0);
        let rest = bytes.get(HEAD_LEN..).unwrap_or_default();
        if run != 0 && !is_filled(rest, number, run) {
            self.corrupt += 1;
            return;
        }
        let run = self.runs.entry(run).or_default();
        if !run.seen.insert(number) {
            self.duplicates += 1;
            return;
        }
        self.out_of_order += u64::from(is_ordered && number != run.next);
        run.next = number.wrapping_add(1);
    }

    pub(crate) fn report(&self) -> Value {
        let mut report = json!({
            "received": self.received,
            "duplicates": self.duplicates,
            "out_of_order": self.out_of_order,
        });
        if self.corrupt > 0 {
            report["corrupt"] = self.corrupt.into();
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_follows_from_its_place_and_number_and_run() {
        let bytes = payload(1_000, 0x0102_0304, 1_000);
        assert_eq!(bytes[..HEAD_LEN], [0, 0, 3, 0xe8, 1, 2, 3, 4]);
        for (at, &byte) in bytes.iter().enumerate().skip(HEAD_LEN) {
            assert_eq!(byte, ((at + 1_000) % 251) as u8 ^ 4, "byte {at}");
        }
    }

    #[test]
    fn numbers_in_order_pass() {
        let mut tally = Tally::default();
        for number in 0..300 {
            tally.add(&payload(number, 7, 20), true);
        }
        assert_eq!(tally.report(), json!({ "received": 300, "duplicates": 0, "out_of_order": 0 }));
    }

    #[test]
    fn repeats_gaps_and_damage_are_distinguished() {
        let mut tally = Tally::default();
        let mut damaged = payload(3, 7, 20);
        damaged[19] ^= 1;
        for bytes in [payload(0, 7, 20), payload(2, 7, 20), payload(0, 7, 20), damaged] {
            tally.add(&bytes, true);
        }
        let seen = json!({ "received": 4, "duplicates": 1, "out_of_order": 1, "corrupt": 1 });
        assert_eq!(tally.report(), seen);
    }

    #[test]
    fn another_run_starts_anew() {
        let mut tally = Tally::default();
        tally.add(&payload(0, 7, 8), true);
        tally.add(&payload(0, 8, 8), true);
        assert_eq!(tally.report(), json!({ "received": 2, "duplicates": 0, "out_of_order": 0 }));
    }

    #[test]
    fn without_room_for_a_number_messages_are_only_counted() {
        let mut tally = Tally::default();
        for size in [0, 1, 3] {
            tally.add(&payload(5, 7, size), true);
        }
        assert_eq!(tally.report(), json!({ "received": 3, "duplicates": 0, "out_of_order": 0 }));
    }
}
