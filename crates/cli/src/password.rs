//! Passwords from a file, the environment, or a terminal without echo; never from an argument, which every
//! program of the host could read.

use std::io::{BufRead, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use consort_client::ClientBuilder;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

const VARIABLE: &str = "CONSORT_PASSWORD";

/// The user that a client shows to be.
#[derive(Args, Clone, Debug)]
pub(crate) struct Login {
    /// User name. The password comes from --password-file, from CONSORT_PASSWORD in the environment, or from a prompt on the
    /// terminal.
    #[arg(long, value_name = "NAME", global = true)]
    user: Option<String>,
    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", global = true, requires = "user")]
    password_file: Option<PathBuf>,
}

impl Login {
    pub(crate) fn client(&self, at: &str) -> anyhow::Result<ClientBuilder> {
        let builder = ClientBuilder::from_uri(at)?;
        Ok(match &self.user {
            Some(user) => builder.user(user, &self.password(user)?),
            None => builder,
        })
    }

    fn password(&self, user: &str) -> anyhow::Result<String> {
        match (&self.password_file, std::env::var(VARIABLE)) {
            (Some(file), _) => read_file(file),
            (None, Ok(password)) => Ok(password),
            (None, Err(std::env::VarError::NotUnicode(_))) => bail!("{VARIABLE} is not UTF-8"),
            (None, Err(std::env::VarError::NotPresent)) => {
                prompt_on_terminal(&format!("Password of {user}: "), &mut std::io::stdin().lock())?
                    .with_context(|| {
                        format!("no password for {user}: use --password-file, {VARIABLE} or a terminal")
                    })
            }
        }
    }
}

/// The first line. Warns of a file that others can read.
pub(crate) fn read_file(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("password in {}", file.display()))?;
    consort_tls::secrets::warn_if_open(file, "this password");
    let password = text.lines().next().unwrap_or_default();
    if password.is_empty() {
        bail!("password in {}: its first line is empty", file.display());
    }
    Ok(password.to_owned())
}

fn prompt_on_terminal(prompt: &str, input: &mut std::io::StdinLock<'_>) -> anyhow::Result<Option<String>> {
    if !input.is_terminal() {
        return Ok(None);
    }
    read_hidden(prompt, input)
}

pub(crate) fn read_input(prompt: &str) -> anyhow::Result<Option<String>> {
    let mut input = std::io::stdin().lock();
    if input.is_terminal() { read_hidden(prompt, &mut input) } else { line(&mut input) }
}

fn read_hidden(prompt: &str, input: &mut std::io::StdinLock<'_>) -> anyhow::Result<Option<String>> {
    eprint!("{prompt}");
    let _unseen = HiddenInput::on(input)?;
    line(input)
}

fn line(input: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let read = input.read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned()))
}

struct HiddenInput {
    terminal: OwnedFd,
    before: Termios,
}

impl HiddenInput {
    fn on(terminal: &impl AsFd) -> std::io::Result<Self> {
        let terminal = terminal.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // The line's end is still shown.
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(&terminal, OptionalActions::Flush, &hidden)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_the_first_line_of_its_file() {
        let file = std::env::temp_dir().join(format!("consort-password-{}", std::process::id()));
        std::fs::write(&file, "p@ss w:rd \nmore\n").unwrap();
        let login = Login { user: Some("alice".to_owned()), password_file: Some(file.clone()) };
        assert_eq!(login.password("alice").unwrap(), "p@ss w:rd ");
        std::fs::write(&file, "\n").unwrap();
        let empty = read_file(&file).unwrap_err().to_string();
        assert!(empty.ends_with("its first line is empty"), "{empty}");
        std::fs::remove_file(&file).unwrap();
        let missing = format!("{:#}", read_file(&file).unwrap_err());
        assert!(missing.contains(&*file.to_string_lossy()), "{missing}");
    }
}
