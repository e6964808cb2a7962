//! As JGroups' probe.sh (facts section 25).

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use consort_channel::probe::{GROUPS, passcode_prefix};
use socket2::{Domain, Protocol, Socket, Type};

const PORT: u16 = 7500;

/// Asks every member that a multicast reaches, or with --addr one member and through it all others.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    consort probe                             the members and their views\n  \
    consort probe --addr localhost jmx=UFC    flow control's attributes\n  \
    consort probe jmx=FD_ALL3.timeout         one attribute\n  \
    consort probe jmx=FD_ALL3.timeout=30s     a new value for it\n  \
    consort probe 'op=TCP.bundler[\"nb\"]'      an operation\n  \
    consort probe rpcs rpcs-details           calls and round trips\n  \
    consort probe jmx=NAKACK2.level=trace     the trace of a running layer\n\n\
    Members respond if their transport has diag.enabled, as in the stock stacks.\n\
    consort server responds with --diagnostics, and changes nothing without a\n\
    passcode. The exit code is 1 if no member responds.")]
pub(crate) struct Probe {
    /// Ask this member over TCP, then all members that it names; no multicast
    #[arg(long, visible_alias = "address", value_name = "HOST")]
    addr: Option<String>,
    /// Port of the members' diagnostics
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Multicast group; default: 224.0.75.75 and ff0e::75:75
    #[arg(long, value_name = "GROUP")]
    group: Option<IpAddr>,
    /// Timeout of responses in seconds (over TCP at least 1 s)
    #[arg(long, value_name = "MILLIS", default_value_t = 500)]
    timeout: u64,
    /// Print only responses that contain this text
    #[arg(long = "match", value_name = "TEXT")]
    matching: Option<String>,
    /// Ask only members of clusters that match this pattern
    #[arg(long, value_name = "PATTERN")]
    cluster: Option<String>,
    /// Passcode, if members require one. Every program of this host can read arguments: use --passcode-file
    #[arg(long, value_name = "PASSCODE", conflicts_with = "passcode_file")]
    passcode: Option<String>,
    /// File whose first line is the passcode
    #[arg(long, value_name = "FILE")]
    passcode_file: Option<std::path::PathBuf>,
    /// Keys to query; without any, the view. `keys` lists the available keys
    keys: Vec<String>,
}

impl Probe {
    /// For views only; waits for `timeout`.
    pub(crate) const fn for_views(timeout: Duration) -> Self {
        Self {
            addr: None,
            port: PORT,
            group: None,
            timeout: timeout.as_millis() as u64,
            matching: None,
            cluster: None,
            passcode: None,
            passcode_file: None,
            keys: Vec::new(),
        }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn run(mut self) -> anyhow::Result<ExitCode> {
        if let Some(file) = &self.passcode_file {
            self.passcode = Some(crate::password::read_file(file)?);
        }
        let mut text = self.keys.join(" ");
        if let Some(cluster) = &self.cluster {
            text = format!("cluster={cluster} {text}");
        }
        let answers = match &self.addr {
            Some(host) => self.one_by_one(host, &text)?,
            None => self.by_multicast(&text, |to| println!("-- sending probe request to {to}"))?,
        };
        print!("{}", response_text(&answers, self.matching.as_deref()));
        Ok(if answers.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn request(&self, text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(passcode) = &self.passcode {
            let millis = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |time| time.as_millis() as i64);
            bytes = passcode_prefix(passcode, millis, 0.5);
        }
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    pub(crate) fn by_multicast(
        &self,
        text: &str,
        report: impl Fn(SocketAddr),
    ) -> anyhow::Result<Vec<String>> {
        let request = self.request(text);
        let interfaces = if_addrs::get_if_addrs().context("this host's interfaces")?;
        let groups = self.group.map_or_else(|| GROUPS.to_vec(), |group| vec![group]);
        let mut asked: Vec<UdpSocket> = Vec::new();
        for group in groups {
            let to = SocketAddr::new(group, self.port);
            let Ok(socket) = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP)) else {
                continue;
            };
            let sent = interfaces.iter().filter(|interface| send_through(&socket, interface, &request, to));
            if sent.count() > 0 {
                report(to);
                asked.push(socket.into());
            }
        }
        if asked.is_empty() {
            bail!("no interface can send to a group; --addr HOST asks over TCP");
        }
        let until = Instant::now() + Duration::from_millis(self.timeout);
        let mut answers = Vec::new();
        for socket in asked {
            receive_until(&socket, until, &mut answers)?;
        }
        // A host with several interfaces is asked once for each.
        answers.sort();
        answers.dedup();
        Ok(answers)
    }

    /// First asks one member for all members' addresses.
    fn one_by_one(&self, host: &str, text: &str) -> anyhow::Result<Vec<String>> {
        let first =
            self.ask((host, self.port), "member-addrs").with_context(|| format!("{host}:{}", self.port))?;
        let line = first.lines().find_map(|line| line.strip_prefix("member-addrs="));
        let hosts: Vec<IpAddr> = line.unwrap_or_default().trim().split(", ").filter_map(host_of).collect();
        let mut places: Vec<(String, u16)> = Vec::new();
        for ip in hosts {
            // Members of one host have taken the ports from the first one on.
            let before = places.iter().filter(|(other, _)| *other == ip.to_string()).count();
            places.push((ip.to_string(), self.port + before as u16));
        }
        if places.is_empty() {
            places.push((host.to_owned(), self.port));
        }
        let mut answers = Vec::new();
        for (host, port) in places {
            println!("-- sending probe request to /{host}:{port}");
            match self.ask((&host, port), text) {
                Ok(answer) if !answer.is_empty() => answers.push(answer),
                Ok(_) => {}
                Err(error) => eprintln!("{host}:{port}: {error}"),
            }
        }
        Ok(answers)
    }

    pub(crate) fn ask(&self, to: (&str, u16), text: &str) -> anyhow::Result<String> {
        let time_limit = Duration::from_millis(self.timeout.max(1_000));
        let mut stream = connect(to, time_limit)?;
        stream.set_read_timeout(Some(time_limit))?;
        let mut request = self.request(text);
        request.push(b'\n');
        stream.write_all(&request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// The first address that accepts, each within the time limit, because some hosts drop packets.
fn connect(to: (&str, u16), time_limit: Duration) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
    for address in to.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, time_limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn send_through(socket: &Socket, interface: &if_addrs::Interface, request: &[u8], to: SocketAddr) -> bool {
    let chosen = match (interface.ip(), to) {
        (IpAddr::V4(ip), SocketAddr::V4(_)) => socket.set_multicast_if_v4(&ip),
        (IpAddr::V6(_), SocketAddr::V6(_)) => socket.set_multicast_if_v6(interface.index.unwrap_or(0)),
        _ => return false,
    };
    chosen.is_ok() && socket.send_to(request, &to.into()).is_ok()
}

fn receive_until(socket: &UdpSocket, until: Instant, answers: &mut Vec<String>) -> anyhow::Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            socket.set_nonblocking(true)?;
        } else {
            socket.set_read_timeout(Some(left))?;
        }
        match socket.recv_from(&mut buffer) {
            Ok((length, _)) => answers.push(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(_) if left.is_zero() => return Ok(()),
            Err(_) => {}
        }
    }
}

/// Members write `10.0.0.1:7800`, `[fd00::1]:7800`, or Java's `fd00:0:0:0:0:0:0:1:7800`.
fn host_of(address: &str) -> Option<IpAddr> {
    let (host, _port) = address.rsplit_once(':')?;
    host.trim_matches(['/', '[', ']']).parse().ok()
}

/// The responses that contain `wanted`, as JGroups' Probe prints them, with counts of matching and other responses.
fn response_text(answers: &[String], wanted: Option<&str>) -> String {
    let mut text = String::new();
    let mut matches = 0;
    for (nth, answer) in answers.iter().enumerate() {
        if wanted.is_some_and(|wanted| !answer.contains(wanted)) {
            continue;
        }
        matches += 1;
        let _ = writeln!(text, "#{} ({} bytes):\n{}\n", nth + 1, answer.len(), answer.trim_end());
    }
    let others = answers.len() - matches;
    let _ = writeln!(text, "{} responses ({matches} matches, {others} non matches)", answers.len());
    text
}

#[cfg(test)]
mod tests {
    use super::{host_of, response_text};

    #[test]
    fn hosts_are_read_as_either_kind_of_member_writes_them() {
        let written =
            ["10.0.0.1:7800", "/10.0.0.1:7800", "[fd00::1]:7800", "fd00:0:0:0:0:0:0:1:7800", "null"];
        let (v4, v6) = ("10.0.0.1".parse().ok(), "fd00::1".parse().ok());
        assert_eq!(written.map(host_of), [v4, v4, v6, v6, None]);
    }

    /// S000-30, S000-31: number and size before every answer, and the counts at the end.
    #[test]
    fn responses_are_printed_as_in_jgroups() {
        let answers = ["local_addr=A\nview=[A|1] (2) [A, B]\n".to_owned(), "local_addr=B\n".to_owned()];
        assert_eq!(
            response_text(&answers, None),
            "#1 (35 bytes):\nlocal_addr=A\nview=[A|1] (2) [A, B]\n\n#2 (13 bytes):\nlocal_addr=B\n\n\
             2 responses (2 matches, 0 non matches)\n"
        );
        assert_eq!(
            response_text(&answers, Some("addr=B")),
            "#2 (13 bytes):\nlocal_addr=B\n\n2 responses (1 matches, 1 non matches)\n"
        );
        assert_eq!(response_text(&[], None), "0 responses (0 matches, 0 non matches)\n");
    }
}
