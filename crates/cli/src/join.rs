use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use consort_channel::{Channel, ChannelBuilder};
use consort_conf::Variables;
use consort_group::config::ProtocolConfig;

use crate::terminal::Escaped;

pub(crate) fn introduction(channel: &Channel) -> String {
    format!("-- local: {} ({})\n-- view: {}", channel.name(), channel.address(), Escaped(channel.view_text()))
}

/// The default name.
pub(crate) const CLUSTER: &str = "consort";

/// Which cluster to join, and how.
#[derive(Args, Clone)]
pub(crate) struct Join {
    /// Stack: a file, or a stock one such as tcp.xml, udp.xml, sequencer.xml
    #[arg(long, aliases = ["cfg", "props"], value_name = "FILE", default_value = "tcp.xml")]
    pub(crate) config: String,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = CLUSTER, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) cluster: String,
    /// Name of this member; without it, the host's name and a number
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: Option<String>,
    /// Bind address: an address, a pattern, or loopback, site_local and the like
    #[arg(long, value_name = "ADDRESS", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) bind: Option<String>,
    /// Set a variable of the configuration, such as jgroups.bind_port
    #[arg(short = 'D', value_name = "NAME=VALUE")]
    pub(crate) define: Vec<String>,
}

impl Join {
    pub(crate) fn variables(&self) -> anyhow::Result<Variables> {
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
        Ok(variables)
    }

    pub(crate) fn builder(&self) -> anyhow::Result<ChannelBuilder> {
        let builder = Channel::from_file_with(&self.config, &self.variables()?)?;
        Ok(match &self.name {
            Some(name) => builder.name(name),
            None => builder,
        })
    }

    pub(crate) fn default(&mut self, name: &str, value: String) {
        let prefix = format!("{name}=");
        if !self.define.iter().any(|definition| definition.starts_with(&prefix)) {
            self.define.push(prefix + &value);
        }
    }

    fn transport(&self) -> anyhow::Result<ProtocolConfig> {
        let stack = consort_conf::load_stack(&self.config, &self.variables()?)?;
        stack.config.protocols.into_iter().next().with_context(|| format!("{} has no transport", self.config))
    }

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

    /// Members on this host find each other at these addresses, unless the user has set others.
    pub(crate) fn on_this_host(&mut self, first_port: u16, members: usize) -> anyhow::Result<()> {
        self.bind.get_or_insert_with(|| "127.0.0.1".to_owned());
        if matches!(self.transport()?.short_name(), "TCP" | "TCP_NIO2") {
            self.default("jgroups.bind_port", first_port.to_string());
        }
        // A file of one's own may have settled the port.
        let own = self.transport()?.get("bind_port").and_then(|port| port.parse().ok());
        let first_port = own.filter(|port| *port > 0).unwrap_or(first_port);
        self.default("jgroups.tcpping.initial_hosts", format!("127.0.0.1[{first_port}]"));
        self.default("jgroups.tcp.port_range", (members + 1).to_string());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        join: Join,
    }

    fn defined(arguments: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut join = Arguments::parse_from([&["consort"], arguments].concat()).join;
        join.on_this_host(17_000, 4)?;
        Ok(join.define)
    }

    #[test]
    fn tcp_gets_its_own_port_with_any_file_name() {
        let copy = std::env::temp_dir().join(format!("consort-{}-my-own.xml", std::process::id()));
        let (_, text) = consort_conf::STOCK.iter().find(|(name, _)| *name == "tcp.xml").unwrap();
        std::fs::write(&copy, text).unwrap();
        let copied = defined(&["--config", copy.to_str().unwrap()]);
        std::fs::remove_file(&copy).unwrap();
        let stock = defined(&["--config", "tcp.xml"]).unwrap();
        assert_eq!(
            stock,
            [
                "jgroups.bind_port=17000",
                "jgroups.tcpping.initial_hosts=127.0.0.1[17000]",
                "jgroups.tcp.port_range=5"
            ]
        );
        assert_eq!(copied.unwrap(), stock);
        assert_eq!(defined(&["--config", "tcp-nio.xml"]).unwrap(), stock);
        assert!(!defined(&["--config", "udp.xml"]).unwrap()[0].starts_with("jgroups.bind_port"));
    }

    #[test]
    fn hosts_to_query_follow_the_given_port() {
        let defined = defined(&["-D", "jgroups.bind_port=9000"]).unwrap();
        assert_eq!(defined[..2], ["jgroups.bind_port=9000", "jgroups.tcpping.initial_hosts=127.0.0.1[9000]"]);
    }

    #[test]
    fn a_definition_without_a_value_is_refused() {
        let error = defined(&["-D", "jgroups.bind_port"]).unwrap_err();
        assert_eq!(error.to_string(), "-D jgroups.bind_port: NAME=VALUE was expected");
    }
}
