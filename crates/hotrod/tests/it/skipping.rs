//! Requests that are refused before they have arrived completely.

use bytes::{Bytes, BytesMut};
use consort_hotrod::ops::{map, task};
use consort_hotrod::{
    Expiration, Limits, Output, ProtocolVersion, Request, RequestBody, RequestDecoder, RequestHeader,
};

fn request(id: u64, body: RequestBody) -> Request {
    let header = RequestHeader { cache: "c".into(), ..RequestHeader::new(id, ProtocolVersion::V4_1) };
    Request { header, body }
}

fn put(id: u64, length: usize) -> Request {
    let value = Bytes::from(vec![7; length]);
    let to = map::Assignment { key: "k".into(), expiration: Expiration::INFINITE, value };
    request(id, RequestBody::Map(map::Request::Put(to)))
}

fn written(requests: &[Request]) -> Bytes {
    let mut out = Output::new();
    requests.iter().for_each(|request| request.encode(&mut out));
    out.into_bytes()
}

#[test]
fn beginning_of_a_request_is_given_once_when_it_is_there() {
    let (put, mut decoder, mut buffer) = (put(5, 1_000), RequestDecoder::default(), BytesMut::new());
    let mut heads = Vec::new();
    let whole = written(std::slice::from_ref(&put));
    for byte in &whole[..whole.len() - 1] {
        buffer.extend_from_slice(&[*byte]);
        assert_eq!(decoder.decode(&mut buffer), Ok(None));
        heads.extend(decoder.head(&buffer).unwrap().map(|head| (head, buffer.len())));
    }
    let [(head, at)] = &heads[..] else { panic!("{heads:?}") };
    assert_eq!((&head.header, head.opcode, &head.task), (&put.header, put.body.opcode(), &None));
    assert!(*at < 32, "{at} bytes were there");
    buffer.extend_from_slice(&whole[whole.len() - 1..]);
    assert_eq!(decoder.decode(&mut buffer), Ok(Some(put)));
    assert_eq!((decoder.decoded(), decoder.head(&buffer)), (whole.len(), Ok(None)));
}

#[test]
fn name_of_a_task_belongs_to_the_beginning() {
    let params = vec![("name".into(), Bytes::from(vec![7; 100]))];
    let exec = request(5, RequestBody::Task(task::Request::Exec("@@cache@create".into(), params)));
    let (mut decoder, whole) = (RequestDecoder::default(), written(&[exec]));
    let mut buffer = BytesMut::from(&whole[..whole.len() - 50]);
    assert_eq!(decoder.decode(&mut buffer), Ok(None));
    let head = decoder.head(&buffer).unwrap().unwrap();
    assert_eq!(head.task.unwrap().as_str(), "@@cache@create");
}

#[test]
fn request_that_is_skipped_is_not_kept_and_the_next_one_is_read_however_they_are_cut() {
    let requests = [put(1, 10), put(2, 5_000), put(3, 20), put(4, 30)];
    let whole = written(&requests);
    let begun = written(&requests[..1]).len() + 200;
    for step in [1, 7, 100, 4_000, 10_000] {
        let (mut decoder, mut read) = (RequestDecoder::default(), Vec::new());
        let mut buffer = BytesMut::from(&whole[..begun]);
        while let Some(request) = decoder.decode(&mut buffer).unwrap() {
            read.push(request.header.id);
        }
        decoder.skip(&mut buffer);
        assert!(decoder.is_skipping() && buffer.is_empty());
        for bytes in whole[begun..].chunks(step) {
            buffer.extend_from_slice(bytes);
            while let Some(request) = decoder.decode(&mut buffer).unwrap() {
                read.push(request.header.id);
            }
            assert!(!decoder.is_skipping() || buffer.is_empty());
        }
        assert_eq!(read, [1, 3, 4], "in steps of {step}");
    }
}

#[test]
fn request_that_is_skipped_may_not_be_longer_than_others() {
    let mut decoder = RequestDecoder::new(Limits { message: 3_000, ..Limits::default() });
    let whole = written(&[put(2, 2_900), put(3, 2_999)]);
    let mut buffer = BytesMut::from(&whole[..100]);
    assert_eq!(decoder.decode(&mut buffer), Ok(None));
    decoder.skip(&mut buffer);
    buffer.extend_from_slice(&whole[100..]);
    let error = decoder.decode(&mut buffer).unwrap_err();
    assert_eq!(error.id, 3);
}
