//! `consort server --config` and `--check`: a whole file of a server. Options of the command line take precedence.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use consort_cache::CacheManager;
use consort_conf::{STOCK, Variables};
use consort_server::{OptionsBeside, Problem, ServerBuilder, ServerFile, Severity, is_server_file};
use tokio::time::timeout;

use crate::terminal::Lines;

/// Reads the file if it is a server's; `None`: it is a stack, as of --stack.
pub(crate) fn read(
    path: &str,
    variables: &Variables,
    options: OptionsBeside,
) -> anyhow::Result<Option<ServerFile>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(is_server_file(&text).then(|| ServerFile::read_beside(path, variables, options))),
        // FILE#STACK names a stack of a file, and a stock stack need not be one.
        Err(_) if path.contains('#') || STOCK.iter().any(|(name, _)| *name == path) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("--config: cannot read {path}")),
    }
}

/// Like [`read`], for a file that has to be a server's.
pub(crate) fn read_for_check(
    path: &Path,
    variables: &Variables,
    options: OptionsBeside,
) -> anyhow::Result<ServerFile> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    anyhow::ensure!(
        is_server_file(&text),
        "{name} is no server's file: its outermost element is not <infinispan>; consort doctor --config checks a stack"
    );
    Ok(ServerFile::read_beside(path, variables, options))
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
    /// Problems of the file that are listed.
    pub(crate) problems: Vec<Problem>,
    /// The numbers of refusals and of warnings, also of those that are not listed.
    pub(crate) counts: (usize, usize),
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
    // The command ends in order without a reader.
    let _ = write!(std::io::stdout(), "{}", Lines(&report(check, strict)));
    if check.is_startable(strict) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(check: &Check, strict: bool) -> String {
    let mut text = format!("{}\n", check.effective);
    for problem in &check.problems {
        let _ = writeln!(text, "{problem}");
    }
    for other in &check.others {
        let _ = writeln!(text, "refused: {other}");
    }
    let ((refused, warnings), starts) = (check.counts, check.is_startable(strict));
    text.extend(unlisted(refused + warnings, check.problems.len()));
    let verdict = if starts { "a server starts with this file" } else { "no server starts with this file" };
    let _ = writeln!(text, "{verdict}: {} refused, {warnings} warnings", refused + check.others.len());
    text
}

/// A line about the problems that are not listed.
fn unlisted(count: usize, listed: usize) -> Option<String> {
    let more = count.checked_sub(listed).filter(|more| *more > 0)?;
    let noun = if more == 1 { "problem is" } else { "problems are" };
    Some(format!("{more} further {noun} not listed\n"))
}

/// Logs warnings.
///
/// # Errors
///
/// With all problems for which a server does not start.
pub(crate) fn refuse_or_warn(file: &ServerFile, strict: bool) -> anyhow::Result<()> {
    let fatal = file.problems().iter().filter(|problem| is_fatal(problem, strict));
    let fatal: Vec<String> = fatal.map(ToString::to_string).collect();
    let (refused, warnings) = (file.problem_count(Severity::Refused), file.problem_count(Severity::Warning));
    let more = unlisted(if strict { refused + warnings } else { refused }, fatal.len());
    let more = more.map(|line| format!("\n{}", line.trim_end())).unwrap_or_default();
    anyhow::ensure!(fatal.is_empty(), "{}{more}", fatal.join("\n"));
    for problem in file.problems() {
        tracing::warn!("{}:{}: {}", problem.file, problem.place, problem.text);
    }
    if let Some(line) = unlisted(warnings, file.problems().len()) {
        tracing::warn!("{}", line.trim_end());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_that_are_not_listed_are_counted() {
        let many =
            format!("<infinispan><cache-container>{}</cache-container></infinispan>", "<x/>\n".repeat(1_000));
        let file = ServerFile::parse("i.xml", &many, &Variables::new());
        let error = refuse_or_warn(&file, false).unwrap_err().to_string();
        assert!(error.ends_with("\n800 further problems are not listed"), "{error}");
        let counts = (file.problem_count(Severity::Refused), file.problem_count(Severity::Warning));
        let problems = file.problems().to_vec();
        let check = Check { effective: String::new(), problems, counts, others: vec!["x".to_owned()] };
        let text = report(&check, false);
        let expected = "800 further problems are not listed\nno server starts with this file: 1001 refused, 0 warnings\n";
        assert!(text.ends_with(expected), "{text}");
        let file = ServerFile::parse("i.xml", "<infinispan/>", &Variables::new());
        let error = refuse_or_warn(&file, false).unwrap_err().to_string();
        assert!(!error.contains("further"), "{error}");
    }
}
