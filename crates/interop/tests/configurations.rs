//! JGroups' own configurations and Infinispan's defaults from 9.4 to 16.0, loaded by Java and by Consort. The test prints
//! the table of docs/lab/2026-11-configurations.md (`-- --nocapture`).
//!
//! `CONSORT_CONFIGURATIONS=DIRECTORY` adds the files of a directory, such as `conf/relay` of JGroups' repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use consort_conf::{Variables, check_required_layers, load_stack};
use consort_interop::Tool;
use consort_testbed::{Configurations, brief_jvm};
use serde_json::Value;

/// Variables without a default in Infinispan's files: a name in DNS, and the routers of TUNNEL.
const VARIABLES: [(&str, &str); 2] =
    [("jgroups.dns.query", "localhost"), ("jgroups.tunnel.hosts", "localhost[12001]")];

const SHORT_KEYS: &str = "RSA keys of 512 bits, which can be factored";
const ONLY_POSTGRESQL: &str = "JDBC_PING2 with another database than PostgreSQL";
const BELOW_UNICAST: &str = "RELAY3 below UNICAST3";

/// Files that Java loads and Consort does not, with what they need.
const NOT_LOADED: &[(&str, &str)] = &[
    ("asym-encrypt.xml", SHORT_KEYS),
    ("encrypt.xml", SHORT_KEYS),
    ("auth_krb5.xml", "AUTH with Krb5Token"),
    ("fork.xml", "protocols of fork stacks (FORK's `config`)"),
    ("jdbc-hsql.xml", ONLY_POSTGRESQL),
    ("jdbc-mysql.xml", ONLY_POSTGRESQL),
    // Of JGroups' repository.
    ("hf.xml", BELOW_UNICAST),
    ("net1.xml", BELOW_UNICAST),
    ("net2.xml", BELOW_UNICAST),
    ("net3.xml", BELOW_UNICAST),
];

/// The error of each file, or `None` if a release of JGroups loads it.
type Errors = BTreeMap<PathBuf, Option<String>>;

struct Row {
    origin: String,
    name: String,
    /// Errors of the file's own JGroups, and of JGroups 5.5.7.
    own: Option<String>,
    current: Option<String>,
    /// The number of attributes without effect, or the error.
    consort: Result<usize, String>,
}

/// Loads files with a release of JGroups. A file counts if all protocols and attributes are known: a channel also reads keys and
/// loads drivers of databases.
fn load_with_java(classpath: &str, files: &[PathBuf]) -> Errors {
    let mut java = brief_jvm();
    java.arg("-Djava.net.preferIPv4Stack=true");
    java.args(VARIABLES.map(|(name, value)| format!("-D{name}={value}")));
    java.args(["-cp", classpath, "consort.interop.Configurations"]).args(files);
    let output = java.stdin(Stdio::null()).output().expect("java");
    let text = String::from_utf8_lossy(&output.stdout);
    let answers = text.lines().filter_map(|line| line.strip_prefix("@@ "));
    let errors: Errors = answers
        .map(|line| {
            let answer: Value = serde_json::from_str(line).expect("JSON");
            let text = |name: &str| answer[name].as_str().map(str::to_owned);
            let error = text("channel").filter(|_| text("stack").is_some());
            (PathBuf::from(text("file").expect("a file")), error)
        })
        .collect();
    assert_eq!(errors.len(), files.len(), "{}", String::from_utf8_lossy(&output.stderr));
    errors
}

fn load_with_consort(file: &Path) -> Result<usize, String> {
    let variables =
        VARIABLES.iter().fold(Variables::new(), |variables, (name, value)| variables.with(*name, *value));
    let name = file.display().to_string();
    let stack = load_stack(&name, &variables).map_err(|error| error.to_string().replace(&name, ""))?;
    // Parts that other files include have no GMS.
    if stack.config.protocols.len() > 1 {
        check_required_layers(&stack.config).map_err(|error| error.to_string().replace(&name, ""))?;
    }
    Ok(stack.ignored.len())
}

/// JGroups' files, and further ones, have no other release than 5.5.7.
fn rows() -> Vec<Row> {
    let mut all = Configurations::prepare().expect("configurations of jars");
    let current = all.last().expect("JGroups' own").clone();
    if let Some(directory) = std::env::var_os("CONSORT_CONFIGURATIONS") {
        let entries =
            std::fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|extension| extension == "xml")).collect();
        files.sort();
        let origin = Path::new(&directory).file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push(Configurations { origin, files, ..current.clone() });
    }
    let files: Vec<PathBuf> = all.iter().flat_map(|one| one.files.clone()).collect();
    let now = load_with_java(&current.classpath, &files);
    let mut rows = Vec::new();
    for Configurations { origin, jgroups, classpath, files } in all {
        let own = if jgroups == current.jgroups { now.clone() } else { load_with_java(&classpath, &files) };
        for file in files {
            rows.push(Row {
                origin: format!("{origin} (JGroups {jgroups})"),
                name: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                own: own[&file].clone(),
                current: now[&file].clone(),
                consort: load_with_consort(&file),
            });
        }
    }
    rows
}

/// What the file needs, or the first line of the error without place and alternative.
fn reason(name: &str, error: &str) -> String {
    if let Some((_, needed)) = NOT_LOADED.iter().find(|(listed, _)| *listed == name) {
        return (*needed).to_owned();
    }
    let line = error.lines().next().unwrap_or_default();
    let text = line.trim_start_matches(|c: char| c == ':' || c.is_ascii_digit()).trim();
    text.split(';').next().unwrap_or_default().replace('|', "\\|")
}

fn print(rows: &[Row]) {
    println!("| origin | file | its JGroups | JGroups 5.5.7 | Consort | reason |\n|---|---|---|---|---|---|");
    let mark = |error: &Option<String>| if error.is_some() { "refuses" } else { "loads" };
    for row in rows {
        let (consort, why) = match &row.consort {
            Ok(0) => ("loads".to_owned(), String::new()),
            Ok(unused) => (format!("loads, {unused} without effect"), String::new()),
            Err(error) => ("refuses".to_owned(), reason(&row.name, error)),
        };
        let (own, current) = (mark(&row.own), mark(&row.current));
        println!("| {} | {} | {own} | {current} | {consort} | {why} |", row.origin, row.name);
    }
    let count = |is_one: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is_one(row)).count();
    println!(
        "\n{} files; their own JGroups loads {}, JGroups 5.5.7 {}, Consort {}",
        rows.len(),
        count(&|row| row.own.is_none()),
        count(&|row| row.current.is_none()),
        count(&|row| row.consort.is_ok()),
    );
}

#[test]
fn every_configuration_that_java_loads_is_loaded_except_the_listed_ones() {
    let rows = rows();
    print(&rows);
    let listed = |row: &Row| NOT_LOADED.iter().any(|(name, _)| *name == row.name);
    let refused: Vec<String> = rows
        .iter()
        .filter(|row| row.own.is_none() || row.current.is_none())
        .filter(|row| !listed(row))
        .filter_map(|row| {
            let error = row.consort.as_ref().err()?;
            Some(format!("{} {}: {error}", row.origin, row.name))
        })
        .collect();
    assert!(refused.is_empty(), "Java loads them:\n{}", refused.join("\n"));
    let loaded: Vec<&str> =
        rows.iter().filter(|row| listed(row) && row.consort.is_ok()).map(|row| row.name.as_str()).collect();
    assert!(loaded.is_empty(), "listed, but loaded: {loaded:?}");
}

/// Checks a server's file whose stack is a file of Infinispan. The verdict is the last line.
fn check_server_file(stack: &Path) -> (bool, Vec<String>) {
    let file = std::env::temp_dir().join(format!("consort-{}-server-file.xml", std::process::id()));
    let text = format!(
        "<infinispan><jgroups><stack-file name=\"s\" path=\"{}\"/></jgroups><cache-container><transport stack=\"s\"/>\
         </cache-container></infinispan>",
        stack.display()
    );
    std::fs::write(&file, text).expect("a file");
    let variables = VARIABLES.map(|(name, value)| format!("-D{name}={value}"));
    let path = file.display().to_string();
    let mut arguments = vec!["server", "--data=data", "--check", &path];
    arguments.extend(variables.iter().map(String::as_str));
    let run = Tool::run_consort(&arguments);
    std::fs::remove_file(&file).expect("the file");
    let lines = String::from_utf8_lossy(&run.stdout).into_owned();
    let refused = lines.lines().filter(|line| line.contains(": refused: ")).map(str::to_owned).collect();
    (run.status.success(), refused)
}

/// Infinispan's jars have stacks; the server's own file is checked in `server/server_file.rs`.
#[test]
fn server_file_with_a_stack_of_infinispan_is_accepted_if_the_stack_is() {
    let all = Configurations::prepare().expect("configurations of jars");
    println!("| origin | stack | consort server --check |\n|---|---|---|");
    let mut checked = 0;
    for one in all.iter().filter(|one| one.origin.starts_with("Infinispan")) {
        for file in &one.files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (can_start, refused) = check_server_file(file);
            let verdict =
                if can_start { "accepted".to_owned() } else { format!("refused: {}", refused.join("; ")) };
            println!("| {} | {name} | {verdict} |", one.origin);
            assert_eq!(can_start, refused.is_empty(), "{name}");
            let loads = load_with_consort(file);
            // Four names mean Infinispan's own stacks of version 16, as in Infinispan.
            assert!(can_start || loads.is_err(), "{name}: {refused:?}");
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked} files");
}
