use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::primitives::{Reader, Result, WireError, put_compressed_int, put_string};
use crate::{Address, ExtAddress, ExtKind, IpAddress, MagicId, Uuid};

const NULL: u8 = 0x01;
const UUID: u8 = 0x02;
const SITE_UUID: u8 = 0x04;
const SITE_MASTER: u8 = 0x08;
const IP: u8 = 0x10;

fn put_uuid(out: &mut impl BufMut, uuid: Uuid) {
    out.put_u64(uuid.least);
    out.put_u64(uuid.most);
}

fn read_uuid(reader: &mut Reader<'_>) -> Result<Uuid> {
    let least = reader.u64("uuid")?;
    Ok(Uuid { most: reader.u64("uuid")?, least })
}

pub(super) fn put_ip(out: &mut impl BufMut, ip: IpAddress) {
    match ip.ip {
        Some(IpAddr::V4(v4)) => {
            out.put_u8(4);
            out.put_slice(&v4.octets());
        }
        Some(IpAddr::V6(v6)) => {
            out.put_u8(16);
            out.put_slice(&v6.octets());
            out.put_u32(ip.scope_id);
        }
        None => out.put_u8(0),
    }
    out.put_u16(ip.port);
}

pub(super) fn read_ip(reader: &mut Reader<'_>) -> Result<IpAddress> {
    let (ip, scope_id) = match reader.u8("ip address length")? {
        0 => (None, 0),
        4 => (Some(IpAddr::V4(Ipv4Addr::from(reader.i32("ipv4 address")? as u32))), 0),
        16 => {
            let high = u128::from(reader.u64("ipv6 address")?);
            let low = u128::from(reader.u64("ipv6 address")?);
            (Some(IpAddr::V6(Ipv6Addr::from(high << 64 | low))), reader.i32("scope id")? as u32)
        }
        length => return Err(WireError::BadValue { what: "ip address length", value: length.into() }),
    };
    Ok(IpAddress { ip, scope_id, port: reader.u16("port")? })
}

#[inline]
pub(super) fn put_address(out: &mut impl BufMut, address: Option<&Address>) {
    match address {
        None => out.put_u8(NULL),
        Some(Address::Uuid(uuid)) => {
            out.put_u8(UUID);
            put_uuid(out, *uuid);
        }
        Some(Address::Ip(ip)) => {
            out.put_u8(IP);
            put_ip(out, *ip);
        }
        Some(Address::Ext(ext)) => {
            match &ext.kind {
                ExtKind::Site { .. } => out.put_u8(SITE_UUID),
                ExtKind::SiteMaster { .. } => out.put_u8(SITE_MASTER),
                _ => {
                    out.put_u8(0);
                    out.put_i16(magic_of(&Address::Ext(ext.clone())).0);
                }
            }
            put_ext_body(out, ext);
        }
    }
}

/// Encodes a flagged address.
pub fn encode_address(address: &Address) -> Bytes {
    let mut out = BytesMut::new();
    put_address(&mut out, Some(address));
    out.freeze()
}

/// Decodes the flagged address that bytes begin with.
///
/// # Errors
///
/// If the bytes are invalid, or [`WireError::Truncated`] if more are needed.
pub fn decode_address_prefix(bytes: &Bytes) -> Result<Option<Address>> {
    read_address(&mut Reader::new(bytes))
}

pub(super) fn magic_of(address: &Address) -> MagicId {
    match address {
        Address::Uuid(_) => MagicId::UUID,
        Address::Ip(_) => MagicId::IP_ADDRESS,
        Address::Ext(ext) => match ext.kind {
            ExtKind::Flags => MagicId::FLAGS_UUID,
            ExtKind::Extended => MagicId::EXTENDED_UUID,
            ExtKind::Site { .. } => MagicId::SITE_UUID,
            ExtKind::SiteMaster { .. } => MagicId::SITE_MASTER,
            ExtKind::Millis => MagicId::MILLIS_ADDRESS,
        },
    }
}

pub(super) fn put_body(out: &mut impl BufMut, address: &Address) {
    match address {
        Address::Uuid(uuid) => put_uuid(out, *uuid),
        Address::Ip(ip) => put_ip(out, *ip),
        Address::Ext(ext) => put_ext_body(out, ext),
    }
}

fn put_ext_body(out: &mut impl BufMut, ext: &ExtAddress) {
    if ext.kind == ExtKind::Millis {
        return out.put_u64(ext.uuid.least);
    }
    put_uuid(out, ext.uuid);
    put_compressed_int(out, ext.flags);
    if ext.kind == ExtKind::Flags {
        return;
    }
    out.put_u8(ext.entries.len().min(255) as u8);
    for (key, value) in ext.entries.iter().take(255) {
        for part in [key, value] {
            let part = &part[..part.len().min(255)];
            out.put_u8(part.len() as u8);
            out.put_slice(part);
        }
    }
    match &ext.kind {
        ExtKind::Site { site, name } => {
            put_string(out, site.as_deref());
            put_string(out, name.as_deref());
        }
        ExtKind::SiteMaster { site } => {
            put_string(out, site.as_deref());
            put_string(out, None);
        }
        _ => {}
    }
}

pub(super) fn read_body(reader: &mut Reader<'_>, magic: MagicId) -> Result<Address> {
    match magic {
        MagicId::UUID => return Ok(Address::Uuid(read_uuid(reader)?)),
        MagicId::IP_ADDRESS => return Ok(Address::Ip(read_ip(reader)?)),
        MagicId::MILLIS_ADDRESS => {
            let uuid = Uuid { most: 0, least: reader.u64("milliseconds")? };
            let ext = ExtAddress { uuid, flags: 0, entries: Vec::new(), kind: ExtKind::Millis };
            return Ok(Address::Ext(Arc::new(ext)));
        }
        MagicId::FLAGS_UUID | MagicId::EXTENDED_UUID | MagicId::SITE_UUID | MagicId::SITE_MASTER => {}
        _ => return Err(WireError::BadValue { what: "address class", value: magic.0.into() }),
    }
    let uuid = read_uuid(reader)?;
    let flags = reader.compressed_int("address flags")?;
    let mut entries = Vec::new();
    if magic != MagicId::FLAGS_UUID {
        for _ in 0..reader.u8("number of address entries")? {
            let mut part = || -> Result<Vec<u8>> {
                let length = reader.u8("address entry")?;
                Ok(reader.bytes("address entry", length.into())?.to_vec())
            };
            entries.push((part()?, part()?));
        }
    }
    let mut text = || Ok(reader.string("site")?.map(Arc::<str>::from));
    let kind = match magic {
        MagicId::SITE_UUID => ExtKind::Site { site: text()?, name: text()? },
        MagicId::SITE_MASTER => {
            let site = text()?;
            text()?;
            ExtKind::SiteMaster { site }
        }
        MagicId::FLAGS_UUID => ExtKind::Flags,
        _ => ExtKind::Extended,
    };
    Ok(Address::Ext(Arc::new(ExtAddress { uuid, flags, entries, kind })))
}

#[inline]
pub(super) fn read_address(reader: &mut Reader<'_>) -> Result<Option<Address>> {
    let flags = reader.u8("address flags")?;
    if flags & NULL != 0 {
        Ok(None)
    } else if flags & UUID != 0 {
        read_uuid(reader).map(|uuid| Some(Address::Uuid(uuid)))
    } else if flags & SITE_UUID != 0 {
        read_body(reader, MagicId::SITE_UUID).map(Some)
    } else if flags & SITE_MASTER != 0 {
        read_body(reader, MagicId::SITE_MASTER).map(Some)
    } else if flags & IP != 0 {
        read_ip(reader).map(|ip| Some(Address::Ip(ip)))
    } else {
        let magic = MagicId(reader.i16("address class")?);
        read_body(reader, magic).map(Some)
    }
}

pub(super) fn read_present(reader: &mut Reader<'_>, what: &'static str) -> Result<Address> {
    read_address(reader)?.ok_or(WireError::BadValue { what, value: 0 })
}

pub(super) fn read_phys(reader: &mut Reader<'_>) -> Result<Option<IpAddress>> {
    Ok(match read_address(reader)? {
        Some(Address::Ip(ip)) => Some(ip),
        _ => None,
    })
}

pub(super) fn put_phys(out: &mut impl BufMut, phys: Option<IpAddress>) {
    put_address(out, phys.map(Address::Ip).as_ref());
}

pub(super) fn put_addresses(out: &mut impl BufMut, addresses: Option<&[Address]>) {
    match addresses {
        None => out.put_i16(-1),
        Some(addresses) => {
            out.put_i16(addresses.len() as i16);
            addresses.iter().for_each(|address| put_address(out, Some(address)));
        }
    }
}

pub(super) fn read_addresses(reader: &mut Reader<'_>) -> Result<Option<Vec<Address>>> {
    match reader.i16("number of addresses")? {
        -1 => Ok(None),
        count => {
            let count = usize::try_from(count)
                .map_err(|_| WireError::BadValue { what: "number of addresses", value: count.into() })?;
            reader.need("addresses", count)?;
            (0..count).map(|_| read_present(reader, "address in a list")).collect::<Result<_>>().map(Some)
        }
    }
}

pub(super) fn address_size(address: Option<&Address>) -> usize {
    match address {
        None => 1,
        Some(Address::Uuid(_)) => 17,
        Some(Address::Ip(ip)) => match ip.ip {
            Some(IpAddr::V4(_)) => 8,
            Some(IpAddr::V6(_)) => 24,
            None => 4,
        },
        Some(ext @ Address::Ext(_)) => {
            let mut out = BytesMut::new();
            put_address(&mut out, Some(ext));
            out.len()
        }
    }
}
