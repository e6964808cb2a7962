//! The configurations in Infinispan's jars, parsed by Infinispan 16.0.7 and checked by `consort server --check`. The test prints the
//! table of docs/lab/2026-11-server-files.md (`-- --nocapture`).

use std::fs;
use std::path::{Path, PathBuf};

use consort_interop::Tool;
use consort_server::is_server_file;
use consort_testbed::ServerFiles;

/// Files that Infinispan accepts and Consort refuses, each with its first obstacle.
const REFUSED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/server-files/refused.txt");

/// Variables that files use without a default. Infinispan's parsers need them, too.
const VARIABLES: [(&str, &str); 1] = [("jboss.server.temp.dir", "/tmp")];

struct Row {
    /// The jar, and the path within it.
    name: String,
    /// The error of Infinispan.
    infinispan: Option<String>,
    /// Refused and ignored settings of a check by Consort.
    refused: Vec<String>,
    warnings: usize,
}

impl Row {
    fn refusal(&self) -> Option<String> {
        Some(format!("{}: {}", self.name, self.refused.first()?))
    }
}

/// Returns the variables that the file uses: Consort refuses one that no part of the file uses.
fn file_variables(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("a file");
    let used = VARIABLES.iter().filter(|(name, _)| text.contains(name));
    used.map(|(name, value)| format!("-D{name}={value}")).collect()
}

/// Options for a file that has no users or schemas of its own: a file of users, and a schema.
fn file_options(file: &Path, directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("a file");
    let mut options = Vec::new();
    if text.contains("<authorization") && !text.contains("<server") {
        // A role of the file, or a predefined one.
        let role =
            text.split("<role name=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("admin");
        let users = directory.join("users");
        fs::write(&users, format!("alice {role} password:wonderland\n")).expect("a file of users");
        options.push(format!("--users={}", users.display()));
    }
    if text.contains("context-initializer") {
        let schema = directory.join("empty.proto");
        fs::write(&schema, "syntax = \"proto3\";\n").expect("a schema");
        options.push(format!("--schema={}", schema.display()));
    }
    options
}

/// Texts of refused settings, without places, and the number of warnings.
fn check(file: &Path, directory: &Path) -> (Vec<String>, usize) {
    let path = file.display().to_string();
    let variables = file_variables(file);
    let options = file_options(file, directory);
    let mut arguments = vec!["server", "--data=data", "--check", &path];
    arguments.extend(variables.iter().chain(&options).map(String::as_str));
    let run = Tool::run_consort(&arguments);
    let text = String::from_utf8_lossy(&run.stdout).replace(&format!("{}/", directory.display()), "");
    let all_of = |severity: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(severity));
        lines.map(|(_, problem)| problem.to_owned()).collect::<Vec<_>>()
    };
    let refused = all_of("refused: ");
    assert_eq!(run.status.success(), refused.is_empty(), "{path}: {text}");
    (refused, all_of(": warning: ").len())
}

fn rows() -> Vec<Row> {
    let all = ServerFiles::prepare().expect("files of Infinispan");
    let is_wanted = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| is_server_file(&text));
    let files: Vec<PathBuf> = all.files().expect("files").into_iter().filter(is_wanted).collect();
    let parsed = all.parse(&files, &VARIABLES).expect("Infinispan's parsers");
    let rows = files.iter().map(|file| {
        let name = file.strip_prefix(all.directory()).expect("a file of a jar").display().to_string();
        let (refused, warnings) = check(file, all.directory());
        Row {
            name: name.replace("-16.0.7", "").replace("-tests/", "/"),
            infinispan: parsed[file].clone(),
            refused,
            warnings,
        }
    });
    rows.collect()
}

fn cell(text: &str) -> String {
    text.chars().take(120).collect::<String>().replace('|', "\\|").replace(['<', '>'], "`")
}

fn print(rows: &[Row]) {
    println!("| file | Infinispan | Consort | first obstacle |\n|---|---|---|---|");
    for row in rows {
        let infinispan = if row.infinispan.is_none() { "accepted" } else { "refused" };
        let (consort, obstacle) = match &row.refused[..] {
            [] if row.warnings == 0 => ("accepted".to_owned(), String::new()),
            [] => (format!("accepted, {} warnings", row.warnings), String::new()),
            all @ [first, ..] => (format!("{} refused", all.len()), cell(first)),
        };
        println!("| {} | {infinispan} | {consort} | {obstacle} |", row.name);
    }
    let both = |row: &&Row| row.infinispan.is_none() && row.refused.is_empty();
    println!(
        "\n{} files; Infinispan accepts {}, and Consort {} of those; Consort accepts {} of all",
        rows.len(),
        rows.iter().filter(|row| row.infinispan.is_none()).count(),
        rows.iter().filter(both).count(),
        rows.iter().filter(|row| row.refused.is_empty()).count(),
    );
}

#[test]
fn every_file_that_infinispan_accepts_is_accepted_except_the_listed_ones() {
    let rows = rows();
    print(&rows);
    assert!(rows.len() > 80, "{} files", rows.len());
    let accepted = rows.iter().filter(|row| row.infinispan.is_none());
    let refused: Vec<String> = accepted.filter_map(Row::refusal).collect();
    let listed = fs::read_to_string(REFUSED).expect("the list");
    let listed: Vec<&str> = listed.lines().filter(|line| !line.starts_with('#')).collect();
    let added: Vec<&String> = refused.iter().filter(|line| !listed.contains(&&line[..])).collect();
    let left: Vec<&&str> = listed.iter().filter(|line| !refused.iter().any(|own| *own == **line)).collect();
    assert!(
        added.is_empty() && left.is_empty(),
        "not listed: {added:#?}\nlisted, and not refused: {left:#?}"
    );
}
