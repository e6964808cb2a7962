use std::net::{IpAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::sync::Arc;

use consort_conf::{ConfigError, IgnoredAttribute, RenamedAttribute, Variables, relay_of};
use consort_group::config::{ProtocolConfig, StackConfig};
use consort_group::protocols::registry::{self, Resolver, ValueError};
use consort_group::protocols::{
    CounterConfig, Gms, KeyPair, KubePingConfig, MembershipPolicy, RandomBytes, SecretKey, SymEncryptConfig,
    TokenConfig,
};
use consort_group::{Address, Protocol, Rng, Stack, StackSetup, Version};
use consort_net::{
    BindAddr, BindAddrError, BoundEdge, Command, DiagConfig, Driver, IpVersion, TransportConfig,
};
use tokio::runtime::Handle;

use crate::channel::{Channel, Extensions, Upcalls};
use crate::counter::CounterHandler;
use crate::delivery::{Deliverer, DeliveryPolicy};
use crate::error::ConnectError;
use crate::fork::ForkHandler;
use crate::key_exchange;
use crate::key_store::{self, OsRandom};
use crate::probe::Answerer;
use crate::receiver::{IgnoringReceiver, Receiver};
use crate::relay::{RelayHandler, RelaySetup, SiteListener};
use crate::seed::random_seed;
use crate::shared::Shared;
use crate::site_traffic::SiteTraffic;
use crate::up_handler::{UpHandler, UpHandlers};
use crate::weak_channel::WeakChannel;

/// A channel's builder.
pub struct ChannelBuilder {
    config: StackConfig,
    name: Option<String>,
    address: Option<Address>,
    receiver: Arc<dyn Receiver>,
    handlers: UpHandlers,
    inserted: Vec<(String, Box<dyn Protocol>)>,
    policy: Option<Arc<dyn MembershipPolicy>>,
    guard: Option<DiagnosticsGuard>,
    site_listener: Option<Arc<dyn SiteListener>>,
    /// Those of the files of sites and bridges; the environment's if absent.
    variables: Option<Variables>,
}

struct DiagnosticsGuard {
    is_enabled: bool,
    passcode: Option<String>,
}

impl Channel {
    /// Begins a channel from a file, or a stock stack's name (`tcp.xml`, `udp.xml`, …), with the environment's variables. Fails
    /// if the configuration is unreadable or has unknown names.
    pub fn from_file(name: &str) -> Result<ChannelBuilder, ConfigError> {
        Self::from_file_with(name, &Variables::from_env())
    }

    /// Begins a channel with these variables, as [`Channel::from_file`].
    pub fn from_file_with(name: &str, variables: &Variables) -> Result<ChannelBuilder, ConfigError> {
        let stack = consort_conf::load_stack(name, variables)?;
        if let Some(unused) = IgnoredAttribute::line(&stack.ignored, &stack.config) {
            tracing::info!("known attributes that are not used: {unused}");
        }
        if let Some(renamed) = RenamedAttribute::line(&stack.renamed, &stack.config) {
            tracing::info!("attributes under names of JGroups 4: {renamed}");
        }
        let builder = Self::from_config(stack.config);
        Ok(ChannelBuilder { variables: Some(variables.clone()), ..builder })
    }

    /// Begins a channel from a checked description.
    pub fn from_config(config: StackConfig) -> ChannelBuilder {
        ChannelBuilder {
            config,
            name: None,
            address: None,
            receiver: Arc::new(IgnoringReceiver),
            handlers: UpHandlers::default(),
            inserted: Vec::new(),
            policy: None,
            guard: None,
            site_listener: None,
            variables: None,
        }
    }
}

impl ChannelBuilder {
    /// Sets the logical name; default: host name and a random number.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the address, by default random for each start. A restart needs a new one, because others take messages of
    /// an address in their view for the same incarnation's.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// Sets the receiver.
    #[must_use]
    pub fn receiver(mut self, receiver: impl Receiver) -> Self {
        self.receiver = Arc::new(receiver);
        self
    }

    /// Adds an up handler, which gets messages first, on the driver's task. It must not block; its panic ends the member
    /// ([`UpHandler`]). The first handler that takes a message gets it; sends are taken from the first handler first.
    #[must_use]
    pub fn up_handler(mut self, handler: Arc<dyn UpHandler>) -> Self {
        self.handlers.push(handler);
        self
    }

    /// Adds a layer above the named one, as [`Stack::insert_above`].
    #[must_use]
    pub fn insert_above(mut self, layer: impl Into<String>, protocol: Box<dyn Protocol>) -> Self {
        self.inserted.push((layer.into(), protocol));
        self
    }

    /// Sets the policy for members and order of new views (default [`crate::DefaultPolicy`], JGroups'). All members need the same
    /// one, JGroups' too (`membership_change_policy`).
    #[must_use]
    pub fn membership_policy(mut self, policy: impl MembershipPolicy + 'static) -> Self {
        self.policy = Some(Arc::new(policy));
        self
    }

    /// Restricts diagnostics: probe listens on the transport's address unless `diag.bind_addr` is set, and changes
    /// need the passcode (this one, else `diag.passcode`). Probe is on if `is_enabled` or `diag.enabled`.
    #[must_use]
    pub fn guarded_diagnostics(mut self, is_enabled: bool, passcode: Option<String>) -> Self {
        self.guard = Some(DiagnosticsGuard { is_enabled, passcode });
        self
    }

    /// Sets the listener of sites (RELAY2, RELAY3).
    #[must_use]
    pub fn site_listener(mut self, listener: impl SiteListener) -> Self {
        self.site_listener = Some(Arc::new(listener));
        self
    }

    pub(crate) fn take_receiver(&mut self) -> Arc<dyn Receiver> {
        std::mem::replace(&mut self.receiver, Arc::new(IgnoringReceiver))
    }

    /// Opens the sockets and joins; returns once in a view. After a [`ConnectError`] no socket is left open.
    pub async fn connect(self, cluster: &str) -> Result<Channel, ConnectError> {
        let (config, membership, variables) = (self.config, self.policy, self.variables);
        // A layer that the application adds may be one that the description lacks.
        if self.inserted.is_empty() {
            consort_conf::check_required_layers(&config)?;
        }
        // Host names may have to be looked up and keys to be read, which blocks.
        let made = tokio::task::spawn_blocking(move || make(&config, membership, variables)).await;
        let StackParts { edge, version, mut diag, mut layers, policy, counters, has_fork, relay } =
            made.map_err(|_| ConnectError::Closed)??;
        for (above, protocol) in self.inserted {
            let Some(at) = layers.iter().position(|layer| layer.name() == above) else {
                return Err(ConnectError::NoSuchLayer(above));
            };
            layers.insert(at + 1, protocol);
        }
        let seed = random_seed();
        let mut rng = Rng::new(seed);
        let name: Arc<str> = match self.name {
            Some(name) => name.into(),
            None => default_name(&mut rng).into(),
        };
        let local = self.address.unwrap_or_else(|| match &relay {
            Some(relay) => relay.address(&mut rng, &name),
            None => Address::random(&mut rng),
        });
        let phys = edge.phys_addr();
        let setup = StackSetup {
            local: local.clone(),
            name: name.clone(),
            phys,
            has_multicast: edge.has_multicast(),
            seed: rng.next_u64(),
            version,
        };
        let receiver = self.receiver;
        let parts = ProtocolHandlers { policy, counters, has_fork, relay, site_listener: self.site_listener };
        let (handlers, extensions, sites) = parts.add_to(self.handlers, &local);
        let shared = Arc::new(Shared::new(local, name, phys, cluster));
        let (for_probe, for_channel) = (handlers.clone(), sites.clone());
        let driver = Driver::spawn_with(Stack::new(setup, layers), edge, |driver| {
            let deliverer = Deliverer::new(policy, receiver, driver.clone(), Handle::current());
            handlers.opened(&WeakChannel::new(shared.clone(), driver.clone()));
            Upcalls::new(shared.clone(), deliverer, handlers, sites)
        })
        .map_err(ConnectError::Runtime)?;
        let wait = shared.wait_connected();
        let answerer = Answerer { handlers: for_probe };
        let is_guarded = self.guard.is_some();
        if let Some(guard) = self.guard {
            diag.enabled |= guard.is_enabled;
            diag.enable_tcp |= guard.is_enabled;
            diag.passcode = guard.passcode.or(diag.passcode).filter(|passcode| !passcode.is_empty());
        }
        let probe = crate::probe::start(diag, phys, answerer, driver.submitter(), is_guarded);
        let channel = Channel::new(shared, driver.clone(), probe, extensions, for_channel);
        // A driver that has ended already does not report it again.
        let outcome = match driver.submit(Command::Connect(cluster.to_owned())) {
            Ok(()) => wait.await.ok(),
            Err(_) => None,
        };
        if !matches!(outcome, Some(Ok(()))) {
            driver.shutdown().await;
        }
        match outcome {
            Some(Ok(())) => Ok(channel),
            Some(Err(reason)) => Err(ConnectError::Join { cluster: cluster.to_owned(), reason }),
            None => Err(ConnectError::Closed),
        }
    }
}

/// The protocols of the stack that the application uses through the channel.
struct ProtocolHandlers {
    policy: DeliveryPolicy,
    counters: Option<CounterConfig>,
    has_fork: bool,
    relay: Option<RelaySetup>,
    site_listener: Option<Arc<dyn SiteListener>>,
}

impl ProtocolHandlers {
    fn add_to(
        self,
        mut handlers: UpHandlers,
        local: &Address,
    ) -> (UpHandlers, Extensions, Option<Arc<dyn SiteTraffic>>) {
        let mut extensions = Extensions::new();
        if self.has_fork {
            let forks = Arc::new(ForkHandler::new(self.policy, Handle::current()));
            handlers.push_front(forks.clone());
            extensions.push(forks);
        }
        if let Some(counters) = self.counters {
            let counters = Arc::new(CounterHandler::new(counters, local.clone()));
            handlers.push_front(counters.clone());
            extensions.push(counters);
        }
        let mut sites: Option<Arc<dyn SiteTraffic>> = None;
        if let Some(relay) = self.relay {
            let relay = Arc::new(RelayHandler::new(relay, self.site_listener, Handle::current()));
            handlers.push_front(relay.clone());
            extensions.push(relay.clone());
            sites = Some(relay);
        }
        (handlers, extensions, sites)
    }
}

struct StackParts {
    edge: BoundEdge,
    version: Version,
    diag: DiagConfig,
    layers: Vec<Box<dyn Protocol>>,
    policy: DeliveryPolicy,
    counters: Option<CounterConfig>,
    has_fork: bool,
    relay: Option<RelaySetup>,
}

fn make(
    config: &StackConfig,
    membership: Option<Arc<dyn MembershipPolicy>>,
    variables: Option<Variables>,
) -> Result<StackParts, ConnectError> {
    let fail = |error| ConnectError::Config(ConfigError::value(config, error));
    let bottom = config.protocols.first().ok_or(ConnectError::NoTransport)?;
    let mut edge = TransportConfig::from_protocol(bottom).ok_or(ConnectError::NoTransport)?.map_err(fail)?;
    for discovery in config.protocols.iter().filter(|protocol| protocol.short_name() == "TCPGOSSIP") {
        edge.set_router_tls(discovery).map_err(fail)?;
    }
    let (transport, version) = registry::transport(bottom).ok_or(ConnectError::NoTransport)?.map_err(fail)?;
    let policy = bottom.get("message_processing_policy").unwrap_or("max").parse()?;
    let (diag, ip_version) = (edge.diag.clone(), edge.ip_version);
    let ports = edge.bind_port..=edge.bind_port.saturating_add(edge.port_range);
    let mut edge = BoundEdge::bind(&edge, version)?;
    let mut names = TransportResolver { own: edge.phys_addr().ip, ip_version, ports };
    let mut layers: Vec<Box<dyn Protocol>> = vec![Box::new(transport)];
    for protocol in &config.protocols[1..] {
        check_dns(protocol, cfg!(feature = "dns")).map_err(fail)?;
        check_kubernetes(protocol, *names.ports.start(), cfg!(feature = "kubernetes")).map_err(fail)?;
        check_jdbc(protocol, cfg!(feature = "jdbc")).map_err(fail)?;
        let layer = registry::layer(protocol, &mut names)
            .ok_or_else(|| ConnectError::NoSuchLayer(protocol.name.clone()))?;
        layers.push(layer.map_err(fail)?);
    }
    if let Some(policy) = membership {
        // The layer has already checked these properties.
        let gms = config.protocols.iter().position(|protocol| protocol.short_name() == "GMS");
        let at = gms.ok_or_else(|| ConnectError::NoSuchLayer("GMS".to_owned()))?;
        let properties = registry::properties(&config.protocols[at]).map_err(fail)?;
        layers[at] = Box::new(Gms::with_policy(properties, policy));
    }
    let protocol = |name: &str| config.protocols.iter().find(|protocol| protocol.short_name() == name);
    if let Some(exchange) = protocol("SSL_KEY_EXCHANGE") {
        key_exchange::set_certificates(&mut edge, exchange).map_err(fail)?;
    }
    let counters = protocol("COUNTER").map(registry::properties).transpose().map_err(fail)?;
    let has_fork = protocol("FORK").is_some();
    let relay = relay_of(config)
        .map_err(ConnectError::Config)?
        .map(|relay| RelaySetup::read(config, relay, &variables.unwrap_or_else(Variables::from_env)));
    let relay = relay.transpose().map_err(ConnectError::Config)?;
    Ok(StackParts { edge, version, diag, layers, policy, counters, has_fork, relay })
}

/// Refuses attributes of DNS_PING that need the feature `dns`: the member would stay alone.
fn check_dns(protocol: &ProtocolConfig, has_dns: bool) -> Result<(), ValueError> {
    let set = |name: &str, plain: &[&str]| {
        let attribute = protocol.attributes.iter().find(|(own, _, _)| own == name);
        attribute.filter(|(_, value, _)| !plain.iter().any(|plain| value.trim().eq_ignore_ascii_case(plain)))
    };
    if has_dns || protocol.short_name() != "DNS_PING" {
        return Ok(());
    }
    match set("dns_record_type", &["", "A", "AAAA"]).or_else(|| set("dns_address", &[""])) {
        Some((name, value, position)) => Err(ValueError {
            protocol: protocol.short_name().to_owned(),
            what: format!(
                "attribute {name}: `{value}` needs the feature `dns` of the crate consort or consort-channel"
            ),
            position: *position,
        }),
        None => Ok(()),
    }
}

/// Refuses JDBC_PING2 without the feature `jdbc`. The member would stay alone.
fn check_jdbc(protocol: &ProtocolConfig, has_jdbc: bool) -> Result<(), ValueError> {
    if has_jdbc || protocol.short_name() != "JDBC_PING2" {
        return Ok(());
    }
    Err(ValueError {
        protocol: protocol.short_name().to_owned(),
        what: "it needs the feature `jdbc` of the crate consort or consort-channel".to_owned(),
        position: protocol.position,
    })
}

/// Refuses KUBE_PING where it cannot find members: without the feature `kubernetes`, without an API server to ask, without
/// the files for it, or at a port that other members do not know. The member would stay alone.
fn check_kubernetes(protocol: &ProtocolConfig, port: u16, has_feature: bool) -> Result<(), ValueError> {
    if protocol.short_name() != "KUBE_PING" {
        return Ok(());
    }
    let fail = |name: &str, what: String| {
        let attribute = protocol.attributes.iter().find(|(own, _, _)| own == name);
        Err(ValueError {
            protocol: protocol.short_name().to_owned(),
            what,
            position: attribute.map_or(protocol.position, |(_, _, position)| *position),
        })
    };
    let config: KubePingConfig = registry::properties(protocol)?;
    if !has_feature {
        let what = "it needs the feature `kubernetes` of the crate consort or consort-channel; without it use DNS_PING with \
                    the name of a headless service";
        return fail("", what.to_owned());
    }
    if port == 0 {
        return fail("", "other members need to know the port: set bind_port of the transport".to_owned());
    }
    if let Some((name, why)) = config.missing() {
        return fail(name, format!("attribute {name}: {why}"));
    }
    for (name, path) in config.files_to_ask() {
        if let Err(error) = std::fs::File::open(path) {
            let why = "the API server is asked with it; in a pod, let the service account's token be mounted \
                       (automountServiceAccountToken), or set dns_query, which needs no API";
            return fail(name, format!("attribute {name}: cannot read {path}: {error}; {why}"));
        }
    }
    Ok(())
}

struct TransportResolver {
    own: Option<IpAddr>,
    ip_version: IpVersion,
    ports: RangeInclusive<u16>,
}

impl Resolver for TransportResolver {
    fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String> {
        resolve(name, self.own)
    }

    fn hosts_file(&mut self, path: &str) -> Result<String, String> {
        std::fs::read_to_string(path).map_err(|error| format!("`{path}`: {error}"))
    }

    fn own(&mut self, selectors: &str) -> Result<IpAddr, String> {
        let selectors: BindAddr = selectors.parse().map_err(|error: BindAddrError| error.to_string())?;
        let chosen = selectors.choose_of_host(self.ip_version).map_err(|error| error.to_string())?;
        Ok(chosen.ip)
    }

    fn secret_key(&mut self, config: &SymEncryptConfig) -> Result<SecretKey, String> {
        key_store::secret_key(config)
    }

    fn certificate_keys(&mut self, config: &TokenConfig) -> Result<KeyPair, String> {
        key_store::certificate_keys(config)
    }

    fn random_bytes(&mut self) -> Result<Box<dyn RandomBytes>, String> {
        Ok(Box::new(OsRandom::new()))
    }

    fn ports(&self) -> RangeInclusive<u16> {
        self.ports.clone()
    }
}

/// Prefers the own address's family. `localhost` includes the own address, whatever the host's tables say. So a stock stack works
/// on an IPv6-only host, or with an interface preferred to the loopback.
fn resolve(host: &str, own: Option<IpAddr>) -> Result<Vec<IpAddr>, String> {
    let found = (host, 0).to_socket_addrs().map_err(|error| format!("host `{host}`: {error}"))?;
    let mut all: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    all.extend(own.filter(|_| host.eq_ignore_ascii_case("localhost")));
    all.sort();
    all.dedup();
    let is_ours = |ip: &IpAddr| own.is_none_or(|own| own.is_ipv4() == ip.is_ipv4());
    if all.iter().any(is_ours) {
        all.retain(is_ours);
    }
    Ok(all)
}

fn default_name(rng: &mut Rng) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    let host = host.trim().split('.').next().unwrap_or_default();
    format!("{}-{}", if host.is_empty() { "member" } else { host }, rng.below(65_536))
}

#[cfg(test)]
mod tests {
    use consort_group::ProbeOut;

    use super::*;

    fn made(transport: &str, bind: &str) -> Result<StackParts, ConnectError> {
        let text = format!("<config>\n{transport}\n<FD_SOCK2 bind_addr=\"{bind}\"/></config>");
        make(&consort_conf::parse_stack("my.xml", &text, &Variables::new()).unwrap().config, None, None)
    }

    fn listening(transport: &str, bind: &str) -> Result<String, ConnectError> {
        let mut out = ProbeOut::default();
        made(transport, bind)?.layers[1].probe(&mut out);
        Ok(out.attributes.into_iter().find(|(name, _)| name == "bind_addr").unwrap().1)
    }

    #[test]
    fn fd_sock2_listens_where_a_selector_says() {
        let tcp = r#"<TCP bind_addr="127.0.0.1" bind_port="0"/>"#;
        assert_eq!(listening(tcp, "match-interface:none,loopback").unwrap(), "127.0.0.1");
        assert_eq!(listening(tcp, "10.1.2.3").unwrap(), "10.1.2.3");
        let error = listening(tcp, "match-interface:none").unwrap_err().to_string();
        assert!(error.starts_with("my.xml:3:11: FD_SOCK2: attribute bind_addr: "), "{error}");
        assert!(error.contains("127.0.0.1"), "it lists the addresses: {error}");
    }

    #[test]
    fn records_that_need_the_feature_dns_are_refused_without_it() {
        let checked = |attributes: &str, has_dns| {
            let text = format!("<config><TCP/>\n<dns.DNS_PING dns_query=\"grid\" {attributes}/></config>");
            let stack = consort_conf::parse_stack("my.xml", &text, &Variables::new()).unwrap().config;
            check_dns(&stack.protocols[1], has_dns).map_err(|error| error.to_string())
        };
        let refused = [r#"dns_record_type="SRV""#, r#"dns_address="10.0.0.1""#];
        for attributes in refused {
            let error = checked(attributes, false).unwrap_err();
            assert!(error.contains("needs the feature `dns`"), "{error}");
            assert_eq!(checked(attributes, true), Ok(()));
        }
        assert_eq!(checked(r#"dns_record_type="AAAA" dns_address="""#, false), Ok(()));
    }

    #[test]
    fn kube_ping_is_refused_where_it_cannot_find_members() {
        let directory = std::env::temp_dir().join(format!("consort-kube-refused-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        std::fs::write(file("token"), "t").unwrap();
        let checked = |attributes: &str, port, has_feature| {
            let text = format!("<config><TCP/>\n<KUBE_PING {attributes}/></config>");
            let stack = consort_conf::parse_stack("my.xml", &text, &Variables::new()).unwrap().config;
            check_kubernetes(&stack.protocols[1], port, has_feature).map_err(|error| error.to_string())
        };
        let files = format!("saTokenFile=\"{}\" caCertFile=\"{}\"", file("token"), file("ca.crt"));
        let in_pod = format!("masterHost=\"10.96.0.1\" {files}");
        let error = checked(&in_pod, 7800, false).unwrap_err();
        assert!(
            error.contains("needs the feature `kubernetes`") && error.contains("use DNS_PING"),
            "{error}"
        );
        let error = checked(&in_pod, 0, true).unwrap_err();
        assert!(error.contains("set bind_port"), "{error}");
        let error = checked(&files, 7800, true).unwrap_err();
        assert!(error.contains("attribute masterHost: there is no API server to ask"), "{error}");
        // Without the certificates any server would get the token.
        let error = checked(&in_pod, 7800, true).unwrap_err();
        assert!(error.contains("attribute caCertFile: cannot read") && error.contains("ca.crt"), "{error}");
        assert_eq!(checked(&format!("{files} dns_query=\"grid\""), 7800, true), Ok(()));
        std::fs::write(file("ca.crt"), "").unwrap();
        assert_eq!(checked(&in_pod, 7800, true), Ok(()));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn jdbc_ping2_is_refused_without_the_feature_jdbc() {
        let text = "<config><TCP/>\n<JDBC_PING2 connection_url=\"jdbc:postgresql:/\"/></config>";
        let stack = consort_conf::parse_stack("my.xml", text, &Variables::new()).unwrap().config;
        let error = check_jdbc(&stack.protocols[1], false).unwrap_err().to_string();
        assert!(error.starts_with("JDBC_PING2: ") && error.contains("the feature `jdbc`"), "{error}");
        assert_eq!(check_jdbc(&stack.protocols[1], true), Ok(()));
        assert_eq!(check_jdbc(&stack.protocols[0], false), Ok(()));
    }

    #[test]
    fn attributes_without_effect_are_one_line_of_the_log() {
        let path = std::env::temp_dir().join(format!("consort-ignored-{}.xml", std::process::id()));
        let text = "<config>\n<TCP thread_pool.max_threads=\"9\" log_details=\"true\"/>\n\
                    <GMS num_prev_mbrs=\"9\"/></config>";
        std::fs::write(&path, text).unwrap();
        let (log, _guard) = consort_testkit::Log::begin("consort_channel=info");
        Channel::from_file(path.to_str().unwrap()).unwrap();
        let logged = log.take();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<&str> = logged.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains("INFO"), "{logged}");
        assert!(
            lines[0].contains("TCP.thread_pool.max_threads (") && lines[0].contains("GMS.num_prev_mbrs"),
            "{logged}"
        );
    }

    #[test]
    fn fd_sock2_selects_addresses_of_the_transports_ip_version() {
        let six = r#"<TCP bind_addr="::1" bind_port="0" ip_version="6"/>"#;
        assert_eq!(listening(six, "loopback").unwrap(), "::1");
    }
}
