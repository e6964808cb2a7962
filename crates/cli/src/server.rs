//! `consort server`: caches for Hot Rod clients.

use std::process::ExitCode;

use clap::Args;
use consort_cache::{CacheManager, Channel, ManagerBuilder};
use consort_conf::{Variables, parse_stack};
use tokio::signal::unix::{SignalKind, signal};

use crate::join::Join;

/// The stack of a server that is alone: nothing leaves the process.
const ALONE: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
                     <GMS join_timeout=\"10\"/><UFC/><MFC/><FRAG4/></config>";

#[derive(Args)]
#[command(after_help = "Examples:\n  consort server\n  consort server --cluster shop --port 11223\n\n\
    There is no authentication yet: who can connect can do everything. SIGTERM ends a server once it has answered\n\
    what it was asked and others have what it has.")]
pub(crate) struct Server {
    /// The port for clients.
    #[arg(long, default_value_t = 11222)]
    port: u16,
    /// The address for clients to connect to.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// What clients are told to connect to, if that is something else.
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// The cluster of servers to join; without it the server is alone.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// The cluster's stack: a file, or a stock one such as tcp.xml.
    #[arg(long, value_name = "FILE", default_value = "tcp.xml")]
    config: String,
    /// This member's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where to bind for the other servers.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Sets a variable of the stack, such as jgroups.bind_port.
    #[arg(short = 'D', value_name = "NAME=VALUE")]
    define: Vec<String>,
}

impl Server {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        // From here on, so that a signal during start-up is not lost.
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let alone = format!("alone-{}", std::process::id());
        let (members, cluster) = match &self.cluster {
            Some(cluster) => (self.members(cluster)?, &cluster[..]),
            None => (Self::alone()?, &alone[..]),
        };
        let manager = members.connect(cluster).await?;
        let view = manager.view_text();
        let mut builder = consort_server::Server::builder().host(self.host).port(self.port);
        if let Some(advertise) = self.advertise {
            builder = builder.advertised(advertise);
        }
        let server = builder.start(manager).await?;
        match self.cluster {
            Some(cluster) => println!("Hot Rod on {}, cluster {cluster}: {view}", server.address()),
            None => println!("Hot Rod on {}, alone", server.address()),
        }
        let end = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        server.serve_until(end).await?;
        Ok(ExitCode::SUCCESS)
    }

    fn members(&self, cluster: &str) -> anyhow::Result<ManagerBuilder> {
        let join = Join {
            config: self.config.clone(),
            cluster: cluster.to_owned(),
            name: self.name.clone(),
            bind: self.bind.clone(),
            define: self.define.clone(),
        };
        Ok(CacheManager::from_channel(join.builder()?))
    }

    fn alone() -> anyhow::Result<ManagerBuilder> {
        let stack = parse_stack("a server that is alone", ALONE, &Variables::new())?;
        Ok(CacheManager::from_channel(Channel::from_config(stack.config)))
    }
}
