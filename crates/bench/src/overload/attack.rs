use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use consort_hotrod::{Opcode, Output, ProtocolVersion, Request, RequestHeader};

use super::{HUGE_VALUES, MEMBER_PORTS, PORTS, operations};

pub(super) const SMALL_KEY: &[u8] = b"small";

const PIPELINED: usize = 4_096;
const HUGE_REQUESTS: usize = 200;
const UNFINISHED: usize = 32;
/// The announced length of an unfinished message.
const FRAME_BYTES: u32 = 64 * 1024 * 1024;
const FRAME_SENT: usize = 1024 * 1024;

/// An attacking client is usually on another machine: here it gets only the CPU time that the others leave.
pub(super) fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        eprintln!("the priority of the client that attacks cannot be lowered: {error}");
    }
}

pub(super) fn huge_key(nth: usize) -> Bytes {
    format!("huge-{nth}").into()
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Situation {
    /// Values of 8 MiB, about half of them on the other server; the client reads nothing until the end.
    HugeValue,
    /// Very many at once; the client reads all responses.
    Pipelined,
    /// Very many at once; the client reads nothing.
    NeverReads,
    /// Many connections, each with a request without its end.
    Unfinished,
    /// On the ports between servers.
    UnfinishedOfMembers,
}

impl Situation {
    pub(super) const ALL: [Self; 4] = [Self::HugeValue, Self::Pipelined, Self::NeverReads, Self::Unfinished];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::HugeValue => "huge value, reads nothing",
            Self::Pipelined => "4,096 pipelined",
            Self::NeverReads => "4,096, reads nothing",
            Self::Unfinished | Self::UnfinishedOfMembers => "unfinished messages",
        }
    }
}

pub(super) struct Attack {
    pub(super) opcode: Option<Opcode>,
    pub(super) situation: Situation,
}

#[derive(Default)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Attack {
    pub(super) fn name(&self) -> String {
        match (self.opcode, self.situation) {
            (Some(opcode), _) => opcode.name().to_owned(),
            (None, Situation::UnfinishedOfMembers) => "the ports of members".to_owned(),
            (None, _) => "HTTP".to_owned(),
        }
    }

    pub(super) fn run(&self, time: Duration) -> Traffic {
        let until = Instant::now() + time;
        match self.situation {
            Situation::HugeValue => self.on_one_connection("huge", HUGE_REQUESTS, false, until),
            Situation::Pipelined => self.on_one_connection("small", PIPELINED, true, until),
            Situation::NeverReads => self.on_one_connection("small", PIPELINED, false, until),
            Situation::Unfinished => {
                let request = self.requests("small", 1);
                hold(PORTS[0], &request[..request.len() - 1], until)
            }
            Situation::UnfinishedOfMembers => {
                let mut frame = FRAME_BYTES.to_be_bytes().to_vec();
                frame.resize(FRAME_SENT, 7);
                hold(MEMBER_PORTS[0], &frame, until)
            }
        }
    }

    fn requests(&self, cache: &str, count: usize) -> Vec<u8> {
        let Some(opcode) = self.opcode else {
            let paths = ["/metrics", "/health", "/rest/v2/cache-managers/default/health", "/health/ready"];
            let request =
                |nth: usize| format!("GET {} HTTP/1.1\r\nHost: h\r\n\r\n", paths[nth % paths.len()]);
            return (0..count).map(request).collect::<String>().into_bytes();
        };
        let mut out = Output::new();
        for nth in 0..count {
            let key = match cache {
                "huge" => huge_key(nth % HUGE_VALUES),
                _ => Bytes::from_static(SMALL_KEY),
            };
            let version =
                if opcode == Opcode::PrepareTx { ProtocolVersion::V2_8 } else { ProtocolVersion::V4_1 };
            let header = RequestHeader { cache: cache.into(), ..RequestHeader::new(nth as u64, version) };
            Request { header, body: operations::request(opcode, &key, nth as u64) }.encode(&mut out);
        }
        out.into_bytes().to_vec()
    }

    fn on_one_connection(&self, cache: &str, count: usize, reads: bool, until: Instant) -> Traffic {
        let mut traffic = Traffic::default();
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", PORTS[0])) else { return traffic };
        if stream.set_nonblocking(true).is_err() {
            return traffic;
        }
        let requests = self.requests(cache, count);
        let mut rest = &requests[..];
        let mut buffer = vec![0; 256 * 1024];
        while Instant::now() < until {
            let mut is_idle = true;
            if !rest.is_empty() {
                match stream.write(rest) {
                    Ok(length) => (rest, is_idle) = (&rest[length..], false),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
            if reads {
                match stream.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => (traffic.received, is_idle) = (traffic.received + length as u64, false),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
            if is_idle {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        traffic.sent = (requests.len() - rest.len()) as u64;
        traffic
    }
}

fn hold(port: u16, bytes: &[u8], until: Instant) -> Traffic {
    let mut traffic = Traffic::default();
    let mut connections = Vec::new();
    for _ in 0..UNFINISHED {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        let timeout = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        if stream.set_write_timeout(Some(timeout)).is_ok() && stream.write_all(bytes).is_ok() {
            traffic.sent += bytes.len() as u64;
        }
        connections.push(stream);
    }
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    traffic
}
