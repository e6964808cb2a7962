//! The sizes of types and functions.

use std::collections::BTreeMap;
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItem, Type};

use super::modules::{Modules, is_test};

#[derive(Default)]
pub(super) struct Sizes {
    /// All `impl` blocks without traits count, by the type's name.
    pub(super) methods: BTreeMap<String, usize>,
    pub(super) functions: Vec<(String, usize)>,
}

impl Sizes {
    pub(super) fn of(modules: &Modules) -> Self {
        let mut sizes = Self::default();
        for module in modules.modules.values() {
            Visitor { sizes: &mut sizes, file: &module.file }.visit_file(&module.syntax);
        }
        sizes
    }
}

struct Visitor<'s> {
    sizes: &'s mut Sizes,
    file: &'s Path,
}

impl Visitor<'_> {
    fn note_function(&mut self, name: &syn::Ident, whole: proc_macro2::Span) {
        let lines = whole.end().line - whole.start().line + 1;
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        self.sizes.functions.push((format!("{file} {name}"), lines));
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test(&function.attrs) {
            self.note_function(&function.sig.ident, function.block.span());
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note_function(&function.sig.ident, function.block.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        if is_test(&block.attrs) {
            return;
        }
        if let (None, Type::Path(path)) = (&block.trait_, &*block.self_ty)
            && let Some(name) = path.path.segments.last()
        {
            let methods = block.items.iter().filter(|item| matches!(item, ImplItem::Fn(_))).count();
            *self.sizes.methods.entry(name.ident.to_string()).or_default() += methods;
        }
        visit::visit_item_impl(self, block);
    }
}
