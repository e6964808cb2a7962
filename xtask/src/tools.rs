//! Tools that steps install from the registry, into `target/tools`.

use std::path::PathBuf;
use std::process::Command;

use crate::claims::root;
use crate::steps::{Outcome, status};

/// A tool of a fixed version.
pub(crate) struct Tool {
    /// The program, named like its package.
    pub(crate) name: &'static str,
    /// The arguments of `cargo install` that only this tool needs.
    pub(crate) options: &'static [&'static str],
}

impl Tool {
    /// Returns the arguments with which cargo installs the tool.
    pub(crate) fn install(&self) -> Vec<&'static str> {
        let common =
            ["--locked", "--debug", "--root=target/tools", "--target-dir=target/tools/build", "--no-track"];
        ["install", self.name].iter().chain(self.options).chain(&common).copied().collect()
    }

    /// Returns the program's path, and installs the tool at the first call.
    ///
    /// # Errors
    ///
    /// [`Outcome::Missing`] if cargo cannot install it.
    pub(crate) fn program(&self) -> Result<PathBuf, Outcome> {
        let program = root().join("target/tools/bin").join(self.name);
        if !program.exists() {
            let mut install = Command::new(env!("CARGO"));
            install.args(self.install()).arg("--quiet").current_dir(root());
            if let Outcome::Failed(error) = status(install) {
                return Err(Outcome::Missing(format!("{}: {error}", self.name)));
            }
        }
        Ok(program)
    }
}
