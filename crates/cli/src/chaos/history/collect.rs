use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::record::{Completion, Fault, Invocation, Line, Outcome};

const FORMAT: u32 = 1;

#[derive(Clone, Copy, Default, Debug)]
pub(in crate::chaos) struct Summary {
    pub(crate) acknowledged: u64,
    pub(crate) unchanged: u64,
    pub(crate) uncertain: u64,
    pub(crate) unfinished: u64,
}

impl Summary {
    pub(in crate::chaos) fn text(&self, file: &Path, faults: usize) -> String {
        let Self { acknowledged, unchanged, uncertain, unfinished } = self;
        format!(
            "{}: {} operations, {acknowledged} acknowledged, {unchanged} failed without effect, {uncertain} uncertain, \
             {unfinished} unfinished; {faults} events",
            file.display(),
            acknowledged + unchanged + uncertain + unfinished,
        )
    }
}

#[derive(Serialize)]
struct Header<'a> {
    consort_history: u32,
    access: &'a str,
}

#[derive(Serialize)]
struct Operation<'a> {
    #[serde(flatten)]
    invocation: &'a Invocation,
    outcome: Outcome,
    found: Option<&'a str>,
    done: Option<bool>,
    error: Option<&'a str>,
    completed_ns: Option<u64>,
}

/// Operations are in the order of their invocations.
pub(in crate::chaos) fn collect(
    directory: &Path,
    access: &str,
    faults: &[Fault],
    file: &Path,
) -> anyhow::Result<Summary> {
    let mut operations = read_all(directory)?;
    operations.sort_by_key(|(invocation, _)| invocation.invoked_ns);
    let output = File::create(file).with_context(|| format!("creating {}", file.display()))?;
    let mut output = BufWriter::new(output);
    let in_file = || format!("writing {}", file.display());
    write_line(&mut output, &Header { consort_history: FORMAT, access }).with_context(in_file)?;
    for fault in faults {
        write_line(&mut output, fault).with_context(in_file)?;
    }
    let mut summary = Summary::default();
    for (invocation, completion) in &operations {
        let outcome = completion.as_ref().map_or(Outcome::Unfinished, |completion| completion.outcome);
        *match outcome {
            Outcome::Ok => &mut summary.acknowledged,
            Outcome::Unchanged => &mut summary.unchanged,
            Outcome::Uncertain => &mut summary.uncertain,
            Outcome::Unfinished => &mut summary.unfinished,
        } += 1;
        let operation = Operation {
            invocation,
            outcome,
            found: completion.as_ref().and_then(|completion| completion.found.as_deref()),
            done: completion.as_ref().and_then(|completion| completion.done),
            error: completion.as_ref().and_then(|completion| completion.error.as_deref()),
            completed_ns: completion.as_ref().map(|completion| completion.completed_ns),
        };
        write_line(&mut output, &operation).with_context(in_file)?;
    }
    output.flush().with_context(in_file)?;
    Ok(summary)
}

fn write_line(output: &mut impl Write, line: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *output, line)?;
    output.write_all(b"\n")?;
    Ok(())
}

fn read_all(directory: &Path) -> anyhow::Result<Vec<(Invocation, Option<Completion>)>> {
    let mut operations = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            operations.extend(read(BufReader::new(file)).with_context(|| path.display().to_string())?);
        }
    }
    Ok(operations)
}

/// A process may have ended before an operation's completion.
///
/// A killed process can leave the beginning of a line, because the kernel ends a write that crosses a page.
/// Such a line is left out: an invocation has not begun then, and a completion leaves its operation
/// unfinished.
fn read(mut lines: impl BufRead) -> anyhow::Result<Vec<(Invocation, Option<Completion>)>> {
    let mut operations = BTreeMap::new();
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        match serde_json::from_slice(&std::mem::take(&mut line))? {
            Line::Invoked(number, invocation) => {
                operations.insert(number, (invocation, None));
            }
            Line::Completed(number, completion) => {
                let (_, end) = operations.get_mut(&number).context("a completion without its invocation")?;
                *end = Some(completion);
            }
        }
    }
    Ok(operations.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::super::record::{Consistency, Recorder, Verb};
    use super::*;

    fn invocation(key: &str, invoked_ns: u64) -> Invocation {
        Invocation {
            client: "A-1-0".to_owned(),
            member: "A".to_owned(),
            key: key.to_owned(),
            operation: Verb::Swap,
            argument: Some("v1".to_owned()),
            expected: None,
            consistency: Consistency::Linearizable,
            invoked_ns,
        }
    }

    #[test]
    fn incomplete_last_line_of_a_killed_process_is_ignored() {
        let mut lines = Vec::new();
        for number in [1, 2] {
            write_line(&mut lines, &Line::Invoked(number, invocation("key", number))).unwrap();
        }
        let whole = lines.len();
        let completion =
            Completion { outcome: Outcome::Ok, found: None, done: None, error: None, completed_ns: 30 };
        write_line(&mut lines, &Line::Completed(1, completion)).unwrap();
        let completed = |bytes: &[u8]| {
            read(bytes).map(|all| all.iter().map(|(_, end)| end.is_some()).collect::<Vec<_>>())
        };
        assert_eq!(completed(&lines).unwrap(), [true, false]);
        for end in whole..lines.len() {
            assert_eq!(completed(&lines[..end]).unwrap(), [false, false], "{end}");
        }
        assert_eq!(completed(&lines[..whole / 2 + 3]).unwrap(), [false]);
        // In the middle it is damage.
        lines[whole - 3] = b'{';
        completed(&lines).unwrap_err();
    }

    #[test]
    fn operation_without_completion_is_unfinished_and_order_is_by_invocation() {
        let directory = std::env::temp_dir().join(format!("consort-history-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let recorder = Recorder::create(&directory).unwrap();
        let late = recorder.invoke(invocation("late", 20)).unwrap();
        recorder.invoke(invocation("early", 10)).unwrap();
        let completion = Completion {
            outcome: Outcome::Ok,
            found: Some("v0".to_owned()),
            done: None,
            error: None,
            completed_ns: 30,
        };
        recorder.complete(late, completion).unwrap();
        let file = directory.join("history.json");
        let summary = collect(&directory, "embedded", &[], &file).unwrap();
        assert_eq!((summary.acknowledged, summary.unfinished), (1, 1));
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["consort_history"], 1);
        assert_eq!((&lines[1]["key"], &lines[1]["outcome"]), (&"early".into(), &"unfinished".into()));
        assert_eq!((&lines[2]["found"], &lines[2]["completed_ns"]), (&"v0".into(), &30.into()));
        fs::remove_dir_all(&directory).unwrap();
    }
}
