//! Discovery: finds members, their names and physical addresses.
//!
//! All discovery protocols share requests and responses. They differ in how a request is sent: by multicast (PING), to a
//! list of hosts (TCPPING), to a separate multicast group (MPING), to the members that routers list (TCPGOSSIP), to the
//! addresses of DNS names (DNS_PING), to the pods that the API of Kubernetes lists (KUBE_PING), to the addresses in files
//! (FILE_PING) or in the rows of a database (JDBC_PING2), or within the process (LOCAL_PING, SHARED_LOOPBACK_PING).

mod document;
mod files;
mod hosts;
mod lookups;
mod names;
mod pods;
pub(super) mod router_stubs;
mod routers;
mod source;
mod store;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use files::{FilePingConfig, parse_file};
pub use hosts::{Hosts, TcpPingConfig};
pub use names::{DnsPingConfig, Names};
pub use pods::{KubePingConfig, Pods};
pub use routers::{RouterTlsConfig, Routers, TcpGossipConfig};
pub use source::{MpingBindConfig, MpingConfig, Source};
pub use store::{Store, StoreConfig};
pub use table::JdbcPing2Config;

use crate::wire;
use crate::{
    Address, Answer, Control, Cx, DropReason, Event, Flags, HeaderBody, HeaderIds, Message, MessageBatch,
    Outcome, Pass, PhysAddr, PingData, PingHeader, PingKind, ProbeOut, Protocol, ProtocolId, Query,
    StackCount, Time, TimerKey, Token, View,
};

crate::properties! {
    /// The properties of all discovery protocols.
    DiscoveryConfig {
        /// Whether a join's discovery ends with the first coordinator's response.
        break_on_coord_rsp: bool = true,
        /// How often the request is sent within the timeout.
        num_discovery_runs: u32 = 1,
        /// Whether responses carry all known members.
        return_entire_cache: bool = false,
        /// Members with a higher rank do not respond to joiners; 0 = all members respond.
        max_rank_to_reply: usize = 0,
        /// A request lists the members it looks for, up to this number.
        max_members_in_discovery_request: usize = 500,
        /// Responses are delayed by rank over this time; 0 = no delay.
        stagger_timeout: Duration = Duration::ZERO,
        /// Whether the coordinator sends joiners' addresses to members and members' addresses to joiners.
        send_cache_on_join: bool = true,
    }
}

/// The maximum number of members kept per discovery, so that a flood of invented responses cannot grow it.
const RESPONSES_MAX: usize = 2_000;

const END: TimerKey = TimerKey(1);
const RUN: TimerKey = TimerKey(2);
const STAGGER: TimerKey = TimerKey(3);
/// TCPGOSSIP: the next attempt to connect to unreachable routers.
const RECONNECT: TimerKey = TimerKey(4);
/// FILE_PING and JDBC_PING2: the next read of a join that has found no member yet.
const READ_STORE: TimerKey = TimerKey(5);
/// FILE_PING and JDBC_PING2: the coordinator writes again.
const WRITE_STORE: TimerKey = TimerKey(6);

const STAGGERED_MAX: usize = 500;

struct Search {
    responses: BTreeMap<Address, PingData>,
    runs_left: u32,
    interval: Duration,
    /// Time for responses.
    timeout: Duration,
    /// How often the end may still be put off, because host names are being resolved or pods listed.
    extensions_left: u32,
    /// Names were being resolved, pods listed or rows read at the last end.
    is_resolving: bool,
}

/// The interval at which a search looks whether look-ups, lists of pods and reads of rows have ended.
const EXTENSION: Duration = Duration::from_millis(500);

/// At most this often: the resolver of a host with a dead name server needs 5 s or 10 s.
const EXTENSIONS_MAX: u32 = 20;

/// A discovery protocol.
pub struct Discovery {
    config: DiscoveryConfig,
    source: Source,
    search: Option<Search>,
    is_leaving: bool,
    staggered: Vec<(Time, Address)>,
    /// The view's members, to detect new members in the next view.
    members: Vec<Address>,
    requests_sent: u64,
    requests_received: u64,
    responses_received: u64,
}

impl Discovery {
    /// Creates a discovery layer that sends requests by `source`.
    pub fn new(source: Source, config: DiscoveryConfig) -> Self {
        Self {
            config,
            source,
            search: None,
            is_leaving: false,
            staggered: Vec::new(),
            members: Vec::new(),
            requests_sent: 0,
            requests_received: 0,
            responses_received: 0,
        }
    }

    fn own_data(cx: &Cx<'_>, wanted: Option<Vec<Address>>) -> PingData {
        let shared = cx.shared();
        PingData {
            sender: shared.local.clone(),
            is_server: cx.ask(&Query::IsServer) == Some(Answer::Yes(true)),
            is_coordinator: cx.is_coordinator(),
            name: Some(shared.name.clone()),
            phys: Some(shared.phys),
            wanted,
        }
    }

    /// Sends a request. `wanted` lists the members whose addresses are missing; `None` = all members respond.
    fn send_request(&mut self, cx: &mut Cx<'_>, is_initial: bool, wanted: Option<Vec<Address>>) {
        self.requests_sent += 1;
        let wanted = wanted.filter(|wanted| {
            !wanted.is_empty() && wanted.len() <= self.config.max_members_in_discovery_request
        });
        let mut data = Self::own_data(cx, wanted);
        data.is_server = false;
        data.is_coordinator = false;
        let header = PingHeader {
            kind: PingKind::Request,
            cluster: cx.shared().cluster.clone(),
            initial_discovery: is_initial,
        };
        let mut message = Message::bytes(None, wire::encode_ping_data(&[data]))
            .with_flags(Flags::OOB | Flags::DONT_BUNDLE)
            .with_header(self.id(), HeaderBody::Ping(Box::new(header)));
        message.transient |= crate::Transient::DONT_LOOPBACK;
        message.src = Some(cx.local().clone());
        // Addresses that a join's look-ups and reads still find get the request of the join.
        if self.search.is_some() && !is_initial {
            self.source.ask_known(cx, message);
        } else {
            self.source.ask(cx, message);
        }
    }

    fn answer_to(&self, cx: &mut Cx<'_>, dest: Option<Address>, data: &[PingData]) {
        let header = PingHeader { kind: PingKind::Response, cluster: None, initial_discovery: false };
        let mut message = Message::bytes(dest, wire::encode_ping_data(data))
            .with_flags(Flags::OOB | Flags::DONT_BUNDLE)
            .with_header(self.id(), HeaderBody::Ping(Box::new(header)));
        message.transient |= crate::Transient::DONT_LOOPBACK;
        cx.send(message);
    }

    fn receive(&mut self, cx: &mut Cx<'_>, header: &PingHeader, message: &Message) {
        let Some(src) = message.src.clone() else { return cx.discard(message, DropReason::Malformed) };
        let Some(Ok(list)) = message.payload_bytes().map(wire::decode_ping_data) else {
            return cx.discard(message, DropReason::Malformed);
        };
        if self.is_leaving {
            return;
        }
        match header.kind {
            PingKind::Request => self.request(cx, header, &src, list),
            PingKind::Response => {
                self.responses_received += 1;
                for data in list {
                    let is_own_word = data.sender == src;
                    self.note_member(cx, data, is_own_word);
                }
            }
        }
    }

    fn request(&mut self, cx: &mut Cx<'_>, header: &PingHeader, src: &Address, list: Vec<PingData>) {
        if cx.is_local(src) {
            return;
        }
        if let (Some(theirs), Some(ours)) = (&header.cluster, &cx.shared().cluster)
            && theirs != ours
        {
            return cx.count_drop(DropReason::WrongCluster, |book| {
                format!("discovery for cluster {theirs} from {}", book.member(src))
            });
        }
        self.requests_received += 1;
        let wanted = list.first().and_then(|data| data.wanted.clone()).unwrap_or_default();
        // A request says of every sender that it is no member. MERGE3 of a member sends requests, too, and then the member's response
        // remains: a join that takes a member for another joiner may begin a group of its own.
        for data in list {
            self.note_member(cx, data, false);
        }
        if self.config.return_entire_cache {
            let all = self.cached(cx);
            return self.answer_to(cx, Some(src.clone()), &all);
        }
        let rank = cx.view().and_then(|view| view.rank(cx.local()));
        let most = self.config.max_rank_to_reply;
        if most > 0 && header.initial_discovery && rank.is_some_and(|rank| rank >= most) {
            return;
        }
        if !wanted.is_empty() && !wanted.contains(cx.local()) {
            return;
        }
        let (stagger, members) = (self.config.stagger_timeout, cx.view().map_or(1, View::len));
        if let Some(rank) = rank
            && !stagger.is_zero()
            && rank > 0
        {
            if self.staggered.len() < STAGGERED_MAX {
                let at = cx.now() + stagger * rank as u32 / members as u32;
                self.staggered.push((at, src.clone()));
                self.arm_stagger(cx);
            }
            return;
        }
        let data = Self::own_data(cx, None);
        self.answer_to(cx, Some(src.clone()), &[data]);
        if !header.initial_discovery && wanted.is_empty() {
            self.name_coordinator(cx, src);
        }
    }

    /// Answers a member of another view also for the coordinator of this one. Two coordinators of which neither is among the
    /// initial hosts know only members that both can reach, and would take these from each other by merges without end.
    fn name_coordinator(&self, cx: &mut Cx<'_>, src: &Address) {
        let Some(view) = cx.view().filter(|view| self.source.needs_dissemination() && !view.contains(src))
        else {
            return;
        };
        let Some(coordinator) = view.coordinator().filter(|member| !cx.is_local(member)) else { return };
        let data = Self::member_data(cx, view, coordinator);
        let book = &cx.shared().book;
        // At the place of a coordinator that has just ended, the member that asks may have started.
        if data.phys.is_some() && data.phys != book.phys(src) {
            self.answer_to(cx, Some(src.clone()), &[data]);
        }
    }

    fn arm_stagger(&self, cx: &mut Cx<'_>) {
        if let Some(at) = self.staggered.iter().map(|(at, _)| *at).min() {
            let after = at.since(cx.now());
            cx.arm(STAGGER, after);
        }
    }

    /// Returns the data of the local member and of all view members with known addresses.
    fn cached(&self, cx: &Cx<'_>) -> Vec<PingData> {
        let mut all = vec![Self::own_data(cx, None)];
        let Some(view) = cx.view() else { return all };
        for member in view.members().iter().filter(|member| !cx.is_local(member)) {
            all.push(Self::member_data(cx, view, member));
        }
        all
    }

    /// Returns what this member knows of another member of its view.
    fn member_data(cx: &Cx<'_>, view: &View, member: &Address) -> PingData {
        let book = &cx.shared().book;
        PingData {
            sender: member.clone(),
            is_server: true,
            is_coordinator: view.coordinator() == Some(member),
            name: book.name(member).cloned(),
            phys: book.phys(member),
            wanted: None,
        }
    }

    /// Records data about a member, from itself (`is_own_word`) or from another.
    fn note_member(&mut self, cx: &mut Cx<'_>, data: PingData, is_own_word: bool) {
        if cx.is_local(&data.sender) {
            return;
        }
        cx.book().learn(&data.sender, data.name.as_deref(), data.phys);
        if let Some(search) = &mut self.search {
            let known = search.responses.get(&data.sender);
            let replaces =
                known.is_none_or(|known| is_own_word || (data.is_coordinator && !known.is_coordinator));
            if replaces && (known.is_some() || search.responses.len() < RESPONSES_MAX) {
                search.responses.insert(data.sender.clone(), data.clone());
            }
            if data.is_coordinator && self.config.break_on_coord_rsp {
                self.end_search(cx);
            }
        }
        cx.raise(Event::Heard(data));
    }

    /// Puts the end off while no member has responded and host names are being resolved, pods listed or rows read, and then once
    /// more, so that the addresses have time to respond. Otherwise a member whose first name server is dead forms a cluster
    /// of its own.
    fn extend_search(&mut self, cx: &mut Cx<'_>) -> bool {
        let is_resolving = self.source.is_resolving();
        let Some(search) = &mut self.search else { return false };
        let was_resolving = std::mem::replace(&mut search.is_resolving, is_resolving);
        if !search.responses.is_empty() || search.extensions_left == 0 {
            return false;
        }
        if is_resolving {
            search.extensions_left -= 1;
            cx.arm(END, EXTENSION);
        } else if was_resolving {
            cx.arm(END, search.timeout);
        }
        is_resolving || was_resolving
    }

    fn end_search(&mut self, cx: &mut Cx<'_>) {
        cx.disarm(END);
        cx.disarm(RUN);
        cx.disarm(READ_STORE);
        if let Some(search) = self.search.take() {
            self.source.end_join(!search.responses.is_empty());
            cx.raise(Event::Found(search.responses.into_values().collect()));
        }
    }

    /// Sends joiners' data to members and members' data to joiners, if this member is the coordinator.
    fn disseminate(&self, cx: &mut Cx<'_>, view: &View, previous: &[Address]) {
        if !self.config.send_cache_on_join || !self.source.needs_dissemination() || !cx.is_coordinator() {
            return;
        }
        let joined: Vec<Address> =
            view.members().iter().filter(|member| !previous.contains(member)).cloned().collect();
        if joined.is_empty() || previous.is_empty() {
            return;
        }
        let data: Vec<PingData> = self.cached(cx);
        let local = cx.local().clone();
        for member in view.members().iter().filter(|member| **member != local) {
            let is_new = joined.contains(member);
            for data in &data {
                if data.sender != *member && (is_new || joined.contains(&data.sender)) {
                    let data = PingData { is_server: true, ..data.clone() };
                    self.answer_to(cx, Some(member.clone()), &[data]);
                }
            }
        }
    }
}

impl Protocol for Discovery {
    fn name(&self) -> &'static str {
        self.source.name()
    }

    fn id(&self) -> ProtocolId {
        self.source.id()
    }

    fn wants(&self, _batch: &MessageBatch, headers: HeaderIds) -> bool {
        headers.has(self.id())
    }

    fn up(&mut self, cx: &mut Cx<'_>, batch: &mut MessageBatch) {
        let id = self.id();
        batch.messages.retain_mut(|message| match message.headers.take(id) {
            Some(HeaderBody::Ping(header)) => {
                self.receive(cx, &header, message);
                false
            }
            _ => true,
        });
    }

    fn up_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        if let Event::WhoHas(members) = event {
            self.send_request(cx, false, Some(members.clone()));
            return Pass::Stop;
        }
        Pass::On
    }

    fn down_event(&mut self, cx: &mut Cx<'_>, event: &Event) -> Pass {
        match event {
            Event::Connect => {
                self.is_leaving = false;
                self.source.connect(cx);
                Pass::On
            }
            Event::Disconnect => {
                self.is_leaving = true;
                self.search = None;
                self.members.clear();
                cx.disarm(END);
                cx.disarm(RUN);
                self.source.disconnect(cx);
                Pass::On
            }
            Event::FindMembers { is_initial, timeout } => {
                if *is_initial {
                    let runs = self.source.begin_join(self.config.num_discovery_runs.max(1), *timeout);
                    let interval = *timeout / runs;
                    self.search = Some(Search {
                        responses: BTreeMap::new(),
                        runs_left: runs - 1,
                        interval,
                        timeout: *timeout,
                        extensions_left: EXTENSIONS_MAX,
                        is_resolving: false,
                    });
                    cx.arm(END, *timeout);
                    if runs > 1 {
                        cx.arm(RUN, interval);
                    }
                }
                self.send_request(cx, *is_initial, None);
                Pass::Stop
            }
            _ => Pass::On,
        }
    }

    fn control(&mut self, cx: &mut Cx<'_>, control: &Control<'_>) {
        if let Control::View(view) = control {
            self.source.view(cx, view);
            let previous = std::mem::replace(&mut self.members, view.members().to_vec());
            self.disseminate(cx, view, &previous);
        }
    }

    fn timer(&mut self, cx: &mut Cx<'_>, key: TimerKey) {
        match key {
            END if self.extend_search(cx) => {}
            END => self.end_search(cx),
            RUN => {
                if let Some(search) = &mut self.search
                    && search.runs_left > 0
                {
                    search.runs_left -= 1;
                    let interval = search.interval;
                    cx.arm(RUN, interval);
                    self.send_request(cx, true, None);
                }
            }
            RECONNECT | READ_STORE | WRITE_STORE => self.source.timer(cx, key),
            _ => {
                let now = cx.now();
                let due: Vec<Address> =
                    self.staggered.extract_if(.., |(at, _)| *at <= now).map(|(_, dest)| dest).collect();
                for dest in due {
                    let data = Self::own_data(cx, None);
                    self.answer_to(cx, Some(dest), &[data]);
                }
                self.arm_stagger(cx);
            }
        }
    }

    fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        let heard = self.source.done(cx, token, outcome, self.search.is_some());
        for found in heard {
            match found {
                source::SourceResult::Message(message) => {
                    let mut message = *message;
                    if let Some(HeaderBody::Ping(header)) = message.headers.take(self.id()) {
                        self.receive(cx, &header, &message);
                    }
                }
                source::SourceResult::Data(data) => self.note_member(cx, data, true),
                source::SourceResult::End => self.end_search(cx),
            }
        }
    }

    fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        self.source.probe(out);
        out.put("num_discovery_requests", self.requests_sent);
        out.put("num_discovery_requests_received", self.requests_received);
        out.put("num_discovery_responses", self.responses_received);
    }

    fn counts(&self) -> Vec<(StackCount, u64)> {
        self.source.counts()
    }
}

/// Returns the cluster's name as text, for files.
fn cluster_of(cx: &Cx<'_>) -> Arc<str> {
    cx.shared().cluster.clone().unwrap_or_else(|| "".into())
}

#[cfg(test)]
mod tests;
