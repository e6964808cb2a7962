//! The bodies of other headers, for membership changes and background work.

use std::sync::Arc;

use bytes::{BufMut, Bytes};

use super::addresses::{put_address, put_ip, put_phys, read_address, read_ip, read_phys, read_present};
use super::primitives::{
    Reader, Result, WireError, ascii_text, bad, put_ascii, put_bool, put_byte_buffer, put_compressed_int,
    put_compressed_long, put_string, put_utf,
};
use super::views::{put_digest, put_view_id_option, read_digest, read_view_id_option};
use crate::{
    Address, AuthHeader, CompressHeader, DhHeader, Digest, EncryptHeader, FcHeader, FdSock2Header,
    Frag3Header, FragHeader, GmsHeader, GmsKind, MagicId, Merge3Header, Merge3Kind, MergeId, PingHeader,
    PingKind, RsvpHeader, RsvpKind, RttProbe, SequencerHeader, SequencerKind, StableHeader, StateHeader,
    StateTransferHeader, TpHeader, VerifySuspectHeader,
};

pub(super) fn put_tp(out: &mut impl BufMut, tp: &TpHeader) {
    put_ascii(out, tp.cluster.as_deref());
    match tp.rtt {
        None => out.put_u8(0),
        Some(rtt) => {
            out.put_u8(if rtt.is_response { 2 } else { 1 });
            out.put_i32(rtt.index);
        }
    }
}

pub(super) fn read_tp(reader: &mut Reader<'_>) -> Result<TpHeader> {
    let cluster = reader.ascii("cluster name")?.map(|name| ascii_text(&name));
    let rtt = match reader.u8("transport header flag")? {
        0 => None,
        flag @ (1 | 2) => Some(RttProbe { is_response: flag == 2, index: reader.i32("rtt index")? }),
        flag => return Err(bad("transport header flag", flag)),
    };
    Ok(TpHeader { cluster, rtt })
}

#[inline]
pub(super) fn read_fc(reader: &mut Reader<'_>) -> Result<FcHeader> {
    Ok(match reader.u8("flow control type")? {
        1 => FcHeader::Replenish,
        2 => FcHeader::CreditRequest,
        kind => return Err(bad("flow control type", kind)),
    })
}

pub(super) fn put_frag(out: &mut impl BufMut, frag: &FragHeader) {
    put_compressed_long(out, frag.id as i64);
    put_compressed_int(out, frag.frag_id as i32);
    put_compressed_int(out, frag.num_frags as i32);
    put_bool(out, frag.needs_deserialization);
    out.put_i16(frag.original_type);
}

#[inline]
pub(super) fn read_frag(reader: &mut Reader<'_>) -> Result<FragHeader> {
    Ok(FragHeader {
        id: reader.seqno("fragment id")?,
        frag_id: reader.compressed_int("fragment number")? as u32,
        num_frags: reader.compressed_int("number of fragments")? as u32,
        needs_deserialization: reader.bool("needs deserialization")?,
        original_type: reader.i16("original type")?,
    })
}

pub(super) fn put_frag3(out: &mut impl BufMut, frag: &Frag3Header) {
    for number in [frag.id, frag.frag_id, frag.num_frags, frag.original_length, frag.offset] {
        put_compressed_int(out, number as i32);
    }
    put_bool(out, frag.needs_deserialization);
}

#[inline]
pub(super) fn read_frag3(reader: &mut Reader<'_>) -> Result<Frag3Header> {
    let mut number = |what| Ok::<u32, WireError>(reader.compressed_int(what)? as u32);
    let (id, frag_id) = (number("fragment id")?, number("fragment number")?);
    let (num_frags, original_length) = (number("number of fragments")?, number("original length")?);
    let offset = number("offset")?;
    let needs_deserialization = reader.bool("needs deserialization")?;
    Ok(Frag3Header { id, frag_id, num_frags, original_length, offset, needs_deserialization })
}

#[inline]
pub(super) fn put_rsvp(out: &mut impl BufMut, rsvp: &RsvpHeader) {
    out.put_u8(rsvp.kind as u8);
    out.put_i16(rsvp.id);
}

#[inline]
pub(super) fn read_rsvp(reader: &mut Reader<'_>) -> Result<RsvpHeader> {
    let kind = match reader.u8("RSVP type")? {
        1 => RsvpKind::Request,
        2 => RsvpKind::RequestOnly,
        3 => RsvpKind::Response,
        kind => return Err(bad("RSVP type", kind)),
    };
    Ok(RsvpHeader { kind, id: reader.i16("RSVP id")? })
}

#[inline]
pub(super) fn put_sequencer(out: &mut impl BufMut, sequencer: &SequencerHeader) {
    out.put_u8(sequencer.kind as u8);
    put_compressed_long(out, sequencer.seqno as i64);
    put_bool(out, sequencer.flush_ack);
}

#[inline]
pub(super) fn read_sequencer(reader: &mut Reader<'_>) -> Result<SequencerHeader> {
    let kind = match reader.u8("SEQUENCER type")? {
        1 => SequencerKind::Forward,
        2 => SequencerKind::Flush,
        3 => SequencerKind::Bcast,
        4 => SequencerKind::WrappedBcast,
        kind => return Err(bad("SEQUENCER type", kind)),
    };
    let seqno = reader.seqno("SEQUENCER seqno")?;
    Ok(SequencerHeader { kind, seqno, flush_ack: reader.bool("flush ack")? })
}

pub(super) fn put_ping(out: &mut impl BufMut, ping: &PingHeader) {
    out.put_u8(ping.kind as u8);
    put_string(out, ping.cluster.as_deref());
    put_bool(out, ping.initial_discovery);
}

pub(super) fn read_ping(reader: &mut Reader<'_>) -> Result<PingHeader> {
    let kind = match reader.u8("discovery type")? {
        1 => PingKind::Request,
        2 => PingKind::Response,
        kind => return Err(bad("discovery type", kind)),
    };
    let cluster = reader.string("cluster name")?.map(Arc::from);
    Ok(PingHeader { kind, cluster, initial_discovery: reader.bool("initial discovery")? })
}

pub(super) fn put_merge3(out: &mut impl BufMut, merge: &Merge3Header) {
    out.put_u8(merge.kind as u8);
    put_view_id_option(out, merge.view_id.as_ref());
    put_string(out, merge.name.as_deref());
    put_phys(out, merge.phys);
}

pub(super) fn read_merge3(reader: &mut Reader<'_>) -> Result<Merge3Header> {
    let kind = match reader.u8("MERGE3 type")? {
        0 => Merge3Kind::Info,
        1 => Merge3Kind::ViewRequest,
        2 => Merge3Kind::ViewResponse,
        kind => return Err(bad("MERGE3 type", kind)),
    };
    let view_id = read_view_id_option(reader)?;
    let name = reader.string("logical name")?;
    Ok(Merge3Header { kind, view_id, name, phys: read_phys(reader)? })
}

pub(super) fn put_fd_sock2(out: &mut impl BufMut, fd: &FdSock2Header) {
    let (kind, members, cluster, server): (u8, &[Address], Option<&str>, Option<&Address>) = match fd {
        FdSock2Header::Suspect(members) => (1, members, None, None),
        FdSock2Header::Unsuspect(members) => (2, members, None, None),
        FdSock2Header::Connect(server) => (3, &[], None, Some(server)),
        FdSock2Header::ConnectResponse { cluster, server } => (4, &[], cluster.as_deref(), Some(server)),
    };
    out.put_u8(kind);
    out.put_i32(members.len() as i32);
    members.iter().for_each(|member| put_address(out, Some(member)));
    put_string(out, cluster);
    put_address(out, server);
}

pub(super) fn read_fd_sock2(reader: &mut Reader<'_>) -> Result<FdSock2Header> {
    let kind = reader.u8("FD_SOCK2 header type")?;
    let count = reader.count("number of members", 1)?;
    let members: Vec<Address> = (0..count).map(|_| read_present(reader, "member")).collect::<Result<_>>()?;
    let cluster = reader.string("cluster name")?;
    let server = read_address(reader)?;
    let server = || server.ok_or(WireError::BadValue { what: "FD_SOCK2 server", value: 0 });
    Ok(match kind {
        1 => FdSock2Header::Suspect(members),
        2 => FdSock2Header::Unsuspect(members),
        3 => FdSock2Header::Connect(server()?),
        4 => FdSock2Header::ConnectResponse { cluster, server: server()? },
        _ => return Err(bad("FD_SOCK2 header type", kind)),
    })
}

pub(super) fn put_verify_suspect(out: &mut impl BufMut, verify: &VerifySuspectHeader) {
    out.put_i16(if verify.is_answer { 2 } else { 1 });
    put_address(out, verify.from.as_ref());
}

pub(super) fn read_verify_suspect(reader: &mut Reader<'_>) -> Result<VerifySuspectHeader> {
    let is_answer = match reader.i16("verify type")? {
        1 => false,
        2 => true,
        kind => return Err(WireError::BadValue { what: "verify type", value: kind.into() }),
    };
    Ok(VerifySuspectHeader { is_answer, from: read_address(reader)? })
}

pub(super) fn put_stable(out: &mut impl BufMut, stable: &StableHeader) {
    out.put_u8(if stable.is_stability { 2 } else { 1 });
    put_view_id_option(out, stable.view_id.as_ref());
}

pub(super) fn read_stable(reader: &mut Reader<'_>) -> Result<StableHeader> {
    let is_stability = match reader.u8("STABLE type")? {
        1 => false,
        2 => true,
        kind => return Err(bad("STABLE type", kind)),
    };
    Ok(StableHeader { is_stability, view_id: read_view_id_option(reader)? })
}

pub(super) fn put_gms(out: &mut impl BufMut, gms: &GmsHeader) {
    out.put_u8(gms.kind as u8);
    out.put_u16((u16::from(gms.merge_id.is_some()) * 4) | (u16::from(gms.merge_rejected) * 16));
    put_address(out, gms.member.as_ref());
    if let Some(merge_id) = &gms.merge_id {
        put_address(out, Some(&merge_id.initiator));
        out.put_i32(merge_id.id);
    }
}

pub(super) fn read_gms(reader: &mut Reader<'_>) -> Result<GmsHeader> {
    let kind = match reader.u8("GMS type")? {
        1 => GmsKind::JoinReq,
        2 => GmsKind::JoinRsp,
        3 => GmsKind::LeaveReq,
        4 => GmsKind::LeaveRsp,
        5 => GmsKind::View,
        6 => GmsKind::MergeReq,
        7 => GmsKind::MergeRsp,
        8 => GmsKind::InstallMergeView,
        9 => GmsKind::CancelMerge,
        10 => GmsKind::ViewAck,
        11 => GmsKind::JoinReqWithStateTransfer,
        13 => GmsKind::GetDigestReq,
        14 => GmsKind::GetDigestRsp,
        15 => GmsKind::InstallDigest,
        16 => GmsKind::GetCurrentView,
        kind => return Err(bad("GMS type", kind)),
    };
    let flags = reader.u16("GMS flags")?;
    let member = read_address(reader)?;
    let merge_id = if flags & 4 != 0 {
        let initiator = read_present(reader, "merge initiator")?;
        Some(MergeId { initiator, id: reader.i32("merge id")? })
    } else {
        None
    };
    Ok(GmsHeader { kind, member, merge_id, merge_rejected: flags & 16 != 0 })
}

pub(super) fn put_state_transfer(out: &mut impl BufMut, state: &StateTransferHeader) {
    let (kind, digest) = match state {
        StateTransferHeader::Request => (1, None),
        StateTransferHeader::Response(digest) => (2, digest.as_ref()),
        StateTransferHeader::Exception => (3, None),
    };
    out.put_u8(kind);
    put_digest_option(out, digest);
}

pub(super) fn read_state_transfer(reader: &mut Reader<'_>) -> Result<StateTransferHeader> {
    let kind = reader.u8("STATE_TRANSFER type")?;
    let digest = read_digest_option(reader)?;
    Ok(match kind {
        1 => StateTransferHeader::Request,
        2 => StateTransferHeader::Response(digest),
        3 => StateTransferHeader::Exception,
        _ => return Err(bad("STATE_TRANSFER type", kind)),
    })
}

pub(super) fn put_state(out: &mut impl BufMut, state: &StateHeader) {
    out.put_u8(state.kind);
    put_digest_option(out, state.digest.as_ref());
    put_bool(out, state.bind_addr.is_some());
    if let Some(bind_addr) = state.bind_addr {
        put_ip(out, bind_addr);
    }
}

pub(super) fn read_state(reader: &mut Reader<'_>) -> Result<StateHeader> {
    let kind = reader.u8("STATE type")?;
    let digest = read_digest_option(reader)?;
    let has_addr = reader.bool("bind_addr presence")?;
    let bind_addr = if has_addr { Some(read_ip(reader)?) } else { None };
    Ok(StateHeader { kind, digest, bind_addr })
}

fn put_digest_option(out: &mut impl BufMut, digest: Option<&Digest>) {
    put_bool(out, digest.is_some());
    if let Some(digest) = digest {
        put_digest(out, digest);
    }
}

fn read_digest_option(reader: &mut Reader<'_>) -> Result<Option<Digest>> {
    if reader.bool("digest presence")? { read_digest(reader).map(Some) } else { Ok(None) }
}

pub(super) fn put_compress(out: &mut impl BufMut, compress: &CompressHeader) {
    out.put_i32(compress.original_size);
    put_bool(out, compress.needs_deserialization);
}

pub(super) fn read_compress(reader: &mut Reader<'_>) -> Result<CompressHeader> {
    Ok(CompressHeader {
        original_size: reader.i32("original size")?,
        needs_deserialization: reader.bool("needs deserialization")?,
    })
}

pub(super) fn put_encrypt(out: &mut impl BufMut, encrypt: &EncryptHeader) {
    out.put_u8(encrypt.kind);
    put_bool(out, encrypt.needs_deserialization);
    put_byte_buffer(out, encrypt.version.as_ref());
    put_address(out, encrypt.server.as_ref());
    put_byte_buffer(out, encrypt.iv.as_ref());
}

pub(super) fn read_encrypt(reader: &mut Reader<'_>) -> Result<EncryptHeader> {
    let kind = reader.u8("encryption type")?;
    let needs_deserialization = reader.bool("needs deserialization")?;
    let version = reader.byte_buffer("key version")?;
    let server = read_address(reader)?;
    let iv = reader.byte_buffer("initialization vector")?;
    Ok(EncryptHeader { kind, needs_deserialization, version, server, iv })
}

pub(super) fn put_auth(out: &mut impl BufMut, auth: &AuthHeader) {
    put_bool(out, *auth != AuthHeader::None);
    match auth {
        AuthHeader::None => {}
        AuthHeader::FixedMembership(token) => {
            out.put_i16(MagicId::FIXED_MEMBERSHIP_TOKEN.0);
            put_string(out, token.as_deref());
        }
        AuthHeader::X509(token) => {
            out.put_i16(MagicId::X509_TOKEN.0);
            put_byte_buffer(out, token.as_ref());
        }
        AuthHeader::Class(name) => {
            out.put_i16(-1);
            put_utf(out, name);
        }
    }
}

pub(super) fn read_auth(reader: &mut Reader<'_>) -> Result<AuthHeader> {
    if !reader.bool("token presence")? {
        return Ok(AuthHeader::None);
    }
    Ok(match MagicId(reader.i16("token class")?) {
        MagicId::FIXED_MEMBERSHIP_TOKEN => AuthHeader::FixedMembership(reader.string("token")?),
        MagicId::X509_TOKEN => AuthHeader::X509(reader.byte_buffer("token")?),
        MagicId(-1) => AuthHeader::Class(reader.utf("token class")?),
        MagicId(magic) => return Err(WireError::BadValue { what: "token class", value: magic.into() }),
    })
}

pub(super) fn put_dh(out: &mut impl BufMut, dh: &DhHeader) {
    out.put_u8(u8::from(dh.secret.is_some()));
    let parts = [Some(&dh.dh_key), dh.secret.as_ref().map(|s| &s.0), dh.secret.as_ref().map(|s| &s.1)];
    for part in parts.into_iter().flatten() {
        out.put_i32(part.len() as i32);
        out.put_slice(part);
    }
}

pub(super) fn read_dh(reader: &mut Reader<'_>) -> Result<DhHeader> {
    let kind = reader.u8("key exchange type")?;
    let mut part = |what| -> Result<Bytes> {
        let length = reader.length(what)?.unwrap_or(0);
        reader.bytes(what, length)
    };
    let dh_key = part("public key")?;
    let secret = if kind == 1 { Some((part("secret key")?, part("key version")?)) } else { None };
    Ok(DhHeader { dh_key, secret })
}

type Pairs = Vec<(Option<String>, Option<String>)>;

pub(super) fn put_info(out: &mut impl BufMut, pairs: &Pairs) {
    out.put_i32(pairs.len() as i32);
    for (key, value) in pairs {
        put_string(out, key.as_deref());
        put_string(out, value.as_deref());
    }
}

pub(super) fn read_info(reader: &mut Reader<'_>) -> Result<Pairs> {
    let count = reader.count("number of pairs", 2)?;
    (0..count).map(|_| Ok((reader.string("key")?, reader.string("value")?))).collect()
}
