use bytes::BytesMut;
use consort_group::{Rng, Version, wire};
use consort_net::framing::{Frame, decode_setup, encode_setup, next_frame, read_capacity};

use crate::bounds::{AT_LEAST, PER_BYTE, bounded_by};
use crate::seen::Seen;
use crate::vectors::{lines, sessions};

/// Short, so that inputs reach it.
const FRAME_LEN_MAX: usize = 32 * 1024;

const READ_LEN: usize = 4 * 1024;

#[derive(Default, PartialEq, Eq, Debug)]
struct Heard {
    peer: Option<String>,
    frames: Vec<Frame>,
    wrong: Option<String>,
}

fn listen(bytes: &[u8], mut piece: impl FnMut() -> usize) -> Heard {
    let mut heard = Heard::default();
    let mut input = BytesMut::new();
    let mut rest = bytes;
    loop {
        if heard.peer.is_none() {
            match decode_setup(&input, |version| version.is_compatible(Version::V5_5_7)) {
                Ok(Some((peer, used))) => {
                    drop(input.split_to(used));
                    heard.peer = Some(peer.to_string());
                }
                Ok(None) => {}
                Err(error) => {
                    heard.wrong = Some(error.to_string());
                    return heard;
                }
            }
        }
        while heard.peer.is_some() {
            match next_frame(&mut input, FRAME_LEN_MAX) {
                Ok(Some(frame)) => heard.frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    heard.wrong = Some(error.to_string());
                    return heard;
                }
            }
        }
        if rest.is_empty() {
            return heard;
        }
        // A false length does not reserve memory for bytes that never arrive.
        let room = read_capacity(&input, READ_LEN);
        assert!(room <= READ_LEN.max(2 * input.len()), "{room} bytes of room after {}", input.len());
        let (now, later) = rest.split_at(piece().clamp(1, room).min(rest.len()));
        input.extend_from_slice(now);
        rest = later;
    }
}

pub(crate) fn connection(bytes: &[u8]) -> Seen {
    let limit = AT_LEAST + READ_LEN as u64 + PER_BYTE * bytes.len() as u64;
    let (heard, peak) = bounded_by(limit, || listen(bytes, || READ_LEN));
    // The output is the same, however the network cuts the input.
    let mut rng = Rng::new(bytes.len() as u64);
    let in_pieces = listen(bytes, || 1 + rng.below(64) as usize);
    assert_eq!(heard, in_pieces);
    let mut accepted = false;
    for frame in &heard.frames {
        if let Frame::Payload(payload) = frame {
            assert!((1..=FRAME_LEN_MAX).contains(&payload.len()));
            accepted |= wire::decode_packet(payload, &[]).is_ok();
        }
    }
    // Tools read set-up bytes with a decoder of their own; both decoders agree on their number.
    let tool = wire::decode_setup(bytes);
    if let Ok(Some((peer, used))) = decode_setup(bytes, |_| true) {
        let Ok(Some((version, own, length))) = tool else { panic!("{tool:?} of set-up bytes of {peer}") };
        assert_eq!(length, used);
        assert_eq!(own.port, peer.port);
        let again = encode_setup(version, peer);
        assert_eq!(decode_setup(&again, |_| true), Ok(Some((peer, again.len()))));
    }
    Seen::one(accepted || heard.peer.is_some(), peak)
}

pub(crate) fn connections() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        lines("25").map(|(_, bytes)| bytes).chain(lines("04").map(|(_, bytes)| bytes)).collect();
    let framed = |packets: &[Vec<u8>]| -> Vec<u8> {
        packets
            .iter()
            .flat_map(|packet| [&(packet.len() as u32).to_be_bytes()[..], packet].concat())
            .collect()
    };
    let packets = sessions();
    for (nth, some) in packets.chunks(6).enumerate() {
        let own: std::net::SocketAddr = if nth % 2 == 0 {
            ([127, 0, 0, 1], 7800).into()
        } else {
            (std::net::Ipv6Addr::LOCALHOST, 7800).into()
        };
        let mut bytes: Vec<u8> = encode_setup(Version::V5_5_7, own.into()).into();
        bytes.extend(framed(some));
        bytes.extend((-5i32).to_be_bytes());
        all.push(bytes);
    }
    all
}
