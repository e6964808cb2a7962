//! As JGroups' GossipRouter.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use consort_group::PingData;
use consort_group::config::{HostPort, Property};
use consort_router::{Router as Routes, RouterClientTls, RouterConfig, RouterTls};
use consort_tls::{Identity, Roots};

use crate::listener_tls::ListenerTls;
use crate::log::LogFormat;
use crate::shutdown::Signals;
use crate::table::table;

const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    consort router --host 0.0.0.0           members of all hosts may register\n  \
    consort router --members 10.0.0.1       the members registered there\n  \
    consort router --host 0.0.0.0 --tls-cert router.pem --tls-key router.key\n  \
    consort router --members 10.0.0.1 --tls-ca ca.pem\n  \
    consort chat --config tcpgossip.xml \\\n    \
    -D jgroups.tcpgossip.initial_hosts=10.0.0.1[12001],10.0.0.2[12001]\n\n\
    Members with TCPGOSSIP in their stack register with all routers of its list and\n\
    get the addresses of the other members from them; their messages do not pass\n\
    through the router. All messages of members with TUNNEL (tunnel.xml) do, so that\n\
    members need not reach each other. Members can use JGroups' own GossipRouter\n\
    instead, and --members queries it, too.\n\n\
    With --tls-cert and --tls-key the router takes TLS connections only. Members set\n\
    tls.enabled and tls.truststore_path at TUNNEL or TCPGOSSIP; tls.server_name is\n\
    the name in the router's certificate, if that lacks the name or address that\n\
    members connect to. With --tls-client-required, only members with a certificate\n\
    register (their tls.keystore_path). JGroups' TCPGOSSIP has no TLS, its TUNNEL\n\
    has.\n\n\
    With two routers, members discover each other, and members with TUNNEL go on,\n\
    while one router is down. A router keeps its members in memory only; members\n\
    register again after a restart.\n\n\
    Every program that reaches a router can register there, so let only members\n\
    reach it. SIGTERM or Ctrl-C ends it. The log has a line for each member that\n\
    registers or leaves; CONSORT_LOG=warn logs faults only.")]
pub(crate) struct Router {
    /// Address for members to connect to; 0.0.0.0 and :: are all addresses of this host
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port for members to connect to
    #[arg(long, default_value_t = RouterConfig::PORT)]
    port: u16,
    /// Do not report closed connections to the other members of the group
    #[arg(long)]
    no_suspect: bool,
    /// Form of each event in the log
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log_format: LogFormat,
    #[command(flatten)]
    tls: ListenerTls,
    /// List the members that are registered with this router, instead of running one. With --tls-ca, and --tls-cert and
    /// --tls-key, it presents that certificate
    #[arg(
        long,
        value_name = "HOST[:PORT]",
        conflicts_with_all = ["host", "port", "no_suspect", "tls_client_ca"]
    )]
    members: Option<String>,
    /// With --members: use TLS, and trust routers with certificates of the CAs in this PEM file
    #[arg(long, value_name = "FILE", requires = "members")]
    tls_ca: Option<PathBuf>,
    /// With --tls-ca: the name in the router's certificate, instead of the one in --members
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_server_name: Option<String>,
}

impl Router {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        crate::descriptors::raise_limit();
        match self.members {
            Some(ref router) => print_members(router, self.client_tls()?).await,
            None => self.route().await,
        }
    }

    async fn route(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::listen()?;
        let tls = self.router_tls()?;
        let Self { host, port, no_suspect, .. } = self;
        let config = RouterConfig { host, port, notify_ends: !no_suspect, tls, ..RouterConfig::default() };
        let router = Routes::start(&config).await.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow::anyhow!(
                "port {port} of {} is taken, by another router perhaps: --port chooses another one",
                config.host
            ),
            _ => anyhow::anyhow!("cannot listen at {} port {port}: {error}", config.host),
        })?;
        // The parent process may not read this output.
        let _ = writeln!(std::io::stdout(), "-- router: members connect to {}", router.local_addr());
        let name = signals.next().await;
        let left = router.member_count();
        let _ = writeln!(std::io::stdout(), "-- {name}: the router ends; {}", registered(left));
        router.close().await;
        Ok(ExitCode::SUCCESS)
    }
}

impl Router {
    fn identity(&self) -> anyhow::Result<Option<Identity>> {
        let files = self.tls.files();
        Ok(files.map(|files| files.identity.read()).transpose()?)
    }

    fn router_tls(&self) -> anyhow::Result<Option<RouterTls>> {
        let Some(files) = self.tls.files() else { return Ok(None) };
        let (identity, clients) = files.read()?;
        Ok(Some(RouterTls { identity, clients }))
    }

    fn client_tls(&self) -> anyhow::Result<Option<RouterClientTls>> {
        let Some(file) = &self.tls_ca else {
            anyhow::ensure!(
                self.tls.files().is_none(),
                "--members with --tls-cert needs --tls-ca, the CAs of the router's certificate: without it, no TLS is used"
            );
            return Ok(None);
        };
        let (roots, identity) = (Roots::from_file(file)?, self.identity()?);
        Ok(Some(RouterClientTls { roots, identity, server_name: self.tls_server_name.clone() }))
    }
}

fn registered(count: usize) -> String {
    match count {
        1 => "1 member is registered".to_owned(),
        count => format!("{count} members are registered"),
    }
}

/// JGroups' port is the default.
fn place(router: &str) -> anyhow::Result<String> {
    let has_port = match router.strip_prefix('[') {
        Some(rest) => !rest.ends_with(']') || rest.contains("]["),
        None => router.ends_with(']') || router.matches(':').count() == 1,
    };
    let text = if has_port { router.to_owned() } else { format!("{router}[{}]", RouterConfig::PORT) };
    let named = <Vec<HostPort> as Property>::parse(&text).map_err(anyhow::Error::msg)?;
    let [HostPort { host, port }] = &named[..] else { anyhow::bail!("{router} is not one router") };
    let host = host.trim_matches(['[', ']']).to_owned();
    Ok(HostPort { host, port: *port }.to_string())
}

async fn print_members(router: &str, tls: Option<RouterClientTls>) -> anyhow::Result<ExitCode> {
    let place = place(router)?;
    let groups = match tls {
        Some(tls) => consort_router::list_members_over_tls(&place, &tls, PATIENCE).await,
        None => consort_router::list_members(&place, PATIENCE).await,
    };
    let groups = groups.with_context(|| format!("router {place}"))?;
    print!("{}", group_table(&groups));
    println!("{}", registered(groups.iter().map(|(_, members)| members.len()).sum()));
    Ok(ExitCode::SUCCESS)
}

fn group_table(groups: &[(String, Vec<PingData>)]) -> String {
    let mut rows = Vec::new();
    if groups.iter().any(|(_, members)| !members.is_empty()) {
        rows.push(["cluster", "member", "address", "uuid"].map(str::to_owned).to_vec());
    }
    for (group, members) in groups {
        for member in members {
            rows.push(vec![
                group.clone(),
                member.name.as_deref().unwrap_or("?").to_owned(),
                member.phys.map_or_else(|| "?".to_owned(), |phys| phys.to_string()),
                member.sender.to_string(),
            ]);
        }
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use consort_group::{Address, PhysAddr, Uuid};

    use super::*;

    #[test]
    fn router_addresses_are_parsed_in_common_forms() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:12001"),
            ("router.example", "router.example:12001"),
            ("10.0.0.1:13000", "10.0.0.1:13000"),
            ("10.0.0.1[13000]", "10.0.0.1:13000"),
            ("::1", "[::1]:12001"),
            ("[::1]", "[::1]:12001"),
            ("[::1]:13000", "[::1]:13000"),
            ("[::1][13000]", "[::1]:13000"),
        ] {
            assert_eq!(place(text).unwrap(), expected, "{text}");
        }
        assert!(place("10.0.0.1:port").is_err());
    }

    #[test]
    fn members_are_shown_a_row_each() {
        let member = |name: Option<&str>, least| PingData {
            sender: Address::Uuid(Uuid { most: 0, least }),
            is_server: true,
            is_coordinator: false,
            name: name.map(Into::into),
            phys: name.map(|_| PhysAddr::new([10, 0, 0, 1].into(), 7800)),
            wanted: None,
        };
        let groups = [("shop".to_owned(), vec![member(Some("A"), 1), member(None, 2)])];
        assert_eq!(
            group_table(&groups),
            "cluster  member        address                                  uuid\n\
             shop          A  10.0.0.1:7800  00000000-0000-0000-0000-000000000001\n\
             shop          ?              ?  00000000-0000-0000-0000-000000000002\n"
        );
        assert_eq!(group_table(&[]), "");
    }

    #[test]
    fn a_certificate_for_a_query_without_tls_is_refused() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            router: Router,
        }
        let line = ["router", "--members", "::1", "--tls-cert", "c.pem", "--tls-key", "k.pem"];
        let Line { router } = clap::Parser::parse_from(line);
        let error = router.client_tls().unwrap_err().to_string();
        assert!(error.contains("--tls-ca"), "{error}");
    }
}
