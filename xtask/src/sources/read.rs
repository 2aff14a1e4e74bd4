//! Reads a crate from its root file down: what each module declares, and every path it writes.
//! Code under `#[cfg(test)]` and `#[test]` is left out, and so are the files it declares.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use super::module::{Kind, Module, PathUse, Scope};

/// What stands before the name of an item.
const ITEM_WORDS: [&str; 7] = ["struct", "enum", "fn", "const", "type", "trait", "static"];

/// True for what only tests compile.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute
            .meta
            .require_list()
            .map(|list| list.tokens.to_string())
            .unwrap_or_default();
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && (list == "test" || list.starts_with("all (test"))
    })
}

/// Appends the modules below the root file to `modules`.
pub fn tree(workspace: &Path, root: &Path, name: &str, modules: &mut Vec<Module>) -> Result<()> {
    let dir = root.parent().context("a source lies in a directory")?;
    let mut reader = Reader {
        workspace,
        modules,
        at: 0,
        dir: dir.to_owned(),
        errors: Vec::new(),
    };
    reader.file(name, root, dir.to_owned(), None)?;
    ensure!(reader.errors.is_empty(), "{}", reader.errors.join("\n"));
    Ok(())
}

struct Reader<'a> {
    workspace: &'a Path,
    modules: &'a mut Vec<Module>,
    /// The module whose items are read now, and the directory of its children's files.
    at: usize,
    dir: PathBuf,
    errors: Vec<String>,
}

impl Reader<'_> {
    fn file(&mut self, name: &str, file: &Path, children: PathBuf, parent: Option<usize>) -> Result<()> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        let relative = file.strip_prefix(self.workspace)?.to_owned();
        self.module(name, relative, children, parent, &parsed.items);
        Ok(())
    }

    fn module(&mut self, name: &str, file: PathBuf, children: PathBuf, parent: Option<usize>, items: &[Item]) {
        let index = self.modules.len();
        self.modules.push(Module {
            name: name.to_owned(),
            file,
            scope: Scope {
                parent,
                ..Scope::default()
            },
        });
        if let Some(parent) = parent {
            let last = name.rsplit('/').next().unwrap_or(name).to_owned();
            self.modules[parent].scope.children.insert(last, index);
        }
        let outside = (
            std::mem::replace(&mut self.at, index),
            std::mem::replace(&mut self.dir, children),
        );
        for item in items {
            self.visit_item(item);
        }
        (self.at, self.dir) = outside;
    }

    fn child(&mut self, item: &syn::ItemMod) -> Result<()> {
        let ident = item.ident.to_string();
        let parent = &self.modules[self.at];
        let name = match parent.scope.parent {
            Some(_) => format!("{}/{ident}", parent.name),
            None => ident.clone(),
        };
        let (at, below) = (self.at, self.dir.join(&ident));
        if let Some((_, items)) = &item.content {
            let file = parent.file.clone();
            self.module(&name, file, below, Some(at), items);
            return Ok(());
        }
        let beside = self.dir.join(format!("{ident}.rs"));
        let file = if beside.is_file() { beside } else { below.join("mod.rs") };
        self.file(&name, &file, below, Some(at))
    }

    fn scope(&mut self) -> &mut Scope {
        &mut self.modules[self.at].scope
    }

    fn define(&mut self, ident: &syn::Ident) {
        self.scope().names.insert(ident.to_string(), None);
    }

    fn import(&mut self, tree: &UseTree, before: &mut Vec<String>, kind: Kind) {
        let (name, alias) = match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before, kind);
                before.pop();
                return;
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, before, kind));
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.span.start().line;
                let segments = before.clone();
                self.scope().globs.push(segments.clone());
                return self.scope().paths.push(PathUse { segments, line, kind });
            }
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(name) => (&name.ident, &name.rename),
        };
        let mut segments = before.clone();
        if name != "self" {
            segments.push(name.to_string());
        }
        let alias = if alias == "self" {
            segments.last().cloned().unwrap_or_default()
        } else {
            alias.to_string()
        };
        self.scope()
            .names
            .entry(alias)
            .or_insert_with(|| Some(segments.clone()));
        self.scope().paths.push(PathUse {
            segments,
            line: name.span().start().line,
            kind,
        });
    }

    /// Among the tokens of a macro: paths (identifiers joined by `::`), and items that it defines.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons, mut is_field, mut is_definition) = (0, 0, false, false);
        for token in tokens.into_iter().chain([TokenTree::Punct(proc_macro2::Punct::new(
            ';',
            proc_macro2::Spacing::Alone,
        ))]) {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.code(std::mem::take(&mut path), line);
                        line = ident.span().start().line;
                    }
                    if std::mem::take(&mut is_definition) {
                        self.define(&ident);
                    } else if !is_field {
                        is_definition = ITEM_WORDS.iter().any(|word| ident == word);
                        path.push(ident.to_string());
                    }
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.code(std::mem::take(&mut path), line);
                    colons = 0;
                    is_field = matches!(&other, TokenTree::Punct(p) if p.as_char() == '.') && !is_field;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                    continue;
                }
            }
            is_field = false;
        }
    }

    fn code(&mut self, segments: Vec<String>, line: usize) {
        if !segments.is_empty() {
            self.scope().paths.push(PathUse {
                segments,
                line,
                kind: Kind::Code,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let Some((attributes, ident)) = parts(item) else { return };
        if is_test_only(attributes) {
            return;
        }
        match item {
            Item::Mod(item) => {
                if let Err(error) = self.child(item) {
                    self.errors.push(format!("{error:#}"));
                }
                return;
            }
            Item::Use(item) => {
                let kind = if matches!(item.vis, Visibility::Inherited) {
                    Kind::Import
                } else {
                    Kind::Face
                };
                return self.import(&item.tree, &mut Vec::new(), kind);
            }
            _ => {}
        }
        if let Some(ident) = ident {
            self.define(ident);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(item) => &item.attrs,
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Type(item) => &item.attrs,
            _ => return,
        };
        if !is_test_only(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if !is_test_only(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_test_only(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments[0].ident.span().start().line;
        self.code(segments, line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.visit_path(&mac.path);
        self.tokens(mac.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    // `pub(in path)` names no code.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// The attributes of an item and the name it defines.
fn parts(item: &Item) -> Option<(&[Attribute], Option<&syn::Ident>)> {
    let ident = match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::TraitAlias(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    };
    Some((attributes(item)?.0, ident))
}

/// The attributes of an item, and its visibility if it is of a kind that has one.
pub fn attributes(item: &Item) -> Option<(&[Attribute], Option<&Visibility>)> {
    macro_rules! with_visibility {
        ($($kind:ident),*) => {
            match item {
                $(Item::$kind(item) => Some((&item.attrs[..], Some(&item.vis))),)*
                Item::Impl(item) => Some((&item.attrs[..], None)),
                Item::ForeignMod(item) => Some((&item.attrs[..], None)),
                Item::Macro(item) => Some((&item.attrs[..], None)),
                _ => None,
            }
        };
    }
    with_visibility!(
        Const, Enum, Fn, Mod, Static, Struct, Trait, TraitAlias, Type, Union, Use
    )
}
