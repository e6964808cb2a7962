//! Limits of names, addresses and messages of other sites.

use crate::Address;
use crate::wire::{SITE_LIST_BYTES_MAX, SITES_MAX};

/// The most bytes from bridges that may wait in the layers below, per destination. A bridge does not wait for the site, since
/// two sites that wait for each other would stop: beyond the limit its messages are dropped and counted.
pub const INBOUND_BYTES_MAX: u64 = 64 << 20;

/// The most of such bytes for all destinations together, apart from destinations with less than their equal part of it.
pub const INBOUND_TOTAL_MAX: u64 = 256 << 20;

/// The most bytes of the application's headers of a message that comes over a bridge. Credits count payloads only.
pub const INBOUND_HEADERS_MAX: usize = 16 << 10;

/// The most bytes of a site's name.
pub const SITE_NAME_BYTES_MAX: usize = 1_000;

/// The most bytes of the names of all sites to which a site master has routes, because each copy of a multicast has them.
/// Also of the names of all reachable sites, and of all former ones, because announcements have them.
pub const SITE_NAMES_BYTES_MAX: usize = 64 << 10;

/// The most bytes of an address that comes over a bridge, as topologies count it.
pub const ADDRESS_BYTES_MAX: usize = 4 << 10;

/// Returns whether a header may have these sites, so that receivers take it.
pub(super) fn is_within_limits(sites: &[Option<String>]) -> bool {
    let names = sites.iter().flatten();
    sites.len() <= SITES_MAX
        && names.clone().map(String::len).sum::<usize>() <= SITE_LIST_BYTES_MAX
        && names.clone().all(|site| site.len() <= SITE_NAME_BYTES_MAX)
}

/// Returns the bytes of an address as limits count it: 64 and those of its names.
pub(super) fn bytes_of_address(member: &Address) -> usize {
    let entries = if let Address::Ext(ext) = member {
        ext.entries.iter().map(|(key, value)| key.len() + value.len()).sum()
    } else {
        0
    };
    64 + entries + member.site().map_or(0, str::len) + member.site_member_name().map_or(0, str::len)
}
