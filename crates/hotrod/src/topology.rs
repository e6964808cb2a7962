//! Topologies: servers and owners of segments (facts section 1.6).

use smallvec::SmallVec;

use crate::error::{Reason, Result, error};
use crate::intelligence::Intelligence;
use crate::layout::{Count, Field, Fields, RequestContext};
use crate::limits::Kind;
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;

/// Of the hash that maps keys to segments.
const HASH_VERSION: u8 = 3;

/// A server's address for clients.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerAddress {
    /// Host name or IP address.
    pub host: Text,
    /// The port.
    pub port: u16,
}

/// A segment's owners, 1 to 255 indices of servers, the primary first.
pub type Owners = SmallVec<[u32; 2]>;

/// The topology of a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheTopology {
    /// Different ids are different topologies; their order has no meaning.
    pub id: i32,
    /// All with the cache.
    pub servers: Vec<ServerAddress>,
    /// If the client requests them and they are known.
    pub owners: Option<Vec<Owners>>,
}

pub(crate) const FIELD: Field = Field::Sub(layout);

fn layout(context: RequestContext) -> Fields {
    match context.intelligence {
        // Servers should not send it to such a client; some do.
        Intelligence::Basic | Intelligence::Topology => &[Field::Choice("topology marker", servers)],
        Intelligence::Hash => &[Field::Choice("topology marker", servers_and_owners)],
    }
}

const ID: Field = Field::VInt("topology id");
const SERVERS: Field = Field::Counted("servers", Count::Items, &[Field::Array(Kind::Text), Field::Fixed(2)]);

const fn servers(marker: u8) -> Option<Fields> {
    match marker {
        0 => Some(&[]),
        1 => Some(&[ID, SERVERS]),
        _ => None,
    }
}

const fn servers_and_owners(marker: u8) -> Option<Fields> {
    match marker {
        0 => Some(&[]),
        1 => Some(&[ID, SERVERS, Field::Choice("hash version", owners)]),
        _ => None,
    }
}

const fn owners(version: u8) -> Option<Fields> {
    match version {
        0 => Some(&[Field::VInt("segments")]),
        HASH_VERSION => {
            const OWNERS: Fields = &[Field::CountedInByte(&[Field::VInt("owner")])];
            Some(&[Field::Counted("segments", Count::Items, OWNERS)])
        }
        _ => None,
    }
}

impl CacheTopology {
    pub(crate) fn read(from: &mut Reader, intelligence: Intelligence) -> Result<Option<Self>> {
        if !from.bool()? {
            return Ok(None);
        }
        let id = from.vint()? as i32;
        let servers = from.counted(|from| Ok(ServerAddress { host: from.text()?, port: from.u16()? }))?;
        let owners = match intelligence {
            Intelligence::Basic | Intelligence::Topology => None,
            Intelligence::Hash => Self::read_owners(from, servers.len())?,
        };
        Ok(Some(Self { id, servers, owners }))
    }

    fn read_owners(from: &mut Reader, servers: usize) -> Result<Option<Vec<Owners>>> {
        let (version, segments) = (from.u8()?, from.vint()?);
        if version == 0 {
            return if segments == 0 { Ok(None) } else { from.invalid("segments without hash", segments) };
        }
        let owner = |from: &mut Reader| {
            let owner = from.vint()?;
            if owner as usize >= servers { from.invalid("owner", owner) } else { Ok(owner) }
        };
        let read = |from: &mut Reader| {
            let owners: Owners = from.counted_in_byte(owner)?.into();
            if owners.is_empty() { from.invalid("owners", 0_u8) } else { Ok(owners) }
        };
        from.times(segments, read).map(Some)
    }

    pub(crate) fn write(topology: Option<&Self>, out: &mut Output, intelligence: Intelligence) {
        // Clients take an empty list for the end of the cluster.
        let Some(topology) = topology.filter(|topology| !topology.servers.is_empty()) else {
            return out.u8(0);
        };
        out.u8(1);
        out.vint(topology.id as u32);
        out.count(topology.servers.len());
        for server in &topology.servers {
            out.text(&server.host);
            out.u16(server.port);
        }
        if intelligence < Intelligence::Hash {
            return;
        }
        let owners = topology.owners.as_deref().unwrap_or_default();
        out.u8(if owners.is_empty() { 0 } else { HASH_VERSION });
        out.count(owners.len());
        for owners in owners {
            out.count_in_byte(owners.len());
            owners.iter().for_each(|owner| out.vint(*owner));
        }
    }

    /// Checks that the owners are among the servers; the error is the first invalid owner.
    pub fn check(&self) -> Result<()> {
        for owners in self.owners.iter().flatten() {
            let wrong = owners.iter().find(|owner| **owner as usize >= self.servers.len());
            if let Some(&owner) = wrong {
                return error(0, Reason::Invalid { what: "owner", value: owner.into() });
            }
        }
        Ok(())
    }
}
