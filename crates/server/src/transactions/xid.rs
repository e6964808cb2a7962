//! The key of a transaction's record: the client's id.

use bytes::{Buf, BufMut, Bytes};
use consort_hotrod::ops::transaction::Xid;

pub(crate) fn record_key(xid: &Xid) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + 1 + xid.global.len() + xid.branch.len());
    key.put_i32(xid.format);
    key.put_u8(xid.global.len() as u8);
    key.put_slice(&xid.global);
    key.put_slice(&xid.branch);
    key
}

pub(crate) fn xid_from_key(mut key: &[u8]) -> Option<Xid> {
    let (format, global) = (key.try_get_i32().ok()?, key.try_get_u8().ok()?);
    let (global, branch) = key.split_at_checked(global.into())?;
    Some(Xid { format, global: Bytes::copy_from_slice(global), branch: Bytes::copy_from_slice(branch) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_are_read_back() {
        for (global, branch) in [(&b"g"[..], &b"b"[..]), (b"", b""), (&[7; 64], &[9; 64])] {
            let xid = Xid {
                format: -5,
                global: Bytes::copy_from_slice(global),
                branch: Bytes::copy_from_slice(branch),
            };
            assert_eq!(xid_from_key(&record_key(&xid)), Some(xid));
        }
        assert_eq!(xid_from_key(b"\0\0\0\0\x05abc"), None);
        assert_eq!(xid_from_key(b"\0"), None);
    }
}
