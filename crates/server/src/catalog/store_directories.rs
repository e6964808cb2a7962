//! The directories of caches with a store that clients have created.
//!
//! A recreated cache has another one on every server, so that a server that was unreachable meanwhile does not use the old files
//! for it.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use crate::catalog::data_directory::Data;
use crate::limits::NAME_IN_DIRECTORY_MAX;

const CACHES: &str = "caches";

/// Random, the same on all servers.
pub(crate) fn new() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The cache's name is for people, and cannot lead to another directory.
pub(crate) fn directory(data: &Path, cache: &str, place: &str) -> PathBuf {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    let name: String =
        cache.bytes().map(|byte| if is_plain(&byte) { char::from(byte) } else { '~' }).collect();
    let name = &name[..name.len().min(NAME_IN_DIRECTORY_MAX)];
    data.join(CACHES).join(format!("{name}.{place}"))
}

pub(crate) async fn remove(directory: PathBuf) {
    let path = directory.clone();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(path)).await;
    match removed {
        Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(directory = %directory.display(), %error, "cannot remove the files of a removed cache");
        }
        _ => {}
    }
}

/// The directory's cache was removed while this server was unreachable, or its definition was lost. This server cannot know
/// which, and keeps the files.
pub(crate) async fn warn_orphaned_directories(data: &Data, known: BTreeSet<PathBuf>) {
    let parent = data.directory.join(CACHES);
    let left =
        tokio::task::spawn_blocking(move || orphaned_directories(&parent, &known)).await.unwrap_or_default();
    for directory in left {
        let directory = directory.display();
        tracing::warn!(
            %directory,
            "files without a defined cache are kept: their cache was removed while this server was \
             unreachable, or its definition was lost and they are the last copy of its entries"
        );
    }
}

fn orphaned_directories(parent: &Path, known: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| !known.contains(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_of_any_name_has_its_own_directory() {
        let of = |cache: &str| directory(Path::new("/data"), cache, "1f").display().to_string();
        assert_eq!(of("stock-1_a"), "/data/caches/stock-1_a.1f");
        assert_eq!(of("../../etc"), "/data/caches/~~~~~~etc.1f");
        assert_eq!(of("a/b é"), "/data/caches/a~b~~~.1f");
        assert_eq!(of(""), "/data/caches/.1f");
        assert_eq!(of(&"x".repeat(10_000)).len(), "/data/caches/.1f".len() + NAME_IN_DIRECTORY_MAX);
        assert_ne!(new(), new());
    }
}
