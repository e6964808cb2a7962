//! The keys of a run. The first letter gives the kind, which decides which checkers judge the key.

use bytes::Bytes;
use consort_group::Rng;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) registers: u64,
    pub(crate) atoms: u64,
    /// Counted up by compare-and-swap, and read at the primary only.
    pub(crate) counters: u64,
    /// Put and never removed: entries for iterations.
    pub(crate) steady: u64,
    pub(crate) mortals: u64,
    pub(crate) idlers: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Register,
    Atom,
    Counter,
    Private,
    Steady,
    Mortal,
    Idle,
}

impl Kind {
    pub(crate) fn of(key: &[u8]) -> Self {
        match key.first() {
            Some(b'a') => Self::Atom,
            Some(b'c') => Self::Counter,
            Some(b'p') => Self::Private,
            Some(b'w') => Self::Steady,
            Some(b'm') => Self::Mortal,
            Some(b'i') => Self::Idle,
            _ => Self::Register,
        }
    }
}

pub(crate) fn private(client: usize) -> Bytes {
    Bytes::from(format!("p{client}"))
}

pub(crate) fn steady(n: u64) -> Bytes {
    Bytes::from(format!("w{n}"))
}

impl Keys {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self {
            registers: rng.between(1, 12),
            atoms: rng.between(1, 6),
            counters: rng.between(1, 3),
            steady: 0,
            mortals: 0,
            idlers: 0,
        }
    }

    pub(crate) fn any(&self, rng: &mut Rng) -> Bytes {
        if self.mortals > 0 && rng.chance(0.4) {
            return Bytes::from(format!("m{}", rng.below(self.mortals)));
        }
        if self.idlers > 0 && rng.chance(0.4) {
            return Bytes::from(format!("i{}", rng.below(self.idlers)));
        }
        if self.steady > 0 && rng.chance(0.1) {
            return steady(rng.below(self.steady));
        }
        let (letter, count) = match rng.below(10) {
            0..6 => ('r', self.registers),
            6..9 => ('a', self.atoms),
            _ => ('c', self.counters),
        };
        Bytes::from(format!("{letter}{}", rng.below(count)))
    }

    pub(crate) fn all(&self) -> Vec<Bytes> {
        let of = |letter: char, count: u64| (0..count).map(move |n| Bytes::from(format!("{letter}{n}")));
        of('r', self.registers)
            .chain(of('a', self.atoms))
            .chain(of('c', self.counters))
            .chain(of('w', self.steady))
            .chain(of('m', self.mortals))
            .chain(of('i', self.idlers))
            .collect()
    }
}
