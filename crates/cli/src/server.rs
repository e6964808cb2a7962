mod check;
#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args};
use consort_cache::{CacheManager, Channel, LEAVE_TIMEOUT, Location, ManagerBuilder};
use consort_conf::{Variables, parse_stack};
use consort_server::{
    CacheDefinitions, ClusterSettings, Mechanism, OptionsBeside, ProtocolSettings, SchemaFile, Server,
    ServerBuilder, ServerError, ServerFile,
};
use tokio::net::lookup_host;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::allocator::{Memory, Reserve};
use crate::descriptors;
use crate::dns_wait;
use crate::join::Join;
use crate::listener_tls::ListenerTls;
use crate::log::LogFormat;
use crate::password;
use crate::reload::{Files, Reload, TokenFile, UsersFile};
use crate::server_config;
use crate::shutdown::{Signals, end_of_input};

/// For a single server: nothing leaves the process.
const ALONE: &str = "<config><SHARED_LOOPBACK/><SHARED_LOOPBACK_PING/><NAKACK2/><UNICAST3/><STABLE/>\
                     <GMS join_timeout=\"10\"/><UFC/><MFC/><FRAG4/></config>";

/// The time of silence after which a stock stack suspects a member, unless `-D` sets another: a quarter of
/// JGroups' value, as in the chart, because writes to the member's keys wait until then.
const SUSPECT_AFTER: &str = "10s";

/// The stack of a cluster without `--stack` and `--config`.
const STACK: &str = "tcp.xml";

/// The address for clients without `--host` and `--config`.
const HOST: &str = "127.0.0.1";

const HEARTBEAT_INTERVAL: &str = "1250ms";

const DIAGNOSTICS: &str = "jgroups.diag.enabled";

#[derive(Args)]
#[group(skip)]
#[command(group(ArgGroup::new("clustered").args(["cluster", "config", "check"]).multiple(true)))]
#[command(group(ArgGroup::new("file").args(["config", "check"])))]
#[command(group(ArgGroup::new("authenticated").args(["users", "config", "check"]).multiple(true)))]
#[command(after_help = "Examples:\n  \
    consort server\n  \
    consort server --cluster shop --port 11223\n  \
    consort server --data /var/lib/consort\n  \
    consort server --cluster shop --caches caches.yaml\n  \
    consort server --config infinispan.xml -D infinispan.bind.port=11322\n  \
    consort server --check infinispan.xml\n  \
    consort server --cluster shop --bind 10.0.0.3 --machine node7\n  \
    consort server --host 0.0.0.0 --users users --tls-cert cert.pem \\\n    \
    --tls-key key.pem\n\n\
    With --data, definitions of caches, schemas, persistent counters and the\n\
    entries of caches with a store (persistence in their definition) survive the\n\
    end of all servers; all other entries are in memory only. After the end of all\n\
    servers, a server waits for the servers of the last topology (see\n\
    --recovery-timeout).\n\n\
    With --config, a server has the settings of a file of Infinispan's server:\n\
    stack and cluster, caches, templates, counters, addresses, users, roles and\n\
    TLS. Options take precedence. Each element without a counterpart is refused,\n\
    with its line and the alternative; if its absence changes no response, it is a\n\
    warning (--strict refuses those, too). Variables ${name:default} are set with\n\
    -D, ${env.NAME} by the environment. --check prints the effective settings and\n\
    the list, and ends; its exit code is 0 if a server starts with the file.\n\n\
    With --caches, a server creates the missing caches of the file on all servers\n\
    before it serves. A cache stays when it is removed from the file. If a cache\n\
    exists with another definition, the server does not start and names the cache.\n\
    With --config, these caches are added to those of its file; a name in both is\n\
    refused.\n\n\
    Without --users, every client can do everything. So a --host other than a\n\
    loopback address needs --users or --no-auth. With --users, clients have to\n\
    authenticate, and the roles of a user permit its operations; consort user\n\
    --help describes the file. Mechanisms are SCRAM-SHA-512, -384 and -256; with\n\
    TLS also PLAIN, with --tls-client-ca a certificate whose common name is the\n\
    user's (EXTERNAL), and with --token-key a JSON Web Token whose sub is the\n\
    user's name (OAUTHBEARER). Without TLS, PLAIN and OAUTHBEARER need\n\
    --allow-cleartext, because anyone on the network path can read their passwords\n\
    and tokens.\n\n\
    At SIGHUP the server reads its files again. Roles of --users apply from the\n\
    next request on, connections of removed users end, and new passwords apply to\n\
    new logins. --token-key, --tls-cert, --tls-key and --tls-client-ca apply to new\n\
    connections. New caches of --caches are created. Of --config, the users, groups\n\
    and certificates of its realm are read again, and the file itself is not. A file\n\
    with an error changes nothing, and the log names the file and the error. A\n\
    server with none of these options ends at SIGHUP.\n\n\
    The log, on standard error, has lines for members that join and leave, for\n\
    degraded caches, and for rebalances. CONSORT_LOG=warn logs faults only.\n\n\
    The same port serves HTTP: /health, /health/live, /health/ready and\n\
    /health/started without authentication, and /metrics in Prometheus' format to\n\
    users with the permission MONITOR (--open-metrics: without authentication).\n\
    --health-port serves the /health paths on a port of their own, too.\n\n\
    Memory is limited by --memory and by the control group. A server that is\n\
    short of memory refuses writes that add entries, and /health says DEGRADED.\n\n\
    At SIGTERM a server moves its clients to the other servers of the cluster,\n\
    answers the requests that it has, hands its entries over, and ends. Clients\n\
    that follow topologies get no error meanwhile.")]
pub(crate) struct ServerCommand {
    /// Port for clients. Default: that of --config, or 11222
    #[arg(long)]
    port: Option<u16>,
    /// Serve /health on this port, too: HTTP without TLS, independent of the clients' port. For probes
    #[arg(long, value_name = "PORT")]
    health_port: Option<u16>,
    /// After consort cluster stop, keep the process until SIGTERM: alive and not ready for probes, with no clients and no member.
    /// For supervisors that start ended processes again, such as Kubernetes
    #[arg(long, requires = "health_port")]
    stay_after_stop: bool,
    /// Limit of connections per client address (IPv6: per /64 network); 0: no limit. Clients behind a proxy or gateway share
    /// its address. Connections from this host have no limit.
    #[arg(long, value_name = "NUMBER", default_value_t = 4096)]
    connections_per_address: usize,
    /// Address for clients to connect to. Default: that of --config, or 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// Advertise this address to clients, if it differs from the address that the server listens on.
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Advertise this port to clients, if it differs from the port that the server listens on. For a NodePort of Kubernetes
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    advertise_port: Option<u16>,
    /// Cluster of servers to join; without it, the server runs alone
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Settings of the server: a file of Infinispan's server (its outermost element is infinispan). Any other file is a stack, as
    /// with --stack
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Print the effective settings and all problems of a file as of --config, and end
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    check: Option<PathBuf>,
    /// Refuse also the settings of --config or --check that have no effect
    #[arg(long, requires = "file")]
    strict: bool,
    /// Stack of the cluster: a file, or a stock one such as tcp.xml, the default. A stock stack suspects a member that is silent
    /// for 10 s (JGroups' values: -D consort.suspect_after=40s -D consort.heartbeat_interval=5s).
    #[arg(long, value_name = "FILE", requires = "clustered")]
    stack: Option<String>,
    /// Name of this member; without it, the host's name and a number
    #[arg(long, value_name = "NAME", requires = "clustered")]
    name: Option<String>,
    /// Bind address for the other servers; without it, the stack's (site_local in the stock stacks)
    #[arg(long, value_name = "ADDRESS", requires = "clustered")]
    bind: Option<String>,
    /// Set a variable of the stack or of --config, such as jgroups.bind_port
    #[arg(short = 'D', value_name = "NAME=VALUE", requires = "clustered")]
    define: Vec<String>,
    /// Wait to join until this DNS name resolves to the --bind address, so that members that start later can discover this one.
    /// For a Kubernetes headless service.
    #[arg(long, alias = "listed-at", value_name = "HOST", requires = "bind")]
    wait_for_dns: Option<String>,
    /// Answer probe (consort probe, JGroups' probe.sh) on the address of --bind. Without it, probe is off, unless your own
    /// stack has diag.enabled="true". Probe cannot change anything without a passcode.
    #[arg(long, requires = "clustered")]
    diagnostics: bool,
    /// File whose first line is the passcode that probe requires, and with which probe can change layers
    #[arg(long, value_name = "FILE", requires = "diagnostics")]
    diagnostics_passcode: Option<PathBuf>,
    /// Data centre or zone of this server: owners of a key are in different sites where possible
    #[arg(long, value_name = "NAME", requires = "clustered")]
    site: Option<String>,
    /// Rack of this server: owners of a key are in different racks where possible
    #[arg(long, value_name = "NAME", requires = "clustered")]
    rack: Option<String>,
    /// Machine of this server: owners of a key are on different machines where possible
    #[arg(long, value_name = "NAME", requires = "clustered")]
    machine: Option<String>,
    /// Directory for persistent data. Each server needs its own.
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Create the missing caches of this file before serving: a document in Infinispan's XML, JSON or YAML
    #[arg(long, value_name = "FILE")]
    caches: Option<PathBuf>,
    /// Register this protobuf schema before serving, as if a client had put it into ___protobuf_metadata; repeatable. Other schemas
    /// import it by the file's own name, or by NAME
    #[arg(long = "schema", value_name = "[NAME=]FILE")]
    schemas: Vec<String>,
    /// Cache of clients that name none, created by their first request like a cache without a definition; none: refuse their
    /// requests. Default: that of --config, or default
    #[arg(long, value_name = "NAME")]
    default_cache: Option<String>,
    /// Form of each event in the log
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log_format: LogFormat,
    #[command(flatten)]
    pub(crate) reserve: Reserve,
    #[command(flatten)]
    memory: Memory,
    /// On a restart, wait this many seconds for the servers of the last topology; then start without the missing ones
    #[arg(long, alias = "alone-after", value_name = "SECONDS", requires = "data")]
    recovery_timeout: Option<u32>,
    /// File with the users, their passwords and their roles.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Serve every client without authentication, also from other hosts. Without it, a server with --host needs --users.
    #[arg(long, conflicts_with = "users")]
    no_auth: bool,
    /// Serve clients without authentication although other servers of the cluster have users. Without it, such a server does
    /// not start, and refuses its clients when a server with users joins later.
    #[arg(long, requires = "clustered", conflicts_with = "users")]
    allow_weaker_authentication: bool,
    /// Mechanisms that clients can authenticate with: EXTERNAL, SCRAM-SHA-512, SCRAM-SHA-384, SCRAM-SHA-256, OAUTHBEARER,
    /// PLAIN. Default: all that are safe on the connection.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = mechanism, requires = "authenticated")]
    mechanisms: Option<Vec<Mechanism>>,
    /// Accept PLAIN and OAUTHBEARER without TLS: anyone on the network path can read the passwords and tokens
    #[arg(long, requires = "authenticated")]
    allow_cleartext: bool,
    /// Accept tokens that are signed with a public key in this PEM file: RSA, P-256, P-384 or Ed25519. While the issuer changes
    /// its key, the file can have both.
    #[arg(long, value_name = "FILE", requires = "users", requires = "token_audience")]
    token_key: Option<PathBuf>,
    /// Accept only tokens for this audience (aud).
    #[arg(long, value_name = "NAME", requires = "token_key")]
    token_audience: Option<String>,
    /// Accept only tokens of this issuer (iss)
    #[arg(long, value_name = "NAME", requires = "token_key")]
    token_issuer: Option<String>,
    /// Serve /metrics without authentication, even with users
    #[arg(long)]
    open_metrics: bool,
    #[command(flatten)]
    tls: ListenerTls,
    /// End when standard input ends
    #[arg(long, hide = true)]
    with_parent: bool,
}

fn advised(error: ServerError) -> anyhow::Error {
    let advice = match &error {
        ServerError::Listen { error, .. } if error.kind() == ErrorKind::AddrInUse => {
            "another server may run there, or another program: name another port with --port"
        }
        ServerError::Listen { error, .. } if error.kind() == ErrorKind::AddrNotAvailable => {
            "this host has no such address: name one of its own with --host, or 0.0.0.0 for all"
        }
        ServerError::Listen { error, .. } if error.kind() == ErrorKind::PermissionDenied => {
            "ports below 1024 are for root, as a rule: name another one with --port"
        }
        ServerError::WeakerAuthentication => {
            "name the cluster's users with --users, or serve everyone with --allow-weaker-authentication"
        }
        _ => return error.into(),
    };
    anyhow::anyhow!("{error}; {advice}")
}

/// The listener reports an unknown host later.
async fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    let Ok(mut found) = lookup_host((host, 0)).await else { return true };
    found.all(|address| address.ip().to_canonical().is_loopback())
}

fn mechanism(name: &str) -> Result<Mechanism, String> {
    let known = || format!("mechanisms are {}", Mechanism::ALL.map(Mechanism::name).join(", "));
    Mechanism::from_name(name).ok_or_else(known)
}

fn definitions(path: &Path, file: Option<&ServerFile>) -> anyhow::Result<CacheDefinitions> {
    let own = CacheDefinitions::read(path)?;
    Ok(match file {
        Some(file) => file.definitions().with(own)?,
        None => own,
    })
}

/// `NAME=FILE`, or a file whose own name is that of the schema.
fn schema(option: &str) -> anyhow::Result<SchemaFile> {
    let (name, file) = match option.split_once('=') {
        Some((name, file)) => (Some(name), file),
        None => (None, option),
    };
    SchemaFile::read(file, name).context("--schema")
}

struct StartedServer {
    server: Server,
    view: String,
}

impl ServerCommand {
    pub(crate) async fn run(mut self) -> anyhow::Result<ExitCode> {
        let file = self.read_file()?;
        if self.check.is_some()
            && let Some(file) = &file
        {
            return Ok(server_config::print_check(&self.check_file(file).await, self.strict));
        }
        if let Some(file) = &file {
            server_config::refuse_or_warn(file, self.strict)?;
        }
        self.check_authentication(file.as_ref()).await?;
        descriptors::raise_limit();
        // Errors in its files are reported before the server joins a cluster.
        let (builder, errors) = self.builder_with_files(file.as_ref());
        let errors: Vec<String> = errors.iter().map(|error| format!("{error:#}")).collect();
        anyhow::ensure!(errors.is_empty(), "{}", errors.join("\n"));
        if let Some(file) = &file
            && self.tls.files().is_none()
            && let Some(made) = file.write_made_certificate()?
        {
            tracing::warn!(file = %made.display(), "a certificate that signs itself was made: clients have to trust it");
        }
        self.log_start(&builder);
        // From here on, so that a signal during start-up is not lost.
        let (mut signals, second) = (Signals::listen()?, Signals::listen()?);
        // The server also gets SIGHUP when its terminal closes: it ends with the terminal unless it has files to read again.
        let files = self.files(file.as_ref());
        let hangups =
            (file.is_some() || !files.are_none()).then(|| signal(SignalKind::hangup())).transpose()?;
        let started = tokio::select! {
            started = self.start(builder, file.as_ref().and_then(ServerFile::cluster)) => started?,
            _ = signals.next() => return Ok(ExitCode::SUCCESS),
        };
        self.announce(&started, file.as_ref());
        let reload = hangups.map(|hangups| (Reload::new(&started.server, files), hangups));
        self.serve(started.server, signals, second, reload).await?;
        tracing::info!("ended");
        Ok(ExitCode::SUCCESS)
    }

    /// Reads the file of `--config` or `--check`; its settings become options that the command line lacks.
    fn read_file(&mut self) -> anyhow::Result<Option<ServerFile>> {
        let variables = self.join("").variables()?;
        let options =
            OptionsBeside { has_users: self.users.is_some(), has_schemas: !self.schemas.is_empty() };
        let read = match (&self.check, &self.config) {
            (Some(path), _) => Some(server_config::read_for_check(path, &variables, options)?),
            (None, Some(config)) => server_config::read(config, &variables, options)?,
            (None, None) => None,
        };
        let Some(mut file) = read else {
            if let Some(config) = self.config.take() {
                anyhow::ensure!(
                    self.cluster.is_some(),
                    "--config {config}: it is a stack, which needs --cluster NAME"
                );
                anyhow::ensure!(
                    self.stack.is_none(),
                    "--config {config}: it is a second stack besides --stack"
                );
                self.stack = Some(config);
            }
            return Ok(None);
        };
        if let Some(cluster) = file.cluster() {
            server_config::fill(&mut self.cluster, Some(&cluster.name));
            server_config::fill(&mut self.name, cluster.member.as_deref());
            server_config::fill(&mut self.site, cluster.site.as_deref());
            server_config::fill(&mut self.rack, cluster.rack.as_deref());
            server_config::fill(&mut self.machine, cluster.machine.as_deref());
        }
        self.check_cluster_options(&file)?;
        server_config::fill_path(&mut self.data, file.data());
        if self.data.is_none() {
            file.check_without_data();
        }
        Ok(Some(file))
    }

    async fn start(
        &self,
        mut builder: ServerBuilder,
        settings: Option<&ClusterSettings>,
    ) -> anyhow::Result<StartedServer> {
        let alone = format!("alone-{}", std::process::id());
        let (members, cluster) = match &self.cluster {
            Some(cluster) => (self.members(cluster, settings)?, &cluster[..]),
            None => (Self::alone()?, &alone[..]),
        };
        let memory = self.memory.watch(self.reserve.bytes())?;
        builder = builder.memory(memory.buffers().clone());
        let members = members.process_memory(memory);
        if let Some((name, own)) = self.wait_for_dns.as_deref().zip(self.bind.as_deref()) {
            dns_wait::wait_until_resolved(name, own).await?;
        }
        // The stack looks up the addresses of its names from here on.
        let manager = members.connect(cluster).await?;
        if let Some(size) = settings.and_then(|settings| settings.initial_size)
            && let Err(error) = server_config::wait_for_members(&manager, size).await
        {
            manager.close().await?;
            return Err(error);
        }
        let view = manager.view_text();
        let server = builder.start(manager).await.map_err(advised)?;
        Ok(StartedServer { server, view })
    }

    /// In the log and on standard output.
    fn announce(&self, started: &StartedServer, file: Option<&ServerFile>) {
        let address = started.server.address();
        let has_users = self.users.is_some() || file.is_some_and(ServerFile::has_users);
        if !has_users && !address.ip().is_loopback() {
            tracing::warn!("there are no users (--no-auth): every client can do everything");
        }
        let serving = match &self.cluster {
            Some(cluster) => format!("Hot Rod on {address}, cluster {cluster}: {}", started.view),
            None => format!("Hot Rod on {address}, alone"),
        };
        // The log, on standard error, has it for people. Standard output has this one line for programs that start a server, and
        // nothing else; the server continues if it is closed.
        tracing::info!("{serving}");
        for further in started.server.further_addresses() {
            tracing::info!("Hot Rod also on {further}");
        }
        let _ = writeln!(std::io::stdout(), "{serving}");
    }

    /// # Errors
    ///
    /// If a second signal ends the server at once, or other members do not have all entries.
    async fn serve(
        &self,
        server: Server,
        mut signals: Signals,
        mut second: Signals,
        reload: Option<(Reload, Signal)>,
    ) -> anyhow::Result<()> {
        let reading = async {
            match reload {
                Some((reload, hangups)) => reload.reload_on(hangups).await,
                None => std::future::pending().await,
            }
        };
        let end = async {
            tokio::select! {
                name = signals.next() => {
                    let limit = LEAVE_TIMEOUT.as_secs();
                    tracing::info!(
                        "{name}: answering requests and leaving, for at most {limit} s; another signal ends it at once"
                    );
                }
                () = end_of_input(), if self.with_parent => {}
                () = reading => {}
            }
        };
        tokio::select! {
            served = server.serve_until(end) => Ok(served?),
            () = second.second() => {
                anyhow::bail!(
                    "second signal: stopped before all requests were answered and all segments were handed over"
                );
            }
        }
    }

    /// A server that other hosts can reach serves clients without authentication only with --no-auth.
    async fn check_authentication(&self, file: Option<&ServerFile>) -> anyhow::Result<()> {
        let host = self.host.as_deref().or_else(|| file?.address().map(|(host, _)| host)).unwrap_or(HOST);
        if file.is_some_and(ServerFile::needs_authentication) {
            anyhow::ensure!(
                !self.no_auth,
                "--no-auth: the file has users; remove security-realm from its endpoint to serve everyone"
            );
            return Ok(());
        }
        if self.users.is_some() || self.no_auth {
            return Ok(());
        }
        let further = file.into_iter().flat_map(ServerFile::further_hosts);
        let mut reachable = None;
        for host in std::iter::once(host).chain(further) {
            if !is_loopback(host).await {
                reachable = Some(host);
            }
        }
        let Some(host) = reachable else { return Ok(()) };
        anyhow::bail!(
            "--host {host}: other hosts can connect to this server, and it has no users: name a file with --users, or serve \
             everyone with --no-auth"
        )
    }

    /// Where clients find the server, its data and its default cache.
    fn with_addresses(&self, mut builder: ServerBuilder) -> ServerBuilder {
        if let Some(host) = &self.host {
            builder = builder.host(host);
        }
        if let Some(port) = self.port {
            builder = builder.port(port);
        }
        if let Some(advertise) = &self.advertise {
            builder = builder.advertised(advertise);
        }
        if let Some(port) = self.advertise_port {
            builder = builder.advertised_port(port);
        }
        if let Some(data) = &self.data {
            builder = builder.data(data);
        }
        match self.default_cache.as_deref() {
            None => builder,
            Some("none") => builder.no_default_cache(),
            Some(name) => builder.default_cache(name),
        }
    }

    /// The file of `--users`. Its roles are those of `--config`.
    fn users_file(&self, file: Option<&ServerFile>) -> Option<UsersFile> {
        let path = self.users.clone()?;
        Some(UsersFile::Own(path, file.map(|file| Box::new(file.roles()))))
    }

    /// The files that are read again at SIGHUP. Options take precedence over the realm of `--config`.
    fn files(&self, file: Option<&ServerFile>) -> Files {
        let realm = file.and_then(ServerFile::realm_files);
        let tls = self.tls.files().or_else(|| realm.as_ref()?.tls().cloned());
        let of_realm =
            realm.filter(|realm| realm.users().is_some()).map(|realm| UsersFile::Realm(Box::new(realm)));
        Files {
            users: self.users_file(file).or(of_realm),
            tokens: self.token_file(),
            tls,
            caches: self.caches.clone(),
        }
    }

    /// Options of the cluster apply in [`Self::members`], those of the process in [`Self::start`]. Each file that cannot be read or
    /// has an error is one of the errors, and is left out.
    fn builder_with_files(&self, file: Option<&ServerFile>) -> (ServerBuilder, Vec<anyhow::Error>) {
        let (mut builder, mut errors) = (Server::builder(), Vec::new());
        if let Some(file) = file {
            builder = file.apply(builder);
        }
        builder = self.with_addresses(builder).connections_per_address(self.connections_per_address);
        if let Some(port) = self.health_port {
            builder = builder.health_port(port);
        }
        if self.stay_after_stop {
            builder = builder.stay_after_cluster_stop();
        }
        if let Some(seconds) = self.recovery_timeout {
            builder = builder.recovery_timeout(Duration::from_secs(seconds.into()));
        }
        match self.caches.as_deref().map(|caches| definitions(caches, file)).transpose() {
            Ok(caches) => builder = caches.into_iter().fold(builder, ServerBuilder::caches),
            Err(error) => errors.push(error),
        }
        match self.users_file(file).map(|users| users.read()).transpose() {
            Ok(users) => builder = users.into_iter().fold(builder, ServerBuilder::users),
            Err(error) => errors.push(error),
        }
        let (schemas, unread): (Vec<_>, Vec<_>) =
            self.schemas.iter().map(|option| schema(option)).partition(Result::is_ok);
        builder = builder.schemas(schemas.into_iter().flatten().collect::<Vec<_>>());
        errors.extend(unread.into_iter().filter_map(Result::err));
        if let Some(mechanisms) = &self.mechanisms {
            builder = builder.mechanisms(mechanisms.clone());
        }
        if self.allow_cleartext {
            builder = builder.allow_cleartext();
        }
        if self.allow_weaker_authentication {
            builder = builder.allow_weaker_authentication();
        }
        if self.open_metrics {
            builder = builder.public_metrics();
        }
        match self.token_file().map(|file| file.read()).transpose() {
            Ok(tokens) => builder = tokens.into_iter().fold(builder, ServerBuilder::tokens),
            Err(error) => errors.push(error.into()),
        }
        match self.tls.files().map(|files| files.read()).transpose() {
            Ok(Some((identity, clients))) => {
                builder = builder.tls(identity, clients).tls_protocols(ProtocolSettings::default());
            }
            Ok(None) => {}
            Err(error) => errors.push(error.into()),
        }
        (builder, errors)
    }

    fn log_start(&self, builder: &ServerBuilder) {
        let of = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string())
        };
        let users = builder
            .users_count()
            .map_or_else(|| "none (every client can do everything)".to_owned(), |n| n.to_string());
        tracing::info!(
            "consort {} starts: data directory {}, TLS {}, users {users}, cluster {}",
            env!("CARGO_PKG_VERSION"),
            of(&self.data),
            if builder.has_tls() { "on" } else { "off" },
            self.cluster.as_deref().unwrap_or("none"),
        );
    }

    fn token_file(&self) -> Option<TokenFile> {
        let (keys, audience) = self.token_key.clone().zip(self.token_audience.clone())?;
        Some(TokenFile { keys, audience, issuer: self.token_issuer.clone() })
    }

    fn join(&self, cluster: &str) -> Join {
        let mut join = Join {
            config: self.stack.clone().unwrap_or_else(|| STACK.to_owned()),
            cluster: cluster.to_owned(),
            name: self.name.clone(),
            bind: self.bind.clone(),
            define: self.define.clone(),
        };
        join.default("consort.suspect_after", SUSPECT_AFTER.to_owned());
        join.default("consort.heartbeat_interval", HEARTBEAT_INTERVAL.to_owned());
        // The stock stacks have probe on, as JGroups' have.
        join.default(DIAGNOSTICS, self.diagnostics.to_string());
        join
    }

    fn members(&self, cluster: &str, settings: Option<&ClusterSettings>) -> anyhow::Result<ManagerBuilder> {
        let join = self.join(cluster);
        let passcode = self.diagnostics_passcode.as_deref().map(password::read_file).transpose()?;
        let builder = match settings.and_then(|settings| settings.stack.clone()) {
            Some(stack) if self.stack.is_none() => {
                let builder = Channel::from_config(stack.config);
                match &self.name {
                    Some(name) => builder.name(name),
                    None => builder,
                }
            }
            _ => join.builder()?,
        };
        let builder = builder.guarded_diagnostics(self.diagnostics, passcode);
        Ok(CacheManager::from_channel(builder).location(self.location()))
    }

    /// A variable that is not set leaves an empty name.
    fn location(&self) -> Location {
        let place = |name: &Option<String>| name.as_deref().filter(|name| !name.is_empty()).map(Into::into);
        Location { site: place(&self.site), rack: place(&self.rack), machine: place(&self.machine) }
    }

    fn alone() -> anyhow::Result<ManagerBuilder> {
        let stack = parse_stack("a server that is alone", ALONE, &Variables::new())?;
        Ok(CacheManager::from_channel(Channel::from_config(stack.config)))
    }
}
