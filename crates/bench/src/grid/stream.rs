//! What one TCP stream carries here: large writes on one side, large reads on the other, and nothing done with the bytes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;

/// Bytes of a write, and the most of a read: as Consort's own.
const CHUNK: usize = 128 * 1024;

/// Megabytes per second.
pub(super) fn measure(time: Duration) -> anyhow::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut sending = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiving, _) = listener.accept()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let chunk = vec![7; CHUNK];
            while !is_over.load(Relaxed) {
                sending.write_all(&chunk)?;
            }
            sending.shutdown(std::net::Shutdown::Write)
        });
        let mut chunk = vec![0; CHUNK];
        let (begin, mut bytes) = (Instant::now(), 0_u64);
        let seconds = loop {
            let read = receiving.read(&mut chunk)?;
            bytes += read as u64;
            let elapsed = begin.elapsed();
            if elapsed >= time && !is_over.swap(true, Relaxed) {
                break elapsed.as_secs_f64();
            }
        };
        let rate = bytes as f64 / seconds / 1e6;
        while receiving.read(&mut chunk)? > 0 {}
        writer.join().ok().context("the writer")??;
        Ok(rate)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_carries_something() {
        assert!(measure(Duration::from_millis(20)).unwrap() > 1.0);
    }
}
