//! KUBE_PING: finds members through the API of Kubernetes, which lists pods by labels or the endpoints of a service.
//! Every discovery lists them again. With `dns_query` the API is asked only if the names have no address.

use std::net::{IpAddr, Ipv6Addr};

use super::lookups::LookUps;
use super::*;
use crate::{Drops, Effect, KubernetesQuery, PodInfo, PodList, PodSelector};

crate::properties! {
    /// KUBE_PING's properties, with the names that they have in jgroups-kubernetes.
    #[allow(non_snake_case)]
    KubePingConfig {
        /// The namespace of the pods; this pod's own if not set.
        namespace: String = String::new(),
        /// The pods to ask, as a label selector of Kubernetes: `app=grid,tier!=front`. All pods of the namespace if
        /// not set.
        labels: String = String::new(),
        /// The service whose pods are asked, by its EndpointSlices, instead of `labels`.
        service: String = String::new(),
        /// DNS names of all members, separated by commas, which are looked up first. The API is asked only if they have no
        /// address.
        dns_query: String = String::new(),
        /// How many ports after the transport's `bind_port` are asked at each address, too.
        port_range: u16 = 1,
        /// The scheme of the API server: https, or http for a proxy such as `kubectl proxy`, to which neither token nor
        /// certificate is sent.
        masterProtocol: String = "https".to_owned(),
        /// The host of the API server, by default the variable KUBERNETES_SERVICE_HOST that each pod has.
        masterHost: String = String::new(),
        /// The port of the API server, by default the variable KUBERNETES_SERVICE_PORT that each pod has.
        masterPort: u16 = 443,
        /// The version of the API: v1.
        apiVersion: String = "v1".to_owned(),
        /// The time to connect to the API server.
        connectTimeout: Duration = Duration::from_secs(5),
        /// The time for an answer of the API server. The discovery's timeout bounds all attempts together.
        readTimeout: Duration = Duration::from_secs(30),
        /// How often a discovery asks the API server at most.
        operationAttempts: u32 = 3,
        /// The time between two attempts.
        operationSleep: Duration = Duration::from_secs(1),
        /// Whether pods that are not ready are asked, too.
        useNotReadyAddresses: bool = true,
        /// Whether only pods of this pod's own version of the workload are asked, by the labels pod-template-hash,
        /// deployment or controller-revision-hash.
        split_clusters_during_rolling_update: bool = false,
        /// The certificates with which the API server's own is verified (PEM).
        caCertFile: String = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt".to_owned(),
        /// The token of the service account, which is read for each request. The file `namespace` beside it names the pod's
        /// own namespace.
        saTokenFile: String = "/var/run/secrets/kubernetes.io/serviceaccount/token".to_owned(),
        /// A certificate for the API server instead of the token (PEM).
        clientCertFile: String = String::new(),
        /// The key of that certificate (PEM).
        clientKeyFile: String = String::new(),
        /// Whether each request to the API server and its answer are logged.
        dump_requests: bool = false,
    }
}

/// Attempts of one discovery.
const ATTEMPTS_MAX: u32 = 10;

/// Pods that a discovery asks.
const PODS_MAX: usize = 2_000;

/// Requests of a discovery, of which each pod gets one per port.
const REQUESTS_MAX: usize = 10_000;

/// The time to list pods where no join waits for them.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time between two requests of a join.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// Different failures whose last warnings are known.
const FAILURES_MAX: usize = 8;

impl KubePingConfig {
    /// Checks values that cannot be used, or not together.
    ///
    /// # Errors
    ///
    /// The attribute and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let fail = |name, why: &str| Err((name, format!("attribute {name}: {why}")));
        if !matches!(self.masterProtocol.trim(), "https" | "http") {
            return fail("masterProtocol", &format!("`{}` is neither https nor http", self.masterProtocol));
        }
        if self.apiVersion.trim() != "v1" {
            return fail(
                "apiVersion",
                &format!("`{}` is not v1, which every API server has", self.apiVersion),
            );
        }
        if !(1..=ATTEMPTS_MAX).contains(&self.operationAttempts) {
            return fail("operationAttempts", &format!("it has to be from 1 to {ATTEMPTS_MAX}"));
        }
        if self.masterPort == 0 {
            return fail("masterPort", "it has to be a port");
        }
        if self.connectTimeout.is_zero() {
            return fail("connectTimeout", "it has to be longer than 0");
        }
        if self.readTimeout.is_zero() {
            return fail("readTimeout", "it has to be longer than 0");
        }
        if !self.service.trim().is_empty() && !self.labels.trim().is_empty() {
            return fail("service", "set either service or labels");
        }
        if !self.service.trim().is_empty() && self.split_clusters_during_rolling_update {
            let name = "split_clusters_during_rolling_update";
            return fail(name, "endpoints of a service have no labels: set labels instead of service");
        }
        if !self.is_encrypted() && !self.clientCertFile.trim().is_empty() {
            let why = "it has no effect without TLS: set masterProtocol to https, or unset it";
            return fail("clientCertFile", why);
        }
        if self.clientCertFile.trim().is_empty() != self.clientKeyFile.trim().is_empty() {
            return fail("clientCertFile", "set both clientCertFile and clientKeyFile, or none of them");
        }
        Ok(())
    }

    fn is_encrypted(&self) -> bool {
        self.masterProtocol.trim() == "https"
    }

    fn has_api(&self) -> bool {
        !self.masterHost.trim().is_empty()
    }

    /// Returns the names that are looked up first.
    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.dns_query.split(',').map(str::trim).filter(|name| !name.is_empty())
    }

    /// Returns the files without which the API cannot be asked, each with its attribute. They are needed from the start if
    /// there is no `dns_query`.
    pub fn files_to_ask(&self) -> Vec<(&'static str, &str)> {
        if self.dns_names().next().is_some() || !self.is_encrypted() {
            return Vec::new();
        }
        let mut files = vec![("caCertFile", self.caCertFile.trim())];
        if self.clientCertFile.trim().is_empty() {
            files.push(("saTokenFile", self.saTokenFile.trim()));
        } else {
            files.push(("clientCertFile", self.clientCertFile.trim()));
            files.push(("clientKeyFile", self.clientKeyFile.trim()));
        }
        files
    }

    /// Returns why members cannot be found with these attributes on this host.
    pub fn missing(&self) -> Option<(&'static str, &'static str)> {
        let is_missing = !self.has_api() && self.dns_names().next().is_none();
        is_missing.then_some((
            "masterHost",
            "there is no API server to ask: in a pod the variable KUBERNETES_SERVICE_HOST names it; elsewhere set \
             masterHost and masterPort, or use another stack",
        ))
    }

    /// Returns the request for the pods to ask, for at most this time.
    pub fn query(&self, time_limit: Duration) -> KubernetesQuery {
        let set = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let host = self.masterHost.trim();
        let host = match host.parse::<Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]"),
            Err(_) => host.to_owned(),
        };
        KubernetesQuery {
            server: format!("{}://{host}:{}", self.masterProtocol.trim(), self.masterPort),
            namespace: set(&self.namespace),
            selector: match set(&self.service) {
                Some(service) => PodSelector::Service(service),
                None => PodSelector::Labels(self.labels.trim().to_owned()),
            },
            token_file: self.saTokenFile.trim().to_owned(),
            ca_file: self.caCertFile.trim().to_owned(),
            client_identity: set(&self.clientCertFile).zip(set(&self.clientKeyFile)),
            connect_timeout: self.connectTimeout,
            read_timeout: self.readTimeout,
            attempts: self.operationAttempts,
            pause: self.operationSleep,
            time_limit,
            is_logged: self.dump_requests,
        }
    }

    /// Returns the addresses of the pods to ask: not those that have ended or are being deleted, and of each the addresses
    /// of this member's family.
    pub fn select(&self, list: &PodList, own: Option<IpAddr>) -> Vec<IpAddr> {
        let is_ours = |ip: &IpAddr| own.is_none_or(|own| own.is_ipv4() == ip.is_ipv4());
        let own_group = self.own_group(list, own);
        let is_asked = |pod: &&PodInfo| {
            !pod.is_finished
                && !pod.is_deleting
                && (pod.is_ready || self.useNotReadyAddresses)
                && own_group.is_none_or(|group| pod.group.as_deref() == Some(group))
        };
        let pods = list.pods.iter().filter(is_asked).take(PODS_MAX);
        let mut ips: Vec<IpAddr> = pods.filter_map(|pod| pod.ips.iter().copied().find(is_ours)).collect();
        ips.sort_unstable();
        ips.dedup();
        ips
    }

    /// The group whose pods alone are asked. This member's own pod is the one with exactly its address.
    fn own_group<'l>(&self, list: &'l PodList, own: Option<IpAddr>) -> Option<&'l str> {
        let own = own.filter(|_| self.split_clusters_during_rolling_update)?;
        let pod = list.pods.iter().find(|pod| !pod.is_finished && pod.ips.contains(&own))?;
        pod.group.as_deref()
    }
}

/// The source of KUBE_PING.
pub struct Pods {
    config: KubePingConfig,
    /// The first port to ask at each address.
    port: u16,
    /// The last request. It is sent to the pods that are listed.
    request: Option<Message>,
    pub(super) lookups: LookUps,
    /// Whether one of the names had an address in this discovery.
    has_dns_address: bool,
    /// The list in progress.
    listing: Option<Token>,
    /// The time for the list.
    timeout: Duration,
    /// Pods of the last list.
    listed: usize,
    /// Why the last list failed.
    failure: String,
    /// When each failure was logged last.
    warned: BTreeMap<String, Time>,
}

impl Pods {
    /// Creates a source for members at this port and the `port_range` ports after it.
    pub fn new(config: KubePingConfig, port: u16) -> Self {
        Self {
            config,
            port,
            request: None,
            lookups: LookUps::new("KUBE_PING"),
            has_dns_address: false,
            listing: None,
            timeout: DISCOVERY_TIMEOUT,
            listed: 0,
            failure: String::new(),
            warned: BTreeMap::new(),
        }
    }

    /// The time of a join bounds each of its lists. Returns how often its request is sent: pods that start together are not
    /// listed before they have their addresses, so that the first lists of two of them can lack each other.
    pub(super) fn begin_join(&mut self, runs: u32, timeout: Duration) -> u32 {
        self.timeout = timeout;
        let repeats = timeout.as_millis() / LIST_INTERVAL.as_millis();
        runs.max(u32::try_from(repeats).unwrap_or(u32::MAX))
    }

    pub(super) fn end_join(&mut self) {
        self.timeout = DISCOVERY_TIMEOUT;
    }

    pub(super) fn is_asking(&self) -> bool {
        self.listing.is_some() || self.lookups.is_any_running()
    }

    pub(super) fn ask(&mut self, cx: &mut Cx<'_>, request: Message) {
        let known = source::known(cx, source::KNOWN_MAX);
        source::send_to(cx, &request, known);
        self.request = Some(request);
        // A list or look-up in progress serves this request, too.
        if self.is_asking() {
            return;
        }
        self.has_dns_address = false;
        for name in self.config.dns_names() {
            self.lookups.begin_host(cx, name);
        }
        if !self.lookups.is_any_running() {
            self.list(cx);
        }
    }

    fn list(&mut self, cx: &mut Cx<'_>) {
        if self.config.has_api() {
            let query = self.config.query(self.timeout);
            self.listing = Some(cx.request(Effect::ListPods(Box::new(query))));
        }
    }

    pub(super) fn done(&mut self, cx: &mut Cx<'_>, token: Token, outcome: Outcome) {
        let own = cx.shared().phys.ip;
        if self.listing == Some(token) {
            self.listing = None;
            match outcome {
                Outcome::Pods(list) => {
                    self.note_list(cx.now(), &list, own);
                    let ips = self.config.select(&list, own);
                    self.send_to(cx, ips);
                }
                Outcome::Failed(why) => self.note_failure(cx.now(), why),
                _ => {}
            }
            return;
        }
        let Some((_, found)) = self.lookups.finish(cx.now(), token, outcome) else { return };
        let is_ours = |ip: &IpAddr| own.is_none_or(|own| own.is_ipv4() == ip.is_ipv4());
        let ips: Vec<IpAddr> = found.into_iter().map(|(ip, _)| ip).filter(is_ours).take(PODS_MAX).collect();
        self.has_dns_address |= !ips.is_empty();
        self.send_to(cx, ips);
        if !self.lookups.is_any_running() && !self.has_dns_address {
            self.list(cx);
        }
    }

    fn send_to(&self, cx: &mut Cx<'_>, ips: Vec<IpAddr>) {
        let Some(request) = &self.request else { return };
        let ports = self.port..=self.port.saturating_add(self.config.port_range);
        let known: BTreeSet<PhysAddr> = source::known(cx, source::KNOWN_MAX).collect();
        // All pods at the first port, and then at the next one: most pods have one member.
        let all = ports.flat_map(|port| ips.iter().map(move |ip| PhysAddr::new(*ip, port)));
        let places: Vec<PhysAddr> = all.filter(|place| !known.contains(place)).take(REQUESTS_MAX).collect();
        source::send_to(cx, request, places);
    }

    /// A namespace that does not exist has an empty list, as labels that no pod has: this member's own pod is missing.
    fn note_list(&mut self, now: Time, list: &PodList, own: Option<IpAddr>) {
        self.listed = list.pods.len();
        self.failure.clear();
        let place = match &self.config.query(Duration::ZERO).selector {
            PodSelector::Labels(labels) if labels.is_empty() => String::new(),
            PodSelector::Labels(labels) => format!(" with the labels {labels}"),
            PodSelector::Service(service) => format!(" of the service {service}"),
        };
        let namespace = &list.namespace;
        if list.pods.is_empty() {
            let why = format!(
                "the API of Kubernetes lists no pod{place} in namespace {namespace}, not even this member's own: correct \
                 the attributes namespace, labels or service; a namespace that does not exist has an empty list, too"
            );
            return self.note_failure(now, why);
        }
        if self.config.split_clusters_during_rolling_update && self.config.own_group(list, own).is_none() {
            let why = format!(
                "the pod of this member{place} in namespace {namespace} is not listed, or has none of the labels \
                 pod-template-hash, deployment and controller-revision-hash: pods of all versions are asked"
            );
            self.note_failure(now, why);
        }
    }

    /// Logs the first one of its kind, and then one a minute.
    fn note_failure(&mut self, now: Time, why: String) {
        let warned = self.warned.get(&why);
        if warned.is_none_or(|at| now.since(*at) >= Drops::WARN_INTERVAL) {
            tracing::warn!(
                protocol = "KUBE_PING",
                %why,
                "cannot find members by the API of Kubernetes; the member goes on without it and asks again at each discovery"
            );
            if self.warned.len() >= FAILURES_MAX {
                self.warned.clear();
            }
            self.warned.insert(why.clone(), now);
        }
        self.failure = why;
    }

    pub(super) fn disconnect(&mut self) {
        self.end_join();
        self.lookups.cancel();
        self.listing = None;
        self.request = None;
    }

    pub(super) fn probe(&self, out: &mut ProbeOut) {
        out.put_all(&self.config);
        out.put("unresolved_hosts", self.lookups.unresolved());
        out.put("pods_listed", self.listed);
        out.put("last_failure", &self.failure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Properties;
    use crate::harness::{Harness, phys};

    fn config(attributes: &[(&str, &str)]) -> KubePingConfig {
        let mut config = KubePingConfig { masterHost: "10.96.0.1".to_owned(), ..KubePingConfig::default() };
        for (name, value) in attributes {
            config.set(name, value).expect("an attribute").expect("a value");
        }
        config
    }

    fn harness(attributes: &[(&str, &str)]) -> Harness {
        let source = Source::Kube(Box::new(Pods::new(config(attributes), 7800)));
        let mut harness = Harness::new(Discovery::new(source, DiscoveryConfig::default()));
        harness.stack.handle_connect(harness.now, "demo");
        harness.stack.run(harness.now);
        harness
    }

    fn find(harness: &mut Harness) {
        harness.lower(Event::FindMembers { is_initial: true, timeout: Duration::from_secs(3) });
    }

    fn listed(harness: &mut Harness) -> (Token, KubernetesQuery) {
        let mut effects = harness.take_effects();
        match effects.pop() {
            Some((token, Effect::ListPods(query))) if effects.is_empty() => (token, *query),
            other => panic!("{other:?} {effects:?}"),
        }
    }

    fn asked(harness: &mut Harness) -> Vec<String> {
        harness
            .take_down()
            .iter()
            .map(|message| message.dest.as_ref().expect("a place").to_string())
            .collect()
    }

    fn failure(harness: &Harness) -> String {
        harness.stack.attribute("KUBE_PING", "last_failure").expect("the attribute")
    }

    fn pod(name: &str, ips: &[&str]) -> PodInfo {
        let ips = ips.iter().map(|ip| ip.parse().expect("an address")).collect();
        PodInfo { name: name.to_owned(), ips, is_ready: true, ..PodInfo::default() }
    }

    fn pods(pods: Vec<PodInfo>) -> Outcome {
        Outcome::Pods(PodList { namespace: "shop".to_owned(), pods })
    }

    fn selected(attributes: &[(&str, &str)], pods: Vec<PodInfo>, own: &str) -> Vec<String> {
        let list = PodList { namespace: "shop".to_owned(), pods };
        let own = own.parse().expect("an address");
        config(attributes).select(&list, Some(own)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn listed_pods_get_the_request_at_the_ports_and_every_discovery_lists_them_again() {
        let mut harness = harness(&[("labels", " app=grid "), ("namespace", "shop")]);
        find(&mut harness);
        let (token, query) = listed(&mut harness);
        assert_eq!(query.server, "https://10.96.0.1:443");
        assert_eq!(query.selector, PodSelector::Labels("app=grid".to_owned()));
        assert_eq!((query.namespace.as_deref(), query.attempts), (Some("shop"), 3));
        assert_eq!(query.time_limit, Duration::from_secs(3), "the time of the join");
        harness.done(token, pods(vec![pod("a", &["10.0.0.7"]), pod("b", &["10.0.0.8"])]));
        let expected = ["10.0.0.7:7800", "10.0.0.8:7800", "10.0.0.7:7801", "10.0.0.8:7801"];
        assert_eq!(asked(&mut harness), expected);
        // A request during a list is sent to its pods.
        find(&mut harness);
        let (token, _) = listed(&mut harness);
        harness.raise(Event::WhoHas(vec![crate::harness::member(9)]));
        assert!(harness.take_effects().is_empty());
        harness.done(token, pods(vec![pod("c", &["10.0.0.9"])]));
        assert_eq!(asked(&mut harness), ["10.0.0.9:7800", "10.0.0.9:7801"]);
    }

    #[test]
    fn port_range_is_the_number_of_further_ports() {
        let mut harness = harness(&[("port_range", "2"), ("service", "grid")]);
        find(&mut harness);
        let (token, query) = listed(&mut harness);
        assert_eq!(query.selector, PodSelector::Service("grid".to_owned()));
        harness.done(token, pods(vec![pod("a", &["10.0.0.7"])]));
        assert_eq!(asked(&mut harness), ["10.0.0.7:7800", "10.0.0.7:7801", "10.0.0.7:7802"]);
    }

    #[test]
    fn discovery_without_join_has_a_time_limit_of_its_own() {
        let mut harness = harness(&[]);
        harness.raise(Event::WhoHas(vec![crate::harness::member(9)]));
        assert_eq!(listed(&mut harness).1.time_limit, DISCOVERY_TIMEOUT);
    }

    /// The pods of a chart start together, and each lists before the other one has its address.
    #[test]
    fn join_lists_again_within_its_time_and_later_discoveries_have_a_limit_of_their_own() {
        let mut harness = harness(&[]);
        find(&mut harness);
        for n in 0..3 {
            let (token, query) = listed(&mut harness);
            assert_eq!(query.time_limit, Duration::from_secs(3), "list {n}");
            let others = if n < 2 { vec![] } else { vec![pod("b", &["10.0.0.8"])] };
            harness.done(token, pods([vec![pod("own", &["127.0.0.1"])], others].concat()));
            harness.advance(Duration::from_secs(1));
        }
        assert!(asked(&mut harness).contains(&"10.0.0.8:7800".to_owned()));
        assert!(harness.take_effects().is_empty(), "the join has ended");
        harness.raise(Event::WhoHas(vec![crate::harness::member(9)]));
        assert_eq!(listed(&mut harness).1.time_limit, DISCOVERY_TIMEOUT);
    }

    #[test]
    fn own_address_gets_no_request_and_a_known_member_one() {
        let mut harness = harness(&[]);
        harness.learn(3);
        find(&mut harness);
        assert_eq!(asked(&mut harness), [phys(3).to_string()]);
        let (token, _) = listed(&mut harness);
        let own = harness.stack.shared().phys;
        assert_eq!(own, phys(1));
        harness.done(token, pods(vec![pod("own", &["127.0.0.1"]), pod("a", &["10.9.9.9"])]));
        assert_eq!(asked(&mut harness), ["10.9.9.9:7800", "127.0.0.1:7800", "10.9.9.9:7801"]);
    }

    #[test]
    fn finished_and_deleting_pods_and_pods_of_the_other_family_are_skipped() {
        let all = || {
            vec![
                PodInfo { is_finished: true, ..pod("job", &["10.0.0.1"]) },
                PodInfo { is_deleting: true, ..pod("old", &["10.0.0.2"]) },
                PodInfo { is_ready: false, ..pod("new", &["10.0.0.3"]) },
                pod("six", &["fd00::4"]),
                pod("both", &["fd00::5", "10.0.0.5"]),
                pod("pending", &[]),
            ]
        };
        assert_eq!(selected(&[], all(), "10.0.0.9"), ["10.0.0.3", "10.0.0.5"]);
        assert_eq!(selected(&[], all(), "fd00::9"), ["fd00::4", "fd00::5"]);
        assert_eq!(selected(&[("useNotReadyAddresses", "false")], all(), "10.0.0.9"), ["10.0.0.5"]);
    }

    /// 10.0.0.12 contains the text 10.0.0.1, which jgroups-kubernetes took for this member's own pod.
    #[test]
    fn rolling_update_splits_by_the_group_of_the_pod_with_exactly_the_own_address() {
        let of = |group: &str, ip| PodInfo { group: Some(group.to_owned()), ..pod("p", &[ip]) };
        let all = || vec![of("old", "10.0.0.1"), of("new", "10.0.0.12"), of("new", "10.0.0.3")];
        let split = [("split_clusters_during_rolling_update", "true")];
        assert_eq!(selected(&split, all(), "10.0.0.12"), ["10.0.0.3", "10.0.0.12"]);
        assert_eq!(selected(&split, all(), "10.0.0.1"), ["10.0.0.1"]);
        assert_eq!(selected(&split, all(), "10.0.0.99").len(), 3, "the own pod is unknown");
        assert_eq!(selected(&[], all(), "10.0.0.12").len(), 3);
    }

    #[test]
    fn pods_beyond_the_limit_are_not_asked() {
        let all = (0..PODS_MAX + 10).map(|n| pod("p", &[&format!("10.1.{}.{}", n / 250, n % 250)]));
        assert_eq!(selected(&[], all.collect(), "10.0.0.9").len(), PODS_MAX);
    }

    #[test]
    fn empty_list_is_reported_with_its_namespace_and_labels() {
        let mut harness = harness(&[("labels", "app=grid")]);
        find(&mut harness);
        let (token, _) = listed(&mut harness);
        harness.done(token, pods(Vec::new()));
        assert_eq!(
            failure(&harness),
            "the API of Kubernetes lists no pod with the labels app=grid in namespace shop, not even this member's own: \
             correct the attributes namespace, labels or service; a namespace that does not exist has an empty list, too"
        );
        find(&mut harness);
        let (token, _) = listed(&mut harness);
        harness.done(token, pods(vec![pod("a", &["10.0.0.7"])]));
        assert_eq!(failure(&harness), "");
    }

    #[test]
    fn failure_is_logged_once_and_then_every_minute() {
        let mut source = Pods::new(config(&[]), 7800);
        let mut warned_at = |seconds| {
            let now = Time::ZERO + Duration::from_secs(seconds);
            source.note_failure(now, "403".to_owned());
            source.warned["403"] == now
        };
        assert!(warned_at(0));
        assert!(!warned_at(2));
        assert!(!warned_at(59));
        assert!(warned_at(60));
        for n in 0..100 {
            source.note_failure(Time::ZERO, format!("failure {n}"));
            assert!(source.warned.len() <= FAILURES_MAX);
        }
    }

    #[test]
    fn api_is_asked_only_if_the_names_have_no_address() {
        let mut harness = harness(&[("dns_query", "grid.shop.svc")]);
        for (outcome, is_api_asked) in [
            (Outcome::Addresses(vec![[10, 0, 0, 7].into()]), false),
            (Outcome::Addresses(vec!["fd00::7".parse().unwrap()]), true),
            (Outcome::Failed("no such host".to_owned()), true),
        ] {
            find(&mut harness);
            let effects = harness.take_effects();
            let [(token, Effect::LookUp { name })] = &effects[..] else { panic!("{effects:?}") };
            assert_eq!(name, "grid.shop.svc");
            harness.done(*token, outcome);
            if is_api_asked {
                let (token, query) = listed(&mut harness);
                assert_eq!(query.time_limit, Duration::from_secs(3));
                harness.done(token, Outcome::Failed("forbidden".to_owned()));
                assert!(asked(&mut harness).is_empty());
            } else {
                assert!(harness.take_effects().is_empty());
                assert_eq!(asked(&mut harness), ["10.0.0.7:7800", "10.0.0.7:7801"]);
            }
        }
    }

    #[test]
    fn values_that_cannot_be_used_are_refused() {
        let refused = |attributes: &[(&str, &str)]| config(attributes).check().unwrap_err().1;
        assert_eq!(
            refused(&[("masterProtocol", "ftp")]),
            "attribute masterProtocol: `ftp` is neither https nor http"
        );
        assert!(refused(&[("apiVersion", "v2")]).contains("is not v1"));
        assert!(refused(&[("operationAttempts", "11")]).contains("from 1 to 10"));
        assert!(refused(&[("operationAttempts", "0")]).contains("from 1 to 10"));
        assert!(refused(&[("masterPort", "0")]).contains("a port"));
        assert!(refused(&[("connectTimeout", "0")]).contains("longer than 0"));
        assert!(refused(&[("readTimeout", "0")]).contains("longer than 0"));
        assert!(refused(&[("service", "grid"), ("labels", "app=grid")]).contains("either service or labels"));
        assert!(
            refused(&[("service", "grid"), ("split_clusters_during_rolling_update", "true")])
                .contains("labels")
        );
        assert!(refused(&[("clientCertFile", "c.pem")]).contains("both"));
        let in_clear = [("masterProtocol", "http"), ("clientCertFile", "c.pem"), ("clientKeyFile", "k.pem")];
        assert!(refused(&in_clear).contains("no effect without TLS"));
        assert_eq!(config(&[("service", "grid")]).check(), Ok(()));
    }

    #[test]
    fn server_can_have_an_ipv6_address() {
        let query = config(&[("masterHost", "fd00::1"), ("masterPort", "6443")]).query(Duration::ZERO);
        assert_eq!(query.server, "https://[fd00::1]:6443");
        let query = config(&[("masterProtocol", "http"), ("masterPort", "8001")]).query(Duration::ZERO);
        assert_eq!(query.server, "http://10.96.0.1:8001");
    }

    #[test]
    fn api_needs_a_host_and_files_unless_there_are_names() {
        let names = |config: &KubePingConfig| -> Vec<&'static str> {
            config.files_to_ask().into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(config(&[]).missing(), None);
        assert_eq!(names(&config(&[])), ["caCertFile", "saTokenFile"]);
        assert_eq!(names(&config(&[("masterProtocol", "http")])), [""; 0]);
        let identity = [("clientCertFile", "c.pem"), ("clientKeyFile", "k.pem")];
        assert_eq!(names(&config(&identity)), ["caCertFile", "clientCertFile", "clientKeyFile"]);
        assert_eq!(KubePingConfig::default().missing().map(|(name, _)| name), Some("masterHost"));
        let with_names = config(&[("masterHost", ""), ("dns_query", "grid")]);
        assert_eq!((with_names.missing(), names(&with_names)), (None, Vec::new()));
    }
}
