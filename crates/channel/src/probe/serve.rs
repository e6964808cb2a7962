//! The responder's sockets: a task per channel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use consort_group::PhysAddr;
use consort_net::{Command, DefaultGroups, DiagConfig, IpVersion, Submitter};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::answer::Answerer;
use super::passcode::checked;

/// The limit in bytes, as in JGroups.
const REQUEST_MAX: usize = 10_000;

/// The limit in bytes.
const DATAGRAM_MAX: usize = 65_507;

/// Further TCP requests wait.
const CLIENTS_MAX: usize = 16;

/// The timeout of a TCP client.
const REQUEST_TIME: Duration = Duration::from_secs(5);

/// The task ends on drop.
pub(crate) struct Responder(JoinHandle<()>);

impl Responder {
    /// Returns when the sockets are closed.
    pub(crate) async fn stop(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A socket that cannot be opened is logged: diagnostics must not keep a member out of its cluster.
pub(crate) fn start(
    config: DiagConfig,
    own: PhysAddr,
    answerer: Answerer,
    driver: Submitter,
    is_guarded: bool,
) -> Option<Responder> {
    if !config.enabled {
        return None;
    }
    let handler =
        RequestHandler { answerer, driver, passcode: config.passcode.clone().map(Arc::from), is_guarded };
    let chosen = match listen_address(&config, own, is_guarded) {
        Ok(chosen) => chosen,
        Err(why) => {
            tracing::warn!("probe is off: diag.bind_addr: {why}");
            return None;
        }
    };
    let udp = config.enable_udp.then(|| udp_socket(&config, own, chosen));
    let udp = udp.and_then(|socket| warn_if_closed("UDP", socket));
    let tcp = config.enable_tcp.then(|| tcp_socket(&config, own, chosen));
    let tcp = tcp.and_then(|socket| warn_if_closed("TCP", socket));
    if udp.is_none() && tcp.is_none() {
        return None;
    }
    let is_udp_open = udp.is_some() && !chosen.is_some_and(|ip| ip.is_loopback());
    if config.passcode.is_none()
        && !is_guarded
        && let Some(open) = describe_reachability(&config, is_udp_open, tcp.as_ref())
    {
        tracing::warn!(
            "probe listens on {open} without diag.passcode: any client that reaches it can read and change this member \
             (diag.passcode, diag.bind_addr=\"loopback\", or diag.enabled=\"false\")"
        );
    }
    Some(Responder(tokio::spawn(async move {
        tokio::join!(serve_udp(udp, handler.clone()), serve_tcp(tcp, handler));
    })))
}

fn warn_if_closed<S>(what: &str, socket: io::Result<S>) -> Option<S> {
    socket.inspect_err(|error| tracing::warn!(%error, "probe cannot listen on {what}")).ok()
}

/// The address is of the own family; `None` is all. A member on the loopback listens there only, a guarded one on its
/// own address.
fn listen_address(config: &DiagConfig, own: PhysAddr, is_guarded: bool) -> Result<Option<IpAddr>, String> {
    let Some(selectors) = &config.bind_addr else {
        return Ok(own.ip.filter(|ip| ip.is_loopback() || (is_guarded && !ip.is_unspecified())));
    };
    let version = if own.ip.is_some_and(|ip| ip.is_ipv6()) { IpVersion::V6 } else { IpVersion::V4 };
    let found = selectors.choose_of_host(version).map_err(|error| error.to_string())?;
    Ok(Some(found.ip).filter(|ip| !ip.is_unspecified()))
}

fn describe_reachability(config: &DiagConfig, is_udp: bool, tcp: Option<&TcpListener>) -> Option<String> {
    let heard_on = config.bind_addr.as_ref().map(ToString::to_string);
    let heard_on = heard_on.map_or_else(String::new, |bind_addr| format!(" of {bind_addr}"));
    let udp = is_udp.then(|| format!("multicasts to port {}{heard_on}", config.port));
    let tcp = tcp.and_then(|tcp| tcp.local_addr().ok()).filter(|own| !own.ip().is_loopback());
    let all: Vec<String> = udp.into_iter().chain(tcp.map(|own| format!("TCP {own}"))).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

fn udp_socket(config: &DiagConfig, own: PhysAddr, chosen: Option<IpAddr>) -> io::Result<UdpSocket> {
    let group = DefaultGroups::PROBE.choose(config.mcast_addr, own.ip);
    let domain = if group.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(group, config.port).into())?;
    // Otherwise the socket would receive groups that other programs joined on other interfaces.
    #[cfg(target_os = "linux")]
    if group.is_ipv4() {
        socket.set_multicast_all_v4(false)?;
    }
    let mut joined = Err(io::Error::other("no interface"));
    for interface in if_addrs::get_if_addrs()? {
        let is_it = |chosen: IpAddr| {
            chosen == interface.ip() || (chosen.is_loopback() && interface.ip().is_loopback())
        };
        if !chosen.is_none_or(is_it) {
            continue;
        }
        let done = match (group, interface.ip()) {
            (IpAddr::V4(group), IpAddr::V4(ip)) => socket.join_multicast_v4(&group, &ip),
            (IpAddr::V6(group), IpAddr::V6(_)) => {
                socket.join_multicast_v6(&group, interface.index.unwrap_or(0))
            }
            _ => continue,
        };
        if joined.is_err() {
            joined = done;
        }
    }
    joined?;
    UdpSocket::from_std(socket.into())
}

fn tcp_socket(config: &DiagConfig, own: PhysAddr, chosen: Option<IpAddr>) -> io::Result<TcpListener> {
    let ip = chosen.unwrap_or(if own.ip.is_some_and(|ip| ip.is_ipv6()) {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    });
    let mut last = io::Error::other("no port");
    for port in config.port..=config.port.saturating_add(config.port_range) {
        match std::net::TcpListener::bind((ip, port)) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return TcpListener::from_std(listener);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The stack's task answers.
#[derive(Clone)]
struct RequestHandler {
    answerer: Answerer,
    driver: Submitter,
    passcode: Option<Arc<str>>,
    is_guarded: bool,
}

impl RequestHandler {
    async fn answer(&self, request: &[u8], from: SocketAddr) -> Option<String> {
        let text = checked(request, self.passcode.as_deref())?;
        let text = String::from_utf8_lossy(text).into_owned();
        let changes = Answerer::changes(&text);
        if self.is_guarded && self.passcode.is_none() && !changes.is_empty() {
            let changes = changes.join(" ");
            tracing::warn!(%from, request = %changes, "probe does not change this member: it has no passcode");
            return Some(format!(
                "refused: {changes}: this member is changed with a passcode only, and has none\n"
            ));
        }
        if !changes.is_empty() {
            tracing::warn!(%from, request = %changes.join(" "), "probe changes this member");
        }
        let (done, wait) = oneshot::channel();
        let answerer = self.answerer.clone();
        let call = Command::Call(Box::new(move |stack, now| {
            let _ = done.send(answerer.answer(stack, now, &text));
        }));
        self.driver.submit(call).ok()?;
        wait.await.ok().flatten()
    }
}

async fn serve_udp(socket: Option<UdpSocket>, handler: RequestHandler) {
    let Some(socket) = socket else { return };
    let mut buffer = vec![0; REQUEST_MAX];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Some(mut answer) = handler.answer(&buffer[..length], from).await {
                    answer.truncate(answer.floor_char_boundary(DATAGRAM_MAX));
                    // The group's address must not be the response's source.
                    if let Err(error) = answer_from_new_socket(from, &answer).await {
                        tracing::debug!(%error, %from, "probe cannot answer");
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "probe cannot receive"),
        }
    }
}

async fn answer_from_new_socket(to: SocketAddr, answer: &str) -> io::Result<()> {
    let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    UdpSocket::bind((any, 0)).await?.send_to(answer.as_bytes(), to).await.map(drop)
}

async fn serve_tcp(listener: Option<TcpListener>, handler: RequestHandler) {
    let Some(listener) = listener else { return };
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    let mut clients = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while clients.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let handler = handler.clone();
                clients.spawn(async move {
                    let _ = tokio::time::timeout(REQUEST_TIME, serve_client(stream, from, handler)).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Most likely no file descriptor is free; a retry at once would only spin.
                tracing::debug!(%error, "probe cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_client(mut stream: TcpStream, from: SocketAddr, handler: RequestHandler) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1_024];
    while request.len() < REQUEST_MAX && !request.contains(&b'\n') {
        match stream.read(&mut buffer).await? {
            0 => break,
            length => request.extend_from_slice(&buffer[..length]),
        }
    }
    if let Some(answer) = handler.answer(&request, from).await {
        stream.write_all(answer.as_bytes()).await?;
    }
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarded_member_listens_on_the_address_of_its_transport() {
        let own = |ip: [u8; 4]| PhysAddr::new(ip.into(), 7_800);
        let config = DiagConfig::default();
        let outside = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(listen_address(&config, own([10, 0, 0, 1]), true), Ok(Some(outside)));
        assert_eq!(
            listen_address(&config, own([10, 0, 0, 1]), false),
            Ok(None),
            "all addresses, as in JGroups"
        );
        for is_guarded in [true, false] {
            let loopback = listen_address(&config, own([127, 0, 0, 1]), is_guarded);
            assert_eq!(loopback, Ok(Some([127, 0, 0, 1].into())));
            assert_eq!(listen_address(&config, own([0, 0, 0, 0]), is_guarded), Ok(None));
        }
    }
}
