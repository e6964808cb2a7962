use std::net::IpAddr;
use std::time::Duration;

/// A type of property values. Errors name the value.
pub trait Property: Sized {
    /// Parses a value, or fails if it is invalid.
    fn parse(text: &str) -> Result<Self, String>;
    /// Returns the value as configured.
    fn show(&self) -> String;
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bytes(pub u64);

/// A host and port: `host[port]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPort {
    /// A name or an address.
    pub host: String,
    /// The first port.
    pub port: u16,
}

/// As socket addresses, with brackets around IPv6.
impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Parses `500` or `500ms`, `2s`, `1.5m`, `2h`, `1d`; fails on other texts.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number
        .replace('_', "")
        .parse()
        .map_err(|_| format!("`{text}` is not a duration such as 500ms or 2s"))?;
    let millis = match unit.trim() {
        "" | "ms" => 1.0,
        "s" => 1e3,
        "m" => 60e3,
        "h" => 3600e3,
        "d" => 86400e3,
        other => return Err(format!("`{other}` is not a unit of time; the units are ms, s, m, h, d")),
    };
    Duration::try_from_secs_f64(number * millis / 1e3).map_err(|_| format!("`{text}` is too long a duration"))
}

/// Parses `60000`, `60K`, `2M`, `1G`; fails on other texts. `KiB` and `MiB` are decimal too, as in JGroups.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (factor, number) = [('k', 1e3), ('m', 1e6), ('g', 1e9)]
        .into_iter()
        .find_map(|(letter, factor)| lower.split_once(letter).map(|(number, _)| (factor, number)))
        .unwrap_or((1.0, lower.trim_end_matches('b')));
    let number: f64 = number
        .trim()
        .replace('_', "")
        .parse()
        .map_err(|_| format!("`{text}` is not a number of bytes such as 60000, 60K or 2M"))?;
    if number < 0.0 || !(number * factor).is_finite() {
        return Err(format!("`{text}` is out of range for a number of bytes"));
    }
    Ok((number * factor) as u64)
}

impl Property for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        parse_duration(text)
    }
    fn show(&self) -> String {
        if self.subsec_millis() == 0 && *self >= Self::from_secs(1) {
            format!("{}s", self.as_secs())
        } else {
            format!("{}ms", self.as_millis())
        }
    }
}

impl Property for Bytes {
    fn parse(text: &str) -> Result<Self, String> {
        parse_bytes(text).map(Self)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl Property for bool {
    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("`{other}` is neither true nor false")),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Property for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

macro_rules! numbers {
    ($($type:ty),+) => {
        $(impl Property for $type {
            fn parse(text: &str) -> Result<Self, String> {
                let text = text.trim();
                let plain = text.replace('_', "");
                if let Ok(number) = plain.parse() {
                    return Ok(number);
                }
                // JGroups accepts 16k for a number, too.
                let scaled = parse_bytes(text).map_err(|_| format!("`{text}` is not a {}", stringify!($type)))?;
                scaled.to_string().parse().map_err(|_| format!("`{text}` does not fit a {}", stringify!($type)))
            }
            fn show(&self) -> String {
                self.to_string()
            }
        })+
    };
}

numbers!(u16, u32, u64, usize, i32, i64, f64);

impl Property for Option<String> {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
    }
    fn show(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl Property for Option<IpAddr> {
    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| format!("`{text}` is not an IP address")),
        }
    }
    fn show(&self) -> String {
        self.map(|ip| ip.to_string()).unwrap_or_default()
    }
}

impl Property for Vec<HostPort> {
    fn parse(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(|item| {
                let (host, port) = item
                    .strip_suffix(']')
                    .and_then(|item| item.rsplit_once('['))
                    .or_else(|| item.rsplit_once(':'))
                    .ok_or_else(|| format!("`{item}` is not of the form host[port]"))?;
                let port = port.parse().map_err(|_| format!("`{port}` in `{item}` is not a port"))?;
                Ok(HostPort { host: host.trim_matches(['[', ']']).to_owned(), port })
            })
            .collect()
    }
    fn show(&self) -> String {
        self.iter().map(|host| format!("{}[{}]", host.host, host.port)).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_default_to_milliseconds() {
        assert_eq!(parse_duration("300"), Ok(Duration::from_millis(300)));
        assert_eq!(parse_duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(
            parse_duration("2 years"),
            Err("`years` is not a unit of time; the units are ms, s, m, h, d".into())
        );
        assert_eq!(Duration::from_millis(1500).show(), "1500ms");
    }

    #[test]
    fn sizes_are_decimal() {
        assert_eq!(parse_bytes("60K"), Ok(60_000));
        assert_eq!(parse_bytes("64KiB"), Ok(64_000));
        assert_eq!(parse_bytes("2M"), Ok(2_000_000));
        assert_eq!(<u32 as Property>::parse("16k"), Ok(16_000));
        assert!(parse_bytes("many").is_err());
    }

    #[test]
    fn an_address_is_an_ip_address_or_absent() {
        let parse = <Option<IpAddr> as Property>::parse;
        assert_eq!(parse("::1"), Ok(Some(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST))));
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("SITE_LOCAL"), Err("`SITE_LOCAL` is not an IP address".to_owned()));
    }

    #[test]
    fn hosts_are_lists() {
        let hosts = <Vec<HostPort> as Property>::parse("localhost[7800], 10.0.0.1[7801]").unwrap();
        assert_eq!(hosts.show(), "localhost[7800],10.0.0.1[7801]");
        assert!(<Vec<HostPort> as Property>::parse("localhost").is_err());
    }
}
