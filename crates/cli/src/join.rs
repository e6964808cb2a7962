//! The options that all channel tools share.

use clap::Args;
use consort_channel::{Channel, ChannelBuilder};
use consort_conf::Variables;

/// A member's name and view, for people.
pub(crate) fn introduction(channel: &Channel) -> String {
    format!("-- local: {} ({})\n-- view: {}", channel.name(), channel.address(), channel.view_text())
}

/// Which cluster to join, and how.
#[derive(Args, Clone)]
pub(crate) struct Join {
    /// The stack: a file, or one that comes along (tcp.xml, udp.xml, tcp-new.xml, udp-new.xml, tcp-nio.xml,
    /// sequencer.xml).
    #[arg(long, value_name = "FILE", default_value = "tcp.xml")]
    pub(crate) config: String,
    /// The cluster's name.
    #[arg(long, value_name = "NAME", default_value = "consort")]
    pub(crate) cluster: String,
    /// This member's logical name; without it, the host's and a number.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The address to bind to: an IP, an interface pattern, or loopback, site_local and the like.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<String>,
    /// Sets a variable of the configuration, such as jgroups.tcpping.initial_hosts.
    #[arg(short = 'D', value_name = "NAME=VALUE")]
    pub(crate) define: Vec<String>,
}

impl Join {
    pub(crate) fn builder(&self) -> anyhow::Result<ChannelBuilder> {
        let mut variables = Variables::from_env();
        if let Some(bind) = &self.bind {
            variables.set("jgroups.bind_addr", bind);
        }
        for definition in &self.define {
            let Some((name, value)) = definition.split_once('=') else {
                anyhow::bail!("-D {definition}: NAME=VALUE was expected");
            };
            variables.set(name, value);
        }
        let builder = Channel::from_file_with(&self.config, &variables)?;
        Ok(match &self.name {
            Some(name) => builder.name(name),
            None => builder,
        })
    }

    /// Sets a variable, unless the user has.
    fn default(&mut self, name: &str, value: String) {
        let prefix = format!("{name}=");
        if !self.define.iter().any(|definition| definition.starts_with(&prefix)) {
            self.define.push(prefix + &value);
        }
    }

    /// The transport's port, if there is a stack and it says one.
    fn bind_port(&self) -> Option<u16> {
        let defined = self.define.iter().filter_map(|definition| definition.split_once('='));
        let variables = defined.fold(Variables::from_env(), |all, (name, value)| all.with(name, value));
        let stack = consort_conf::load_stack(&self.config, &variables).ok()?;
        stack.config.protocols.first()?.get("bind_port")?.parse().ok().filter(|port| *port > 0)
    }

    /// The same options as arguments for another process, under another name.
    pub(crate) fn arguments(&self, name: &str) -> Vec<String> {
        let mut arguments = vec![
            format!("--config={}", self.config),
            format!("--cluster={}", self.cluster),
            format!("--name={name}"),
        ];
        arguments.extend(self.bind.iter().map(|bind| format!("--bind={bind}")));
        arguments.extend(self.define.iter().map(|definition| format!("-D{definition}")));
        arguments
    }

    /// Settles where members on this host find each other, unless the user has said it.
    pub(crate) fn on_this_host(&mut self, first_port: u16, members: usize) {
        if self.config.starts_with("tcp") {
            self.default("jgroups.bind_port", first_port.to_string());
        }
        // A file of one's own may have settled the port.
        let first_port = self.bind_port().unwrap_or(first_port);
        self.default("jgroups.tcpping.initial_hosts", format!("127.0.0.1[{first_port}]"));
        self.default("jgroups.tcp.port_range", (members + 1).to_string());
        self.bind.get_or_insert_with(|| "127.0.0.1".to_owned());
    }
}
