//! Metrics in Prometheus' text format 0.0.4 and in OpenMetrics 1.0, because libraries only write the latter.

use std::fmt::{Display, Write};

pub(crate) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The format adds `_total` to the family's name.
    Counter,
    Gauge,
    Histogram,
}

pub(crate) type Labels<'a> = &'a [(&'static str, &'a str)];

pub(crate) struct Exposition {
    text: String,
    is_open_metrics: bool,
    kind: Kind,
    family: &'static str,
}

impl Exposition {
    /// The `Accept` field determines the format.
    pub(crate) fn for_client(accept: &str) -> Self {
        let is_open_metrics = accept.contains("application/openmetrics-text");
        Self { text: String::new(), is_open_metrics, kind: Kind::Gauge, family: "" }
    }

    pub(crate) const fn content_type(&self) -> &'static str {
        if self.is_open_metrics { OPEN_METRICS } else { PROMETHEUS }
    }

    /// Begins a family of values, once each.
    pub(crate) fn family(&mut self, kind: Kind, name: &'static str, help: &str) -> &mut Self {
        (self.kind, self.family) = (kind, name);
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // In OpenMetrics a counter's family has no suffix.
        let suffix = if self.is_open_metrics { "" } else { self.suffix() };
        let _ = writeln!(self.text, "# HELP {name}{suffix} {help}");
        let _ = writeln!(self.text, "# TYPE {name}{suffix} {kind}");
        self
    }

    const fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "_total",
            Kind::Gauge | Kind::Histogram => "",
        }
    }

    pub(crate) fn value(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.value_of(self.suffix(), labels, value)
    }

    /// The counts are not cumulative; the last is for observations beyond the bounds.
    pub(crate) fn histogram<'a>(
        &mut self,
        label: (&'static str, &str),
        within: impl Iterator<Item = (&'a str, i64)>,
        beyond: i64,
        sum: impl Display,
    ) -> &mut Self {
        let mut count = 0;
        for (bound, more) in within {
            count += more;
            self.value_of("_bucket", &[label, ("le", bound)], count);
        }
        count += beyond;
        self.value_of("_bucket", &[label, ("le", "+Inf")], count);
        self.value_of("_sum", &[label], sum);
        self.value_of("_count", &[label], count)
    }

    fn value_of(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) -> &mut Self {
        let _ = write!(self.text, "{}{suffix}", self.family);
        for (nth, (name, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{name}=\"", if nth == 0 { '{' } else { ',' });
            for character in text.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
        self
    }

    pub(crate) fn finish(mut self) -> String {
        if self.is_open_metrics {
            self.text += "# EOF\n";
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposition(accept: &str) -> String {
        let mut out = Exposition::for_client(accept);
        out.family(Kind::Counter, "consort_hits", "Reads that found something.")
            .value(&[("cache", "a\"b\\c\nd"), ("way", "x")], 7)
            .value(&[], 8);
        out.family(Kind::Gauge, "consort_open", "Open.").value(&[], 1.5);
        out.family(Kind::Histogram, "consort_took", "Took.").histogram(
            ("of", "all"),
            [("0.1", 2), ("1.0", 3)].into_iter(),
            4,
            "7.25",
        );
        out.finish()
    }

    #[test]
    fn families_are_written_in_both_formats() {
        let values = "consort_hits_total{cache=\"a\\\"b\\\\c\\nd\",way=\"x\"} 7\nconsort_hits_total 8\n";
        let open = "# HELP consort_open Open.\n# TYPE consort_open gauge\nconsort_open 1.5\n\
            # HELP consort_took Took.\n# TYPE consort_took histogram\n\
            consort_took_bucket{of=\"all\",le=\"0.1\"} 2\nconsort_took_bucket{of=\"all\",le=\"1.0\"} 5\n\
            consort_took_bucket{of=\"all\",le=\"+Inf\"} 9\nconsort_took_sum{of=\"all\"} 7.25\n\
            consort_took_count{of=\"all\"} 9\n";
        assert_eq!(
            exposition("*/*"),
            format!(
                "# HELP consort_hits_total Reads that found something.\n# TYPE consort_hits_total counter\n{values}{open}"
            )
        );
        assert_eq!(
            exposition("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            format!(
                "# HELP consort_hits Reads that found something.\n# TYPE consort_hits counter\n{values}{open}# EOF\n"
            )
        );
    }
}
