//! `consort relay`: as org.jgroups.demos.RelayDemo.

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use consort_channel::relay::{SiteListener, Sites};
use consort_channel::{Address, Channel, Message, Receiver, View};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::demo_text;
use crate::join::{Join, introduction};
use crate::shutdown::Signals;
use crate::terminal::Escaped;

const COMMANDS: &str = "\
mbrs           the members of this site
sm             the site masters, as far as this member knows
sites          the sites that can be reached
routes         the routes of a site master
topo           the members of other sites, with RELAY3
to SITE TEXT   send a text to a site master of the site
help           this list
quit           leave
Any other line goes to all members of all sites, and they respond.";

/// Joins a site and sends every line of its input to the members of all sites.
#[derive(Args)]
#[command(after_help = "Example:\n  \
    consort relay --config lon.xml --name A\n\n\
    The stack has RELAY2 or RELAY3, whose attribute config names the file with the\n\
    sites. It talks to `java -cp jgroups.jar org.jgroups.demos.RelayDemo`. A line\n\
    `help` lists commands. `quit`, the end of the input, SIGTERM or Ctrl-C leaves.")]
#[command(mut_arg("cluster", |argument| {
    argument.default_value("").hide_default_value(true)
        .help("Name of the site's cluster; without it, the site's name")
        .value_parser(clap::builder::StringValueParser::new())
}))]
#[command(mut_arg("config", |argument| {
    argument.required(true).default_value(None::<&str>).help("Stack with RELAY2 or RELAY3: a file")
        .value_parser(NonEmptyStringValueParser::new())
}))]
pub(crate) struct Relay {
    #[command(flatten)]
    join: Join,
}

#[derive(Clone)]
struct Printer {
    channel: Arc<OnceLock<Channel>>,
}

impl Receiver for Printer {
    fn receive(&self, message: Message) {
        let (Some(src), Some(channel)) = (&message.src, self.channel.get()) else { return };
        println!("<< {} from {}", Escaped(demo_text::of(&message)), Escaped(channel.name_of(src)));
        if message.is_multicast() {
            // A receiver must not wait. Without room the sender misses one response.
            let _ = channel.try_send(demo_text::message(Some(src.clone()), "response"));
        }
    }

    fn view_accepted(&self, view: &View) {
        match self.channel.get() {
            Some(channel) => println!("** view: {}", Escaped(channel.view_text())),
            None => println!("** {} members", view.len()),
        }
    }
}

impl SiteListener for Printer {
    fn sites_up(&self, sites: &[Arc<str>]) {
        println!("** up: {}", Escaped(sites.join(", ")));
    }

    fn sites_down(&self, sites: &[Arc<str>]) {
        println!("** down: {}", Escaped(sites.join(", ")));
    }

    fn site_unreachable(&self, site: &str) {
        println!("** unreachable: {}", Escaped(site));
    }

    fn member_unreachable(&self, member: &Address) {
        println!("** unreachable: {}", Escaped(member));
    }
}

impl Relay {
    /// Returns the protocol, and the name of the site, which is also that of its cluster.
    fn site(&self) -> anyhow::Result<(String, String)> {
        let stack = consort_conf::load_stack(&self.join.config, &self.join.variables()?)?;
        let relay = consort_conf::relay_of(&stack.config)?;
        let found =
            relay.and_then(|relay| Some((relay.short_name().to_owned(), relay.get("site")?.to_owned())));
        found.with_context(|| {
            format!(
                "{} has no RELAY2 or RELAY3: add <relay.RELAY3 site=… config=…/> to the stack",
                self.join.config
            )
        })
    }

    pub(crate) async fn run(mut self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let (protocol, site) = self.site()?;
        if self.join.cluster.is_empty() {
            self.join.cluster.clone_from(&site);
        }
        let own = Arc::new(OnceLock::new());
        let printer = Printer { channel: own.clone() };
        let builder = self.join.builder()?.receiver(printer.clone()).site_listener(printer);
        let channel = tokio::select! {
            joined = builder.connect(&self.join.cluster) => joined?,
            name = signals.next() => anyhow::bail!("{name} before cluster {} was joined", self.join.cluster),
        };
        let _ = own.set(channel.clone());
        println!("{}\n-- site: {}", introduction(&channel), Escaped(site));
        let sites = channel.sites().context("the stack has no RELAY2 or RELAY3")?;
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line?,
                _ = signals.next() => None,
            };
            match line.as_deref().map(str::trim) {
                None | Some("quit" | "exit") => break,
                Some("") => {}
                Some(line) => command(&channel, (&protocol, &sites), line).await?,
            }
        }
        drop(own);
        channel.close().await;
        Ok(ExitCode::SUCCESS)
    }
}

async fn command(channel: &Channel, (protocol, sites): (&str, &Sites), line: &str) -> anyhow::Result<()> {
    match line {
        "help" => println!("{COMMANDS}"),
        "mbrs" => println!("{}", Escaped(channel.view_text())),
        "sm" | "site-masters" => attribute(channel, protocol, "site_masters").await,
        "routes" => attribute(channel, protocol, "routes").await,
        "topo" => attribute(channel, protocol, "topology").await,
        "sites" => {
            let status = sites.status();
            println!("{} and {}", Escaped(sites.own()), Escaped(status.reachable.join(", ")));
        }
        line => match line.strip_prefix("to ").and_then(|rest| rest.trim().split_once(' ')) {
            Some((site, words)) => {
                channel.send(demo_text::message(Some(Address::site_master(site)), words)).await?;
            }
            None => channel.send(demo_text::message(None, line)).await?,
        },
    }
    Ok(())
}

async fn attribute(channel: &Channel, protocol: &str, name: &'static str) {
    let protocol = protocol.to_owned();
    let value = channel.with_stack(move |stack, _| stack.attribute(&protocol, name)).await.flatten();
    println!("{}", Escaped(value.unwrap_or_default()));
}
