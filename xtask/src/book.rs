//! The book, built with mdBook into `target/book`.

use std::process::Command;

use crate::claims::root;
use crate::steps::{Outcome, status};
use crate::tools::Tool;

/// Without the features that only its server needs.
pub(crate) const MDBOOK: Tool =
    Tool { name: "mdbook", options: &["--version=0.5.2", "--no-default-features"] };

/// Builds the book.
pub(crate) fn run() -> Outcome {
    let program = match MDBOOK.program() {
        Ok(program) => program,
        Err(outcome) => return outcome,
    };
    let mut build = Command::new(program);
    build.args(["build", "docs/book"]).current_dir(root());
    status(build)
}
