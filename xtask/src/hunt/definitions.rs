//! What a source file defines outside of its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::{ImplItem, Item, TraitItem, Type};

use crate::sources::{attributes, is_test_only};

/// Names with their type in front where they have one: `flush`, `Tree::get`, `Flush::Commit`.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    functions: BTreeSet<String>,
    others: BTreeSet<String>,
    /// All words of macros that stand where an item may: what they define is among them.
    in_macros: BTreeSet<String>,
}

impl Definitions {
    pub fn of(text: &str) -> Result<Self> {
        let mut found = Self::default();
        found.items(&syn::parse_file(text)?.items);
        Ok(found)
    }

    /// A function `name`, or `Type::name` for one of a type or a trait. The file's own module may
    /// stand in front: `module::name`.
    pub fn has_function(&self, name: &str, file: &Path) -> bool {
        self.functions.contains(without_module(name, file))
    }

    /// As [`Definitions::has_function`], for whatever has a name: types, constants, variants,
    /// fields.
    pub fn has(&self, name: &str, file: &Path) -> bool {
        let short = without_module(name, file);
        let is_in_macros = || short.split("::").all(|word| self.in_macros.contains(word));
        self.functions.contains(short) || self.others.contains(short) || is_in_macros()
    }

    fn items(&mut self, items: &[Item]) {
        for item in items {
            if attributes(item).is_none_or(|(attributes, _)| is_test_only(attributes)) {
                continue;
            }
            self.item(item);
        }
    }

    fn item(&mut self, item: &Item) {
        let other = match item {
            Item::Fn(item) => {
                self.functions.insert(item.sig.ident.to_string());
                return;
            }
            Item::Impl(item) => {
                if let Some(of) = name_of(&item.self_ty) {
                    self.impl_items(&of, &item.items);
                }
                return;
            }
            Item::Trait(item) => {
                for inner in &item.items {
                    if let TraitItem::Fn(function) = inner {
                        self.functions.insert(format!("{}::{}", item.ident, function.sig.ident));
                    }
                }
                &item.ident
            }
            Item::Enum(item) => {
                let variants = item.variants.iter();
                self.others
                    .extend(variants.map(|variant| format!("{}::{}", item.ident, variant.ident)));
                &item.ident
            }
            Item::Mod(item) => {
                if let Some((_, items)) = &item.content {
                    self.items(items);
                }
                &item.ident
            }
            Item::Macro(item) => {
                return words_in(item.mac.tokens.clone(), &mut self.in_macros);
            }
            Item::Struct(item) => {
                let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
                self.others
                    .extend(fields.map(|field| format!("{}::{field}", item.ident)));
                &item.ident
            }
            Item::Const(item) => &item.ident,
            Item::Static(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            _ => return,
        };
        self.others.insert(other.to_string());
    }

    fn impl_items(&mut self, of: &str, items: &[ImplItem]) {
        for item in items {
            match item {
                ImplItem::Fn(item) if !is_test_only(&item.attrs) => {
                    self.functions.insert(format!("{of}::{}", item.sig.ident));
                }
                ImplItem::Const(item) if !is_test_only(&item.attrs) => {
                    self.others.insert(format!("{of}::{}", item.ident));
                }
                _ => {}
            }
        }
    }
}

fn words_in(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => drop(words.insert(ident.to_string())),
            TokenTree::Group(group) => words_in(group.stream(), words),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// The last segment of a type's path.
fn name_of(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    path.path.segments.last().map(|last| last.ident.to_string())
}

/// `writeback::flush` is `flush` in the file `writeback.rs` or `writeback/mod.rs`.
fn without_module<'n>(name: &'n str, file: &Path) -> &'n str {
    let stem = match file.file_stem() {
        Some(stem) if stem == "mod" => file.parent().and_then(Path::file_name),
        stem => stem,
    };
    let module = stem.and_then(|stem| stem.to_str()).unwrap_or_default();
    name.strip_prefix(module)
        .and_then(|rest| rest.strip_prefix("::"))
        .unwrap_or(name)
}

/// Files that were read, each once.
#[derive(Debug)]
pub(super) struct Cache {
    root: PathBuf,
    files: BTreeMap<PathBuf, Definitions>,
}

impl Cache {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            files: BTreeMap::new(),
        }
    }

    /// What a file defines, by its path from the workspace.
    pub fn of(&mut self, file: &Path) -> Result<&Definitions> {
        if !self.files.contains_key(file) {
            let text = std::fs::read_to_string(self.root.join(file)).with_context(|| file.display().to_string())?;
            let found = Definitions::of(&text).with_context(|| file.display().to_string())?;
            self.files.insert(file.to_owned(), found);
        }
        Ok(&self.files[file])
    }
}
