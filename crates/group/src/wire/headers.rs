//! Headers: protocol id, magic id, body.

use bytes::{BufMut, BytesMut};

use super::addresses::{put_address, put_addresses, read_address, read_addresses, read_present};
use super::fd_sock::{put_fd_sock, read_fd_sock};
use super::frequent_headers::{
    NAKACK_MSG, UNICAST_DATA, ids_and_type, put_nakack, put_rpc, put_unicast, read_nakack, read_nakack_msg,
    read_rpc, read_unicast, read_unicast_data,
};
use super::primitives::{Reader, Result, WireError, put_bool, put_string};
use super::rare_headers::*;
use super::sites::{put_sites, read_sites};
use crate::*;

/// Returns the magic id of a header.
pub fn magic_of_header(header: &Header) -> MagicId {
    match &header.body {
        HeaderBody::Tp(_) => MagicId::TP,
        HeaderBody::Ping(_) => MagicId::PING,
        HeaderBody::Merge3(_) => MagicId::MERGE3,
        HeaderBody::FdSock(_) => MagicId::FD_SOCK,
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
        HeaderBody::Ping(ping) => put_ping(out, ping),
        HeaderBody::Merge3(merge) => put_merge3(out, merge),
        HeaderBody::FdSock(fd) => put_fd_sock(out, fd),
        HeaderBody::FdSock2(fd) => put_fd_sock2(out, fd),
        HeaderBody::VerifySuspect(verify) => put_verify_suspect(out, verify),
        HeaderBody::Stable(stable) => put_stable(out, stable),
        HeaderBody::Gms(gms) => put_gms(out, gms),
        HeaderBody::Frag3(frag) => put_frag3(out, frag),
        HeaderBody::Rsvp(rsvp) => put_rsvp(out, rsvp),
        HeaderBody::Sequencer(sequencer) => put_sequencer(out, sequencer),
        HeaderBody::StateTransfer(state) => put_state_transfer(out, state),
        HeaderBody::State(state) => put_state(out, state),
        HeaderBody::Compress(compress) => put_compress(out, compress),
        HeaderBody::Encrypt(encrypt) => put_encrypt(out, encrypt),
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
        HeaderBody::Dh(dh) => put_dh(out, dh),
        HeaderBody::Info(pairs) => put_info(out, pairs),
    }
}

fn put_relay(out: &mut impl BufMut, relay: &RelayHeader) {
    out.put_u8(relay.kind);
    put_bool(out, relay.return_entire_cache);
    put_address(out, relay.final_dest.as_ref());
    put_address(out, relay.original_sender.as_ref());
    put_sites(out, &relay.sites);
    put_sites(out, &relay.visited);
    out.put_i16(relay.original_headers.len() as i16);
    relay.original_headers.iter().for_each(|header| put_header(out, header));
    out.put_i16(relay.original_flags);
}

fn read_relay(reader: &mut Reader<'_>) -> Result<RelayHeader> {
    let kind = reader.u8("relay header type")?;
    let return_entire_cache = reader.bool("return entire cache")?;
    let final_dest = read_address(reader)?;
    let original_sender = read_address(reader)?;
    let (sites, visited) = (read_sites(reader)?, read_sites(reader)?);
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

/// To move a frequent header stalls longer than to read it.
#[inline]
pub(super) fn read_behind(headers: &mut Headers, reader: &mut Reader<'_>) -> Result<()> {
    let mut put = |id, body| headers.0.push(Header { id, body });
    match reader.peek().first_chunk().map(ids_and_type) {
        Some((id, MagicId::NAKACK2, NAKACK_MSG)) => put(id, HeaderBody::NakAck2(read_nakack_msg(reader)?)),
        Some((id, MagicId::NAKACK4, NAKACK_MSG)) => put(id, HeaderBody::NakAck4(read_nakack_msg(reader)?)),
        Some((id, MagicId::UNICAST3, UNICAST_DATA)) => {
            put(id, HeaderBody::Unicast3(read_unicast_data(reader)?));
        }
        Some((id, MagicId::UNICAST4, UNICAST_DATA)) => {
            put(id, HeaderBody::Unicast4(read_unicast_data(reader)?));
        }
        _ => {
            let Header { id, body } = read_header(reader)?;
            put(id, body);
        }
    }
    Ok(())
}

fn read_rare(reader: &mut Reader<'_>, id: ProtocolId, magic: MagicId) -> Result<HeaderBody> {
    let body = match magic {
        MagicId::TP => HeaderBody::Tp(Box::new(read_tp(reader)?)),
        MagicId::FC => HeaderBody::Fc(read_fc(reader)?),
        MagicId::FRAG => HeaderBody::Frag(Box::new(read_frag(reader)?)),
        MagicId::HEARTBEAT => HeaderBody::Heartbeat,
        MagicId::COUNTER => HeaderBody::Counter,
        MagicId::BATCH2 => HeaderBody::Batch2,
        MagicId::PING => HeaderBody::Ping(Box::new(read_ping(reader)?)),
        MagicId::MERGE3 => HeaderBody::Merge3(Box::new(read_merge3(reader)?)),
        MagicId::FD_SOCK => HeaderBody::FdSock(Box::new(read_fd_sock(reader)?)),
        MagicId::FD_SOCK2 => HeaderBody::FdSock2(Box::new(read_fd_sock2(reader)?)),
        MagicId::VERIFY_SUSPECT | MagicId::VERIFY_SUSPECT2 => {
            HeaderBody::VerifySuspect(Box::new(read_verify_suspect(reader)?))
        }
        MagicId::STABLE => HeaderBody::Stable(Box::new(read_stable(reader)?)),
        MagicId::GMS => HeaderBody::Gms(Box::new(read_gms(reader)?)),
        MagicId::FRAG3 => HeaderBody::Frag3(Box::new(read_frag3(reader)?)),
        MagicId::RSVP => HeaderBody::Rsvp(read_rsvp(reader)?),
        MagicId::SEQUENCER => HeaderBody::Sequencer(read_sequencer(reader)?),
        MagicId::STATE_TRANSFER => HeaderBody::StateTransfer(Box::new(read_state_transfer(reader)?)),
        MagicId::STATE => HeaderBody::State(Box::new(read_state(reader)?)),
        MagicId::COMPRESS => HeaderBody::Compress(read_compress(reader)?),
        MagicId::ENCRYPT => HeaderBody::Encrypt(Box::new(read_encrypt(reader)?)),
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
        MagicId::DH => HeaderBody::Dh(Box::new(read_dh(reader)?)),
        MagicId::INFO => HeaderBody::Info(Box::new(read_info(reader)?)),
        MagicId(magic) => return Err(WireError::UnknownHeader { protocol: id.0, magic }),
    };
    Ok(body)
}

/// Frequent headers are not encoded for their size.
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
