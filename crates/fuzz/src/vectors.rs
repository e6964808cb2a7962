//! The bytes of the facts, to begin from.

macro_rules! files {
    ($($file:literal),+ $(,)?) => {
        const FILES: &[(&str, &str)] =
            &[$(($file, include_str!(concat!("../../group/tests/vectors/", $file, ".hex")))),+];
    };
}

files! {
    "02-objects", "03-addresses", "04-handshake", "05-messages", "06-wire", "07-headers", "08-membership", "09-rpc",
    "11-fdsock2", "12-probe", "13-transforms", "20-session-tcp", "21-session-crash", "22-session-merge",
    "23-session-nakack4-unicast4", "24-session-udp", "25-raw-sockets", "26-session-asym-encrypt",
    "27-session-sequencer-rsvp-compress-state", "28-session-relay2-bridge",
    "30-session-auth-frag4-statesock-counter", "31-session-asym-key-change", "32-session-relay3-bridge",
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16));
    pairs.collect::<Result<_, _>>().unwrap_or_default()
}

/// Names and bytes of all lines of the files whose names begin so.
pub fn lines(file: &str) -> impl Iterator<Item = (&'static str, Vec<u8>)> + use<'_> {
    let texts = FILES.iter().filter(move |(name, _)| name.starts_with(file)).map(|(_, text)| *text);
    let lines = texts.flat_map(str::lines).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit_once(' ')).map(|(name, hex)| (name, unhex(hex)))
}

/// The bytes of the lines of these names' beginnings.
pub fn named(file: &str, names: &[&str]) -> Vec<Vec<u8>> {
    lines(file)
        .filter(|(name, _)| names.iter().any(|start| name.starts_with(start)))
        .map(|(_, bytes)| bytes)
        .collect()
}

/// All packets of the captured sessions.
pub fn sessions() -> Vec<Vec<u8>> {
    let files = FILES.iter().map(|(name, _)| *name).filter(|name| name.contains("session"));
    files.flat_map(lines).map(|(_, bytes)| bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_something_to_begin_from() {
        assert_eq!(sessions().len(), 300);
        assert_eq!(named("08", &["joinrsp"]).len(), 3);
    }
}
