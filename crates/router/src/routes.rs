//! Registered members and connections: a router's state.
//!
//! Guarantees:
//!
//! * A group's members have registered, and neither unregistered nor lost that connection. The end of an earlier
//!   connection does not remove a member registered again.
//! * Frames of one connection are routed in their order.
//! * A message goes unchanged to its destination, or to all of its group with the sender.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use consort_group::wire::{self, GossipData, GossipKind, WireError};
use consort_group::{Address, PhysAddr, PingData};

/// Members of all groups: a small frame registers a larger entry.
pub const MEMBERS_MAX: usize = 20_000;

/// Bytes of a registration; usual ones are much shorter.
const REGISTRATION_LEN_MAX: usize = 4096;

/// Members of a group: one query's response holds them.
pub const GROUP_MEMBERS_MAX: usize = wire::PING_DATA_MAX;

/// The list of a group's members is shorter: queries read no longer frame.
pub(crate) const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The lists of all groups are shorter, so that they fit into the queue of a client that asks for them.
const MEMBERS_BYTES_MAX: usize = 6 * 1024 * 1024;

/// A member's entry in a list may be longer than its registration, and each list waits as a frame.
const LISTED_COST: usize = 192;

/// Registrations of one connection. A member has one in each of its clusters; the end of a connection sends one frame for each to all
/// other members.
pub const CLIENT_MEMBERS_MAX: usize = 64;

/// Begins group names in responses for all groups.
const OF_ALL: &str = "<<all-groups>>:";

/// A connection's number, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Client(pub u64);

/// A frame for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The connection.
    pub to: Client,
    /// The frame without length.
    pub frame: Bytes,
}

/// A frame's result, for logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Routed {
    /// A member registered, perhaps again.
    Registered {
        /// Its group.
        group: Arc<str>,
        /// Its name, or address without one.
        member: String,
    },
    /// A member unregistered.
    Unregistered {
        /// Its group.
        group: Arc<str>,
        /// Its name, or address without one.
        member: String,
    },
    /// Delivered to this many connections.
    Passed(usize),
    /// The connection has registered this member before.
    Unchanged,
    /// The recipient is not registered.
    NoSuchMember,
    /// The member is not registered: there are too many.
    Full,
}

struct Member {
    client: Client,
    name: Option<Arc<str>>,
    phys: Option<PhysAddr>,
    /// At least those of its entry in a list.
    bytes: usize,
}

impl Member {
    fn display_name(&self, address: &Address) -> String {
        self.name.as_deref().map_or_else(|| address.to_string(), str::to_owned)
    }
}

#[derive(Default)]
struct Group {
    members: BTreeMap<Address, Member>,
    bytes: usize,
}

impl Group {
    fn remove(&mut self, address: &Address) -> Option<Member> {
        let member = self.members.remove(address)?;
        self.bytes -= member.bytes;
        Some(member)
    }
}

/// All groups and connections.
#[derive(Default)]
pub struct Routes {
    groups: BTreeMap<Arc<str>, Group>,
    by_client: BTreeMap<Client, BTreeSet<(Arc<str>, Address)>>,
    count: usize,
    /// Of all groups.
    bytes: usize,
    notify_ends: bool,
}

impl Routes {
    /// Creates it. `notify_ends`: members are notified to suspect one whose connection ended.
    pub fn new(notify_ends: bool) -> Self {
        Self { notify_ends, ..Self::default() }
    }

    /// Returns the members of all groups.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether no member is registered.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether a connection has registered a member.
    pub fn is_registered(&self, client: Client) -> bool {
        self.by_client.contains_key(&client)
    }

    /// Handles a frame; adds to `out`.
    ///
    /// # Errors
    ///
    /// If the frame is invalid; nothing changes.
    pub fn handle_frame(
        &mut self,
        from: Client,
        frame: Bytes,
        out: &mut Vec<Delivery>,
    ) -> Result<Routed, WireError> {
        let data = wire::decode_gossip(&frame)?;
        let before = out.len();
        match data.kind {
            GossipKind::Register if frame.len() > REGISTRATION_LEN_MAX => {
                let value = frame.len() as i64;
                return Err(WireError::BadValue { what: "length of a registration", value });
            }
            GossipKind::Register => return self.register(from, data, frame.len() + LISTED_COST),
            GossipKind::Unregister => {
                let (group, member) = member_of(&data)?;
                return Ok(match self.unregister(&group, &member, from) {
                    Some(name) => Routed::Unregistered { group, member: name },
                    None => Routed::NoSuchMember,
                });
            }
            GossipKind::GetMembers => self.send_members(from, data.group.as_ref(), out),
            GossipKind::Message => {
                let members = data.group.as_ref().and_then(|group| self.groups.get(group));
                let Some(Group { members, .. }) = members else { return Ok(Routed::NoSuchMember) };
                match &data.addr {
                    Some(dest) => out.extend(
                        members.get(dest).map(|member| Delivery { to: member.client, frame: frame.clone() }),
                    ),
                    None => out.extend(
                        members.values().map(|member| Delivery { to: member.client, frame: frame.clone() }),
                    ),
                }
                if out.len() == before {
                    return Ok(Routed::NoSuchMember);
                }
            }
            GossipKind::Heartbeat => out.push(Delivery { to: from, frame }),
            // Only routers send these. JGroups' router ignores them too.
            GossipKind::Members | GossipKind::LastMembers | GossipKind::Suspect => {}
        }
        Ok(Routed::Passed(out.len() - before))
    }

    /// Removes and returns an ended connection's members.
    pub fn handle_closed(&mut self, client: Client, out: &mut Vec<Delivery>) -> Vec<Routed> {
        let (mut gone, mut ended) = (Vec::new(), BTreeMap::<Arc<str>, Vec<Address>>::new());
        for (group, address) in self.by_client.remove(&client).unwrap_or_default() {
            let Some(members) = self.groups.get_mut(&group) else { continue };
            let Some(member) = members.remove(&address) else { continue };
            self.count -= 1;
            self.bytes -= member.bytes;
            gone.push(Routed::Unregistered { group: group.clone(), member: member.display_name(&address) });
            ended.entry(group).or_default().push(address);
        }
        for (group, addresses) in ended {
            let Some(Group { members, .. }) = self.groups.get(&group) else { continue };
            // Once for each group: a connection may have registered thousands of members of one.
            let others: BTreeSet<Client> = members.values().map(|other| other.client).collect();
            for address in addresses.into_iter().filter(|_| self.notify_ends) {
                let suspect = GossipData::new(GossipKind::Suspect, Some(group.clone())).with_member(address);
                let frame = wire::encode_gossip(&suspect);
                out.extend(others.iter().map(|&to| Delivery { to, frame: frame.clone() }));
            }
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
        gone
    }

    fn register(&mut self, from: Client, data: GossipData, bytes: usize) -> Result<Routed, WireError> {
        let (group, address) = member_of(&data)?;
        let all = self.groups.get(&group);
        let known = all.and_then(|all| all.members.get(&address));
        let (before, replaced) = (known.map(|known| known.client), known.map_or(0, |known| known.bytes));
        let is_new = before.is_none();
        let too_long = self.bytes - replaced + bytes > MEMBERS_BYTES_MAX
            || all.is_some_and(|all| all.bytes - replaced + bytes > GROUP_BYTES_MAX);
        let too_many =
            self.count >= MEMBERS_MAX || all.is_some_and(|all| all.members.len() >= GROUP_MEMBERS_MAX);
        let own = self.by_client.get(&from).map_or(0, BTreeSet::len);
        if too_long || is_new && too_many || before != Some(from) && own >= CLIENT_MEMBERS_MAX {
            return Ok(Routed::Full);
        }
        match before {
            None => self.count += 1,
            Some(before) => self.forget(before, &group, &address),
        }
        let member = Member { client: from, name: data.name, phys: data.phys, bytes };
        let name = member.display_name(&address);
        let all = self.groups.entry(group.clone()).or_default();
        all.bytes = all.bytes - replaced + bytes;
        self.bytes = self.bytes - replaced + bytes;
        all.members.insert(address.clone(), member);
        self.by_client.entry(from).or_default().insert((group.clone(), address));
        if before == Some(from) {
            return Ok(Routed::Unchanged);
        }
        Ok(Routed::Registered { group, member: name })
    }

    /// Requires the connection of the registration.
    fn unregister(&mut self, group: &Arc<str>, address: &Address, from: Client) -> Option<String> {
        let all = self.groups.get_mut(group)?;
        all.members.get(address).filter(|member| member.client == from)?;
        let member = all.remove(address)?;
        if all.members.is_empty() {
            self.groups.remove(group);
        }
        self.count -= 1;
        self.bytes -= member.bytes;
        self.forget(from, group, address);
        Some(member.display_name(address))
    }

    fn forget(&mut self, client: Client, group: &Arc<str>, address: &Address) {
        if let Some(all) = self.by_client.get_mut(&client) {
            all.remove(&(group.clone(), address.clone()));
            if all.is_empty() {
                self.by_client.remove(&client);
            }
        }
    }

    /// As JGroups' router, it does not answer for an empty group.
    fn send_members(&self, to: Client, group: Option<&Arc<str>>, out: &mut Vec<Delivery>) {
        let answer = |kind, name: Arc<str>, members: &Group| {
            let mut data = GossipData::new(kind, Some(name));
            data.members = members.members.iter().map(described).collect();
            Delivery { to, frame: wire::encode_gossip(&data) }
        };
        if let Some(group) = group {
            let members = self.groups.get(group);
            return out
                .extend(members.map(|members| answer(GossipKind::LastMembers, group.clone(), members)));
        }
        for (nth, (group, members)) in self.groups.iter().enumerate() {
            let is_last = nth + 1 == self.groups.len();
            let kind = if is_last { GossipKind::LastMembers } else { GossipKind::Members };
            out.push(answer(kind, format!("{OF_ALL}{group}").into(), members));
        }
    }
}

/// Returns a group's own name, from a response for all groups.
pub fn own_group_name(name: &str) -> &str {
    name.strip_prefix(OF_ALL).unwrap_or(name)
}

fn described((address, member): (&Address, &Member)) -> PingData {
    PingData {
        sender: address.clone(),
        is_server: true,
        is_coordinator: false,
        name: member.name.clone(),
        phys: member.phys,
        wanted: None,
    }
}

fn member_of(data: &GossipData) -> Result<(Arc<str>, Address), WireError> {
    let missing = |what| WireError::BadValue { what, value: 0 };
    let group = data.group.clone().ok_or_else(|| missing("group of a member"))?;
    let member = data.addr.clone().ok_or_else(|| missing("address of a member"))?;
    Ok((group, member))
}

#[cfg(test)]
mod tests {
    use consort_group::Uuid;
    use consort_testbed::vectors::vector;

    use super::*;

    const ONE: Client = Client(1);
    const TWO: Client = Client(2);

    fn member(n: u64) -> Address {
        Address::Uuid(Uuid { most: 0, least: n })
    }

    /// A connection with fewer members than one may have.
    fn of(n: u64) -> Client {
        Client(100 + n / CLIENT_MEMBERS_MAX as u64)
    }

    fn register(n: u64) -> Bytes {
        register_in("demo", n)
    }

    fn register_in(group: &str, n: u64) -> Bytes {
        let name = Some(format!("m{n}").into());
        let data = GossipData::new(GossipKind::Register, Some(group.into())).with_member(member(n));
        wire::encode_gossip(&GossipData { name, ..data })
    }

    fn handle(routes: &mut Routes, from: Client, frame: Bytes) -> (Routed, Vec<Delivery>) {
        let mut out = Vec::new();
        let routed = routes.handle_frame(from, frame, &mut out).unwrap();
        (routed, out)
    }

    fn registered(routes: &mut Routes) -> Vec<Address> {
        let ask = wire::encode_gossip(&GossipData::new(GossipKind::GetMembers, Some("demo".into())));
        let (_, out) = handle(routes, Client(99), ask);
        let Some(answer) = out.first() else { return Vec::new() };
        wire::decode_gossip(&answer.frame).unwrap().members.into_iter().map(|data| data.sender).collect()
    }

    /// The same frames get the same bytes.
    #[test]
    fn a_session_of_gossip_router_is_answered_byte_by_byte() {
        let line = |name: &str| {
            let bytes = vector("29-gossiprouter", name);
            if bytes.is_empty() { bytes } else { bytes.slice(4..) }
        };
        let mut routes = Routes::new(true);
        for (client, name) in [(ONE, "client1.register"), (TWO, "client2.register")] {
            assert!(
                matches!(handle(&mut routes, client, line(name)), (Routed::Registered { .. }, out) if out.is_empty())
            );
        }
        let session: [(&str, &[(Client, &str)]); 6] = [
            ("client1.getmbrs", &[(ONE, "router.to.client1")]),
            ("client1.message.to.B", &[(TWO, "router.to.client2")]),
            ("client1.message.to.all", &[(ONE, "router.to.client1.2"), (TWO, "router.to.client2.2")]),
            ("client1.heartbeat", &[(ONE, "router.to.client1.3")]),
            ("client1.getmbrs.unknown", &[]),
            ("client1.getmbrs.all", &[(ONE, "router.to.client1.5")]),
        ];
        for (asked, answers) in session {
            let (_, out) = handle(&mut routes, ONE, line(asked));
            let expected: Vec<Delivery> =
                answers.iter().map(|&(to, name)| Delivery { to, frame: line(name) }).collect();
            assert_eq!(out, expected, "{asked}");
        }
        assert!(line("router.to.client1.4").is_empty(), "unknown groups get no response");
        let mut out = Vec::new();
        assert_eq!(routes.handle_closed(TWO, &mut out).len(), 1);
        assert_eq!(out, [Delivery { to: ONE, frame: line("router.to.client1.after.client2.closed") }]);
    }

    /// S003-4
    #[test]
    fn a_member_registered_again_survives_the_end_of_its_first_connection() {
        let mut routes = Routes::new(true);
        handle(&mut routes, ONE, register(1));
        handle(&mut routes, TWO, register(1));
        let mut out = Vec::new();
        assert_eq!(routes.handle_closed(ONE, &mut out), []);
        assert_eq!((registered(&mut routes), out), (vec![member(1)], vec![]));
        routes.handle_closed(TWO, &mut Vec::new());
        assert_eq!((registered(&mut routes), routes.len()), (vec![], 0));
    }

    #[test]
    fn ends_are_reported_to_other_members_only_if_wanted() {
        for notify_ends in [true, false] {
            let mut routes = Routes::new(notify_ends);
            handle(&mut routes, ONE, register(1));
            handle(&mut routes, TWO, register(2));
            let mut out = Vec::new();
            assert_eq!(routes.handle_closed(ONE, &mut out).len(), 1);
            assert_eq!(out.iter().map(|delivery| delivery.to).eq([TWO]), notify_ends, "{out:?}");
        }
    }

    #[test]
    fn only_the_registering_connection_unregisters_a_member() {
        let mut routes = Routes::new(true);
        handle(&mut routes, ONE, register(1));
        let unregister = GossipData::new(GossipKind::Unregister, Some("demo".into())).with_member(member(1));
        let unregister = wire::encode_gossip(&unregister);
        assert_eq!(handle(&mut routes, TWO, unregister.clone()).0, Routed::NoSuchMember);
        let gone = Routed::Unregistered { group: "demo".into(), member: "m1".into() };
        assert_eq!(handle(&mut routes, ONE, unregister.clone()).0, gone);
        assert_eq!(handle(&mut routes, ONE, unregister).0, Routed::NoSuchMember);
        assert!(routes.groups.is_empty() && routes.by_client.is_empty());
    }

    /// S003-4
    #[test]
    fn the_list_is_the_set_of_registered_members_after_any_changes() {
        for seed in 0..200 {
            let mut rng = consort_group::Rng::new(seed);
            let mut routes = Routes::new(rng.chance(0.5));
            let mut expected: BTreeMap<Address, Client> = BTreeMap::new();
            for _ in 0..300 {
                let (client, n) = (Client(rng.below(6)), 1 + rng.below(20));
                match rng.below(5) {
                    0 | 1 => {
                        handle(&mut routes, client, register(n));
                        expected.insert(member(n), client);
                    }
                    2 | 3 => {
                        let data = GossipData::new(GossipKind::Unregister, Some("demo".into()));
                        handle(&mut routes, client, wire::encode_gossip(&data.with_member(member(n))));
                        if expected.get(&member(n)) == Some(&client) {
                            expected.remove(&member(n));
                        }
                    }
                    _ => {
                        routes.handle_closed(client, &mut Vec::new());
                        expected.retain(|_, through| *through != client);
                    }
                }
                assert_eq!(
                    registered(&mut routes),
                    expected.keys().cloned().collect::<Vec<_>>(),
                    "seed {seed}"
                );
                assert_eq!(routes.len(), expected.len());
                let through: usize = routes.by_client.values().map(BTreeSet::len).sum();
                assert_eq!(through, expected.len());
            }
        }
    }

    #[test]
    fn frames_without_a_group_or_a_member_are_refused_and_so_are_long_names() {
        let mut routes = Routes::new(true);
        let long = GossipData::new(GossipKind::Register, Some("x".repeat(REGISTRATION_LEN_MAX).into()));
        let long = wire::encode_gossip(&long.with_member(member(1)));
        assert!(routes.handle_frame(ONE, long, &mut Vec::new()).is_err());
        for kind in [GossipKind::Register, GossipKind::Unregister] {
            for data in [
                GossipData::new(kind, Some("demo".into())),
                GossipData::new(kind, None).with_member(member(1)),
            ] {
                assert!(routes.handle_frame(ONE, wire::encode_gossip(&data), &mut Vec::new()).is_err());
            }
        }
        assert!(routes.is_empty());
    }

    #[test]
    fn a_group_takes_as_many_members_as_one_answer_holds() {
        let mut routes = Routes::new(true);
        for n in 1..=GROUP_MEMBERS_MAX as u64 {
            assert!(matches!(handle(&mut routes, of(n), register(n)).0, Routed::Registered { .. }));
        }
        assert_eq!(handle(&mut routes, TWO, register(1_000_000)).0, Routed::Full);
        assert!(matches!(handle(&mut routes, TWO, register(5)).0, Routed::Registered { .. }));
        assert_eq!(registered(&mut routes).len(), GROUP_MEMBERS_MAX);
    }

    #[test]
    fn members_of_all_groups_are_bounded_and_the_end_of_one_frees_its_place() {
        let mut routes = Routes::new(true);
        for n in 1..=MEMBERS_MAX as u64 {
            let group = format!("group {}", n % 4);
            assert!(matches!(
                handle(&mut routes, of(n), register_in(&group, n)).0,
                Routed::Registered { .. }
            ));
        }
        let beyond = 1_000_000;
        assert_eq!(handle(&mut routes, TWO, register(beyond)), (Routed::Full, vec![]));
        assert_eq!(handle(&mut routes, TWO, register_in("group 1", beyond)), (Routed::Full, vec![]));
        assert_eq!((routes.len(), registered(&mut routes)), (MEMBERS_MAX, vec![]));
        // A member that is registered may register again, and is reached through its new connection.
        assert!(matches!(handle(&mut routes, TWO, register_in("group 1", 5)).0, Routed::Registered { .. }));
        assert_eq!(routes.len(), MEMBERS_MAX);
        assert_eq!(routes.handle_closed(TWO, &mut Vec::new()).len(), 1);
        assert!(matches!(handle(&mut routes, TWO, register(beyond)).0, Routed::Registered { .. }));
        assert_eq!(registered(&mut routes), [member(beyond)]);
    }
    #[test]
    fn a_connection_registers_a_few_members_and_lists_are_bounded_in_bytes() {
        let mut routes = Routes::new(true);
        for n in 1..=CLIENT_MEMBERS_MAX as u64 {
            assert!(matches!(handle(&mut routes, ONE, register(n)).0, Routed::Registered { .. }));
        }
        let beyond = CLIENT_MEMBERS_MAX as u64 + 1;
        assert_eq!(handle(&mut routes, ONE, register(beyond)).0, Routed::Full);
        assert_eq!(handle(&mut routes, ONE, register(1)).0, Routed::Unchanged);

        let long = "x".repeat(REGISTRATION_LEN_MAX - 100);
        let register_long = |n| {
            let data = GossipData::new(GossipKind::Register, Some("long".into())).with_member(member(n));
            wire::encode_gossip(&GossipData { name: Some(long.as_str().into()), ..data })
        };
        let taken =
            (100..).take_while(|&n| handle(&mut routes, of(n), register_long(n)).0 != Routed::Full).count();
        assert!(taken > 900, "{taken}");
        // A group has no more, and all groups have a little more.
        let ask = |group: Option<&str>| {
            wire::encode_gossip(&GossipData::new(GossipKind::GetMembers, group.map(Into::into)))
        };
        let (_, of_group) = handle(&mut routes, TWO, ask(Some("long")));
        assert!(of_group[0].frame.len() <= GROUP_BYTES_MAX);
        let others = (10_000..).take_while(|&n| {
            let long = register_in(&format!("{n}{long}"), n);
            handle(&mut routes, of(n), long).0 != Routed::Full
        });
        assert!(others.count() > 400);
        let (_, of_all) = handle(&mut routes, TWO, ask(None));
        assert!(of_all.iter().map(|each| each.frame.len()).sum::<usize>() <= MEMBERS_BYTES_MAX);
        // Ends give the bytes back.
        (0..2_000).for_each(|n| drop(routes.handle_closed(Client(n), &mut Vec::new())));
        assert_eq!((routes.len(), routes.bytes), (0, 0));
    }
}
