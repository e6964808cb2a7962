//! Settings of caches that Consort accepts and that have no effect. Each is a warning, unless it has Infinispan's default.

use super::document::Node;
use super::problem::Problems;
use crate::catalog::definition::{FILE_STORES, without_effect};

/// Reports settings without effect; removes those that a definition by a client could not have.
pub(super) fn report(label: &str, node: &mut Node, problems: &mut Problems) {
    report_element(label, node, problems);
    for child in &mut node.children {
        if child.name == "persistence" {
            let stores = child.children.iter_mut().filter(|store| FILE_STORES.contains(&&store.name[..]));
            stores.for_each(|store| remove_paths(label, store, problems));
        }
    }
}

fn report_element(label: &str, node: &Node, problems: &mut Problems) {
    for attribute in &node.attributes {
        if let Some(found) = without_effect::find(&node.name, &attribute.name)
            && !found.agreeing.contains(&&attribute.value[..])
        {
            let text = format!("{label}: {} of {} has no effect: {}", attribute.name, node.name, found.why);
            problems.warn(attribute.place, text);
        }
    }
    node.children.iter().for_each(|child| report_element(label, child, problems));
}

/// Removes the paths of a store, and those of its index and its data.
fn remove_paths(label: &str, store: &mut Node, problems: &mut Problems) {
    let is_path = |name: &str| matches!(name, "path" | "relative-to");
    for attribute in store.attributes.iter().filter(|attribute| is_path(&attribute.name)) {
        let text = format!("{label}: {} of {}: entries are stored in --data", attribute.name, store.name);
        problems.warn(attribute.place, text);
    }
    store.attributes.retain(|attribute| !is_path(&attribute.name));
    store.children.iter_mut().for_each(|child| remove_paths(label, child, problems));
}
