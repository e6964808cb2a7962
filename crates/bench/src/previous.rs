//! Figures of an earlier release beside today's.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use crate::report::{markdown, number};
use crate::targets::{Row, is_cost};

pub(crate) struct Previous(BTreeMap<(String, String), f64>);

pub(crate) fn read(file: &Path) -> anyhow::Result<Previous> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let content: Value = serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
    let rows = content["rows"].as_array().with_context(|| format!("no rows in {}", file.display()))?;
    let figures = rows.iter().filter_map(|row| {
        let name = |field: &str| row[field].as_str().map(str::to_owned);
        Some(((name("subject")?, name("figure")?), row["consort"].as_f64()?))
    });
    Ok(Previous(figures.collect()))
}

impl Previous {
    /// Whether no operation costs more CPU than before by more than `tolerance` percent.
    pub(crate) fn compare(&self, rows: &[Row], tolerance: f64) -> bool {
        let head = ["subject", "figure", "before", "now", "change", ""];
        let mut table = vec![head.map(str::to_owned).to_vec()];
        let mut is_good = true;
        for row in rows {
            let key = (row.subject.clone(), row.figure.to_owned());
            let Some((&before, now)) = self.0.get(&key).zip(row.consort) else { continue };
            let change = (now / before - 1.0) * 100.0;
            let is_slower = is_cost(row.figure) && change > tolerance;
            is_good &= !is_slower;
            table.push(vec![
                key.0,
                key.1,
                number(Some(before)),
                number(Some(now)),
                format!("{change:+.1} %"),
                if is_slower { "slower" } else { "" }.to_owned(),
            ]);
        }
        table.dedup();
        println!("\n{}", markdown(&table, 2));
        is_good
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::Rival;

    fn row(figure: &'static str, consort: f64) -> Row {
        Row {
            subject: "uperf".to_owned(),
            figure,
            rival: Rival::Jgroups,
            consort: Some(consort),
            consort_spread: None,
            other: None,
            other_spread: None,
            ratio: None,
            target: None,
            met: None,
        }
    }

    /// S001-8: a release that costs more CPU per operation than the one before it fails.
    #[test]
    fn more_cpu_than_before_is_a_failure() {
        let previous = Previous(BTreeMap::from([
            (("uperf".to_owned(), "CPU us/call".to_owned()), 10.0),
            (("uperf".to_owned(), "p50 us".to_owned()), 10.0),
        ]));
        assert!(previous.compare(&[row("CPU us/call", 10.4)], 5.0));
        assert!(!previous.compare(&[row("CPU us/call", 10.6)], 5.0));
        assert!(previous.compare(&[row("p50 us", 20.0)], 5.0), "other figures are too noisy");
        assert!(!is_cost(crate::targets::NANOS_ADDED), "a difference near zero has no percentage");
    }
}
