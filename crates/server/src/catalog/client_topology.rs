//! The topology of a cache for clients (facts section 1.6).

use std::collections::BTreeMap;
use std::fmt::Write;

use consort_cache::{Segment, Topology};
use consort_hotrod::hash::hash;
use consort_hotrod::{CacheTopology, Intelligence, Owners, RequestHeader, ServerAddress};

/// Endpoints by the text of the members' addresses.
pub(crate) type Endpoints = BTreeMap<String, Endpoint>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: ServerAddress,
    pub(crate) is_leaving: bool,
}

/// Servers of versions without this suffix cannot read the address, and send clients no topology meanwhile.
const LEAVING: &str = " leaving";

impl Endpoint {
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

/// `None` while the address of a member is unknown, or if all members end soon.
pub(crate) fn client_topology(topology: &Topology, endpoints: &Endpoints) -> Option<CacheTopology> {
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
        // The response counts them in one byte.
        owners.truncate(usize::from(u8::MAX));
        if owners.is_empty() {
            // Any server accepts requests for the segment: each server gets some of these segments.
            owners.push(u32::from(segment.0) % count);
        }
        owners
    };
    let owners: Vec<Owners> = hash.segments().map(owners).collect();
    let id = id_of(&servers, &owners);
    Some(CacheTopology { id, servers, owners: Some(owners) })
}

pub(crate) fn uses_topology(header: &RequestHeader) -> bool {
    header.intelligence != Intelligence::Basic
}

pub(crate) fn differs(latest: &CacheTopology, header: &RequestHeader) -> bool {
    uses_topology(header) && latest.id != header.topology_id
}

/// A hash, so that a restarted cluster does not reuse an id for another topology. Never 0 or negative: clients send such
/// ids before they know a topology.
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
