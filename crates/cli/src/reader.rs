//! Who reads what a command prints may have seen enough (`consort parse … | head`): then the command ends, without a word.
//!
//! That is what SIGPIPE is for, but the signal would also come when the process of a peer is gone, and end this one. So it stays
//! ignored, as the standard library has it, and writes to the output fail.

use std::io;
use std::process::ExitCode;

/// The exit code: what a shell says of a process that SIGPIPE has ended.
const GONE: i32 = 128 + 13;

/// Has `println!` end the process when nobody reads it any more, instead of panicking.
pub(crate) fn end_without() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(is_unprinted) {
            std::process::exit(GONE);
        }
        usual(panic);
    }));
}

/// Whether this is what `println!` panics with when its reader has gone.
fn is_unprinted(panic: &str) -> bool {
    panic.starts_with("failed printing to std") && panic.contains("Broken pipe")
}

/// Says on standard error what has failed, and gives the exit code for it; without a word, that of a reader that has gone.
pub(crate) fn complain(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    if is_gone(error) {
        return ExitCode::from(GONE as u8);
    }
    eprintln!("consort: {}", indented(error));
    code
}

/// An error of several lines, such as one about a configuration, keeps them, indented: servers' words are in errors, too, and no
/// line of theirs reads as one of this command's.
fn indented(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', "\n  ")
}

/// Whether output could not be written because its reader has gone. What fails on the way to a peer is an error of channel or
/// client.
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
