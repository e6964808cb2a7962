//! Requests of layers to the world besides packets.

use std::collections::{BTreeMap, BTreeSet};

use consort_group::database::{MemberRow, RowRequest};
use consort_group::{ConnId, Effect, Outcome, PhysAddr, PingData, Token};

use crate::node::phys;

/// One end of a connection.
#[derive(Clone, Copy)]
struct End {
    node: usize,
    token: Token,
    peer: Option<ConnId>,
    is_stream: bool,
}

pub(crate) struct NodeOutcome {
    pub(crate) node: usize,
    pub(crate) token: Token,
    pub(crate) outcome: Outcome,
    /// The sender's node if the event travels over the network.
    pub(crate) from: Option<usize>,
}

/// A full queue of connections of a live process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backlog {
    Refusing,
    Silent,
}

#[derive(Default)]
pub(crate) struct EffectRunner {
    listeners: BTreeMap<PhysAddr, (usize, Token)>,
    ends: BTreeMap<ConnId, End>,
    next: u64,
    announced: BTreeMap<usize, PingData>,
    /// The files of the directory that all members share, by directory and name.
    files: BTreeMap<(String, String), String>,
    /// The rows of the database that all members share, by address, each with its cluster.
    rows: BTreeMap<String, (String, MemberRow)>,
    /// Whether requests on rows fail.
    pub(crate) is_database_down: bool,
    /// By node.
    pub(crate) backlogs: BTreeMap<usize, Backlog>,
    /// Ports of processes that are no members.
    pub(crate) strangers: BTreeSet<PhysAddr>,
}

impl EffectRunner {
    pub(crate) fn perform(
        &mut self,
        node: usize,
        own: PhysAddr,
        token: Token,
        effect: Effect,
        connects: impl Fn(usize, usize) -> bool,
    ) -> Vec<NodeOutcome> {
        let here = |outcome| NodeOutcome { node, token, outcome, from: None };
        match effect {
            Effect::Listen { ports, .. } | Effect::ListenStreams { ports, .. } => {
                vec![here(self.listen(node, own, token, ports))]
            }
            Effect::CloseListener => {
                self.listeners
                    .retain(|_, (owner, listener)| *owner != node || listener.layer() != token.layer());
                Vec::new()
            }
            Effect::Connect { to, own, .. } => self.connect(node, token, to, own, false, connects),
            Effect::ConnectStream { to, .. } => self.connect(node, token, to, Some(own), true, connects),
            Effect::Write { conn, frame } => {
                let Some(far) = self.ends.get(&conn).and_then(|end| end.peer) else { return Vec::new() };
                let Some(end) = self.ends.get(&far) else { return Vec::new() };
                let outcome = Outcome::Frame { conn: far, frame };
                vec![NodeOutcome { node: end.node, token: end.token, outcome, from: Some(node) }]
            }
            Effect::Close { conn, is_graceful } => {
                let is_stream = self.ends.get(&conn).is_some_and(|end| end.is_stream);
                let done = (is_stream && is_graceful).then(|| here(Outcome::Done));
                self.close(conn, is_graceful).into_iter().chain(done).collect()
            }
            Effect::AnnounceLocally(data) => {
                self.announced.insert(node, data);
                vec![here(Outcome::Done)]
            }
            Effect::RetractLocally => {
                self.announced.remove(&node);
                vec![here(Outcome::Done)]
            }
            Effect::FindLocally => {
                let all = self.announced.iter().filter(|&(&other, _)| connects(node, other));
                vec![here(Outcome::Local(all.map(|(_, data)| data.clone()).collect()))]
            }
            Effect::JoinGroup { .. } => vec![here(Outcome::Joined)],
            Effect::QueryDns { .. } => vec![here(Outcome::Failed("there is no name server".to_owned()))],
            Effect::ListPods(_) => {
                vec![here(Outcome::Failed("there is no API of Kubernetes".to_owned()))]
            }
            // As the resolver of a simulated host: each name is the first member's.
            Effect::LookUp { .. } => vec![here(Outcome::Addresses(phys(0).ip.into_iter().collect()))],
            Effect::ReadFiles { .. }
            | Effect::WriteFile { .. }
            | Effect::RemoveFile { .. }
            | Effect::RemoveFiles { .. } => vec![here(self.perform_on_files(effect))],
            Effect::Database { request, .. } => vec![here(self.perform_on_rows(request))],
            // A simulation has no routers, and the world answers for ports.
            Effect::SendGroup { .. }
            | Effect::LeaveGroup
            | Effect::Forward { .. }
            | Effect::ProbePort { .. } => Vec::new(),
        }
    }

    fn connect(
        &mut self,
        node: usize,
        token: Token,
        to: PhysAddr,
        own: Option<PhysAddr>,
        is_stream: bool,
        connects: impl Fn(usize, usize) -> bool,
    ) -> Vec<NodeOutcome> {
        let here = |outcome| NodeOutcome { node, token, outcome, from: None };
        match own.zip(self.listeners.get(&to).copied()) {
            Some((own, (peer, listener))) if connects(node, peer) && !self.backlogs.contains_key(&peer) => {
                let (near, far) = (ConnId(self.next), ConnId(self.next + 1));
                self.next += 2;
                self.ends.insert(near, End { node, token, peer: Some(far), is_stream });
                self.ends.insert(far, End { node: peer, token: listener, peer: Some(near), is_stream });
                let accepted = Outcome::Accepted { conn: far, peer: own };
                vec![
                    here(Outcome::Connected(near)),
                    NodeOutcome { node: peer, token: listener, outcome: accepted, from: Some(node) },
                ]
            }
            _ => vec![here(Outcome::Failed("connection refused".to_owned()))],
        }
    }

    fn perform_on_files(&mut self, effect: Effect) -> Outcome {
        match effect {
            Effect::ReadFiles { directory, ending } => {
                let is_read = |(path, name): &(String, String)| *path == directory && name.ends_with(ending);
                let all = self.files.iter().filter(|(file, _)| is_read(file));
                return Outcome::Files(
                    all.map(|((_, name), content)| (name.clone(), content.clone())).collect(),
                );
            }
            Effect::WriteFile { directory, name, content } => {
                self.files.insert((directory, name), content);
            }
            Effect::RemoveFile { directory, name } => {
                self.files.remove(&(directory, name));
            }
            Effect::RemoveFiles { directory, ending, except } => {
                let is_kept = |(path, name): &(String, String)| {
                    *path != directory || !name.ends_with(ending) || *name == except
                };
                self.files.retain(|file, _| is_kept(file));
            }
            _ => {}
        }
        Outcome::Done
    }

    fn perform_on_rows(&mut self, request: RowRequest) -> Outcome {
        if self.is_database_down {
            return Outcome::Failed("the database is down".to_owned());
        }
        match request {
            RowRequest::Read { cluster } => {
                let all = self.rows.values().filter(|(own, _)| *own == cluster);
                return Outcome::Rows(all.map(|(_, row)| row.clone()).collect());
            }
            RowRequest::Write { cluster, rows } => {
                self.rows.extend(rows.into_iter().map(|row| (row.address.clone(), (cluster.clone(), row))));
            }
            RowRequest::Remove { address } => {
                self.rows.remove(&address);
            }
            RowRequest::RemoveOthers { cluster, kept } => {
                self.rows.retain(|address, (own, _)| *own != cluster || kept.contains(address));
            }
        }
        Outcome::Done
    }

    /// Listens on the first of these ports that is free.
    fn listen(
        &mut self,
        node: usize,
        own: PhysAddr,
        token: Token,
        ports: impl IntoIterator<Item = u16>,
    ) -> Outcome {
        // Any port: the first one of a range that no fixed port is in.
        let ports = ports.into_iter().flat_map(|port| if port == 0 { 40_000..=40_999 } else { port..=port });
        let mut places = ports.map(|port| PhysAddr { port, ..own });
        match places.find(|place| !self.listeners.contains_key(place)) {
            Some(place) => {
                self.listeners.insert(place, (node, token));
                Outcome::Listening(place)
            }
            None => Outcome::Failed("no port is free".to_owned()),
        }
    }

    fn close(&mut self, conn: ConnId, is_graceful: bool) -> Option<NodeOutcome> {
        let end = self.ends.remove(&conn)?;
        let far = end.peer?;
        let peer = self.ends.remove(&far)?;
        let outcome = Outcome::Closed { conn: far, is_graceful, is_reset: false };
        Some(NodeOutcome { node: peer.node, token: peer.token, outcome, from: Some(end.node) })
    }

    pub(crate) fn listens(&self, at: PhysAddr) -> bool {
        self.listeners.contains_key(&at)
    }

    /// Ends the connections between these nodes. Both ends see the reset.
    pub(crate) fn reset(&mut self, is_between: impl Fn(usize, usize) -> bool) -> Vec<NodeOutcome> {
        let far_node = |end: &End| end.peer.and_then(|far| self.ends.get(&far)).map(|far| far.node);
        let is_reset = |end: &End| far_node(end).is_some_and(|far| is_between(end.node, far));
        let reset: Vec<ConnId> =
            self.ends.iter().filter(|(_, end)| is_reset(end)).map(|(&conn, _)| conn).collect();
        let ended = reset.into_iter().filter_map(|conn| Some((conn, self.ends.remove(&conn)?)));
        ended
            .map(|(conn, End { node, token, .. })| {
                let outcome = Outcome::Closed { conn, is_graceful: false, is_reset: true };
                NodeOutcome { node, token, outcome, from: None }
            })
            .collect()
    }

    /// The kernel does the same when a process ends.
    pub(crate) fn close_all(&mut self, node: usize) -> Vec<NodeOutcome> {
        self.listeners.retain(|_, (owner, _)| *owner != node);
        self.announced.remove(&node);
        let own: Vec<ConnId> =
            self.ends.iter().filter(|(_, end)| end.node == node).map(|(&conn, _)| conn).collect();
        own.into_iter().filter_map(|conn| self.close(conn, false)).collect()
    }
}
