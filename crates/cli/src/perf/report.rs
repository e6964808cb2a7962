//! Histograms across members, and tables for people.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A histogram on its way between members: value in nanoseconds and count.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Counts(Vec<(u64, u64)>);

/// Latencies from 100 ns to a minute with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("bounds that fit")
}

impl Counts {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Self(histogram.iter_recorded().map(|row| (row.value_iterated_to(), row.count_at_value())).collect())
    }

    /// How many values there are.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn add_to(&self, histogram: &mut Histogram<u64>) {
        for &(value, count) in &self.0 {
            histogram.saturating_record_n(value, count);
        }
    }
}

/// Percentiles in microseconds.
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

/// Rows of cells, the first left-aligned, the others right-aligned.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            if column == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
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

    #[test]
    fn tables_align() {
        let rows = [vec!["member".to_owned(), "req/s".to_owned()], vec!["A".to_owned(), "12".to_owned()]];
        assert_eq!(table(&rows), "member  req/s\nA          12\n");
    }
}
