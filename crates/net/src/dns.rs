//! DNS records that the system's resolver does not return: services (SRV), and records of a given name server.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use consort_group::DnsRecord;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::time::{Instant, timeout_at};

/// The port of DNS.
const PORT: u16 = 53;

/// Time for one response, and repetitions of a request without one.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const REPETITIONS: usize = 1;

/// Time for all requests of a query: a discovery does not wait for a name server that answers each request late.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the names of services. The addresses that are found until then count.
const SERVICES_TIMEOUT: Duration = Duration::from_secs(8);

/// Services whose names are resolved. A headless service has one per member.
const SERVICES_MAX: usize = 1_000;

const TOO_SLOW: &str = "the name servers are too slow";

/// Returns the addresses of a name with their ports, which are 0 for A and AAAA. Blocks for at most 10 s while it waits
/// for name servers: for `server`, or for those of the system.
///
/// # Errors
///
/// If no server responds, or if the name has no such records.
pub fn query(name: &str, record: DnsRecord, server: Option<&str>) -> io::Result<Vec<(IpAddr, u16)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        let found = tokio::time::timeout(QUERY_TIMEOUT, find(name, record, server)).await;
        found.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, TOO_SLOW)))
    });
    answer.map_err(|error| {
        let server = server.map(|server| format!(" (server {server})")).unwrap_or_default();
        io::Error::new(error.kind(), format!("{name}: {error}{server}"))
    })
}

async fn find(name: &str, record: DnsRecord, server: Option<&str>) -> io::Result<Vec<(IpAddr, u16)>> {
    let resolver = resolver(server)?;
    let mut found = match record {
        DnsRecord::A => addresses(&resolver, name, RecordType::A).await?,
        DnsRecord::Aaaa => addresses(&resolver, name, RecordType::AAAA).await?,
        DnsRecord::Srv => services(&resolver, name, Instant::now() + SERVICES_TIMEOUT).await?,
    };
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn resolver(server: Option<&str>) -> io::Result<TokioResolver> {
    let provider = TokioRuntimeProvider::default();
    let mut builder = match server {
        Some(server) => {
            let servers = addresses_of(server)?.into_iter().map(name_server).collect();
            TokioResolver::builder_with_config(ResolverConfig::from_name_servers(servers), provider)
        }
        None => TokioResolver::builder(provider).map_err(io::Error::other)?,
    };
    limit(builder.options_mut());
    builder.build().map_err(io::Error::other)
}

/// A discovery repeats its query, so that nothing is kept for the next one.
fn limit(options: &mut ResolverOpts) {
    options.timeout = RESPONSE_TIMEOUT;
    options.attempts = REPETITIONS;
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
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
    found.map(Iterator::collect)
}

async fn addresses(resolver: &TokioResolver, name: &str, kind: RecordType) -> io::Result<Vec<(IpAddr, u16)>> {
    let found = resolver.lookup(name, kind).await.map_err(in_words)?;
    Ok(found.answers().iter().filter_map(address).map(|ip| (ip, 0)).collect())
}

/// Returns the addresses of services. Their names are resolved by the response's further records, or else asked for.
async fn services(resolver: &TokioResolver, name: &str, until: Instant) -> io::Result<Vec<(IpAddr, u16)>> {
    let response = resolver.lookup(name, RecordType::SRV).await.map_err(in_words)?;
    let (mut found, mut failure) = (Vec::new(), None);
    let services = response.answers().iter().filter_map(|record| match &record.data {
        // Priority and weight choose one server of several; all members get a request.
        RData::SRV(service) => Some((&service.target, service.port)),
        _ => None,
    });
    for (target, port) in services.take(SERVICES_MAX) {
        let mut ips: Vec<IpAddr> = response
            .additionals()
            .iter()
            .filter(|record| record.name == *target)
            .filter_map(address)
            .collect();
        if ips.is_empty() {
            match timeout_at(until, addresses_of_service(resolver, target)).await {
                Ok(Ok(asked)) => ips = asked,
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(io::Error::new(io::ErrorKind::TimedOut, TOO_SLOW)),
            }
        }
        found.extend(ips.into_iter().map(|ip| (ip, port)));
    }
    match failure {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

async fn addresses_of_service(resolver: &TokioResolver, target: &Name) -> io::Result<Vec<IpAddr>> {
    let mut last = io::Error::other("the service's name has no address");
    for kind in [RecordType::A, RecordType::AAAA] {
        match resolver.lookup(target.clone(), kind).await {
            Ok(found) => {
                let ips: Vec<IpAddr> = found.answers().iter().filter_map(address).collect();
                if !ips.is_empty() {
                    return Ok(ips);
                }
            }
            Err(error) => last = in_words(error),
        }
    }
    Err(last)
}

fn address(record: &Record) -> Option<IpAddr> {
    match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    }
}

fn in_words(error: NetError) -> io::Error {
    if error.is_nx_domain() {
        io::Error::new(io::ErrorKind::NotFound, "the name does not exist")
    } else if error.is_no_records_found() {
        io::Error::new(io::ErrorKind::NotFound, "the name has no such record")
    } else {
        io::Error::other(error)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use hickory_resolver::proto::op::{Message, OpCode, Query, ResponseCode};
    use hickory_resolver::proto::rr::rdata::{A, SRV};

    use super::*;

    const NAME: &str = "_ping._tcp.grid.shop.svc.";

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn of_host(host: &str, ip: [u8; 4]) -> Record {
        Record::from_rdata(name(host), 5, RData::A(A(ip.into())))
    }

    fn service(host: &str, port: u16) -> Record {
        Record::from_rdata(name(NAME), 5, RData::SRV(SRV::new(0, 100, port, name(host))))
    }

    /// A name server that responds to `count` requests, and returns their queries.
    fn serve(
        count: usize,
        respond: impl Fn(&Query, &mut Message) + Send + 'static,
    ) -> (String, thread::JoinHandle<Vec<Query>>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let place = socket.local_addr().unwrap().to_string();
        let served = thread::spawn(move || {
            let mut queries = Vec::new();
            for _ in 0..count {
                let mut buffer = [0; 512];
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                let request = Message::from_vec(&buffer[..length]).unwrap();
                let query = request.queries[0].clone();
                let mut response = Message::response(request.id, OpCode::Query);
                response.add_query(query.clone());
                respond(&query, &mut response);
                socket.send_to(&response.to_vec().unwrap(), from).unwrap();
                queries.push(query);
            }
            queries
        });
        (place, served)
    }

    #[test]
    fn services_have_the_ports_of_their_records_and_the_addresses_of_their_names() {
        let (place, served) = serve(2, |query, response| {
            if query.query_type() == RecordType::SRV {
                response.add_answers([service("a.grid.shop.svc.", 7800), service("b.grid.shop.svc.", 7801)]);
                response.add_additionals([of_host("a.grid.shop.svc.", [10, 0, 0, 7])]);
            } else {
                response.add_answers([of_host("b.grid.shop.svc.", [10, 0, 0, 8])]);
            }
        });
        let found = query(NAME, DnsRecord::Srv, Some(&place)).unwrap();
        assert_eq!(found, [([10, 0, 0, 7].into(), 7800), ([10, 0, 0, 8].into(), 7801)]);
        let queries = served.join().unwrap();
        assert_eq!((queries[1].name(), queries[1].query_type()), (&name("b.grid.shop.svc."), RecordType::A));
    }

    #[test]
    fn given_server_is_asked_for_addresses() {
        let (place, served) = serve(1, |_, response| {
            response.add_answers([of_host("grid.", [10, 0, 0, 7])]);
        });
        let found = query("grid.", DnsRecord::A, Some(&format!("dns://{place}/"))).unwrap();
        assert_eq!(found, [([10, 0, 0, 7].into(), 0)]);
        served.join().unwrap();
    }

    #[test]
    fn error_names_the_name_and_the_server() {
        let (place, served) = serve(1, |_, response| {
            response.metadata.response_code = ResponseCode::NXDomain;
        });
        let error = query("nowhere.", DnsRecord::A, Some(&place)).unwrap_err().to_string();
        assert_eq!(error, format!("nowhere.: the name does not exist (server {place})"));
        served.join().unwrap();
        let error = query("a..b", DnsRecord::A, Some(&place)).unwrap_err().to_string();
        assert!(error.starts_with("a..b: "), "{error}");
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
