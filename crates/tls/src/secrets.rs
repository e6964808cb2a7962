//! Files with secrets.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use zeroize::Zeroizing;

/// Every user can read or write the file. The group may read it, because in Kubernetes a secret's file is the group's.
const EVERYONE: u32 = 0o006;

/// Warns if every user of this host can read or change a file with a secret. The file's reader reports a missing one.
pub fn warn_if_open(file: &Path, what: &'static str) {
    if std::fs::metadata(file).is_ok_and(|metadata| is_open(&metadata)) {
        tracing::warn!(file = %file.display(), "every user of this host can read or change {what}: restrict it with chmod o-rw");
    }
}

/// As [`read_bounded`], for a secret. Warns as [`warn_if_open`].
pub fn read(file: &Path, what: &'static str, limit: usize) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let bytes = read_bounded(file, limit)?;
    warn_if_open(file, what);
    Ok(bytes)
}

/// Reads a file, and at most one byte more than the limit, so that a larger file is noticed.
pub fn read_bounded(file: &Path, limit: usize) -> std::io::Result<Zeroizing<Vec<u8>>> {
    // A buffer that grew would leave copies of a secret.
    let mut bytes = Zeroizing::new(Vec::with_capacity(limit + 1));
    File::open(file)?.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_open(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & EVERYONE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_every_user_can_read_or_change_is_found() {
        let file = std::env::temp_dir().join(format!("consort-secret-{}", std::process::id()));
        std::fs::write(&file, "secret").unwrap();
        for (mode, open) in [(0o600, false), (0o440, false), (0o660, false), (0o644, true), (0o602, true)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_open(&std::fs::metadata(&file).unwrap()), open, "{mode:o}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}
