//! The commands in the documents: every block of shell commands in the README and in `docs` runs, or has a
//! reason against it.
//!
//! A comment above a block gives instructions:
//!
//! * `<!-- not run: REASON -->` for blocks that need more than this machine has, programs that are only
//!   compiled, and other languages.
//! * `<!-- prints: TEXT -->`: the output of the block contains this text.
//! * `<!-- exits with CODE -->`: each command of the block ends with this code instead of 0.
//! * `<!-- stops servers -->`: the document's servers end before the block runs.
//!
//! The blocks of a document run in order in one folder, with the `consort` built here, in a network of their
//! own. Servers run in the background until the document ends.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use consort_netns::{KillOnDrop, Network, own_network};

use crate::claims::root;
use crate::interop;
use crate::steps::{Outcome, cargo, status};

/// The limit of one command in seconds.
const TIME_MAX: &str = "120";

/// Each program with an argument that has no effect.
const TOOLS: [(&str, &str); 6] = [
    ("unshare", "--version"),
    ("ip", "-V"),
    ("bash", "--version"),
    ("timeout", "--version"),
    ("curl", "--version"),
    ("pkill", "--version"),
];

/// Commands that run until they are stopped, with the beginning of the line that they print when they work.
const LASTING: [(&str, &str); 2] = [("consort server", "Hot Rod on "), ("consort cache watch", "")];

/// Programs of documents as documentation tests.
const PROGRAMS: &str = "examples/src/lib.rs";

#[derive(Default, PartialEq, Eq, Debug)]
struct Block {
    line: usize,
    language: String,
    text: String,
    not_run: Option<String>,
    prints: Vec<String>,
    exit_code: i32,
    stops_servers: bool,
}

impl Block {
    fn instruct(&mut self, line: &str) {
        let Some(text) = line.strip_prefix("<!--").and_then(|line| line.strip_suffix("-->")).map(str::trim)
        else {
            return;
        };
        if let Some(reason) = text.strip_prefix("not run:") {
            self.not_run = Some(reason.trim().to_owned()).filter(|reason| !reason.is_empty());
        } else if let Some(text) = text.strip_prefix("prints:") {
            self.prints.push(text.trim().to_owned());
        } else if let Some(code) = text.strip_prefix("exits with ") {
            // A code that is no number is one that no command has.
            self.exit_code = code.trim().parse().unwrap_or(-1);
        } else if text == "stops servers" {
            self.stops_servers = true;
        }
    }

    fn is_shell(&self) -> bool {
        self.language == "sh"
    }

    fn is_program(&self) -> bool {
        let (language, attributes) = self.language.split_once(',').unwrap_or((&self.language, ""));
        match language {
            "sh" | "java" => true,
            // Without an attribute a documentation test runs it.
            "rust" => !attributes.is_empty(),
            _ => false,
        }
    }
}

fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut next, mut is_within) = (Vec::new(), Block::default(), false);
    for (at, line) in text.lines().enumerate() {
        let line = if is_within { line } else { line.trim() };
        match line.trim_start().strip_prefix("```") {
            Some(_) if is_within => {
                blocks.push(std::mem::take(&mut next));
                is_within = false;
            }
            Some(language) => {
                (next.line, next.language) = (at + 1, language.trim().to_owned());
                is_within = true;
            }
            None if is_within => {
                next.text.push_str(line);
                next.text.push('\n');
            }
            None if line.is_empty() => {}
            // Instructions stand directly above their block.
            None if !line.starts_with("<!--") => next = Block::default(),
            None => next.instruct(line),
        }
    }
    blocks
}

/// A line that ends with a backslash continues on the next.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    joined
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn documents() -> std::io::Result<Vec<(String, String)>> {
    let mut left = vec![PathBuf::from("README.md"), PathBuf::from("docs")];
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        let full = root().join(&path);
        // Experiments are no instructions.
        if full.is_dir() && !path.ends_with("lab") {
            for entry in fs::read_dir(&full)? {
                left.push(path.join(entry?.file_name()));
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push((path.display().to_string(), fs::read_to_string(full)?));
        }
    }
    found.sort();
    Ok(found)
}

/// Blocks that neither run nor have a reason, and documents whose programs no test compiles.
fn unmarked(documents: &[(String, String)], tested: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in documents {
        for block in blocks(text) {
            let place = format!("{path}:{}", block.line);
            if block.is_program() && !block.is_shell() && block.not_run.is_none() {
                wrong.push(format!(
                    "{place}: this {} block does not run: add <!-- not run: REASON -->",
                    block.language
                ));
            }
            if block.language.starts_with("rust") && !tested.contains(&format!("/{path}\"")) {
                wrong.push(format!(
                    "{place}: {PROGRAMS} does not include this document, so that its programs have no test"
                ));
            }
        }
    }
    wrong
}

pub(crate) fn run() -> Outcome {
    let unmarked = documents()
        .and_then(|documents| Ok(unmarked(&documents, &fs::read_to_string(root().join(PROGRAMS))?)));
    match unmarked {
        Ok(wrong) if wrong.is_empty() => {}
        Ok(wrong) => return Outcome::Failed(wrong.join("\n")),
        Err(error) => return Outcome::Failed(format!("the documents: {error}")),
    }
    let is_missing = |tool: &&(&str, &str)| !interop::is_there(tool.0, tool.1);
    let missing: Vec<&str> = TOOLS.iter().filter(is_missing).map(|(tool, _)| *tool).collect();
    if !missing.is_empty() {
        return Outcome::Missing(missing.join(", "));
    }
    match cargo(&interop::TOOL) {
        Outcome::Passed => {}
        other => return other,
    }
    match std::env::current_exe() {
        Ok(own) => {
            let mut command = own_network(Network::Loopback);
            command.arg(own).arg("documents");
            status(command)
        }
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

pub(crate) fn run_here() -> ExitCode {
    match documents().map_err(|error| error.to_string()).and_then(|documents| run_all(&documents)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run_all(documents: &[(String, String)]) -> Result<(), String> {
    let (mut ran, mut reasons) = (0, 0);
    for (path, text) in documents {
        let blocks: Vec<Block> = blocks(text).into_iter().filter(Block::is_program).collect();
        reasons += blocks.iter().filter(|block| block.not_run.is_some()).count();
        let runnable: Vec<&Block> =
            blocks.iter().filter(|block| block.is_shell() && block.not_run.is_none()).collect();
        if runnable.is_empty() {
            continue;
        }
        println!("{path}: {} blocks", runnable.len());
        let mut session = Session::begin().map_err(|error| format!("{path}: {error}"))?;
        for block in runnable {
            let result = session.run(block);
            result
                .map_err(|error| format!("{path}:{}: {error}{}", block.line, session_log(&session.folder)))?;
            ran += 1;
        }
    }
    println!("{ran} blocks of commands ran, {reasons} blocks have a reason why they do not");
    Ok(())
}

fn session_log(folder: &Path) -> String {
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].iter().map(|line| format!("\n    {line}")).collect()
}

struct Session {
    folder: PathBuf,
    servers: Vec<KillOnDrop>,
}

impl Session {
    fn begin() -> std::io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("consort-documents-{}", std::process::id()));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, servers: Vec::new() })
    }

    /// The log goes to the file `log` of the folder.
    fn shell(&self, command: &str, is_lasting: bool) -> std::io::Result<Command> {
        let built = root().join("target/quick");
        let path = std::env::var("PATH").unwrap_or_default();
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        // Each document has its own temporary files.
        let command = command.replace("/tmp/", &format!("{}/", self.folder.display()));
        let is_simple = !command.contains([';', '|', '&', '<', '>']);
        let script = if is_simple { format!("exec {command}") } else { command };
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=5", TIME_MAX, "bash", "-ec", &script]);
        if is_lasting {
            // Nothing stands between it and its end.
            shell = Command::new("bash");
            shell.args(["-c", &script]);
        }
        shell
            .current_dir(&self.folder)
            .env("PATH", format!("{}:{path}", built.display()))
            .env("HOME", &self.folder);
        shell.stdin(Stdio::null()).stderr(log);
        Ok(shell)
    }

    fn run(&mut self, block: &Block) -> Result<(), String> {
        if block.stops_servers {
            self.stop()?;
        }
        let mut printed = String::new();
        for command in commands(&block.text) {
            println!("    {command}");
            let failed = |error: &dyn std::fmt::Display| format!("`{command}`: {error}");
            let lasting = LASTING.iter().find(|(begin, _)| command.starts_with(begin));
            let mut shell = self.shell(&command, lasting.is_some()).map_err(|error| failed(&error))?;
            if let Some((_, ready)) = lasting {
                let (child, line) = start(shell, ready).map_err(|error| failed(&error))?;
                self.servers.push(KillOnDrop(child));
                printed.push_str(&line);
                continue;
            }
            let output = shell.output().map_err(|error| failed(&error))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.code() != Some(block.exit_code) {
                return Err(failed(&format!("{}, and not {}\n{text}", output.status, block.exit_code)));
            }
            printed.push_str(&text);
        }
        match block.prints.iter().find(|text| !printed.contains(*text)) {
            Some(text) => Err(format!("it does not print `{text}` but:\n{printed}")),
            None => Ok(()),
        }
    }

    fn stop(&mut self) -> Result<(), String> {
        while let Some(mut server) = self.servers.pop() {
            let mut kill = Command::new("kill");
            kill.arg(server.0.id().to_string());
            if let Outcome::Failed(error) = status(kill) {
                return Err(error);
            }
            server.0.wait().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.servers.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the line that says the command works.
fn start(mut shell: Command, ready: &str) -> Result<(Child, String), String> {
    let mut child = shell.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let output = child.stdout.take().ok_or("no output")?;
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    match lines.find(|line| line.starts_with(ready)) {
        Some(line) => {
            // It must not wait for a reader.
            std::thread::spawn(move || lines.for_each(drop));
            Ok((child, line + "\n"))
        }
        None => {
            let _ = child.kill();
            let _ = child.wait();
            Err(format!("it ended before a line that begins with `{ready}`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_belong_to_the_block_below_them() {
        let text = "<!-- not run: lost -->\ntext\n\n<!-- prints: 3 -->\n<!-- stops servers -->\n\n\
            ```sh\na\n  b\n```\n\n   ```sh\n   c\n   ```\n";
        let all = blocks(text);
        assert_eq!((all[0].line, all[0].text.as_str()), (7, "a\n  b\n"));
        assert_eq!((&all[0].prints[..], all[0].stops_servers), (&["3".to_owned()][..], true));
        assert_eq!(all[0].not_run, None);
        assert_eq!((all[1].text.trim(), all[1].stops_servers), ("c", false));
    }

    #[test]
    fn program_without_test_or_reason_is_found() {
        let document = |text: &str| vec![("docs/a.md".to_owned(), text.to_owned())];
        let tested = "include_str!(\"../../docs/a.md\")";
        assert_eq!(unmarked(&document("```rust\n```\n```sh\n```\n```text\n```\n"), tested), [""; 0]);
        assert_eq!(unmarked(&document("```rust\n```\n"), "").len(), 1);
        assert_eq!(unmarked(&document("```rust,no_run\n```\n```java\n```\n"), tested).len(), 2);
        assert_eq!(unmarked(&document("<!-- not run: no JVM -->\n```java\n```\n"), tested), [""; 0]);
    }

    #[test]
    fn continued_lines_are_one_command_and_comments_are_none() {
        assert_eq!(commands("# first\na \\\n  b\n\nc   # last\n"), ["a    b", "c   # last"]);
    }
}
