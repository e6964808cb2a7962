//! What clients do in some runs besides reading and writing what lives for ever, one key at a time.
//!
//! What is drawn for that comes from randomness of its own, so that a seed without any of it is the run that it would be if
//! there were no habits.

use std::time::Duration;

use consort_grid::Lifetime;
use consort_group::Rng;

/// Turns a seed into the one of what is drawn for habits.
pub(super) const SEED: u64 = 0x4841_4249_5453_4841;

/// The same of what is drawn for entries that live as long as they are used.
pub(super) const IDLE_SEED: u64 = 0x4944_4c45_4944_4c45;

/// Keys whose entries live for a while, at most: so many that some are left alone until their time is over.
const MORTALS_MAX: u64 = 200;

/// Keys whose entries live as long as they are used, at most: so many that some are left alone for longer than that.
const IDLERS_MAX: u64 = 500;

/// The longest that one of them lives which is to end within the run.
pub(super) const SHORT_MAX: Duration = Duration::from_secs(4);

/// How long the others live: a run is over before.
const LONG: Duration = Duration::from_secs(60 * 60);

/// What clients do besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// Some of what they put lives for a while.
    pub lifespans: bool,
    /// They clear the cache now and then.
    pub clears: bool,
    /// They read, put and remove many keys at once.
    pub many: bool,
    /// Some of what they put lives as long as somebody uses it.
    pub idle: bool,
    /// Listeners end, and others begin.
    pub listeners_end: bool,
    /// Members take few bytes of values at a time, and channels have no room for them now and then.
    pub narrow: bool,
}

impl Habits {
    /// Everything.
    pub const ALL: Self =
        Self { lifespans: true, clears: true, many: true, idle: true, listeners_end: true, narrow: true };

    /// Nothing.
    pub const NONE: Self = Self {
        lifespans: false,
        clears: false,
        many: false,
        idle: false,
        listeners_end: false,
        narrow: false,
    };

    pub(super) fn draw(rng: &mut Rng) -> Self {
        let lifespans = rng.chance(0.3);
        // Of what was added later, so that the rest is drawn as before.
        let mut later = Rng::new(rng.clone().next_u64());
        let (clears, many) = (later.chance(0.2), later.chance(0.3));
        let mut idle = Rng::new(later.next_u64());
        let (idle, mut last) = (idle.chance(0.25), Rng::new(idle.next_u64()));
        let listeners_end = last.chance(0.5);
        let narrow = Rng::new(last.next_u64()).chance(0.4);
        Self { lifespans, clears, many, idle, listeners_end, narrow }
    }

    /// Whether some entries come to an end.
    pub(super) fn has_ends(self) -> bool {
        self.lifespans || self.idle
    }

    /// How many keys there are whose entries live as long as they are used.
    pub(super) fn idlers(self, rng: &mut Rng) -> u64 {
        if self.idle { rng.between(20, IDLERS_MAX) } else { 0 }
    }

    /// How many keys there are whose entries live for a while.
    pub(super) fn mortals(self, rng: &mut Rng) -> u64 {
        let count = rng.between(20, MORTALS_MAX);
        if self.lifespans { count } else { 0 }
    }
}

/// How long an entry of such a key lives. In whole milliseconds, as stores keep it.
pub(super) fn lifetime(rng: &mut Rng) -> Lifetime {
    let lifespan = match rng.below(10) {
        0..7 => Some(Duration::from_millis(rng.between(200, SHORT_MAX.as_millis() as u64))),
        7 => Some(LONG),
        _ => None,
    };
    Lifetime { lifespan, max_idle: None }
}

/// How long an entry of a key lives that is used.
pub(super) fn idle_lifetime(rng: &mut Rng) -> Lifetime {
    let short = |rng: &mut Rng| Duration::from_millis(rng.between(300, SHORT_MAX.as_millis() as u64));
    match rng.below(12) {
        0..9 => Lifetime { lifespan: None, max_idle: Some(short(rng)) },
        9 => Lifetime { lifespan: Some(short(rng)), max_idle: Some(short(rng)) },
        10 => Lifetime { lifespan: None, max_idle: Some(LONG) },
        _ => Lifetime::FOREVER,
    }
}
