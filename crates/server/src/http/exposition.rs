//! Metrics as Prometheus reads them: its text format 0.0.4, and OpenMetrics 1.0.
//!
//! What is told here is collected when it is asked for, in both forms, of which the libraries for it write the second only.

use std::fmt::{Display, Write};

pub(crate) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How the values of a family are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Only grows while the process lives. Its name has no suffix: the format decides about `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Labels of a value, in their order.
pub(crate) type Labels<'a> = &'a [(&'static str, &'a str)];

/// A text that grows.
pub(crate) struct Exposition {
    text: String,
    is_open: bool,
    kind: Kind,
    family: &'static str,
}

impl Exposition {
    /// In the form that a client with this field `Accept` wants.
    pub(crate) fn for_client(accept: &str) -> Self {
        let is_open = accept.contains("application/openmetrics-text");
        Self { text: String::new(), is_open, kind: Kind::Gauge, family: "" }
    }

    pub(crate) const fn content_type(&self) -> &'static str {
        if self.is_open { OPEN_METRICS } else { PROMETHEUS }
    }

    /// Values that follow are of this family. Each is begun once.
    pub(crate) fn family(&mut self, kind: Kind, name: &'static str, help: &str) -> &mut Self {
        (self.kind, self.family) = (kind, name);
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // OpenMetrics names a counter's family without what its values' names end with.
        let suffix = if self.is_open { "" } else { self.suffix() };
        let _ = writeln!(self.text, "# HELP {name}{suffix} {help}");
        let _ = writeln!(self.text, "# TYPE {name}{suffix} {kind}");
        self
    }

    const fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
        }
    }

    /// A value of the family.
    pub(crate) fn value(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        let _ = write!(self.text, "{}{}", self.family, self.suffix());
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

    /// All of it.
    pub(crate) fn finish(mut self) -> String {
        if self.is_open {
            self.text += "# EOF\n";
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(accept: &str) -> String {
        let mut told = Exposition::for_client(accept);
        told.family(Kind::Counter, "consort_hits", "Reads that found something.")
            .value(&[("cache", "a\"b\\c\nd"), ("way", "x")], 7)
            .value(&[], 8);
        told.family(Kind::Gauge, "consort_open", "Open.").value(&[], 1.5);
        told.finish()
    }

    #[test]
    fn both_forms_have_their_names_and_ends() {
        let values = "consort_hits_total{cache=\"a\\\"b\\\\c\\nd\",way=\"x\"} 7\nconsort_hits_total 8\n";
        let open = "# HELP consort_open Open.\n# TYPE consort_open gauge\nconsort_open 1.5\n";
        assert_eq!(
            told("*/*"),
            format!(
                "# HELP consort_hits_total Reads that found something.\n# TYPE consort_hits_total counter\n{values}{open}"
            )
        );
        assert_eq!(
            told("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            format!(
                "# HELP consort_hits Reads that found something.\n# TYPE consort_hits counter\n{values}{open}# EOF\n"
            )
        );
    }
}
