//! The routing of requests by a cache's topology (facts sections 1.6 and 4.2).

use consort_hotrod::hash::segment_of;
use consort_hotrod::{CacheTopology, Owners};

use crate::limits::SERVERS_MAX;

pub(crate) struct Routing<S> {
    id: i32,
    servers: Vec<S>,
    /// By segment; not empty.
    owners: Option<Vec<Owners>>,
}

impl<S> Routing<S> {
    pub(crate) fn new(
        topology: &CacheTopology,
        server: impl FnMut(&consort_hotrod::ServerAddress) -> S,
    ) -> Option<Self> {
        if topology.servers.is_empty() || topology.servers.len() > SERVERS_MAX {
            return None;
        }
        let owners = topology.owners.clone().filter(|owners| !owners.is_empty());
        Some(Self { id: topology.id, servers: topology.servers.iter().map(server).collect(), owners })
    }

    pub(crate) const fn id(&self) -> i32 {
        self.id
    }

    pub(crate) fn servers(&self) -> &[S] {
        &self.servers
    }

    pub(crate) fn segments(&self) -> Option<u32> {
        u32::try_from(self.owners.as_ref()?.len()).ok()
    }

    pub(crate) fn primary_of(&self, segment: usize) -> Option<&S> {
        self.servers.get(*self.owners.as_ref()?.get(segment)?.first()? as usize)
    }

    fn owners(&self, key: &[u8]) -> impl Iterator<Item = &S> {
        let owners = self.owners.as_ref().and_then(|owners| {
            let count = u32::try_from(owners.len()).ok()?;
            owners.get(segment_of(key, count) as usize)
        });
        owners.into_iter().flatten().filter_map(|owner| self.servers.get(*owner as usize))
    }

    /// Reads and writes are fastest there.
    pub(crate) fn primary(&self, key: &[u8]) -> Option<&S> {
        self.owners(key).next()
    }

    /// The first usable owner of the key, or any usable server, round robin.
    pub(crate) fn choose<T>(
        &self,
        key: Option<&[u8]>,
        turn: usize,
        mut usable: impl FnMut(&S) -> Option<T>,
    ) -> Option<T> {
        let owner = key.and_then(|key| self.owners(key).find_map(&mut usable));
        owner.or_else(|| in_turn(&self.servers, turn, usable))
    }
}

pub(crate) fn in_turn<S, T>(servers: &[S], turn: usize, usable: impl FnMut(&S) -> Option<T>) -> Option<T> {
    let (before, from) = servers.split_at(turn.checked_rem(servers.len()).unwrap_or(0));
    from.iter().chain(before).find_map(usable)
}

#[cfg(test)]
mod tests {
    use consort_hotrod::ServerAddress;

    use super::*;

    fn topology(owners: Option<Vec<Owners>>) -> CacheTopology {
        let address = |port| ServerAddress { host: "h".into(), port };
        CacheTopology { id: 5, servers: (0..3).map(address).collect(), owners }
    }

    fn routing(owners: Option<Vec<Owners>>) -> Routing<u16> {
        Routing::new(&topology(owners), |address| address.port).unwrap()
    }

    fn usable(among: &[u16]) -> impl Fn(&u16) -> Option<u16> {
        |server| among.contains(server).then_some(*server)
    }

    /// Facts 4.2: "key1" is in segment 46 of 256.
    #[test]
    fn requests_go_to_the_primary_then_to_another_owner_then_to_any_server() {
        let mut owners: Vec<Owners> = vec![[0, 1].into(); 256];
        owners[46] = [2, 0].into();
        let routing = routing(Some(owners));
        assert_eq!(routing.primary(b"key1"), Some(&2));
        let choose = |among: &[u16], turn| routing.choose(Some(b"key1"), turn, usable(among));
        assert_eq!(choose(&[0, 1, 2], 1), Some(2));
        assert_eq!(choose(&[0, 1], 1), Some(0));
        assert_eq!(choose(&[1], 0), Some(1));
        assert_eq!(choose(&[], 0), None);
    }

    #[test]
    fn without_owners_servers_have_their_turns() {
        let routing = routing(None);
        let chosen: Vec<_> =
            (0..4).map(|turn| routing.choose(Some(b"k"), turn, usable(&[0, 1, 2]))).collect();
        assert_eq!(chosen, [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(routing.choose(None, 1, usable(&[0])), Some(0));
    }

    #[test]
    fn a_topology_without_segments_or_servers_is_no_trap() {
        assert_eq!(routing(Some(Vec::new())).primary(b"k"), None);
        let empty = CacheTopology { id: 1, servers: Vec::new(), owners: None };
        assert!(Routing::new(&empty, |_| ()).is_none());
        assert_eq!(in_turn::<u16, u16>(&[], 3, |server| Some(*server)), None);
        let all = ServerAddress { host: "h".into(), port: 1 };
        let crowd = CacheTopology { id: 1, servers: vec![all; SERVERS_MAX + 1], owners: None };
        assert!(Routing::new(&crowd, |_| ()).is_none());
    }
}
