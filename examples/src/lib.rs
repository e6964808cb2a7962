//! The parts that the examples share: members of one process, and a server for the examples about clients.
//!
//! The examples are the programs in `src/bin`: `cargo run -p consort-examples --bin embedded_cache`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;

use consort::channel::ChannelBuilder;
use consort::config::{Variables, parse_stack};
use consort::server::ServerBuilder;
use consort::{CacheManager, Channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The error of an example.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A stack for members of one process. They need no sockets and find each other at once.
const IN_PROCESS: &str = "<config>
    <SHARED_LOOPBACK/>
    <SHARED_LOOPBACK_PING/>
    <NAKACK2/>
    <UNICAST3/>
    <STABLE/>
    <GMS join_timeout='100'/>
    <UFC/>
    <MFC/>
    <FRAG4/>
    <STATE_TRANSFER/>
</config>";

/// Begins a member of this process.
///
/// # Errors
///
/// If the stack is invalid.
pub fn in_process(name: &str) -> Result<ChannelBuilder, Failure> {
    in_process_with(name, "")
}

/// Begins a member of this process, with further protocols at the top of its stack.
///
/// # Errors
///
/// If the stack is invalid.
pub fn in_process_with(name: &str, protocols: &str) -> Result<ChannelBuilder, Failure> {
    let text = IN_PROCESS.replace("</config>", &format!("{protocols}</config>"));
    let stack = parse_stack("in-process.xml", &text, &Variables::new())?;
    Ok(Channel::from_config(stack.config).name(name))
}

/// A server of this process on a free port.
pub struct Served {
    /// The address for clients.
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Served {
    /// Starts a server with these settings.
    ///
    /// # Errors
    ///
    /// If it cannot start.
    pub async fn start(settings: ServerBuilder) -> Result<Self, Failure> {
        let manager = CacheManager::from_channel(in_process("server")?).connect("examples").await?;
        let server = settings.port(0).start(manager).await?;
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            // An absent sender stops the server, too.
            let end = async { drop(stopped.await) };
            if let Err(error) = server.serve_until(end).await {
                eprintln!("{error}");
            }
        });
        Ok(Self { address, stop, task })
    }

    /// Stops the server.
    ///
    /// # Errors
    ///
    /// If its task has panicked.
    pub async fn stop(self) -> Result<(), Failure> {
        drop(self.stop);
        Ok(self.task.await?)
    }
}

/// The programs in the documents are documentation tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/book/src/first-steps.md")]
    mod first_steps {}
}
