mod blocking;
mod in_process;
mod multicast_group;
mod port_probe;
mod settings;
mod streams;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{
    ConnId, Effect, ExternalAddress, Outcome, PacketPriority, PhysAddr, Shared, StreamOptions, Time, Token,
};
use tokio::net::TcpListener;

use self::blocking::{Job, Jobs};
use self::in_process::Announcement;
use self::multicast_group::Group;
use self::port_probe::PortProbes;
pub(crate) use self::settings::EffectSettings;
pub(crate) use self::streams::StreamSettings;
use self::streams::Streams;
use crate::signals::{Key, Owner, Signals};
use crate::tcp::links::{LinkEvent, LinkSettings, Links, Loss};
use crate::tcp::listen::listen;
use crate::tcp::queue::OutFrame;

type Outcomes = VecDeque<(Token, Outcome)>;

/// A layer has one table.
struct Table {
    links: Links,
    /// Accepted connections are reported under this token.
    listener: Option<Token>,
    tokens: HashMap<u64, Token>,
}

pub(crate) struct EffectRunner {
    signals: Arc<Signals>,
    settings: EffectSettings,
    tables: BTreeMap<u16, Table>,
    streams: BTreeMap<u16, Streams>,
    groups: BTreeMap<u16, Group>,
    jobs: Jobs,
    probes: PortProbes,
    announced: BTreeMap<u16, Announcement>,
    outcomes: Outcomes,
}

impl EffectRunner {
    pub(crate) fn new(signals: Arc<Signals>, settings: EffectSettings) -> Self {
        Self {
            jobs: Jobs::new(&signals),
            probes: PortProbes::new(&signals),
            signals,
            settings,
            tables: BTreeMap::new(),
            streams: BTreeMap::new(),
            groups: BTreeMap::new(),
            announced: BTreeMap::new(),
            outcomes: VecDeque::new(),
        }
    }

    pub(crate) fn perform(&mut self, now: Time, token: Token, effect: Effect, shared: &Shared) {
        match effect {
            Effect::Listen { bind, ports, external } => {
                self.listen(token, bind, &ports, external, shared.phys);
            }
            Effect::CloseListener => {
                if let Some(table) = self.tables.get_mut(&token.layer()) {
                    table.links.close_listeners();
                }
                if let Some(streams) = self.streams.get_mut(&token.layer()) {
                    streams.close_listeners();
                }
            }
            Effect::Connect { to, own, timeout, name } => {
                // Connections to routers have no set-up bytes.
                let links = &mut self.table(token, own.is_none()).links;
                if let Some(name) = name {
                    links.name_peer(to, name);
                }
                self.connect(now, token, to, own, timeout);
            }
            Effect::Forward { conn, frame, tail, priority } => {
                self.forward(now, token, conn, priority, OutFrame { bytes: frame, tail });
            }
            Effect::ListenStreams { bind, ports, external, options } => {
                self.listen_streams(token, bind, &ports, external, options, shared.phys);
            }
            Effect::ConnectStream { to, timeout, options } => {
                if let Err(why) = self.streams_of(token).connect(now, token, to, timeout, options) {
                    self.report(token, Outcome::Failed(why.to_owned()));
                }
            }
            Effect::ProbePort { to, timeout } => self.probes.add(token, to, timeout, &mut self.outcomes),
            Effect::Write { conn, frame } => self.write(now, token, conn, frame),
            Effect::Close { conn, is_graceful } => self.close(now, token, conn, is_graceful),
            Effect::JoinGroup { group, bind, ttl } => {
                let interface = bind.map_or(shared.phys, |ip| PhysAddr::new(ip, shared.phys.port));
                self.join(token, group, ttl, interface);
            }
            Effect::SendGroup { datagram } => {
                if let Some(group) = self.groups.get_mut(&token.layer()) {
                    group.send(now, datagram);
                }
            }
            Effect::LeaveGroup => {
                self.groups.remove(&token.layer());
            }
            Effect::ReadFiles { directory, ending } => {
                self.block(token, Job::Read { directory, ending });
            }
            Effect::WriteFile { directory, name, content } => {
                self.block(token, Job::Write { directory, name, content });
            }
            Effect::RemoveFile { directory, name } => self.block(token, Job::Remove { directory, name }),
            Effect::RemoveFiles { directory, ending, except } => {
                self.block(token, Job::RemoveAll { directory, ending, except });
            }
            Effect::QueryDns { name, record, server } => {
                self.block(token, Job::QueryDns { name, record, server });
            }
            Effect::ListPods(query) => self.block(token, Job::ListPods(query)),
            Effect::LookUp { name } => self.block(token, Job::LookUp { name }),
            Effect::Database { settings, request } => {
                self.block(token, Job::Rows { settings, request });
            }
            Effect::AnnounceLocally(data) => {
                let cluster = shared.cluster.clone().unwrap_or_default();
                self.announced.insert(token.layer(), Announcement::new(cluster, data));
                self.report(token, Outcome::Done);
            }
            Effect::RetractLocally => {
                self.announced.remove(&token.layer());
                self.report(token, Outcome::Done);
            }
            Effect::FindLocally => {
                let found = in_process::find(shared.cluster.as_deref().unwrap_or_default());
                self.report(token, Outcome::Local(found));
            }
        }
    }

    /// Returns the transport's connections to routers. It is the stack's first layer.
    pub(crate) fn tunnel(&self) -> Option<&Links> {
        self.tables.get(&0).filter(|_| self.settings.is_tunnel).map(|table| &table.links)
    }

    pub(crate) fn service(&mut self, now: Time, key: Key) {
        let outcomes = &mut self.outcomes;
        match key.owner {
            Owner::EffectLinks(layer) => {
                if let Some(Table { links, listener, tokens }) = self.tables.get_mut(&layer) {
                    links.service(now, key.index, &mut |event| {
                        report_link_event(event, *listener, tokens, outcomes);
                    });
                }
            }
            Owner::EffectStreams(layer) => {
                if let Some(streams) = self.streams.get_mut(&layer) {
                    streams.service(now, key.index, outcomes);
                }
            }
            Owner::EffectGroup(layer) => {
                if let Some(group) = self.groups.get_mut(&layer) {
                    group.receive(now, outcomes);
                }
            }
            Owner::Jobs => self.jobs.poll(outcomes),
            Owner::PortProbes => self.probes.poll(outcomes),
            Owner::Edge => {}
        }
    }

    /// Returns whether more input is left.
    pub(crate) fn service_again(&mut self, now: Time) -> bool {
        let mut has_more = false;
        for Table { links, listener, tokens } in self.tables.values_mut() {
            let outcomes = &mut self.outcomes;
            has_more |=
                links.service_again(now, &mut |event| report_link_event(event, *listener, tokens, outcomes));
        }
        for streams in self.streams.values_mut() {
            has_more |= streams.service_again(now, &mut self.outcomes);
        }
        for group in self.groups.values_mut().filter(|group| group.has_more()) {
            group.receive(now, &mut self.outcomes);
            has_more |= group.has_more();
        }
        has_more
    }

    pub(crate) fn flush(&mut self, now: Time) {
        for Table { links, listener, tokens } in self.tables.values_mut() {
            let outcomes = &mut self.outcomes;
            links.flush(now, &mut |event| report_link_event(event, *listener, tokens, outcomes));
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let links = self.tables.values().filter_map(|table| table.links.poll_timeout());
        links.chain(self.streams.values().filter_map(Streams::poll_timeout)).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        for Table { links, listener, tokens } in self.tables.values_mut() {
            let outcomes = &mut self.outcomes;
            links.handle_timeout(now, &mut |event| report_link_event(event, *listener, tokens, outcomes));
        }
        for streams in self.streams.values_mut() {
            streams.handle_timeout(now, &mut self.outcomes);
        }
    }

    pub(crate) fn poll_outcome(&mut self) -> Option<(Token, Outcome)> {
        self.outcomes.pop_front()
    }

    pub(crate) fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// Requested changes of files are still made.
    pub(crate) fn begin_close(&mut self, now: Time) {
        self.groups.clear();
        self.probes.clear();
        self.announced.clear();
        self.jobs.begin_close(&mut self.outcomes);
        for table in self.tables.values_mut() {
            table.links.begin_close(now);
        }
        for streams in self.streams.values_mut() {
            streams.begin_close(now);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        let has_no_sockets = self.tables.values().all(|table| table.links.is_empty())
            && self.streams.values().all(Streams::is_empty);
        self.jobs.is_idle() && has_no_sockets
    }

    fn report(&mut self, token: Token, outcome: Outcome) {
        self.outcomes.push_back((token, outcome));
    }

    fn table(&mut self, token: Token, is_to_routers: bool) -> &mut Table {
        let layer = token.layer();
        self.tables.entry(layer).or_insert_with(|| {
            let settings = if is_to_routers { &self.settings.router_links } else { &self.settings.links };
            let links = links_of(layer, self.signals.clone(), settings.clone());
            Table { links, listener: None, tokens: HashMap::new() }
        })
    }

    fn streams_of(&mut self, token: Token) -> &mut Streams {
        let layer = token.layer();
        self.streams.entry(layer).or_insert_with(|| {
            // The upper half of the layer's part of the range, of which its links have the lower one.
            let first = u64::from(layer) << 40 | 1 << 39;
            Streams::new(layer, self.signals.clone(), self.settings.streams.clone(), first)
        })
    }

    fn write(&mut self, now: Time, token: Token, conn: ConnId, frame: Bytes) {
        if let Some(streams) = self.streams.get_mut(&token.layer())
            && streams.write(now, conn, frame.clone())
        {
            return;
        }
        if let Some(table) = self.tables.get_mut(&token.layer())
            && let Some(index) = table.links.slot_of(conn.0)
        {
            table.links.push(now, index, PacketPriority::Control, frame);
        }
    }

    fn close(&mut self, now: Time, token: Token, conn: ConnId, is_graceful: bool) {
        if let Some(streams) = self.streams.get_mut(&token.layer())
            && streams.close(now, token, conn, is_graceful)
        {
            return;
        }
        if let Some(table) = self.tables.get_mut(&token.layer()) {
            table.tokens.remove(&conn.0);
            if let Some(index) = table.links.slot_of(conn.0) {
                table.links.close(now, index, is_graceful);
            }
        }
    }

    fn listen_streams(
        &mut self,
        token: Token,
        bind: Option<IpAddr>,
        ports: &[u16],
        external: Option<ExternalAddress>,
        options: StreamOptions,
        phys: PhysAddr,
    ) {
        let streams = self.streams_of(token);
        if let Some(why) = streams.refusal(options) {
            return self.report(token, Outcome::Failed(why.to_owned()));
        }
        let recv_buf = streams.recv_buf(options);
        let bind = bind.or(phys.ip);
        // The transport's address may be an external one, which no socket of this host can have.
        let opened = match open_listener(bind, ports, phys, recv_buf) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                open_listener(None, ports, phys, recv_buf)
            }
            opened => opened,
        };
        let outcome = match opened {
            Ok((listener, own)) => {
                streams.listen(token, listener, options);
                Outcome::Listening(external.map_or(own, |external| external.apply(own)))
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        self.report(token, outcome);
    }

    fn listen(
        &mut self,
        token: Token,
        bind: Option<IpAddr>,
        ports: &[u16],
        external: Option<ExternalAddress>,
        phys: PhysAddr,
    ) {
        let outcome = match open_listener(bind, ports, phys, None) {
            Ok((listener, own)) => {
                let own = external.map_or(own, |external| external.apply(own));
                let table = self.table(token, false);
                table.listener = Some(token);
                table.links.set_own(own);
                table.links.listen(listener);
                Outcome::Listening(own)
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        self.report(token, outcome);
    }

    fn join(&mut self, token: Token, group: PhysAddr, ttl: u32, phys: PhysAddr) {
        let outcome = match Group::join(&self.signals, token, group, ttl, phys) {
            Ok(group) => {
                self.groups.insert(token.layer(), group);
                Outcome::Joined
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        self.report(token, outcome);
    }

    fn connect(&mut self, now: Time, token: Token, to: PhysAddr, own: Option<PhysAddr>, timeout: Duration) {
        let table = self.table(token, own.is_none());
        match table.links.connect(now, to, own, timeout) {
            Some(index) => {
                table.tokens.insert(table.links.link_of(index), token);
            }
            None => self.report(token, Outcome::Failed("too many connections".into())),
        }
    }

    fn forward(&mut self, now: Time, token: Token, conn: ConnId, priority: PacketPriority, frame: OutFrame) {
        if let Some(Table { links, .. }) = self.tables.get_mut(&token.layer())
            && let Some(index) = links.slot_of(conn.0)
        {
            links.stats.packets_out += 1;
            links.push_in_total(now, index, priority, frame);
        }
    }

    fn block(&mut self, token: Token, job: Job) {
        self.jobs.add(token, job, &mut self.outcomes);
    }
}

fn links_of(layer: u16, signals: Arc<Signals>, settings: LinkSettings) -> Links {
    // A stack has one range of connection numbers; each layer draws from its own part.
    let first = u64::from(layer) << 40;
    let unspecified = PhysAddr { ip: None, scope_id: 0, port: 0 };
    let mut links = Links::new(Owner::EffectLinks(layer), signals, settings, unspecified, first);
    // Peers of these connections send little, so that the bound for non-members' unfinished frames applies to all.
    links.set_members(Some(&[]));
    links
}

/// The address for peers is the transport's host if the listener's is a wildcard.
fn open_listener(
    bind: Option<IpAddr>,
    ports: &[u16],
    phys: PhysAddr,
    recv_buf: Option<usize>,
) -> io::Result<(TcpListener, PhysAddr)> {
    let ports = || ports.iter().copied();
    let listener = match bind {
        Some(ip) => listen(ip, phys.scope_id, ports(), recv_buf)?,
        // A host without IPv6 refuses its wildcard address.
        None => match listen(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0, ports(), recv_buf) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                listen(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0, ports(), recv_buf)?
            }
            result => result?,
        },
    };
    let local = listener.local_addr()?;
    let own =
        if local.ip().is_unspecified() { PhysAddr { port: local.port(), ..phys } } else { local.into() };
    Ok((TcpListener::from_std(listener)?, own))
}

fn report_link_event(
    event: LinkEvent,
    listener: Option<Token>,
    tokens: &mut HashMap<u64, Token>,
    outcomes: &mut Outcomes,
) {
    let outcome = match event {
        LinkEvent::Frame { is_current: false, .. } => None,
        LinkEvent::Frame { link, frame, .. } => {
            tokens.get(&link).map(|token| (*token, Outcome::Frame { conn: ConnId(link), frame }))
        }
        LinkEvent::Accepted { link, peer } => listener.map(|token| {
            tokens.insert(link, token);
            (token, Outcome::Accepted { conn: ConnId(link), peer })
        }),
        LinkEvent::Connected { link } => {
            tokens.get(&link).map(|token| (*token, Outcome::Connected(ConnId(link))))
        }
        LinkEvent::Failed { link, reason } => {
            tokens.remove(&link).map(|token| (token, Outcome::Failed(reason)))
        }
        LinkEvent::Closed { link, is_graceful, loss, .. } => tokens.remove(&link).map(|token| {
            let is_reset = loss != Loss::EndOfStream;
            (token, Outcome::Closed { conn: ConnId(link), is_graceful, is_reset })
        }),
    };
    outcomes.extend(outcome);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use consort_group::Version;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::config::TransportConfig;
    use crate::tcp::framed::READ_LEN_MAX;
    use crate::tcp::link_settings;
    use crate::tcp::setup;

    const MIB: usize = 1024 * 1024;

    struct Port {
        links: Links,
        at: SocketAddr,
        peers: Vec<TcpStream>,
        frames: usize,
    }

    impl Port {
        async fn open() -> Self {
            let settings = link_settings(&TransportConfig::tcp(), Version::V5_5_7, None);
            let mut links = links_of(7, Arc::new(Signals::default()), settings);
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
            let at = listener.local_addr().unwrap();
            links.listen(listener);
            Self { links, at, peers: Vec::new(), frames: 0 }
        }

        async fn connect(&mut self) {
            let port = 10_000 + self.peers.len() as u16;
            let mut peer = TcpStream::connect(self.at).await.unwrap();
            let setup = setup::encode(Version::V5_5_7, PhysAddr { port, ..PhysAddr::from(self.at) });
            peer.write_all(&setup).await.unwrap();
            self.peers.push(peer);
        }

        async fn step(&mut self) {
            tokio::task::yield_now().await;
            for index in 0..=self.peers.len() as u32 {
                self.links.service(Time::ZERO, index, &mut |event| {
                    self.frames += usize::from(matches!(event, LinkEvent::Frame { .. }));
                });
            }
        }

        /// Each peer writes a frame without its last byte, and as much as possible is read.
        async fn read_frames_in_part(&mut self, length: usize) -> usize {
            let mut frame = (length as i32).to_be_bytes().to_vec();
            frame.resize(4 + length - 1, 7);
            let mut unsent = vec![&frame[..]; self.peers.len()];
            let mut steps_without_bytes = 0;
            while steps_without_bytes < 400 {
                let before = self.links.stats.bytes_in;
                for (peer, rest) in self.peers.iter().zip(&mut unsent) {
                    if let Ok(count) = peer.try_write(rest) {
                        *rest = &rest[count..];
                    }
                }
                self.step().await;
                steps_without_bytes =
                    if self.links.stats.bytes_in == before { steps_without_bytes + 1 } else { 0 };
            }
            self.links.stats.bytes_in as usize
        }
    }

    /// TUNNEL's routers that do not read.
    #[tokio::test]
    async fn queues_of_all_routers_are_bounded_together() {
        let limits = crate::tcp::queue::QueueLimits { data: MIB, control: MIB };
        let settings = link_settings(&TransportConfig::tunnel(), Version::V5_5_7, None);
        let mut links = links_of(0, Arc::new(Signals::default()), LinkSettings { limits, ..settings });
        let mut routers = Vec::new();
        let mut indices = Vec::new();
        for _ in 0..2 {
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
            let to = PhysAddr::from(listener.local_addr().unwrap());
            let index = links.connect(Time::ZERO, to, None, Duration::from_secs(9)).unwrap();
            routers.push(listener);
            let mut is_connected = false;
            while !is_connected {
                tokio::task::yield_now().await;
                links.service(Time::ZERO, index, &mut |event| {
                    is_connected |= matches!(event, LinkEvent::Connected { .. });
                });
            }
            indices.push(index);
        }
        let frame = OutFrame { bytes: vec![7; MIB / 8].into(), tail: Bytes::new() };
        for &index in indices.iter().cycle().take(32) {
            links.push_in_total(Time::ZERO, index, PacketPriority::Data, frame.clone());
        }
        let dropped = links.stats.dropped;
        assert!(
            (23..=24).contains(&dropped),
            "8 of 32 frames fit, and one may go beyond: {dropped} are dropped"
        );
        assert!(links.is_any_half_full());
        links.push_in_total(Time::ZERO, indices[0], PacketPriority::Control, frame);
        assert_eq!(links.stats.dropped, dropped, "control traffic has room of its own");
    }

    #[tokio::test]
    async fn frame_of_a_layers_peer_is_read_up_to_1_mib() {
        let mut port = Port::open().await;
        port.connect().await;
        let read = port.read_frames_in_part(8 * MIB).await;
        assert!((MIB / 4..=MIB + READ_LEN_MAX).contains(&read), "{read} bytes are read");
        assert_eq!(port.frames, 0);
    }

    #[tokio::test]
    async fn frames_of_a_layers_peers_hold_32_mib_together() {
        const PEERS: usize = 100;
        let mut port = Port::open().await;
        for _ in 0..PEERS {
            port.connect().await;
        }
        let read = port.read_frames_in_part(MIB).await;
        let most = 32 * MIB + PEERS * READ_LEN_MAX;
        assert!((16 * MIB..=most).contains(&read), "{read} bytes are read");
        assert_eq!(port.frames, 0);
    }

    #[tokio::test]
    async fn connection_of_a_layer_beyond_the_bound_is_closed_and_its_place_is_free_again() {
        let mut port = Port::open().await;
        // The listener is one.
        port.links.set_links_max(3);
        port.connect().await;
        port.connect().await;
        while port.links.peers().count() < 2 {
            port.step().await;
        }
        port.connect().await;
        while port.links.warnings.iter().all(|(cause, _)| cause != "too_many_links") {
            port.step().await;
        }
        // The end of the stream, or a reset.
        assert!(matches!(port.peers[2].read(&mut [0]).await, Ok(0) | Err(_)));
        port.peers[0].shutdown().await.unwrap();
        while port.links.peers().count() > 1 {
            port.step().await;
        }
        port.connect().await;
        while port.links.peers().count() < 2 {
            port.step().await;
        }
    }
}
