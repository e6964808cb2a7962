use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use clap_complete::{Shell, generate};

/// Prints a script by which a shell completes commands and options.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    consort completion bash > ~/.local/share/bash-completion/completions/consort\n  \
    consort completion zsh > ~/.zfunc/_consort\n  \
    consort completion fish > ~/.config/fish/completions/consort.fish")]
pub(crate) struct Completion {
    /// Shell
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(self, mut command: clap::Command) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        out.write_all(&script(self.shell, &mut command))?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn script(shell: Shell, command: &mut clap::Command) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, command, "consort", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_shell_completes_commands_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell, &mut crate::Arguments::command())).unwrap();
            for wanted in ["consort", "doctor", "cache", "watch", "open-metrics"] {
                assert!(script.contains(wanted), "{shell}: {wanted}");
            }
        }
    }
}
