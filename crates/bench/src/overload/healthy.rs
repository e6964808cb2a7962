use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::hotrod::{PING, PONG};

const PAUSE: Duration = Duration::from_millis(1);

const RESPONSE_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Default)]
pub(super) struct Delays {
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

pub(super) struct Healthy {
    ask: Sender<()>,
    delays: Receiver<anyhow::Result<Vec<Duration>>>,
}

impl Healthy {
    pub(super) fn start(port: u16) -> anyhow::Result<Self> {
        let mut stream =
            TcpStream::connect(("127.0.0.1", port)).context("the healthy client's connection")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(RESPONSE_TIME_MAX))?;
        let (ask, asked) = channel();
        let (tell, delays) = channel();
        std::thread::spawn(move || {
            let mut taken = Vec::new();
            loop {
                let begun = Instant::now();
                let result = ping(&mut stream);
                taken.push(begun.elapsed());
                if let Err(error) = result {
                    let _ = tell.send(Err(error));
                    return;
                }
                match asked.try_recv() {
                    Ok(()) if tell.send(Ok(std::mem::take(&mut taken))).is_err() => return,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                    _ => {}
                }
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { ask, delays })
    }

    pub(super) fn during(&self, run: impl FnOnce()) -> Delays {
        self.take();
        run();
        let mut taken = self.take();
        taken.sort_unstable();
        let milliseconds = |at: usize| taken.get(at).map_or(f64::INFINITY, |delay| delay.as_secs_f64() * 1e3);
        Delays {
            p99_ms: milliseconds((taken.len() * 99 / 100).min(taken.len().saturating_sub(1))),
            max_ms: milliseconds(taken.len().saturating_sub(1)),
        }
    }

    fn take(&self) -> Vec<Duration> {
        let _ = self.ask.send(());
        self.delays.recv().ok().and_then(Result::ok).unwrap_or_default()
    }
}

fn ping(stream: &mut TcpStream) -> anyhow::Result<()> {
    stream.write_all(&PING)?;
    let mut response = [0; 512];
    let length = stream.read(&mut response)?;
    anyhow::ensure!(response[..length].starts_with(&PONG), "{:02x?}", &response[..length]);
    Ok(())
}
