//! Mutations that turn real bytes into hostile ones.

use consort_group::Rng;

/// The shape of inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Binary.
    Bytes,
    /// Text.
    Text,
    /// Packets of a cluster, and events between them.
    Round,
}

/// The longest input, so that none of the two million costs a second.
pub const LEN_MAX: usize = 64 * 1024;

/// Values at which lengths and counts go wrong.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    0x0f,
    0x10,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

const WORDS: &[&str] = &[
    "${",
    "}",
    "${a:",
    "${a,b:c}",
    ":",
    ",",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    "*",
    "\\",
    "\"",
    "'",
    "<",
    ">",
    "/>",
    "&amp;",
    "&",
    "-1",
    "0",
    "1e308",
    "NaN",
    "inf",
    "1e-400",
    "99999999999999999999",
    "18446744073709551615",
    "-0",
    "1_000",
    "5ms",
    "1d",
    "1e30d",
    "9G",
    "1e300K",
    "\u{0}",
    "\u{fffd}",
    "ü",
    "\u{1f600}",
    " ",
    "\n",
    "\t",
    "=",
    "match-interface:",
    "match-address:",
    "match-host:",
    "SITE_LOCAL",
    "::1",
    "fe80::1%1",
    "0.0.0.0",
    "true",
    "false",
    "T",
    "op=",
    "jmx=",
    "props",
    "cluster=",
    "uuids",
    "drops",
    ".*",
    "(a{9}){9}",
    "<include file=\"tcp.xml\"/>",
    "<UFC/>",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
];

fn at(rng: &mut Rng, length: usize) -> usize {
    rng.below(length as u64) as usize
}

fn span(rng: &mut Rng, length: usize) -> std::ops::Range<usize> {
    let start = at(rng, length + 1);
    // Mostly short: fields, not halves.
    let most = if rng.chance(0.8) { 16 } else { length };
    let count = at(rng, most.min(length - start) + 1);
    start..start + count
}

/// Returns a mutated copy of one of these inputs.
pub fn mutated(rng: &mut Rng, corpus: &[Vec<u8>], shape: Shape) -> Vec<u8> {
    let mut bytes = corpus.get(at(rng, corpus.len())).cloned().unwrap_or_default();
    let mut count = 1;
    while count < 12 && rng.chance(0.5) {
        count += 1;
    }
    for _ in 0..count {
        mutate(rng, &mut bytes, corpus, shape);
    }
    bytes.truncate(LEN_MAX);
    bytes
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], shape: Shape) {
    let length = bytes.len();
    let kinds = if shape == Shape::Text { 16 } else { 12 };
    match rng.below(kinds) {
        _ if length == 0 => {
            let count = rng.between(1, 16);
            bytes.extend((0..count).map(|_| rng.next_u64() as u8));
        }
        kind @ 0..=3 => change_byte(rng, bytes, kind),
        4 | 5 => change_field(rng, bytes),
        6 => bytes.truncate(at(rng, length)),
        7 => drop(bytes.drain(span(rng, length))),
        8 => repeat_span(rng, bytes),
        9 => {
            let place = at(rng, length + 1);
            let count = rng.between(1, 8);
            let fresh: Vec<u8> = (0..count).map(|_| rng.next_u64() as u8).collect();
            bytes.splice(place..place, fresh);
        }
        // The end of another input.
        10 => {
            let other = &corpus[at(rng, corpus.len())];
            bytes.truncate(at(rng, length + 1));
            bytes.extend_from_slice(&other[at(rng, other.len() + 1)..]);
        }
        // A piece of another input.
        11 => {
            let other = &corpus[at(rng, corpus.len())];
            let piece = other[span(rng, other.len())].to_vec();
            let place = span(rng, length);
            bytes.splice(place, piece);
        }
        12 | 13 => {
            let place = at(rng, length + 1);
            bytes.splice(place..place, WORDS[at(rng, WORDS.len())].bytes());
        }
        14 => replace_value(rng, bytes),
        _ => {
            let value = EDGES[at(rng, EDGES.len())].to_string();
            let place = span(rng, length);
            bytes.splice(place, value.bytes());
        }
    }
}

fn change_byte(rng: &mut Rng, bytes: &mut [u8], kind: u64) {
    let length = bytes.len();
    match kind {
        0 => bytes[at(rng, length)] ^= 1 << rng.below(8),
        1 => bytes[at(rng, length)] = rng.next_u64() as u8,
        2 => bytes[at(rng, length)] = EDGES[at(rng, 12)] as u8,
        _ => {
            let place = at(rng, length);
            bytes[place] = bytes[place].wrapping_add(rng.between(1, 8) as u8).wrapping_sub(4);
        }
    }
}

/// Two, four or eight bytes, as lengths are.
fn change_field(rng: &mut Rng, bytes: &mut [u8]) {
    let width = 2 << rng.below(3);
    let Some(places) = (bytes.len() + 1).checked_sub(width).filter(|&places| places > 0) else { return };
    let place = at(rng, places);
    let field = &mut bytes[place..place + width];
    let old = field.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    let new = if rng.chance(0.5) {
        EDGES[at(rng, EDGES.len())]
    } else {
        old.wrapping_add(rng.between(0, 32)).wrapping_sub(16)
    };
    field.copy_from_slice(&new.to_be_bytes()[8 - width..]);
}

fn repeat_span(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let length = bytes.len();
    let copy = bytes[span(rng, length)].to_vec();
    let times = if rng.chance(0.1) { rng.between(2, 64) } else { 1 };
    let place = at(rng, length + 1);
    for _ in 0..times {
        if bytes.len() < LEN_MAX {
            bytes.splice(place..place, copy.iter().copied());
        }
    }
}

fn replace_value(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let length = bytes.len();
    let start = at(rng, length);
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let from = bytes[..start].iter().rposition(|byte| !is_part(byte)).map_or(0, |place| place + 1);
    let to = bytes[start..].iter().position(|byte| !is_part(byte)).map_or(length, |place| start + place);
    bytes.splice(from..to.max(from), WORDS[at(rng, WORDS.len())].bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_inputs_again() {
        let corpus = [b"hello world".to_vec(), vec![0; 40]];
        let inputs = |seed| {
            let mut rng = Rng::new(seed);
            (0..1_000).map(|_| mutated(&mut rng, &corpus, Shape::Text)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(3).iter().filter(|input| !corpus.contains(input)).count() > 900);
    }
}
