//! Each side decodes what the other encodes, in every operation and version, with any fragmentation.

use bytes::{Bytes, BytesMut};
use consort_hotrod::*;
use consort_testkit::messages;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

/// Passes the bytes to a decoder in two pieces, split at every position, and one by one.
fn however_cut<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    expected: &T,
    mut decoder: impl FnMut() -> Box<dyn FnMut(&mut BytesMut) -> Option<T>>,
) {
    // Following bytes stay in the buffer.
    let followed = [bytes, b"\xa0\xa1"].concat();
    let cuts = (0..=bytes.len()).step_by(if bytes.len() > 300 { 97 } else { 1 });
    for cut in cuts {
        let mut decode = decoder();
        let mut buffer = BytesMut::from(&followed[..cut]);
        let early = decode(&mut buffer);
        assert_eq!(early.is_some(), cut == bytes.len(), "cut at {cut}");
        let decoded = early.or_else(|| {
            buffer.extend_from_slice(&followed[cut..]);
            decode(&mut buffer)
        });
        assert_eq!(decoded.as_ref(), Some(expected), "cut at {cut}");
        assert!(b"\xa0\xa1".starts_with(&buffer[..]), "cut at {cut}");
    }
    let mut decode = decoder();
    let mut buffer = BytesMut::new();
    for (at, byte) in bytes.iter().enumerate() {
        buffer.extend_from_slice(&[*byte]);
        let decoded = decode(&mut buffer);
        assert_eq!(decoded.is_some(), at + 1 == bytes.len());
        if let Some(decoded) = decoded {
            assert_eq!(decoded, *expected);
        }
    }
}

fn encoded(encode: impl FnOnce(&mut Output)) -> Bytes {
    let mut out = Output::new();
    encode(&mut out);
    out.into_bytes()
}

/// The request as decoded: before 2.2 default spans have set flags.
fn as_read(mut request: Request) -> Request {
    let bytes = encoded(|out| request.encode(out));
    let mut decoder = RequestDecoder::default();
    if request.header.version < ProtocolVersion::V2_2
        && let Ok(Some(read)) = decoder.decode(&mut BytesMut::from(&bytes[..]))
    {
        request.header.flags.0 |= read.header.flags.0 & 6;
    }
    request
}

fn check_request(request: Request) {
    let request = as_read(request);
    let bytes = encoded(|out| request.encode(out));
    however_cut(&bytes, &request, || {
        let mut decoder = RequestDecoder::default();
        Box::new(move |buffer| decoder.decode(buffer).unwrap())
    });
}

fn check_incoming(bytes: &Bytes, asked: Option<RequestContext>, expected: &Incoming) {
    however_cut(bytes, expected, || {
        let mut decoder = ResponseDecoder::default();
        Box::new(move |buffer| decoder.decode(buffer, |_| asked).unwrap())
    });
}

/// Samples each strategy; one strategy for all operations would cover some too rarely.
fn some<T>(strategy: impl Strategy<Value = T>, mut check: impl FnMut(T)) {
    let mut runner = TestRunner::new_with_rng(Config::default(), fixed_rng());
    for _ in 0..12 {
        check(strategy.new_tree(&mut runner).unwrap().current());
    }
}

fn fixed_rng() -> proptest::test_runner::TestRng {
    proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha)
}

fn every_operation_and_version() -> impl Iterator<Item = (ProtocolVersion, Opcode)> {
    ProtocolVersion::ALL
        .into_iter()
        .flat_map(|version| Opcode::ALL.iter().map(move |&opcode| (version, opcode)))
}

#[test]
fn requests_of_every_operation_and_version_are_read_as_they_were_written() {
    for (version, opcode) in every_operation_and_version() {
        some(messages::request(version, opcode), |request| {
            assert_eq!((request.header.version, request.body.opcode()), (version, opcode));
            check_request(request);
        });
    }
}

#[test]
fn responses_to_every_operation_and_version_are_read_as_they_were_written() {
    for (version, opcode) in every_operation_and_version() {
        some(messages::response(version, opcode), |(asked, response)| {
            let bytes = encoded(|out| response.encode(asked, out));
            check_incoming(&bytes, Some(asked), &Incoming::Response(response));
        });
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    let pairs: Vec<_> = every_operation_and_version().collect();
    proptest::sample::select(pairs).prop_flat_map(|(version, opcode)| messages::request(version, opcode))
}

/// Requests of one connection, some with the same header or nearly.
fn requests_alike() -> impl Strategy<Value = Vec<Request>> {
    let alike = proptest::option::of((any::<u64>(), proptest::option::of(any::<i32>())));
    proptest::collection::vec((any_request(), alike), 2..6).prop_map(|drawn| {
        let mut requests: Vec<Request> = Vec::new();
        for (mut request, alike) in drawn {
            if let (Some(last), Some((id, topology_id))) = (requests.last(), alike) {
                let topology_id = topology_id.unwrap_or(last.header.topology_id);
                // Another version gives the same bytes another meaning.
                let version = request.header.version;
                let header = if version == last.header.version { &last.header } else { &request.header };
                request.header = RequestHeader { id, version, topology_id, ..header.clone() };
                if version < ProtocolVersion::V2_2 {
                    // These flags depend on the request's own spans.
                    request.header.flags.0 &= !6;
                }
            }
            requests.push(as_read(request));
        }
        requests
    })
}

proptest! {
    #[test]
    fn requests_are_the_same_whatever_came_before_them(requests in requests_alike(), cut: proptest::sample::Index) {
        let bytes = encoded(|out| requests.iter().for_each(|request| request.encode(out)));
        let cut = cut.index(bytes.len());
        let (mut decoder, mut buffer, mut read) = (RequestDecoder::default(), BytesMut::new(), Vec::new());
        for part in [&bytes[..cut], &bytes[cut..]] {
            buffer.extend_from_slice(part);
            while let Some(request) = decoder.decode(&mut buffer).unwrap() {
                read.push(request);
            }
        }
        prop_assert_eq!(read, requests);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn events_are_read_as_they_were_written(event in messages::event(), counter in messages::counter_event()) {
        check_incoming(&encoded(|out| event.encode(out)), None, &Incoming::Event(event));
        check_incoming(&encoded(|out| counter.encode(out)), None, &Incoming::CounterEvent(counter));
    }

    #[test]
    fn foreign_bytes_are_refused_or_read_and_never_more(bytes: Vec<u8>, start in 0..4_usize) {
        let starts: [&[u8]; 4] = [b"", b"\xa0\x01\x29", b"\xa0\x01\x14", b"\xa1\x01"];
        let bytes = [starts[start], &bytes].concat();
        let _ = RequestDecoder::default().decode(&mut BytesMut::from(&bytes[..]));
        for &opcode in Opcode::ALL {
            let asked = RequestContext { version: ProtocolVersion::V4_1, opcode, intelligence: Intelligence::Hash };
            let _ = ResponseDecoder::default().decode(&mut BytesMut::from(&bytes[..]), |_| Some(asked));
        }
    }
}
