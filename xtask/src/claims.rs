//! The table of claims, `docs/claims.md`: complete, and true as far as names go. An honest `open` is no failure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::steps::Outcome;

const TABLE: &str = "docs/claims.md";

/// It names tests for its promises, too.
const PROMISES: &str = "docs/security.md";

/// The claims that need a row, by series.
const LISTED: &[(&str, &[RangeInclusive<u32>])] = &[
    ("S000", &[1..=16, 20..=47, 50..=92]),
    ("S001", &[1..=9]),
    ("S002", &[1..=25]),
    ("S003", &[1..=17]),
    ("S004", &[1..=22]),
];

fn listed() -> BTreeSet<String> {
    let numbers =
        LISTED.iter().flat_map(|(series, ranges)| ranges.iter().map(move |range| (series, range.clone())));
    numbers.flat_map(|(series, range)| range.map(move |number| format!("{series}-{number}"))).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    id: &'a str,
    proof: &'a str,
    state: &'a str,
}

/// `| id | promise | proof | state |`.
fn rows(table: &str) -> Vec<Result<Row<'_>, String>> {
    let lines = table.lines().filter(|line| line.starts_with("| S0"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
            match cells[..] {
                [id, promise, proof, state] if !promise.is_empty() => Ok(Row { id, proof, state }),
                _ => Err(format!("not a row of four cells: {line}")),
            }
        })
        .collect()
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn tests_in(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    quoted(cell).filter_map(|part| part.split_once("::").filter(|(file, _)| file.ends_with(".rs")))
}

fn ids_in(text: &str) -> BTreeSet<&str> {
    let starts = text.match_indices("S00").filter_map(|(at, _)| text.get(at..));
    let ids = starts.filter_map(|rest| {
        let series = rest
            .get(3..5)
            .filter(|part| part.starts_with(|digit: char| digit.is_ascii_digit()) && part.ends_with('-'))?;
        let digits = rest[3 + series.len()..].bytes().take_while(u8::is_ascii_digit).count();
        rest.get(..5 + digits).filter(|_| digits > 0)
    });
    ids.collect()
}

/// A function with a test attribute, one that a macro makes tests of (`{ name:`), or one in a documentation example.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_function = |line: &str| {
        let after = line.split_once("fn ").map(|(_, after)| after);
        after.and_then(|after| after.strip_prefix(name)).is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    lines.iter().enumerate().filter(|(_, line)| is_function(line)).any(|(at, line)| {
        let above =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        line.starts_with("//")
            || above.into_iter().any(|line| line.starts_with("#[") && line.contains("test"))
            || source.contains(&format!("! {{ {name}:"))
    })
}

/// The number of rows in each state, or the faults.
fn check(
    table: &str,
    sources: &BTreeMap<String, String>,
    listed: &BTreeSet<String>,
) -> Result<[usize; 3], Vec<String>> {
    let (mut wrong, mut counts) = (Vec::new(), [0; 3]);
    let mut seen = BTreeSet::new();
    for row in rows(table) {
        let Row { id, proof, state } = match row {
            Ok(row) => row,
            Err(why) => {
                wrong.push(why);
                continue;
            }
        };
        if !listed.contains(id) {
            wrong.push(format!("{id} is not on the list"));
        }
        if !seen.insert(id.to_owned()) {
            wrong.push(format!("{id} has two rows"));
        }
        for (file, test) in tests_in(proof).chain(tests_in(state)) {
            match sources.get(file) {
                None => wrong.push(format!("{id}: there is no {file}")),
                Some(source) if !has_test(source, test) => {
                    wrong.push(format!("{id}: {file} has no test {test}"));
                }
                Some(_) => {}
            }
        }
        let kind = match state {
            "proved" if tests_in(proof).next().is_some() => 0,
            "proved" => {
                wrong.push(format!("{id} is said to be proved and names no test"));
                continue;
            }
            _ if state.starts_with("measured by `") => 1,
            _ if state.strip_prefix("open: ").is_some_and(|what| !what.is_empty()) => 2,
            _ => {
                wrong.push(format!("{id}: `{state}` is none of: proved; measured by `…`; open: …"));
                continue;
            }
        };
        counts[kind] += 1;
    }
    wrong.extend(listed.difference(&seen).map(|id| format!("{id} has no row")));
    for (file, source) in sources {
        let unknown = ids_in(source).into_iter().filter(|id| !listed.contains(*id));
        wrong.extend(unknown.map(|id| format!("{file} names {id}, which has no row")));
    }
    if wrong.is_empty() { Ok(counts) } else { Err(wrong) }
}

fn missing_tests(text: &str, sources: &BTreeMap<String, String>) -> Vec<String> {
    let is_missing =
        |(file, test): &(&str, &str)| !sources.get(*file).is_some_and(|source| has_test(source, test));
    tests_in(text).filter(is_missing).map(|(file, test)| format!("{file} has no test {test}")).collect()
}

/// Below `crates`, by their paths in the repository.
pub(crate) fn sources(root: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let mut folders: Vec<PathBuf> = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                sources.insert(name, fs::read_to_string(&path)?);
            }
        }
    }
    Ok(sources)
}

/// The repository in which cargo runs this program. A compiled one may come from a copy of it.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest.parent().unwrap_or(Path::new(".")).to_owned()
});

pub(crate) fn root() -> &'static Path {
    &ROOT
}

pub(crate) fn run() -> Outcome {
    let root = root();
    let read = fs::read_to_string(root.join(TABLE)).and_then(|table| Ok((table, sources(root)?)));
    let (table, sources) = match read {
        Ok(read) => read,
        Err(error) => return Outcome::Failed(format!("{TABLE} and the sources: {error}")),
    };
    let missing = fs::read_to_string(root.join(PROMISES)).map(|text| missing_tests(&text, &sources));
    match missing {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => {
            missing.iter().for_each(|what| eprintln!("{PROMISES}: {what}"));
            return Outcome::Failed(format!("{} tests are missing that {PROMISES} names", missing.len()));
        }
        Err(error) => return Outcome::Failed(format!("{PROMISES}: {error}")),
    }
    match check(&table, &sources, &listed()) {
        Ok([proved, measured, open]) => {
            println!("{proved} proved, {measured} measured, {open} open");
            Outcome::Passed
        }
        Err(wrong) => {
            wrong.iter().for_each(|what| eprintln!("{TABLE}: {what}"));
            Outcome::Failed(format!("{} mistakes in {TABLE}", wrong.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "/// X-1\n#[test]\nfn it_holds() {}\nfn helper() {}\n\
        async fn made(config: &str) {}\nfor_each! { made:\n one }\n//! fn example() {\n";

    #[test]
    fn a_promise_that_names_a_test_that_is_not_there_is_found() {
        let sources = [("crates/a.rs".to_owned(), SOURCE.to_owned())].into();
        assert_eq!(missing_tests("Held: `crates/a.rs::it_holds`, `crates/a.rs`.", &sources), [""; 0]);
        let missing = missing_tests("`crates/a.rs::gone` `crates/b.rs::it_holds`", &sources);
        assert_eq!(missing, ["crates/a.rs has no test gone", "crates/b.rs has no test it_holds"]);
    }

    fn checked(table: &str) -> Result<[usize; 3], Vec<String>> {
        let sources = BTreeMap::from([("crates/a.rs".to_owned(), SOURCE.to_owned())]);
        check(table, &sources, &["S000-2", "S001-1"].map(str::to_owned).into())
    }

    #[test]
    fn rows_are_counted_by_state() {
        let table = "| id | promise | proof | state |\n\
            | S000-2 | holds | `crates/a.rs::it_holds` | proved |\n\
            | S001-1 | is quick | `run it` | measured by `run it` |\n";
        assert_eq!(checked(table), Ok([1, 1, 0]));
        assert_eq!(checked(&table.replace("measured by `run it`", "open: a second run")), Ok([1, 0, 1]));
    }

    #[test]
    fn what_is_inconsistent_is_named() {
        let table = "| S000-2 | a | `crates/a.rs::helper` | proved |\n| S000-2 | a | | proved |\n\
            | S000-9 | a | `crates/b.rs::x` | open: |\n";
        let wrong = checked(table).unwrap_err();
        for what in [
            "S000-2: crates/a.rs has no test helper",
            "S000-2 has two rows",
            "S000-2 is said to be proved and names no test",
            "S000-9 is not on the list",
            "S000-9: there is no crates/b.rs",
            "S001-1 has no row",
        ] {
            assert!(wrong.iter().any(|wrong| wrong == what), "{what}: {wrong:?}");
        }
    }

    #[test]
    fn tests_are_functions_with_an_attribute_of_a_macro_or_in_an_example() {
        let found = ["it_holds", "helper", "made", "example", "it_hold"].map(|name| has_test(SOURCE, name));
        assert_eq!(found, [true, false, true, true, false]);
    }

    #[test]
    fn ids_are_found_wherever_they_stand() {
        let ids = ids_in("S000-3 and S001-17, not S001, S00-4 or S000-x");
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), ["S000-3", "S001-17"]);
        assert_eq!(listed().len(), 160);
    }
}
