//! Refusals of the decoders, and their costs.

use bytes::{Bytes, BytesMut};
use consort_hotrod::ops::{bulk, map};
use consort_hotrod::*;

fn refused(bytes: &[u8], limits: Limits) -> RequestError {
    RequestDecoder::new(limits).decode(&mut BytesMut::from(bytes)).unwrap_err()
}

#[test]
fn a_decode_error_has_the_id_of_its_request_and_a_status() {
    let cases: [(&[u8], u64, Status); 5] = [
        (b"GET / HTTP/1.1", 0, Status::InvalidMagic),
        (b"\xa0\x07\x13\x03", 7, Status::UnknownVersion),
        (b"\xa0\x08\x29\x02\0\0\x01\0\0\0\0", 8, Status::UnknownOpcode),
        (b"\xa0\x09\x29\x03\x00\x00\x04", 9, Status::ParseError),
        (b"\xa0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 0, Status::ParseError),
    ];
    for (bytes, id, status) in cases {
        let error = refused(bytes, Limits::default());
        assert_eq!((error.id, error.error.status()), (id, status), "{error}");
    }
}

#[test]
fn request_of_an_unknown_operation_is_taken_as_its_header() {
    let ping = b"\xa0\x09\x29\x17\x01c\0\x01\0\0\0\0";
    let unknown = b"\xa0\x08\x29\x02\x01c\0\x01\0\0\0\0";
    let mut buffer = BytesMut::new();
    let mut decoder = RequestDecoder::new(Limits::default());
    for byte in unknown {
        assert_eq!(decoder.decode(&mut buffer), Ok(None));
        assert_eq!(decoder.head(&buffer), Ok(None), "it has no body that could be refused");
        buffer.extend_from_slice(&[*byte]);
    }
    buffer.extend_from_slice(ping);
    let error = decoder.decode(&mut buffer).unwrap_err();
    assert_eq!((error.id, error.version), (8, Some(ProtocolVersion::V4_1)));
    assert_eq!(error.error, DecodeError { at: 3, reason: Reason::Opcode(2) });
    assert!(!error.error.is_stream_lost());
    let next = decoder.decode(&mut buffer).unwrap().expect("the next request");
    assert_eq!((next.header.id, next.header.cache.as_str(), buffer.len()), (9, "c", 0));
}

#[test]
fn request_of_a_later_version_is_read_as_the_newest() {
    for (version, read_as) in [(0x2a, ProtocolVersion::V4_1), (0x20, ProtocolVersion::V3_1)] {
        let params: &[u8] = if version == 0x2a { b"\0" } else { b"" };
        let ping = [&[0xa0, 9, version, 0x17][..], b"\x01c\0\x01\0\0\0", params].concat();
        let ping = RequestDecoder::default().decode(&mut BytesMut::from(&ping[..])).unwrap().unwrap();
        assert_eq!(ping.header.version, read_as);
    }
}

#[test]
fn text_that_is_none_is_refused() {
    let error = refused(b"\xa0\x01\x1f\x17\x02\xc3\x28\0\x01\0\0\0", Limits::default());
    assert_eq!((error.id, error.version), (1, Some(ProtocolVersion::V3_1)));
    assert_eq!(error.error, DecodeError { at: 5, reason: Reason::Text });
}

#[test]
fn lengths_are_refused_before_their_bytes_are_there() {
    let get = b"\xa0\x01\x14\x03\x00\x00\x01\x00\xff\xff\xff\xff\x07";
    let error = refused(get, Limits::default()).error;
    let reason = Reason::TooLong { what: "key", length: 0x7fff_ffff, limit: 64 * 1024 };
    assert_eq!(error, DecodeError { at: 8, reason });
    // A large count of keys.
    let get_all = b"\xa0\x01\x15\x2f\x00\x00\x01\x00\xff\xff\xff\xff\x0f";
    assert_eq!(refused(get_all, Limits::default()).error.status(), Status::ParseError);
    // An allowed value in a message that is too large.
    let put = b"\xa0\x01\x14\x01\x00\x00\x01\x00\x01k\x00\x00\x80\x80\x04";
    let limits = Limits { message: 64 * 1024, ..Limits::default() };
    assert!(matches!(refused(put, limits).error.reason, Reason::TooLong { what: "message", .. }));
}

#[test]
fn a_response_nobody_has_asked_for_is_refused() {
    let mut buffer = BytesMut::from(&b"\xa1\x05\x02\x00\x00"[..]);
    let error = ResponseDecoder::default().decode(&mut buffer, |_| None).unwrap_err();
    assert_eq!(error.reason, Reason::UnknownId(5));
    let get = RequestContext {
        version: ProtocolVersion::V4_1,
        opcode: Opcode::Get,
        intelligence: Intelligence::Basic,
    };
    let error = ResponseDecoder::default().decode(&mut buffer, |_| Some(get)).unwrap_err();
    assert_eq!(error.reason, Reason::OtherOpcode { found: 2, expected: 4 });
}

#[test]
fn errors_are_read_whoever_they_answer() {
    let mut buffer = BytesMut::from(&b"\xa1\x00\x50\x81\x00\x02no"[..]);
    let read = ResponseDecoder::default().decode(&mut buffer, |_| None).unwrap();
    assert_eq!(read, Some(Incoming::Response(Response::error(0, Status::InvalidMagic, "no"))));
}

#[test]
fn keys_and_values_are_parts_of_what_was_received() {
    let (key, value) = (Bytes::from_static(b"key"), Bytes::from(vec![7; 10_000]));
    let assignment = map::Assignment { key, expiration: Expiration::default(), value };
    let body = RequestBody::Map(map::Request::Put(assignment));
    let request = Request { header: RequestHeader::new(1, ProtocolVersion::V4_1), body };
    let mut out = Output::new();
    request.encode(&mut out);
    let mut buffer = BytesMut::from(&out.into_bytes()[..]);
    let received = buffer.as_ptr_range();
    let read = RequestDecoder::default().decode(&mut buffer).unwrap().unwrap();
    let RequestBody::Map(map::Request::Put(read)) = read.body else { panic!("{read:?}") };
    assert!(received.contains(&read.key.as_ptr()) && received.contains(&read.value.as_ptr()));
}

#[test]
fn headers_that_are_remembered_keep_no_buffer() {
    let mut header = RequestHeader::new(1, ProtocolVersion::V4_1);
    header.cache = "orders".into();
    let get = |key| Request { header: header.clone(), body: RequestBody::Map(map::Request::Get(key)) };
    let mut out = Output::new();
    get(Bytes::from(vec![7; 10_000])).encode(&mut out);
    get(Bytes::from_static(b"key")).encode(&mut out);
    let mut buffer = BytesMut::from(&out.into_bytes()[..]);
    let received = buffer.as_ptr_range();
    let mut decoder = RequestDecoder::default();
    let [first, second] = [(); 2].map(|()| decoder.decode(&mut buffer).unwrap().unwrap());
    assert!(received.contains(&first.header.cache.as_bytes().as_ptr()));
    assert_eq!(second.header, first.header);
    assert!(
        !received.contains(&second.header.cache.as_bytes().as_ptr()),
        "the header of the first one again"
    );
}

/// A million entries arriving byte by byte would take days if each byte restarted the scan.
#[test]
fn many_small_pieces_are_read_as_fast_as_one() {
    let entries = vec![(Bytes::from_static(b"k"), Bytes::from_static(b"v")); 200_000];
    let body = RequestBody::Bulk(bulk::Request::PutAll(Expiration::default(), entries));
    let request = Request { header: RequestHeader::new(1, ProtocolVersion::V4_1), body };
    let mut out = Output::new();
    request.encode(&mut out);
    let bytes = out.into_bytes();
    let mut decoder = RequestDecoder::default();
    let mut buffer = BytesMut::new();
    let mut read = None;
    for byte in &bytes {
        assert_eq!(read, None);
        buffer.extend_from_slice(&[*byte]);
        read = decoder.decode(&mut buffer).unwrap();
    }
    assert_eq!(read, Some(request));
}
