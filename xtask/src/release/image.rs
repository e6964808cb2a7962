//! The image of the `Dockerfile`, built by buildah: an archive in OCI's format.

use std::fs;
use std::process::{Command, Stdio};

use super::{Release, archive};
use crate::claims::root;

/// Tools with an argument that has no effect, and the package of each.
const TOOLS: [(&str, &str, &str); 2] =
    [("buildah", "--version", "buildah"), ("mmdebstrap", "--version", "mmdebstrap")];

/// It keeps the base image.
const DIRECTORY: &str = "target/release-image";

/// The script's exit code if Debian's packages cannot be had.
const WITHOUT_PACKAGES: i32 = 3;

/// Removes the base image of an earlier release, whose packages may have known vulnerabilities by now, if a new one can be made.
pub(super) fn remove_base() -> Result<(), String> {
    if obstacle()?.is_some() {
        return Ok(());
    }
    let directory = root().join(DIRECTORY);
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Makes the archive, or returns why it is left out.
pub(super) fn make(release: &Release) -> Result<Option<String>, String> {
    if let Some(reason) = obstacle()? {
        return Ok(Some(reason));
    }
    let directory = root().join(DIRECTORY);
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let layout = directory.join("oci");
    if layout.exists() {
        fs::remove_dir_all(&layout).map_err(|error| format!("{}: {error}", layout.display()))?;
    }
    let mut build = Command::new("bash");
    build.arg(root().join("interop/kubernetes/image.sh")).arg(root()).arg(&release.binary).arg(&directory);
    build.arg(&release.time).arg(format!("oci:{}:localhost/consort:{}", layout.display(), release.version));
    let built = build.stdin(Stdio::null()).output().map_err(|error| format!("image.sh: {error}"))?;
    if built.status.code() == Some(WITHOUT_PACKAGES) {
        let errors = String::from_utf8_lossy(&built.stderr);
        let last = errors.lines().last().unwrap_or_default();
        return Ok(Some(format!("Debian's packages cannot be had: {last}")));
    }
    if !built.status.success() {
        return Err(format!("image.sh: {}", String::from_utf8_lossy(&built.stderr)));
    }
    let name = format!("consort-{}-image-{}.oci.tar", release.version, super::SYSTEM);
    archive::make_plain(&layout, &release.output.join(name), &release.time)?;
    fs::remove_dir_all(&layout).map_err(|error| format!("{}: {error}", layout.display()))?;
    Ok(None)
}

/// Returns why no image can be built here, if so.
pub(super) fn obstacle() -> Result<Option<String>, String> {
    let missing = TOOLS.iter().find(|(tool, argument, _)| !crate::interop::is_there(tool, argument));
    if let Some((tool, _, package)) = missing {
        return Ok(Some(format!("`{tool}` is not installed (Debian's package {package})")));
    }
    Ok((!is_root()?).then(|| "buildah and mmdebstrap need root here".to_owned()))
}

fn is_root() -> Result<bool, String> {
    let id = Command::new("id").arg("-u").output().map_err(|error| format!("id: {error}"))?;
    Ok(id.stdout == b"0\n")
}
