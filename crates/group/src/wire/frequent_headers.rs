//! The bodies of application messages' headers.

use bytes::BufMut;

use super::addresses::{put_address, read_present};
use super::primitives::{Reader, Result, bad, put_bool, put_compressed_int, put_compressed_long};
use crate::{HeaderBody, MagicId, NakAckHeader, ProtocolId, RpcHeader, RpcKind, UnicastHeader};

pub(super) const UNICAST_DATA: u8 = 0;
pub(super) const NAKACK_MSG: u8 = 1;

#[inline]
pub(super) fn ids_and_type(&[high, low, magic_high, magic_low, kind]: &[u8; 5]) -> (ProtocolId, MagicId, u8) {
    let id = ProtocolId(i16::from_be_bytes([high, low]));
    (id, MagicId(i16::from_be_bytes([magic_high, magic_low])), kind)
}

#[inline]
pub(super) fn read_nakack_msg(reader: &mut Reader<'_>) -> Result<NakAckHeader> {
    reader.skip(5);
    Ok(NakAckHeader::Msg { seqno: reader.compressed_long("nakack seqno")? as u64 })
}

#[inline]
pub(super) fn read_unicast_data(reader: &mut Reader<'_>) -> Result<UnicastHeader> {
    reader.skip(5);
    let seqno = reader.seqno("unicast seqno")?;
    let (conn_id, first) = (reader.i16("connection id")?, reader.bool("first")?);
    Ok(UnicastHeader::Data { seqno, conn_id, first })
}

/// The size in bytes includes the ids.
pub(super) const SHORT_MAX: usize = 24;

#[inline]
pub(super) const fn is_short(body: &HeaderBody) -> bool {
    match body {
        HeaderBody::Unicast3(_)
        | HeaderBody::Unicast4(_)
        | HeaderBody::Rpc(_)
        | HeaderBody::Heartbeat
        | HeaderBody::Fc(_) => true,
        HeaderBody::NakAck2(header) | HeaderBody::NakAck4(header) => {
            !matches!(header, NakAckHeader::XmitReq { .. })
        }
        _ => false,
    }
}

pub(super) fn put_unicast(out: &mut impl BufMut, unicast: &UnicastHeader) {
    match *unicast {
        UnicastHeader::Data { seqno, conn_id, first } => {
            out.put_u8(UNICAST_DATA);
            put_compressed_long(out, seqno as i64);
            out.put_i16(conn_id);
            put_bool(out, first);
        }
        UnicastHeader::Ack { seqno, conn_id, timestamp } => {
            out.put_u8(1);
            put_compressed_long(out, seqno as i64);
            out.put_i16(conn_id);
            put_compressed_int(out, timestamp);
        }
        UnicastHeader::SendFirstSeqno { timestamp } => {
            out.put_u8(2);
            put_compressed_int(out, timestamp);
        }
        UnicastHeader::XmitReq => out.put_u8(3),
        UnicastHeader::Close { conn_id } => {
            out.put_u8(4);
            out.put_i16(conn_id);
        }
    }
}

#[inline]
pub(super) fn read_unicast(reader: &mut Reader<'_>) -> Result<UnicastHeader> {
    Ok(match reader.u8("unicast header type")? {
        UNICAST_DATA => UnicastHeader::Data {
            seqno: reader.seqno("unicast seqno")?,
            conn_id: reader.i16("connection id")?,
            first: reader.bool("first")?,
        },
        1 => UnicastHeader::Ack {
            seqno: reader.seqno("unicast ack")?,
            conn_id: reader.i16("connection id")?,
            timestamp: reader.compressed_int("ack timestamp")?,
        },
        2 => UnicastHeader::SendFirstSeqno { timestamp: reader.compressed_int("timestamp")? },
        3 => UnicastHeader::XmitReq,
        4 => UnicastHeader::Close { conn_id: reader.i16("connection id")? },
        kind => return Err(bad("unicast header type", kind)),
    })
}

pub(super) fn put_nakack(out: &mut impl BufMut, nakack: &NakAckHeader) {
    let (kind, seqno) = match nakack {
        NakAckHeader::Msg { seqno } => (NAKACK_MSG, *seqno),
        NakAckHeader::XmitReq { sender } => {
            out.put_u8(2);
            return put_address(out, Some(sender));
        }
        NakAckHeader::XmitRsp { seqno } => (3, *seqno),
        NakAckHeader::HighestSeqno { seqno } => (4, *seqno),
        NakAckHeader::Ack { seqno } => (5, *seqno),
    };
    out.put_u8(kind);
    put_compressed_long(out, seqno as i64);
}

#[inline]
pub(super) fn read_nakack(reader: &mut Reader<'_>) -> Result<NakAckHeader> {
    let kind = reader.u8("nakack header type")?;
    if kind == 2 {
        return Ok(NakAckHeader::XmitReq { sender: Box::new(read_present(reader, "original sender")?) });
    }
    // Java creates XMIT_RSP with seqno -1 before it sets the seqno; vectors contain that state.
    let seqno = reader.compressed_long("nakack seqno")? as u64;
    Ok(match kind {
        NAKACK_MSG => NakAckHeader::Msg { seqno },
        3 => NakAckHeader::XmitRsp { seqno },
        4 => NakAckHeader::HighestSeqno { seqno },
        5 => NakAckHeader::Ack { seqno },
        _ => return Err(bad("nakack header type", kind)),
    })
}

pub(super) fn put_rpc(out: &mut impl BufMut, rpc: &RpcHeader) {
    out.put_u8(rpc.kind as u8);
    put_compressed_long(out, rpc.request_id as i64);
    out.put_i16(rpc.corr_id);
}

#[inline]
pub(super) fn read_rpc(reader: &mut Reader<'_>) -> Result<RpcHeader> {
    let kind = match reader.u8("rpc header type")? {
        0 => RpcKind::Request,
        1 => RpcKind::Response,
        2 => RpcKind::Exception,
        kind => return Err(bad("rpc header type", kind)),
    };
    let request_id = reader.compressed_long("request id")? as u64;
    Ok(RpcHeader { kind, request_id, corr_id: reader.i16("correlator id")? })
}
