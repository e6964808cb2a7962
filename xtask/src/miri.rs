//! `cargo xtask miri`: runs tests of the modules with `unsafe` that own memory in Miri, on the nightly toolchain.
//!
//! Miri lacks the calls of the other modules (`net/udp/mmsg.rs`, `net/tcp/patience.rs`, `cli/allocator.rs`,
//! `grid/container/prefetch.rs`): system, allocator, or hints to the CPU.

use std::process::{Command, ExitCode};

/// Miri cannot run loom (`spsc_orders`), which switches stacks by itself.
const TESTS: [(&str, &str); 1] = [("consort-cache", "spsc_threads")];

pub(crate) fn run() -> ExitCode {
    let version = Command::new("rustup").args(["run", "nightly", "cargo", "miri", "--version"]).output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("Miri is missing: rustup component add miri rust-src --toolchain nightly");
        return ExitCode::FAILURE;
    }
    for (package, test) in TESTS {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo", "miri", "test", "--package", package, "--test", test]);
        // The gate's own toolchain would be used instead.
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        match command.args(["--target-dir", "target/miri"]).status() {
            Ok(status) if status.success() => {}
            Ok(status) => {
                eprintln!("{package}, {test}: Miri ended with {status}");
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("rustup: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
