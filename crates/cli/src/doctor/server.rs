use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use consort_client::{
    Client, ClientBuilder, ClientError, ConnectError, ConnectionError, LoginError, ServerAddress, ServerState,
};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use super::findings::Findings;
use super::port_probe::{self, ProbeResult};

/// Times are in whole seconds, and responses take some time.
const SKEW_MAX: Duration = Duration::from_secs(3);

const ADDRESSES_MAX: usize = 8;

/// The servers that a client is to be sent to.
pub(super) struct Expected {
    pub(super) cache: Option<String>,
    pub(super) servers: Option<usize>,
}

pub(super) async fn check(
    builder: ClientBuilder,
    expected: &Expected,
    time_limit: Duration,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let mut can_connect = false;
    for server in builder.servers().to_vec() {
        let Some(address) = reach(&server, time_limit, findings).await else { continue };
        can_connect |=
            identify_service(address, &server, builder.is_within_tls(), time_limit, findings).await;
    }
    if can_connect {
        connect(builder, expected, time_limit, findings).await;
    }
    Ok(())
}

async fn reach(server: &ServerAddress, time_limit: Duration, findings: &mut Findings) -> Option<SocketAddr> {
    let host = server.host.as_str();
    let checked = format!("name {host}");
    let found = match timeout(time_limit, lookup_host((host, server.port))).await {
        Ok(Ok(found)) => found.take(ADDRESSES_MAX).collect::<Vec<_>>(),
        Ok(Err(error)) => {
            findings.bad(
                checked,
                format!("it has no address: {error}"),
                "name the host in DNS or in /etc/hosts, or give its address",
            );
            return None;
        }
        Err(_) => {
            findings.bad(
                checked,
                format!("the name service does not respond within {time_limit:?}"),
                "look at /etc/resolv.conf, or give the host's address",
            );
            return None;
        }
    };
    let addresses: Vec<String> = found.iter().map(|address| address.ip().to_string()).collect();
    findings.good(checked, format!("is {}", addresses.join(", ")));
    let (mut reached, mut failures) = (None, Vec::new());
    for address in found {
        match timeout(time_limit, TcpStream::connect(address)).await {
            Ok(Ok(_)) => {
                findings.good(format!("port {address}"), "a program listens");
                reached = reached.or(Some(address));
            }
            Ok(Err(error)) => failures.push((address, error.kind(), error.to_string())),
            Err(_) => {
                failures.push((address, ErrorKind::TimedOut, format!("no answer within {time_limit:?}")));
            }
        }
    }
    for (address, kind, why) in failures {
        let checked = format!("port {address}");
        if let Some(reached) = reached {
            let advice = format!(
                "clients that try this address first lose time: have the server listen there, too, or name {}",
                reached.ip()
            );
            findings.warning(checked, why, advice);
        } else {
            findings.bad(checked, why, remedy(kind));
        }
    }
    reached
}

fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ConnectionRefused => {
            "no program listens there: start a server (consort server), or name the port of one; without --host a server listens \
             on 127.0.0.1 only"
        }
        ErrorKind::TimedOut => "the host is down, or a firewall drops packets to this port",
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            "there is no way to this address: look at the routes (ip route get ADDRESS), and whether both hosts have IPv4 or IPv6"
        }
        _ => "look at the network between the hosts",
    }
}

/// Whether a client can be expected to connect.
async fn identify_service(
    address: SocketAddr,
    server: &ServerAddress,
    is_within_tls: bool,
    time_limit: Duration,
    findings: &mut Findings,
) -> bool {
    let checked = format!("protocol of {address}");
    match (port_probe::ping(address, time_limit).await, is_within_tls) {
        (ProbeResult::HotRod { newest, mechanisms }, false) => {
            findings.good(
                checked,
                format!("Hot Rod, up to version {}.{}, without TLS", newest / 10, newest % 10),
            );
            let checked = format!("authentication of {address}");
            match mechanisms {
                Some(mechanisms) => findings.good(checked, format!("by {}", mechanisms.join(", "))),
                None => findings.good(checked, "not required"),
            }
            health(address, server, time_limit, findings).await;
            true
        }
        (ProbeResult::HotRod { .. }, true) => {
            findings.bad(checked, "Hot Rod without TLS, and TLS is expected", "connect with hotrod:// or without use_ssl, or start the server with --tls-cert and --tls-key");
            false
        }
        (ProbeResult::Tls, true) => {
            findings.good(checked, "TLS");
            true
        }
        (ProbeResult::Tls, false) => {
            findings.bad(
                checked,
                "TLS only, and the client connects without TLS",
                "connect with hotrods:// (in Java use_ssl=true), and with the certificate to trust",
            );
            false
        }
        (ProbeResult::Http, _) => {
            findings.bad(
                checked,
                "HTTP, and no Hot Rod",
                "another program listens there: name the port of a server",
            );
            false
        }
        (ProbeResult::Silence, _) => {
            findings.bad(
                checked,
                format!("it accepts connections, and does not respond within {time_limit:?}"),
                "a server that is stopped or overloaded, or one that waits for other members before it serves (its log names them); or a \
                 member's port for other members (7800 as a rule)",
            );
            false
        }
        (ProbeResult::Closed, is_within_tls) => {
            // A service that expects a handshake may close the connection silently.
            if is_within_tls {
                findings.good(checked, "it closes connections without TLS");
            } else {
                let advice = "it may be a member's port for other members (7800 as a rule), a port with TLS (hotrods://), or a server at its limit of connections";
                findings.bad(checked, "it closes connections without an answer", advice);
            }
            is_within_tls
        }
        (ProbeResult::Refusal(why), _) => {
            findings.bad(checked, format!("Hot Rod, and it refuses: {why}"), "look into the server's log");
            false
        }
        (ProbeResult::Other, _) => {
            findings.bad(
                checked,
                "something that is neither Hot Rod nor TLS",
                "another program listens there: name the port of a server",
            );
            false
        }
    }
}

/// Over HTTP on the same port; also compares the clocks.
async fn health(address: SocketAddr, server: &ServerAddress, time_limit: Duration, findings: &mut Findings) {
    // A server without HTTP reports no health.
    let Some(report) = port_probe::health(address, server.host.as_str(), time_limit).await else { return };
    let is_short = report.memory.as_deref().is_some_and(|memory| memory.contains("short"));
    if let Some(memory) = &report.memory {
        let checked = format!("memory of {address}");
        if is_short {
            let advice = "writes that add entries are refused: remove entries, give the servers more memory (--memory, or the \
                          limit of their container), or add servers";
            findings.bad(checked, memory.as_str(), advice);
        } else {
            findings.good(checked, memory.as_str());
        }
    }
    let checked = format!("health of {address}");
    match &*report.health {
        "DEGRADED" if is_short => {
            findings.warning(checked, "DEGRADED", "memory is short; owners of some keys may be unreachable, too: see the servers' logs");
        }
        "HEALTHY" | "HEALTHY_REBALANCING" => findings.good(checked, &*report.health),
        "DEGRADED" => findings.bad(
            checked,
            "DEGRADED: owners of some keys are unreachable",
            "continue stopped servers, or repair the network; the servers' logs name the unreachable ones. Only if they have \
             crashed for good: consort cache make-available, which prints the losses and asks first",
        ),
        other => findings.warning(checked, other, "wait until it is HEALTHY"),
    }
    let Some(date) = report.date else { return };
    let now = SystemTime::now();
    let skew = now.duration_since(date).unwrap_or_else(|later| later.duration());
    let checked = format!("clock of {address}");
    if skew > SKEW_MAX {
        let advice = "set both hosts' clocks by the same service: tokens and certificates are good from and until a time";
        findings.warning(checked, format!("differs from the local clock by {} s", skew.as_secs()), advice);
    } else {
        findings.good(checked, "agrees with the local clock");
    }
}

async fn connect(builder: ClientBuilder, expected: &Expected, time_limit: Duration, findings: &mut Findings) {
    let client = match builder.connect().await {
        Ok(client) => client,
        Err(ConnectError::Unreachable(causes)) => {
            for (server, cause) in causes {
                let advice = advice_on(&cause);
                findings.bad(format!("client at {server}"), cause.to_string(), advice);
            }
            return;
        }
        Err(error) => return findings.bad("client", error.to_string(), "check the client's options"),
    };
    findings.good("client", "connected and authenticated");
    match client.administration().names().await {
        Ok(names) => {
            let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let cache = expected.cache.as_ref().or(names.first());
            match cache.filter(|cache| names.contains(cache)) {
                Some(cache) => {
                    findings.good("caches", listed);
                    topology(&client, cache, expected.servers, time_limit, findings).await;
                }
                None if expected.cache.is_none() && expected.servers.is_none() => {
                    findings.good("caches", "none, so that clients are sent to no other server");
                }
                None => findings.bad(
                    "caches",
                    format!("{listed}: no cache whose servers can be checked"),
                    "create it (consort cache create), or name another one with --cache",
                ),
            }
        }
        Err(ClientError::Denied { message, .. }) => findings.bad(
            "caches",
            message,
            "log in (hotrod://USER:PASSWORD@HOST), or give the user a role: monitor sees names, observer reads, application writes",
        ),
        Err(error) => findings.bad("caches", error.to_string(), "look into the server's log"),
    }
    client.close().await;
}

fn advice_on(cause: &ConnectionError) -> &'static str {
    match cause {
        ConnectionError::Login(LoginError::Rejected { .. }) => {
            "look at the user's name and password, and at the file with the server's users (consort user makes its lines)"
        }
        ConnectionError::Login(LoginError::NotAsked(_)) => "omit the user: this server has no users",
        ConnectionError::Login(LoginError::NoMechanism { .. }) => {
            "without TLS only SCRAM is used: connect with hotrods://, or give the user a SCRAM verifier"
        }
        ConnectionError::Login(_) => {
            "the server has not proved its identity: check the address and the network"
        }
        ConnectionError::Tls(_) => {
            "give the certificate to trust (trust_store_file_name=FILE), connect by the name that is in the server's certificate \
             (or give it as sni_host_name), and show one if it is asked for"
        }
        ConnectionError::VersionTooOld { .. } => "this server is too old for this client",
        _ => "look into the server's log",
    }
}

async fn topology(
    client: &Client,
    cache: &str,
    expected: Option<usize>,
    time_limit: Duration,
    findings: &mut Findings,
) {
    // Any answer brings them, also one that says no.
    if let Err(error) = client.raw(cache).contains(&b"consort doctor"[..]).await {
        findings.warning(
            format!("cache {cache}"),
            error.to_string(),
            "the user may not read it, or it is degraded",
        );
    }
    let until = Instant::now() + time_limit;
    let is_open = |state: &ServerState| !state.is_connected && state.trouble.is_none();
    let mut states = client.states();
    while states.iter().any(is_open) && Instant::now() < until {
        tokio::time::sleep(time_limit / 20).await;
        states = client.states();
    }
    if let Some(expected) = expected {
        // Without a topology clients stay with the servers that they were given.
        let count = Some(client.servers_of(cache).len()).filter(|count| *count > 0).unwrap_or(states.len());
        let (checked, found) = (format!("servers of cache {cache}"), format!("{count} of {expected}"));
        if count == expected {
            findings.good(checked, found);
        } else {
            let advice = "a server that is missing may be starting, or it is alone or in another cluster: see its log, and \
                          consort doctor with --config where it runs";
            findings.bad(checked, found, advice);
        }
    }
    for ServerState { address, is_connected, trouble } in states {
        let checked = format!("server {}:{} that clients are sent to", address.host, address.port);
        if is_connected {
            findings.good(checked, "connected");
            continue;
        }
        let why = trouble
            .map_or_else(|| format!("no connection within {time_limit:?}"), |trouble| trouble.to_string());
        let advice = format!(
            "let the server advertise a name that clients can reach (consort server --advertise HOST), or use clients of BASIC \
             intelligence; it may also be stopped or overloaded: see consort doctor {}:{}",
            address.host, address.port
        );
        findings.bad(checked, why, advice);
    }
}
