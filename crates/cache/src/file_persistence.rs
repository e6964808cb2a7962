//! Stores in a manager's file: `<persistence>` with a `<file-store>`.

use consort_conf::{ConfigError, Node, Tree};
use consort_group::config::parse_bytes;
use consort_store::{Durability, FileStoreConfig, Recover};

use crate::file_attributes::{leaf, one_of, parsed, required, whole};
use crate::persistence::{Persistence, WriteBehind};

const BOOLEANS: &[(&str, bool)] = &[("true", true), ("false", false)];

const DURABILITIES: &[(&str, Durability)] = &[("true", Durability::Disk), ("false", Durability::Process)];

const RECOVER: &[(&str, Recover)] = &[("REFUSE", Recover::Refuse), ("SKIP_CORRUPT", Recover::SkipCorrupt)];

const OF_STORE: &[&str] =
    &["path", "preload", "purge", "sync-writes", "max-file-size", "compaction-threshold", "when-damaged"];

/// Reads `<persistence passivation="…"><file-store path="…">…`. The directory is a subdirectory of `path` with the cache's name,
/// so that caches of one template have one each.
pub(crate) fn read_persistence(tree: &Tree, node: &Node) -> Result<Persistence, ConfigError> {
    tree.check_attributes(node, &["passivation"])?;
    let [store] = &node.children[..] else {
        return Err(tree.wrong(node.position, "<persistence> has one <file-store>"));
    };
    if store.name != "file-store" {
        return Err(tree.unknown_element(node, store, &["file-store"]));
    }
    tree.check_attributes(store, OF_STORE)?;
    let flag = |node: &Node, name: &str| {
        parsed(tree, node, name, |text| one_of(text, BOOLEANS)).map(Option::unwrap_or_default)
    };
    let (is_passive, is_preloaded) = (flag(node, "passivation")?, flag(store, "preload")?);
    if is_passive && is_preloaded {
        let what = "preload needs passivation to be off: with it, the store has only entries that memory does not have";
        return Err(tree.wrong(store.position, what));
    }
    let mut files = FileStoreConfig::default();
    if let Some(durability) = parsed(tree, store, "sync-writes", |text| one_of(text, DURABILITIES))? {
        files.durability = durability;
    }
    if let Some(bytes) = parsed(tree, store, "max-file-size", parse_bytes)? {
        files.file_bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    if let Some(share) = parsed(tree, store, "compaction-threshold", share)? {
        files.dead_share_max = share;
    }
    if let Some(recover) = parsed(tree, store, "when-damaged", |text| one_of(text, RECOVER))? {
        files.recover = recover;
    }
    let mut persistence = Persistence::within(required(tree, store, "path")?).files(files);
    if is_passive {
        persistence = persistence.passivation();
    }
    if is_preloaded {
        persistence = persistence.preload();
    }
    if flag(store, "purge")? {
        persistence = persistence.purge_on_start();
    }
    match &store.children[..] {
        [] => Ok(persistence),
        [other, ..] if other.name != "write-behind" => {
            Err(tree.unknown_element(store, other, &["write-behind"]))
        }
        [_, second, ..] => Err(tree.wrong(second.position, "a second child of <file-store>")),
        [behind] => {
            tree.check_attributes(behind, &["modification-queue-size", "max-size"])?;
            leaf(tree, behind)?;
            let mut bounds = WriteBehind::default();
            if let Some(changes) = parsed(tree, behind, "modification-queue-size", whole::<usize>)? {
                bounds.changes_max = changes;
            }
            if let Some(bytes) = parsed(tree, behind, "max-size", parse_bytes)? {
                bounds.bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
            Ok(persistence.write_behind(bounds))
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err(format!("`{text}` is not between 0 and 1")),
    }
}
