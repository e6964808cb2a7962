//! The element `persistence`. All of Infinispan's names mean one kind of store, in a directory that the server chooses.

use consort_cache::{CacheConfig, CacheMode, Durability, Persistence, WriteBehind};

use super::tree::{Element, refused};
use super::values::{flag, number};
use super::{FILE_STORES, Result, without_effect};

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct StoreSettings {
    /// Only evicted entries are in the store.
    pub(super) is_passivating: bool,
    pub(super) is_preloaded: bool,
    pub(super) is_purged: bool,
    /// Acknowledged writes survive a power failure.
    pub(super) is_synced: bool,
    /// The most changes that may wait for the store (write-behind).
    pub(super) write_behind: Option<usize>,
}

impl StoreSettings {
    pub(crate) fn apply(&self, mut persistence: Persistence) -> Persistence {
        if self.is_synced {
            persistence = persistence.durability(Durability::Disk);
        }
        if self.is_passivating {
            persistence = persistence.passivation();
        }
        if self.is_preloaded {
            persistence = persistence.preload();
        }
        if self.is_purged {
            persistence = persistence.purge_on_start();
        }
        match self.write_behind {
            None => persistence,
            Some(changes_max) => {
                persistence.write_behind(WriteBehind { changes_max, ..WriteBehind::default() })
            }
        }
    }
}

pub(super) fn read(element: &Element, config: &CacheConfig) -> Result<Option<StoreSettings>> {
    let mut is_passivating = false;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "passivation" => is_passivating = flag(element, attribute, value)?,
            other => without_effect::accept(element, other, value)?,
        }
    }
    let store = match &element.children[..] {
        [] => return Ok(None),
        [store] if FILE_STORES.contains(&&store.name[..]) => store,
        [_, second, ..] => {
            return Err(refused(&format!("a second store, {}", second.name), "a cache has one"));
        }
        [other] => {
            let why = "entries are stored in files of each server; use file-store";
            return Err(refused(&format!("{} of persistence", other.name), why));
        }
    };
    if config.mode == CacheMode::Invalidation {
        let why = "writes that a server missed while it was stopped are unknown";
        return Err(refused("persistence of invalidation-cache", why));
    }
    let mut settings = StoreSettings { is_passivating, ..StoreSettings::default() };
    read_store(store, &mut settings)?;
    if settings.is_passivating && settings.is_preloaded {
        let why = "with passivation the store has only entries that were evicted from memory";
        return Err(store.refused("preload", "true", why));
    }
    Ok(Some(settings))
}

fn read_store(store: &Element, settings: &mut StoreSettings) -> Result<()> {
    store.check_children(&["index", "data", "write-behind"])?;
    for (attribute, value) in &store.attributes {
        // Accepts a flag with only this value.
        let only = |allowed: bool, why: &str| match flag(store, attribute, value)? {
            value if value == allowed => Ok(()),
            _ => Err(store.refused(attribute, value, why)),
        };
        match &attribute[..] {
            "preload" => settings.is_preloaded = flag(store, attribute, value)?,
            "purge" => settings.is_purged = flag(store, attribute, value)?,
            "shared" => only(false, "each server has files of its own")?,
            "transactional" => only(false, "the store takes no part in transactions")?,
            "read-only" => only(false, "the store follows the cache")?,
            "write-only" => only(false, "the store is read when servers restart")?,
            "path" | "relative-to" => return Err(refuse_path(store, attribute, value)),
            other => without_effect::accept(store, other, value)?,
        }
    }
    for child in &store.children {
        child.check_children(&[])?;
        if child.name == "write-behind" {
            settings.write_behind = Some(read_write_behind(child)?);
            continue;
        }
        for (attribute, value) in &child.attributes {
            match &attribute[..] {
                "path" => return Err(refuse_path(child, attribute, value)),
                "sync-writes" if child.name == "data" => {
                    settings.is_synced = flag(child, attribute, value)?;
                }
                other => without_effect::accept(child, other, value)?,
            }
        }
    }
    Ok(())
}

fn read_write_behind(element: &Element) -> Result<usize> {
    let mut changes_max = WriteBehind::default().changes_max;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "modification-queue-size" => {
                changes_max = number(element, attribute, value)?;
                if changes_max == 0 {
                    return Err(element.invalid(attribute, value));
                }
            }
            "fail-silently" if flag(element, attribute, value)? => {
                let why = "writes fail when the store fails";
                return Err(element.refused(attribute, value, why));
            }
            "fail-silently" => {}
            other => without_effect::accept(element, other, value)?,
        }
    }
    Ok(changes_max)
}

fn refuse_path(element: &Element, attribute: &str, value: &str) -> super::DefinitionError {
    element.refused(attribute, value, "each server stores its files in its own data directory (--data)")
}

#[cfg(test)]
mod tests {
    use super::super::from_text;
    use super::*;

    fn parsed(text: &str) -> Result<Option<StoreSettings>> {
        from_text("c", text).map(|definition| definition.store)
    }

    #[test]
    fn stores_in_files_are_read_in_each_form() {
        let settings = StoreSettings {
            is_passivating: false,
            is_preloaded: true,
            is_purged: true,
            is_synced: true,
            write_behind: Some(100),
        };
        for text in [
            r#"<distributed-cache><persistence passivation="false" availability-interval="30s">
               <file-store preload="true" purge="true" shared="false" segmented="true" max-batch-size="10">
               <index segments="3"/><data sync-writes="true" max-file-size="100"/>
               <write-behind modification-queue-size="100" fail-silently="false"/>
               </file-store></persistence></distributed-cache>"#,
            r#"{"distributed-cache": {"persistence": {"passivation": false, "file-store": {"preload": true,
                "purge": "true", "data": {"sync-writes": true}, "write-behind": {"modification-queue-size": 100}}}}}"#,
            "distributedCache:\n  persistence:\n    fileStore:\n      preload: true\n      purge: true\n      data:\n        \
             syncWrites: true\n      writeBehind:\n        modificationQueueSize: 100\n",
        ] {
            assert_eq!(parsed(text), Ok(Some(settings.clone())), "{text}");
        }
    }

    #[test]
    fn all_names_of_file_stores_mean_the_same_store() {
        for store in FILE_STORES {
            let text = format!(
                "<local-cache><persistence passivation=\"true\"><{store}/></persistence></local-cache>"
            );
            let settings = StoreSettings { is_passivating: true, ..StoreSettings::default() };
            assert_eq!(parsed(&text), Ok(Some(settings)), "{store}");
        }
        assert_eq!(parsed("<local-cache><persistence/></local-cache>"), Ok(None));
    }

    #[test]
    fn unsupported_store_setting_is_refused_with_its_reason() {
        for (store, why) in [
            (r#"<file-store shared="true"/>"#, "shared of file-store cannot be true"),
            (r#"<file-store path="/tmp/x"/>"#, "--data"),
            (r#"<file-store><data path="/tmp/x"/></file-store>"#, "path of data"),
            (r#"<file-store read-only="true"/>"#, "read-only"),
            (r#"<file-store write-only="true"/>"#, "write-only"),
            (r#"<file-store transactional="true"/>"#, "transactional"),
            (r#"<file-store mine="true"/>"#, "mine of file-store"),
            (r#"<file-store preload="maybe"/>"#, "preload of file-store cannot be maybe"),
            (r#"<file-store><property name="x"/></file-store>"#, "property of file-store"),
            (r#"<file-store><index mine="x"/></file-store>"#, "mine of index"),
            (r#"<file-store><write-behind modification-queue-size="0"/></file-store>"#, "cannot be 0"),
            (r#"<file-store><write-behind fail-silently="true"/></file-store>"#, "fail-silently"),
            ("<file-store/><file-store/>", "a second store"),
            ("<rocksdb-store/>", "rocksdb-store of persistence"),
        ] {
            let error = parsed(&format!("<local-cache><persistence>{store}</persistence></local-cache>"))
                .unwrap_err();
            assert!(error.to_string().contains(why), "{store}: {error}");
        }
        for text in [
            r#"{"invalidation-cache": {"persistence": {"file-store": {}}}}"#,
            r#"{"local-cache": {"persistence": {"passivation": true, "file-store": {"preload": true}}}}"#,
            r#"{"local-cache": {"persistence": {"mine": true, "file-store": {}}}}"#,
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
