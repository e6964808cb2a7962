//! The structure of operations: what has to be written for a new one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use consort_hotrod::Opcode;

fn source(path: impl AsRef<Path>) -> String {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path)).unwrap();
    source.split("#[cfg(test)]").next().unwrap().to_owned()
}

/// The opcodes named in a source.
fn named(source: &str) -> Vec<&str> {
    let name = |rest: &'_ str| rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
    source.split("Opcode::").skip(1).map(|rest| &rest[..name(rest)]).collect()
}

/// The functions of this name in a type's own implementation.
fn functions(source: &str, of: &str, name: &str) -> usize {
    let body = source.split(&format!("\nimpl {of} {{\n")).nth(1).unwrap_or_default();
    let body = body.split("\n}\n").next().unwrap_or_default();
    body.matches(&format!(" fn {name}(")).count()
}

/// S002-13, S002-23: an operation is a line of the table of opcodes and a variant in one file, with one
/// encoder and one decoder for requests and for responses. The dispatch knows only families.
#[test]
fn s002_13_an_operation_is_in_one_file_with_one_encoder_and_one_decoder() {
    let files = ["auth", "bulk", "counter", "iteration", "listener", "map", "multimap", "server", "stream"];
    let files = files.into_iter().chain(["task", "transaction"]);
    let sources: BTreeMap<&str, String> =
        files.map(|file| (file, source(Path::new("ops").join(file).with_extension("rs")))).collect();
    for opcode in Opcode::ALL {
        let name = format!("{opcode:?}");
        let at: Vec<&str> = sources
            .iter()
            .filter(|(_, source)| named(source).contains(&name.as_str()))
            .map(|(file, _)| *file)
            .collect();
        assert_eq!(at.len(), 1, "{name} is in {at:?}");
    }
    for (file, source) in &sources {
        assert_eq!(functions(source, "Request", "read"), 1, "{file}");
        // Requests to the server have no body.
        assert_eq!(functions(source, "Request", "write"), usize::from(*file != "server"), "{file}");
        for function in ["read", "write"] {
            let count = functions(source, "Response", function);
            // A listener's response is a status, a task's is bytes.
            assert_eq!(count, usize::from(!["listener", "task"].contains(file)), "{function} in {file}");
        }
    }
    assert_eq!(named(&source("request.rs")), Vec::<&str>::new(), "requests are dispatched by family");
    assert_eq!(named(&source("layout.rs")), Vec::<&str>::new());
}
