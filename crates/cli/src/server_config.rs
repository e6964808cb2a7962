//! `consort server --config` and `--check`: a whole file of a server. Options of the command line take precedence.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use consort_cache::CacheManager;
use consort_conf::{STOCK, Variables};
use consort_server::{Problem, ServerBuilder, ServerFile, Severity, is_server_file};
use tokio::time::timeout;

use crate::terminal::Lines;

/// Reads the file if it is a server's; `None`: it is a stack, as of --stack.
pub(crate) fn read(path: &str, variables: &Variables) -> anyhow::Result<Option<ServerFile>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(is_server_file(&text).then(|| ServerFile::read(path, variables))),
        // FILE#STACK names a stack of a file, and a stock stack need not be one.
        Err(_) if path.contains('#') || STOCK.iter().any(|(name, _)| *name == path) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("--config: cannot read {path}")),
    }
}

/// Like [`read`], for a file that has to be a server's.
pub(crate) fn read_for_check(path: &Path, variables: &Variables) -> anyhow::Result<ServerFile> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    anyhow::ensure!(
        is_server_file(&text),
        "{name} is no server's file: its outermost element is not <infinispan>; consort doctor --config checks a stack"
    );
    Ok(ServerFile::read(path, variables))
}

/// Problems of the file together with options.
pub(crate) fn contradiction(builder: &ServerBuilder) -> Option<String> {
    let error = builder.check_security().err()?;
    Some(format!("{error}; with passwords in cleartext on a trusted network, write --allow-cleartext"))
}

/// The result of a check.
pub(crate) struct Check {
    /// The effective settings, as lines.
    pub(crate) effective: String,
    /// Problems of the file.
    pub(crate) problems: Vec<Problem>,
    /// Problems of the file together with options: a server does not start with them.
    pub(crate) others: Vec<String>,
}

impl Check {
    /// Whether a server starts; `strict` refuses warnings, too.
    pub(crate) fn is_startable(&self, strict: bool) -> bool {
        self.others.is_empty() && !self.problems.iter().any(|problem| is_fatal(problem, strict))
    }
}

fn is_fatal(problem: &Problem, strict: bool) -> bool {
    strict || problem.severity == Severity::Refused
}

/// Prints the effective settings and all problems.
pub(crate) fn print_check(check: &Check, strict: bool) -> ExitCode {
    let mut text = format!("{}\n", check.effective);
    for problem in &check.problems {
        let _ = writeln!(text, "{problem}");
    }
    for other in &check.others {
        let _ = writeln!(text, "refused: {other}");
    }
    let count = |severity| check.problems.iter().filter(|problem| problem.severity == severity).count();
    let (refused, warnings) = (count(Severity::Refused) + check.others.len(), count(Severity::Warning));
    let starts = check.is_startable(strict);
    let verdict = if starts { "a server starts with this file" } else { "no server starts with this file" };
    let _ = writeln!(text, "{verdict}: {refused} refused, {warnings} warnings");
    // The command ends in order without a reader.
    let _ = write!(std::io::stdout(), "{}", Lines(&text));
    if starts { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Logs warnings.
///
/// # Errors
///
/// With all problems for which a server does not start.
pub(crate) fn refuse_or_warn(file: &ServerFile, strict: bool) -> anyhow::Result<()> {
    let fatal = file.problems().iter().filter(|problem| is_fatal(problem, strict));
    let fatal: Vec<String> = fatal.map(ToString::to_string).collect();
    anyhow::ensure!(fatal.is_empty(), "{}", fatal.join("\n"));
    for problem in file.problems() {
        tracing::warn!("{}:{}: {}", problem.file, problem.place, problem.text);
    }
    Ok(())
}

/// Waits for the number of members that the file names (`initial-cluster-size`).
pub(crate) async fn wait_for_members(
    manager: &CacheManager,
    (size, limit): (usize, Duration),
) -> anyhow::Result<()> {
    let mut views = manager.watch_view();
    let enough = async {
        let has_enough = |view: &Option<consort_channel::View>| {
            view.as_ref().is_some_and(|view| view.members().len() >= size)
        };
        views.wait_for(has_enough).await.map(drop)
    };
    match timeout(limit, enough).await {
        Ok(ended) => ended.context("the member has left its cluster"),
        Err(_) => anyhow::bail!(
            "initial-cluster-size: the cluster has {} of {size} members after {} s",
            manager.view().map_or(0, |view| view.members().len()),
            limit.as_secs()
        ),
    }
}

/// Fills options that the command line lacks.
pub(crate) fn fill(option: &mut Option<String>, value: Option<&str>) {
    if option.is_none() {
        *option = value.map(str::to_owned);
    }
}

/// As [`fill`], for the directory for data.
pub(crate) fn fill_path(option: &mut Option<PathBuf>, value: Option<&Path>) {
    if option.is_none() {
        *option = value.map(Path::to_path_buf);
    }
}
