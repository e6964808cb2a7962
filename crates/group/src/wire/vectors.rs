//! Every byte vector decodes, and encodes back. `tests/vectors/README.md` lists the files and other tests of them.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};

use super::addresses::{put_address, put_addresses, put_ip, read_address, read_addresses, read_ip};
use super::headers::{header_size, put_header, read_header};
use super::messages::{Bulk, message_size, put_body, read_body};
use super::objects::{Form, put_primitive, read_primitive};
use super::packets::{Packet, decode_packet, decode_setup, encode_setup, encode_tp};
use super::primitives::*;
use super::rpc::{put_method_call, read_method_call};
use super::views::*;
use super::*;
use crate::vectors::{FILES, files, lines, vector};
use crate::{Address, Header, HeaderBody, Message, Payload, PhysAddr, ProtocolId, Uuid, Version};

#[test]
fn every_file_is_listed() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut there: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".hex").map(str::to_owned)).collect();
    there.sort();
    let mut known: Vec<&str> = files().collect();
    known.sort_unstable();
    assert_eq!(there, known);
}

#[test]
fn every_file_is_read_by_the_tests_it_names() {
    let source = |path: &str| {
        let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let places: BTreeSet<&str> = FILES.iter().map(|file| file.tested_in).collect();
    for file in FILES {
        let readers: Vec<&str> =
            places.iter().copied().filter(|place| reads(&source(place), file.name)).collect();
        assert_eq!(readers, [file.tested_in], "{}", file.name);
    }
}

/// A source reads all lines, or the file's name.
fn reads(source: &str, file: &str) -> bool {
    let goes_through = |what: &str| source.contains(&format!("in lines({what})"));
    if file.contains("session") {
        source.contains("files().filter(|file| file.contains(\"session\"))") && goes_through("file")
    } else if goes_through("\"01-primitives\"") {
        goes_through(&format!("\"{file}\""))
    } else {
        source.contains(&format!("(\"{file}\", "))
    }
}

fn put(write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    write(&mut out);
    out.freeze()
}

fn a() -> Address {
    Address::Uuid(Uuid { most: 0x0102_0304_0506_0708, least: 0x1112_1314_1516_1718 })
}

fn b() -> Address {
    Address::Uuid(Uuid { most: 0x2122_2324_2526_2728, least: 0x3132_3334_3536_3738 })
}

#[test]
fn primitives() {
    for (name, bytes, _) in lines("01-primitives") {
        let mut reader = Reader::new(&bytes);
        let (kind, value) = name.split_once('.').unwrap();
        let again = match kind {
            "int" => {
                let number = reader.compressed_int("int").unwrap();
                assert_eq!(number.to_string(), value);
                put(|out| put_compressed_int(out, number))
            }
            "long" => {
                let number = reader.compressed_long("long").unwrap();
                assert_eq!(number.to_string(), value);
                assert_eq!(compressed_long_length(number), bytes.len());
                put(|out| put_compressed_long(out, number))
            }
            "seq" => {
                let (hd, hr) = reader.long_sequence("seq").unwrap();
                assert_eq!(format!("{hd}.{hr}"), value);
                put(|out| put_long_sequence(out, hd, hr))
            }
            "str" => {
                let text = reader.string("str").unwrap();
                let wanted = match value {
                    "null" => None,
                    "empty" => Some(""),
                    "umlaut" => Some("zürich€"),
                    "nul" => Some("a\0b"),
                    "astral" => Some("\u{1F600}"),
                    other => Some(other),
                };
                assert_eq!(text.as_deref(), wanted);
                put(|out| put_string(out, text.as_deref()))
            }
            "ustr" => {
                let text = reader.tagged_string("ustr").unwrap();
                assert_eq!(text, if value == "umlaut" { "zürich" } else { value });
                put(|out| put_tagged_string(out, &text))
            }
            "ascii" => {
                let text =
                    reader.ascii("ascii").unwrap().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
                assert_eq!(text.as_deref().unwrap_or("null"), value);
                put(|out| put_ascii(out, text.as_deref()))
            }
            "bytebuf" => {
                let buffer = reader.byte_buffer("bytebuf").unwrap();
                assert_eq!(buffer.as_deref(), Some(&[1u8, 2, 3][..]));
                put(|out| put_byte_buffer(out, buffer.as_ref()))
            }
            "version" => {
                let version = Version(reader.u16("version").unwrap());
                assert_eq!(version.to_string(), value);
                Bytes::copy_from_slice(&version.0.to_be_bytes())
            }
            other => panic!("untested kind {other}"),
        };
        reader.end().unwrap();
        assert_eq!(again, bytes, "{name}");
    }
}

#[test]
fn addresses() {
    for (name, bytes, _) in lines("03-addresses") {
        let mut reader = Reader::new(&bytes);
        let again = if name.ends_with(".raw") {
            let ip = read_ip(&mut reader).unwrap();
            put(|out| put_ip(out, ip))
        } else if name.starts_with("list") {
            let list = read_addresses(&mut reader).unwrap();
            put(|out| put_addresses(out, list.as_deref()))
        } else {
            let address = read_address(&mut reader).unwrap();
            put(|out| put_address(out, address.as_ref()))
        };
        reader.end().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(again, bytes, "{name}");
    }
}

#[test]
fn set_up_bytes() {
    for (name, bytes, _) in lines("04-handshake") {
        if name == "graceful_close" {
            assert_eq!(bytes[..], (-5i32).to_be_bytes());
            continue;
        }
        let (version, ip, used) = decode_setup(&bytes).unwrap().unwrap();
        assert_eq!(used, bytes.len(), "{name}");
        assert_eq!(encode_setup(version, ip), bytes, "{name}");
        for end in 0..bytes.len() {
            assert_eq!(decode_setup(&bytes[..end]), Ok(None), "{name} cut at {end}");
        }
    }
}

/// S003-3, S003-12
#[test]
fn headers() {
    for (name, bytes, _) in lines("07-headers") {
        let mut reader = Reader::new(&bytes);
        let header = read_header(&mut reader).unwrap_or_else(|error| panic!("{name}: {error}"));
        reader.end().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(put(|out| put_header(out, &header)), bytes, "{name}");
        assert_eq!(header_size(&header), bytes.len(), "{name}");
        for end in 0..bytes.len() {
            assert!(read_header(&mut Reader::new(&bytes.slice(..end))).is_err(), "{name} cut at {end}");
        }
    }
    let gms = vector("07-headers", "gms.mergersp.rejected");
    match read_header(&mut Reader::new(&gms)).unwrap() {
        Header { id: ProtocolId::GMS, body: HeaderBody::Gms(gms) } => {
            assert!(gms.merge_rejected);
            assert_eq!(gms.merge_id.map(|id| (id.initiator, id.id)), Some((a(), 1)));
        }
        other => panic!("{other:?}"),
    }
}

/// S003-8: the size does not depend on the protocol's name.
#[test]
fn header_ids_take_four_bytes() {
    let heartbeat = Header { id: ProtocolId::FD_ALL3, body: HeaderBody::Heartbeat };
    assert_eq!(put(|out| put_header(out, &heartbeat)).len(), 4);
}

#[test]
fn message_bodies() {
    for (name, bytes, _) in lines("05-messages") {
        let kind = match name.split('.').next().unwrap() {
            "empty" | "m2b" => 2,
            "nio" => 1,
            "long" => 4,
            "obj" => 3,
            "composite" if !name.ends_with("collapse") => 5,
            "fragmented" => {
                if name.ends_with("orig") {
                    3
                } else {
                    6
                }
            }
            "batch" => 7,
            _ => 0,
        };
        match name {
            "m2b" => {
                let message = decode_typed(&bytes).unwrap();
                assert_eq!((&message.dest, &message.src), (&Some(b()), &Some(a())));
                assert_eq!(encode_typed(&message), bytes);
            }
            "noaddrs" | "noaddrs.othersrc" => {
                let list_src =
                    if name == "noaddrs" { a() } else { Address::Uuid(Uuid { most: 9, least: 9 }) };
                let mut reader = Reader::new(&bytes);
                let message = read_body(&mut reader, 0, Some(&b()), Some(&list_src), &[]).unwrap();
                assert_eq!(message.src, Some(a()));
                assert_eq!(
                    put(|out| put_body(out, &message, Some(Some(&list_src)), &[], Bulk::Copied)),
                    bytes
                );
            }
            _ => {
                let message = decode_body(kind, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(encode_body(&message), bytes, "{name}");
                assert_eq!(message_size(&message, 0, None), bytes.len() + 2, "{name}");
            }
        }
    }
    let body = |name: &str| vector("05-messages", name);
    assert_eq!(decode_body(0, &body("bytes")).unwrap().payload, Payload::Bytes(Some("hello".into())));
    assert_eq!(decode_body(0, &body("bytes.null")).unwrap().payload, Payload::Bytes(None));
    assert_eq!(decode_body(0, &body("bytes.zero")).unwrap().payload, Payload::Bytes(Some(Bytes::new())));
    assert_eq!(decode_body(4, &body("long")).unwrap().payload, Payload::Long(322_649));
}

#[test]
fn values_in_both_forms() {
    for (name, bytes, _) in lines("02-objects") {
        let (form, kind) = name.split_once('.').unwrap_or((name, ""));
        let form = match form {
            "buf" => Form::Buffer,
            "stream" => Form::Stream,
            // Java-serialized streams and exceptions stay opaque.
            _ => continue,
        };
        let mut reader = Reader::new(&bytes);
        match read_primitive(&mut reader, form) {
            Ok(value) => {
                reader.end().unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(put(|out| put_primitive(out, &value, form)), bytes, "{name}");
            }
            Err(_) => assert!(matches!(bytes[0], 50 | 51), "{name} ({kind}) is an object or a Java stream"),
        }
    }
}

#[test]
fn membership_payloads() {
    for (name, bytes, _) in lines("08-membership") {
        let mut reader = Reader::new(&bytes);
        let again = match name {
            "pingdata" | "pingdata.coord" | "pingdata.mbrs" => {
                let data = read_ping_data(&mut reader).unwrap();
                assert_eq!((data.sender.clone(), data.is_coordinator), (a(), name == "pingdata.coord"));
                put(|out| put_ping_data(out, &data))
            }
            "ping.payload" => encode_ping_data(&decode_ping_data(&bytes).unwrap()),
            "viewid" => put(|out| put_view_id(out, &read_view_id(&mut reader).unwrap())),
            "view" => put(|out| put_view(out, &read_view(&mut reader, false).unwrap())),
            "mergeview" | "mergeview.foreign" => {
                put(|out| put_view(out, &read_view(&mut reader, true).unwrap()))
            }
            "digest" => put(|out| put_digest(out, &read_digest(&mut reader).unwrap())),
            "joinrsp" | "joinrsp.mergeview" | "joinrsp.fail" => {
                let rsp = decode_join_rsp(&bytes).unwrap();
                assert_eq!(rsp.fail_reason.is_some(), name == "joinrsp.fail");
                put(|out| {
                    put_bool(out, true);
                    put_join_rsp(out, &rsp);
                })
            }
            "gms.members" => encode_address_list(&decode_address_list(&bytes).unwrap()),
            "gms.viewid" => encode_view_id_option(decode_view_id_option(&bytes).unwrap().as_ref()),
            "seqnolist" | "seqnolist.65" => {
                let list = read_seqno_list(&mut reader).unwrap();
                let seqnos: Vec<u64> = list.iter().collect();
                assert_eq!(seqnos, if name == "seqnolist" { vec![5, 7, 14] } else { vec![100, 164] });
                put(|out| put_seqno_list(out, &list))
            }
            "xmitreq.msg" | "stable.msg" => encode_body(&decode_body(3, &bytes).unwrap()),
            _ if name.starts_with("gms.") => {
                let (view, digest) = decode_view_and_digest(&bytes).unwrap();
                encode_view_and_digest(view.as_ref(), digest.as_ref())
            }
            // Covered by the payloads above that contain them.
            "deltaview" | "writeview" | "digest.noaddrs" => continue,
            other => panic!("untested vector {other}"),
        };
        assert_eq!(again, bytes, "{name}");
    }
}

/// JGroups' bytes, also of a payload whose end follows uncopied.
#[test]
fn messages_for_routers_have_the_bytes_of_jgroups() {
    for name in ["message", "message.all"] {
        let bytes = vector("10-gossip", name);
        let data = decode_gossip(&bytes).unwrap();
        let sender = data.sender.as_ref().unwrap();
        for tail in 0..=data.payload.len() {
            let (head, rest) = data.payload.split_at(data.payload.len() - tail);
            let frame = encode_gossip_message(data.group.as_deref(), data.addr.as_ref(), sender, head, tail);
            assert_eq!([&frame[..], rest].concat(), bytes, "{name}, {tail}");
        }
    }
}

#[test]
fn router_frames() {
    for (name, bytes, _) in lines("10-gossip") {
        let data = decode_gossip(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let kind = match name {
            "register" => GossipKind::Register,
            "unregister" => GossipKind::Unregister,
            "getmbrs" => GossipKind::GetMembers,
            "getmbrsrsp" => GossipKind::LastMembers,
            "message" | "message.all" => GossipKind::Message,
            "heartbeat" => GossipKind::Heartbeat,
            "suspect" => GossipKind::Suspect,
            other => panic!("untested vector {other}"),
        };
        assert_eq!(data.kind, kind, "{name}");
        assert_eq!(data.group.as_deref(), (name != "heartbeat").then_some("demo"), "{name}");
        match name {
            "register" => assert_eq!((&data.addr, data.name.as_deref()), (&Some(a()), Some("n1"))),
            "getmbrsrsp" => assert!(data.members[0].sender == a() && data.members[0].is_server),
            "message" => assert_eq!((&data.addr, &data.sender), (&Some(b()), &Some(a()))),
            "message.all" => assert_eq!((&data.addr, &data.payload[..]), (&None, &[1, 2, 3][..])),
            _ => {}
        }
        assert_eq!(encode_gossip(&data), bytes, "{name}");
        for end in 0..bytes.len() {
            assert!(decode_gossip(&bytes.slice(..end)).is_err(), "{name} cut at {end}");
        }
    }
}

#[test]
fn method_calls() {
    for (name, bytes, _) in lines("09-rpc") {
        if name == "objmsg" {
            let message = decode_body(3, &bytes).unwrap();
            let Payload::Object(object) = &message.payload else { panic!("an object") };
            let call = decode_method_call(object).unwrap();
            assert_eq!(encode_method_call(&call), **object);
            assert_eq!(encode_body(&message), bytes);
            continue;
        }
        let mut reader = Reader::new(&bytes);
        let call = read_method_call(&mut reader).unwrap_or_else(|error| panic!("{name}: {error}"));
        reader.end().unwrap();
        assert_eq!(put(|out| put_method_call(out, &call)), bytes, "{name}");
    }
}

#[test]
fn fd_sock2_frames_are_bodies_of_empty_messages() {
    for (name, bytes, _) in lines("11-fdsock2") {
        assert_eq!(encode_body(&decode_body(2, &bytes).unwrap()), bytes, "{name}");
    }
}

/// The order in Java's list is that of its hash table.
#[test]
fn socket_addresses_are_read_and_written_as_jgroups_does() {
    for (name, bytes, _) in lines("33-fdsock-cache") {
        let all = decode_socket_addresses(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let v4 = (a(), "192.168.1.5:7900");
        let v6 = (b(), "[2001:db8::1]:7901");
        let expected = match name {
            "none" => vec![],
            "one" => vec![v4],
            _ => vec![v4, v6],
        };
        let mut texts: Vec<_> =
            all.iter().map(|(member, address)| (member.clone(), address.socket_addr().to_string())).collect();
        texts.sort();
        let expected: Vec<_> = expected.into_iter().map(|(member, text)| (member, text.to_owned())).collect();
        assert_eq!(texts, expected, "{name}");
        assert_eq!(
            encode_socket_addresses(all.iter().map(|(member, address)| (member, *address))),
            bytes,
            "{name}"
        );
        for end in 0..bytes.len() {
            assert!(decode_socket_addresses(&bytes.slice(..end)).is_err(), "{name} cut at {end}");
        }
    }
}

#[test]
fn socket_addresses_beyond_the_bound_are_refused() {
    let one = PhysAddr::new([127, 0, 0, 1].into(), 1);
    let member = a();
    let encoded = |count| encode_socket_addresses(std::iter::repeat_n((&member, one), count));
    assert_eq!(decode_socket_addresses(&encoded(SOCKET_ADDRESSES_MAX)).unwrap().len(), SOCKET_ADDRESSES_MAX);
    assert!(decode_socket_addresses(&encoded(SOCKET_ADDRESSES_MAX + 1)).is_err());
}

#[test]
fn transformed_messages() {
    for (name, bytes, _) in lines("13-transforms") {
        let kind = match name {
            "symencrypt.key" => continue,
            "symencrypt.empty" => 2,
            _ if name.starts_with("frag4") => 6,
            _ => 0,
        };
        let message = decode_body(kind, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(encode_body(&message), bytes, "{name}");
    }
}

fn check_comment(comment: &str, message: &Message, at: &str) {
    let kind = match &message.payload {
        Payload::Bytes(_) => "BytesMessage",
        Payload::Nio { .. } => "NioMessage",
        Payload::Empty => "EmptyMessage",
        Payload::Object(_) => "ObjectMessage",
        Payload::Long(_) => "LongMessage",
        Payload::Composite(_) => "CompositeMessage",
        Payload::Fragment(_) => "FragmentedMessage",
        Payload::Batch(_) => "BatchMessage",
    };
    assert!(comment.starts_with(kind), "{at}: {kind} vs {comment}");
    let flags = format!("flags=[{}]", message.flags);
    assert!(comment.contains(&flags), "{at}: {flags} vs {comment}");
    let length = format!("len={} ", message.length());
    assert!(comment.contains(&length), "{at}: {length} vs {comment}");
    for header in &message.headers.0 {
        let name = format!("{}: ", header.id);
        let name = if header.id == ProtocolId::TP { "TP: ".to_owned() } else { name };
        assert!(comment.contains(&name) || header.id.0 >= 200, "{at}: {name} vs {comment}");
    }
}

#[test]
fn captured_sessions() {
    let mut packets = 0;
    for file in files().filter(|file| file.contains("session")) {
        for (name, bytes, comment) in lines(file) {
            let at = format!("{file} {name}");
            let decoded = decode_packet(&bytes, &[]).unwrap_or_else(|error| panic!("{at}: {error}"));
            let again = match &decoded {
                Packet::Single { version, message, .. } => {
                    check_comment(comment, message, &at);
                    put(|out| write_single(out, *version, message, &[], Bulk::Copied))
                }
                Packet::List { version, dest, src, cluster, messages, .. } => put(|out| {
                    let cluster = cluster.as_deref().unwrap();
                    let start = begin_list(out, *version, dest.as_ref(), src.as_ref(), cluster);
                    messages
                        .iter()
                        .for_each(|message| append_to_list(out, message, src.as_ref(), &[], Bulk::Copied));
                    finish_list(out, start, messages.len() as u32);
                }),
            };
            assert_eq!(again, bytes, "{at}");
            for end in 0..bytes.len() {
                assert!(decode_packet(&bytes.slice(..end), &[]).is_err(), "{at} cut at {end}");
            }
            packets += 1;
        }
    }
    for (name, bytes, _) in lines("06-wire") {
        let tp = encode_tp("demo");
        let with_fast_path = decode_packet(&bytes, &tp).unwrap();
        let again = match &with_fast_path {
            Packet::Single { version, message, .. } => {
                put(|out| write_single(out, *version, message, &tp, Bulk::Copied))
            }
            Packet::List { version, dest, src, cluster, messages, .. } => put(|out| {
                let start =
                    begin_list(out, *version, dest.as_ref(), src.as_ref(), cluster.as_deref().unwrap());
                messages
                    .iter()
                    .for_each(|message| append_to_list(out, message, src.as_ref(), &tp, Bulk::Copied));
                finish_list(out, start, messages.len() as u32);
            }),
        };
        assert_eq!(again, bytes, "{name}");
    }
    assert_eq!(packets, 300, "packets of all sessions");
}

#[test]
fn nested_messages_have_a_limit() {
    let mut message = Message::empty(None);
    for _ in 0..=NESTING_MAX {
        message = Message::new(None, Payload::Composite(vec![message]));
    }
    assert_eq!(decode_typed(&encode_typed(&message)), Err(WireError::TooDeep));
}
