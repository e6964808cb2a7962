//! `consort user`: lines for the file with a server's users.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use consort_server::{Role, line_for};

#[derive(Args)]
#[command(
    after_help = "The password is the first line of standard input. Of it the line has salted verifiers only, for\n\
    SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5803): who has the line can try passwords, but does not have this one.\n\n\
    Lines of that file are NAME ROLE[,ROLE...] [SECRET...]. Roles are admin, deployer, application, observer and\n\
    monitor. A secret is a verifier as this command makes them, or password:TEXT, for trying things out. A user\n\
    without a secret can show who it is by a client certificate or a token with its name only. Words with white\n\
    space are quoted; lines that begin with # say nothing.\n\n\
    Examples:\n  consort user alice --role application < password >> users\n  consort user ci --role deployer --no-password >> users"
)]
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

impl User {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let password = if self.no_password { None } else { Some(Self::password()?) };
        let line = line_for(&self.name, &self.role, password.as_deref()).map_err(|error| anyhow!(error))?;
        println!("{line}");
        Ok(ExitCode::SUCCESS)
    }

    fn password() -> anyhow::Result<String> {
        let mut input = std::io::stdin().lock();
        if input.is_terminal() {
            eprintln!("Password (it is shown as you type):");
        }
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            bail!("there is no password on standard input");
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}
