//! The ways in which a discovery request reaches other members.

use std::net::IpAddr;
use std::time::Duration;

use super::{Hosts, Names, Pods, Routers, Store};
use crate::wire;
use crate::{
    Address, Cx, Effect, Event, Message, Outcome, PhysAddr, PingData, ProbeOut, ProtocolId, StackCount,
    TimerKey, Token, View,
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
    /// The interface of MPING's group.
    MpingBindConfig {
        /// The address of the interface on which the group is joined, or selectors as in the transport's
        /// `bind_addr`. The transport's address if not set.
        bind_addr: String = String::new(),
    }
}

/// Addresses learned at run time that get a request, as of TCPPING by default.
pub(super) const KNOWN_MAX: usize = 2_000;

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
        /// The address of the group's interface; the transport's if absent.
        bind: Option<IpAddr>,
    },
    /// To the members that routers list.
    TcpGossip(Routers),
    /// To the addresses of DNS names.
    Dns(Names),
    /// To the pods that the API of Kubernetes lists.
    Kube(Box<Pods>),
    /// Through files in a shared directory (FILE_PING), or rows of a database (JDBC_PING2).
    Store(Box<Store>),
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
            Self::Kube(_) => "KUBE_PING",
            Self::Store(store) => store.name(),
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
            Self::Kube(_) => ProtocolId::KUBE_PING,
            Self::Store(store) => store.id(),
            Self::Local { is_loopback: true } => ProtocolId::SHARED_LOOPBACK_PING,
            Self::Local { .. } => ProtocolId::LOCAL_PING,
        }
    }

    /// Returns whether the coordinator must disseminate members' data. With multicast all members receive all
    /// requests.
    pub(super) fn needs_dissemination(&self) -> bool {
        !matches!(self, Self::Ping | Self::Mping { .. } | Self::Local { .. })
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::Mping { config, bind } => match config.mcast_addr.parse() {
                Ok(ip) => {
                    let group = PhysAddr::new(ip, config.mcast_port);
                    cx.request(Effect::JoinGroup { group, bind: *bind, ttl: config.ip_ttl });
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

    /// Begins a join's discovery. Returns how often its request is sent within the timeout.
    pub(super) fn begin_join(&mut self, runs: u32, timeout: Duration) -> u32 {
        match self {
            Self::Store(store) => store.begin_join(runs, timeout),
            Self::Kube(pods) => pods.begin_join(runs, timeout),
            _ => runs,
        }
    }

    /// Notes that a join ends, and whether a member has responded.
    pub(super) fn end_join(&mut self, has_responses: bool) {
        match self {
            Self::Store(store) => store.end_join(has_responses),
            Self::Kube(pods) => pods.end_join(),
            _ => {}
        }
    }

    /// Returns whether host names are being resolved, or pods listed, or rows read.
    pub(super) fn is_resolving(&self) -> bool {
        match self {
            Self::TcpPing(hosts) => hosts.lookups.is_any_running(),
            Self::Dns(names) => names.lookups.is_any_running(),
            Self::Kube(pods) => pods.is_asking(),
            Self::TcpGossip(routers) => routers.stubs.lookups.is_any_running(),
            Self::Store(store) => store.is_reading(),
            _ => false,
        }
    }

    pub(super) fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match self {
            Self::TcpGossip(routers) => routers.reach(cx),
            Self::Store(store) => store.timer(cx, key),
            _ => {}
        }
    }

    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        match self {
            Self::Mping { .. } => {
                cx.request(Effect::LeaveGroup);
            }
            Self::TcpPing(hosts) => hosts.disconnect(),
            Self::Dns(names) => names.disconnect(),
            Self::Kube(pods) => pods.disconnect(),
            Self::TcpGossip(routers) => routers.disconnect(cx),
            Self::Local { .. } => {
                cx.request(Effect::RetractLocally);
            }
            Self::Store(store) => store.disconnect(cx),
            _ => {}
        }
    }

    /// Sends a request to the known members only, and keeps the last request for addresses that are found later.
    pub(super) fn ask_known(&mut self, cx: &mut Cx<'_>, message: Message) {
        match self {
            Self::TcpPing(_) | Self::Dns(_) | Self::Kube(_) | Self::Store(_) => {
                let addresses = known(cx, KNOWN_MAX);
                send_to(cx, &message, addresses);
            }
            _ => self.ask(cx, message),
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
            Self::Kube(pods) => pods.ask(cx, message),
            Self::Store(store) => store.ask(cx, message),
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
            Self::Kube(pods) => pods.probe(out),
            Self::Store(store) => store.probe(out),
            _ => {}
        }
    }

    pub(super) fn counts(&self) -> Vec<(StackCount, u64)> {
        match self {
            Self::TcpGossip(routers) => routers.counts(),
            _ => Vec::new(),
        }
    }

    pub(super) fn view(&mut self, cx: &mut Cx<'_>, view: &View) {
        match self {
            Self::Store(store) => store.view(cx, view),
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
            (Self::Store(store), outcome) => {
                let is_alone = store.done(cx, token, outcome, is_searching);
                is_alone.then_some(SourceResult::End).into_iter().collect()
            }
            (Self::TcpPing(hosts), outcome) => {
                hosts.done(cx, token, outcome);
                Vec::new()
            }
            (Self::Dns(names), outcome) => {
                names.done(cx, token, outcome);
                Vec::new()
            }
            (Self::Kube(pods), outcome) => {
                pods.done(cx, token, outcome);
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

/// Returns the physical addresses of other known members, at most `count_max`.
pub(super) fn known(cx: &Cx<'_>, count_max: usize) -> impl Iterator<Item = PhysAddr> + use<> {
    let own = cx.shared().phys;
    let book = cx.shared().book.iter().filter_map(|(_, _, phys)| phys).filter(|phys| *phys != own);
    book.take(count_max).collect::<Vec<_>>().into_iter()
}

/// Sends the request to these addresses, except to this member's own.
pub(super) fn send_to(cx: &mut Cx<'_>, question: &Message, places: impl IntoIterator<Item = PhysAddr>) {
    let own = cx.shared().phys;
    for place in places.into_iter().filter(|place| *place != own) {
        cx.send(Message { dest: Some(Address::Ip(place)), ..question.clone() });
    }
}
