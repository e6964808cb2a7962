//! The space that a build needs: a full disk shows as a failed linker, and names neither the disk nor the cause.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::claims::root;
use crate::steps::Outcome;

/// What `target` of a clean clone holds after all steps, with room for temporary files.
const NEEDED: u64 = 16 << 30;

/// Fails if the disk has less space than the steps still need, and names both figures.
pub(crate) fn run() -> Outcome {
    let target = root().join("target");
    // `df` needs a directory that exists.
    if let Err(error) = fs::create_dir_all(&target) {
        return Outcome::Failed(format!("{}: {error}", target.display()));
    }
    let (free, present) = match (free_space(&target), size_of(&target)) {
        (Ok(free), Ok(present)) => (free, present),
        (Err(error), _) | (_, Err(error)) => return Outcome::Failed(error),
    };
    println!("target holds {}, the disk has {} free", gigabytes(present), gigabytes(free));
    missing_space(free, present).map_or(Outcome::Passed, Outcome::Failed)
}

fn missing_space(free: u64, present: u64) -> Option<String> {
    let needed = NEEDED.saturating_sub(present);
    (free < needed).then(|| {
        format!(
            "the disk of `target` has {} free, and the steps need {} more: free some space, or make `target` a link to a directory on another disk",
            gigabytes(free),
            gigabytes(needed)
        )
    })
}

fn gigabytes(bytes: u64) -> String {
    format!("{}.{} GiB", bytes >> 30, ((bytes % (1 << 30)) * 10) >> 30)
}

fn free_space(directory: &Path) -> Result<u64, String> {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(directory).output();
    let output = output.map_err(|error| format!("df: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bytes = text.lines().nth(1).and_then(|line| line.trim().parse().ok());
    bytes.ok_or_else(|| {
        format!("df printed no number of bytes: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

fn size_of(directory: &Path) -> Result<u64, String> {
    let output = Command::new("du").args(["-s", "-B1"]).arg(directory).output();
    let output = output.map_err(|error| format!("du: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bytes = text.split_whitespace().next().and_then(|word| word.parse().ok());
    bytes.ok_or_else(|| {
        format!("du printed no number of bytes: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

#[cfg(test)]
mod tests {
    use super::{NEEDED, gigabytes, missing_space};

    #[test]
    fn too_little_space_is_named_with_both_figures() {
        assert_eq!(missing_space(NEEDED, 0), None);
        assert_eq!(missing_space(0, NEEDED), None);
        let text = missing_space(3 << 30, 1 << 30).expect("3 GiB are too few");
        assert!(text.contains("has 3.0 GiB free") && text.contains("need 15.0 GiB more"), "{text}");
        assert_eq!(gigabytes(3 << 29), "1.5 GiB");
    }
}
