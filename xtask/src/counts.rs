//! `cargo xtask counts`: how large the code is and how far from its own rules, read from the
//! sources.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args as ClapArgs;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Visibility};

use crate::sources::{self, Package, circles, is_test_only};
use crate::{arrows, run};

/// Words that make a story of a technical fact.
const STORY_WORDS: [&str; 5] = ["who", "whoever", "somebody", "nobody", "he"];
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 800;

/// Sums of a group of packages.
#[derive(Default)]
struct Counts {
    production: usize,
    /// Of these, lines that are neither blank nor only a comment.
    production_code: usize,
    test: usize,
    files_in_circles: usize,
    modules_in_circles: usize,
    public: usize,
    undocumented: usize,
    story_comments: usize,
    longest_comment: (usize, String),
    long_functions: usize,
    long_files: usize,
}

#[derive(ClapArgs)]
pub struct Args {
    /// Count another checkout, to compare with it
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

pub fn main(args: &Args) -> Result<()> {
    let root = args.root.clone().unwrap_or_else(run::root).canonicalize()?;
    let packages = sources::packages(&root)?;
    let is_product = |package: &&Package| package.dir.starts_with("crates");
    let (product, tests): (Vec<_>, Vec<_>) = packages.iter().partition(is_product);
    let (product, tests) = (count(&root, &product)?, count(&root, &tests)?);
    println!("{:<42}{:>12}{:>18}", "", "crates", "tests and tools");
    let line = |what: &str, of: fn(&Counts) -> usize| println!("{what:<42}{:>12}{:>18}", of(&product), of(&tests));
    line("lines of production code", |c| c.production);
    line("  without comments and blank lines", |c| c.production_code);
    line("lines of test code", |c| c.test);
    line("modules in circles", |c| c.modules_in_circles);
    line("files in circles", |c| c.files_in_circles);
    line("public items", |c| c.public);
    line("undocumented public items", |c| c.undocumented);
    line("comment lines with who, nobody, ...", |c| c.story_comments);
    line("longest comment line, columns", |c| c.longest_comment.0);
    line("functions of more than 70 lines", |c| c.long_functions);
    line("files of more than 800 lines", |c| c.long_files);
    println!(
        "longest comments: {}, {}",
        product.longest_comment.1, tests.longest_comment.1
    );
    Ok(())
}

fn count(root: &Path, packages: &[&Package]) -> Result<Counts> {
    let mut counts = Counts::default();
    for package in packages {
        let compiled: BTreeSet<&Path> = package.modules.iter().map(|module| module.file.as_path()).collect();
        let mut files = Vec::new();
        rust_files(&root.join(&package.dir), &mut files)?;
        for file in files {
            let name = file.strip_prefix(root)?.to_owned();
            let text = std::fs::read_to_string(&file)?;
            counts
                .file(&name, &text, compiled.contains(name.as_path()))
                .with_context(|| name.display().to_string())?;
        }
        let arrows = package.arrows();
        let ends = arrows
            .iter()
            .map(|arrow| (arrow.from.file.to_str(), arrow.to.file.to_str()));
        let ends = ends.filter_map(|(from, to)| Some((from?, to?)));
        counts.files_in_circles += circles(ends).iter().map(Vec::len).sum::<usize>();
        counts.modules_in_circles += arrows::modules_in_circles(&arrows);
    }
    Ok(counts)
}

fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

impl Counts {
    fn file(&mut self, name: &Path, text: &str, is_production: bool) -> Result<()> {
        let mut items = Items::default();
        items.visit_file(&syn::parse_file(text)?);
        let lines = text.lines().count();
        let in_tests = items.test_ranges.iter().map(|range| range.len()).sum();
        let test = if is_production { in_tests } else { lines };
        self.production += lines - test;
        self.test += test;
        if is_production {
            let lines = text.lines().enumerate();
            let outside = lines.filter(|(i, _)| !items.test_ranges.iter().any(|range| range.contains(&(i + 1))));
            self.production_code += outside.filter(|(_, line)| is_code(line)).count();
        }
        self.long_files += usize::from(lines > FILE_LINES_MAX);
        self.long_functions += items.long_functions;
        if is_production {
            self.public += items.public;
            self.undocumented += items.undocumented;
        }
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = comment_of(line) else { continue };
            let mut words = comment.split(|c: char| !c.is_alphanumeric() && c != '`');
            self.story_comments += usize::from(words.any(is_story_word));
            let columns = line.chars().count();
            if columns > self.longest_comment.0 {
                self.longest_comment = (columns, format!("{}:{}", name.display(), number + 1));
            }
        }
        Ok(())
    }
}

fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

/// The comment of a line, if it has one; a line of a string is not told from it.
fn comment_of(line: &str) -> Option<&str> {
    let trimmed = line.trim_start();
    trimmed.strip_prefix("//").or_else(|| Some(line.split_once(" // ")?.1))
}

fn is_story_word(word: &str) -> bool {
    STORY_WORDS.iter().any(|story| word.eq_ignore_ascii_case(story))
}

/// What the syntax of a file tells.
#[derive(Default)]
struct Items {
    /// Lines of items that only tests compile.
    test_ranges: Vec<Range<usize>>,
    public: usize,
    undocumented: usize,
    long_functions: usize,
    /// Within an item that is not public, or an `impl` of a trait: what it holds is not counted.
    hidden: usize,
}

impl Items {
    fn note(&mut self, attributes: &[Attribute]) {
        if self.hidden == 0 {
            self.public += 1;
            let has_doc = attributes.iter().any(|attribute| attribute.path().is_ident("doc"));
            self.undocumented += usize::from(!has_doc);
        }
    }

    fn function(&mut self, span: proc_macro2::Span) {
        let lines = span.end().line - span.start().line + 1;
        self.long_functions += usize::from(lines > FUNCTION_LINES_MAX);
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let Some((attributes, visibility)) = sources::attributes(item) else {
            return;
        };
        if is_test_only(attributes) {
            let span = item.span();
            self.test_ranges.push(span.start().line..span.end().line + 1);
            return;
        }
        if let syn::Item::Fn(function) = item {
            self.function(function.block.span());
        }
        let is_public = visibility.is_none_or(|visibility| matches!(visibility, Visibility::Public(_)));
        let is_trait_impl = matches!(item, syn::Item::Impl(block) if block.trait_.is_some());
        if visibility.is_some() && is_public && !matches!(item, syn::Item::Use(_)) {
            self.note(attributes);
        }
        let hides = (!is_public && !matches!(item, syn::Item::Mod(_))) || is_trait_impl;
        self.hidden += usize::from(hides);
        visit::visit_item(self, item);
        self.hidden -= usize::from(hides);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(function.block.span());
        if matches!(function.vis, Visibility::Public(_)) {
            self.note(&function.attrs);
        }
        self.hidden += 1;
        visit::visit_impl_item_fn(self, function);
        self.hidden -= 1;
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.note(&function.attrs);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.note(&variant.attrs);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if matches!(field.vis, Visibility::Public(_)) && field.ident.is_some() {
            self.note(&field.attrs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_words_of_a_file_are_counted() {
        let text = [
            "/// Documented.",
            "pub struct A { pub a: u8, b: u8 }",
            "pub(crate) struct B { pub c: u8 }",
            "// Who made it?",
            "impl A {",
            "    pub fn f(&self) {}",
            "}",
            "impl Clone for A {",
            "    fn clone(&self) -> A { todo!() }",
            "}",
            "#[cfg(test)]",
            "mod tests {",
            "    pub struct C; // nobody, the whole `who`",
            "}",
        ]
        .join("\n");
        let text = &text;
        let mut counts = Counts::default();
        counts.file(Path::new("a.rs"), text, true).unwrap();
        assert_eq!((counts.production, counts.production_code, counts.test), (10, 8, 4));
        assert_eq!(
            (counts.public, counts.undocumented),
            (3, 2),
            "A, a, f; only A is documented"
        );
        assert_eq!(counts.story_comments, 2);
        assert_eq!(counts.longest_comment, (44, "a.rs:13".to_owned()));
        counts
            .file(
                Path::new("b.rs"),
                &format!("fn f() {{\n{}}}\n", "    f();\n".repeat(69)),
                false,
            )
            .unwrap();
        assert_eq!((counts.long_functions, counts.test), (1, 75));
    }
}
