use crate::disk::Disk;

pub(crate) const RESERVE: &str = "RESERVE";

/// The share while the disk is full, if below the configured one: three bytes are copied per freed byte.
const FULL_SHARE: f64 = 0.25;

const URGENT_SHARE: f64 = 1.0 / 16.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserve {
    pub(crate) bytes: u64,
    /// Given up or not created for lack of space.
    pub(crate) is_short: bool,
    pub(crate) is_full: bool,
    pub(crate) given_up: u64,
    /// The rest of the file, with the space freed since.
    pub(crate) free: u64,
    pub(crate) refused: u32,
}

impl Reserve {
    pub(crate) fn found(disk: &dyn Disk) -> Self {
        let bytes = disk.open(RESERVE).and_then(|file| file.len()).unwrap_or(0);
        Self { bytes, ..Self::default() }
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.free = self.free.saturating_sub(bytes as u64);
    }

    pub(crate) fn gain(&mut self, bytes: u64) {
        self.free += bytes;
    }

    /// Normally, files are compacted from `share` on.
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
