//! A manager's file, in Infinispan's XML: the cluster, this member's location, and caches by name. Unknown names are refused,
//! with file, line and the nearest known name.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use consort_conf::{ConfigError, Node, Tree, Variables};
use consort_grid::{
    CacheConfig, CacheMode, CapacityFactor, Flags, Grouping, Lifetime, Limit, Location, MemoryBound,
    MergePolicy, PartitionHandling, TRANSFER_BUDGET, WhenFull,
};
use consort_group::config::{Position, parse_bytes, parse_duration};

use crate::file_attributes::{leaf, one_of, parsed, required, whole};
use crate::file_persistence::read_persistence;
use crate::persistence::Persistence;

pub(crate) const ROOT: &str = "infinispan";

/// The settings of one cache.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    /// Shared by all members.
    pub config: CacheConfig,
    /// This member's relative share.
    pub capacity: CapacityFactor,
    /// Memory limit here; none by default.
    pub memory: Option<MemoryBound>,
    /// The default lifetime of entries.
    pub lifetime: Lifetime,
    /// The default flags of handles.
    pub flags: Flags,
    /// The store here; none by default.
    pub persistence: Option<Persistence>,
}

impl CacheSettings {
    /// Returns a cache's default settings.
    pub fn new(name: &str) -> Self {
        Self::from(CacheConfig::new(name))
    }
}

impl From<CacheConfig> for CacheSettings {
    fn from(config: CacheConfig) -> Self {
        Self {
            config,
            capacity: CapacityFactor::default(),
            memory: None,
            lifetime: Lifetime::FOREVER,
            flags: Flags::NONE,
            persistence: None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ManagerFile {
    pub(crate) source: String,
    pub(crate) stack: String,
    pub(crate) cluster: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) location: Location,
    pub(crate) transfer_budget: u32,
    pub(crate) caches: BTreeMap<String, CacheSettings>,
}

/// Element, element of a template, mode.
const KINDS: &[(&str, &str, CacheMode)] = &[
    ("local-cache", "local-cache-configuration", CacheMode::Local),
    ("replicated-cache", "replicated-cache-configuration", CacheMode::Replicated),
    ("distributed-cache", "distributed-cache-configuration", CacheMode::Distributed { owners: 2 }),
    ("invalidation-cache", "invalidation-cache-configuration", CacheMode::Invalidation),
];

const IN_ROOT: &[&str] = &["jgroups", "cache-container"];
const IN_CONTAINER: &[&str] = &[
    "transport",
    "local-cache",
    "local-cache-configuration",
    "replicated-cache",
    "replicated-cache-configuration",
    "distributed-cache",
    "distributed-cache-configuration",
    "invalidation-cache",
    "invalidation-cache-configuration",
];
const IN_CACHE: &[&str] =
    &["partition-handling", "memory", "expiration", "groups", "persistence", "transaction"];
const TRANSACTION_MODES: &[(&str, bool)] =
    &[("NONE", false), ("BATCH", true), ("NON_XA", true), ("NON_DURABLE_XA", true), ("FULL_XA", true)];
const OF_TRANSPORT: &[&str] =
    &["cluster", "stack", "node-name", "site", "rack", "machine", "transfer-budget"];

const WHEN_SPLIT: &[(&str, PartitionHandling)] = &[
    ("DENY_READ_WRITES", PartitionHandling::DenyReadWrites),
    ("ALLOW_READS", PartitionHandling::AllowReads),
    ("ALLOW_READ_WRITES", PartitionHandling::AllowReadWrites),
];

/// A registered policy is `custom:` and its name.
const MERGE_POLICIES: &[(&str, MergePolicy)] = &[
    ("PREFERRED_ALWAYS", MergePolicy::PreferredAlways),
    ("PREFERRED_NON_NULL", MergePolicy::PreferredNonNull),
    ("REMOVE_ALL", MergePolicy::RemoveAll),
];

const MODES: &[(&str, Flags)] = &[("SYNC", Flags::NONE), ("ASYNC", Flags::ASYNC)];

const WHEN_FULL: &[(&str, WhenFull)] = &[("REMOVE", WhenFull::Remove), ("EXCEPTION", WhenFull::Refuse)];

const GROUPS: &[(&str, Grouping)] = &[("true", Grouping::Tag), ("false", Grouping::None)];

impl ManagerFile {
    pub(crate) fn load(path: &Path, variables: &Variables) -> Result<Self, ConfigError> {
        Self::read(&Tree::load(path, variables)?)
    }

    pub(crate) fn read(tree: &Tree) -> Result<Self, ConfigError> {
        let root = &tree.root;
        if root.name != ROOT {
            return Err(tree.wrong(root.position, format!("<{}> where <{ROOT}> was expected", root.name)));
        }
        tree.check_attributes(root, &[])?;
        let mut stacks: BTreeMap<String, String> = BTreeMap::new();
        let mut container = None;
        for node in &root.children {
            match node.name.as_str() {
                "jgroups" => read_stacks(tree, node, &mut stacks)?,
                "cache-container" if container.is_none() => container = Some(node),
                "cache-container" => {
                    return Err(tree.wrong(node.position, "a second <cache-container>: a manager has one"));
                }
                _ => return Err(tree.unknown_element(root, node, IN_ROOT)),
            }
        }
        let container =
            container.ok_or_else(|| tree.wrong(root.position, "there is no <cache-container>"))?;
        tree.check_attributes(container, &["name"])?;
        let mut file = Self {
            source: tree.file.clone(),
            stack: "tcp.xml".to_owned(),
            cluster: container.get("name").map(|(name, _)| name.to_owned()),
            name: None,
            location: Location::default(),
            transfer_budget: TRANSFER_BUDGET,
            caches: BTreeMap::new(),
        };
        let mut templates: BTreeMap<String, (usize, CacheSettings)> = BTreeMap::new();
        for node in &container.children {
            let name = node.name.as_str();
            if name == "transport" {
                file.read_transport(tree, node, &stacks)?;
            } else if let Some(kind) = KINDS.iter().position(|(_, template, _)| *template == name) {
                let settings = read_cache(tree, node, kind, &templates)?;
                let name = settings.config.name.to_string();
                if templates.insert(name.clone(), (kind, settings)).is_some() {
                    return Err(tree.wrong(node.position, format!("a second template `{name}`")));
                }
            } else if !KINDS.iter().any(|(cache, ..)| *cache == name) {
                return Err(tree.unknown_element(container, node, IN_CONTAINER));
            }
        }
        // Caches may precede their templates.
        for node in &container.children {
            let Some(kind) = KINDS.iter().position(|(cache, ..)| *cache == node.name) else { continue };
            let settings = read_cache(tree, node, kind, &templates)?;
            let name = settings.config.name.to_string();
            if file.caches.insert(name.clone(), settings).is_some() {
                return Err(tree.wrong(node.position, format!("a second cache `{name}`")));
            }
        }
        Ok(file)
    }

    fn read_transport(
        &mut self,
        tree: &Tree,
        node: &Node,
        stacks: &BTreeMap<String, String>,
    ) -> Result<(), ConfigError> {
        tree.check_attributes(node, OF_TRANSPORT)?;
        leaf(tree, node)?;
        let text = |name: &str| node.get(name).map(|(value, _)| value.to_owned());
        self.cluster = text("cluster").or_else(|| self.cluster.take());
        self.name = text("node-name");
        self.location = Location {
            site: text("site").map(Into::into),
            rack: text("rack").map(Into::into),
            machine: text("machine").map(Into::into),
        };
        if let Some(stack) = text("stack") {
            // As in Infinispan, the names of stock stacks may lack `.xml`.
            let stock = format!("{stack}.xml");
            let is_stock = consort_conf::STOCK.iter().any(|(name, _)| *name == stock);
            self.stack = match stacks.get(&stack) {
                Some(path) => path.clone(),
                None if is_stock => stock,
                None => stack,
            };
        }
        if let Some(bytes) = parsed(tree, node, "transfer-budget", parse_bytes)? {
            self.transfer_budget = u32::try_from(bytes).unwrap_or(TRANSFER_BUDGET).min(TRANSFER_BUDGET);
        }
        Ok(())
    }
}

/// Reads `<stack-file name="…" path="…"/>`; the path is relative to the file that names it.
fn read_stacks(tree: &Tree, node: &Node, stacks: &mut BTreeMap<String, String>) -> Result<(), ConfigError> {
    tree.check_attributes(node, &[])?;
    for child in &node.children {
        if child.name != "stack-file" {
            return Err(tree.unknown_element(node, child, &["stack-file"]));
        }
        tree.check_attributes(child, &["name", "path"])?;
        leaf(tree, child)?;
        let (name, path) = (required(tree, child, "name")?, required(tree, child, "path")?);
        let beside = Path::new(&tree.file).parent().map(|directory| directory.join(path));
        let path = beside
            .filter(|beside| beside.exists())
            .map_or_else(|| path.to_owned(), |beside| beside.display().to_string());
        stacks.insert(name.to_owned(), path);
    }
    Ok(())
}

fn read_cache(
    tree: &Tree,
    node: &Node,
    kind: usize,
    templates: &BTreeMap<String, (usize, CacheSettings)>,
) -> Result<CacheSettings, ConfigError> {
    let (_, _, mode) = KINDS[kind];
    tree.check_attributes(
        node,
        match mode {
            CacheMode::Local => &["name", "configuration"],
            CacheMode::Invalidation => &["name", "configuration", "mode"],
            CacheMode::Replicated => &["name", "configuration", "mode", "segments", "capacity-factor"],
            CacheMode::Distributed { .. } => {
                &["name", "configuration", "mode", "owners", "segments", "capacity-factor"]
            }
        },
    )?;
    let name = required(tree, node, "name")?;
    let mut settings = match node.get("configuration") {
        Some((template, position)) => template_of(tree, (template, position), kind, templates)?,
        None => CacheSettings::from(CacheConfig { mode, ..CacheConfig::new(name) }),
    };
    settings.config.name = name.into();
    if let Some(owners) = parsed(tree, node, "owners", whole::<u16>)? {
        settings.config.mode = CacheMode::Distributed { owners };
    }
    if let Some(segments) = parsed(tree, node, "segments", whole::<u16>)? {
        settings.config.segments = segments;
    }
    if let Some(flags) = parsed(tree, node, "mode", |text| one_of(text, MODES))? {
        settings.flags = flags;
    }
    if let Some(capacity) = parsed(tree, node, "capacity-factor", capacity)? {
        settings.capacity = capacity;
    }
    for child in &node.children {
        match child.name.as_str() {
            "partition-handling" => {
                tree.check_attributes(child, &["when-split", "merge-policy"])?;
                if let Some(partitions) = parsed(tree, child, "when-split", |text| one_of(text, WHEN_SPLIT))?
                {
                    settings.config.partitions = partitions;
                }
                if let Some(merge) = parsed(tree, child, "merge-policy", merge_policy)? {
                    settings.config.merge = merge;
                }
            }
            "groups" => {
                tree.check_attributes(child, &["enabled"])?;
                if let Some(grouping) = parsed(tree, child, "enabled", |text| one_of(text, GROUPS))? {
                    settings.config.grouping = grouping;
                }
            }
            "transaction" => {
                tree.check_attributes(child, &["mode"])?;
                if let Some(mode) = parsed(tree, child, "mode", |text| one_of(text, TRANSACTION_MODES))? {
                    settings.config.is_transactional = mode;
                }
            }
            "memory" => settings.memory = read_memory(tree, child)?,
            "expiration" => {
                tree.check_attributes(child, &["lifespan", "max-idle"])?;
                if let Some(lifespan) = parsed(tree, child, "lifespan", span)? {
                    settings.lifetime.lifespan = lifespan;
                }
                if let Some(max_idle) = parsed(tree, child, "max-idle", span)? {
                    settings.lifetime.max_idle = max_idle;
                }
            }
            "persistence" => {
                let checked = settings.config.check_store();
                checked.map_err(|error| tree.wrong(child.position, error.to_string()))?;
                settings.persistence = Some(read_persistence(tree, child)?);
                continue;
            }
            _ => return Err(tree.unknown_element(node, child, IN_CACHE)),
        }
        leaf(tree, child)?;
    }
    settings.config.check().map_err(|error| tree.wrong(node.position, error.to_string()))?;
    Ok(settings)
}

fn merge_policy(text: &str) -> Result<MergePolicy, String> {
    match text.strip_prefix("custom:") {
        Some("") => Err("custom: needs the name of a registered policy".to_owned()),
        Some(name) => Ok(MergePolicy::Custom(name.into())),
        None => one_of(text, MERGE_POLICIES).map_err(|why| format!("{why}, custom:NAME")),
    }
}

fn template_of(
    tree: &Tree,
    (name, position): (&str, Position),
    kind: usize,
    templates: &BTreeMap<String, (usize, CacheSettings)>,
) -> Result<CacheSettings, ConfigError> {
    let Some((own, settings)) = templates.get(name) else {
        let all: Vec<&str> = templates.keys().map(String::as_str).collect();
        let all =
            if all.is_empty() { "there is none".to_owned() } else { format!("there are {}", all.join(", ")) };
        return Err(tree.wrong(position, format!("no template `{name}` so far; {all}")));
    };
    if *own != kind {
        let what = format!("template `{name}` is a <{}>, not a <{}>", KINDS[*own].1, KINDS[kind].1);
        return Err(tree.wrong(position, what));
    }
    Ok(settings.clone())
}

fn read_memory(tree: &Tree, node: &Node) -> Result<Option<MemoryBound>, ConfigError> {
    tree.check_attributes(node, &["max-count", "max-size", "when-full"])?;
    let count = |text: &str| if text == "-1" { Ok(None) } else { some(whole::<u64>(text)?).map(Some) };
    let entries = parsed(tree, node, "max-count", count)?.flatten().map(Limit::Entries);
    let bytes = parsed(tree, node, "max-size", |text| some(parse_bytes(text)?))?.map(Limit::Bytes);
    let when_full = parsed(tree, node, "when-full", |text| one_of(text, WHEN_FULL))?;
    let limit = match (entries, bytes) {
        (Some(_), Some(_)) => {
            return Err(tree.wrong(node.position, "either max-count or max-size limits <memory>, not both"));
        }
        (None, None) if when_full.is_some() => {
            return Err(tree.wrong(node.position, "when-full needs max-count or max-size"));
        }
        (entries, bytes) => entries.or(bytes),
    };
    Ok(limit.map(|limit| MemoryBound { limit, when_full: when_full.unwrap_or(WhenFull::Remove) }))
}

/// Refuses 0.
fn some(limit: u64) -> Result<u64, String> {
    if limit == 0 { Err("a limit of 0 allows no entry".to_owned()) } else { Ok(limit) }
}

/// Returns a duration; -1 is unlimited, as in Infinispan.
fn span(text: &str) -> Result<Option<Duration>, String> {
    if text == "-1" { Ok(None) } else { parse_duration(text).map(Some) }
}

fn capacity(text: &str) -> Result<CapacityFactor, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.0..=1e6).contains(&factor) => {
            Ok(CapacityFactor::from_thousandths((factor * 1e3).round() as u32))
        }
        _ => Err(format!("`{text}` is not from 0 to 1000000")),
    }
}

#[cfg(test)]
mod tests {
    use consort_store::{Durability, FileStoreConfig, Recover};

    use super::*;
    use crate::persistence::WriteBehind;

    fn read(text: &str) -> Result<ManagerFile, ConfigError> {
        ManagerFile::read(&Tree::parse("caches.xml", text, &Variables::new())?)
    }

    fn within(caches: &str) -> Result<ManagerFile, ConfigError> {
        read(&format!("<infinispan><cache-container>\n{caches}\n</cache-container></infinispan>"))
    }

    #[test]
    fn cache_has_the_settings_of_its_template_except_its_own() {
        let file = within(
            "<distributed-cache name=\"orders\" configuration=\"safe\"><memory max-count=\"10\"/></distributed-cache>\n\
             <distributed-cache-configuration name=\"safe\" owners=\"3\" segments=\"64\" capacity-factor=\"0.5\">\
               <partition-handling when-split=\"DENY_READ_WRITES\"/><groups enabled=\"true\"/><expiration lifespan=\"5m\" max-idle=\"-1\"/>\
             </distributed-cache-configuration>\n\
             <replicated-cache name=\"rates\"/><local-cache name=\"own\"/><invalidation-cache name=\"pages\"/>",
        );
        let file = file.unwrap();
        let orders = &file.caches["orders"];
        let wanted = CacheConfig {
            mode: CacheMode::Distributed { owners: 3 },
            segments: 64,
            partitions: PartitionHandling::DenyReadWrites,
            grouping: Grouping::Tag,
            ..CacheConfig::new("orders")
        };
        assert_eq!(orders.config, wanted);
        assert_eq!(orders.capacity, CapacityFactor::from_thousandths(500));
        assert_eq!(
            orders.memory,
            Some(MemoryBound { limit: Limit::Entries(10), when_full: WhenFull::Remove })
        );
        assert_eq!(orders.lifetime, Lifetime { lifespan: Some(Duration::from_secs(300)), max_idle: None });
        assert_eq!(file.caches["rates"].config.mode, CacheMode::Replicated);
        assert_eq!(file.caches["own"].config.mode, CacheMode::Local);
        assert_eq!(file.caches["pages"].config.mode, CacheMode::Invalidation);
        assert_eq!(file.caches.len(), 4, "a template is no cache");
    }

    #[test]
    fn a_cache_says_how_it_is_merged_acknowledged_and_kept() {
        let file = within(
            "<replicated-cache name=\"a\" mode=\"ASYNC\">\
               <partition-handling when-split=\"ALLOW_READ_WRITES\" merge-policy=\"REMOVE_ALL\"/>\
               <persistence passivation=\"true\"><file-store path=\"/var/lib/shop\"/></persistence></replicated-cache>\
             <distributed-cache name=\"b\"><transaction mode=\"NON_XA\"/><partition-handling merge-policy=\"custom:newest\"/>\
               <persistence><file-store path=\"d\" preload=\"true\" purge=\"true\" sync-writes=\"true\" max-file-size=\"8M\" \
                 compaction-threshold=\"0.25\" when-damaged=\"SKIP_CORRUPT\">\
                 <write-behind modification-queue-size=\"10\" max-size=\"1M\"/></file-store></persistence></distributed-cache>",
        );
        let file = file.unwrap();
        let (a, b) = (&file.caches["a"], &file.caches["b"]);
        assert_eq!((&a.config.merge, a.flags), (&MergePolicy::RemoveAll, Flags::ASYNC));
        assert_eq!((a.config.is_transactional, b.config.is_transactional), (false, true));
        assert_eq!((&b.config.merge, b.flags), (&MergePolicy::Custom("newest".into()), Flags::NONE));
        let told = |settings: &CacheSettings| format!("{:?}", settings.persistence.as_ref().unwrap());
        let wanted = Persistence::within("/var/lib/shop").passivation();
        assert_eq!(told(a), format!("{wanted:?}"));
        let files = FileStoreConfig {
            durability: Durability::Disk,
            file_bytes_max: 8_000_000,
            dead_share_max: 0.25,
            recover: Recover::SkipCorrupt,
            ..FileStoreConfig::default()
        };
        let bounds = WriteBehind { changes_max: 10, bytes_max: 1_000_000 };
        let wanted = Persistence::within("d").files(files).preload().purge_on_start().write_behind(bounds);
        assert_eq!(told(b), format!("{wanted:?}"));
    }

    #[test]
    fn invalid_setting_is_reported_with_file_and_line() {
        let error = |caches: &str| within(caches).unwrap_err().to_string();
        for (caches, wanted) in [
            (
                "<distributed-cache name=\"a\" owner=\"3\"/>",
                "caches.xml:2:29: unknown attribute `owner` of distributed-cache; did you mean `owners`?",
            ),
            (
                "<distributed-cach name=\"a\"/>",
                "caches.xml:2:1: unknown element `distributed-cach` in cache-container; did you mean `distributed-cache`?",
            ),
            (
                "<replicated-cache name=\"a\"><memory max-size=\"lots\"/></replicated-cache>",
                "attribute max-size of memory: ",
            ),
            (
                "<replicated-cache name=\"a\"><memory when-full=\"WAIT\" max-count=\"1\"/></replicated-cache>",
                "attribute when-full of memory: `WAIT` is none of REMOVE, EXCEPTION",
            ),
            ("<replicated-cache name=\"a\"/><local-cache name=\"a\"/>", "a second cache `a`"),
            ("<local-cache/>", "<local-cache> needs the attribute `name`"),
            ("<distributed-cache name=\"a\" owners=\"0\"/>", "owners cannot be 0"),
            ("<distributed-cache name=\"a\" owners=\"-1\"/>", "`-1` is not a whole number"),
            ("<local-cache name=\"a\" configuration=\"t\"/>", "no template `t` so far; there is none"),
            (
                "<local-cache-configuration name=\"t\"/><replicated-cache name=\"a\" configuration=\"t\"/>",
                "template `t` is a <local-cache-configuration>, not a <replicated-cache-configuration>",
            ),
            ("<local-cache name=\"a\"><memory><x/></memory></local-cache>", "unknown element `x` in memory"),
            (
                "<replicated-cache name=\"a\"><partition-handling merge-policy=\"NEWEST\"/></replicated-cache>",
                "`NEWEST` is none of PREFERRED_ALWAYS, PREFERRED_NON_NULL, REMOVE_ALL, custom:NAME",
            ),
            ("<replicated-cache name=\"a\" mode=\"FAST\"/>", "`FAST` is none of SYNC, ASYNC"),
            ("<local-cache name=\"a\"><persistence/></local-cache>", "<persistence> has one <file-store>"),
            (
                "<local-cache name=\"a\"><persistence><file-stor path=\"p\"/></persistence></local-cache>",
                "unknown element `file-stor` in persistence; did you mean `file-store`?",
            ),
            (
                "<local-cache name=\"a\"><persistence><file-store/></persistence></local-cache>",
                "<file-store> needs the attribute `path`",
            ),
            (
                "<local-cache name=\"a\"><persistence><file-store path=\"p\" prelod=\"true\"/></persistence></local-cache>",
                "unknown attribute `prelod` of file-store; did you mean `preload`?",
            ),
            (
                "<local-cache name=\"a\"><persistence passivation=\"true\"><file-store path=\"p\" preload=\"true\"/></persistence></local-cache>",
                "preload needs passivation to be off",
            ),
            (
                "<invalidation-cache name=\"a\"><persistence><file-store path=\"p\"/></persistence></invalidation-cache>",
                "a store cannot be combined with mode Invalidation",
            ),
            (
                "<replicated-cache name=\"a\"><memory max-count=\"1\" max-size=\"1\"/></replicated-cache>",
                "either max-count or max-size",
            ),
            (
                "<replicated-cache name=\"a\"><memory max-count=\"0\"/></replicated-cache>",
                "attribute max-count of memory: a limit of 0 allows no entry",
            ),
            (
                "<replicated-cache name=\"a\"><memory max-size=\"0\"/></replicated-cache>",
                "attribute max-size of memory: a limit of 0 allows no entry",
            ),
        ] {
            let effects = error(caches);
            assert!(
                effects.starts_with("caches.xml:2:") && effects.contains(wanted),
                "{effects}\nnot {wanted}"
            );
        }
        assert!(read("<infinispan/>").unwrap_err().to_string().contains("there is no <cache-container>"));
    }

    #[test]
    fn transport_element_names_the_cluster_the_node_and_its_location() {
        let file = read(
            "<infinispan xmlns=\"urn:infinispan:config:16.0\"><jgroups><stack-file name=\"own\" path=\"no.xml\"/></jgroups>\
             <cache-container name=\"shop\"><transport stack=\"own\" node-name=\"A\" site=\"S\" rack=\"R\" machine=\"M\" \
             transfer-budget=\"64k\"/></cache-container></infinispan>",
        );
        let file = file.unwrap();
        assert_eq!(
            (file.stack.as_str(), file.cluster.as_deref(), file.name.as_deref()),
            ("no.xml", Some("shop"), Some("A"))
        );
        assert_eq!(file.location.rack.as_deref(), Some("R"));
        assert!(
            file.transfer_budget < TRANSFER_BUDGET && file.transfer_budget >= 64_000,
            "{}",
            file.transfer_budget
        );
        let stock = read(
            "<infinispan><cache-container><transport stack=\"udp\" cluster=\"c\"/></cache-container></infinispan>",
        );
        let stock = stock.unwrap();
        assert_eq!((stock.stack.as_str(), stock.cluster.as_deref()), ("udp.xml", Some("c")));
    }
}
