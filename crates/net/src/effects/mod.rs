//! Effects that layers request besides packets ([`Effect`]): connections of their own, a multicast group, files,
//! names, and the members of this process.

mod blocking;
mod in_process;
mod multicast_group;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use consort_group::{ConnId, Effect, ExternalAddress, Lane, Outcome, PhysAddr, Shared, Time, Token};
use tokio::net::TcpListener;

use self::blocking::{Job, Jobs};
use self::in_process::Announcement;
use self::multicast_group::Group;
use crate::signals::{Key, Owner, Signals};
use crate::tcp::links::{LinkEvent, LinkSettings, Links};
use crate::tcp::listen::listen;

/// Outcomes that the stack has not taken yet.
type Outcomes = VecDeque<(Token, Outcome)>;

/// The connections of one layer.
struct Table {
    links: Links,
    /// The effect whose token accepted connections are reported under.
    listener: Option<Token>,
    /// The token of each connection's outcomes.
    tokens: HashMap<u64, Token>,
}

/// Carries out the effects that layers request.
pub(crate) struct EffectRunner {
    signals: Arc<Signals>,
    settings: LinkSettings,
    tables: BTreeMap<u16, Table>,
    groups: BTreeMap<u16, Group>,
    jobs: Jobs,
    announced: BTreeMap<u16, Announcement>,
    outcomes: Outcomes,
}

impl EffectRunner {
    pub(crate) fn new(signals: Arc<Signals>, settings: LinkSettings) -> Self {
        Self {
            jobs: Jobs::new(&signals),
            signals,
            settings,
            tables: BTreeMap::new(),
            groups: BTreeMap::new(),
            announced: BTreeMap::new(),
            outcomes: VecDeque::new(),
        }
    }

    /// Carries out an effect, or begins to.
    pub(crate) fn perform(&mut self, now: Time, token: Token, effect: Effect, shared: &Shared) {
        match effect {
            Effect::Listen { bind, ports, external } => {
                self.listen(token, bind, &ports, external, shared.phys);
            }
            Effect::CloseListener => {
                if let Some(table) = self.tables.get_mut(&token.layer()) {
                    table.links.close_listeners();
                }
            }
            Effect::Connect { to, own, timeout } => {
                let table = self.table(token);
                match table.links.connect(now, to, own, timeout) {
                    Some(index) => {
                        table.tokens.insert(table.links.link_of(index), token);
                    }
                    None => self.report(token, Outcome::Failed("too many connections".into())),
                }
            }
            Effect::Write { conn, frame } => {
                if let Some(table) = self.tables.get_mut(&token.layer())
                    && let Some(index) = table.links.slot_of(conn.0)
                {
                    table.links.push(now, index, Lane::Control, frame);
                }
            }
            Effect::Close { conn, is_graceful } => {
                if let Some(table) = self.tables.get_mut(&token.layer()) {
                    table.tokens.remove(&conn.0);
                    if let Some(index) = table.links.slot_of(conn.0) {
                        table.links.close(now, index, is_graceful);
                    }
                }
            }
            Effect::JoinGroup { group, ttl } => self.join(token, group, ttl, shared.phys),
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
            Effect::LookUp { name } => self.block(token, Job::LookUp { name }),
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

    /// Polls one source that its waker named.
    pub(crate) fn service(&mut self, now: Time, key: Key) {
        let outcomes = &mut self.outcomes;
        match key.owner {
            Owner::EffectLinks(layer) => {
                if let Some(Table { links, listener, tokens }) = self.tables.get_mut(&layer) {
                    links.service(now, key.index, &mut |event| {
                        report_link_event(event, *listener, tokens, outcomes)
                    });
                }
            }
            Owner::EffectGroup(layer) => {
                if let Some(group) = self.groups.get_mut(&layer) {
                    group.receive(now, outcomes);
                }
            }
            Owner::Jobs => self.jobs.poll(outcomes),
            Owner::Edge => {}
        }
    }

    /// Polls the sources that stopped with input left. Returns whether there are more.
    pub(crate) fn service_again(&mut self, now: Time) -> bool {
        let mut has_more = false;
        for Table { links, listener, tokens } in self.tables.values_mut() {
            let outcomes = &mut self.outcomes;
            has_more |=
                links.service_again(now, &mut |event| report_link_event(event, *listener, tokens, outcomes));
        }
        for group in self.groups.values_mut().filter(|group| group.has_more()) {
            group.receive(now, &mut self.outcomes);
            has_more |= group.has_more();
        }
        has_more
    }

    /// Writes queued frames.
    pub(crate) fn flush(&mut self, now: Time) {
        for Table { links, listener, tokens } in self.tables.values_mut() {
            let outcomes = &mut self.outcomes;
            links.flush(now, &mut |event| report_link_event(event, *listener, tokens, outcomes));
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.tables.values().filter_map(|table| table.links.poll_timeout()).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        for Table { links, listener, tokens } in self.tables.values_mut() {
            let outcomes = &mut self.outcomes;
            links.handle_timeout(now, &mut |event| report_link_event(event, *listener, tokens, outcomes));
        }
    }

    /// Takes the next outcome for the stack.
    pub(crate) fn poll_outcome(&mut self) -> Option<(Token, Outcome)> {
        self.outcomes.pop_front()
    }

    /// Returns whether there is an outcome.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// Closes everything. Requested changes of files are still made.
    pub(crate) fn begin_close(&mut self, now: Time) {
        self.groups.clear();
        self.announced.clear();
        self.jobs.begin_close();
        for table in self.tables.values_mut() {
            table.links.begin_close(now);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.jobs.is_idle() && self.tables.values().all(|table| table.links.is_empty())
    }

    fn report(&mut self, token: Token, outcome: Outcome) {
        self.outcomes.push_back((token, outcome));
    }

    fn table(&mut self, token: Token) -> &mut Table {
        let layer = token.layer();
        self.tables.entry(layer).or_insert_with(|| {
            let owner = Owner::EffectLinks(layer);
            // A stack has one range of connection numbers; each layer draws from its own part.
            let first = u64::from(layer) << 40;
            let unspecified = PhysAddr { ip: None, scope_id: 0, port: 0 };
            let mut links =
                Links::new(owner, self.signals.clone(), self.settings.clone(), unspecified, first);
            // Peers of these connections send little, so that the bound for non-members' unfinished frames applies to
            // all.
            links.set_members(Some(&[]));
            Table { links, listener: None, tokens: HashMap::new() }
        })
    }

    fn listen(
        &mut self,
        token: Token,
        bind: Option<IpAddr>,
        ports: &[u16],
        external: Option<ExternalAddress>,
        phys: PhysAddr,
    ) {
        let outcome = match open_listener(bind, ports, phys) {
            Ok((listener, own)) => {
                let own = external.map_or(own, |external| external.apply(own));
                let table = self.table(token);
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

    fn block(&mut self, token: Token, job: Job) {
        self.jobs.add(token, job, &mut self.outcomes);
    }
}

/// Opens a layer's listener. Returns it with its address for peers: the transport's host if it is bound to a wildcard
/// address.
fn open_listener(bind: Option<IpAddr>, ports: &[u16], phys: PhysAddr) -> io::Result<(TcpListener, PhysAddr)> {
    let ports = || ports.iter().copied();
    let listener = match bind {
        Some(ip) => listen(ip, phys.scope_id, ports(), None)?,
        // A host without IPv6 refuses its wildcard address.
        None => match listen(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0, ports(), None) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                listen(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0, ports(), None)?
            }
            result => result?,
        },
    };
    let local = listener.local_addr()?;
    let own =
        if local.ip().is_unspecified() { PhysAddr { port: local.port(), ..phys } } else { local.into() };
    Ok((TcpListener::from_std(listener)?, own))
}

/// Reports a connection's event under its token.
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
        LinkEvent::Closed { link, is_graceful } => {
            tokens.remove(&link).map(|token| (token, Outcome::Closed { conn: ConnId(link), is_graceful }))
        }
    };
    outcomes.extend(outcome);
}
