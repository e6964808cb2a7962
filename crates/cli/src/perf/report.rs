use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Counts(Vec<(u64, u64)>);

/// 100 ns to a minute with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("bounds that fit")
}

impl Counts {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Self(histogram.iter_recorded().map(|row| (row.value_iterated_to(), row.count_at_value())).collect())
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn add_to(&self, histogram: &mut Histogram<u64>) {
        for &(value, count) in &self.0 {
            histogram.saturating_record_n(value, count);
        }
    }
}

#[derive(Clone, Default, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Percentiles {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Self {
            mean: histogram.mean() / 1_000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1_000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_survive_the_way_between_members() {
        let mut first = histogram();
        for value in [1_000, 2_000, 2_000, 5_000_000] {
            first.record(value).unwrap();
        }
        let text = serde_json::to_string(&Counts::of(&first)).unwrap();
        let mut second = histogram();
        serde_json::from_str::<Counts>(&text).unwrap().add_to(&mut second);
        assert_eq!(second.len(), 4);
        assert_eq!(second.value_at_quantile(0.5), first.value_at_quantile(0.5));
        assert_eq!(second.max(), first.max());
    }
}
