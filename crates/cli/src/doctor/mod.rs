//! `consort doctor`: why a member is alone, or a client cannot connect.

mod database;
mod discovered;
mod findings;
mod host;
mod members;
mod multicast;
mod pods;
pub(crate) mod port_probe;
mod ports;
mod reach;
mod routers;
mod server;
mod stack;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use self::findings::{Findings, Verdict};
use self::host::Clocks;
use self::server::Expected;
use crate::broken_pipe::print_error;
use crate::join::Join;
use crate::password::Login;

/// Find out why a member is alone or a client cannot connect, and print a remedy.
///
/// It checks this host, and a server, a member's stack, or both. It changes nothing and joins no cluster.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    consort doctor                                      the server of this host\n  \
    consort doctor shop.example:11222                   why can I not connect?\n  \
    consort doctor \\\n    \
    'hotrods://shop.example?trust_store_file_name=ca.pem' --user alice\n  \
    consort doctor shop.example --cache shop --servers 3\n  \
    consort doctor --config my-stack.xml                can this file be used?\n  \
    consort doctor --config tcp.xml --cluster shop \\\n    \
    -D jgroups.tcpping.initial_hosts=10.0.0.1[7800]\n\n\
    A line has `ok`, `warning` or `BAD`, the check, and its result. The next line\n\
    has the remedy. Members respond if their transport has diag.enabled, as in the\n\
    stock stacks, and servers with --diagnostics; consort probe queries them in the\n\
    same way. The exit code is 1 if a check is BAD, and 2 for errors.")]
pub(crate) struct Doctor {
    /// Address of a server for clients: HOST, HOST:PORT, or a URI with hotrod:// or hotrods://. Without it and --config:
    /// 127.0.0.1:11222
    #[arg(value_name = "SERVER")]
    at: Option<String>,
    #[command(flatten)]
    login: Login,
    /// Cache whose servers are checked. Without it, the first by name
    #[arg(long, value_name = "NAME")]
    cache: Option<String>,
    /// Number of servers that clients of the cache must be sent to
    #[arg(long, value_name = "NUMBER")]
    servers: Option<usize>,
    #[command(flatten)]
    stack: Stack,
    /// Timeout of each check, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    timeout: f64,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// A member that is alone, or is to be started.
#[derive(Args)]
struct Stack {
    /// Stack of a member: a file, or a stock one such as tcp.xml. Checks why it discovers no member.
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Name of its cluster. Without it, members of all clusters count
    #[arg(long, value_name = "NAME", requires = "config")]
    cluster: Option<String>,
    /// Bind address: an address, a pattern, or loopback, site_local and the like
    #[arg(long, value_name = "ADDRESS", requires = "config")]
    bind: Option<String>,
    /// Set a variable of the configuration, such as jgroups.bind_port
    #[arg(short = 'D', value_name = "NAME=VALUE", requires = "config")]
    define: Vec<String>,
}

impl Doctor {
    /// Errors have an exit code of their own, because 1 is an answer.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        Ok(self.check().await.unwrap_or_else(|error| print_error(&error, ExitCode::from(2))))
    }

    async fn check(self) -> anyhow::Result<ExitCode> {
        let time_limit = Duration::try_from_secs_f64(self.timeout.max(0.1))?;
        crate::descriptors::raise_limit();
        let (clocks, mut findings) = (Clocks::now(), Findings::new(!self.json));
        host::descriptors(&mut findings);
        let at = match (&self.at, &self.stack.config) {
            (None, None) => Some("127.0.0.1:11222"),
            (at, _) => at.as_deref(),
        };
        if at.is_none() && (self.cache.is_some() || self.servers.is_some()) {
            anyhow::bail!("--cache and --servers are about a server: name its address");
        }
        if let Some(at) = at {
            let expected = Expected { cache: self.cache, servers: self.servers };
            server::check(self.login.client(at)?, &expected, time_limit, &mut findings).await?;
        }
        if let Some(config) = self.stack.config {
            let cluster = self.stack.cluster;
            let join = Join {
                config,
                cluster: String::new(),
                name: None,
                bind: self.stack.bind,
                define: self.stack.define,
            };
            stack::check(&join, cluster.as_deref(), time_limit, &mut findings).await?;
        }
        clocks.compare(&mut findings);
        let (bad, warnings) = (findings.count(Verdict::Bad), findings.count(Verdict::Warning));
        if self.json {
            println!("{}", findings.json()?);
        } else {
            println!("\n{bad} bad, {warnings} warnings.");
        }
        Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
