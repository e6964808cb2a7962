//! The book, built with mdBook into `target/book`.

use std::process::Command;

use crate::claims::root;
use crate::steps::{Outcome, status};

/// Without the features that only its server needs.
pub(crate) const INSTALL: [&str; 9] = [
    "install",
    "mdbook",
    "--version=0.5.2",
    "--locked",
    "--no-default-features",
    "--debug",
    "--root=target/tools",
    "--target-dir=target/tools/build",
    "--no-track",
];

/// Installs mdBook into `target/tools` at first.
pub(crate) fn run() -> Outcome {
    let tool = root().join("target/tools/bin/mdbook");
    if !tool.exists() {
        let mut install = Command::new(env!("CARGO"));
        install.args(INSTALL).arg("--quiet").current_dir(root());
        if let Outcome::Failed(error) = status(install) {
            return Outcome::Missing(format!("mdBook: {error}"));
        }
    }
    let mut build = Command::new(tool);
    build.args(["build", "docs/book"]).current_dir(root());
    status(build)
}
