//! What clients are told of a cache's owners (facts section 1.6).

use std::collections::BTreeMap;
use std::fmt::Write;

use consort_cache::{Segment, Topology};
use consort_hotrod::hash::hash;
use consort_hotrod::{CacheTopology, Intelligence, Owners, RequestHeader, ServerAddress};

/// Where clients reach the members, by their addresses' texts.
pub(crate) type Endpoints = BTreeMap<String, Endpoint>;

/// Where clients reach a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: ServerAddress,
    /// The server is about to end: clients are to go on with others.
    pub(crate) is_leaving: bool,
}

/// What follows the address of a server that is about to end. Servers that do not know it take the address for unknown, and tell
/// clients no topology meanwhile.
const LEAVING: &str = " leaving";

impl Endpoint {
    /// As it is told to the other servers.
    pub(crate) fn to_text(&self) -> String {
        let ServerAddress { host, port } = &self.address;
        format!("{host} {port}{}", if self.is_leaving { LEAVING } else { "" })
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let (at, is_leaving) = text.strip_suffix(LEAVING).map_or((text, false), |at| (at, true));
        let (host, port) = at.rsplit_once(' ')?;
        Some(Self { address: ServerAddress { host: host.into(), port: port.parse().ok()? }, is_leaving })
    }
}

/// A cache's topology as clients read it; `None` as long as it is not known where they reach all its members, or if all of them
/// are about to end.
pub(crate) fn told(topology: &Topology, endpoints: &Endpoints) -> Option<CacheTopology> {
    let mut places = BTreeMap::new();
    let mut servers = Vec::new();
    for member in topology.addresses() {
        let endpoint = endpoints.get(&member.to_string())?;
        if !endpoint.is_leaving {
            places.insert(member, u32::try_from(servers.len()).ok()?);
            servers.push(endpoint.address.clone());
        }
    }
    let count = u32::try_from(servers.len()).ok().filter(|count| *count > 0)?;
    let hash = topology.read_owners();
    let owners = |segment: Segment| {
        let mut owners: Owners =
            hash.owners(segment).filter_map(|owner| places.get(owner).copied()).collect();
        // One byte counts them.
        owners.truncate(usize::from(u8::MAX));
        if owners.is_empty() {
            // Any server takes requests for it: each some of those segments.
            owners.push(u32::from(segment.0) % count);
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
