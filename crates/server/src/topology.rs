//! What clients are told of a cache's owners (facts section 1.6).

use std::collections::BTreeMap;
use std::fmt::Write;

use consort_cache::Topology;
use consort_hotrod::hash::hash;
use consort_hotrod::{CacheTopology, Intelligence, Owners, RequestHeader, ServerAddress};

/// Where clients reach the members, by their addresses' texts.
pub(crate) type Endpoints = BTreeMap<String, ServerAddress>;

/// A cache's topology as clients read it; `None` as long as it is not known where they reach all its members.
pub(crate) fn told(topology: &Topology, endpoints: &Endpoints) -> Option<CacheTopology> {
    let mut places = BTreeMap::new();
    let mut servers = Vec::new();
    for member in topology.addresses() {
        places.insert(member, u32::try_from(servers.len()).ok()?);
        servers.push(endpoints.get(&member.to_string())?.clone());
    }
    let hash = topology.read_owners();
    let owners = |segment| {
        let mut owners: Owners =
            hash.owners(segment).filter_map(|owner| places.get(owner).copied()).collect();
        // One byte counts them.
        owners.truncate(usize::from(u8::MAX));
        if owners.is_empty() {
            owners.push(0);
        }
        owners
    };
    let owners: Vec<Owners> = hash.segments().map(owners).collect();
    let id = id_of(&servers, &owners);
    Some(CacheTopology { id, servers, owners: Some(owners) })
}

/// Whether a client does anything with topologies.
pub(crate) fn is_wanted(header: &RequestHeader) -> bool {
    header.intelligence != Intelligence::Basic
}

/// Whether a client is to be told this: if it knows something else.
pub(crate) fn is_news(told: &CacheTopology, header: &RequestHeader) -> bool {
    is_wanted(header) && told.id != header.topology_id
}

/// An id of what it says: also a cluster that has started anew must not repeat one for something else. Never 0 nor
/// negative, which clients have before they know any.
fn id_of(servers: &[ServerAddress], owners: &[Owners]) -> i32 {
    let mut text = String::new();
    for server in servers {
        let _ = write!(text, "{}:{} ", server.host, server.port);
    }
    for owners in owners {
        let _ = write!(text, "{owners:?}");
    }
    (hash(text.as_bytes()) & i32::MAX).max(1)
}
