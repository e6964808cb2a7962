use std::collections::BTreeMap;
use std::time::Duration;

use consort_procstat::grouped;

use super::events::Row;

const HEAD: [&str; 8] = [
    "event",
    "calls",
    "lost writes",
    "hung calls",
    "failed calls",
    "stale reads",
    "longest pause of service",
    "all owners again after",
];

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn kinds(failed: &BTreeMap<String, u64>) -> String {
    let all: Vec<String> =
        failed.iter().map(|(kind, count)| format!("{} {kind}", grouped(*count as f64))).collect();
    if all.is_empty() { "0".to_owned() } else { all.join(", ") }
}

fn both(others: String, faulty: &str) -> String {
    if faulty == "0" { others } else { format!("{others}; there {faulty}") }
}

fn cells(row: &Row) -> [String; 8] {
    let calls = row.others.reads + row.others.writes + row.faulty.reads + row.faulty.writes;
    let hung = row.others.hung + row.faulty.hung;
    let lost = row.found.lost + row.found.wrong + row.found.failed;
    // In a rolling restart every member is one of the others and faulty in its turn.
    let pause = row.others.pause_ms;
    [
        row.event.clone(),
        grouped(calls as f64),
        lost.to_string(),
        hung.to_string(),
        both(kinds(&row.others.failed), &kinds(&row.faulty.failed)),
        both(row.others.stale.to_string(), &row.faulty.stale.to_string()),
        seconds(Duration::from_millis(pause)),
        seconds(row.whole),
    ]
}

pub(crate) fn markdown(rows: &[Row]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&HEAD.map(str::to_owned)) + &line(&HEAD.map(|_| "---".to_owned()));
    for row in rows {
        text += &line(&cells(row));
    }
    let notes: Vec<String> = rows
        .iter()
        .filter(|row| !row.note.is_empty())
        .map(|row| format!("* {}: {}.\n", row.event, row.note))
        .collect();
    if notes.is_empty() { text } else { text + "\n" + &notes.concat() }
}

pub(crate) fn text(row: &Row) -> String {
    let cells = cells(row);
    let mut text = format!("{}\n", cells[0]);
    for (name, cell) in HEAD.iter().zip(&cells).skip(1) {
        text += &format!("  {name:<26}{cell}\n");
    }
    if !row.note.is_empty() {
        text += &format!("  {}\n", row.note);
    }
    if let Some(example) = &row.found.example {
        text += &format!("  {example}\n");
    }
    text
}
