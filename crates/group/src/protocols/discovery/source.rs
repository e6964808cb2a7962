//! The ways in which a discovery request reaches other members.

use super::{Hosts, Names, Routers, cluster_of};
use crate::wire;
use crate::{
    Address, Cx, Effect, Event, Message, Outcome, PhysAddr, PingData, ProbeOut, ProtocolId, Token, Uuid, View,
};

crate::properties! {
    /// MPING's properties.
    MpingConfig {
        /// The multicast group, of the address family of the bound address.
        mcast_addr: String = "230.5.6.7".to_owned(),
        /// Its port.
        mcast_port: u16 = 7555,
        /// Time to live of requests.
        ip_ttl: u32 = 8,
    }
}

crate::properties! {
    /// FILE_PING's properties.
    FilePingConfig {
        /// The directory shared by all members. Each cluster has a subdirectory.
        location: String = "/tmp/jgroups".to_owned(),
    }
}

pub(super) enum SourceResult {
    Message(Box<Message>),
    Data(PingData),
    /// The source is done.
    End,
}

/// The source of a discovery protocol.
pub enum Source {
    /// By multicast through the transport.
    Ping,
    /// To a list of hosts, each with a range of ports.
    TcpPing(Hosts),
    /// By datagrams to a separate group. Responses come through the transport.
    Mping {
        /// Group and time to live.
        config: MpingConfig,
    },
    /// To the members that routers list.
    TcpGossip(Routers),
    /// To the addresses of DNS names.
    Dns(Names),
    /// Through files in a shared directory.
    FilePing {
        /// The directory.
        config: FilePingConfig,
        /// Whether a join waits for the files.
        is_reading: bool,
    },
    /// Within the process (LOCAL_PING and SHARED_LOOPBACK_PING).
    Local {
        /// Whether the name is SHARED_LOOPBACK_PING.
        is_loopback: bool,
    },
}

impl Source {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ping => "PING",
            Self::TcpPing(_) => "TCPPING",
            Self::Mping { .. } => "MPING",
            Self::TcpGossip(_) => "TCPGOSSIP",
            Self::Dns(_) => "DNS_PING",
            Self::FilePing { .. } => "FILE_PING",
            Self::Local { is_loopback: true } => "SHARED_LOOPBACK_PING",
            Self::Local { .. } => "LOCAL_PING",
        }
    }

    pub(super) fn id(&self) -> ProtocolId {
        match self {
            Self::Ping => ProtocolId::PING,
            Self::TcpPing(_) => ProtocolId::TCPPING,
            Self::Mping { .. } => ProtocolId::MPING,
            Self::TcpGossip(_) => ProtocolId::TCPGOSSIP,
            Self::Dns(_) => ProtocolId::DNS_PING,
            Self::FilePing { .. } => ProtocolId::FILE_PING,
            Self::Local { is_loopback: true } => ProtocolId::SHARED_LOOPBACK_PING,
            Self::Local { .. } => ProtocolId::LOCAL_PING,
        }
    }

    /// Returns whether the coordinator must disseminate members' data. With multicast all members receive all
    /// requests.
    pub(super) fn needs_dissemination(&self) -> bool {
        matches!(self, Self::TcpPing(_) | Self::TcpGossip(_) | Self::Dns(_) | Self::FilePing { .. })
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::Mping { config } => match config.mcast_addr.parse() {
                Ok(ip) => {
                    let group = PhysAddr::new(ip, config.mcast_port);
                    cx.request(Effect::JoinGroup { group, ttl: config.ip_ttl });
                }
                Err(_) => tracing::error!(mcast_addr = config.mcast_addr, "MPING: not an IP address"),
            },
            Self::TcpGossip(routers) => routers.connect(cx),
            Self::Local { .. } => {
                let data = super::Discovery::own_data(cx, None);
                cx.request(Effect::AnnounceLocally(data));
            }
            _ => {}
        }
    }

    pub(super) fn reach(&mut self, cx: &mut Cx<'_>) {
        if let Self::TcpGossip(routers) = self {
            routers.reach(cx);
        }
    }

    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::Mping { .. } => {
                cx.request(Effect::LeaveGroup);
            }
            Self::TcpPing(hosts) => hosts.disconnect(),
            Self::Dns(names) => names.disconnect(),
            Self::TcpGossip(routers) => routers.disconnect(cx),
            Self::Local { .. } => {
                cx.request(Effect::RetractLocally);
            }
            Self::FilePing { config, .. } => {
                let (directory, name) = (directory(cx, config), file_name(cx));
                cx.request(Effect::RemoveFile { directory, name });
            }
            _ => {}
        }
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, message: Message) {
        match self {
            Self::Ping => cx.send(message),
            Self::TcpPing(hosts) => hosts.ask(cx, message),
            Self::Mping { .. } => {
                cx.request(Effect::SendGroup { datagram: wire::encode_body(&message) });
            }
            Self::TcpGossip(routers) => routers.ask(cx, message),
            Self::Dns(names) => names.ask(cx, message),
            Self::FilePing { config, is_reading } => {
                *is_reading = true;
                let directory = directory(cx, config);
                cx.request(Effect::ReadFiles { directory, ending: ".list" });
            }
            Self::Local { .. } => {
                cx.request(Effect::FindLocally);
            }
        }
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        match self {
            Self::TcpPing(hosts) => hosts.probe(out),
            Self::TcpGossip(routers) => routers.probe(out),
            Self::Dns(names) => names.probe(out),
            _ => {}
        }
    }

    pub(super) fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        match self {
            Self::FilePing { config, .. } if cx.is_coordinator() => {
                let (directory, name) = (directory(cx, config), file_name(cx));
                let content = file_content(cx, view);
                cx.request(Effect::WriteFile { directory, name, content });
            }
            Self::Local { .. } => {
                let data = super::Discovery::own_data(cx, None);
                let data = PingData { is_server: true, ..data };
                cx.request(Effect::AnnounceLocally(data));
                // Requests names and addresses of members that joined after the last request.
                if view.members().iter().any(|member| cx.book().name(member).is_none()) {
                    cx.request(Effect::FindLocally);
                }
            }
            _ => {}
        }
    }

    /// Handles an outcome. `is_searching`: a discovery waits for the last request.
    pub(super) fn done(
        &mut self,
        cx: &mut Cx<'_>,
        token: Token,
        outcome: Outcome,
        is_searching: bool,
    ) -> Vec<SourceResult> {
        match (self, outcome) {
            (Self::TcpGossip(routers), outcome) => {
                routers.done(cx, token, outcome, is_searching);
                Vec::new()
            }
            (Self::TcpPing(hosts), outcome) => {
                hosts.done(cx, token, outcome);
                Vec::new()
            }
            (Self::Dns(names), outcome) => {
                names.done(cx, token, outcome);
                Vec::new()
            }
            (Self::Mping { .. }, Outcome::Datagram { datagram, .. }) => match wire::decode_body(0, &datagram)
            {
                Ok(message) if message.src.as_ref() != Some(cx.local()) => {
                    vec![SourceResult::Message(Box::new(message))]
                }
                Ok(_) => Vec::new(),
                Err(error) => {
                    cx.count_drop(crate::DropReason::Malformed, |_| error.to_string());
                    Vec::new()
                }
            },
            (Self::FilePing { config, is_reading }, Outcome::Files(files)) => {
                let was_reading = std::mem::take(is_reading);
                let mut found: Vec<SourceResult> =
                    files.iter().flat_map(|(_, text)| parse_file(text)).map(SourceResult::Data).collect();
                if found.is_empty() && was_reading && cx.view().is_none() {
                    // The first member writes its file so that others find it.
                    let (directory, name) = (directory(cx, config), file_name(cx));
                    let phys = cx.shared().phys;
                    let content =
                        format!("{} \t{} \t{} \tF\n", cx.shared().name, cx.local(), file_address(phys));
                    cx.request(Effect::WriteFile { directory, name, content });
                }
                found.push(SourceResult::End);
                found
            }
            (Self::FilePing { is_reading, .. }, Outcome::Failed(why)) => {
                tracing::warn!(why, "FILE_PING");
                if std::mem::take(is_reading) { vec![SourceResult::End] } else { Vec::new() }
            }
            (Self::Local { .. }, Outcome::Local(members)) => {
                let mut found: Vec<SourceResult> = members.into_iter().map(SourceResult::Data).collect();
                found.push(SourceResult::End);
                found
            }
            (source, Outcome::Failed(why)) => {
                tracing::warn!(protocol = source.name(), why, "discovery");
                cx.raise(Event::Found(Vec::new()));
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the physical addresses of known members, at most `count_max`.
pub(super) fn known(cx: &Cx<'_>, count_max: usize) -> impl Iterator<Item = PhysAddr> + use<> {
    let book = cx.shared().book.iter().filter_map(|(_, _, phys)| phys);
    book.take(count_max).collect::<Vec<_>>().into_iter()
}

/// Sends the request to these addresses, except to this member's own.
pub(super) fn send_to(cx: &mut Cx<'_>, question: &Message, places: impl IntoIterator<Item = PhysAddr>) {
    let own = cx.shared().phys;
    for place in places.into_iter().filter(|place| *place != own) {
        cx.send(Message { dest: Some(Address::Ip(place)), ..question.clone() });
    }
}

fn directory(cx: &Cx<'_>, config: &FilePingConfig) -> String {
    format!("{}/{}", config.location, sanitized(&cluster_of(cx)))
}

fn file_name(cx: &Cx<'_>) -> String {
    sanitized(&format!("{}.{}.list", cx.local(), cx.shared().name))
}

/// Replaces characters that some file system refuses by dashes, as JGroups does.
fn sanitized(name: &str) -> String {
    name.chars()
        .map(|c| if matches!(c, '\0' | '<' | '>' | ':' | '"' | '/' | '|' | '?' | '*') { '-' } else { c })
        .collect()
}

fn file_address(phys: PhysAddr) -> String {
    match phys.ip {
        Some(ip) => format!("{ip}:{}", phys.port),
        None => format!("?:{}", phys.port),
    }
}

fn file_content(cx: &Cx<'_>, view: &View) -> String {
    let book = &cx.shared().book;
    view.members()
        .iter()
        .filter_map(|member| {
            let flag = if view.coordinator() == Some(member) { 'T' } else { 'F' };
            let phys = file_address(book.phys(member)?);
            Some(format!("{} \t{member} \t{phys} \t{flag}\n", book.name(member)?))
        })
        .collect()
}

/// Parses a file of FILE_PING: lines of `name uuid ip:port T|F`. Other lines are skipped.
pub fn parse_file(text: &str) -> Vec<PingData> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, uuid, phys, flag) = (words.next()?, words.next()?, words.next()?, words.next()?);
            let (host, port) = phys.rsplit_once(':')?;
            let phys = PhysAddr::new(host.trim_matches(['[', ']']).parse().ok()?, port.parse().ok()?);
            Some(PingData {
                sender: Address::Uuid(parse_uuid(uuid)?),
                is_server: true,
                is_coordinator: flag == "T",
                name: Some(name.into()),
                phys: Some(phys),
                wanted: None,
            })
        })
        .collect()
}

fn parse_uuid(text: &str) -> Option<Uuid> {
    if let Ok(least) = text.parse::<u64>() {
        return Some(Uuid { most: 0, least });
    }
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == 32)?;
    Some(Uuid { most: (value >> 64) as u64, least: value as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_file_ping_names_a_member() {
        let line = "A \t01020304-0506-0708-1112-131415161718 \t127.0.0.1:7800 \tT\nnonsense\n";
        let found = parse_file(line);
        assert_eq!(found.len(), 1);
        assert!(found[0].is_coordinator);
        assert_eq!(found[0].sender.to_string(), "01020304-0506-0708-1112-131415161718");
        assert_eq!(sanitized("a/b:c"), "a-b-c");
    }
}
