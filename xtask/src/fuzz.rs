//! `cargo xtask fuzz`: hostile input for decoders and stacks, with optimisation and every assertion;
//! `--coverage` uses libFuzzer under AddressSanitizer.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;

use crate::steps::cargo_run;

/// It has one program per target.
const PACKAGE: &str = "fuzz";
/// Apart, because the flags differ from those of all other builds.
const BUILD: &str = "target/libfuzzer";
/// The only platform of CI and the sanitizers here.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The flags of cargo-fuzz: counters of edges and comparisons for libFuzzer, and AddressSanitizer.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Cdebug-assertions --cfg=fuzzing";

/// Looks for inputs that reach new code: libFuzzer with AddressSanitizer, on the nightly toolchain.
#[derive(Parser)]
#[command(name = "cargo xtask fuzz --coverage")]
struct Coverage {
    /// Is what makes this the command.
    #[arg(long, hide = true)]
    coverage: bool,
    /// One target only; without it all, one after the other.
    #[arg(long)]
    target: Option<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Adds the inputs that reached new code to `fuzz/corpus`, to be committed.
    #[arg(long)]
    keep: bool,
}

/// Runs the driver of `crates/fuzz`, or libFuzzer.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if !arguments.iter().any(|argument| argument == "--coverage") {
        return cargo_run(&["--profile", "fuzz", "--package", "consort-fuzz"], arguments);
    }
    let name = "cargo xtask fuzz --coverage".to_owned();
    let coverage = Coverage::parse_from([name].into_iter().chain(arguments.iter().cloned()));
    match cover(&coverage) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask fuzz --coverage: {error}");
            ExitCode::FAILURE
        }
    }
}

fn cover(coverage: &Coverage) -> Result<(), String> {
    let nightly = Command::new("rustup").args(["run", "nightly", "rustc", "--version"]).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        return Err("the nightly toolchain is missing: rustup toolchain install nightly".to_owned());
    }
    let targets = match &coverage.target {
        Some(target) => vec![target.clone()],
        None => targets()?,
    };
    println!("{:<18} {:>10} {:>9} {:>9} {:>9}", "target", "inputs", "edges", "features", "corpus");
    for target in targets {
        let figures = cover_target(&target, coverage)?;
        println!(
            "{target:<18} {:>10} {:>9} {:>9} {:>9}",
            figures.inputs, figures.edges, figures.features, figures.corpus
        );
    }
    Ok(())
}

fn targets() -> Result<Vec<String>, String> {
    let folder = Path::new(PACKAGE).join("fuzz_targets");
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let name = |file: fs::DirEntry| Some(file.path().file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> = files.filter_map(Result::ok).filter_map(name).collect();
    names.sort();
    Ok(names)
}

#[derive(Default, PartialEq, Eq, Debug)]
struct Figures {
    inputs: u64,
    edges: u64,
    features: u64,
    corpus: u64,
}

impl Figures {
    /// Reads the last line of status: `#1234 DONE cov: 5 ft: 6 corp: 7/8b …`.
    fn read(log: &str) -> Option<Self> {
        let line = log.lines().rfind(|line| line.starts_with('#') && line.contains(" cov: "))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1)?.split('/').next()?.parse().ok()
        };
        let inputs = words.first()?.trim_start_matches('#').parse().ok()?;
        Some(Self { inputs, edges: after("cov:")?, features: after("ft:")?, corpus: after("corp:")? })
    }
}

fn cover_target(target: &str, coverage: &Coverage) -> Result<Figures, String> {
    let corpus = format!("target/fuzz/corpus/{target}");
    let seeds = ["--target", target, "--write-corpus", &corpus].map(str::to_owned);
    if cargo_run(&["--profile", "quick", "--package", "consort-fuzz"], &seeds) != ExitCode::SUCCESS {
        return Err(format!("there is no target {target}, or its inputs cannot be written"));
    }
    let build = ["run", "nightly", "cargo", "build", "--release", "--quiet", "--target", PLATFORM];
    let manifest = format!("{PACKAGE}/Cargo.toml");
    let mut build = command("rustup", &build);
    build
        .args(["--manifest-path", &manifest, "--target-dir", BUILD, "--bin", target])
        .env("RUSTFLAGS", FLAGS);
    // The gate's own toolchain and package would be used instead.
    build.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    succeed(build)?;
    let program = format!("{BUILD}/{PLATFORM}/release/{target}");
    let limits = [
        format!("-max_total_time={}", coverage.seconds),
        format!("-artifact_prefix=target/fuzz/{target}-"),
        "-timeout=60".to_owned(),
        "-rss_limit_mb=4096".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    let output = Command::new(&program).args(&limits).arg(&corpus).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let end: Vec<&str> = log.lines().rev().take(40).collect();
        let end: Vec<&str> = end.into_iter().rev().collect();
        return Err(format!(
            "{target}: an input breaks a rule; it is in target/fuzz, for `cargo xtask fuzz --target {target} --replay FILE`\n{}",
            end.join("\n")
        ));
    }
    if coverage.keep {
        let kept = format!("{PACKAGE}/corpus/{target}");
        fs::create_dir_all(&kept).map_err(|error| format!("{kept}: {error}"))?;
        succeed(command(&program, &["-merge=1", &kept, &corpus]))?;
    }
    Figures::read(&log).ok_or_else(|| format!("{target}: libFuzzer does not say what it reached:\n{log}"))
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn succeed(mut command: Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_last_line_of_status() {
        let log = "#2\tINITED cov: 1 ft: 1 corp: 1/1b\n#1048576\tDONE   cov: 25 ft: 26 corp: 7/9Kb lim: 4 exec/s: 5\nDone 1 runs\n";
        let figures = Figures { inputs: 1_048_576, edges: 25, features: 26, corpus: 7 };
        assert_eq!(Figures::read(log), Some(figures));
        assert_eq!(Figures::read("no status"), None);
    }

    #[test]
    fn every_target_has_a_program() {
        let manifest = include_str!("../../fuzz/Cargo.toml");
        for name in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/fuzz_targets")).unwrap() {
            let name = name.unwrap().path();
            let name = name.file_stem().unwrap().to_str().unwrap();
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
    }
}
