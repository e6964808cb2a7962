//! The chapter of the book with all protocols and attributes, generated from their declarations.

use std::process::{Command, ExitCode};

use crate::claims::root;
use crate::steps::Outcome;

const CHAPTER: &str = "docs/book/src/reference/protocols.md";

pub(crate) fn write() -> ExitCode {
    let written = generate().and_then(|text| {
        std::fs::write(root().join(CHAPTER), text).map_err(|error| format!("{CHAPTER}: {error}"))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The chapter is the present code's.
pub(crate) fn check() -> Outcome {
    match (generate(), std::fs::read_to_string(root().join(CHAPTER))) {
        (Ok(generated), Ok(chapter)) if generated == chapter => Outcome::Passed,
        (Ok(_), Ok(_)) => {
            Outcome::Failed(format!("{CHAPTER} is older than the code: run `cargo xtask reference`"))
        }
        (Err(error), _) => Outcome::Failed(error),
        (_, Err(error)) => Outcome::Failed(format!("{CHAPTER}: {error}")),
    }
}

fn generate() -> Result<String, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package=consort-net", "--example=reference"]).current_dir(root());
    let output = command.output().map_err(|error| format!("cargo run: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}
