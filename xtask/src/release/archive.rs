//! Archives whose bytes depend on names and contents only.

use std::path::Path;
use std::process::Command;

use crate::steps::status;

/// Packs a folder's content below `prefix`. Owner is root, modes are 644 and 755, every time is `time`, in seconds since 1970.
pub(super) fn make(folder: &Path, prefix: &str, output: &Path, time: &str) -> Result<(), String> {
    pack(folder, prefix, output, time, &["--use-compress-program=gzip -9 -n"])
}

/// As [`make`], without compression and prefix, for files that are compressed.
pub(super) fn make_plain(folder: &Path, output: &Path, time: &str) -> Result<(), String> {
    pack(folder, ".", output, time, &[])
}

fn pack(folder: &Path, prefix: &str, output: &Path, time: &str, options: &[&str]) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--sort=name", "--owner=root:0", "--group=root:0"]);
    tar.arg("--mode=u+rwX,go+rX,go-w").args(options);
    // `.` becomes the prefix, and nothing else does: names of links stay.
    tar.arg(format!("--mtime=@{time}")).arg(format!("--transform=flags=r;s|^\\.|{prefix}|"));
    tar.arg("--file").arg(output).arg("--directory").arg(folder).arg(".");
    super::text_of(status(tar))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn archives_of_equal_folders_have_equal_bytes() {
        let folder = std::env::temp_dir().join(format!("consort-archive-{}", std::process::id()));
        let archives = [0o600, 0o644].map(|mode| {
            let from = folder.join(format!("{mode:o}"));
            fs::create_dir_all(from.join("b")).expect("a folder");
            for name in ["c", "b/a", "a"] {
                fs::write(from.join(name), name).expect("a file");
                fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
            }
            let output = folder.join(format!("{mode:o}.tar.gz"));
            make(&from, "p-1", &output, "1700000000").expect("an archive");
            fs::read(output).expect("the archive")
        });
        let list = Command::new("tar").arg("-tzf").arg(folder.join("600.tar.gz")).output().expect("tar");
        let _ = fs::remove_dir_all(folder);
        assert_eq!(String::from_utf8_lossy(&list.stdout), "p-1/\np-1/a\np-1/b/\np-1/b/a\np-1/c\n");
        assert_eq!(archives[0], archives[1]);
    }
}
