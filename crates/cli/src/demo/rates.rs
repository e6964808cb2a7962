use consort_procstat::grouped;

#[derive(Clone, Copy, Default)]
pub(super) struct Lap {
    requests: u64,
    seconds: f64,
}

impl Lap {
    pub(super) fn add(&mut self, requests: u64, seconds: f64) {
        self.requests += requests;
        self.seconds += seconds;
    }

    pub(super) fn seconds(&self) -> f64 {
        self.seconds
    }

    pub(super) fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.requests as f64 / self.seconds } else { 0.0 }
    }
}

pub(super) fn table(laps: &[(&str, Lap)]) -> String {
    let row =
        |(name, lap): &(&str, Lap)| format!("{name:<38}{:>12}{:>10.1}\n", grouped(lap.rate()), lap.seconds);
    let rows: String = laps.iter().map(row).collect();
    format!("{:<38}{:>12}{:>10}\n{rows}", "", "requests/s", "seconds")
}
