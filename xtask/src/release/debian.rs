//! The Debian package: the command, its completions and manual pages, and a service that starts no server before an operator
//! has named its users.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Release, copy, text_of, write};
use crate::steps::status;

/// Debian's name of the processor.
const ARCHITECTURE: &str = "amd64";

/// The C library of Debian 12, on which releases are built. The binary needs no other library but that of the compiler.
const DEPENDS: &str = "libc6 (>= 2.36), libgcc-s1";

const SERVICE: &str = "[Unit]
Description=Consort, a distributed in-memory data grid
Documentation=man:consort-server(1)
After=network-online.target
Wants=network-online.target
# Without users a server does not listen for other hosts.
ConditionPathExists=/etc/consort/users

[Service]
DynamicUser=yes
StateDirectory=consort
EnvironmentFile=-/etc/default/consort
# The file can be readable by root alone. It is read at the start: restart the service after a change.
LoadCredential=users:/etc/consort/users
ExecStart=/usr/bin/consort server --data /var/lib/consort --users ${CREDENTIALS_DIRECTORY}/users $CONSORT_OPTIONS
LimitNOFILE=65536
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
Restart=on-failure

[Install]
WantedBy=multi-user.target
";

const DEFAULTS: &str =
    "# Options of the service, such as the cluster and the addresses: see consort-server(1).
CONSORT_OPTIONS=\"--cluster consort\"
";

const SUMMARY: &str = "group communication and a distributed in-memory data grid
 Servers for Hot Rod clients, members of JGroups clusters, and tools to measure
 and diagnose them, in one command.";

pub(super) fn package(release: &Release, staging: &Path) -> Result<(), String> {
    let folder = release.output.join("debian");
    copy_tree(staging, &folder.join("usr"))?;
    let pages = folder.join("usr/share/man/man1");
    let mut gzip = Command::new("sh");
    gzip.args(["-c", "exec gzip -9 -n -- *.1"]).current_dir(&pages);
    text_of(status(gzip))?;
    // Debian has license and changelog under other names.
    let documents = folder.join("usr/share/doc/consort");
    let renamed = [("LICENSE", "copyright"), ("CHANGELOG.md", "NEWS.md")];
    for (from, to) in renamed {
        fs::rename(documents.join(from), documents.join(to)).map_err(|error| format!("{from}: {error}"))?;
    }
    write(&folder.join("usr/lib/systemd/system/consort.service"), SERVICE)?;
    write(&folder.join("etc/default/consort"), DEFAULTS)?;
    write(&folder.join("DEBIAN/conffiles"), "/etc/default/consort\n")?;
    write(&folder.join("DEBIAN/control"), control(&release.version, size_of(&folder.join("usr"))?))?;
    let mut modes = Command::new("chmod");
    modes.args(["-R", "u+rwX,go+rX,go-w"]).arg(&folder);
    text_of(status(modes))?;
    let name = format!("consort_{}_{ARCHITECTURE}.deb", release.version);
    let mut build = Command::new("dpkg-deb");
    build.args(["--build", "--root-owner-group"]).arg(&folder).arg(release.output.join(name));
    build.env("SOURCE_DATE_EPOCH", &release.time).stdout(std::process::Stdio::null());
    text_of(status(build))?;
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// `size` is in KiB.
fn control(version: &str, size: u64) -> String {
    format!(
        "Package: consort\nVersion: {version}\nSection: database\nPriority: optional\nArchitecture: {ARCHITECTURE}\n\
         Depends: {DEPENDS}\nInstalled-Size: {size}\nMaintainer: The Consort contributors <consort@consort.invalid>\n\
         Description: {SUMMARY}\n"
    )
}

/// In KiB of content, rounded up for each file: independent of the file system.
fn size_of(folder: &Path) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut size = 0;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        size += if path.is_dir() {
            size_of(&path)?
        } else {
            path.metadata().map_err(failed)?.len().div_ceil(1024)
        };
    }
    Ok(size)
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    for entry in fs::read_dir(from).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else {
            copy(&path, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_has_a_line_for_each_field() {
        let text = control("1.2.3", 40);
        let fields: Vec<&str> =
            text.lines().filter_map(|line| line.split_once(": ")).map(|(name, _)| name).collect();
        assert_eq!(
            fields,
            [
                "Package",
                "Version",
                "Section",
                "Priority",
                "Architecture",
                "Depends",
                "Installed-Size",
                "Maintainer",
                "Description"
            ]
        );
        // The rest of a description is indented.
        assert!(text.lines().skip(9).all(|line| line.starts_with(' ')), "{text}");
    }
}
