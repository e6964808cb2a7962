//! The rate of one TCP stream. Bytes are dropped or kept: new memory may cost more than the network, most of
//! all on a virtual machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;

const CHUNK: usize = 128 * 1024;

pub(super) fn measure(time: Duration) -> anyhow::Result<f64> {
    receive(|_, elapsed| elapsed >= time, |_| ())
}

/// Megabytes per second, into newly allocated memory.
pub(super) fn kept(megabytes: u64) -> anyhow::Result<f64> {
    let mut all = Vec::new();
    receive(|bytes, _| bytes >= megabytes * 1_000_000, |chunk| all.push(Box::<[u8]>::from(chunk)))
}

fn receive(is_enough: impl Fn(u64, Duration) -> bool, mut take: impl FnMut(&[u8])) -> anyhow::Result<f64> {
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
            take(&chunk[..read]);
            let elapsed = begin.elapsed();
            if is_enough(bytes, elapsed) {
                is_over.store(true, Relaxed);
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
        assert!(kept(3).unwrap() > 1.0);
    }
}
