//! The two channels of a member: the grid's, and one for control (S000-24).
//!
//! Control uses the same stack 50 ports further, so that neither finds the other's members.

use anyhow::Context;
use consort_channel::{Channel, ChannelBuilder};
use consort_group::config::{ProtocolConfig, StackConfig};

use crate::join::Join;

/// FD_SOCK2 listens 100 above either.
pub(crate) const CONTROL_PORTS: u16 = 50;

pub(crate) fn control_cluster(data: &str) -> String {
    if data == "default" { "cfg".to_owned() } else { format!("{data}-cfg") }
}

pub(crate) fn control(join: &Join, config: Option<&str>) -> anyhow::Result<ChannelBuilder> {
    let (name, variables) = (config.unwrap_or(&join.config), join.variables()?);
    let mut stack = consort_conf::load_stack(name, &variables)?.config;
    if config.is_none() {
        move_ports(&mut stack).with_context(|| format!("the control channel's ports, beside {name}"))?;
    }
    let builder = Channel::from_config(stack);
    Ok(match &join.name {
        Some(name) => builder.name(format!("{name}-cfg")),
        None => builder,
    })
}

fn move_ports(stack: &mut StackConfig) -> anyhow::Result<()> {
    for protocol in &mut stack.protocols {
        for name in ["bind_port", "mcast_port"] {
            change(protocol, name, |port| match port.trim().parse::<u16>() {
                Ok(0) => Ok("0".to_owned()),
                Ok(port) => moved(port).map(|port| port.to_string()),
                Err(_) => anyhow::bail!("{name} is `{port}`"),
            })?;
        }
        change(protocol, "initial_hosts", moved_hosts)?;
        // The file has the grid's ports.
        change(protocol, "initial_hosts_file", |_| {
            anyhow::bail!(
                "initial_hosts_file: set initial_hosts instead, or a stack of its own (--control-config)"
            )
        })?;
    }
    Ok(())
}

fn change(
    protocol: &mut ProtocolConfig,
    name: &str,
    change: impl Fn(&str) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    for (_, value, _) in protocol.attributes.iter_mut().filter(|(own, ..)| own == name) {
        *value = change(value)?;
    }
    Ok(())
}

fn moved(port: u16) -> anyhow::Result<u16> {
    port.checked_add(CONTROL_PORTS).with_context(|| format!("no port is {CONTROL_PORTS} above {port}"))
}

/// `10.0.0.1[7800],b[7800]` with the ports moved.
fn moved_hosts(hosts: &str) -> anyhow::Result<String> {
    let mut parts = hosts.split('[');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (port, rest) = part.split_once(']').with_context(|| format!("no `]` in `{hosts}`"))?;
        let port = port.trim().parse().with_context(|| format!("`{port}` is no port"))?;
        text += &format!("[{}]{rest}", moved(port)?);
    }
    Ok(text)
}

/// As a channel prints it when it is open (S000-24).
pub(crate) fn banner(name: &str, cluster: &str, physical_address: &str) -> String {
    let line = "-".repeat(67);
    format!("\n{line}\nGMS: address={name}, cluster={cluster}, physical address={physical_address}\n{line}")
}

#[cfg(test)]
mod tests {
    use consort_conf::{Variables, load_stack};

    use super::*;

    #[test]
    fn control_is_fifty_ports_further() {
        let variables = Variables::new()
            .with("jgroups.bind_port", "9000")
            .with("jgroups.tcpping.initial_hosts", "10.0.0.1[9000], b[9001]");
        let mut tcp = load_stack("tcp.xml", &variables).unwrap().config;
        move_ports(&mut tcp).unwrap();
        assert_eq!(tcp.protocols[0].get("bind_port"), Some("9050"));
        assert_eq!(tcp.protocols[1].get("initial_hosts"), Some("10.0.0.1[9050], b[9051]"));
        let mut udp = load_stack("udp.xml", &Variables::new()).unwrap().config;
        move_ports(&mut udp).unwrap();
        assert_eq!(udp.protocols[0].get("mcast_port"), Some("45638"));
        let high = Variables::new().with("jgroups.bind_port", "65500");
        assert!(move_ports(&mut load_stack("tcp.xml", &high).unwrap().config).is_err());
        assert!(moved_hosts("a[x]").is_err());
    }

    /// S000-24
    #[test]
    fn a_banner_reads_as_in_jgroups() {
        let text = banner("host-27417", "default", "127.0.0.1:7800");
        let line = "-------------------------------------------------------------------";
        assert_eq!(
            text,
            format!(
                "\n{line}\nGMS: address=host-27417, cluster=default, physical address=127.0.0.1:7800\n{line}"
            )
        );
        assert_eq!([control_cluster("default"), control_cluster("x")], ["cfg", "x-cfg"]);
    }
}
