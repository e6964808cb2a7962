//! Tokens of AUTH.

use std::fmt::Write as _;
use std::net::IpAddr;

use regex_lite::Regex;

use super::certificate_token::{CertificateKey, CertificateToken, Unaccepted};
use crate::config::{Password, Properties, Property, PropertyInfo};
use crate::{Address, AddressBook, AuthHeader, PhysAddr, Time};

const FIXED_MEMBERSHIP: &str = "org.jgroups.auth.FixedMembershipToken";
const REGEX_MEMBERSHIP: &str = "org.jgroups.auth.RegexMembership";
const X509: &str = "org.jgroups.auth.X509Token";

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
        /// X509Token: the text that all members know, in any case.
        auth_value: Password = Password::new(""),
        /// X509Token: the key store with a certificate and its private key of RSA, which all members have.
        keystore_path: String = String::new(),
        /// X509Token: the format of the key store: `PKCS12`, `JKS` or `JCEKS`. The reader detects it by the file's content.
        keystore_type: String = "JKS".to_owned(),
        /// X509Token: the password of the key store.
        keystore_password: Password = Password::new(""),
        /// X509Token: the password of the private key. If not set, that of the key store.
        cert_password: Password = Password::new(""),
        /// X509Token: the alias of the certificate.
        cert_alias: String = String::new(),
        /// X509Token: `RSA`.
        cipher_type: String = "RSA".to_owned(),
    }
}

/// Each with its class. JGroups misspells the third name.
const NAMES: &[(&str, &str, &str)] = &[
    ("auth_token.fixed_members_value", "fixed_members_value", FIXED_MEMBERSHIP),
    ("auth_token.fixed_members_separator", "fixed_members_separator", FIXED_MEMBERSHIP),
    ("auth_token.fixed_members_seperator", "fixed_members_separator", FIXED_MEMBERSHIP),
    ("auth_token.match_string", "match_string", REGEX_MEMBERSHIP),
    ("auth_token.match_ip_address", "match_ip_address", REGEX_MEMBERSHIP),
    ("auth_token.match_logical_name", "match_logical_name", REGEX_MEMBERSHIP),
    ("auth_token.auth_value", "auth_value", X509),
    ("auth_token.keystore_path", "keystore_path", X509),
    ("auth_token.keystore_type", "keystore_type", X509),
    ("auth_token.keystore_password", "keystore_password", X509),
    ("auth_token.cert_password", "cert_password", X509),
    ("auth_token.cert_alias", "cert_alias", X509),
    ("auth_token.cipher_type", "cipher_type", X509),
];

/// The token's attributes, whose names in configurations begin with `auth_token.`.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct AuthTokenConfig(pub TokenConfig);

impl Properties for AuthTokenConfig {
    fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let (_, field, _) = NAMES.iter().find(|(own, ..)| *own == name)?;
        self.0.set(field, value)
    }

    fn show(&self) -> Vec<(&'static str, String)> {
        let values = self.0.show();
        let value =
            |field: &str| values.iter().find(|(own, _)| *own == field).map(|(_, value)| value.clone());
        NAMES.iter().map(|(name, field, _)| (*name, value(field).unwrap_or_default())).collect()
    }

    fn list() -> Vec<PropertyInfo> {
        let fields = TokenConfig::list();
        let named = NAMES.iter().filter_map(|(name, field, _)| {
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
    Regex {
        pattern: Regex,
        address: bool,
        name: bool,
    },
    X509(Box<CertificateToken>),
}

/// The attribute, and a text for the operator.
type Refused = (&'static str, String);

const CLASS: &str = "auth_class";

/// In the texts of errors.
const CLASSES: &str =
    "org.jgroups.auth.FixedMembershipToken, org.jgroups.auth.RegexMembership or org.jgroups.auth.X509Token";

/// Addresses and keys of the host, for tokens.
pub trait TokenSources {
    /// Returns the addresses of a host.
    fn hosts(&mut self, name: &str) -> Result<Vec<IpAddr>, String>;

    /// Returns the key pair of X509Token.
    fn certificate_key(&mut self, config: &TokenConfig) -> Result<CertificateKey, String>;
}

/// Returns an attribute that has no effect with this class.
fn set_for_another_class(
    class: &str,
    config: &TokenConfig,
) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let (set, defaults) = (config.show(), TokenConfig::default().show());
    let is_set = |field: &str| {
        let value = |all: &[(&'static str, String)]| {
            all.iter().find(|(own, _)| *own == field).map(|(_, value)| value.clone())
        };
        value(&set) != value(&defaults)
    };
    let is_known = NAMES.iter().any(|(.., own)| *own == class);
    NAMES.iter().find(|(_, field, own)| is_known && *own != class && is_set(field))
}

impl AuthToken {
    pub(super) fn new(
        class: &str,
        config: &TokenConfig,
        sources: &mut dyn TokenSources,
    ) -> Result<Self, Refused> {
        let class = class.trim();
        if let Some((name, _, own)) = set_for_another_class(class, config) {
            return Err((name, format!("{name} is an attribute of {own}, and auth_class is {class}")));
        }
        match class {
            FIXED_MEMBERSHIP => Self::fixed(config, &mut |host| sources.hosts(host)),
            REGEX_MEMBERSHIP => Self::regex(config),
            X509 => Self::certificate(config, sources),
            "" => Err((CLASS, format!("auth_class is missing: set it to {CLASSES}"))),
            other => {
                let why = match other.rsplit('.').next().unwrap_or_default() {
                    "SimpleToken" | "MD5Token" => {
                        "JGroups 5 has no such class, because each listener on the network reads its secret; \
                         use SYM_ENCRYPT, which keeps members without the key out"
                    }
                    "Krb5Token" => {
                        "it is not supported; use tls.enabled=\"true\" with tls.client_auth=\"NEED\" at TCP, which checks \
                         a certificate of each member and cannot be replayed"
                    }
                    _ => "Java classes are not supported",
                };
                Err((
                    CLASS,
                    format!("auth_class ({other}) is refused: {why}; the supported classes are {CLASSES}"),
                ))
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

    fn certificate(config: &TokenConfig, sources: &mut dyn TokenSources) -> Result<Self, Refused> {
        let is_known =
            |types: &[&str], value: &str| types.iter().any(|known| known.eq_ignore_ascii_case(value.trim()));
        if !is_known(&["RSA", "RSA/ECB/PKCS1Padding"], &config.cipher_type) {
            let why =
                format!("auth_token.cipher_type ({}) is not supported; it can be RSA", config.cipher_type);
            return Err(("auth_token.cipher_type", why));
        }
        if !is_known(&["JKS", "PKCS12", "JCEKS"], &config.keystore_type) {
            let why = format!(
                "auth_token.keystore_type ({}) is not supported; it can be PKCS12, JKS or JCEKS",
                config.keystore_type
            );
            return Err(("auth_token.keystore_type", why));
        }
        for (name, is_missing) in [
            ("auth_token.keystore_path", config.keystore_path.trim().is_empty()),
            ("auth_token.keystore_password", config.keystore_password.is_empty()),
            ("auth_token.cert_alias", config.cert_alias.trim().is_empty()),
            ("auth_token.auth_value", config.auth_value.is_empty()),
        ] {
            if is_missing {
                return Err((name, format!("{name} is missing")));
            }
        }
        let key = sources.certificate_key(config).map_err(|why| ("auth_token.keystore_path", why))?;
        let token = CertificateToken::new(config.auth_value.text(), key).ok_or_else(|| {
            let why = "auth_token.auth_value is longer than the certificate's RSA key can encrypt";
            ("auth_token.auth_value", why.to_owned())
        })?;
        Ok(Self::X509(Box::new(token)))
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
            Self::X509(_) => X509,
        }
    }

    pub(super) fn header(&self) -> AuthHeader {
        match self {
            Self::FixedMembership(_) => AuthHeader::FixedMembership(Some(EMPTY_TOKEN.to_owned())),
            Self::Regex { .. } => AuthHeader::Class(REGEX_MEMBERSHIP.to_owned()),
            Self::X509(token) => AuthHeader::X509(Some(token.own())),
        }
    }

    pub(super) fn check(
        &mut self,
        now: Time,
        book: &AddressBook,
        src: &Address,
        header: &AuthHeader,
    ) -> Result<(), Unaccepted> {
        match (self, header) {
            (Self::X509(token), AuthHeader::X509(Some(theirs))) => token.check(now, theirs),
            (Self::X509(_), _) => Err(Unaccepted::Refused("its token is not of X509Token".to_owned())),
            (other, header) => other.check_address(book, src, header).map_err(Unaccepted::Refused),
        }
    }

    fn check_address(&self, book: &AddressBook, src: &Address, header: &AuthHeader) -> Result<(), String> {
        let phys = book.phys(src);
        match self {
            Self::X509(_) => Err("it has no token".to_owned()),
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
