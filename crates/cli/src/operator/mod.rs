//! The first questions of an operator, and the server that answers them.

pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod describe;
mod stop;
mod units;

use anyhow::Context;
use clap::Args;
use consort_client::{ClientBuilder, ClientError};
use serde_json::Value;

use crate::password::Login;
use crate::terminal::escape_bytes;

/// A server, and how to reach it.
#[derive(Args)]
pub(crate) struct Target {
    /// Address of a server; with TLS, hotrods://HOST:PORT. Every program of this host can read a password in it
    /// (hotrods://USER:PASSWORD@HOST): use --user.
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1:11222", global = true)]
    at: String,
    #[command(flatten)]
    login: Login,
}

impl Target {
    pub(crate) fn client(&self) -> anyhow::Result<ClientBuilder> {
        self.login.client(&self.at)
    }
}

/// The number of Infinispan's error for an unknown task.
const UNKNOWN_TASK: &str = "ISPN027002";

/// Explains the error of a server without the task.
pub(crate) fn answered<T>(answer: Result<T, ClientError>) -> anyhow::Result<T> {
    let is_unknown = match &answer {
        Err(ClientError::Server { message, .. }) => message.contains(UNKNOWN_TASK),
        _ => false,
    };
    if is_unknown {
        return answer.context("the server does not have this operation: it is older, or not Consort's");
    }
    Ok(answer?)
}

fn parse(answer: &str) -> anyhow::Result<Value> {
    serde_json::from_str(answer).context("the server's answer is no JSON")
}

/// As a server has written it, but indented; the servers' names are escaped on a terminal only.
fn print_json(value: &Value) -> anyhow::Result<()> {
    print_text(&format!("{value:#}\n"))
}

pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    use std::io::{IsTerminal, Write};
    let mut out = std::io::stdout().lock();
    let is_terminal = out.is_terminal();
    out.write_all(&escape_bytes(text.as_bytes(), is_terminal))?;
    Ok(out.flush()?)
}

/// `HOST:PORT`, with brackets around an IPv6 address; "-" for a member that serves no clients.
fn address(member: &Value) -> String {
    match (member["host"].as_str(), member["port"].as_u64()) {
        (Some(host), Some(port)) if host.contains(':') => format!("[{host}]:{port}"),
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => "-".to_owned(),
    }
}

/// A cell of a table: "-" for an unknown value.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use consort_client::Status;

    use super::*;

    #[test]
    fn server_without_the_task_is_explained() {
        let refused = |message: &str| -> Result<(), ClientError> {
            let (server, message) = ("a:1".to_owned(), message.to_owned());
            Err(ClientError::Server { server, status: Status::ServerError, message })
        };
        let text = |message| format!("{:#}", answered(refused(message)).unwrap_err());
        let old = text("ISPN027002: Unknown task '@@cache@describe'");
        assert!(old.starts_with("the server does not have this operation") && old.contains("a:1"), "{old}");
        assert!(text("ISPN000436: Cache 'c' has been requested").starts_with("a:1: ISPN000436"));
    }

    #[test]
    fn unknown_values_are_dashes() {
        let cells = [Value::Null, "a".into(), 7.into(), true.into()].map(|value| cell(&value));
        assert_eq!(cells, ["-", "a", "7", "true"]);
    }
}
