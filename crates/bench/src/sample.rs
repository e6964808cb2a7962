use hdrhistogram::Histogram;
use serde::Serialize;

#[derive(Clone, Serialize)]
pub(crate) struct Sample {
    /// Calls or received messages per second and member.
    pub(crate) rate: f64,
    /// CPU of all members per operation.
    pub(crate) cpu_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
    pub(crate) rss_mb: f64,
    /// Failed calls; lost, duplicated or reordered messages.
    pub(crate) errors: u64,
}

#[derive(Clone, Serialize)]
pub(crate) struct Both {
    /// Rate and times are the client's; CPU time and memory are the servers'.
    #[serde(flatten)]
    pub(crate) server: Sample,
    pub(crate) client_cpu_us: f64,
}

impl Both {
    pub(crate) fn system_cpu_us(&self) -> f64 {
        self.server.cpu_us + self.client_cpu_us
    }
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p999: f64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999) }
    }
}

pub(crate) type Figure = fn(&Sample) -> Option<f64>;

#[derive(Clone, Default, Serialize)]
pub(crate) struct Samples {
    /// Operations per second and member while JVMs warmed up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warmup: Vec<f64>,
    pub(crate) samples: Vec<Sample>,
}

impl Samples {
    pub(crate) fn median(&self, figure: Figure) -> Option<f64> {
        self.runs(figure).median()
    }

    pub(crate) fn errors(&self) -> u64 {
        self.samples.iter().map(|sample| sample.errors).sum()
    }

    pub(crate) fn runs(&self, figure: Figure) -> Runs {
        Runs(self.samples.iter().filter_map(figure).collect())
    }
}

#[derive(Clone, Default)]
pub(crate) struct Runs(pub(crate) Vec<f64>);

impl Runs {
    pub(crate) fn median(&self) -> Option<f64> {
        let values = self.sorted();
        let middle = values.len() / 2;
        if values.len() % 2 == 1 {
            values.get(middle).copied()
        } else {
            Some((values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0)
        }
    }

    /// The largest less the smallest, in percent of the median's size; `None` for zeros.
    pub(crate) fn spread(&self) -> Option<f64> {
        let values = self.sorted();
        let spread = (values.last()? - values.first()?) / self.median()?.abs() * 100.0;
        Some(spread).filter(|spread| spread.is_finite())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rates: &[f64]) -> Samples {
        let sample = |&rate: &f64| Sample { rate, cpu_us: 1.0, latency: None, rss_mb: 1.0, errors: 0 };
        Samples { warmup: Vec::new(), samples: rates.iter().map(sample).collect() }
    }

    #[test]
    fn the_median_is_the_middle_of_any_order() {
        assert_eq!(samples(&[3.0, 1.0, 9.0]).median(|sample| Some(sample.rate)), Some(3.0));
        assert_eq!(samples(&[4.0, 2.0]).median(|sample| Some(sample.rate)), Some(3.0));
        assert_eq!(samples(&[]).median(|sample| Some(sample.rate)), None);
    }

    #[test]
    fn the_spread_is_in_percent_of_the_median() {
        assert_eq!(Runs(vec![8.0, 12.0, 10.0]).spread(), Some(40.0));
        assert_eq!(Runs(vec![-1.0, -3.0, -2.0]).spread(), Some(100.0));
        assert_eq!(Runs::default().spread(), None);
        assert_eq!(Runs(vec![0.0, 0.0]).spread(), None);
    }
}
