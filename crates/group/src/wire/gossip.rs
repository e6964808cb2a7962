//! Frames of TCPGOSSIP, TUNNEL and GossipRouter.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{put_address, put_phys, read_address, read_phys};
use super::primitives::{Reader, Result, WireError, put_string};
use super::views::{PING_DATA_MAX, put_ping_data, read_ping_data};
use crate::{Address, PhysAddr, PingData};

/// A frame's kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GossipKind {
    /// Registers this connection's member in a group.
    Register,
    /// Ends a registration.
    Unregister,
    /// Requests the members of one or all groups.
    GetMembers,
    /// The response, or a part.
    Members,
    /// A payload for one or all members.
    Message,
    /// Checks the connection; answered with a `Heartbeat`.
    Heartbeat,
    /// A member's connection has ended.
    Suspect,
    /// The response's last part.
    LastMembers,
}

const KINDS: [GossipKind; 8] = [
    GossipKind::Register,
    GossipKind::Unregister,
    GossipKind::GetMembers,
    GossipKind::Members,
    GossipKind::Message,
    GossipKind::Heartbeat,
    GossipKind::Suspect,
    GossipKind::LastMembers,
];

/// A frame without its length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GossipData {
    /// The kind.
    pub kind: GossipKind,
    /// The cluster.
    pub group: Option<Arc<str>>,
    /// The member, or a `Message`'s destination; absent: all.
    pub addr: Option<Address>,
    /// The message's sender.
    pub sender: Option<Address>,
    /// The logical name. A `Message` lacks it and the next fields.
    pub name: Option<Arc<str>>,
    /// The members.
    pub members: Vec<PingData>,
    /// The physical address.
    pub phys: Option<PhysAddr>,
    /// The payload.
    pub payload: Bytes,
}

impl GossipData {
    /// Creates a frame, otherwise empty.
    pub fn new(kind: GossipKind, group: Option<Arc<str>>) -> Self {
        Self {
            kind,
            group,
            addr: None,
            sender: None,
            name: None,
            members: Vec::new(),
            phys: None,
            payload: Bytes::new(),
        }
    }

    /// Sets the member.
    pub fn with_member(self, member: Address) -> Self {
        Self { addr: Some(member), ..self }
    }
}

/// Encodes a frame.
pub fn encode_gossip(data: &GossipData) -> Bytes {
    let mut out = BytesMut::new();
    let kind = KINDS.iter().position(|kind| *kind == data.kind);
    out.put_u8(kind.map_or(0, |kind| kind as u8));
    put_string(&mut out, data.group.as_deref());
    put_address(&mut out, data.addr.as_ref());
    put_address(&mut out, data.sender.as_ref());
    if data.kind != GossipKind::Message {
        put_string(&mut out, data.name.as_deref());
        let members = &data.members[..data.members.len().min(PING_DATA_MAX)];
        out.put_i16(members.len() as i16);
        members.iter().for_each(|member| put_ping_data(&mut out, member));
        put_phys(&mut out, data.phys);
    }
    out.put_i32(data.payload.len() as i32);
    out.put_slice(&data.payload);
    out.freeze()
}

/// Decodes a frame, whose payload is a slice of `bytes`; fails if the bytes are not one frame.
pub fn decode_gossip(bytes: &Bytes) -> Result<GossipData> {
    let mut reader = Reader::new(bytes);
    let kind = reader.u8("kind of gossip")?;
    let kind = *KINDS
        .get(usize::from(kind))
        .ok_or(WireError::BadValue { what: "kind of gossip", value: kind.into() })?;
    let mut data = GossipData::new(kind, reader.string("group")?.map(Arc::from));
    data.addr = read_address(&mut reader)?;
    data.sender = read_address(&mut reader)?;
    if kind != GossipKind::Message {
        data.name = reader.string("logical name")?.map(Arc::from);
        let count = usize::from(reader.u16("number of members")?);
        // The smallest member: an address, flags, and no name, physical address or requested members.
        reader.need("members", count * 6)?;
        if count > PING_DATA_MAX {
            return Err(WireError::BadValue { what: "number of members", value: count as i64 });
        }
        data.members = (0..count).map(|_| read_ping_data(&mut reader)).collect::<Result<_>>()?;
        data.phys = read_phys(&mut reader)?;
    }
    let length = reader.i32("length of a payload")?;
    let length = usize::try_from(length)
        .map_err(|_| WireError::BadValue { what: "length of a payload", value: length.into() })?;
    data.payload = reader.bytes("payload", length)?;
    reader.end()?;
    Ok(data)
}
