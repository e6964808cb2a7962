//! Tokens of AUTH.

use std::fmt::Write as _;
use std::net::IpAddr;

use regex_lite::Regex;

use crate::config::{Properties, Property, PropertyInfo};
use crate::{Address, AddressBook, AuthHeader, PhysAddr};

const FIXED_MEMBERSHIP: &str = "org.jgroups.auth.FixedMembershipToken";
const REGEX_MEMBERSHIP: &str = "org.jgroups.auth.RegexMembership";

/// JGroups has no attribute for this text, and does not compare it.
const EMPTY_TOKEN: &str = "emptyToken";

const FIXED_MAX: usize = 10_000;

crate::properties! {
    /// The attributes, without `auth_token.`.
    TokenConfig {
        /// FixedMembershipToken: the addresses of all members, as `HOST/PORT`, or as `HOST` for all ports.
        fixed_members_value: String = String::new(),
        /// FixedMembershipToken: the characters between addresses.
        fixed_members_separator: String = ",".to_owned(),
        /// RegexMembership: the regular expression that the whole IP address with its port, such as
        /// `192.168.1.5:7800`, or the whole logical name of a joiner has to match.
        match_string: String = String::new(),
        /// RegexMembership: whether the joiner's address is matched.
        match_ip_address: bool = true,
        /// RegexMembership: whether the joiner's logical name is matched.
        match_logical_name: bool = false,
    }
}

/// JGroups misspells the second name.
const NAMES: &[(&str, &str)] = &[
    ("auth_token.fixed_members_value", "fixed_members_value"),
    ("auth_token.fixed_members_separator", "fixed_members_separator"),
    ("auth_token.fixed_members_seperator", "fixed_members_separator"),
    ("auth_token.match_string", "match_string"),
    ("auth_token.match_ip_address", "match_ip_address"),
    ("auth_token.match_logical_name", "match_logical_name"),
];

/// The token's attributes, whose names in configurations begin with `auth_token.`.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct AuthTokenConfig(pub TokenConfig);

impl Properties for AuthTokenConfig {
    fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let (_, field) = NAMES.iter().find(|(own, _)| *own == name)?;
        self.0.set(field, value)
    }

    fn show(&self) -> Vec<(&'static str, String)> {
        let values = self.0.show();
        let value =
            |field: &str| values.iter().find(|(own, _)| *own == field).map(|(_, value)| value.clone());
        NAMES.iter().map(|(name, field)| (*name, value(field).unwrap_or_default())).collect()
    }

    fn list() -> Vec<PropertyInfo> {
        let fields = TokenConfig::list();
        let named = NAMES.iter().filter_map(|(name, field)| {
            let info = fields.iter().find(|info| info.name == *field)?;
            Some(PropertyInfo { name, ..info.clone() })
        });
        named.collect()
    }
}

#[derive(Debug)]
pub(super) enum AuthToken {
    /// `None` admits each port.
    FixedMembership(Vec<(IpAddr, Option<u16>)>),
    /// The pattern matches addresses, names or both.
    Regex { pattern: Regex, address: bool, name: bool },
}

/// The attribute, and a text for the operator.
type Refused = (&'static str, String);

const CLASS: &str = "auth_class";

impl AuthToken {
    pub(super) fn new(
        class: &str,
        config: &TokenConfig,
        mut hosts: impl FnMut(&str) -> Result<Vec<IpAddr>, String>,
    ) -> Result<Self, Refused> {
        match class.trim() {
            FIXED_MEMBERSHIP => Self::fixed(config, &mut hosts),
            REGEX_MEMBERSHIP => Self::regex(config),
            "" => Err((
                CLASS,
                format!("auth_class is missing: set it to {FIXED_MEMBERSHIP} or {REGEX_MEMBERSHIP}"),
            )),
            other => {
                let why = match other.rsplit('.').next().unwrap_or_default() {
                    "SimpleToken" | "MD5Token" => {
                        "JGroups 5 has no such class, because each listener on the network reads its secret; \
                         use SYM_ENCRYPT, which keeps members without the key out"
                    }
                    "X509Token" | "Krb5Token" => {
                        "it is not supported; use tls.enabled=\"true\" with tls.client_auth=\"NEED\" at TCP, which checks \
                         a certificate of each member and cannot be replayed"
                    }
                    _ => "Java classes are not supported",
                };
                let known = format!("the supported classes are {FIXED_MEMBERSHIP} and {REGEX_MEMBERSHIP}");
                Err((CLASS, format!("auth_class ({other}) is refused: {why}; {known}")))
            }
        }
    }

    fn fixed(
        config: &TokenConfig,
        hosts: &mut dyn FnMut(&str) -> Result<Vec<IpAddr>, String>,
    ) -> Result<Self, Refused> {
        let attribute = "auth_token.fixed_members_value";
        let fail = |why: String| (attribute, format!("{attribute}: {why}"));
        let mut members = Vec::new();
        let separators: Vec<char> = config.fixed_members_separator.chars().collect();
        for member in config.fixed_members_value.split(&separators[..]).map(str::trim) {
            if member.is_empty() {
                continue;
            }
            let (host, port) = match member.rsplit_once('/') {
                Some((host, port)) => {
                    let port: u16 =
                        Property::parse(port).map_err(|why| fail(format!("`{member}`: {why}")))?;
                    (host, Some(port).filter(|&port| port != 0))
                }
                None => (member, None),
            };
            let found = host.parse().map(|ip| vec![ip]).or_else(|_| hosts(host)).map_err(fail)?;
            members.extend(found.into_iter().map(|ip| (ip, port)));
        }
        if members.is_empty() {
            return Err(fail(
                "name the addresses of all members, such as 10.0.0.1/7800,10.0.0.2/7800".to_owned(),
            ));
        }
        if members.len() > FIXED_MAX {
            return Err(fail(format!("{} addresses are more than {FIXED_MAX}", members.len())));
        }
        Ok(Self::FixedMembership(members))
    }

    fn regex(config: &TokenConfig) -> Result<Self, Refused> {
        let (address, name) = (config.match_ip_address, config.match_logical_name);
        if !address && !name {
            let why = "auth_token.match_ip_address or auth_token.match_logical_name has to be true";
            return Err(("auth_token.match_ip_address", why.to_owned()));
        }
        let attribute = "auth_token.match_string";
        if config.match_string.is_empty() {
            return Err((attribute, format!("{attribute} is missing: set it to a regular expression")));
        }
        let pattern = Regex::new(&format!("^(?:{})$", config.match_string)).map_err(|error| {
            (attribute, format!("{attribute} ({}) is not a regular expression: {error}", config.match_string))
        })?;
        Ok(Self::Regex { pattern, address, name })
    }

    pub(super) const fn class(&self) -> &'static str {
        match self {
            Self::FixedMembership(_) => FIXED_MEMBERSHIP,
            Self::Regex { .. } => REGEX_MEMBERSHIP,
        }
    }

    pub(super) fn header(&self) -> AuthHeader {
        match self {
            Self::FixedMembership(_) => AuthHeader::FixedMembership(Some(EMPTY_TOKEN.to_owned())),
            Self::Regex { .. } => AuthHeader::Class(REGEX_MEMBERSHIP.to_owned()),
        }
    }

    /// The error is the reason for the log.
    pub(super) fn check(&self, book: &AddressBook, src: &Address, header: &AuthHeader) -> Result<(), String> {
        let phys = book.phys(src);
        match self {
            Self::FixedMembership(members) => {
                if !matches!(header, AuthHeader::FixedMembership(_)) {
                    return Err("its token is not of FixedMembershipToken".to_owned());
                }
                let phys = phys.ok_or("its physical address is unknown")?;
                let is_listed = members
                    .iter()
                    .any(|(ip, port)| phys.ip == Some(*ip) && port.is_none_or(|port| port == phys.port));
                if is_listed {
                    Ok(())
                } else {
                    Err(format!("its address {phys} is not in fixed_members_value"))
                }
            }
            Self::Regex { pattern, address, name } => {
                let matches_address =
                    *address && phys.is_some_and(|phys| pattern.is_match(&as_in_java(phys)));
                let matches_name = *name && book.name(src).is_some_and(|name| pattern.is_match(name));
                if matches_address || matches_name {
                    return Ok(());
                }
                let phys = phys.map_or_else(|| "unknown".to_owned(), as_in_java);
                Err(format!(
                    "neither its address ({phys}) nor its name match match_string as far as they are matched"
                ))
            }
        }
    }
}

/// Patterns are written for Java's form, which does not shorten IPv6.
pub(super) fn as_in_java(phys: PhysAddr) -> String {
    let mut text = match phys.ip {
        None => "<null>".to_owned(),
        Some(IpAddr::V4(ip)) => ip.to_string(),
        Some(IpAddr::V6(ip)) => {
            let mut text = ip.segments().map(|segment| format!("{segment:x}")).join(":");
            if phys.scope_id != 0 {
                let _ = write!(text, "%{}", phys.scope_id);
            }
            text
        }
    };
    let _ = write!(text, ":{}", phys.port);
    text
}
