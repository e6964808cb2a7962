//! `cargo xtask release`: every file of a release, made from the sources here. Only the image needs the network, for the packages of its
//! base. The same commit, the same binary and the same base image give the same bytes: names are sorted, and times are those of the
//! commit.

mod archive;
mod debian;
mod image;
mod notes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::book;
use crate::claims::root;
use crate::package;
use crate::sbom;
use crate::steps::{Outcome, cargo, status};

/// The system that the binary runs on, in the names of files.
const SYSTEM: &str = "linux-x86_64";

/// Documents in the archive and in the package.
const DOCUMENTS: [&str; 4] = ["README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"];

/// The shells, and where each looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/consort"),
    ("zsh", "share/zsh/vendor-completions/_consort"),
    ("fish", "share/fish/vendor_completions.d/consort.fish"),
];

/// Tools with an argument that has no effect, and the package of each.
const TOOLS: [(&str, &str, &str); 5] = [
    ("strip", "--version", "binutils"),
    ("tar", "--version", "tar"),
    ("gzip", "--version", "gzip"),
    ("dpkg-deb", "--version", "dpkg"),
    ("sha256sum", "--version", "coreutils"),
];

/// What all parts of a release share.
struct Release {
    version: String,
    /// The time of the commit in seconds since 1970: that of every file.
    time: String,
    binary: PathBuf,
    output: PathBuf,
}

pub(crate) fn run(output: Option<&str>, binary: Option<&str>) -> ExitCode {
    let output = output.map_or_else(|| root().join("target/release-files"), PathBuf::from);
    // A name without a slash would be looked up in PATH.
    let given = |binary: &str| fs::canonicalize(binary).map_err(|error| format!("{binary}: {error}"));
    let made = binary.map_or_else(build, given);
    let made = made.and_then(|binary| image::remove_base().map(|()| binary));
    match made.and_then(|binary| make(&binary, &output)) {
        Ok(files) => {
            println!("{} files in {}:", files.len(), output.display());
            files.iter().for_each(|file| println!("  {file}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("release: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes a release twice from one binary and compares the bytes.
pub(crate) fn check() -> Outcome {
    let missing: Vec<String> = TOOLS
        .iter()
        .filter(|(tool, argument, _)| !crate::interop::is_there(tool, argument))
        .map(|(tool, _, package)| format!("`{tool}` ({package})"))
        .collect();
    if !missing.is_empty() {
        return Outcome::Missing(missing.join(", "));
    }
    let compared = ["first", "second"].map(|name| {
        let output = root().join("target/release-check").join(name);
        make(&root().join("target/quick/consort"), &output)?;
        fs::read_to_string(output.join(SUMS)).map_err(|error| format!("{}: {error}", output.display()))
    });
    match compared {
        [Ok(first), Ok(second)] if first == second => {
            print!("{first}");
            match image::obstacle() {
                Ok(None) => Outcome::Passed,
                Ok(Some(reason)) => {
                    Outcome::Missing(format!("the image ({reason}); the other files are alike"))
                }
                Err(error) => Outcome::Failed(error),
            }
        }
        [Ok(first), Ok(second)] => {
            let differing: Vec<&str> = first.lines().filter(|line| !second.contains(line)).collect();
            Outcome::Failed(format!("two releases of one binary differ in:\n{}", differing.join("\n")))
        }
        [Err(error), _] | [_, Err(error)] => Outcome::Failed(error),
    }
}

/// Paths of this machine are no part of the binary, so that another machine makes the same one.
fn build() -> Result<PathBuf, String> {
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"));
    let home = home.map_err(|error| format!("HOME: {error}"))?;
    let flags = format!(
        "--remap-path-prefix={}=/consort --remap-path-prefix={home}=/cargo -Cstrip=symbols",
        root().display()
    );
    let mut command = Command::new(env!("CARGO"));
    // A directory of its own: other flags would have all dependencies of usual builds compiled again.
    let target = root().join("target/release-build");
    command.args(["build", "--release", "--locked", "--package=consort-cli", "--target-dir"]).arg(&target);
    command.env("RUSTFLAGS", flags).current_dir(root());
    text_of(status(command))?;
    Ok(target.join("release/consort"))
}

const SUMS: &str = "SHA256SUMS";

/// A directory with this file is a release's, also an incomplete one.
const MARK: &str = ".consort-release";

/// Within a release that is being made.
const STAGING: &str = "staging";

fn make(binary: &Path, output: &Path) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", output.display());
    if !binary.is_file() {
        return Err(format!("{} is no file; build it, or leave --binary away", binary.display()));
    }
    if output.exists() {
        // A mistyped name must not remove anything else, not even with sums of its own.
        let is_release = output.join(MARK).is_file();
        let is_empty = fs::read_dir(output).map_err(failed)?.next().is_none();
        if !is_release && !is_empty {
            return Err(format!(
                "{} holds other files than a release: name an empty directory",
                output.display()
            ));
        }
        fs::remove_dir_all(output).map_err(failed)?;
    }
    let staging = output.join(STAGING);
    fs::create_dir_all(&staging).map_err(failed)?;
    write(&output.join(MARK), "A release of Consort, which the next one replaces.\n")?;
    let release = Release {
        version: package::version()?,
        time: commit_time()?,
        binary: binary.to_owned(),
        output: output.to_owned(),
    };
    release.stage(&staging)?;
    let version = &release.version;
    release.archive(
        &staging,
        &format!("consort-{version}"),
        &format!("consort-{version}-{SYSTEM}.tar.gz"),
    )?;
    debian::package(&release, &staging)?;
    release.book()?;
    release.chart()?;
    if let Some(reason) = image::make(&release)? {
        println!("left out: the image, because {reason}");
    }
    release.crates()?;
    let changelog = root().join("CHANGELOG.md");
    let changelog = fs::read_to_string(&changelog).map_err(|error| format!("CHANGELOG.md: {error}"))?;
    write(&output.join("CHANGES.md"), &notes::section(&changelog, version)?)?;
    write(&output.join(format!("consort-{version}.cdx.json")), &sbom::text()?)?;
    fs::remove_dir_all(&staging).map_err(failed)?;
    release.sums()
}

impl Release {
    /// The tree of the archive: a prefix such as `/usr/local`.
    fn stage(&self, staging: &Path) -> Result<(), String> {
        let command = staging.join("bin/consort");
        copy(&self.binary, &command)?;
        // Names and lines of functions are for profilers; they are most of the file.
        let mut strip = Command::new("strip");
        strip.arg(&command);
        text_of(status(strip))?;
        let consort = |arguments: &[&str]| {
            let run = Command::new(&self.binary).args(arguments).stdin(Stdio::null()).output();
            let run = run.map_err(|error| format!("{}: {error}", self.binary.display()))?;
            if run.status.success() {
                Ok(run.stdout)
            } else {
                Err(format!("consort {}: {}", arguments.join(" "), String::from_utf8_lossy(&run.stderr)))
            }
        };
        for (shell, place) in COMPLETIONS {
            write(&staging.join(place), consort(&["completion", shell])?)?;
        }
        consort(&["man", &staging.join("share/man/man1").display().to_string()])?;
        for document in DOCUMENTS {
            copy(&root().join(document), &staging.join("share/doc/consort").join(document))?;
        }
        Ok(())
    }

    fn archive(&self, folder: &Path, prefix: &str, name: &str) -> Result<(), String> {
        archive::make(folder, prefix, &self.output.join(name), &self.time)
    }

    fn book(&self) -> Result<(), String> {
        text_of(book::run())?;
        let name = format!("consort-{}-book", self.version);
        self.archive(&root().join("target/book"), &name, &format!("{name}.tar.gz"))
    }

    /// As `helm package` names it.
    fn chart(&self) -> Result<(), String> {
        let name = format!("consort-chart-{}.tgz", self.version);
        self.archive(&root().join("charts/consort"), "consort", &name)
    }

    fn crates(&self) -> Result<(), String> {
        for package in package::pack_public()? {
            let name = package.file_name().unwrap_or_default().to_owned();
            copy(&package, &self.output.join("crates").join(name))?;
        }
        Ok(())
    }

    /// Returns the names of all files but the list itself.
    fn sums(&self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        let mut left = vec![self.output.clone()];
        while let Some(folder) = left.pop() {
            let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            for entry in entries {
                let path = entry.map_err(|error| error.to_string())?.path();
                if path.is_dir() {
                    left.push(path);
                } else if let Ok(name) = path.strip_prefix(&self.output)
                    && name != Path::new(MARK)
                {
                    names.push(name.display().to_string());
                }
            }
        }
        names.sort();
        let sums = Command::new("sha256sum").arg("--").args(&names).current_dir(&self.output).output();
        let sums = sums.map_err(|error| format!("sha256sum: {error}"))?;
        if !sums.status.success() {
            return Err(format!("sha256sum: {}", String::from_utf8_lossy(&sums.stderr)));
        }
        write(&self.output.join(SUMS), sums.stdout)?;
        Ok(names)
    }
}

fn commit_time() -> Result<String, String> {
    let log = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()).output();
    let log = log.map_err(|error| format!("git: {error}"))?;
    let time = String::from_utf8_lossy(&log.stdout).trim().to_owned();
    if time.is_empty() {
        return Err(format!("git log: {}", String::from_utf8_lossy(&log.stderr).trim()));
    }
    Ok(time)
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    fs::write(path, content).map_err(failed)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), fs::create_dir_all).map_err(|error| format!("{}: {error}", to.display()))?;
    fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    Ok(())
}

fn text_of(outcome: Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Passed | Outcome::Tested(_) => Ok(()),
        Outcome::Failed(text) | Outcome::Missing(text) | Outcome::Postponed(text) => Err(text),
    }
}

/// For the step of the gate: the binary of the live tests.
pub(crate) fn step() -> Outcome {
    match cargo(&crate::interop::TOOL) {
        Outcome::Passed => check(),
        outcome => outcome,
    }
}
