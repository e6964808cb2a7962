use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use consort_server::{Role, line_for};

use crate::password;

#[derive(Args)]
#[command(after_help = "The password is the first line of standard input. The printed line has only\n\
    salted verifiers of it, for SCRAM-SHA-256, SCRAM-SHA-384 and SCRAM-SHA-512 (RFC\n\
    5803): a reader of the line can guess passwords, but cannot read this one.\n\n\
    Lines of that file are NAME ROLE[,ROLE...] [SECRET...]. Roles are admin,\n\
    deployer, application, observer and monitor. A secret is a verifier of this\n\
    command, or password:TEXT, for experiments. A user without a secret\n\
    authenticates only with a client certificate or a token with its name. Words\n\
    with white space are quoted; lines that begin with # are comments.\n\n\
    Examples:\n  \
    consort user alice --role application < password >> users\n  \
    consort user ci --role deployer --no-password >> users")]
pub(crate) struct User {
    /// Name of the user
    name: String,
    /// Roles of the user: admin, deployer, application, observer, monitor, or several of them
    #[arg(long, value_name = "ROLE[,ROLE]", required = true, value_delimiter = ',', value_parser = role)]
    role: Vec<Role>,
    /// The user authenticates only with a client certificate or a token
    #[arg(long)]
    no_password: bool,
}

fn role(name: &str) -> Result<Role, String> {
    let roles = || "roles are admin, deployer, application, observer and monitor".to_owned();
    Role::from_name(name).ok_or_else(roles)
}

impl User {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let password = if self.no_password { None } else { Some(Self::password()?) };
        let line = line_for(&self.name, &self.role, password.as_deref()).map_err(|error| anyhow!(error))?;
        println!("{line}");
        Ok(ExitCode::SUCCESS)
    }

    fn password() -> anyhow::Result<String> {
        password::read_input("Password: ")?.ok_or_else(|| anyhow!("there is no password on standard input"))
    }
}
