//! `consort man`: manual pages, from the same descriptions as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

/// Write the manual page of each command into a directory
#[derive(Args)]
#[command(after_help = "Example:\n  \
    consort man ~/.local/share/man/man1\n  \
    man consort-server")]
pub(crate) struct Man {
    /// Directory; it is made if it does not exist
    directory: PathBuf,
}

impl Man {
    pub(crate) fn run(self, command: clap::Command) -> anyhow::Result<ExitCode> {
        let directory = &self.directory;
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        clap_mangen::generate_to(command.disable_help_subcommand(true), directory)
            .with_context(|| format!("{}: the pages cannot be written", directory.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_options_and_examples() {
        let directory = std::env::temp_dir().join(format!("consort-man-{}", std::process::id()));
        Man { directory: directory.clone() }.run(crate::Arguments::command()).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(page("consort.1").contains("consort\\-server(1)"), "{}", page("consort.1"));
        let doctor = page("consort-doctor.1");
        assert!(doctor.contains("\\-\\-config") && doctor.contains("Examples:"), "{doctor}");
        assert!(page("consort-cache-put.1").contains("NAME"));
        let _ = std::fs::remove_dir_all(&directory);
        let file = std::env::temp_dir().join(format!("consort-man-file-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let error = Man { directory: file.clone() }.run(crate::Arguments::command()).unwrap_err();
        assert!(error.to_string().contains("consort-man-file"), "{error}");
        let _ = std::fs::remove_file(file);
    }
}
