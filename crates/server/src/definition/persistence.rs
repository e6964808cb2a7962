//! `persistence`: what a server keeps of a cache in files, for the time after all servers have ended.
//!
//! There is one kind of store, whatever Infinispan calls it, and where its files are is the server's business.

use consort_cache::{CacheConfig, CacheMode, Durability, Persistence, WriteBehind};

use super::Result;
use super::tree::{Element, refused};
use super::values::{flag, number, span};

/// What Infinispan calls stores in files.
const FILE_STORES: [&str; 3] = ["file-store", "single-file-store", "soft-index-file-store"];

/// A store.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct StoreSettings {
    /// It has only what memory has no room for.
    pub(super) is_passive: bool,
    pub(super) is_preloaded: bool,
    pub(super) is_purged: bool,
    /// What is acknowledged is safe also from a power failure.
    pub(super) is_on_disk: bool,
    /// So many changes may wait for it, if they may.
    pub(super) behind: Option<usize>,
}

impl StoreSettings {
    /// The same as the cache is opened with it.
    pub(crate) fn apply(&self, mut persistence: Persistence) -> Persistence {
        if self.is_on_disk {
            persistence = persistence.durability(Durability::Disk);
        }
        if self.is_passive {
            persistence = persistence.passivation();
        }
        if self.is_preloaded {
            persistence = persistence.preload();
        }
        if self.is_purged {
            persistence = persistence.purge_on_start();
        }
        match self.behind {
            None => persistence,
            Some(changes_max) => {
                persistence.write_behind(WriteBehind { changes_max, ..WriteBehind::default() })
            }
        }
    }
}

/// Reads the element.
pub(super) fn read(element: &Element, config: &CacheConfig) -> Result<Option<StoreSettings>> {
    let mut is_passive = false;
    for (attribute, value) in &element.attributes {
        match &attribute[..] {
            "passivation" => is_passive = flag(element, attribute, value)?,
            // A store that fails is told with the write that fails.
            "availability-interval" => drop(span(element, attribute, value)?),
            "connection-attempts" => drop(number::<i32>(element, attribute, value)?),
            other => return Err(element.unknown(other)),
        }
    }
    let store = match &element.children[..] {
        [] => return Ok(None),
        [store] if FILE_STORES.contains(&&store.name[..]) => store,
        [_, second, ..] => {
            return Err(refused(&format!("a second store, {}", second.name), "a cache has one"));
        }
        [other] => {
            let why = "what is kept is kept in files of each server, by file-store";
            return Err(refused(&format!("{} of persistence", other.name), why));
        }
    };
    if config.mode == CacheMode::Invalidation {
        let why = "nobody knows what was written while a server was away";
        return Err(refused("persistence of invalidation-cache", why));
    }
    let mut settings = StoreSettings { is_passive, ..StoreSettings::default() };
    read_store(store, &mut settings)?;
    if settings.is_passive && settings.is_preloaded {
        let why = "with passivation the store has only what memory has no room for";
        return Err(store.refused("preload", "true", why));
    }
    Ok(Some(settings))
}

fn read_store(store: &Element, settings: &mut StoreSettings) -> Result<()> {
    store.check_children(&["index", "data", "write-behind"])?;
    for (attribute, value) in &store.attributes {
        // What may be said only in one way.
        let only = |is: bool, why: &str| match flag(store, attribute, value)? {
            value if value == is => Ok(()),
            _ => Err(store.refused(attribute, value, why)),
        };
        match &attribute[..] {
            "preload" => settings.is_preloaded = flag(store, attribute, value)?,
            "purge" => settings.is_purged = flag(store, attribute, value)?,
            "shared" => only(false, "each server has files of its own")?,
            "transactional" => only(false, "files are no part of a transaction")?,
            "read-only" => only(false, "the store has what the cache has")?,
            "write-only" => only(false, "the store is read when servers begin again")?,
            "path" | "relative-to" => return Err(elsewhere(store, attribute, value)),
            "segmented" => drop(flag(store, attribute, value)?),
            // How files are written and read changes nothing for clients; Infinispan hears the last one no more itself.
            "max-batch-size" | "open-files-limit" | "compaction-threshold" | "max-entries" => {
                number::<f64>(store, attribute, value)?;
            }
            // Of a store in a configuration with several of them.
            "name" | "fetch-state" => {}
            other => return Err(store.unknown(other)),
        }
    }
    for child in &store.children {
        child.check_children(&[])?;
        if child.name == "write-behind" {
            settings.behind = Some(read_behind(child)?);
            continue;
        }
        for (attribute, value) in &child.attributes {
            match &attribute[..] {
                "path" => return Err(elsewhere(child, attribute, value)),
                "sync-writes" if child.name == "data" => {
                    settings.is_on_disk = flag(child, attribute, value)?;
                }
                "max-file-size" if child.name == "data" => drop(number::<i64>(child, attribute, value)?),
                "segments" | "max-queue-length" | "min-node-size" | "max-node-size"
                    if child.name == "index" =>
                {
                    number::<i64>(child, attribute, value)?;
                }
                other => return Err(child.unknown(other)),
            }
        }
    }
    Ok(())
}

fn read_behind(element: &Element) -> Result<usize> {
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
                let why = "writes are told when a store takes nothing any more";
                return Err(element.refused(attribute, value, why));
            }
            "fail-silently" => {}
            other => return Err(element.unknown(other)),
        }
    }
    Ok(changes_max)
}

fn elsewhere(element: &Element, attribute: &str, value: &str) -> super::DefinitionError {
    element.refused(attribute, value, "each server keeps its files in its own directory for data (--data)")
}

#[cfg(test)]
mod tests {
    use super::super::from_text;
    use super::*;

    fn of(text: &str) -> Result<Option<StoreSettings>> {
        from_text("c", text).map(|definition| definition.store)
    }

    #[test]
    fn stores_in_files_are_read_in_each_form() {
        let settings = StoreSettings {
            is_passive: false,
            is_preloaded: true,
            is_purged: true,
            is_on_disk: true,
            behind: Some(100),
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
            assert_eq!(of(text), Ok(Some(settings.clone())), "{text}");
        }
    }

    #[test]
    fn whatever_a_store_in_files_is_called_it_is_the_same() {
        for store in FILE_STORES {
            let text = format!(
                "<local-cache><persistence passivation=\"true\"><{store}/></persistence></local-cache>"
            );
            let settings = StoreSettings { is_passive: true, ..StoreSettings::default() };
            assert_eq!(of(&text), Ok(Some(settings)), "{store}");
        }
        assert_eq!(of("<local-cache><persistence/></local-cache>"), Ok(None));
    }

    #[test]
    fn what_a_store_cannot_be_is_refused_and_why_is_said() {
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
            let error =
                of(&format!("<local-cache><persistence>{store}</persistence></local-cache>")).unwrap_err();
            assert!(error.to_string().contains(why), "{store}: {error}");
        }
        for text in [
            r#"{"invalidation-cache": {"persistence": {"file-store": {}}}}"#,
            r#"{"local-cache": {"persistence": {"passivation": true, "file-store": {"preload": true}}}}"#,
            r#"{"local-cache": {"persistence": {"mine": true, "file-store": {}}}}"#,
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
