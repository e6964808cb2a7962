//! The codec of `consort_group::wire`.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use consort_group::wire::{self, Bulk, Packet, WireError};
use consort_group::{Address, Message, Object, Payload, PhysAddr, Primitive, ProtocolId};

use crate::bounds::bounded;
use crate::seen::Seen;
use crate::vectors::{lines, named, sessions};

/// The decoder reads the encoder's output as the same value.
fn again<T: PartialEq + Debug>(
    value: &T,
    encode: impl Fn(&T) -> Bytes,
    decode: impl Fn(&Bytes) -> Result<T, WireError>,
) {
    let bytes = encode(value);
    let second = decode(&bytes).unwrap_or_else(|error| panic!("the written message is not read: {error}"));
    assert!(is_same(value, &second), "{value:?}\nbecame\n{second:?}");
    assert_eq!(encode(&second), bytes, "the same value has two encodings");
}

/// Values are equal or print alike, because NaN is not equal to itself.
fn is_same<T: PartialEq + Debug>(one: &T, other: &T) -> bool {
    one == other || format!("{one:?}") == format!("{other:?}")
}

/// A decoded value survives being written and read.
fn checked<T: PartialEq + Debug>(
    bytes: &[u8],
    encode: impl Fn(&T) -> Bytes,
    decode: impl Fn(&Bytes) -> Result<T, WireError>,
) -> Seen {
    let shared = Bytes::copy_from_slice(bytes);
    let (decoded, peak) = bounded(bytes.len(), || decode(&shared));
    if let Ok(value) = &decoded {
        again(value, encode, decode);
    }
    Seen::one(decoded.is_ok(), peak)
}

/// A message within another has the destination of that one, and a source.
fn is_regular(message: &Message, dest: Option<&Address>, src: Option<&Address>) -> bool {
    let fits = message.dest.as_ref() == dest && (message.src.is_some() || src.is_none());
    fits && has_regular_parts(message)
}

fn has_regular_parts(message: &Message) -> bool {
    let parts = match &message.payload {
        Payload::Composite(parts) => parts,
        Payload::Batch(batch) => &batch.messages,
        _ => return true,
    };
    parts.iter().all(|part| is_regular(part, message.dest.as_ref(), message.src.as_ref()))
}

fn check_message(
    message: &Message,
    decode: impl Fn(&Bytes) -> Result<Message, WireError>,
    encode: fn(&Message) -> Bytes,
) {
    let bytes = encode(message);
    let second = decode(&bytes).unwrap_or_else(|error| panic!("the written message is not read: {error}"));
    if has_regular_parts(message) {
        assert!(is_same(message, &second), "{message:?}\nbecame\n{second:?}");
    }
    again(&second, encode, decode);
}

fn encode_packet(packet: &Packet) -> Bytes {
    let mut out = BytesMut::new();
    match packet {
        Packet::Single { version, message, .. } => {
            wire::write_single(&mut out, *version, message, &[], Bulk::Copied);
        }
        Packet::List { version, dest, src, cluster, messages, .. } => {
            let cluster = cluster.as_deref().unwrap_or_default();
            let start = wire::begin_list(&mut out, *version, dest.as_ref(), src.as_ref(), cluster);
            messages
                .iter()
                .for_each(|message| wire::append_to_list(&mut out, message, src.as_ref(), &[], Bulk::Copied));
            wire::finish_list(&mut out, start, messages.len() as u32);
        }
    }
    out.freeze()
}

/// Computed sizes are the written sizes.
fn check_sizes(packet: &Packet) {
    let mut out = BytesMut::new();
    let (messages, list_src) = match packet {
        Packet::Single { message, .. } => (std::slice::from_ref(message), None),
        Packet::List { src, messages, .. } => (&messages[..], Some(src.as_ref())),
    };
    for message in messages {
        out.clear();
        match list_src {
            Some(src) => wire::append_to_list(&mut out, message, src, &[], Bulk::Copied),
            None => out.extend_from_slice(&wire::encode_typed(message)),
        }
        assert_eq!(wire::message_size(message, 0, list_src), out.len(), "{message:?}");
    }
}

pub(crate) fn packet(bytes: &[u8]) -> Seen {
    let shared = Bytes::copy_from_slice(bytes);
    let _ = wire::peek_version(bytes);
    let (decoded, peak) = bounded(bytes.len(), || wire::decode_packet(&shared, &[]));
    let own_tp = wire::encode_tp("demo");
    let (_, with_tp) = bounded(bytes.len(), || wire::decode_packet(&shared, &own_tp));
    if let Ok(packet) = &decoded {
        check_sizes(packet);
        let decode = |bytes: &Bytes| wire::decode_packet(bytes, &[]);
        let second = decode(&encode_packet(packet));
        let second = second.unwrap_or_else(|error| panic!("the written message is not read: {error}"));
        let is_all_written = match packet {
            Packet::Single { is_multicast, message, .. } => {
                *is_multicast == message.dest.is_none() && has_regular_parts(message)
            }
            Packet::List { is_multicast, dest, src, cluster, messages, .. } => {
                *is_multicast == dest.is_none()
                    && cluster.is_some()
                    && messages.iter().all(|message| is_regular(message, dest.as_ref(), src.as_ref()))
            }
        };
        if is_all_written {
            assert!(is_same(packet, &second), "{packet:?}\nbecame\n{second:?}");
        }
        again(&second, encode_packet, decode);
    }
    Seen::one(decoded.is_ok(), peak.max(with_tp))
}

pub(crate) fn packets() -> Vec<Vec<u8>> {
    let mut all = sessions();
    all.extend(lines("06").map(|(_, bytes)| bytes));
    all
}

/// The first byte is the message's type.
pub(crate) fn message(bytes: &[u8]) -> Seen {
    let Some((&kind, body)) = bytes.split_first() else { return Seen::one(false, 0) };
    let kind = i16::from(kind as i8);
    let shared = Bytes::copy_from_slice(body);
    let (decoded, peak) = bounded(body.len(), || wire::decode_body(kind, &shared));
    if let Ok(message) = &decoded {
        check_message(message, |bytes| wire::decode_body(kind, bytes), wire::encode_body);
        check_message(message, wire::decode_typed, wire::encode_typed);
    }
    Seen::one(decoded.is_ok(), peak)
}

pub(crate) fn messages() -> Vec<Vec<u8>> {
    // Packets of one message: version, flags, two bytes of type, body. The lower byte of the type is kept.
    let singles = sessions().into_iter().filter(|bytes| bytes.get(2).is_some_and(|flags| flags & 1 == 0));
    let mut all: Vec<Vec<u8>> = singles.filter_map(|bytes| Some(bytes.get(4..)?.to_vec())).collect();
    for file in ["05", "13"] {
        for (name, bytes) in lines(file) {
            let kind = match name.split('.').next().unwrap_or_default() {
                "nio" => 1,
                "empty" => 2,
                "obj" => 3,
                "long" => 4,
                "composite" => 5,
                "fragmented" | "frag4" => 6,
                "batch" => 7,
                _ => 0,
            };
            all.push([&[kind], &bytes[..]].concat());
        }
    }
    all
}

fn around(header: &[u8]) -> Bytes {
    [&[0, 0, 0, 0, 1], header].concat().into()
}

pub(crate) fn header(bytes: &[u8]) -> Seen {
    let body = around(bytes);
    let (decoded, peak) = bounded(body.len(), || wire::decode_body(2, &body));
    if let Ok(message) = &decoded {
        assert_eq!(wire::message_size(message, 0, None), wire::encode_typed(message).len());
        check_message(message, |bytes| wire::decode_body(2, bytes), wire::encode_body);
    }
    Seen::one(decoded.is_ok(), peak)
}

pub(crate) fn headers() -> Vec<Vec<u8>> {
    lines("07").map(|(_, bytes)| bytes).collect()
}

pub(crate) fn object(bytes: &[u8]) -> Seen {
    let body: Bytes = [&[0, 0, 0, 0, 0], bytes].concat().into();
    let (decoded, peak) = bounded(body.len(), || wire::decode_body(3, &body));
    if let Ok(message) = &decoded {
        if let Payload::Object(object) = &message.payload {
            assert_eq!(message.length(), wire::object_length(object));
            if let Object::SeqnoList(list) = &**object {
                assert!(list.iter().take(1_000).count() <= list.len());
            }
        }
        check_message(message, |bytes| wire::decode_body(3, bytes), wire::encode_body);
    }
    Seen::one(decoded.is_ok(), peak)
}

pub(crate) fn objects() -> Vec<Vec<u8>> {
    let present = |magic: i16, bytes: &[u8]| [&[1], &magic.to_be_bytes()[..], bytes].concat();
    let mut all = Vec::new();
    for (name, bytes) in lines("08") {
        let magic = match name {
            "viewid" => consort_group::MagicId::VIEW_ID,
            "view" => consort_group::MagicId::VIEW,
            "mergeview" | "mergeview.foreign" => consort_group::MagicId::MERGE_VIEW,
            "digest" => consort_group::MagicId::MUTABLE_DIGEST,
            "seqnolist" | "seqnolist.65" => consort_group::MagicId::SEQNO_LIST,
            // Messages of type 3 without headers.
            "xmitreq.msg" | "stable.msg" => {
                all.extend(bytes.get(5..).map(<[u8]>::to_vec));
                continue;
            }
            _ => continue,
        };
        all.push(present(magic.0, &bytes));
    }
    for (name, bytes) in lines("02") {
        match name.split('.').next() {
            Some("stream") => all.push(present(consort_group::MagicId::OBJECT_WRAPPER_PRIMITIVE.0, &bytes)),
            Some("gs") => all.push(bytes),
            _ => {}
        }
    }
    all
}

pub(crate) fn gossip(bytes: &[u8]) -> Seen {
    checked(bytes, wire::encode_gossip, wire::decode_gossip)
}

pub(crate) fn gossips() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = lines("10").map(|(_, bytes)| bytes).collect();
    let frames = lines("29").map(|(_, bytes)| bytes).filter(|bytes| bytes.len() > 4);
    all.extend(frames.map(|bytes| bytes[4..].to_vec()));
    all
}

pub(crate) fn ping_data(bytes: &[u8]) -> Seen {
    checked(bytes, |list| wire::encode_ping_data(list), wire::decode_ping_data)
}

pub(crate) fn ping_datas() -> Vec<Vec<u8>> {
    let mut all = named("08", &["ping.payload"]);
    let one = named("08", &["pingdata"]);
    all.push([&(one.len() as i32).to_be_bytes()[..], &one.concat()].concat());
    all
}

pub(crate) fn view_and_digest(bytes: &[u8]) -> Seen {
    checked(
        bytes,
        |(view, digest)| wire::encode_view_and_digest(view.as_ref(), digest.as_ref()),
        wire::decode_view_and_digest,
    )
}

pub(crate) fn views_and_digests() -> Vec<Vec<u8>> {
    let names = ["gms.viewonly", "gms.view+digest", "gms.delta", "gms.mergeview+digest", "gms.digestonly"];
    named("08", &names)
}

pub(crate) fn view(bytes: &[u8]) -> Seen {
    let ids = checked(bytes, |id| wire::encode_view_id_option(id.as_ref()), wire::decode_view_id_option);
    let views = checked(bytes, |view| wire::encode_view_option(view.as_ref()), wire::decode_view_option);
    Seen { accepted: ids.accepted.max(views.accepted), peak: ids.peak.max(views.peak), ..ids }
}

pub(crate) fn views() -> Vec<Vec<u8>> {
    let mut all = named("08", &["gms.viewid"]);
    all.extend(named("08", &["view", "mergeview"]).into_iter().map(|bytes| [&[1], &bytes[..]].concat()));
    all
}

pub(crate) fn join_rsp(bytes: &[u8]) -> Seen {
    let decode = |bytes: &Bytes| {
        // Merge views are written plain, so that members before 5.5.7 can read them.
        let mut rsp = wire::decode_join_rsp(bytes)?;
        rsp.view = rsp.view.map(|view| view.without_subgroups());
        Ok(rsp)
    };
    checked(bytes, wire::encode_join_rsp, decode)
}

pub(crate) fn join_rsps() -> Vec<Vec<u8>> {
    named("08", &["joinrsp"])
}

pub(crate) fn key_block(bytes: &[u8]) -> Seen {
    checked(bytes, |(keys, payload)| wire::encode_key_block(keys, payload), wire::decode_key_block)
}

pub(crate) fn key_response(bytes: &[u8]) -> Seen {
    let (decoded, peak) = bounded(bytes.len(), || wire::decode_key_response(bytes));
    if let Ok((version, key)) = decoded {
        assert_eq!(wire::encode_key_response(version, key), bytes);
    }
    Seen::one(decoded.is_ok(), peak)
}

pub(crate) fn key_responses() -> Vec<Vec<u8>> {
    [16, 24, 32].map(|length| wire::encode_key_response(&[1; 16], &vec![2; length]).to_vec()).into()
}

/// The payloads of the captured sessions; few are key blocks.
pub(crate) fn key_blocks() -> Vec<Vec<u8>> {
    let packets = lines("26").chain(lines("31")).map(|(_, bytes)| Bytes::from(bytes));
    let payloads = packets.filter_map(|bytes| match wire::decode_packet(&bytes, &[]) {
        Ok(Packet::Single { message, .. }) => message.payload_bytes().map(|payload| payload.to_vec()),
        _ => None,
    });
    payloads.filter(|payload| payload.starts_with(&[0, 0, 0])).collect()
}

pub(crate) fn counter(bytes: &[u8]) -> Seen {
    checked(bytes, wire::encode_counter, wire::decode_counter)
}

/// The payloads of the captured session, and a RECONCILE message, which it lacks.
pub(crate) fn counters() -> Vec<Vec<u8>> {
    let packets = lines("30").map(|(_, bytes)| Bytes::from(bytes));
    let messages = packets.flat_map(|bytes| match wire::decode_packet(&bytes, &[]) {
        Ok(Packet::Single { message, .. }) => vec![message],
        Ok(Packet::List { messages, .. }) => messages,
        Err(_) => Vec::new(),
    });
    let of_counters = messages.filter(|message| message.headers.get(ProtocolId::COUNTER).is_some());
    let mut all: Vec<Vec<u8>> =
        of_counters.filter_map(|message| message.payload_bytes().map(|bytes| bytes.to_vec())).collect();
    all.push(b"\x01\x06\0\0\0\x02\x01\0\x01a\x01\0\x01b\x01\x05\x01\x07\x01\x02\x01\x09".to_vec());
    all
}

pub(crate) fn fork_state(bytes: &[u8]) -> Seen {
    checked(bytes, |states| wire::encode_fork_states(states), wire::decode_fork_states)
}

pub(crate) fn fork_states() -> Vec<Vec<u8>> {
    vec![b"\0\0\0\0\0\x04main\x01\0\x01s\x01\0\x01c\0\0\0\x06forked".to_vec()]
}

pub(crate) fn address_list(bytes: &[u8]) -> Seen {
    checked(bytes, |list| wire::encode_address_list(list), wire::decode_address_list)
}

pub(crate) fn address_lists() -> Vec<Vec<u8>> {
    let mut all = named("08", &["gms.members"]);
    for (name, bytes) in lines("03") {
        all.push(if name.starts_with("list") { bytes } else { [&[0, 1], &bytes[..]].concat() });
    }
    all
}

pub(crate) fn socket_address_list(bytes: &[u8]) -> Seen {
    let encode = |all: &Vec<(Address, PhysAddr)>| {
        wire::encode_socket_addresses(all.iter().map(|(member, address)| (member, *address)))
    };
    checked(bytes, encode, wire::decode_socket_addresses)
}

pub(crate) fn socket_address_lists() -> Vec<Vec<u8>> {
    lines("33").map(|(_, bytes)| bytes).collect()
}

pub(crate) fn method_call(bytes: &[u8]) -> Seen {
    let object = Object::Serialized(Some(Bytes::copy_from_slice(bytes)));
    let (decoded, peak) = bounded(bytes.len(), || wire::decode_method_call(&object));
    if let Ok(call) = &decoded {
        let encoded = wire::encode_method_call(call);
        let second = wire::decode_method_call(&encoded);
        let second = second.unwrap_or_else(|error| panic!("the written message is not read: {error}"));
        assert!(is_same(call, &second), "{call:?}\nbecame\n{second:?}");
    }
    Seen::one(decoded.is_ok(), peak)
}

pub(crate) fn method_calls() -> Vec<Vec<u8>> {
    let magic = consort_group::MagicId::METHOD_CALL.0.to_be_bytes();
    let calls = lines("09").filter(|(name, _)| *name != "objmsg");
    calls.map(|(_, bytes)| [&[50, 1], &magic[..], &bytes].concat()).collect()
}

/// Calls of UPerf, and its settings.
pub(crate) fn uperf_call(bytes: &[u8]) -> Seen {
    let wrapped = || Payload::Object(Box::new(Object::Serialized(Some(Bytes::copy_from_slice(bytes)))));
    let (call, peak) = bounded(bytes.len(), || wire::decode_uperf_call(&wrapped()));
    if let Ok(call) = &call {
        let encoded = Payload::Object(Box::new(wire::encode_uperf_call(call)));
        let second = wire::decode_uperf_call(&encoded);
        let second = second.unwrap_or_else(|error| panic!("the written call is not read: {error}"));
        assert!(is_same(call, &second), "{call:?}\nbecame\n{second:?}");
    }
    let (config, peak_of_config) = bounded(bytes.len(), || wire::decode_uperf_config(&wrapped()));
    Seen::one(call.is_ok() || config.is_ok(), peak.max(peak_of_config))
}

pub(crate) fn uperf_calls() -> Vec<Vec<u8>> {
    use wire::{UperfCall, UperfResults, UperfTimes};
    let member = Address::random(&mut consort_group::Rng::new(1));
    let times = Some(UperfTimes { min: 1.0, mean: 2.0, max: 3.0 });
    let results =
        UperfResults { gets: 1, puts: 300, milliseconds: 70_000, get_times: times, put_times: None };
    let calls = [
        UperfCall::Start(member.clone()),
        UperfCall::GetConfig,
        UperfCall::Set { name: "time".to_owned(), value: Primitive::Int(5) },
        UperfCall::AcceptResults { member, results: Some(results) },
    ];
    let settings = wire::encode_uperf_config(&[("oob", Primitive::Boolean(true))]);
    let objects = calls.iter().map(wire::encode_uperf_call).chain([settings]);
    let bytes = objects.filter_map(|object| match object {
        Object::Serialized(bytes) => bytes,
        _ => None,
    });
    bytes.map(|bytes| bytes.to_vec()).collect()
}

pub(crate) fn primitive(bytes: &[u8]) -> Seen {
    checked(bytes, wire::encode_primitive, wire::decode_primitive)
}

pub(crate) fn primitives() -> Vec<Vec<u8>> {
    named("02", &["buf."])
}

pub(crate) fn exception(bytes: &[u8]) -> Seen {
    let shared = Bytes::copy_from_slice(bytes);
    let (decoded, peak) = bounded(bytes.len(), || wire::decode_exception(&shared));
    if let Ok(text) = &decoded {
        let again = wire::decode_exception(&wire::encode_exception(text));
        assert!(again.is_ok_and(|again| again.starts_with("java.lang.IllegalStateException: ")));
    }
    // A call's failure is a Java stream, of which class and message are picked.
    let payload = Payload::Object(Box::new(Object::Serialized(Some(shared))));
    let (_, of_call) = bounded(bytes.len(), || consort_channel::rpc::failure_text(&payload));
    Seen::one(decoded.is_ok(), peak.max(of_call))
}

pub(crate) fn exceptions() -> Vec<Vec<u8>> {
    let mut all = named("02", &["exception"]);
    all.extend(sessions().into_iter().filter_map(|packet| {
        let start = packet.windows(4).position(|window| window == [0xac, 0xed, 0, 5])?;
        Some(packet[start.checked_sub(1)?..].to_vec())
    }));
    let mut thrown = vec![51, 0xac, 0xed, 0, 5, 0x73, 0x72];
    thrown.extend_from_slice(
        b"\x00\x1ajava.lang.RuntimeException\0\0\0\0\0\0\0\x01\x02\0\0\x78\x70\x71\0\x7e\0\x05\x74\0\x04boom",
    );
    all.push(thrown);
    all
}

pub(crate) fn frame(bytes: &[u8]) -> Seen {
    let shared = Bytes::copy_from_slice(bytes);
    let (decoded, peak) = bounded(bytes.len(), || wire::decode_body(2, &shared));
    if let Ok(message) = &decoded {
        check_message(message, |bytes| wire::decode_body(2, bytes), wire::encode_body);
    }
    let (datagram, of_datagram) = bounded(bytes.len(), || wire::decode_body(0, &shared));
    if let Ok(message) = &datagram {
        check_message(message, |bytes| wire::decode_body(0, bytes), wire::encode_body);
    }
    Seen::one(decoded.is_ok() || datagram.is_ok(), peak.max(of_datagram))
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = lines("11").map(|(_, bytes)| bytes).collect();
    all.extend(lines("25").filter(|(name, _)| name.contains("mping")).map(|(_, bytes)| bytes));
    all
}
