//! A DNS client for records that the system's resolver does not return: services (SRV), and records of a given server.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use consort_group::DnsRecord;

/// The port of DNS.
const PORT: u16 = 53;

/// Time for a server's response, and attempts per server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;

/// Records that are taken from a response.
const RECORDS_MAX: usize = 4_096;

/// Services whose names are resolved. A headless service has one per member.
const SERVICES_MAX: usize = 1_000;

/// Steps of compressed names, so that a loop of pointers ends.
const LABELS_MAX: usize = 128;

/// Length of the receive buffer. Longer responses are requested over TCP.
const DATAGRAM_LEN_MAX: usize = 4_096;

const CLASS_INTERNET: u16 = 1;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const TYPE_SRV: u16 = 33;

/// A record of a response.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Record {
    Address { name: String, ip: IpAddr },
    Service { target: String, port: u16 },
}

/// The records of a response.
#[derive(Debug)]
struct Response {
    records: Vec<Record>,
    is_truncated: bool,
}

/// Returns the addresses of a name with their ports, which are 0 for A and AAAA, and may be 0 for SRV. Blocks while it
/// waits for name servers: for `server`, or for those of the system.
///
/// # Errors
///
/// If no server responds, or if the name has no such records.
pub fn query(name: &str, record: DnsRecord, server: Option<&str>) -> io::Result<Vec<(IpAddr, u16)>> {
    let config = match server {
        Some(server) => ResolverConfig { servers: addresses_of(server)?, ..ResolverConfig::default() },
        None => ResolverConfig::of_system()?,
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no name server");
    for candidate in config.candidates(name) {
        match config.ask(&candidate, record) {
            Ok(records) if records.is_empty() => last = io::Error::other("the name has no such record"),
            Ok(records) => return config.resolve(&records, record),
            Err(error) => last = error,
        }
    }
    Err(io::Error::new(last.kind(), format!("{name}: {last}")))
}

/// Returns the addresses of a server that is written as `host`, `host:port` or `dns://host:port`.
fn addresses_of(server: &str) -> io::Result<Vec<SocketAddr>> {
    let text = server.trim().trim_start_matches("dns://").trim_end_matches('/');
    let plain = text.trim_matches(['[', ']']);
    let found = match plain.parse::<IpAddr>() {
        Ok(ip) => return Ok(vec![SocketAddr::new(ip, PORT)]),
        Err(_) if text.contains(':') => text.to_socket_addrs(),
        Err(_) => (text, PORT).to_socket_addrs(),
    };
    found.map(Iterator::collect).map_err(|error| io::Error::new(error.kind(), format!("{server}: {error}")))
}

/// The servers, and how names are completed.
#[derive(Default, PartialEq, Eq, Debug)]
struct ResolverConfig {
    servers: Vec<SocketAddr>,
    search: Vec<String>,
    ndots: usize,
}

impl ResolverConfig {
    fn of_system() -> io::Result<Self> {
        let text = std::fs::read_to_string("/etc/resolv.conf");
        let text =
            text.map_err(|error| io::Error::new(error.kind(), format!("/etc/resolv.conf: {error}")))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut config = Self { ndots: 1, ..Self::default() };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let ip = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    config.servers.extend(ip.map(|ip| SocketAddr::new(ip, PORT)));
                }
                Some("search" | "domain") => config.search = words.map(str::to_owned).collect(),
                Some("options") => {
                    let ndots = words.find_map(|word| word.strip_prefix("ndots:")?.parse().ok());
                    config.ndots = ndots.unwrap_or(config.ndots);
                }
                _ => {}
            }
        }
        config
    }

    /// Returns the complete names that a name may stand for, in order.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(complete) = name.strip_suffix('.') {
            return vec![complete.to_owned()];
        }
        let mut all: Vec<String> = self.search.iter().map(|domain| format!("{name}.{domain}")).collect();
        let place = if name.matches('.').count() >= self.ndots { 0 } else { all.len() };
        all.insert(place, name.to_owned());
        all
    }

    /// Asks the servers one after the other for the records of a complete name.
    fn ask(&self, name: &str, record: DnsRecord) -> io::Result<Vec<Record>> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no name server");
        for server in &self.servers {
            for _ in 0..ATTEMPTS {
                match ask_server(*server, name, record) {
                    Ok(records) => return Ok(records),
                    Err(error) => last = io::Error::new(error.kind(), format!("{error} (server {server})")),
                }
                if last.kind() != io::ErrorKind::TimedOut {
                    break;
                }
            }
        }
        Err(last)
    }

    /// Returns the addresses of records. The names of services are resolved by the response's further records, or
    /// else asked for.
    fn resolve(&self, records: &[Record], record: DnsRecord) -> io::Result<Vec<(IpAddr, u16)>> {
        let addresses_of = |records: &[Record], wanted: Option<&str>| -> Vec<IpAddr> {
            let addresses = records.iter().filter_map(|record| match record {
                Record::Address { name, ip } if wanted.is_none_or(|wanted| wanted == name) => Some(*ip),
                _ => None,
            });
            addresses.collect()
        };
        let mut found = Vec::new();
        if record != DnsRecord::Srv {
            found.extend(addresses_of(records, None).into_iter().map(|ip| (ip, 0)));
        }
        let mut failure = None;
        let services = records.iter().filter_map(|record| match record {
            Record::Service { target, port } => Some((target, *port)),
            Record::Address { .. } => None,
        });
        for (target, port) in services.take(SERVICES_MAX) {
            let mut ips = addresses_of(records, Some(target));
            for kind in [DnsRecord::A, DnsRecord::Aaaa] {
                if ips.is_empty() {
                    match self.ask(target, kind) {
                        Ok(further) => ips = addresses_of(&further, None),
                        Err(error) => failure = Some(error),
                    }
                }
            }
            found.extend(ips.into_iter().map(|ip| (ip, port)));
        }
        found.sort();
        found.dedup();
        match failure {
            Some(failure) if found.is_empty() => Err(failure),
            _ => Ok(found),
        }
    }
}

/// Asks one server, over TCP if the response does not fit into a datagram.
fn ask_server(server: SocketAddr, name: &str, record: DnsRecord) -> io::Result<Vec<Record>> {
    let id = RandomState::new().build_hasher().finish() as u16;
    let request = encode(id, name, record)?;
    let response = parse(&ask_by_datagram(server, id, &request)?)?;
    if !response.is_truncated {
        return Ok(response.records);
    }
    Ok(parse(&ask_by_stream(server, id, &request)?)?.records)
}

fn ask_by_datagram(server: SocketAddr, id: u16, request: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Only this server's datagrams are received.
    socket.connect(server)?;
    socket.send(request)?;
    let until = Instant::now() + RESPONSE_TIMEOUT;
    let mut buffer = vec![0; DATAGRAM_LEN_MAX];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the name server does not respond"));
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut buffer) {
            Ok(length) if is_response_to(&buffer[..length], id) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
}

fn ask_by_stream(server: SocketAddr, id: u16, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, RESPONSE_TIMEOUT)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(&[&(request.len() as u16).to_be_bytes(), request].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut response = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut response)?;
    if is_response_to(&response, id) { Ok(response) } else { Err(malformed()) }
}

fn is_response_to(bytes: &[u8], id: u16) -> bool {
    bytes.len() >= 12 && bytes[..2] == id.to_be_bytes() && bytes[2] & 0x80 != 0
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the name server's response is malformed")
}

/// Writes a request for one name, with recursion.
fn encode(id: u16, name: &str, record: DnsRecord) -> io::Result<Vec<u8>> {
    let mut out = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.split('.') {
        let is_label = !label.is_empty() && label.len() < 64 && label.is_ascii();
        if !is_label || out.len() > 255 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` is not a DNS name")));
        }
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    let kind = match record {
        DnsRecord::A => TYPE_A,
        DnsRecord::Aaaa => TYPE_AAAA,
        DnsRecord::Srv => TYPE_SRV,
    };
    out.push(0);
    out.extend(kind.to_be_bytes());
    out.extend(CLASS_INTERNET.to_be_bytes());
    Ok(out)
}

/// A position in a response.
struct Cursor<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        let end = self.at.checked_add(count).ok_or_else(malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or_else(malformed)?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a name, which may go on at an earlier place. Names are compared in lower case.
    fn name(&mut self) -> io::Result<String> {
        let mut labels: Vec<String> = Vec::new();
        let mut end = None;
        for _ in 0..LABELS_MAX {
            let length = self.byte()?;
            match length {
                0 => {
                    self.at = end.unwrap_or(self.at);
                    return Ok(labels.join("."));
                }
                1..64 => {
                    let label = self.take(usize::from(length))?;
                    labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
                }
                0xc0.. => {
                    let place = usize::from(length & 0x3f) << 8 | usize::from(self.byte()?);
                    end.get_or_insert(self.at);
                    self.at = place;
                }
                _ => return Err(malformed()),
            }
        }
        Err(malformed())
    }
}

/// Reads the records of all sections.
fn parse(bytes: &[u8]) -> io::Result<Response> {
    let mut cursor = Cursor { bytes, at: 2 };
    let flags = cursor.number()?;
    let questions = cursor.number()?;
    let mut count = 0;
    for _ in 0..3 {
        count += usize::from(cursor.number()?);
    }
    match flags & 0xf {
        0 => {}
        3 => return Err(io::Error::new(io::ErrorKind::NotFound, "the name does not exist")),
        code => return Err(io::Error::other(format!("the name server answers with error {code}"))),
    }
    let is_truncated = flags & 0x200 != 0;
    if is_truncated {
        return Ok(Response { records: Vec::new(), is_truncated });
    }
    for _ in 0..questions {
        cursor.name()?;
        cursor.take(4)?;
    }
    let mut records = Vec::new();
    for _ in 0..count.min(RECORDS_MAX) {
        let name = cursor.name()?;
        let (kind, class) = (cursor.number()?, cursor.number()?);
        cursor.take(4)?;
        let length = usize::from(cursor.number()?);
        let end = cursor.at + length;
        match (kind, class, length) {
            (TYPE_A, CLASS_INTERNET, 4) => {
                let ip: [u8; 4] = cursor.take(4)?.try_into().map_err(|_| malformed())?;
                records.push(Record::Address { name, ip: ip.into() });
            }
            (TYPE_AAAA, CLASS_INTERNET, 16) => {
                let ip: [u8; 16] = cursor.take(16)?.try_into().map_err(|_| malformed())?;
                records.push(Record::Address { name, ip: ip.into() });
            }
            (TYPE_SRV, CLASS_INTERNET, 7..) => {
                // Priority and weight choose one server of several; all members get a request.
                cursor.take(4)?;
                let port = cursor.number()?;
                records.push(Record::Service { target: cursor.name()?, port });
            }
            _ => {}
        }
        cursor.at = end;
    }
    Ok(Response { records, is_truncated })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const NAME: &str = "_ping._tcp.grid.shop.svc";

    /// Two services, one of which has its address in the last section, as CoreDNS answers; the names are compressed.
    fn services(id: u16) -> Vec<u8> {
        let mut out = encode(id, NAME, DnsRecord::Srv).unwrap();
        out[2] = 0x81;
        out[7] = 2;
        out[11] = 1;
        // `grid.shop.svc` begins 11 bytes after the question's name.
        for (host, port) in [(b'a', 7800_u16), (b'b', 7801)] {
            out.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 5, 0, 10, 0, 0, 0, 100]);
            out.extend(port.to_be_bytes());
            out.extend([1, host, 0xc0, 12 + 11]);
        }
        out.extend([1, b'A', 0xc0, 12 + 11, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 0, 0, 7]);
        out
    }

    fn address(id: u16, name: &str, ip: [u8; 4]) -> Vec<u8> {
        let mut out = encode(id, name, DnsRecord::A).unwrap();
        (out[2], out[7]) = (0x81, 1);
        out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        out.extend(ip);
        out
    }

    /// A name server that answers as many requests as there are answers, each made from the request's id.
    fn serve(answers: Vec<Box<dyn Fn(u16) -> Vec<u8> + Send>>) -> (String, thread::JoinHandle<Vec<Vec<u8>>>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let place = socket.local_addr().unwrap().to_string();
        let served = thread::spawn(move || {
            let mut requests = Vec::new();
            for answer in answers {
                let mut buffer = [0; 512];
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                let id = u16::from_be_bytes([buffer[0], buffer[1]]);
                socket.send_to(&answer(id.wrapping_add(1)), from).unwrap();
                socket.send_to(&answer(id), from).unwrap();
                requests.push(buffer[2..length].to_vec());
            }
            requests
        });
        (place, served)
    }

    #[test]
    fn services_have_the_ports_of_their_records_and_the_addresses_of_their_names() {
        let (place, served) =
            serve(vec![Box::new(services), Box::new(|id| address(id, "b.grid.shop.svc", [10, 0, 0, 8]))]);
        let found = query(&format!("{NAME}."), DnsRecord::Srv, Some(&place)).unwrap();
        assert_eq!(found, [([10, 0, 0, 7].into(), 7800), ([10, 0, 0, 8].into(), 7801)]);
        let requests = served.join().unwrap();
        assert_eq!(requests[1], encode(0, "b.grid.shop.svc", DnsRecord::A).unwrap()[2..]);
    }

    #[test]
    fn given_server_is_asked_for_addresses() {
        let (place, served) = serve(vec![Box::new(|id| address(id, "grid", [10, 0, 0, 7]))]);
        let found = query("grid", DnsRecord::A, Some(&format!("dns://{place}/"))).unwrap();
        assert_eq!(found, [([10, 0, 0, 7].into(), 0)]);
        served.join().unwrap();
    }

    #[test]
    fn truncated_response_is_requested_over_tcp() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let place = socket.local_addr().unwrap();
        let listener = TcpListener::bind(place).unwrap();
        let served = thread::spawn(move || {
            let mut buffer = [0; 512];
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            (buffer[2], buffer[3]) = (0x83, 0);
            socket.send_to(&buffer[..length], from).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut buffer[..length + 2]).unwrap();
            let answer = address(u16::from_be_bytes([buffer[2], buffer[3]]), "grid", [10, 0, 0, 9]);
            stream.write_all(&[&(answer.len() as u16).to_be_bytes(), &answer[..]].concat()).unwrap();
        });
        let found = query("grid", DnsRecord::A, Some(&place.to_string())).unwrap();
        assert_eq!(found, [([10, 0, 0, 9].into(), 0)]);
        served.join().unwrap();
    }

    #[test]
    fn error_names_the_name_and_the_server() {
        let (place, served) = serve(vec![Box::new(|id| {
            let mut out = encode(id, "nowhere", DnsRecord::A).unwrap();
            (out[2], out[3]) = (0x81, 0x83);
            out
        })]);
        let error = query("nowhere", DnsRecord::A, Some(&place)).unwrap_err().to_string();
        assert_eq!(error, format!("nowhere: the name does not exist (server {place})"));
        served.join().unwrap();
        assert!(
            query("a..b", DnsRecord::A, Some(&place)).unwrap_err().to_string().contains("not a DNS name")
        );
    }

    #[test]
    fn malformed_response_is_an_error() {
        let whole = services(7);
        for length in 2..whole.len() {
            assert!(parse(&whole[..length]).is_err(), "{length}");
        }
        // A name that points to itself.
        let mut looped = address(7, "grid", [1, 2, 3, 4]);
        looped[12] = 0xc0;
        looped[13] = 12;
        assert!(parse(&looped).is_err());
    }

    #[test]
    fn names_are_completed_as_resolv_conf_says() {
        let text = "# comment\nnameserver 10.96.0.10\nnameserver fd00::a\nsearch shop.svc svc\noptions timeout:1 ndots:5\n";
        let config = ResolverConfig::parse(text);
        assert_eq!(config.servers, ["10.96.0.10:53".parse().unwrap(), "[fd00::a]:53".parse().unwrap()]);
        assert_eq!(
            config.candidates("_p._tcp.grid"),
            ["_p._tcp.grid.shop.svc", "_p._tcp.grid.svc", "_p._tcp.grid"]
        );
        assert_eq!(config.candidates("grid.shop."), ["grid.shop"]);
        assert_eq!(ResolverConfig::parse("search a").candidates("b.c"), ["b.c", "b.c.a"]);
    }

    #[test]
    fn server_may_have_a_port_and_the_scheme_of_java() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:53"),
            ("dns://10.0.0.1:5353", "10.0.0.1:5353"),
            ("fd00::1", "[fd00::1]:53"),
            ("[fd00::1]:5353", "[fd00::1]:5353"),
        ] {
            assert_eq!(addresses_of(text).unwrap(), [expected.parse().unwrap()], "{text}");
        }
    }
}
