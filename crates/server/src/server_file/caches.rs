//! Caches and templates of a container. A template is merged into its caches as elements; then the reader of definitions reads
//! them. It reports one error at a time, so its errors are located by leaving parts out.

use std::collections::{BTreeMap, BTreeSet};

use super::cache_roles::{self, CacheAccess};
use super::cache_settings;
use super::document::Node;
use super::problem::{Place, Problems};
use crate::catalog::admin_error::check_cache_name;
use crate::catalog::definition::{self, CacheDefinitions, Definition, Element, is_template, mode_of};
use crate::catalog::wildcards::{has_wildcards, matches};

/// Templates of templates: the limit also ends the search through a template that extends itself.
const TEMPLATES_MAX: usize = 16;

/// Reported errors of one cache. Each is searched for with one more reading of the cache.
const ERRORS_MAX: usize = 20;

/// A larger cache gets one error for the whole element, because the search for the part reads the cache once for each part.
const LOCATED_PARTS_MAX: usize = 200;

const TEMPLATE_SUFFIX: &str = "-configuration";

struct CacheElement {
    is_template: bool,
    /// Under the name of the kind, `local-cache`.
    node: Node,
}

/// Definitions of caches and templates.
pub(super) struct ReadCaches {
    pub(super) definitions: CacheDefinitions,
    /// Caches that need a directory for data.
    pub(super) stored: BTreeMap<String, Place>,
    pub(super) access: BTreeMap<String, CacheAccess>,
}

/// All caches of a container, in order.
#[derive(Default)]
pub(super) struct CacheElements {
    all: Vec<(String, CacheElement)>,
}

/// The kind of a cache that an element defines, and whether it is a template.
fn kind_and_form(name: &str) -> Option<(&str, bool)> {
    let (kind, is_template) = match name.strip_suffix(TEMPLATE_SUFFIX) {
        Some(kind) => (kind, true),
        None => (name, false),
    };
    mode_of(kind).map(|_| (kind, is_template))
}

pub(super) fn is_cache(name: &str) -> bool {
    kind_and_form(name).is_some() || name.starts_with("scattered-cache")
}

impl CacheElements {
    /// Adds a cache whose name is its attribute, as in XML.
    pub(super) fn add_named(&mut self, node: &Node, problems: &mut Problems) {
        match node.get("name").map(|name| &name.value[..]).filter(|name| !name.is_empty()) {
            Some(name) => self.add(name, node, problems),
            None => problems.refuse(node.place, format!("<{}> needs the attribute `name`", node.name)),
        }
    }

    /// Adds the members of an object whose keys are names of caches, as in JSON and YAML.
    pub(super) fn add_all(&mut self, caches: &Node, problems: &mut Problems) {
        for member in &caches.children {
            match &member.children[..] {
                [cache] if member.attributes.is_empty() && is_cache(&cache.name) => {
                    self.add(&member.written, cache, problems);
                }
                _ if is_cache(&member.name) => self.add_named(member, problems),
                _ => problems.refuse(member.place, format!("`{}` is not one cache", member.written)),
            }
        }
        for attribute in &caches.attributes {
            problems.refuse(attribute.place, format!("unknown attribute `{}` of caches", attribute.name));
        }
    }

    fn add(&mut self, name: &str, node: &Node, problems: &mut Problems) {
        let Some((kind, is_template)) = kind_and_form(&node.name) else {
            let text = format!(
                "cache `{name}`: scattered caches are not part of Infinispan since 15; use distributed-cache"
            );
            problems.refuse(node.place, text);
            return;
        };
        if self.all.iter().any(|(other, _)| other == name) {
            problems.refuse(node.place, format!("`{name}` is defined more than once"));
            return;
        }
        let node = Node { name: kind.to_owned(), ..node.clone() };
        self.all.push((name.to_owned(), CacheElement { is_template, node }));
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.all.iter().any(|(other, cache)| other == name && !cache.is_template)
    }

    /// Adds the cache of a name that one template with wildcards matches; otherwise returns how many do.
    pub(super) fn add_matching(&mut self, name: &str) -> Result<(), usize> {
        let is_match = |(own, cache): &&(String, CacheElement)| {
            cache.is_template && has_wildcards(own) && matches(own, name)
        };
        let mut matching = self.all.iter().filter(is_match);
        match (matching.next(), matching.count()) {
            (Some((_, template)), 0) => {
                let node = template.node.clone();
                self.all.push((name.to_owned(), CacheElement { is_template: false, node }));
                Ok(())
            }
            (first, others) => Err(others + usize::from(first.is_some())),
        }
    }

    pub(super) fn read(&self, problems: &mut Problems) -> ReadCaches {
        let mut definitions = CacheDefinitions::none(problems.file());
        let (mut stored, mut access) = (BTreeMap::new(), BTreeMap::new());
        for (name, cache) in &self.all {
            let what = if cache.is_template { "template" } else { "cache" };
            let label = format!("{what} `{name}`");
            if has_wildcards(name) && !cache.is_template {
                let text = format!(
                    "{label}: a name with wildcards is that of a template, as in Infinispan: write <{}-configuration>",
                    cache.node.name
                );
                problems.refuse(cache.node.place, text);
                continue;
            }
            if let Err(error) = check_cache_name(name) {
                problems.refuse(cache.node.place, format!("{label}: {error}"));
                continue;
            }
            let Some(mut node) = self.merged(name, &cache.node, problems) else { continue };
            cache_settings::report(&label, &mut node, problems);
            let own_access = cache_roles::take(&mut node, problems);
            if !cache.is_template {
                access.insert(name.clone(), own_access);
            }
            leave_out_indexing(name, &label, &mut node, problems);
            let Some(definition) = read_located(name, &label, node, problems) else { continue };
            if definition.store.is_some() {
                stored.insert(name.clone(), cache.node.place);
            }
            if !cache.is_template {
                definitions.all.push(definition);
            } else if definition.aliases.as_ref().is_some_and(|aliases| !aliases.is_empty()) {
                problems.refuse(cache.node.place, format!("{label}: an alias names one cache"));
            } else {
                definitions.templates.push((name.clone(), definition));
            }
        }
        ReadCaches { definitions, stored, access }
    }

    /// Returns the cache with the settings of its template, of that template's template, and so on. The name of a template of
    /// Infinispan stays as an attribute.
    fn merged(&self, name: &str, node: &Node, problems: &mut Problems) -> Option<Node> {
        let mut merged = node.clone();
        merged.attributes.retain(|attribute| attribute.name != "name");
        let mut next = node;
        for _ in 0..TEMPLATES_MAX {
            let Some(template) = next.get("configuration").filter(|one| !is_template(&one.value)) else {
                return Some(merged);
            };
            let Some((_, base)) = self.all.iter().find(|(name, _)| *name == template.value) else {
                let text = format!("no template `{}` when declaring `{name}`", template.value);
                problems.refuse(template.place, text);
                return None;
            };
            merged.attributes.retain(|attribute| attribute.name != "configuration");
            let mut base_node = base.node.clone();
            base_node.attributes.retain(|attribute| attribute.name != "name");
            if base_node.name != node.name {
                convert(&mut base_node, &node.name);
            }
            merged = merge(base_node, merged);
            next = &base.node;
        }
        problems.refuse(node.place, format!("the template of `{name}` extends itself"));
        None
    }
}

/// Attributes and children of a template that caches of another kind do not have. As in Infinispan, they do not apply there.
const OF_CLUSTER: [&str; 7] = [
    "groups",
    "mode",
    "segments",
    "remote-timeout",
    "state-transfer",
    "partition-handling",
    "consistent-hash-factory",
];
const OF_OWNERS: [&str; 5] = ["owners", "capacity", "capacity-factor", "l1-lifespan", "l1-cleanup-interval"];

/// Makes a template one of caches of another kind.
fn convert(base: &mut Node, kind: &str) {
    let is_kept = |name: &str| match kind {
        "distributed-cache" => true,
        "local-cache" => !OF_CLUSTER.contains(&name) && !OF_OWNERS.contains(&name),
        _ => !OF_OWNERS.contains(&name),
    };
    base.attributes.retain(|attribute| is_kept(&attribute.name));
    base.children.retain(|child| is_kept(&child.name));
    kind.clone_into(&mut base.name);
}

/// Merges two elements; the settings of `over` take precedence. If `over` has two children of a name, both stay, so that the reader
/// of definitions refuses the second one, as in a cache without a template.
fn merge(mut base: Node, over: Node) -> Node {
    for attribute in over.attributes {
        base.attributes.retain(|other| other.name != attribute.name);
        base.attributes.push(attribute);
    }
    let mut merged: BTreeSet<String> = BTreeSet::new();
    for child in over.children {
        let is_first = merged.insert(child.name.clone());
        match base.children.iter().position(|other| other.name == child.name).filter(|_| is_first) {
            Some(at) => {
                let own = base.children.remove(at);
                base.children.insert(at, merge(own, child));
            }
            None => base.children.push(child),
        }
    }
    let text = if over.text.is_empty() { base.text } else { over.text };
    Node { place: over.place, text, ..base }
}

/// Queries have the same results without an index, so that an index that Infinispan would have is no reason to refuse a cache.
fn leave_out_indexing(name: &str, label: &str, node: &mut Node, problems: &mut Problems) {
    let error = |node: &Node| definition::read(name, &element_of(node)).err().map(|error| error.to_string());
    let Some(at) = node.children.iter().position(|child| child.name == "indexing") else { return };
    let Some(with) = error(node) else { return };
    let indexing = node.children.remove(at);
    if error(node).as_ref() == Some(&with) {
        return node.children.insert(at, indexing);
    }
    let with = with.trim_start_matches("cache configuration: ");
    let text =
        format!("{label}: {with}; there is no index, and queries scan all entries with the same results");
    problems.warn(indexing.place, text);
}

fn element_of(node: &Node) -> Element {
    Element {
        name: node.name.clone(),
        written: node.written.clone(),
        attributes: node
            .attributes
            .iter()
            .map(|attribute| (attribute.name.clone(), attribute.value.clone()))
            .collect(),
        children: node.children.iter().map(element_of).collect(),
        text: node.text.clone(),
    }
}

fn count_parts(node: &Node) -> usize {
    1 + node.attributes.len() + node.children.iter().map(count_parts).sum::<usize>()
}

fn find_text(node: &Node) -> Option<&Node> {
    let is_empty = node.text.is_empty() || node.name == "indexed-entity";
    if is_empty { node.children.iter().find_map(find_text) } else { Some(node) }
}

/// Reads a definition, and reports all its errors, each with the place of its part.
fn read_located(name: &str, label: &str, mut node: Node, problems: &mut Problems) -> Option<Definition> {
    let mut is_valid = true;
    if let Some(with_text) = find_text(&node) {
        problems.refuse(with_text.place, format!("{label}: text within <{}>", with_text.name));
        is_valid = false;
    }
    for _ in 0..ERRORS_MAX {
        let error = match definition::read(name, &element_of(&node)) {
            Ok(definition) => return is_valid.then_some(definition),
            Err(error) => error.to_string(),
        };
        is_valid = false;
        let text = format!("{label}: {}", error.trim_start_matches("cache configuration: "));
        let fails = |node: &Node| {
            definition::read(name, &element_of(node)).err().is_some_and(|other| other.to_string() == error)
        };
        let located = if count_parts(&node) > LOCATED_PARTS_MAX { None } else { locate(&node, &fails) };
        match located {
            Some((place, without)) => {
                problems.refuse(place, text);
                node = without;
            }
            None => {
                problems.refuse(node.place, text);
                return None;
            }
        }
    }
    None
}

/// Returns the place of the part that causes an error, and the node without that part. `None`: the node as a whole causes it.
fn locate(node: &Node, fails: &dyn Fn(&Node) -> bool) -> Option<(Place, Node)> {
    for at in 0..node.attributes.len() {
        let mut without = node.clone();
        let attribute = without.attributes.remove(at);
        if !fails(&without) {
            return Some((attribute.place, without));
        }
    }
    for at in 0..node.children.len() {
        let mut without = node.clone();
        let child = without.children.remove(at);
        if fails(&without) {
            continue;
        }
        let with = |child: &Node| {
            let mut with = without.clone();
            with.children.insert(at, child.clone());
            with
        };
        return Some(match locate(&child, &|child| fails(&with(child))) {
            Some((place, child)) => (place, with(&child)),
            None => (child.place, without),
        });
    }
    None
}
