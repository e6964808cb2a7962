use std::path::Path;

use anyhow::Context;
use consort_procstat::grouped;
use serde::Serialize;

use crate::record::Record;
use crate::targets::{Rival, Row};

#[derive(Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cpus: usize,
    memory_gb: f64,
    system: String,
    /// Runnable processes in the minute before the first run.
    load_before: f64,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let field = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            line.and_then(|rest| Some(rest.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
        };
        let first = |file: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            text.split_whitespace().next().unwrap_or_default().to_owned()
        };
        let kilobytes = field("/proc/meminfo", "MemTotal");
        let kilobytes = kilobytes.split_whitespace().next().and_then(|number| number.parse::<f64>().ok());
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gb: kilobytes.unwrap_or_default() / 1e6,
            system: format!("Linux {}", first("/proc/sys/kernel/osrelease")),
            load_before: first("/proc/loadavg").parse().unwrap_or_default(),
        }
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "{} x {}, {:.0} GB, {}; load before the first run {:.2}",
            self.cpus, self.cpu, self.memory_gb, self.system, self.load_before
        )
    }
}

pub(crate) fn print(record: &Record) {
    println!(
        "{} members on this host, {} runs of {} s each, {}",
        record.members,
        record.runs,
        record.seconds,
        record.java.as_deref().unwrap_or("without JGroups")
    );
    if record.quick {
        println!("A quick look on cold JVMs: no figures to keep.");
    }
}

pub(crate) fn print_rows(rows: &[Row]) {
    for rival in Rival::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.rival == rival).collect();
        if !rows.is_empty() {
            println!("\n{}", markdown(&table(rival.name(), &rows), 2));
        }
    }
}

pub(crate) fn print_met(rows: &[Row]) {
    let met = |wanted| rows.iter().filter(|row| row.is_met() == Some(wanted)).count();
    println!("\n{} targets met, {} missed", met(true), met(false));
}

pub(crate) fn write(file: &Path, content: &serde_json::Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(content)? + "\n";
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

fn table(other: Option<&str>, rows: &[&Row]) -> Vec<Vec<String>> {
    let head = [
        "subject",
        "figure",
        "Consort",
        "spread",
        other.unwrap_or_default(),
        "spread",
        "ratio",
        "target",
        "met",
    ];
    // Figures without a contestant have neither its figures nor a ratio.
    let is_shown = |column: usize| other.is_some() || !(4..7).contains(&column);
    let shown = |cells: Vec<String>| -> Vec<String> {
        cells.into_iter().enumerate().filter(|(column, _)| is_shown(*column)).map(|(_, cell)| cell).collect()
    };
    let mut table = vec![shown(head.map(str::to_owned).to_vec())];
    let percent = |spread: Option<f64>| spread.map_or_else(String::new, |spread| format!("{spread:.0} %"));
    for row in rows {
        table.push(shown(vec![
            row.subject.clone(),
            row.figure.to_owned(),
            number(row.consort),
            percent(row.consort_spread),
            number(row.other),
            percent(row.other_spread),
            row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            row.target.map_or_else(String::new, |target| target.text()),
            row.is_met().map_or("", |met| if met { "yes" } else { "no" }).to_owned(),
        ]));
    }
    table
}

/// Three significant digits: 0.62, 31.0, 4,218.
pub(crate) fn number(number: Option<f64>) -> String {
    let Some(number) = number else { return "-".to_owned() };
    if number < 10.0 {
        return format!("{number:.2}");
    }
    if number < 100.0 {
        return format!("{number:.1}");
    }
    grouped(number)
}

pub(crate) fn markdown(rows: &[Vec<String>], text_columns: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max())
        .map(|width| width.unwrap_or(0).max(3))
        .collect();
    let mut text = String::new();
    for (nth, row) in rows.iter().enumerate() {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if column < text_columns {
                text.push_str(&format!("| {cell:<width$} "));
            } else {
                text.push_str(&format!("| {cell:>width$} "));
            }
        }
        text.push_str("|\n");
        if nth == 0 {
            for (column, &width) in widths.iter().enumerate() {
                let end = if column < text_columns { '-' } else { ':' };
                text.push_str(&format!("| {}{end} ", "-".repeat(width - 1)));
            }
            text.push_str("|\n");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_groups() {
        assert_eq!(number(Some(0.6249)), "0.62");
        assert_eq!(number(Some(31.04)), "31.0");
        assert_eq!(number(Some(37_041.9)), "37,042");
        assert_eq!(number(None), "-");
    }

    #[test]
    fn a_table_reads_as_it_is_and_as_markdown() {
        let rows = [["a", "b", "figure"], ["long", "b", "7"]].map(|row| row.map(str::to_owned).to_vec());
        let expected = "| a    | b   | figure |\n| ---- | --- | -----: |\n| long | b   |      7 |";
        assert_eq!(markdown(&rows, 2), expected);
    }
}
