//! The bytes of the facts, as first inputs.

use consort_testbed::vectors as all;

/// Returns names and bytes of all lines of the files with this prefix.
pub fn lines(file: &str) -> impl Iterator<Item = (&'static str, Vec<u8>)> + use<'_> {
    let files = all::files().filter(move |name| name.starts_with(file));
    files.flat_map(all::lines).map(|(name, bytes, _)| (name, bytes.to_vec()))
}

/// Returns the bytes of the lines whose names have these prefixes.
pub fn named(file: &str, names: &[&str]) -> Vec<Vec<u8>> {
    lines(file)
        .filter(|(name, _)| names.iter().any(|start| name.starts_with(start)))
        .map(|(_, bytes)| bytes)
        .collect()
}

/// Returns all packets of the captured sessions.
pub fn sessions() -> Vec<Vec<u8>> {
    let files = all::files().filter(|name| name.contains("session"));
    files.flat_map(lines).map(|(_, bytes)| bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_sessions_are_found() {
        assert_eq!(sessions().len(), 300);
        assert_eq!(named("08", &["joinrsp"]).len(), 3);
    }
}
