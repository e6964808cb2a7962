//! Where a cache's servers are, and which of them own what (facts section 1.6).

use smallvec::SmallVec;

use crate::error::{Reason, Result, error};
use crate::header::Intelligence;
use crate::layout::{RequestContext, Count, Field, Fields};
use crate::limits::Kind;
use crate::output::Output;
use crate::reader::Reader;
use crate::text::Text;

/// The version of the hash that decides which segment a key is in.
const HASH_VERSION: u8 = 3;

/// A server, as clients reach it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerAddress {
    /// Its name or its address.
    pub host: Text,
    /// Its port.
    pub port: u16,
}

/// Servers of a segment by their places in the list, the primary first. At least one and at most 255.
pub type Owners = SmallVec<[u32; 2]>;

/// A cache's topology.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheTopology {
    /// Its id: another one is another topology, whether it is greater or not.
    pub id: i32,
    /// All servers that have the cache.
    pub servers: Vec<ServerAddress>,
    /// Who owns which segment, if the client asks for that and there is something to know.
    pub owners: Option<Vec<Owners>>,
}

/// The marker, and what follows it.
pub(crate) const FIELD: Field = Field::Sub(layout);

fn layout(context: RequestContext) -> Fields {
    match context.intelligence {
        // Not to be sent to such a client, but it is a server's if it is.
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
    /// The marker, and what follows it.
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
        // Clients take an empty list for the end of the world.
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

    /// Whether a client can be told: owners must be among the servers.
    ///
    /// # Errors
    ///
    /// The first owner that is not.
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
