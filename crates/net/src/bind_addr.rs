//! Selection of the address to bind: the first selector that matches an address wins.
//!
//! The syntax is JGroups' (`match-interface:eth2,10.5.5.5,match-interface:en.*,127.0.0.1`). Patterns match whole names or
//! addresses; scopes are those of Java's `InetAddress`. It is a function of interfaces, such as [`Interface::of_host`].

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::str::FromStr;

use regex_lite::Regex;

use crate::bind_error::BindError;

/// An interface's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The interface.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// The index: the scope of link-local IPv6 addresses.
    pub index: u32,
}

impl Interface {
    /// Lists this host's interfaces that are up; fails if the system refuses.
    pub fn of_host() -> std::io::Result<Vec<Self>> {
        Ok(if_addrs::get_if_addrs()?
            .into_iter()
            .filter(if_addrs::Interface::is_oper_up)
            .map(|found| Self { ip: found.ip(), index: found.index.unwrap_or(0), name: found.name })
            .collect())
    }
}

/// The IP versions to choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IpVersion {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both; IPv4 is preferred.
    #[default]
    Dual,
}

impl IpVersion {
    fn allows(self, ip: IpAddr) -> bool {
        match self {
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
            Self::Dual => true,
        }
    }
}

#[derive(Clone, Debug)]
enum Selector {
    InterfacePattern(Regex),
    AddressPattern(Regex),
    HostPattern(Regex),
    Global,
    SiteLocal,
    LinkLocal,
    NonLoopback,
    Loopback,
    Literal(IpAddr),
    /// The name of an interface, else of a host.
    Name(String),
}

/// Selectors, with commas between them in text. Empty: `NON_LOOPBACK,LOOPBACK`.
#[derive(Clone, Default)]
pub struct BindAddr {
    text: String,
    selectors: Vec<Selector>,
}

/// An invalid `bind_addr`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bind_addr element {element:?}: {reason}")]
pub struct BindAddrError {
    /// The invalid element.
    pub element: String,
    /// The reason.
    pub reason: String,
}

impl FromStr for BindAddr {
    type Err = BindAddrError;

    fn from_str(text: &str) -> Result<Self, BindAddrError> {
        let selectors = elements(text).map(parse).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), selectors })
    }
}

impl From<IpAddr> for BindAddr {
    fn from(ip: IpAddr) -> Self {
        Self { text: ip.to_string(), selectors: vec![Selector::Literal(ip)] }
    }
}

impl PartialEq for BindAddr {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for BindAddr {}

impl fmt::Display for BindAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for BindAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl BindAddr {
    /// Returns the first selected address; `names` resolves hosts.
    pub fn choose(
        &self,
        interfaces: &[Interface],
        version: IpVersion,
        names: &dyn HostNames,
    ) -> Option<Interface> {
        let fallback = [Selector::NonLoopback, Selector::Loopback];
        let selectors = if self.selectors.is_empty() { &fallback[..] } else { &self.selectors };
        selectors.iter().find_map(|selector| selector.choose(interfaces, version, names))
    }

    /// Returns this host's first selected address; fails if no address matches, or they cannot be listed.
    pub fn choose_of_host(&self, version: IpVersion) -> Result<Interface, BindError> {
        let interfaces = Interface::of_host().map_err(BindError::Interfaces)?;
        let chosen = self.choose(&interfaces, version, &SystemNames);
        chosen.ok_or_else(|| BindError::NoAddress {
            bind_addr: self.to_string(),
            found: interfaces
                .iter()
                .map(|one| format!("{} {}", one.name, one.ip))
                .collect::<Vec<_>>()
                .join(", "),
        })
    }
}

/// Name resolution, replaced in tests.
pub trait HostNames {
    /// Returns the address' host name, or the address without one.
    fn name_of(&self, ip: IpAddr) -> String;
    /// Returns a host's addresses.
    fn addresses_of(&self, name: &str) -> Vec<IpAddr>;
}

/// The host's resolver; without reverse look-up, it only knows the loopback's name.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemNames;

impl HostNames for SystemNames {
    fn name_of(&self, ip: IpAddr) -> String {
        if ip.is_loopback() { "localhost".to_owned() } else { ip.to_string() }
    }

    fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        (name, 0).to_socket_addrs().map(|found| found.map(|addr| addr.ip()).collect()).unwrap_or_default()
    }
}

/// Commas in braces and brackets of a pattern do not split.
fn elements(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    text.split(move |letter: char| {
        match letter {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|element| !element.is_empty())
}

fn parse(element: &str) -> Result<Selector, BindAddrError> {
    let wrong = |reason: String| BindAddrError { element: element.to_owned(), reason };
    if let Some(("match-interface" | "match-address" | "match-host", _)) = element.split_once(':')
        && let Some((kind, pattern)) = element.split_once(':')
    {
        let regex = Regex::new(&format!("^(?:{pattern})$")).map_err(|error| wrong(error.to_string()))?;
        return Ok(match kind {
            "match-interface" => Selector::InterfacePattern(regex),
            "match-address" => Selector::AddressPattern(regex),
            _ => Selector::HostPattern(regex),
        });
    }
    if element.starts_with("match-") {
        return Err(wrong("expected match-interface:, match-address: or match-host: and a pattern".into()));
    }
    if element.starts_with("custom:") {
        return Err(wrong("custom selectors are not supported".into()));
    }
    Ok(match element.to_ascii_uppercase().as_str() {
        "GLOBAL" => Selector::Global,
        "SITE_LOCAL" => Selector::SiteLocal,
        "LINK_LOCAL" => Selector::LinkLocal,
        "NON_LOOPBACK" => Selector::NonLoopback,
        "LOOPBACK" | "USE_LOCALHOST" | "USE-LOCALHOST" => Selector::Loopback,
        _ => {
            let literal =
                element.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(element);
            match literal.parse::<IpAddr>() {
                Ok(ip) => Selector::Literal(ip.to_canonical()),
                Err(_) => Selector::Name(element.to_owned()),
            }
        }
    })
}

impl Selector {
    fn choose(&self, all: &[Interface], version: IpVersion, names: &dyn HostNames) -> Option<Interface> {
        match self {
            Self::InterfacePattern(regex) => {
                // The first interface that matches decides, as in JGroups: a host with eth1 and eth2 binds to one.
                let name = &all.iter().find(|one| regex.is_match(&one.name))?.name;
                preferred(all, version, |one| one.name == *name)
            }
            Self::AddressPattern(regex) => preferred(all, version, |one| regex.is_match(&one.ip.to_string())),
            Self::HostPattern(regex) => preferred(all, version, |one| regex.is_match(&names.name_of(one.ip))),
            Self::Global => preferred(all, version, |one| {
                !one.ip.is_loopback() && !is_link_local(one.ip) && !is_site_local(one.ip)
            }),
            Self::SiteLocal => preferred(all, version, |one| is_site_local(one.ip)),
            Self::LinkLocal => preferred(all, version, |one| is_link_local(one.ip)),
            Self::NonLoopback => preferred(all, version, |one| !one.ip.is_loopback()),
            Self::Loopback => preferred(all, version, |one| one.ip.is_loopback()),
            Self::Literal(ip) => literal(all, *ip),
            Self::Name(name) => preferred(all, version, |one| one.name == *name).or_else(|| {
                let found: Vec<IpAddr> = names.addresses_of(name);
                let v4_first =
                    found.iter().filter(|ip| ip.is_ipv4()).chain(found.iter().filter(|ip| ip.is_ipv6()));
                v4_first.filter(|ip| version.allows(**ip)).find_map(|ip| literal(all, ip.to_canonical()))
            }),
        }
    }
}

/// The first IPv4 address that fits, else the first IPv6 address. A link-local one comes last, because members of other links do
/// not reach it.
fn preferred(all: &[Interface], version: IpVersion, fits: impl Fn(&Interface) -> bool) -> Option<Interface> {
    let fitting = all.iter().filter(|one| version.allows(one.ip) && fits(one));
    fitting.min_by_key(|one| (is_link_local(one.ip), one.ip.is_ipv6())).cloned()
}

/// The literal may be a wildcard, a loopback address, or an address of this host.
fn literal(all: &[Interface], ip: IpAddr) -> Option<Interface> {
    if let Some(found) = all.iter().find(|one| one.ip == ip) {
        return Some(found.clone());
    }
    let is_usable = ip.is_unspecified() || (ip.is_ipv4() && ip.is_loopback());
    is_usable.then(|| Interface { name: String::new(), ip, index: 0 })
}

/// The networks are 10/8, 172.16/12, 192.168/16, and the retired fec0::/10, as in Java.
fn is_site_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfec0,
    }
}

/// The networks are 169.254/16 and fe80::/10.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => is_v6_link_local(ip),
    }
}

fn is_v6_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake;

    impl HostNames for Fake {
        fn name_of(&self, ip: IpAddr) -> String {
            if ip == IpAddr::from([10, 5, 5, 5]) { "db.example.org".into() } else { ip.to_string() }
        }

        fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
            if name == "db" { vec![IpAddr::from([10, 5, 5, 5])] } else { vec![] }
        }
    }

    fn host(list: &[(&str, &str)]) -> Vec<Interface> {
        list.iter()
            .zip(1..)
            .map(|((name, ip), index)| Interface { name: (*name).into(), ip: ip.parse().unwrap(), index })
            .collect()
    }

    fn choose(list: &str, interfaces: &[(&str, &str)], version: IpVersion) -> Option<String> {
        let bind: BindAddr = list.parse().unwrap();
        bind.choose(&host(interfaces), version, &Fake).map(|found| found.ip.to_string())
    }

    const LO: (&str, &str) = ("lo", "127.0.0.1");
    const LO6: (&str, &str) = ("lo", "::1");

    /// S000-62
    #[test]
    fn the_first_selector_that_works_wins() {
        let list = "match-interface:eth2,10.5.5.5,match-interface:en.*,127.0.0.1";
        let table: &[(&[(&str, &str)], &str)] = &[
            (&[LO, ("eth2", "10.1.1.1"), ("en0", "10.5.5.5")], "10.1.1.1"),
            (&[LO, ("eth0", "10.5.5.5"), ("en0", "10.2.2.2")], "10.5.5.5"),
            (&[LO, ("eth0", "10.1.1.1"), ("en0", "10.2.2.2")], "10.2.2.2"),
            (&[LO, ("eth0", "10.1.1.1")], "127.0.0.1"),
            (&[LO, ("eth20", "10.1.1.1")], "127.0.0.1"),
            (&[LO, LO6, ("eth2", "2001:db8::2")], "2001:db8::2"),
            (&[LO, LO6, ("eth2", "2001:db8::2"), ("eth2", "10.1.1.1")], "10.1.1.1"),
        ];
        for (interfaces, expected) in table {
            assert_eq!(
                choose(list, interfaces, IpVersion::Dual).as_deref(),
                Some(*expected),
                "{interfaces:?}"
            );
        }
    }

    /// S000-62
    #[test]
    fn scopes_are_those_of_java() {
        let all = &[
            LO,
            LO6,
            ("eth0", "fe80::1"),
            ("eth0", "169.254.3.3"),
            ("eth1", "192.168.7.7"),
            ("eth2", "fec0::7"),
            ("eth3", "8.8.4.4"),
            ("eth3", "2001:db8::3"),
        ];
        let table = &[
            ("GLOBAL", IpVersion::Dual, "8.8.4.4"),
            ("global", IpVersion::V6, "2001:db8::3"),
            ("SITE_LOCAL", IpVersion::Dual, "192.168.7.7"),
            ("SITE_LOCAL", IpVersion::V6, "fec0::7"),
            ("LINK_LOCAL", IpVersion::V4, "169.254.3.3"),
            ("LINK_LOCAL", IpVersion::V6, "fe80::1"),
            ("NON_LOOPBACK", IpVersion::V4, "192.168.7.7"),
            ("NON_LOOPBACK", IpVersion::V6, "fec0::7"),
            ("LOOPBACK", IpVersion::Dual, "127.0.0.1"),
            ("LOOPBACK", IpVersion::V6, "::1"),
        ];
        for (selector, version, expected) in table {
            assert_eq!(choose(selector, all, *version).as_deref(), Some(*expected), "{selector} {version:?}");
        }
    }

    /// S000-62
    #[test]
    fn patterns_names_and_literals_select() {
        let all = &[LO, LO6, ("eth0", "10.5.5.5"), ("eth0", "2001:db8::5"), ("eth1", "192.168.1.9")];
        let table = &[
            ("match-address:192.168.*", "192.168.1.9"),
            ("match-address:2001:.*", "2001:db8::5"),
            ("match-host:db\\..*", "10.5.5.5"),
            ("match-interface:eth[1,2]", "192.168.1.9"),
            ("eth1", "192.168.1.9"),
            ("db", "10.5.5.5"),
            ("10.5.5.5", "10.5.5.5"),
            ("::ffff:10.5.5.5", "10.5.5.5"),
            ("[2001:db8::5]", "2001:db8::5"),
            ("0.0.0.0", "0.0.0.0"),
            ("::", "::"),
            ("127.0.0.2", "127.0.0.2"),
            ("", "10.5.5.5"),
        ];
        for (selector, expected) in table {
            assert_eq!(
                choose(selector, all, IpVersion::Dual).as_deref(),
                Some(*expected),
                "selector {selector:?}"
            );
        }
    }

    #[test]
    fn an_address_of_another_host_is_not_chosen() {
        assert_eq!(choose("10.9.9.9", &[LO, ("eth0", "10.5.5.5")], IpVersion::Dual), None);
        assert_eq!(choose("match-interface:eth", &[LO, ("eth0", "10.5.5.5")], IpVersion::Dual), None);
    }

    /// S003-2
    #[test]
    fn a_host_of_one_family_needs_no_setting() {
        assert_eq!(
            choose("SITE_LOCAL,NON_LOOPBACK", &[LO6, ("eth0", "fd00::2")], IpVersion::Dual).as_deref(),
            Some("fd00::2")
        );
        assert_eq!(choose("", &[LO, ("eth0", "10.0.0.2")], IpVersion::Dual).as_deref(), Some("10.0.0.2"));
        assert_eq!(
            choose("", &[LO, LO6, ("eth0", "fd00::2"), ("eth0", "10.0.0.2")], IpVersion::Dual).as_deref(),
            Some("10.0.0.2")
        );
    }

    #[test]
    fn wrong_elements_are_named() {
        let error = "eth0,match-interface:[".parse::<BindAddr>().unwrap_err();
        assert_eq!(error.element, "match-interface:[");
        assert!("match-mac:00.*".parse::<BindAddr>().is_err());
        assert!("custom:com.example.Supplier".parse::<BindAddr>().is_err());
    }

    /// A host without IPv6 has no such address.
    #[cfg(target_os = "linux")]
    #[test]
    fn link_local_selects_an_address_of_this_host_with_its_zone() {
        let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        let all = Interface::of_host().unwrap();
        let bind: BindAddr = "LINK_LOCAL".parse().unwrap();
        let found = bind.choose(&all, IpVersion::V6, &SystemNames);
        // Each line has the address and the zone, as hexadecimal numbers.
        let is_listed = |found: &Interface| {
            let IpAddr::V6(ip) = found.ip else { return false };
            let begin = format!("{:032x} {:02x} ", u128::from(ip), found.index);
            table.lines().any(|line| line.starts_with(&begin))
        };
        assert!(found.iter().all(|found| is_link_local(found.ip) && is_listed(found)), "{found:?}");
        let is_up =
            |one: &Interface| table.lines().any(|line| line.starts_with("fe80") && line.ends_with(&one.name));
        assert_eq!(found.is_some(), all.iter().any(is_up), "{all:?}");
    }

    #[test]
    fn this_host_has_a_loopback_address() {
        let all = Interface::of_host().unwrap();
        let bind: BindAddr = "LOOPBACK".parse().unwrap();
        assert!(bind.choose(&all, IpVersion::Dual, &SystemNames).unwrap().ip.is_loopback());
    }
}
