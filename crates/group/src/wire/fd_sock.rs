//! FD_SOCK: its header, and the addresses of server sockets that a member sends to a joiner.

use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{put_address, put_ip, read_address, read_ip, read_present};
use super::primitives::{Reader, Result, WireError, bad, put_bool};
use crate::{Address, FdSockHeader, PhysAddr};

/// The most addresses that are read: more than any working view has members.
pub const SOCKET_ADDRESSES_MAX: usize = 2_000;

fn put_socket(out: &mut impl BufMut, address: Option<PhysAddr>) {
    put_bool(out, address.is_some());
    if let Some(address) = address {
        put_ip(out, address);
    }
}

fn read_socket(reader: &mut Reader<'_>) -> Result<Option<PhysAddr>> {
    if reader.bool("socket address presence")? { read_ip(reader).map(Some) } else { Ok(None) }
}

pub(super) fn put_fd_sock(out: &mut impl BufMut, fd: &FdSockHeader) {
    let (kind, member, address, members): (u8, Option<&Address>, Option<PhysAddr>, &[Address]) = match fd {
        FdSockHeader::Suspect(members) => (10, None, None, members),
        FdSockHeader::Unsuspect(members) => (11, None, None, members),
        FdSockHeader::WhoHasSock(member) => (12, Some(member), None, &[]),
        FdSockHeader::IHaveSock { member, address } => (13, Some(member), Some(*address), &[]),
        FdSockHeader::GetCache => (14, None, None, &[]),
        FdSockHeader::GetCacheResponse => (15, None, None, &[]),
    };
    out.put_u8(kind);
    put_address(out, member);
    put_socket(out, address);
    out.put_i32(members.len() as i32);
    members.iter().for_each(|member| put_address(out, Some(member)));
}

pub(super) fn read_fd_sock(reader: &mut Reader<'_>) -> Result<FdSockHeader> {
    let missing = |what| WireError::BadValue { what, value: 0 };
    let kind = reader.u8("FD_SOCK header type")?;
    let member = read_address(reader)?;
    let address = read_socket(reader)?;
    let count = reader.count("number of members", 1)?;
    let members: Vec<Address> = (0..count).map(|_| read_present(reader, "member")).collect::<Result<_>>()?;
    let member = || member.ok_or_else(|| missing("FD_SOCK member"));
    Ok(match kind {
        10 => FdSockHeader::Suspect(members),
        11 => FdSockHeader::Unsuspect(members),
        12 => FdSockHeader::WhoHasSock(member()?),
        13 => {
            let address = address.ok_or_else(|| missing("FD_SOCK socket address"))?;
            FdSockHeader::IHaveSock { member: member()?, address }
        }
        14 => FdSockHeader::GetCache,
        15 => FdSockHeader::GetCacheResponse,
        _ => return Err(bad("FD_SOCK header type", kind)),
    })
}

/// Encodes the addresses of server sockets, the payload of a response to a joiner.
pub fn encode_socket_addresses<'a>(all: impl ExactSizeIterator<Item = (&'a Address, PhysAddr)>) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i32(all.len() as i32);
    for (member, address) in all {
        put_address(&mut out, Some(member));
        put_socket(&mut out, Some(address));
    }
    out.freeze()
}

/// Decodes the addresses of server sockets. Members without an address are left out.
///
/// # Errors
///
/// If the bytes are no such list, or if it has more than [`SOCKET_ADDRESSES_MAX`] entries.
pub fn decode_socket_addresses(bytes: &Bytes) -> Result<Vec<(Address, PhysAddr)>> {
    let mut reader = Reader::new(bytes);
    let count = reader.count("number of socket addresses", 2)?;
    if count > SOCKET_ADDRESSES_MAX {
        return Err(WireError::BadValue { what: "number of socket addresses", value: count as i64 });
    }
    let mut all = Vec::new();
    for _ in 0..count {
        let member = read_present(&mut reader, "member")?;
        if let Some(address) = read_socket(&mut reader)? {
            all.push((member, address));
        }
    }
    reader.end()?;
    Ok(all)
}
