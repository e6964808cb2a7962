use bytes::Bytes;
use consort_hotrod::{
    Intelligence, Opcode, Output, ProtocolVersion, REQUEST_MAGIC, RequestContext, Response, Status,
};

use crate::http;

/// `None` for TLS.
pub(crate) fn response_without_tls(first: u8) -> Option<Bytes> {
    match first {
        REQUEST_MAGIC => Some(hot_rod_only_tls()),
        first if http::begins_with(first) => Some(http::only_tls()),
        _ => None,
    }
}

fn hot_rod_only_tls() -> Bytes {
    let context = RequestContext {
        version: ProtocolVersion::NEWEST,
        opcode: Opcode::Ping,
        intelligence: Intelligence::Basic,
    };
    let mut output = Output::new();
    let text = "this server accepts TLS only; use hotrods:// or use_ssl";
    Response::error(0, Status::InvalidMagic, text).encode(context, &mut output);
    output.into_bytes()
}
