use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{Ending, connect, ready};

const HALF: &[u8] = b"\xa0\x01\x1f";

/// Neither Hot Rod's magic nor the beginning of a line of HTTP.
const GARBAGE: &[u8] = &[0x16; 64];

/// AUTH with PLAIN, up to the length of the message: 14,000 bytes, of which one is not sent.
const UNFINISHED: &[u8] = b"\xa0\x01\x1f\x23\x00\x00\x01\x00\x00\x00\x05PLAIN\xb0\x6d";
const UNFINISHED_BYTES: usize = 14_000;

#[derive(Args)]
pub(crate) struct Connections {
    /// Connections.
    #[arg(long, default_value_t = 5_000)]
    count: usize,
    /// Seconds for which connections are held before all are closed and opened again.
    #[arg(long, default_value_t = 1.0)]
    hold: f64,
    /// Sends nearly all of a large request on each; else the first of three sends nothing, the second half of a header, and
    /// the third bytes that are no request.
    #[arg(long)]
    unfinished: bool,
}

#[derive(Default)]
struct Counts {
    rounds: u64,
    opened: u64,
    failed: u64,
    opening: Duration,
}

impl Connections {
    pub(crate) async fn run(self, server: SocketAddr, mut ending: Ending) -> anyhow::Result<Value> {
        let (begun, mut counts) = (Instant::now(), Counts::default());
        while !*ending.borrow() {
            let opening = Instant::now();
            let mut connecting: JoinSet<_> =
                (0..self.count).map(|nth| open(server, self.says(nth))).collect();
            let mut held = Vec::with_capacity(self.count);
            if counts.rounds == 0 && !self.unfinished {
                ready()?;
            }
            while let Some(opened) = connecting.join_next().await {
                match opened? {
                    Ok(stream) => held.push(stream),
                    Err(_) => counts.failed += 1,
                }
            }
            if counts.rounds == 0 && self.unfinished {
                ready()?;
            }
            counts.opened += held.len() as u64;
            counts.opening = counts.opening.max(opening.elapsed());
            counts.rounds += 1;
            // The round is over at the end of its time, or of the input.
            let _ = timeout(Duration::from_secs_f64(self.hold), ending.wait_for(|is_over| *is_over)).await;
        }
        Ok(json!({
            "rounds": counts.rounds,
            "opened": counts.opened,
            "failed": counts.failed,
            "opened_sec": counts.opened as f64 / begun.elapsed().as_secs_f64(),
            "opening_ms": counts.opening.as_secs_f64() * 1e3,
        }))
    }

    fn says(&self, nth: usize) -> Vec<u8> {
        if self.unfinished {
            let mut request = UNFINISHED.to_vec();
            request.resize(UNFINISHED.len() + UNFINISHED_BYTES - 1, 7);
            return request;
        }
        [&[], HALF, GARBAGE][nth % 3].to_vec()
    }
}

async fn open(server: SocketAddr, says: Vec<u8>) -> std::io::Result<TcpStream> {
    let mut stream = connect(server).await?;
    stream.write_all(&says).await?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seven bits in each byte, the lowest first.
    #[test]
    fn a_request_has_the_length_that_follows() {
        let [.., low, high] = UNFINISHED else { unreachable!("it has more") };
        assert_eq!(usize::from(low & 0x7f) | usize::from(*high) << 7, UNFINISHED_BYTES);
    }
}
