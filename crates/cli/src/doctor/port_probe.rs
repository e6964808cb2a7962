use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use consort_hotrod::ops::{auth, server};
use consort_hotrod::{
    Incoming, Output, ProtocolVersion, Request, RequestBody, RequestHeader, Response, ResponseBody,
    ResponseDecoder, Status,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ProbeResult {
    HotRod {
        /// In tenths.
        newest: u8,
        mechanisms: Option<Vec<String>>,
    },
    Refusal(String),
    Tls,
    Http,
    Silence,
    Closed,
    Other,
}

const HTTP_BYTES_MAX: u64 = 16 * 1024;

/// The first version whose PING response lists the versions and operations of a server.
const VERSION: ProtocolVersion = ProtocolVersion::V3_0;

struct Conversation {
    stream: TcpStream,
    input: BytesMut,
    decoder: ResponseDecoder,
}

impl Conversation {
    /// The error is the kind of service that responded instead.
    async fn ask(&mut self, body: RequestBody) -> Result<Response, ProbeResult> {
        let request = Request { header: RequestHeader::new(1, VERSION), body };
        let mut output = Output::new();
        request.encode(&mut output);
        if self.stream.write_all(&output.into_bytes()).await.is_err() {
            return Err(ProbeResult::Closed);
        }
        loop {
            match self.decoder.decode(&mut self.input, |_| Some(request.context())) {
                Ok(Some(Incoming::Response(response))) => return Ok(response),
                Ok(Some(_)) => return Err(ProbeResult::Other),
                Ok(None) => {}
                Err(_) => return Err(identify(&self.input)),
            }
            if self.input.starts_with(b"H") && self.input.len() >= 5 {
                return Err(identify(&self.input));
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) if self.input.is_empty() => return Err(ProbeResult::Closed),
                Ok(0) | Err(_) => return Err(identify(&self.input)),
                Ok(_) => {}
            }
        }
    }
}

fn identify(bytes: &[u8]) -> ProbeResult {
    match bytes {
        // An alert or a handshake, of any version.
        [0x15 | 0x16, 3, ..] => ProbeResult::Tls,
        [b'H', b'T', b'T', b'P', b'/', ..] => ProbeResult::Http,
        _ => ProbeResult::Other,
    }
}

pub(super) async fn ping(at: SocketAddr, time_limit: Duration) -> ProbeResult {
    let conversing = async {
        let Ok(stream) = TcpStream::connect(at).await else { return ProbeResult::Closed };
        let mut conversation =
            Conversation { stream, input: BytesMut::new(), decoder: ResponseDecoder::default() };
        let pong = match conversation.ask(RequestBody::Server(server::Request::Ping)).await {
            Ok(pong) => pong,
            Err(answered) => return answered,
        };
        let newest = match pong.body {
            ResponseBody::Server(server::Response::Pong(pong)) => pong.newest,
            // As Consort's servers say it.
            ResponseBody::Error(text)
                if pong.status == Status::InvalidMagic && text.as_str().contains("TLS") =>
            {
                return ProbeResult::Tls;
            }
            ResponseBody::Error(text) => return ProbeResult::Refusal(text.as_str().to_owned()),
            _ => return ProbeResult::Other,
        };
        let mechanisms = match conversation.ask(RequestBody::Auth(auth::Request::Mechanisms)).await {
            Ok(Response { body: ResponseBody::Auth(auth::Response::Mechanisms(names)), .. })
                if !names.is_empty() =>
            {
                Some(names.iter().map(|name| name.as_str().to_owned()).collect())
            }
            _ => None,
        };
        ProbeResult::HotRod { newest, mechanisms }
    };
    timeout(time_limit, conversing).await.unwrap_or(ProbeResult::Silence)
}

pub(crate) struct HealthReport {
    pub(crate) health: String,
    pub(super) date: Option<SystemTime>,
    pub(super) memory: Option<String>,
}

pub(crate) async fn health(at: SocketAddr, host: &str, time_limit: Duration) -> Option<HealthReport> {
    let asking = async {
        let mut stream = TcpStream::connect(at).await.ok()?;
        let request = format!(
            "GET /rest/v2/container/health/status HTTP/1.1\r\nHost: {host}:{}\r\nConnection: close\r\n\r\n",
            at.port()
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(HTTP_BYTES_MAX).read_to_end(&mut answer).await.ok()?;
        String::from_utf8(answer).ok()
    };
    parse_health_report(&timeout(time_limit, asking).await.ok()??)
}

fn parse_health_report(answer: &str) -> Option<HealthReport> {
    let (head, content) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    if !lines.next()?.strip_prefix("HTTP/1.")?.get(1..)?.starts_with(" 200") {
        return None;
    }
    let fields: Vec<(&str, &str)> =
        lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim())).collect();
    let field = |wanted: &str| {
        fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| *value)
    };
    let date = field("date").and_then(|date| httpdate::parse_http_date(date).ok());
    let memory = field("consort-memory").map(str::to_owned);
    // Infinispan may send its response in one chunk, after the chunk's length.
    let health = content.lines().find(|line| line.contains(|one: char| one.is_ascii_uppercase()))?;
    Some(HealthReport { health: health.trim().to_owned(), date, memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_recognized_by_their_first_bytes() {
        assert_eq!(identify(b"\x15\x03\x03\x00\x02\x02\x46"), ProbeResult::Tls);
        assert_eq!(identify(b"HTTP/1.1 400 Bad Request\r\n"), ProbeResult::Http);
        assert_eq!(identify(b"SSH-2.0-OpenSSH_9.6\r\n"), ProbeResult::Other);
        assert_eq!(identify(b""), ProbeResult::Other);
    }

    #[test]
    fn health_and_date_are_read_from_an_answer() {
        let answer =
            "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 7\r\n\r\nHEALTHY";
        let read = parse_health_report(answer).unwrap();
        assert_eq!(read.health, "HEALTHY");
        let since = read.date.unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_secs(), 784_111_777);
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\nDEGRADED\r\n0\r\n\r\n";
        let read = parse_health_report(chunked).unwrap();
        assert_eq!((&*read.health, read.date, read.memory), ("DEGRADED", None, None));
        let short = "HTTP/1.1 200 OK\r\nConsort-Memory: 78 % used, short\r\n\r\nDEGRADED";
        assert_eq!(parse_health_report(short).unwrap().memory.as_deref(), Some("78 % used, short"));
        assert!(
            parse_health_report("HTTP/1.1 404 Not Found\r\n\r\nHEALTHY").is_none()
                && parse_health_report("HEALTHY").is_none()
        );
    }
}
