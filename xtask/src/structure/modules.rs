//! The modules of a crate, and the references between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// The path begins at the root of the crate, which has an empty one.
pub(super) type ModulePath = Vec<String>;

/// A module with a file of its own.
pub(super) struct Module {
    pub(super) file: PathBuf,
    pub(super) syntax: syn::File,
}

/// Modules that only tests have are left out.
pub(super) struct Modules {
    pub(super) modules: BTreeMap<ModulePath, Module>,
    /// Each name with the path that it stands for.
    exports: BTreeMap<(ModulePath, String), ModulePath>,
}

/// Whether an item is compiled for tests only.
pub(super) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg") || attribute.path().is_ident("test");
        let Ok(list) = attribute.meta.require_list() else { return is_cfg };
        is_cfg
            && list
                .tokens
                .to_string()
                .split(|letter: char| !letter.is_alphanumeric())
                .any(|word| word == "test")
    })
}

impl Modules {
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut modules = Self { modules: BTreeMap::new(), exports: BTreeMap::new() };
        modules.read_file(Vec::new(), root.to_owned())?;
        modules.find_exports();
        Ok(modules)
    }

    fn read_file(&mut self, path: ModulePath, file: PathBuf) -> Result<(), String> {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let syntax = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        let is_folder =
            file.file_name().is_some_and(|name| name == "mod.rs" || name == "lib.rs" || name == "main.rs");
        let folder = if is_folder { file.with_file_name("") } else { file.with_extension("") };
        let children: Vec<String> = syntax
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Mod(module) if module.content.is_none() && !is_test(&module.attrs) => {
                    let has_path = module.attrs.iter().any(|attribute| attribute.path().is_ident("path"));
                    (!has_path).then(|| module.ident.to_string())
                }
                _ => None,
            })
            .collect();
        self.modules.insert(path.clone(), Module { file, syntax });
        for child in children {
            let files = [folder.join(format!("{child}.rs")), folder.join(&child).join("mod.rs")];
            let Some(file) = files.iter().find(|file| file.exists()) else {
                return Err(format!("module {child} of {} has no file", path.join("::")));
            };
            self.read_file([path.clone(), vec![child]].concat(), file.clone())?;
        }
        Ok(())
    }

    fn find_exports(&mut self) {
        for (path, module) in &self.modules {
            for item in &module.syntax.items {
                let Item::Use(item) = item else { continue };
                if matches!(item.vis, syn::Visibility::Inherited) {
                    continue;
                }
                for (target, name) in leaves(&item.tree) {
                    let target = self.absolute(path, &target);
                    match name.as_str() {
                        "*" => {
                            for name in self.modules.get(&target).map(names).unwrap_or_default() {
                                let target = [target.clone(), vec![name.clone()]].concat();
                                self.exports.insert((path.clone(), name), target);
                            }
                        }
                        _ => {
                            self.exports.insert((path.clone(), name), target);
                        }
                    }
                }
            }
        }
    }

    /// The path begins at the root; empty for a path of another crate.
    fn absolute(&self, from: &ModulePath, path: &[String]) -> ModulePath {
        let mut base = from.clone();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("crate") => (base, rest) = (Vec::new(), &path[1..]),
            Some("self") => rest = &path[1..],
            Some("super") => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            Some(first) => {
                let child = [from.clone(), vec![first.to_owned()]].concat();
                if !self.modules.contains_key(&child) {
                    return Vec::new();
                }
            }
            None => {}
        }
        [base, rest.to_vec()].concat()
    }

    /// The module with the item of an absolute path.
    fn home(&self, path: &[String]) -> ModulePath {
        let mut path = path.to_vec();
        // A re-export may stand for another one.
        for _ in 0..8 {
            let depth = (0..=path.len()).rev().find(|depth| self.modules.contains_key(&path[..*depth]));
            let module = path[..depth.unwrap_or(0)].to_vec();
            let Some(name) = path.get(module.len()) else { return module };
            match self.exports.get(&(module.clone(), name.clone())) {
                Some(target) if !target.is_empty() => {
                    path = [&target[..], &path[module.len() + 1..]].concat();
                }
                _ => return module,
            }
        }
        path
    }

    pub(super) fn references(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let mut references = BTreeMap::new();
        for (path, module) in &self.modules {
            let mut paths = Paths::default();
            paths.visit_file(&module.syntax);
            let homes = paths.found.iter().map(|used| self.home(&self.absolute(path, used)));
            let homes = homes.filter(|home| home != path && !home.is_empty()).collect();
            references.insert(path.clone(), homes);
        }
        references
    }
}

fn names(module: &Module) -> Vec<String> {
    let name = |item: &Item| match item {
        Item::Const(item) => Some(item.ident.to_string()),
        Item::Enum(item) => Some(item.ident.to_string()),
        Item::Fn(item) => Some(item.sig.ident.to_string()),
        Item::Static(item) => Some(item.ident.to_string()),
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Trait(item) => Some(item.ident.to_string()),
        Item::Type(item) => Some(item.ident.to_string()),
        _ => None,
    };
    module.syntax.items.iter().filter_map(name).collect()
}

fn leaves(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    collect(tree, &mut Vec::new(), &mut found);
    found
}

fn collect(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
    let with = |before: &[String], name: String| match name.as_str() {
        "self" => before.to_vec(),
        _ => [before, &[name]].concat(),
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            collect(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => {
            let path = with(before, name.ident.to_string());
            let name = path.last().cloned().unwrap_or_default();
            found.push((path, name));
        }
        UseTree::Rename(rename) => {
            found.push((with(before, rename.ident.to_string()), rename.rename.to_string()));
        }
        UseTree::Glob(_) => found.push((before.clone(), "*".to_owned())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, before, found)),
    }
}

#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
}

impl Paths {
    /// Finds paths from the root of the crate.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(name) if !path.is_empty() || name == "crate" || name == "super" => {
                    path.push(name.to_string());
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {}
                token => {
                    self.found.extend((path.len() > 1).then(|| std::mem::take(&mut path)));
                    path.clear();
                    if let TokenTree::Group(group) = token {
                        self.visit_tokens(group.stream());
                    }
                }
            }
        }
        self.found.extend((path.len() > 1).then_some(path));
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A re-export is no use: modules that use its name refer to its target.
        if !is_test(&item.attrs) && matches!(item.vis, syn::Visibility::Inherited) {
            self.found.extend(leaves(&item.tree).into_iter().map(|(path, _)| path));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 {
            self.found.push(names);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_tokens(invocation.tokens.clone());
    }
}
