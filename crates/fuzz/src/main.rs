//! `cargo xtask fuzz`: runs targets from a seed, or replays one input.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use consort_fuzz::driver::{self, Broken, run, shrunk};
use consort_fuzz::mutate::Shape;
use consort_fuzz::{TARGETS, Target, target};

/// Runs decoders and stacks with hostile input.
#[derive(Parser)]
#[command(
    name = "cargo xtask fuzz",
    after_help = "Examples:\n  cargo xtask fuzz --target packet --runs 50000\n  cargo xtask fuzz --target stack-tcp --replay target/fuzz/stack-tcp-1-17.bin"
)]
struct Arguments {
    /// One target only.
    #[arg(long)]
    target: Option<String>,
    /// The number of inputs; of stacks, the number of packets.
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// The seed of all inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs this input only: a file, or hex digits.
    #[arg(long, value_name = "FILE or HEX", requires = "target")]
    replay: Option<String>,
    /// Runs the input of this number only, which is written to a file first.
    #[arg(long, value_name = "NUMBER", requires = "target")]
    input: Option<u64>,
    /// Writes the real inputs of the target into this folder, one file each, and runs nothing.
    #[arg(long, value_name = "FOLDER", requires = "target")]
    write_corpus: Option<PathBuf>,
    /// Lists the targets.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let Arguments { target: only, runs, seed, replay, input, write_corpus, list } = Arguments::parse();
    if list {
        TARGETS.iter().for_each(|target| println!("{:<16} {}", target.name, target.what));
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&'static Target> = match only.as_deref() {
        None => TARGETS.iter().collect(),
        Some(name) => match target(name) {
            Some(target) => vec![target],
            None => {
                eprintln!("there is no target {name}; see --list");
                return ExitCode::from(2);
            }
        },
    };
    if let (Some(nth), [target]) = (input, &chosen[..]) {
        let input = driver::input(target, &driver::corpus(target), seed, nth);
        return match keep(target.name, seed, nth, &input) {
            Ok(file) => again(target, &file.to_string_lossy()),
            Err(error) => {
                eprintln!("target/fuzz: {error}");
                ExitCode::from(2)
            }
        };
    }
    if let (Some(folder), [target]) = (write_corpus, &chosen[..]) {
        return match write_inputs(&folder, &driver::corpus(target)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", folder.display());
                ExitCode::from(2)
            }
        };
    }
    if let (Some(replay), [target]) = (replay, &chosen[..]) {
        return again(target, &replay);
    }
    println!("{:<16} {:>9} {:>9} {:>9} {:>12}", "target", "runs", "runs/s", "accepted", "memory, KiB");
    for target in chosen {
        match run(target, runs, seed) {
            Ok(score) => {
                let seen = score.seen;
                println!(
                    "{:<16} {:>9} {:>9.0} {:>8.1}% {:>12.1} {:>6}",
                    target.name,
                    seen.given,
                    seen.given as f64 / score.time.as_secs_f64(),
                    100.0 * seen.accepted as f64 / seen.given.max(1) as f64,
                    seen.peak as f64 / 1024.0,
                    seen.apart
                );
            }
            Err(broken) => {
                show(target, &broken);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn write_inputs(folder: &Path, inputs: &[Vec<u8>]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    inputs
        .iter()
        .enumerate()
        .try_for_each(|(nth, input)| std::fs::write(folder.join(format!("real-{nth}")), input))
}

fn again(target: &Target, replay: &str) -> ExitCode {
    let input = if Path::new(replay).is_file() {
        std::fs::read(replay).map_err(|error| error.to_string())
    } else {
        consort_capture::unhex(replay).map(Vec::from).map_err(|error| error.to_string())
    };
    match input {
        Ok(input) => {
            println!("{:?}", (target.run)(&input));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{replay}: {error}");
            ExitCode::from(2)
        }
    }
}

fn show(target: &'static Target, broken: &Broken) {
    let Broken { target: name, seed, nth, input } = broken;
    eprintln!(
        "\n{name}: input {nth} of seed {seed} ({} bytes) breaks a rule; making it smaller",
        input.len()
    );
    std::panic::set_hook(Box::new(|_| {}));
    let small = shrunk(target, broken);
    drop(std::panic::take_hook());
    let hex: String = small.iter().map(|byte| format!("{byte:02x}")).collect();
    if target.shape != Shape::Round || small.len() < 2_000 {
        eprintln!("{hex}");
    }
    match keep(name, *seed, *nth, &small) {
        Ok(file) => eprintln!("cargo xtask fuzz --target {name} --replay {}", file.display()),
        Err(error) => eprintln!("cargo xtask fuzz --target {name} --replay {hex}\n(target/fuzz: {error})"),
    }
}

fn keep(name: &str, seed: u64, nth: u64, input: &[u8]) -> std::io::Result<PathBuf> {
    let file = PathBuf::from("target/fuzz").join(format!("{name}-{seed}-{nth}.bin"));
    std::fs::create_dir_all("target/fuzz")?;
    std::fs::write(&file, input)?;
    Ok(file)
}
