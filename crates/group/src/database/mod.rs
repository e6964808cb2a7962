//! Rows of members in a database (JDBC_PING2): settings, statements, and the requests that the driver carries out.

mod jdbc_url;
mod statement;

use std::fmt;
use std::net::IpAddr;

pub use jdbc_url::{JdbcUrl, TlsMode};
pub use statement::SqlStatement;

use crate::config::Password;
use crate::{Address, PhysAddr, PingData, Uuid};

/// A database, and the statements that read and change the rows of members.
#[derive(Clone, PartialEq, Debug)]
pub struct DatabaseSettings {
    /// Servers, database and TLS.
    pub url: JdbcUrl,
    /// The user, unless the URL has one.
    pub user: String,
    /// The password, unless the URL has one.
    pub password: Password,
    /// Executed at the first connection, and again once the table is missing. Its failure is not fatal.
    pub initialize: String,
    /// Creates a stored procedure at the first connection. Its failure is not fatal.
    pub create_procedure: String,
    /// Inserts a row: address, name, cluster, physical address, coordinator.
    pub insert: SqlStatement,
    /// Replaces a row in place of `delete` and `insert`, with the parameters of `insert`.
    pub call: Option<SqlStatement>,
    /// Deletes the row of an address.
    pub delete: SqlStatement,
    /// Returns address, name, physical address and coordinator of a cluster's rows.
    pub select: SqlStatement,
}

/// A member's row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberRow {
    /// The address, as `uuid://01020304-0506-0708-1112-131415161718`.
    pub address: String,
    /// The logical name.
    pub name: Option<String>,
    /// The physical address, as `host:port`.
    pub ip: String,
    /// Whether it is the coordinator.
    pub is_coordinator: bool,
}

impl MemberRow {
    /// Creates a member's row. `None`: the member has no physical address.
    pub fn new(member: &Address, name: Option<&str>, phys: PhysAddr, is_coordinator: bool) -> Option<Self> {
        let ip = format!("{}:{}", phys.ip?, phys.port);
        Some(Self { address: address_text(member), name: name.map(str::to_owned), ip, is_coordinator })
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.address.len() + self.name.as_ref().map_or(0, String::len) + self.ip.len()
    }

    /// Returns the member's data. `None`: it has no IP address. The sender is the physical address if the row's address
    /// is not a UUID.
    pub fn data(&self) -> Option<PingData> {
        let (host, port) = self.ip.trim().rsplit_once(':')?;
        let host = host.trim_matches(['[', ']']).split('%').next().unwrap_or_default();
        let ip: IpAddr = host.parse().ok()?;
        let phys = PhysAddr::new(ip, port.parse().ok()?);
        Some(PingData {
            sender: parse_address(&self.address).unwrap_or(Address::Ip(phys)),
            is_server: true,
            is_coordinator: self.is_coordinator,
            name: self.name.as_deref().map(Into::into),
            phys: Some(phys),
            wanted: None,
        })
    }
}

/// Returns the text of an address in rows, as JGroups writes it.
pub fn address_text(address: &Address) -> String {
    match (address.uuid(), address.site()) {
        (Some(uuid), Some(site)) => {
            format!("{SITE_PREFIX}{uuid}:{}:{site}", address.site_member_name().unwrap_or("null"))
        }
        (Some(uuid), None) => format!("uuid://{uuid}"),
        (None, _) => format!("ip://{address}"),
    }
}

/// Begins the address of a member of a site, such as a bridge of RELAY2.
const SITE_PREFIX: &str = "site-addr://";

fn parse_address(text: &str) -> Option<Address> {
    let text = text.trim();
    if let Some(text) = text.strip_prefix(SITE_PREFIX) {
        let mut parts = text.splitn(3, ':');
        let (uuid, name, site) = (parse_uuid(parts.next()?)?, parts.next()?, parts.next()?);
        return Some(Address::Uuid(uuid).in_site(site, Some(name)));
    }
    parse_uuid(text.strip_prefix("uuid://")?).map(Address::Uuid)
}

fn parse_uuid(text: &str) -> Option<Uuid> {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == 32)?;
    Some(Uuid { most: (value >> 64) as u64, least: value as u64 })
}

/// A request on the rows of members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowRequest {
    /// Read the rows of a cluster. Outcome: `Rows` or `Failed`.
    Read {
        /// The cluster.
        cluster: String,
    },
    /// Replace rows, all or none of them. Outcome: `Done` or `Failed`.
    Write {
        /// The cluster.
        cluster: String,
        /// The rows.
        rows: Vec<MemberRow>,
    },
    /// Remove the row of an address. Outcome: `Done` or `Failed`.
    Remove {
        /// The address' text.
        address: String,
    },
    /// Remove the rows of a cluster except these. Outcome: `Done` or `Failed`.
    RemoveOthers {
        /// The cluster.
        cluster: String,
        /// The texts of the addresses whose rows stay.
        kept: Vec<String>,
    },
}

impl RowRequest {
    /// Returns whether the request leaves the rows as they are.
    pub fn changes_nothing(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// Returns the bytes of the rows that the request writes, and of the addresses that it keeps.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Write { rows, .. } => rows.iter().map(MemberRow::bytes).sum(),
            Self::RemoveOthers { kept, .. } => kept.iter().map(String::len).sum(),
            Self::Read { .. } | Self::Remove { .. } => 0,
        }
    }
}

impl fmt::Display for RowRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read { .. } => "read the rows of members",
            Self::Write { .. } => "write rows of members",
            Self::Remove { .. } | Self::RemoveOthers { .. } => "remove rows of members",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "uuid://01020304-0506-0708-1112-131415161718";

    fn row(address: &str, ip: &str) -> MemberRow {
        MemberRow { address: address.to_owned(), name: None, ip: ip.to_owned(), is_coordinator: true }
    }

    /// JGroups 5.5.7 writes the same texts (`Util.addressToString`, `IpAddress.toString`).
    #[test]
    fn row_has_jgroups_texts_and_is_read_again() {
        let member = Address::Uuid(Uuid { most: 0x0102_0304_0506_0708, least: 0x1112_1314_1516_1718 });
        for ip in ["127.0.0.1:7800", "::1:7800"] {
            let (host, _) = ip.rsplit_once(':').unwrap();
            let phys = PhysAddr::new(host.parse().unwrap(), 7800);
            let written = MemberRow::new(&member, Some("A"), phys, true).unwrap();
            assert_eq!((&*written.address, &*written.ip), (UUID, ip));
            let data = written.data().unwrap();
            assert_eq!((data.sender, data.phys), (member.clone(), Some(phys)));
            assert!(data.is_coordinator && data.name.as_deref() == Some("A"));
        }
    }

    #[test]
    fn row_whose_address_is_no_uuid_still_names_a_host_and_one_without_an_ip_address_names_none() {
        let phys = PhysAddr::new([10, 0, 0, 1].into(), 7800);
        let site = "site-addr://01020304-0506-0708-1112-131415161718:_A:lon";
        let sender = row(site, "10.0.0.1:7800").data().unwrap().sender;
        assert_eq!((sender.site(), &*sender.to_string()), (Some("lon"), "_A:lon"));
        assert_eq!(address_text(&sender), site);
        for address in
            ["site-addr://1-2:A:lon", "site-addr://", "ip://10.0.0.1:7800", "other://a.B/c", "uuid://1-2", ""]
        {
            assert_eq!(row(address, "10.0.0.1:7800").data().unwrap().sender, Address::Ip(phys), "{address}");
        }
        let long = "0:0:0:0:0:0:0:1:7800";
        assert_eq!(row(UUID, long).data().unwrap().phys, Some(PhysAddr::new("::1".parse().unwrap(), 7800)));
        for ip in ["", "10.0.0.1", "10.0.0.1:", "10.0.0.1:70000", "host:7800"] {
            assert_eq!(row(UUID, ip).data(), None, "{ip}");
        }
        assert_eq!(MemberRow::new(&Address::Ip(phys), None, PhysAddr { ip: None, ..phys }, false), None);
    }
}
