//! `consort user`: lines for the file with a server's users.

use std::io::{BufRead, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use consort_server::{Role, line_for};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

#[derive(Args)]
#[command(after_help = "The password is the first line of standard input. Of it the line has salted\n\
    verifiers only, for SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5803): who has the line\n\
    can try passwords, but does not have this one.\n\n\
    Lines of that file are NAME ROLE[,ROLE...] [SECRET...]. Roles are admin,\n\
    deployer, application, observer and monitor. A secret is a verifier as this\n\
    command makes them, or password:TEXT, for trying things out. A user without a\n\
    secret can show who it is by a client certificate or a token with its name only.\n\
    Words with white space are quoted; lines that begin with # say nothing.\n\n\
    Examples:\n  \
    consort user alice --role application < password >> users\n  \
    consort user ci --role deployer --no-password >> users")]
pub(crate) struct User {
    /// The user's name.
    name: String,
    /// What the user may do: admin, deployer, application, observer or monitor, or several of them.
    #[arg(long, value_name = "ROLE[,ROLE]", required = true, value_delimiter = ',', value_parser = role)]
    role: Vec<Role>,
    /// Only a client certificate or a token shows who it is.
    #[arg(long)]
    no_password: bool,
}

fn role(name: &str) -> Result<Role, String> {
    let told = || "roles are admin, deployer, application, observer and monitor".to_owned();
    Role::from_name(name).ok_or_else(told)
}

/// A terminal that does not show what is typed, until this is dropped.
struct Unseen {
    terminal: OwnedFd,
    before: Termios,
}

impl Unseen {
    fn on(terminal: &impl AsFd) -> std::io::Result<Self> {
        let terminal = terminal.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO);
        // The line's end is still shown.
        unseen.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(&terminal, OptionalActions::Flush, &unseen)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

impl User {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let password = if self.no_password { None } else { Some(Self::password()?) };
        let line = line_for(&self.name, &self.role, password.as_deref()).map_err(|error| anyhow!(error))?;
        println!("{line}");
        Ok(ExitCode::SUCCESS)
    }

    fn password() -> anyhow::Result<String> {
        let mut input = std::io::stdin().lock();
        let mut line = String::new();
        let read = if input.is_terminal() {
            eprint!("Password: ");
            let _unseen = Unseen::on(&input)?;
            input.read_line(&mut line)?
        } else {
            input.read_line(&mut line)?
        };
        if read == 0 {
            bail!("there is no password on standard input");
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}
