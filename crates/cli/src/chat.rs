//! `consort chat`: as org.jgroups.demos.Chat.

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use clap::Args;
use consort_channel::{Channel, Message, Receiver, View};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::demo_text;
use crate::join::{Join, introduction};
use crate::shutdown::Signals;
use crate::terminal::Escaped;

/// Joins a cluster and sends every line of its input to all members.
#[derive(Args)]
#[command(after_help = "Example:\n  \
    consort chat --name me\n\n\
    It talks to `java -cp jgroups.jar org.jgroups.demos.Chat`, which joins the same\n\
    cluster by default. A line `quit` or `exit`, the end of the input, SIGTERM or\n\
    Ctrl-C leaves.")]
#[command(mut_arg("cluster", |argument| argument.default_value("chat")))]
pub(crate) struct Chat {
    #[command(flatten)]
    join: Join,
}

struct Printer {
    channel: Arc<OnceLock<Channel>>,
}

impl Receiver for Printer {
    fn receive(&self, message: Message) {
        let from = match (&message.src, self.channel.get()) {
            (Some(src), Some(channel)) => channel.name_of(src),
            _ => "?".to_owned(),
        };
        println!("{}: {}", Escaped(from), Escaped(demo_text::of(&message)));
    }

    fn view_accepted(&self, view: &View) {
        match self.channel.get() {
            Some(channel) => println!("** view: {}", Escaped(channel.view_text())),
            None => println!("** {} members", view.len()),
        }
    }
}

impl Chat {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let own = Arc::new(OnceLock::new());
        let printer = Printer { channel: own.clone() };
        let builder = self.join.builder()?.receiver(printer);
        // The coordinator may answer late, or never.
        let channel = tokio::select! {
            joined = builder.connect(&self.join.cluster) => joined?,
            name = signals.next() => anyhow::bail!("{name} before cluster {} was joined", self.join.cluster),
        };
        let _ = own.set(channel.clone());
        println!("{}", introduction(&channel));
        if channel.view().is_some_and(|view| view.len() == 1) {
            // A firewall and an empty network look alike from here.
            println!(
                "-- no other member responds. If others run, this shows why: consort doctor --config {} --cluster {}",
                Escaped(&self.join.config),
                Escaped(&self.join.cluster)
            );
        }
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line?,
                _ = signals.next() => None,
            };
            let Some(line) = line else { break };
            let line = line.trim();
            if line == "quit" || line == "exit" {
                break;
            }
            channel.send(demo_text::message(None, line)).await?;
        }
        drop(own);
        channel.close().await;
        Ok(ExitCode::SUCCESS)
    }
}
