use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::addresses::{
    put_address, put_addresses, put_phys, read_address, read_addresses, read_phys, read_present,
};
use super::primitives::{
    Reader, Result, WireError, put_bool, put_compressed_long, put_long_sequence, put_string, put_utf,
};
use crate::{Address, DeltaView, Digest, DigestEntry, PingData, SeqnoList, View, ViewId};

/// Seqnos in a list, so the messages that a request can have resent; JGroups' largest max_xmit_req_size in use is far
/// below.
pub const SEQNO_LIST_MAX: u32 = 1 << 20;

pub(super) fn put_view_id(out: &mut impl BufMut, id: &ViewId) {
    put_address(out, Some(&id.creator));
    put_compressed_long(out, id.id as i64);
}

pub(super) fn read_view_id(reader: &mut Reader<'_>) -> Result<ViewId> {
    let creator = read_present(reader, "view creator")?;
    Ok(ViewId { creator, id: reader.seqno("view id")? })
}

pub(super) fn put_view_id_option(out: &mut impl BufMut, id: Option<&ViewId>) {
    put_bool(out, id.is_some());
    if let Some(id) = id {
        put_view_id(out, id);
    }
}

pub(super) fn read_view_id_option(reader: &mut Reader<'_>) -> Result<Option<ViewId>> {
    if reader.bool("view id presence")? { read_view_id(reader).map(Some) } else { Ok(None) }
}

pub(super) fn put_view(out: &mut impl BufMut, view: &View) {
    put_view_id(out, view.id());
    put_addresses(out, Some(view.members()));
    let Some(subgroups) = view.subgroups() else { return };
    out.put_i16(subgroups.len() as i16);
    for subgroup in subgroups {
        put_member(out, view, &subgroup.id().creator);
        out.put_u64(subgroup.id().id);
        out.put_i16(subgroup.len() as i16);
        subgroup.members().iter().for_each(|member| put_member(out, view, member));
    }
}

fn put_member(out: &mut impl BufMut, view: &View, member: &Address) {
    match view.rank(member) {
        Some(rank) => out.put_i16(rank as i16),
        None => {
            out.put_i16(-1);
            put_address(out, Some(member));
        }
    }
}

pub(super) fn read_view(reader: &mut Reader<'_>, is_merge: bool) -> Result<View> {
    let id = read_view_id(reader)?;
    let members: Arc<[Address]> = read_addresses(reader)?.unwrap_or_default().into();
    if !is_merge {
        return Ok(View::new(id, members));
    }
    let member = |reader: &mut Reader<'_>| -> Result<Address> {
        match reader.i16("member index")? {
            -1 => read_present(reader, "member of a subgroup"),
            index => usize::try_from(index)
                .ok()
                .and_then(|index| members.get(index).cloned())
                .ok_or(WireError::BadValue { what: "member index", value: index.into() }),
        }
    };
    let count = reader.u16("number of subgroups")?;
    reader.need("subgroups", usize::from(count) * 12)?;
    let mut subgroups = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let creator = member(reader)?;
        let number = reader.u64("view id")?;
        let size = reader.u16("number of members")?;
        reader.need("members of a subgroup", usize::from(size) * 2)?;
        let own: Vec<Address> = (0..size).map(|_| member(reader)).collect::<Result<_>>()?;
        subgroups.push(View::new(ViewId { creator, id: number }, own));
    }
    Ok(View::merged(id, members.clone(), subgroups))
}

fn put_delta_view(out: &mut impl BufMut, delta: &DeltaView) {
    put_view_id(out, &delta.id);
    put_view_id(out, &delta.reference);
    put_addresses(out, Some(&delta.left));
    put_addresses(out, Some(&delta.joined));
}

fn read_delta_view(reader: &mut Reader<'_>) -> Result<DeltaView> {
    let id = read_view_id(reader)?;
    let reference = read_view_id(reader)?;
    let left = read_addresses(reader)?.unwrap_or_default();
    Ok(DeltaView { id, reference, left, joined: read_addresses(reader)?.unwrap_or_default() })
}

fn put_rows(out: &mut impl BufMut, digest: &Digest) {
    for entry in &digest.entries {
        put_long_sequence(out, entry.highest_delivered, entry.highest_received);
    }
}

pub(super) fn put_digest(out: &mut impl BufMut, digest: &Digest) {
    out.put_i16(digest.entries.len() as i16);
    digest.entries.iter().for_each(|entry| put_address(out, Some(&entry.member)));
    put_rows(out, digest);
}

fn read_rows(reader: &mut Reader<'_>, members: impl IntoIterator<Item = Address>) -> Result<Digest> {
    let entries = members
        .into_iter()
        .map(|member| {
            let (highest_delivered, highest_received) = reader.long_sequence("digest row")?;
            Ok(DigestEntry { member, highest_delivered, highest_received })
        })
        .collect::<Result<_>>()?;
    Ok(Digest { entries })
}

pub(super) fn read_digest(reader: &mut Reader<'_>) -> Result<Digest> {
    let members = read_addresses(reader)?.unwrap_or_default();
    read_rows(reader, members)
}

fn put_digest_without_members(out: &mut impl BufMut, digest: &Digest) {
    out.put_i16(digest.entries.len() as i16);
    put_rows(out, digest);
}

fn read_digest_of(reader: &mut Reader<'_>, members: &[Address]) -> Result<Digest> {
    let count = reader.i16("number of digest rows")?;
    if usize::try_from(count).ok() != Some(members.len()) {
        return Err(WireError::BadValue { what: "number of digest rows", value: count.into() });
    }
    read_rows(reader, members.iter().cloned())
}

pub(super) fn put_seqno_list(out: &mut impl BufMut, list: &SeqnoList) {
    out.put_u32(list.size);
    out.put_u64(list.offset);
    list.words.iter().for_each(|word| out.put_u64(*word));
}

pub(super) fn read_seqno_list(reader: &mut Reader<'_>) -> Result<SeqnoList> {
    let size = reader.i32("size of a seqno list")?;
    let size = u32::try_from(size)
        .ok()
        .filter(|&size| size <= SEQNO_LIST_MAX)
        .ok_or(WireError::BadValue { what: "size of a seqno list", value: size.into() })?;
    let offset = reader.u64("offset of a seqno list")?;
    let count = size.div_ceil(64) as usize;
    reader.need("words of a seqno list", count * 8)?;
    let words = (0..count).map(|_| reader.u64("word of a seqno list")).collect::<Result<_>>()?;
    Ok(SeqnoList { size, offset, words })
}

/// An encoding of a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ViewForm {
    /// The whole view, with subgroups.
    Full(View),
    /// The difference.
    Delta(DeltaView),
}

const VIEW: u16 = 1;
const DIGEST: u16 = 2;
const MERGE_VIEW: u16 = 4;
const DELTA_VIEW: u16 = 8;
const READ_ADDRS: u16 = 16;

/// Encodes GMS' view and digest.
pub fn encode_view_and_digest(view: Option<&ViewForm>, digest: Option<&Digest>) -> Bytes {
    let mut out = BytesMut::new();
    let members_match = match (view, digest) {
        (Some(ViewForm::Full(view)), Some(digest)) => digest.has_members(view.members()),
        _ => false,
    };
    let view_flags = match view {
        None => 0,
        Some(ViewForm::Full(view)) if view.is_merge() => VIEW | MERGE_VIEW,
        Some(ViewForm::Full(_)) => VIEW,
        Some(ViewForm::Delta(_)) => VIEW | DELTA_VIEW,
    };
    out.put_u16(
        view_flags | if digest.is_some() { DIGEST } else { 0 } | if members_match { 0 } else { READ_ADDRS },
    );
    match view {
        Some(ViewForm::Full(view)) => put_view(&mut out, view),
        Some(ViewForm::Delta(delta)) => put_delta_view(&mut out, delta),
        None => {}
    }
    match digest {
        Some(digest) if members_match => put_digest_without_members(&mut out, digest),
        Some(digest) => put_digest(&mut out, digest),
        None => {}
    }
    out.freeze()
}

/// Decodes [`encode_view_and_digest`]'s output; fails on invalid bytes.
pub fn decode_view_and_digest(bytes: &Bytes) -> Result<(Option<ViewForm>, Option<Digest>)> {
    let mut reader = Reader::new(bytes);
    let flags = reader.u16("view and digest flags")?;
    let view = if flags & VIEW == 0 {
        None
    } else if flags & DELTA_VIEW != 0 {
        Some(ViewForm::Delta(read_delta_view(&mut reader)?))
    } else {
        Some(ViewForm::Full(read_view(&mut reader, flags & MERGE_VIEW != 0)?))
    };
    let digest = if flags & DIGEST == 0 {
        None
    } else if flags & READ_ADDRS != 0 {
        Some(read_digest(&mut reader)?)
    } else {
        let members = match &view {
            Some(ViewForm::Full(view)) => view.members(),
            _ => &[],
        };
        Some(read_digest_of(&mut reader, members)?)
    };
    Ok((view, digest))
}

/// A coordinator's response to a joiner.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JoinRsp {
    /// The view with the joiner.
    pub view: Option<View>,
    /// The members' seqnos.
    pub digest: Option<Digest>,
    /// Why it is refused.
    pub fail_reason: Option<String>,
}

/// Encodes JOIN_RSP: presence byte and body. A merge view becomes a plain one, because members before 5.5.7 cannot read its form.
pub fn encode_join_rsp(rsp: &JoinRsp) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(1);
    put_join_rsp(&mut out, &JoinRsp { view: rsp.view.as_ref().map(View::without_subgroups), ..rsp.clone() });
    out.freeze()
}

/// A merge view has its own form (flag 8).
pub(super) fn put_join_rsp(out: &mut impl BufMut, rsp: &JoinRsp) {
    let view_flag = rsp.view.as_ref().map_or(0, |view| if view.is_merge() { 8 } else { 1 });
    let digest_flag = if rsp.digest.is_some() { 2 } else { 0 };
    out.put_u8(view_flag | digest_flag | if rsp.fail_reason.is_some() { 4 } else { 0 });
    if let Some(view) = &rsp.view {
        put_view(out, view);
    }
    if let Some(digest) = &rsp.digest {
        put_digest_without_members(out, digest);
    }
    if let Some(reason) = &rsp.fail_reason {
        put_utf(out, reason);
    }
}

pub(super) fn read_join_rsp(reader: &mut Reader<'_>) -> Result<JoinRsp> {
    let flags = reader.u8("join response flags")?;
    let view = if flags & (1 | 8) != 0 { Some(read_view(reader, flags & 8 != 0)?) } else { None };
    let digest = if flags & 2 != 0 {
        Some(read_digest_of(reader, view.as_ref().map_or(&[], View::members))?)
    } else {
        None
    };
    let fail_reason = if flags & 4 != 0 { Some(reader.utf("fail reason")?) } else { None };
    Ok(JoinRsp { view, digest, fail_reason })
}

/// Decodes [`encode_join_rsp`]'s output; fails on invalid bytes.
pub fn decode_join_rsp(bytes: &Bytes) -> Result<JoinRsp> {
    let mut reader = Reader::new(bytes);
    if !reader.bool("join response presence")? {
        return Ok(JoinRsp::default());
    }
    read_join_rsp(&mut reader)
}

/// Encodes MERGE_REQ.
pub fn encode_address_list(addresses: &[Address]) -> Bytes {
    let mut out = BytesMut::new();
    put_addresses(&mut out, Some(addresses));
    out.freeze()
}

/// Decodes [`encode_address_list`]'s output; fails on invalid bytes.
pub fn decode_address_list(bytes: &Bytes) -> Result<Vec<Address>> {
    Ok(read_addresses(&mut Reader::new(bytes))?.unwrap_or_default())
}

/// Encodes GET_CURRENT_VIEW.
pub fn encode_view_id_option(id: Option<&ViewId>) -> Bytes {
    let mut out = BytesMut::new();
    put_view_id_option(&mut out, id);
    out.freeze()
}

/// Decodes [`encode_view_id_option`]'s output; fails on invalid bytes.
pub fn decode_view_id_option(bytes: &Bytes) -> Result<Option<ViewId>> {
    read_view_id_option(&mut Reader::new(bytes))
}

/// Encodes MERGE3's VIEW_RSP: presence byte and view.
pub fn encode_view_option(view: Option<&View>) -> Bytes {
    let mut out = BytesMut::new();
    put_bool(&mut out, view.is_some());
    if let Some(view) = view {
        put_view(&mut out, view);
    }
    out.freeze()
}

/// Decodes [`encode_view_option`]'s output without subgroups, as JGroups; fails on invalid bytes.
pub fn decode_view_option(bytes: &Bytes) -> Result<Option<View>> {
    let mut reader = Reader::new(bytes);
    if reader.bool("view presence")? { read_view(&mut reader, false).map(Some) } else { Ok(None) }
}

/// Members in a discovery message; a whole cache carries one per member.
pub const PING_DATA_MAX: usize = 10_000;

/// Encodes discovery's payload.
pub fn encode_ping_data(list: &[PingData]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i32(list.len() as i32);
    list.iter().for_each(|data| put_ping_data(&mut out, data));
    out.freeze()
}

pub(super) fn put_ping_data(out: &mut impl BufMut, data: &PingData) {
    put_address(out, Some(&data.sender));
    out.put_u8(u8::from(data.is_server || data.is_coordinator) | u8::from(data.is_coordinator) << 1);
    put_string(out, data.name.as_deref());
    put_phys(out, data.phys);
    put_addresses(out, data.wanted.as_deref());
}

/// Decodes [`encode_ping_data`]'s output; fails on invalid bytes.
pub fn decode_ping_data(bytes: &Bytes) -> Result<Vec<PingData>> {
    let mut reader = Reader::new(bytes);
    let count = reader.count("number of members", 6)?;
    if count > PING_DATA_MAX {
        return Err(WireError::BadValue { what: "number of members", value: count as i64 });
    }
    (0..count).map(|_| read_ping_data(&mut reader)).collect()
}

pub(super) fn read_ping_data(reader: &mut Reader<'_>) -> Result<PingData> {
    let sender = read_address(reader)?.ok_or(WireError::BadValue { what: "discovered member", value: 0 })?;
    let flags = reader.u8("discovery flags")?;
    let name = reader.string("logical name")?.map(Arc::from);
    let phys = read_phys(reader)?;
    let wanted = read_addresses(reader)?;
    // A coordinator is a server, even if the peer's flags omit it.
    Ok(PingData { sender, is_server: flags & 3 != 0, is_coordinator: flags & 2 != 0, name, phys, wanted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Uuid;

    #[test]
    fn a_coordinator_is_decoded_as_a_server() {
        let member = Address::Uuid(Uuid { most: 1, least: 2 });
        let data = |is_server, is_coordinator| PingData {
            sender: member.clone(),
            is_server,
            is_coordinator,
            name: None,
            phys: None,
            wanted: None,
        };
        let mut bytes = encode_ping_data(&[data(true, true)]).to_vec();
        let flags = bytes.iter().rposition(|&byte| byte == 3).unwrap();
        bytes[flags] = 2;
        assert_eq!(decode_ping_data(&bytes.into()), Ok(vec![data(true, true)]));
    }
}
