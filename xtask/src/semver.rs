//! The public API beside that of the last release, with cargo-semver-checks.

use std::process::Command;

use crate::claims::root;
use crate::steps::{Outcome, status};
use crate::tools::Tool;

const SEMVER_CHECKS: Tool = Tool { name: "cargo-semver-checks", options: &["--version=0.51.0"] };

/// The crates to which semantic versioning applies. The others are their parts (CONTRIBUTING.md).
const CRATES: [&str; 5] = ["consort", "consort-channel", "consort-cache", "consort-client", "consort-server"];

/// Compares with the newest tag of a version, or with the revision that a caller names. Without either there is no
/// release to compare with.
pub(crate) fn run(revision: Option<&str>) -> Outcome {
    let baseline = match revision.map(str::to_owned).map_or_else(last_release, |revision| Ok(Some(revision)))
    {
        Ok(Some(baseline)) => baseline,
        Ok(None) => {
            println!("no version has a tag yet (v1.2.3): there is no release to compare with");
            return Outcome::Passed;
        }
        Err(why) => return Outcome::Failed(why),
    };
    let program = match SEMVER_CHECKS.program() {
        Ok(program) => program,
        Err(outcome) => return outcome,
    };
    println!("compared with {baseline}");
    let mut check = Command::new(program);
    check.args(["semver-checks", "--baseline-rev", &baseline]).current_dir(root());
    check.args(CRATES.iter().flat_map(|name| ["--package", name]));
    status(check)
}

/// Returns the newest tag of a version that the current commit contains.
fn last_release() -> Result<Option<String>, String> {
    let tags = Command::new("git")
        .args(["tag", "--merged", "HEAD", "--sort=-version:refname", "--list", "v[0-9]*"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if !tags.status.success() {
        return Err(format!("git tag: {}", String::from_utf8_lossy(&tags.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&tags.stdout).lines().next().map(str::to_owned))
}
