//! The account of the reserve file: its size, and the space that is left of it.

use crate::disk::Disk;

/// The name of the reserve file.
pub(crate) const RESERVE: &str = "RESERVE";

/// Dead share for compaction while the disk is full, if below the configured one: three bytes are copied per
/// freed byte.
const FULL_SHARE: f64 = 0.25;

/// Dead share for compaction when the reserve runs out.
const URGENT_SHARE: f64 = 1.0 / 16.0;

/// The state of the reserve.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserve {
    /// The size of the file; 0 if there is none.
    pub(crate) bytes: u64,
    /// The file was given up or could not be created for lack of space.
    pub(crate) is_short: bool,
    /// The last entry was refused for lack of space.
    pub(crate) is_full: bool,
    /// The size of the file when it was given up.
    pub(crate) given_up: u64,
    /// What is left of it, plus the space freed since.
    pub(crate) free: u64,
    /// Entries refused since.
    pub(crate) refused: u32,
}

impl Reserve {
    /// Finds the reserve of an earlier process. Unknown counts start anew.
    pub(crate) fn found(disk: &dyn Disk) -> Self {
        let bytes = disk.open(RESERVE).and_then(|file| file.len()).unwrap_or(0);
        Self { bytes, ..Self::default() }
    }

    /// Notes written bytes.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.free = self.free.saturating_sub(bytes as u64);
    }

    /// Notes freed bytes.
    pub(crate) fn gain(&mut self, bytes: u64) {
        self.free += bytes;
    }

    /// Whether a file of `len` bytes with `dead` dead ones is worth compacting, where it normally is from
    /// `share` on.
    pub(crate) fn is_worth_compacting(&self, len: u64, dead: u64, share: f64) -> bool {
        let share = match self {
            Self { is_short: true, free, given_up, .. } if *free <= given_up / 5 * 4 => {
                URGENT_SHARE.min(share)
            }
            Self { is_short: true, .. } | Self { is_full: true, .. } => FULL_SHARE.min(share),
            _ => share,
        };
        dead as f64 >= share * len.max(1) as f64 && (!self.is_short || len.saturating_sub(dead) <= self.free)
    }
}
