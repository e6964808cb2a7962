//! The lists of sites in the header of RELAY2 and RELAY3.

use bytes::BufMut;

use super::primitives::{Reader, Result, WireError, put_string};

/// The most sites of a list.
pub const SITES_MAX: usize = 1_000;

/// The most bytes of the names of a list: those of an earlier site master's list, and of the sites that the next one adds.
pub const SITE_LIST_BYTES_MAX: usize = 128 << 10;

pub(super) fn put_sites(out: &mut impl BufMut, sites: &[Option<String>]) {
    out.put_i32(sites.len() as i32);
    sites.iter().for_each(|site| put_string(out, site.as_deref()));
}

pub(super) fn read_sites(reader: &mut Reader<'_>) -> Result<Vec<Option<String>>> {
    let refused = |what, value| Err(WireError::BadValue { what, value: value as i64 });
    let count = reader.count("number of sites", 1)?;
    if count > SITES_MAX {
        return refused("number of sites", count);
    }
    let mut bytes = 0;
    let mut sites = Vec::with_capacity(count);
    for _ in 0..count {
        let site = reader.string("site")?;
        bytes += site.as_ref().map_or(0, String::len);
        if bytes > SITE_LIST_BYTES_MAX {
            return refused("bytes of sites", bytes);
        }
        sites.push(site);
    }
    Ok(sites)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    #[test]
    fn lists_beyond_their_number_or_bytes_are_refused() {
        let read = |sites: &[Option<String>]| {
            let mut out = BytesMut::new();
            put_sites(&mut out, sites);
            read_sites(&mut Reader::new(&out.freeze()))
        };
        let of = |bytes: usize, count: usize| vec![Some("x".repeat(bytes)); count];
        for sites in [vec![None], of(1, SITES_MAX), of(SITE_LIST_BYTES_MAX / 128, 128)] {
            assert_eq!(read(&sites), Ok(sites));
        }
        let what = |sites: &[Option<String>]| match read(sites) {
            Err(WireError::BadValue { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(&of(1, SITES_MAX + 1)), "number of sites");
        assert_eq!(what(&of(SITE_LIST_BYTES_MAX / 128 + 1, 128)), "bytes of sites");
    }
}
