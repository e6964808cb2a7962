//! Optional behaviours of clients, besides reads and writes of single keys without a lifespan.
//!
//! Their own random generator leaves a seed without any of them the same run as before.

use std::time::Duration;

use consort_grid::Lifetime;
use consort_group::Rng;

pub(super) const SEED: u64 = 0x4841_4249_5453_4841;

pub(super) const IDLE_SEED: u64 = 0x4944_4c45_4944_4c45;

/// High enough that some are left alone until they expire.
const MORTALS_MAX: u64 = 200;

/// High enough that some are left alone for longer than their max-idle.
const IDLERS_MAX: u64 = 500;

/// Entries that are to expire within the run live no longer.
pub(super) const SHORT_MAX: Duration = Duration::from_secs(4);

/// Other entries live longer than a run.
const LONG: Duration = Duration::from_secs(60 * 60);

/// Optional behaviours of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkloadMix {
    /// Some puts have a lifespan.
    pub lifespans: bool,
    /// Clients clear the cache.
    pub clears: bool,
    /// Clients read, put and remove many keys at once.
    pub many: bool,
    /// Some puts have a max-idle.
    pub idle: bool,
    /// Listeners end, and others begin.
    pub listeners_end: bool,
    /// Members accept few bytes of values at a time, and channels have no room now and then.
    pub backpressure: bool,
}

impl WorkloadMix {
    /// All behaviours.
    pub const ALL: Self = Self {
        lifespans: true,
        clears: true,
        many: true,
        idle: true,
        listeners_end: true,
        backpressure: true,
    };

    /// No behaviours.
    pub const NONE: Self = Self {
        lifespans: false,
        clears: false,
        many: false,
        idle: false,
        listeners_end: false,
        backpressure: false,
    };

    pub(super) fn draw(rng: &mut Rng) -> Self {
        let lifespans = rng.chance(0.3);
        // A generator for later additions, so that the rest is drawn as before.
        let mut later = Rng::new(rng.clone().next_u64());
        let (clears, many) = (later.chance(0.2), later.chance(0.3));
        let mut idle = Rng::new(later.next_u64());
        let (idle, mut last) = (idle.chance(0.25), Rng::new(idle.next_u64()));
        let listeners_end = last.chance(0.5);
        let backpressure = Rng::new(last.next_u64()).chance(0.4);
        Self { lifespans, clears, many, idle, listeners_end, backpressure }
    }

    pub(super) fn has_expiry(self) -> bool {
        self.lifespans || self.idle
    }

    pub(super) fn idlers(self, rng: &mut Rng) -> u64 {
        if self.idle { rng.between(20, IDLERS_MAX) } else { 0 }
    }

    pub(super) fn mortals(self, rng: &mut Rng) -> u64 {
        let count = rng.between(20, MORTALS_MAX);
        if self.lifespans { count } else { 0 }
    }
}

/// Stores keep whole milliseconds, too.
pub(super) fn lifetime(rng: &mut Rng) -> Lifetime {
    let lifespan = match rng.below(10) {
        0..7 => Some(Duration::from_millis(rng.between(200, SHORT_MAX.as_millis() as u64))),
        7 => Some(LONG),
        _ => None,
    };
    Lifetime { lifespan, max_idle: None }
}

pub(super) fn idle_lifetime(rng: &mut Rng) -> Lifetime {
    let short = |rng: &mut Rng| Duration::from_millis(rng.between(300, SHORT_MAX.as_millis() as u64));
    match rng.below(12) {
        0..9 => Lifetime { lifespan: None, max_idle: Some(short(rng)) },
        9 => Lifetime { lifespan: Some(short(rng)), max_idle: Some(short(rng)) },
        10 => Lifetime { lifespan: None, max_idle: Some(LONG) },
        _ => Lifetime::FOREVER,
    }
}
