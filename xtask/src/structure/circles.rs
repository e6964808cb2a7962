//! Circles of modules: siblings that depend on each other.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::ModulePath;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Circle {
    pub(super) parent: ModulePath,
    pub(super) modules: BTreeSet<String>,
}

/// Among the children of each module. A child stands for all modules below it.
pub(super) fn circles(references: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<Circle> {
    let mut levels = BTreeMap::<ModulePath, BTreeMap<String, BTreeSet<String>>>::new();
    for (from, targets) in references {
        for target in targets {
            let common = from.iter().zip(target).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), target.get(common)) {
                let level = levels.entry(from[..common].to_vec()).or_default();
                level.entry(a.clone()).or_default().insert(b.clone());
            }
        }
    }
    levels.into_iter().flat_map(|(parent, edges)| of_level(&parent, &edges)).collect()
}

fn of_level(parent: &ModulePath, edges: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Circle> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|module| (module, reached(edges, module))).collect();
    let is_mutual = |a: &String, b: &String| {
        reached.get(a).is_some_and(|all| all.contains(b)) && reached.get(b).is_some_and(|all| all.contains(a))
    };
    let circle = |module: &String| {
        let modules = edges.keys().filter(|other| is_mutual(module, other)).cloned().collect();
        Circle { parent: parent.clone(), modules }
    };
    edges.keys().map(circle).filter(|circle| circle.modules.len() > 1).collect()
}

fn reached<'m>(edges: &'m BTreeMap<String, BTreeSet<String>>, module: &String) -> BTreeSet<&'m String> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&String> = edges.get(module).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(edges.get(module).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ModulePath {
        text.split("::").map(str::to_owned).collect()
    }

    #[test]
    fn circle_has_the_siblings_that_reach_each_other() {
        let edges =
            [("a", "b::x"), ("b::y", "c"), ("c", "a"), ("d", "a"), ("e::x", "e::y"), ("e::y", "e::x")];
        let mut references = BTreeMap::<ModulePath, BTreeSet<ModulePath>>::new();
        for (from, to) in edges {
            references.entry(path(from)).or_default().insert(path(to));
        }
        let found: Vec<(String, Vec<String>)> = circles(&references)
            .into_iter()
            .map(|circle| (circle.parent.join("::"), circle.modules.into_iter().collect()))
            .collect();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(found, [(String::new(), names(&["a", "b", "c"])), ("e".to_owned(), names(&["x", "y"]))]);
    }
}
