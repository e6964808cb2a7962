use std::time::Duration;

use consort_capture::{Kind, Streams, is_pcap, packets, unhex};
use consort_channel::probe::{ANSWER_LEN_MAX, Answerer, PASSCODE_PREFIX, checked, passcode_prefix};
use consort_group::{Time, Version, wire};
use consort_net::framing::encode_setup;

use crate::bounds::{bounded, bounded_by};
use crate::cluster;
use crate::seen::Seen;
use crate::vectors::sessions;

pub(crate) fn capture(bytes: &[u8]) -> Seen {
    let (payloads, peak) = bounded(bytes.len(), || {
        if is_pcap(bytes) {
            let mut streams = Streams::default();
            let whole = packets(bytes).map_while(Result::ok);
            whole
                .flat_map(|packet| streams.payloads(&packet))
                .map(|payload| (payload.kind, payload.bytes))
                .collect()
        } else {
            let text = String::from_utf8_lossy(bytes);
            let lines = text.lines().filter_map(|line| unhex(line.rsplit_once(' ')?.1).ok());
            lines.map(|bytes| (Kind::Packet, bytes)).collect::<Vec<_>>()
        }
    });
    let mut decoded = 0;
    for (kind, payload) in &payloads {
        match kind {
            Kind::Packet => decoded += u64::from(wire::decode_packet(payload, &[]).is_ok()),
            Kind::Setup => drop(wire::decode_setup(payload)),
            Kind::Goodbye => assert!(payload.len() == 4 && payload[0] & 0x80 != 0),
        }
    }
    Seen::one(decoded > 0, peak)
}

/// `link` is the number of the link layer's type.
fn pcap(link: u32, is_little: bool, packets: &[Vec<u8>]) -> Vec<u8> {
    let number = |value: u32| if is_little { value.to_le_bytes() } else { value.to_be_bytes() };
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link] {
        file.extend(number(word));
    }
    for packet in packets {
        for word in [1, 2, packet.len() as u32, packet.len() as u32] {
            file.extend(number(word));
        }
        file.extend(packet);
    }
    file
}

fn ipv4(protocol: u8, content: &[u8]) -> Vec<u8> {
    let total = (20 + content.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, protocol, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    [ip, content.to_vec()].concat()
}

fn ipv6(protocol: u8, content: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend((content.len() as u16).to_be_bytes());
    ip.extend([protocol, 64]);
    ip.extend([0; 15].iter().chain(&[1]).chain(&[0; 15]).chain(&[1]));
    [ip, content.to_vec()].concat()
}

fn udp(content: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0x1e, 0x78, 0x1e, 0x79];
    datagram.extend((8 + content.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    [datagram, content.to_vec()].concat()
}

fn tcp(number: u32, is_start: bool, content: &[u8]) -> Vec<u8> {
    let mut segment = vec![0x1e, 0x78, 0x1e, 0x79];
    segment.extend(number.to_be_bytes());
    segment.extend([0, 0, 0, 0, 0x50, if is_start { 2 } else { 16 }, 1, 0, 0, 0, 0, 0]);
    [segment, content.to_vec()].concat()
}

pub(crate) fn captures() -> Vec<Vec<u8>> {
    let sessions = sessions();
    let mut all = Vec::new();
    for (nth, some) in sessions.chunks(8).enumerate() {
        let (link, head) = [(1, 14), (113, 16), (276, 20), (0, 4), (101, 0)][nth % 5];
        let linked = |ip: Vec<u8>| [vec![0; head], ip].concat();
        let mut packets: Vec<Vec<u8>> = some.iter().map(|packet| linked(ipv4(17, &udp(packet)))).collect();
        let own: std::net::SocketAddr = ([127, 0, 0, 1], 7800).into();
        let mut number = 1_000;
        packets.push(linked(ipv6(6, &tcp(number, true, &[]))));
        number += 1;
        let mut stream: Vec<u8> = encode_setup(Version::V5_5_7, own.into()).into();
        for packet in some {
            stream.extend((packet.len() as u32).to_be_bytes());
            stream.extend(packet);
        }
        stream.extend((-5i32).to_be_bytes());
        for piece in stream.chunks(300) {
            packets.push(linked(ipv6(6, &tcp(number, false, piece))));
            number += piece.len() as u32;
        }
        all.push(pcap(link, nth % 2 == 0, &packets));
    }
    let hex = |packet: &Vec<u8>| packet.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    all.push(
        sessions
            .iter()
            .take(6)
            .map(|packet| format!("line {}\n", hex(packet)))
            .collect::<String>()
            .into_bytes(),
    );
    all
}

/// A member lives on this long after a request, with a bound of timer wakes.
const LIVES_FOR: Duration = Duration::from_secs(5);
const WAKES_MAX: usize = 200;

/// An answer's text, which grows by doubling, and the values of one more key.
const ANSWER_MEMORY: u64 = 8 * ANSWER_LEN_MAX as u64;

pub(crate) fn probe(bytes: &[u8]) -> Seen {
    for passcode in [None, Some("secret")] {
        if let Some(text) = checked(bytes, passcode) {
            assert!(bytes.ends_with(text));
            assert_eq!(bytes.len() - text.len(), if passcode.is_some() { PASSCODE_PREFIX } else { 0 });
        }
    }
    let text = checked(bytes, Some("secret")).unwrap_or(bytes);
    let text = String::from_utf8_lossy(text);
    let (mut stack, now) = cluster::alone();
    let (answer, peak) = bounded_by(ANSWER_MEMORY, || Answerer::default().answer(&mut stack, now, &text));
    // The member lives on and answers after any request.
    let now = cluster::run_alone(&mut stack, now, LIVES_FOR, WAKES_MAX);
    let after = Answerer::default().answer(&mut stack, now, "").unwrap_or_default();
    assert!(after.contains("cluster=fuzz"), "{after}");
    Seen::one(answer.is_some(), peak)
}

pub(crate) fn requests() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        "",
        "keys",
        "member-addrs uuids",
        "props",
        "jmx",
        "jmx=GMS",
        "jmx=NAKACK2.xmit_interval,max",
        "dump-digest drops",
        "cluster=fuzz pp",
        "cluster=f.*z jmx=TCP.bundler",
        "jmx=UFC.max_credits=1M",
        "UNICAST3.xmit_interval=100",
        "op=TCP.bundler[no-bundler]",
        "invoke=STABLE.gc[]",
        "op=NAKACK2.printMessages[\"a\",b]",
        "GMS.print_local_addr=true",
        "op=TCP.bundler[per-destination]",
        "FD_ALL3.timeout=1s FD_ALL3.interval=5ms",
        "MERGE3.min_interval=1s",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    all.push([passcode_prefix("secret", 7, 0.5), b"props".to_vec()].concat());
    let (stack, _): (consort_group::Stack, Time) = cluster::alone();
    for (name, _) in stack.layers() {
        for (attribute, value) in stack.probe(name).map(|out| out.attributes).unwrap_or_default() {
            all.push(
                format!("{name}.{attribute}={}", value.split_whitespace().next().unwrap_or("1")).into_bytes(),
            );
        }
    }
    all
}
