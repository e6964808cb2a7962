//! A command ends silently when the reader of its output has gone (`consort parse … | head`). SIGPIPE stays
//! ignored, because it would also end this process when a peer closes a connection.

use std::io;
use std::process::ExitCode;

/// As a shell reports SIGPIPE.
const GONE: i32 = 128 + 13;

pub(crate) fn exit_quietly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(is_unprinted) {
            std::process::exit(GONE);
        }
        usual(panic);
    }));
}

fn is_unprinted(panic: &str) -> bool {
    panic.starts_with("failed printing to std") && panic.contains("Broken pipe")
}

/// Prints nothing if the output has no reader.
pub(crate) fn print_error(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    if is_gone(error) {
        return ExitCode::from(GONE as u8);
    }
    eprintln!("consort: {}", indented(error));
    code
}

/// An error may contain a server's text, which must not read as a line of this command.
fn indented(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', "\n  ")
}

/// Errors of a peer are errors of the channel or the client.
fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_within_an_error_are_indented() {
        let error = anyhow::anyhow!("no cache 'a\nconsort: done'");
        assert_eq!(indented(&error), "no cache 'a\n  consort: done'");
    }

    #[test]
    fn only_a_reader_that_has_gone_ends_a_command_quietly() {
        assert!(is_unprinted("failed printing to stdout: Broken pipe (os error 32)"));
        assert!(!is_unprinted("failed printing to stdout: no space") && !is_unprinted("Broken pipe"));
        let of = |kind: io::ErrorKind| anyhow::Error::from(io::Error::from(kind));
        assert!(is_gone(&of(io::ErrorKind::BrokenPipe)));
        assert!(
            !is_gone(&of(io::ErrorKind::StorageFull)) && !is_gone(&anyhow::anyhow!("a peer: Broken pipe"))
        );
    }
}
