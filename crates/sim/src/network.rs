use std::collections::BTreeSet;
use std::time::Duration;

use consort_group::Rng;

#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) delay_min: Duration,
    /// Delays between the two reorder packets.
    pub(crate) delay_max: Duration,
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
}

impl Weather {
    pub(crate) const fn fair() -> Self {
        Self {
            delay_min: Duration::from_micros(50),
            delay_max: Duration::from_micros(500),
            loss: 0.0,
            duplication: 0.0,
        }
    }
}

const CLOG: Duration = Duration::from_secs(1);

pub(crate) struct Network {
    pub(crate) weather: Weather,
    /// Pairs (from, to).
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    /// The cut pairs whose connections are refused, not left without an answer.
    pub(crate) rejecting: BTreeSet<(usize, usize)>,
    /// Pairs between which every packet takes 1 s longer.
    pub(crate) clogs: BTreeSet<(usize, usize)>,
}

impl Network {
    pub(crate) fn new() -> Self {
        Self {
            weather: Weather::fair(),
            cuts: BTreeSet::new(),
            rejecting: BTreeSet::new(),
            clogs: BTreeSet::new(),
        }
    }

    /// For each copy of the packet: none, one or two.
    pub(crate) fn pass(&self, rng: &mut Rng, from: usize, to: usize) -> Vec<Duration> {
        if self.cuts.contains(&(from, to)) || rng.chance(self.weather.loss) {
            return Vec::new();
        }
        let copies = 1 + usize::from(rng.chance(self.weather.duplication));
        let clog = if self.clogs.contains(&(from, to)) { CLOG } else { Duration::ZERO };
        (0..copies).map(|_| rng.duration(self.weather.delay_min, self.weather.delay_max) + clog).collect()
    }

    pub(crate) fn longest_way(&self) -> Duration {
        self.weather.delay_max + CLOG
    }

    pub(crate) fn connects(&self, a: usize, b: usize) -> bool {
        !self.cuts.contains(&(a, b)) && !self.cuts.contains(&(b, a))
    }
}
