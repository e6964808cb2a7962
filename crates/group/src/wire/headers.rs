//! Headers on the wire: protocol id, magic id, body.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};

use super::addresses::{
    put_address, put_addresses, put_ip, put_phys, read_address, read_addresses, read_ip, read_phys,
    read_present,
};
use super::frequent_headers::{put_nakack, put_rpc, put_unicast, read_nakack, read_rpc, read_unicast};
use super::primitives::{
    Reader, Result, WireError, put_ascii, put_bool, put_byte_buffer, put_compressed_int, put_compressed_long,
    put_string, put_utf,
};
use super::views::{put_digest, put_view_id_option, read_digest, read_view_id_option};
use crate::*;

/// Returns the magic id of a header's class.
pub fn magic_of_header(header: &Header) -> MagicId {
    match &header.body {
        HeaderBody::Tp(_) => MagicId::TP,
        HeaderBody::Ping(_) => MagicId::PING,
        HeaderBody::Merge3(_) => MagicId::MERGE3,
        HeaderBody::FdSock2(_) => MagicId::FD_SOCK2,
        HeaderBody::Heartbeat => MagicId::HEARTBEAT,
        HeaderBody::VerifySuspect(_) if header.id == ProtocolId::VERIFY_SUSPECT => MagicId::VERIFY_SUSPECT,
        HeaderBody::VerifySuspect(_) => MagicId::VERIFY_SUSPECT2,
        HeaderBody::NakAck2(_) => MagicId::NAKACK2,
        HeaderBody::NakAck4(_) => MagicId::NAKACK4,
        HeaderBody::Unicast3(_) => MagicId::UNICAST3,
        HeaderBody::Unicast4(_) => MagicId::UNICAST4,
        HeaderBody::Stable(_) => MagicId::STABLE,
        HeaderBody::Gms(_) => MagicId::GMS,
        HeaderBody::Fc(_) => MagicId::FC,
        HeaderBody::Frag(_) => MagicId::FRAG,
        HeaderBody::Frag3(_) => MagicId::FRAG3,
        HeaderBody::Rsvp(_) => MagicId::RSVP,
        HeaderBody::Sequencer(_) => MagicId::SEQUENCER,
        HeaderBody::StateTransfer(_) => MagicId::STATE_TRANSFER,
        HeaderBody::State(_) => MagicId::STATE,
        HeaderBody::Compress(_) => MagicId::COMPRESS,
        HeaderBody::Encrypt(_) => MagicId::ENCRYPT,
        HeaderBody::Auth(_) => MagicId::AUTH,
        HeaderBody::Rpc(_) => MagicId::RPC,
        HeaderBody::RpcMulti(_) => MagicId::RPC_MULTI_DESTINATION,
        HeaderBody::Daisy(_) => MagicId::DAISY,
        HeaderBody::Counter => MagicId::COUNTER,
        HeaderBody::Relay(_) => MagicId::RELAY,
        HeaderBody::Fork(_) => MagicId::FORK,
        HeaderBody::Perf(_) => MagicId::PERF,
        HeaderBody::Dh(_) => MagicId::DH,
        HeaderBody::Batch2 => MagicId::BATCH2,
        HeaderBody::Info(_) => MagicId::INFO,
    }
}

#[inline]
pub(super) fn put_header(out: &mut impl BufMut, header: &Header) {
    out.put_i16(header.id.0);
    out.put_i16(magic_of_header(header).0);
    match &header.body {
        HeaderBody::Unicast3(unicast) | HeaderBody::Unicast4(unicast) => put_unicast(out, unicast),
        HeaderBody::NakAck2(nakack) | HeaderBody::NakAck4(nakack) => put_nakack(out, nakack),
        HeaderBody::Rpc(rpc) => put_rpc(out, rpc),
        HeaderBody::Heartbeat | HeaderBody::Counter | HeaderBody::Batch2 => {}
        HeaderBody::Fc(fc) => out.put_u8(*fc as u8),
        HeaderBody::Frag(frag) => put_frag(out, frag),
        HeaderBody::Tp(tp) => put_tp(out, tp),
        HeaderBody::Ping(ping) => {
            out.put_u8(ping.kind as u8);
            put_string(out, ping.cluster.as_deref());
            put_bool(out, ping.initial_discovery);
        }
        HeaderBody::Merge3(merge) => {
            out.put_u8(merge.kind as u8);
            put_view_id_option(out, merge.view_id.as_ref());
            put_string(out, merge.name.as_deref());
            put_phys(out, merge.phys);
        }
        HeaderBody::FdSock2(fd) => put_fd_sock(out, fd),
        HeaderBody::VerifySuspect(verify) => {
            out.put_i16(if verify.is_answer { 2 } else { 1 });
            put_address(out, verify.from.as_ref());
        }
        HeaderBody::Stable(stable) => {
            out.put_u8(if stable.is_stability { 2 } else { 1 });
            put_view_id_option(out, stable.view_id.as_ref());
        }
        HeaderBody::Gms(gms) => {
            out.put_u8(gms.kind as u8);
            out.put_u16((u16::from(gms.merge_id.is_some()) * 4) | (u16::from(gms.merge_rejected) * 16));
            put_address(out, gms.member.as_ref());
            if let Some(merge_id) = &gms.merge_id {
                put_address(out, Some(&merge_id.initiator));
                out.put_i32(merge_id.id);
            }
        }
        HeaderBody::Frag3(frag) => {
            for number in [frag.id, frag.frag_id, frag.num_frags, frag.original_length, frag.offset] {
                put_compressed_int(out, number as i32);
            }
            put_bool(out, frag.needs_deserialization);
        }
        HeaderBody::Rsvp(rsvp) => {
            out.put_u8(rsvp.kind as u8);
            out.put_i16(rsvp.id);
        }
        HeaderBody::Sequencer(sequencer) => {
            out.put_u8(sequencer.kind as u8);
            put_compressed_long(out, sequencer.seqno as i64);
            put_bool(out, sequencer.flush_ack);
        }
        HeaderBody::StateTransfer(state) => {
            let (kind, digest) = match &**state {
                StateTransferHeader::Request => (1, None),
                StateTransferHeader::Response(digest) => (2, digest.as_ref()),
                StateTransferHeader::Exception => (3, None),
            };
            out.put_u8(kind);
            put_digest_option(out, digest);
        }
        HeaderBody::State(state) => {
            out.put_u8(state.kind);
            put_digest_option(out, state.digest.as_ref());
            put_bool(out, state.bind_addr.is_some());
            if let Some(bind_addr) = state.bind_addr {
                put_ip(out, bind_addr);
            }
        }
        HeaderBody::Compress(compress) => {
            out.put_i32(compress.original_size);
            put_bool(out, compress.needs_deserialization);
        }
        HeaderBody::Encrypt(encrypt) => {
            out.put_u8(encrypt.kind);
            put_bool(out, encrypt.needs_deserialization);
            put_byte_buffer(out, encrypt.version.as_ref());
            put_address(out, encrypt.server.as_ref());
            put_byte_buffer(out, encrypt.iv.as_ref());
        }
        HeaderBody::Auth(auth) => put_auth(out, auth),
        HeaderBody::RpcMulti(multi) => {
            put_rpc(out, &multi.rpc);
            put_addresses(out, multi.exclusion.as_deref());
        }
        HeaderBody::Daisy(address) => put_address(out, Some(address)),
        HeaderBody::Relay(relay) => put_relay(out, relay),
        HeaderBody::Fork(fork) => {
            put_string(out, fork.stack.as_deref());
            put_string(out, fork.channel.as_deref());
        }
        HeaderBody::Perf(start) => out.put_i64(*start),
        HeaderBody::Dh(dh) => {
            out.put_u8(u8::from(dh.secret.is_some()));
            let parts =
                [Some(&dh.dh_key), dh.secret.as_ref().map(|s| &s.0), dh.secret.as_ref().map(|s| &s.1)];
            for part in parts.into_iter().flatten() {
                out.put_i32(part.len() as i32);
                out.put_slice(part);
            }
        }
        HeaderBody::Info(pairs) => {
            out.put_i32(pairs.len() as i32);
            for (key, value) in pairs.iter() {
                put_string(out, key.as_deref());
                put_string(out, value.as_deref());
            }
        }
    }
}

fn put_frag(out: &mut impl BufMut, frag: &FragHeader) {
    put_compressed_long(out, frag.id as i64);
    put_compressed_int(out, frag.frag_id as i32);
    put_compressed_int(out, frag.num_frags as i32);
    put_bool(out, frag.needs_deserialization);
    out.put_i16(frag.original_type);
}

fn put_tp(out: &mut impl BufMut, tp: &TpHeader) {
    put_ascii(out, tp.cluster.as_deref());
    match tp.rtt {
        None => out.put_u8(0),
        Some(rtt) => {
            out.put_u8(if rtt.is_response { 2 } else { 1 });
            out.put_i32(rtt.index);
        }
    }
}

fn read_tp(reader: &mut Reader<'_>) -> Result<TpHeader> {
    let cluster = reader.ascii("cluster name")?.map(|name| ascii_text(&name));
    let rtt = match reader.u8("transport header flag")? {
        0 => None,
        flag @ (1 | 2) => Some(RttProbe { is_response: flag == 2, index: reader.i32("rtt index")? }),
        flag => return Err(bad("transport header flag", flag)),
    };
    Ok(TpHeader { cluster, rtt })
}

/// Reads a text that was written as one byte per character.
pub(super) fn ascii_text(bytes: &[u8]) -> Arc<str> {
    bytes.iter().map(|&b| char::from(b)).collect::<String>().into()
}

fn put_fd_sock(out: &mut impl BufMut, fd: &FdSock2Header) {
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

fn read_fd_sock(reader: &mut Reader<'_>) -> Result<FdSock2Header> {
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

fn put_digest_option(out: &mut impl BufMut, digest: Option<&Digest>) {
    put_bool(out, digest.is_some());
    if let Some(digest) = digest {
        put_digest(out, digest);
    }
}

fn read_digest_option(reader: &mut Reader<'_>) -> Result<Option<Digest>> {
    if reader.bool("digest presence")? { read_digest(reader).map(Some) } else { Ok(None) }
}

fn put_auth(out: &mut impl BufMut, auth: &AuthHeader) {
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

fn read_auth(reader: &mut Reader<'_>) -> Result<AuthHeader> {
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

fn put_relay(out: &mut impl BufMut, relay: &RelayHeader) {
    out.put_u8(relay.kind);
    put_bool(out, relay.return_entire_cache);
    put_address(out, relay.final_dest.as_ref());
    put_address(out, relay.original_sender.as_ref());
    for sites in [&relay.sites, &relay.visited] {
        out.put_i32(sites.len() as i32);
        sites.iter().for_each(|site| put_string(out, site.as_deref()));
    }
    out.put_i16(relay.original_headers.len() as i16);
    relay.original_headers.iter().for_each(|header| put_header(out, header));
    out.put_i16(relay.original_flags);
}

fn read_relay(reader: &mut Reader<'_>) -> Result<RelayHeader> {
    let kind = reader.u8("relay header type")?;
    let return_entire_cache = reader.bool("return entire cache")?;
    let final_dest = read_address(reader)?;
    let original_sender = read_address(reader)?;
    let mut sites = || -> Result<Vec<Option<String>>> {
        let count = reader.count("number of sites", 1)?;
        (0..count).map(|_| reader.string("site")).collect()
    };
    let (sites, visited) = (sites()?, sites()?);
    let count = reader.u16("number of headers")?;
    reader.need("headers", usize::from(count) * 4)?;
    reader.depth += 1;
    if reader.depth > super::primitives::NESTING_MAX {
        return Err(WireError::TooDeep);
    }
    let original_headers = (0..count).map(|_| read_header(reader)).collect::<Result<_>>()?;
    reader.depth -= 1;
    let original_flags = reader.i16("original flags")?;
    Ok(RelayHeader {
        kind,
        return_entire_cache,
        final_dest,
        original_sender,
        sites,
        visited,
        original_headers,
        original_flags,
    })
}

pub(super) fn bad(what: &'static str, value: u8) -> WireError {
    WireError::BadValue { what, value: value.into() }
}

#[inline]
pub(super) fn read_header(reader: &mut Reader<'_>) -> Result<Header> {
    let id = ProtocolId(reader.i16("protocol id")?);
    let magic = MagicId(reader.i16("magic id")?);
    let body = match magic {
        MagicId::UNICAST3 => HeaderBody::Unicast3(read_unicast(reader)?),
        MagicId::UNICAST4 => HeaderBody::Unicast4(read_unicast(reader)?),
        MagicId::NAKACK2 => HeaderBody::NakAck2(read_nakack(reader)?),
        MagicId::NAKACK4 => HeaderBody::NakAck4(read_nakack(reader)?),
        MagicId::RPC => HeaderBody::Rpc(read_rpc(reader)?),
        _ => read_rare(reader, id, magic)?,
    };
    Ok(Header { id, body })
}

fn read_rare(reader: &mut Reader<'_>, id: ProtocolId, magic: MagicId) -> Result<HeaderBody> {
    let body = match magic {
        MagicId::TP => HeaderBody::Tp(Box::new(read_tp(reader)?)),
        MagicId::FC => HeaderBody::Fc(match reader.u8("flow control type")? {
            1 => FcHeader::Replenish,
            2 => FcHeader::CreditRequest,
            kind => return Err(bad("flow control type", kind)),
        }),
        MagicId::FRAG => HeaderBody::Frag(Box::new(FragHeader {
            id: reader.seqno("fragment id")?,
            frag_id: reader.compressed_int("fragment number")? as u32,
            num_frags: reader.compressed_int("number of fragments")? as u32,
            needs_deserialization: reader.bool("needs deserialization")?,
            original_type: reader.i16("original type")?,
        })),
        MagicId::HEARTBEAT => HeaderBody::Heartbeat,
        MagicId::COUNTER => HeaderBody::Counter,
        MagicId::BATCH2 => HeaderBody::Batch2,
        MagicId::PING => {
            let kind = match reader.u8("discovery type")? {
                1 => PingKind::Request,
                2 => PingKind::Response,
                kind => return Err(bad("discovery type", kind)),
            };
            let cluster = reader.string("cluster name")?.map(Arc::from);
            let initial_discovery = reader.bool("initial discovery")?;
            HeaderBody::Ping(Box::new(PingHeader { kind, cluster, initial_discovery }))
        }
        MagicId::MERGE3 => {
            let kind = match reader.u8("MERGE3 type")? {
                0 => Merge3Kind::Info,
                1 => Merge3Kind::ViewRequest,
                2 => Merge3Kind::ViewResponse,
                kind => return Err(bad("MERGE3 type", kind)),
            };
            let view_id = read_view_id_option(reader)?;
            let name = reader.string("logical name")?;
            HeaderBody::Merge3(Box::new(Merge3Header { kind, view_id, name, phys: read_phys(reader)? }))
        }
        MagicId::FD_SOCK2 => HeaderBody::FdSock2(Box::new(read_fd_sock(reader)?)),
        MagicId::VERIFY_SUSPECT | MagicId::VERIFY_SUSPECT2 => {
            let is_answer = match reader.i16("verify type")? {
                1 => false,
                2 => true,
                kind => return Err(WireError::BadValue { what: "verify type", value: kind.into() }),
            };
            HeaderBody::VerifySuspect(Box::new(VerifySuspectHeader {
                is_answer,
                from: read_address(reader)?,
            }))
        }
        MagicId::STABLE => {
            let is_stability = match reader.u8("STABLE type")? {
                1 => false,
                2 => true,
                kind => return Err(bad("STABLE type", kind)),
            };
            HeaderBody::Stable(Box::new(StableHeader { is_stability, view_id: read_view_id_option(reader)? }))
        }
        MagicId::GMS => HeaderBody::Gms(Box::new(read_gms(reader)?)),
        MagicId::FRAG3 => {
            let mut number = |what| Ok::<u32, WireError>(reader.compressed_int(what)? as u32);
            let (id, frag_id) = (number("fragment id")?, number("fragment number")?);
            let (num_frags, original_length) = (number("number of fragments")?, number("original length")?);
            let offset = number("offset")?;
            let needs_deserialization = reader.bool("needs deserialization")?;
            let frag = Frag3Header { id, frag_id, num_frags, original_length, offset, needs_deserialization };
            HeaderBody::Frag3(Box::new(frag))
        }
        MagicId::RSVP => {
            let kind = match reader.u8("RSVP type")? {
                1 => RsvpKind::Request,
                2 => RsvpKind::RequestOnly,
                3 => RsvpKind::Response,
                kind => return Err(bad("RSVP type", kind)),
            };
            HeaderBody::Rsvp(RsvpHeader { kind, id: reader.i16("RSVP id")? })
        }
        MagicId::SEQUENCER => {
            let kind = match reader.u8("SEQUENCER type")? {
                1 => SequencerKind::Forward,
                2 => SequencerKind::Flush,
                3 => SequencerKind::Bcast,
                4 => SequencerKind::WrappedBcast,
                kind => return Err(bad("SEQUENCER type", kind)),
            };
            let seqno = reader.seqno("SEQUENCER seqno")?;
            HeaderBody::Sequencer(SequencerHeader { kind, seqno, flush_ack: reader.bool("flush ack")? })
        }
        MagicId::STATE_TRANSFER => {
            let kind = reader.u8("STATE_TRANSFER type")?;
            let digest = read_digest_option(reader)?;
            HeaderBody::StateTransfer(Box::new(match kind {
                1 => StateTransferHeader::Request,
                2 => StateTransferHeader::Response(digest),
                3 => StateTransferHeader::Exception,
                _ => return Err(bad("STATE_TRANSFER type", kind)),
            }))
        }
        MagicId::STATE => {
            let kind = reader.u8("STATE type")?;
            let digest = read_digest_option(reader)?;
            let has_addr = reader.bool("bind_addr presence")?;
            let bind_addr = if has_addr { Some(read_ip(reader)?) } else { None };
            HeaderBody::State(Box::new(StateHeader { kind, digest, bind_addr }))
        }
        MagicId::COMPRESS => HeaderBody::Compress(CompressHeader {
            original_size: reader.i32("original size")?,
            needs_deserialization: reader.bool("needs deserialization")?,
        }),
        MagicId::ENCRYPT => {
            let kind = reader.u8("encryption type")?;
            let needs_deserialization = reader.bool("needs deserialization")?;
            let version = reader.byte_buffer("key version")?;
            let server = read_address(reader)?;
            let iv = reader.byte_buffer("initialization vector")?;
            HeaderBody::Encrypt(Box::new(EncryptHeader { kind, needs_deserialization, version, server, iv }))
        }
        MagicId::AUTH => HeaderBody::Auth(Box::new(read_auth(reader)?)),
        MagicId::RPC_MULTI_DESTINATION => {
            let rpc = read_rpc(reader)?;
            HeaderBody::RpcMulti(Box::new(RpcMultiHeader { rpc, exclusion: read_addresses(reader)? }))
        }
        MagicId::DAISY => HeaderBody::Daisy(Box::new(read_present(reader, "original sender")?)),
        MagicId::RELAY => HeaderBody::Relay(Box::new(read_relay(reader)?)),
        MagicId::FORK => {
            let stack = reader.string("fork stack")?;
            HeaderBody::Fork(Box::new(ForkHeader { stack, channel: reader.string("fork channel")? }))
        }
        MagicId::PERF => HeaderBody::Perf(reader.u64("start time")? as i64),
        MagicId::DH => {
            let kind = reader.u8("key exchange type")?;
            let mut part = |what| -> Result<bytes::Bytes> {
                let length = reader.length(what)?.unwrap_or(0);
                reader.bytes(what, length)
            };
            let dh_key = part("public key")?;
            let secret = if kind == 1 { Some((part("secret key")?, part("key version")?)) } else { None };
            HeaderBody::Dh(Box::new(DhHeader { dh_key, secret }))
        }
        MagicId::INFO => {
            let count = reader.count("number of pairs", 2)?;
            let pairs: Result<Vec<_>> =
                (0..count).map(|_| Ok((reader.string("key")?, reader.string("value")?))).collect();
            HeaderBody::Info(Box::new(pairs?))
        }
        MagicId(magic) => return Err(WireError::UnknownHeader { protocol: id.0, magic }),
    };
    Ok(body)
}

fn read_gms(reader: &mut Reader<'_>) -> Result<GmsHeader> {
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

/// Returns the encoded size of a header with its ids. The frequent ones are not encoded for it.
#[inline]
pub(super) fn header_size(header: &Header) -> usize {
    let number = |value: u64| super::primitives::compressed_long_length(value as i64);
    4 + match &header.body {
        HeaderBody::Unicast3(UnicastHeader::Data { seqno, .. })
        | HeaderBody::Unicast4(UnicastHeader::Data { seqno, .. }) => 4 + number(*seqno),
        HeaderBody::NakAck2(NakAckHeader::Msg { seqno })
        | HeaderBody::NakAck4(NakAckHeader::Msg { seqno }) => 1 + number(*seqno),
        HeaderBody::Rpc(rpc) => 3 + number(rpc.request_id),
        HeaderBody::Heartbeat | HeaderBody::Counter | HeaderBody::Batch2 => 0,
        HeaderBody::Fc(_) => 1,
        HeaderBody::Perf(_) => 8,
        _ => {
            let mut out = BytesMut::new();
            put_header(&mut out, header);
            out.len() - 4
        }
    }
}
