//! `consort cache describe`: a cache's definition and state.

use serde_json::Value;

use super::cluster::{owners, progress};
use super::{cell, parse, print_json, print_text, units};
use crate::table::{Align, aligned};

pub(crate) fn print(answer: &str, is_json: bool) -> anyhow::Result<()> {
    let answer = parse(answer)?;
    if is_json { print_json(&answer) } else { print_text(&text(&answer)) }
}

fn text(answer: &Value) -> String {
    let mut rows = vec![row("name", cell(&answer["name"]))];
    if let Some((kind, settings)) = answer["definition"].as_object().and_then(|kinds| kinds.iter().next()) {
        rows.push(row("kind", kind.clone()));
        append(&mut rows, "", settings);
    }
    let lifecycle = match answer["lifecycle"].as_str() {
        Some("VOLATILE") => "until the last server ends".to_owned(),
        Some("PERMANENT") => "also after a restart of all servers that have --data".to_owned(),
        _ => cell(&answer["lifecycle"]),
    };
    rows.push(row("defined", lifecycle));
    rows.push(row("status", cell(&answer["status"])));
    if !answer["error"].is_null() {
        rows.push(row("error", cell(&answer["error"])));
    }
    let rebalancing = &answer["rebalancing"];
    if rebalancing.is_object() {
        let switch = if rebalancing["is_enabled"] == true { "on" } else { "off" };
        rows.push(row("rebalancing", format!("{switch}, {}", progress(rebalancing))));
    }
    rows.extend(here(&answer["here"]));
    let mut text = aligned(&rows, &[Align::Left; 2]);
    if let Some(segments) = answer.get("segments") {
        text += "\n";
        text += &unindented(&owners(segments));
    }
    text
}

fn row(name: &str, value: String) -> Vec<String> {
    vec![name.to_owned(), value]
}

/// Settings by their path, as `consort cache alter` takes them.
fn append(rows: &mut Vec<Vec<String>>, path: &str, settings: &Value) {
    for (name, value) in settings.as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match value {
            Value::Object(_) => append(rows, &path, value),
            Value::Array(all) => rows.push(row(&path, all.iter().map(cell).collect::<Vec<_>>().join(" "))),
            value => rows.push(row(&path, cell(value))),
        }
    }
}

fn here(state: &Value) -> Vec<Vec<String>> {
    let number = |name: &str| state[name].as_u64();
    let (Some(entries), Some(bytes)) = (number("entries"), number("bytes")) else { return Vec::new() };
    let mut held = format!("{entries} entries, {}", units::bytes(bytes));
    for (name, words) in
        [("passive_entries", "only in the store"), ("evictions", "evicted"), ("expirations", "expired")]
    {
        if let Some(count) = number(name).filter(|count| *count > 0) {
            held += &format!(", {count} {words}");
        }
    }
    let mut rows = vec![row(&format!("on {}", cell(&state["server"])), held)];
    if let Some(error) = state["store_error"].as_str() {
        rows.push(row("store error", error.to_owned()));
    }
    rows
}

fn unindented(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn description_has_settings_state_and_owners() {
        let answer = json!({
            "name": "shop", "lifecycle": "PERMANENT", "status": "RUNNING",
            "definition": {"distributed-cache": {"owners": 2, "segments": 4, "aliases": ["a", "b"],
                "memory": {"max-count": 7}}},
            "here": {"server": "A", "entries": 3, "bytes": 2048, "passive_entries": 0, "evictions": 5, "expirations": 0,
                "store_error": null},
            "segments": {"segments": 4, "owners": 2, "topology": 1, "availability": "AVAILABLE", "without_owner": 0,
                "with_fewer_owners": 0, "members": [{"name": "A", "primary": 4, "backup": 0, "reachable": true}]},
            "rebalancing": {"is_enabled": true, "phase": "NO_REBALANCE"},
        });
        assert_eq!(
            text(&answer),
            "name              shop\n\
             kind              distributed-cache\n\
             aliases           a b\n\
             memory.max-count  7\n\
             owners            2\n\
             segments          4\n\
             defined           also after a restart of all servers that have --data\n\
             status            RUNNING\n\
             rebalancing       on, idle\n\
             on A              3 entries, 2.00 KiB, 5 evicted\n\n\
             4 segments, 2 owners, topology 1, AVAILABLE\n\
             member  primary  backup\n\
             A             4       0\n"
        );
    }

    #[test]
    fn description_of_a_failed_cache_has_the_error() {
        let answer = json!({"name": "shop", "lifecycle": "VOLATILE", "status": "FAILED", "error": "no\nspace",
                            "definition": {"local-cache": {}}});
        assert_eq!(
            text(&answer),
            "name     shop\nkind     local-cache\ndefined  until the last server ends\nstatus   FAILED\nerror    \
             no\\nspace\n"
        );
    }
}
