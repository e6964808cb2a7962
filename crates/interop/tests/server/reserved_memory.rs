//! Memory that a server takes before it joins (`--reserve`).

use consort_interop::{Tool, in_own_network};
use consort_procstat::process::memory_mb_of;

use super::SERVER;

/// The reserved memory, in megabytes.
const RESERVED: f64 = 600.0;

/// The most additional memory with 300 MB of values: half of these, so that the test shows whether entries use other memory.
const OTHER_MAX: f64 = 150.0;

#[test]
fn entries_use_reserved_memory() {
    in_own_network("reserved_memory::entries_use_reserved_memory", async {
        let mut server = Tool::consort(&["server", "--reserve=600MB"]);
        server.wait_for(&["Hot Rod on", "alone"]);
        let before = memory_mb_of(server.id());
        assert!(before >= RESERVED, "{before} MB");
        let load = Tool::run_consort(&[
            "perf",
            "--hotrod",
            SERVER,
            "--keys=300000",
            "--size=1000",
            "--invokers=10",
            "--seconds=0.5",
            "--warmup=0",
        ]);
        assert!(load.status.success(), "{}", String::from_utf8_lossy(&load.stderr));
        let after = memory_mb_of(server.id());
        assert!(after < before + OTHER_MAX, "{after} MB with 300 MB of values, {before} before");
    });
}

#[test]
fn reservation_above_the_available_memory_is_refused_with_the_available_amount() {
    let refused = |size: &str| {
        let run = Tool::run_consort(&["server", &format!("--reserve={size}")]);
        (run.status.code(), String::from_utf8(run.stderr).expect("text"))
    };
    let (code, message) = refused("900TB");
    assert_eq!(code, Some(1), "{message}");
    let expected = "--reserve: 900,000,000 MB of memory are not available: ";
    assert!(message.contains(expected) && message.contains(" MB left"), "{message}");
    let (code, message) = refused("2XB");
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("no amount of memory, such as 500MB, 2GB or 1.5GiB"), "{message}");
}
