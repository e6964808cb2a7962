use std::net::IpAddr;
use std::time::Duration;

use consort_conf::{STOCK, Variables, parse_site, parse_stack};
use consort_group::config::{Bytes, HostPort, Property, StackConfig};
use consort_group::database::{JdbcUrl, MemberRow, SqlStatement};
use consort_group::protocols::{discovery, registry};
use consort_group::{PhysAddr, Protocol, Rng, Stack, StackSetup, Time, Version};
use consort_net::{BindAddr, HostNames, Interface, IpVersion, TransportConfig};

use crate::bounds::{bounded, bounded_by};
use crate::cluster;
use crate::seen::Seen;

/// A stack may include all stock files, each in memory as text and as description.
const STACK_MEMORY: u64 = 4 * 1024 * 1024;

/// A stack from a mutated description runs this long, with a bound of timer wakes.
const RUNS_FOR: Duration = Duration::from_secs(3);
const WAKES_MAX: usize = 100;

pub(crate) fn config(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = STACK_MEMORY + 64 * bytes.len() as u64;
    let variables = Variables::new().with("a", "1");
    let (parsed, peak) = bounded_by(limit, || parse_stack("fuzz.xml", &text, &variables));
    match parsed {
        Ok(stack) => {
            let _ = stack.config.protocols.first().and_then(TransportConfig::from_protocol);
            if let Some(mut stack) = made(&stack.config) {
                live(&mut stack);
            }
            Seen::one(true, peak)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Seen::one(false, peak)
        }
    }
}

fn made(config: &StackConfig) -> Option<Stack> {
    let (transport, version) = registry::transport(config.protocols.first()?)?.ok()?;
    let mut layers: Vec<Box<dyn Protocol>> = vec![Box::new(transport)];
    for protocol in &config.protocols[1..] {
        let mut resolve = |_: &str| Ok(vec![IpAddr::from([127, 0, 0, 1])]);
        layers.push(registry::layer(protocol, &mut resolve)?.ok()?);
    }
    let mut rng = Rng::new(1);
    let setup = StackSetup {
        local: consort_group::Address::random(&mut rng),
        name: "fuzzed".into(),
        phys: PhysAddr::new([127, 0, 0, 1].into(), 7800),
        has_multicast: config.protocols[0].short_name() == "UDP",
        seed: 1,
        version,
    };
    Some(Stack::new(setup, layers))
}

fn live(stack: &mut Stack) {
    stack.start(Time::ZERO);
    stack.handle_connect(Time::ZERO, "fuzz");
    cluster::run_alone(stack, Time::ZERO, RUNS_FOR, WAKES_MAX);
    let names: Vec<&'static str> = stack.layers().map(|(name, _)| name).collect();
    for name in names {
        assert!(stack.probe(name).is_some());
    }
}

pub(crate) fn configs() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = STOCK.iter().map(|(_, text)| text.as_bytes().to_vec()).collect();
    // Every protocol with every attribute at its default.
    for entry in registry::ENTRIES {
        let attributes: Vec<String> = (entry.properties)()
            .iter()
            .map(|property| format!("{}=\"{}\"", property.name, property.default))
            .collect();
        let text = format!(
            "<config>\n<TCP bind_port=\"7800\"/>\n<{} {}/>\n</config>",
            entry.name,
            attributes.join(" ")
        );
        all.push(text.into_bytes());
    }
    let transport: Vec<String> = TransportConfig::attributes().map(|name| format!("{name}=\"1\"")).collect();
    all.push(format!("<config><UDP {}/></config>", transport.join(" ")).into_bytes());
    // Most changes of these are accepted: nearly all of the others are refused for their attributes.
    for stack in ["<TCP/>", "<UDP/>\n  <PING/>\n  <NAKACK2/>\n  <UNICAST3/>\n  <GMS/>"] {
        let comment = "a comment, as files have them above their layers ".repeat(4);
        all.push(format!("<config>\n  <!-- {comment}-->\n  {stack}\n</config>\n").into_bytes());
    }
    all
}

pub(crate) fn sites(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = STACK_MEMORY + 64 * bytes.len() as u64;
    let (parsed, peak) = bounded_by(limit, || parse_site("sites.xml", &text, "lon", &Variables::new()));
    match &parsed {
        Ok(site) => assert!(site.name == "lon" && !site.bridges.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Seen::one(parsed.is_ok(), peak)
}

pub(crate) fn some_sites() -> Vec<Vec<u8>> {
    let site = |name: &str, rest: &str| {
        format!(
            "<site name=\"{name}\">\n<bridges>\n<bridge name=\"global\" config=\"bridge.xml\"/>\n</bridges>\n{rest}</site>"
        )
    };
    let forwards = "<forwards>\n<forward to=\"sfo|hf.*\" gateway=\"nyc\"/>\n</forwards>\n";
    let comment = "the sites of the company and their bridge ".repeat(8);
    let sites = format!(
        "<RelayConfiguration xmlns=\"urn:jgroups:relay:1.0\">\n<!-- {comment}-->\n<sites>\n{}\n{}\n</sites>\n</RelayConfiguration>\n",
        site("lon", forwards),
        site("nyc", "")
    );
    let stack = format!("<config>\n<TCP/>\n<relay.RELAY3 site=\"lon\">\n{sites}</relay.RELAY3>\n</config>\n");
    vec![sites.into_bytes(), stack.into_bytes()]
}

pub(crate) fn variables(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let variables = Variables::new().with("a", "value").with("jgroups.bind_addr", "127.0.0.1");
    let (substituted, peak) = bounded(bytes.len(), || variables.substitute(&text));
    if let Ok(substituted) = &substituted
        && !text.contains("${")
    {
        assert_eq!(*substituted, text);
    }
    Seen::one(substituted.is_ok(), peak)
}

pub(crate) fn texts_with_variables() -> Vec<Vec<u8>> {
    [
        "${a}",
        "x${a:b}y${b:${a}}",
        "${b,c,a:1}",
        "${jgroups.bind_addr:SITE_LOCAL}",
        "${x:${y:${z:{}}}}",
        "plain",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// The printed form of a value is one too.
fn value<P: Property>(text: &str) -> bool {
    let Ok(value) = P::parse(text) else { return false };
    let shown = value.show();
    if let Err(error) = P::parse(&shown) {
        panic!("{text:?} prints as {shown:?}: {error}");
    }
    true
}

pub(crate) fn values(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let (accepted, peak) = bounded(bytes.len(), || {
        [
            value::<Duration>(&text),
            value::<Bytes>(&text),
            value::<bool>(&text),
            value::<u16>(&text),
            value::<u32>(&text),
            value::<i32>(&text),
            value::<i64>(&text),
            value::<f64>(&text),
            value::<Option<IpAddr>>(&text),
            value::<Vec<HostPort>>(&text),
            value::<Version>(&text),
        ]
    });
    Seen::one(accepted.contains(&true), peak)
}

pub(crate) fn some_values() -> Vec<Vec<u8>> {
    [
        "500",
        "500ms",
        "2s",
        "1.5m",
        "2h",
        "1d",
        "60K",
        "2M",
        "1.5GB",
        "64KiB",
        "true",
        "-1",
        "127.0.0.1",
        "::1",
        "localhost[7800], 10.0.0.1[7801],h:1",
        "5.5.7",
        "1_000_000",
        "0.5",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

struct NoNames;

impl HostNames for NoNames {
    fn name_of(&self, ip: IpAddr) -> String {
        ip.to_string()
    }
    fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        if name.len().is_multiple_of(2) { Vec::new() } else { vec![[10, 0, 0, 1].into()] }
    }
}

/// A selector may be three patterns, and a pattern of a few bytes that repeats itself becomes as large as patterns may.
const PATTERNS_MEMORY: u64 = 64 * 1024 * 1024;

pub(crate) fn bind_addr(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let limit = PATTERNS_MEMORY + 64 * bytes.len() as u64;
    let (parsed, peak) = bounded_by(limit, || text.parse::<BindAddr>());
    if let Ok(selectors) = &parsed {
        assert_eq!(selectors.to_string(), text);
        let interfaces = cluster::interfaces();
        for version in [IpVersion::V4, IpVersion::V6, IpVersion::Dual] {
            let _: Option<Interface> = selectors.choose(&interfaces, version, &NoNames);
        }
    }
    Seen::one(parsed.is_ok(), peak)
}

pub(crate) fn bind_addrs() -> Vec<Vec<u8>> {
    [
        "SITE_LOCAL",
        "match-interface:eth2,10.5.5.5,loopback",
        "match-address:192.168.*",
        "match-host:a.*\\.net",
        "GLOBAL,LINK_LOCAL,NON_LOOPBACK",
        "::1",
        "eth0",
        "match-interface:(eth|en)[0-9]{1,2},0.0.0.0",
        "",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub(crate) fn ping_file(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let (members, peak) = bounded(bytes.len(), || discovery::parse_file(&text));
    assert!(members.len() <= text.lines().count());
    assert!(members.iter().all(|member| member.phys.is_some() && member.name.is_some()));
    Seen::one(!members.is_empty(), peak)
}

/// The lines of the text are a URL, a statement, and the address and physical address of a row.
pub(crate) fn ping_row(bytes: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(bytes);
    let (is_valid, peak) = bounded(bytes.len(), || {
        let mut lines = text.split('\n');
        let mut next = || lines.next().unwrap_or_default().to_owned();
        let url = JdbcUrl::parse(&next());
        let statement = SqlStatement::parse(&next());
        let (address, ip) = (next(), next());
        let data = MemberRow { address, name: None, ip, is_coordinator: false }.data();
        if let Some(data) = &data {
            let phys = data.phys.expect("a physical address");
            let row = MemberRow::new(&data.sender, None, phys, false).expect("a row");
            assert_eq!(row.data().as_ref().map(|again| again.phys), Some(Some(phys)));
        }
        if let Ok(url) = &url {
            assert!(url.is_empty() || !url.hosts.is_empty());
        }
        url.is_ok() && statement.is_ok() && data.is_some()
    });
    Seen::one(is_valid, peak)
}

pub(crate) fn ping_rows() -> Vec<Vec<u8>> {
    [
        "jdbc:postgresql://a,[::1]:5433/grid?user=a%20b&sslmode=verify-full\nINSERT INTO a VALUES (?, '?', ?)\n\
         uuid://01020304-0506-0708-1112-131415161718\n127.0.0.1:7800",
        "jdbc:postgresql:grid\nselect $a$ ? $a$ /* ? */ -- ?\nip://10.0.0.1:1\n::1:7800",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub(crate) fn ping_files() -> Vec<Vec<u8>> {
    [
        "A \t01020304-0506-0708-1112-131415161718 \t127.0.0.1:7800 \tT\nB \t7 \t[::1]:7801 \tF\n",
        "name 18446744073709551615 10.0.0.1:1 F extra\n\nnonsense\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}
