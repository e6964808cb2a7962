//! Hot Rod's codec of server and client.

use bytes::{Bytes, BytesMut};
use consort_hotrod::{
    Incoming, Intelligence, Limits, Opcode, Output, ProtocolVersion, Request, RequestContext, RequestDecoder,
    ResponseDecoder,
};
use consort_testkit::messages;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::bounds::bounded;
use crate::seen::Seen;

/// Version, opcode and intelligence of the request, as indices in their tables.
const ASKED: usize = 3;

fn encoded(encode: impl FnOnce(&mut Output)) -> Bytes {
    let mut out = Output::new();
    encode(&mut out);
    out.into_bytes()
}

/// Reads with bounded memory, and again in two pieces; then writes and reads the messages.
fn read<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&mut dyn FnMut(&mut BytesMut) -> bool, &mut BytesMut) -> Vec<T>,
    encode: impl Fn(&T) -> Bytes,
) -> Seen {
    let mut never = |_: &mut BytesMut| false;
    let mut whole = BytesMut::from(bytes);
    let (messages, peak) = bounded(bytes.len(), || decode(&mut never, &mut whole));
    let cut = bytes.len() / 2;
    let mut is_first = true;
    let mut more = |buffer: &mut BytesMut| {
        let has_more = std::mem::take(&mut is_first);
        if has_more {
            buffer.extend_from_slice(&bytes[cut..]);
        }
        has_more
    };
    let mut first = BytesMut::from(&bytes[..cut]);
    assert_eq!(decode(&mut more, &mut first), messages, "read otherwise in two pieces");
    for message in &messages {
        let written = encode(message);
        let again = decode(&mut never, &mut BytesMut::from(&written[..]));
        // A message that has more than one form takes the form that we write, and keeps that.
        let [again] = &again[..] else { panic!("{message:?} is not read as it was written") };
        assert_eq!(encode(again), written, "{message:?}\nbecame\n{again:?}");
    }
    Seen::one(!messages.is_empty(), peak)
}

/// A request does not depend on the ones before it.
pub(crate) fn request(bytes: &[u8]) -> Seen {
    let decode = |more: &mut dyn FnMut(&mut BytesMut) -> bool, buffer: &mut BytesMut| {
        let mut decoder = RequestDecoder::new(Limits::default());
        let mut requests: Vec<Request> = Vec::new();
        loop {
            match decoder.decode(buffer) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) if more(buffer) => {}
                Ok(None) | Err(_) => break requests,
            }
        }
    };
    let (mut alone, mut buffer) = (Vec::new(), BytesMut::from(bytes));
    while let Ok(Some(request)) = RequestDecoder::new(Limits::default()).decode(&mut buffer) {
        alone.push(request);
    }
    let together = decode(&mut |_| false, &mut BytesMut::from(bytes));
    assert_eq!(together, alone, "read otherwise behind others");
    read(bytes, decode, |request| encoded(|out| request.encode(out)))
}

fn asked(bytes: &[u8]) -> Option<RequestContext> {
    let &[version, opcode, intelligence] = bytes.first_chunk::<ASKED>()?;
    Some(RequestContext {
        version: ProtocolVersion::ALL[usize::from(version) % ProtocolVersion::ALL.len()],
        opcode: Opcode::ALL[usize::from(opcode) % Opcode::ALL.len()],
        intelligence: Intelligence::from_byte(intelligence % 3 + 1)?,
    })
}

pub(crate) fn response(bytes: &[u8]) -> Seen {
    let Some(asked) = asked(bytes) else { return Seen::one(false, 0) };
    let decode = |more: &mut dyn FnMut(&mut BytesMut) -> bool, buffer: &mut BytesMut| {
        let mut decoder = ResponseDecoder::new(Limits::default());
        let mut incoming: Vec<Incoming> = Vec::new();
        loop {
            match decoder.decode(buffer, |_| Some(asked)) {
                Ok(Some(message)) => incoming.push(message),
                Ok(None) if more(buffer) => {}
                Ok(None) | Err(_) => break incoming,
            }
        }
    };
    let encode = |incoming: &Incoming| {
        encoded(|out| match incoming {
            Incoming::Response(response) => response.encode(asked, out),
            Incoming::Event(event) => event.encode(out),
            Incoming::CounterEvent(event) => event.encode(out),
        })
    };
    read(&bytes[ASKED..], decode, encode)
}

/// One message of each operation and version, the same ones each time.
fn of_all<T, S: Strategy<Value = T>>(
    strategy: impl Fn(ProtocolVersion, Opcode) -> S,
    mut bytes: impl FnMut(usize, usize, T) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut all = Vec::new();
    for (version, &of_version) in ProtocolVersion::ALL.iter().enumerate() {
        for (opcode, &of_opcode) in Opcode::ALL.iter().enumerate() {
            if let Ok(tree) = strategy(of_version, of_opcode).new_tree(&mut runner) {
                all.push(bytes(version, opcode, tree.current()));
            }
        }
    }
    all
}

pub(crate) fn requests() -> Vec<Vec<u8>> {
    of_all(messages::request, |_, _, request| encoded(|out| request.encode(out)).to_vec())
}

pub(crate) fn responses() -> Vec<Vec<u8>> {
    let place = |place: usize| u8::try_from(place).unwrap_or_default();
    let mut all = of_all(messages::response, |version, opcode, (asked, response)| {
        let start = [place(version), place(opcode), asked.intelligence as u8 - 1];
        [&start[..], &encoded(|out| response.encode(asked, out))].concat()
    });
    let event = |_, _| (messages::event(), messages::counter_event());
    all.extend(of_all(event, |version, opcode, (event, counter)| {
        let start = [place(version), place(opcode), 0];
        let events = encoded(|out| {
            event.encode(out);
            counter.encode(out);
        });
        [&start[..], &events].concat()
    }));
    all
}
