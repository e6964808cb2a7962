//! The byte vectors, for tests of all crates: names and bytes of a file's lines.

use bytes::Bytes;

/// A file of vectors.
pub struct File {
    /// The name, without its suffix.
    pub name: &'static str,
    /// The source whose tests read the whole file, relative to `crates`.
    pub tested_in: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($tested_in:expr => $($name:literal),+;)+) => {
        /// All files.
        pub const FILES: &[File] = &[$($(File {
            name: $name,
            tested_in: $tested_in,
            text: include_str!(concat!("../../group/tests/vectors/", $name, ".hex")),
        }),+),+];
    };
}

files! {
    "group/src/wire/vectors.rs" =>
        "01-primitives", "02-objects", "03-addresses", "04-handshake", "05-messages", "06-wire", "07-headers",
        "08-membership", "09-rpc", "10-gossip", "11-fdsock2", "13-transforms", "20-session-tcp", "21-session-crash",
        "22-session-merge", "23-session-nakack4-unicast4", "24-session-udp", "26-session-asym-encrypt",
        "27-session-sequencer-rsvp-compress-state", "28-session-relay2-bridge",
        "30-session-auth-frag4-statesock-counter", "31-session-asym-key-change", "32-session-relay3-bridge",
        "33-fdsock-cache";
    "channel/src/probe/passcode.rs" => "12-probe";
    "net/tests/vectors.rs" => "25-raw-sockets";
    "router/src/routes.rs" => "29-gossiprouter";
}

/// Returns the names of all files.
pub fn files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.name)
}

/// Returns name, bytes and preceding comment of each line of a file.
///
/// # Panics
///
/// If there is no such file.
pub fn lines(file: &str) -> Vec<(&'static str, Bytes, &'static str)> {
    let text = FILES.iter().find(|one| one.name == file).expect("a file of vectors").text;
    let mut comment = "";
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            comment = rest;
        } else if !line.starts_with('#')
            && let Some((name, hex)) = line.rsplit_once(' ')
        {
            found.push((name, unhex(hex), comment));
        }
    }
    assert!(!found.is_empty(), "{file} has vectors");
    found
}

/// Returns the bytes of the named line of a file.
///
/// # Panics
///
/// If there is no such line.
pub fn vector(file: &str, name: &str) -> Bytes {
    let line = lines(file).into_iter().find(|(own, _, _)| *own == name);
    line.unwrap_or_else(|| panic!("{file} has no {name}")).1
}

fn unhex(text: &str) -> Bytes {
    if text == "-" {
        return Bytes::new();
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits"))
        .collect()
}
