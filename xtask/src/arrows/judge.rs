//! Holds the tables against the code. Both ways: what the code does and the table does not allow is
//! a fault, and so is what the table allows and the code does not do.

use std::collections::{BTreeMap, BTreeSet};

use super::table::{Block, Line, TABLES, Tables};
use crate::sources::{Arrow, Package, circles};

#[derive(Debug, Default)]
pub struct Report {
    pub crates: usize,
    pub modules: usize,
    pub arrows: usize,
    /// Crates whose modules are not drawn yet, with the number of their modules in circles.
    pub not_yet: Vec<(String, usize)>,
    pub faults: Vec<String>,
}

pub fn judge(tables: &Tables, packages: &[Package]) -> Report {
    let mut report = Report {
        crates: packages.len(),
        ..Report::default()
    };
    crates(tables, packages, &mut report);
    for package in packages {
        let arrows = package.arrows();
        match tables.modules.get(&package.name) {
            Some(block) if block.is_not_yet => {
                report.not_yet.push((package.name.clone(), modules_in_circles(&arrows)));
            }
            Some(block) => modules(package, block, &arrows, &mut report),
            None if is_product(package) => report.faults.push(format!("{TABLES}: no modules of {}", package.name)),
            None => {
                let tops = arrows.iter().map(|arrow| (top(&arrow.from.name), top(&arrow.to.name)));
                circle_faults(&package.name, tops, &mut report.faults);
            }
        }
    }
    for name in tables
        .modules
        .keys()
        .filter(|name| !packages.iter().any(|package| package.name == **name))
    {
        report
            .faults
            .push(format!("{TABLES}: modules of {name}, which is no crate"));
    }
    report
}

/// Crates of the product are drawn; those of the tests and tools have to be free of circles.
fn is_product(package: &Package) -> bool {
    package.dir.starts_with("crates")
}

/// The format on disk that a crate is about.
fn format_of(name: &str) -> Option<&'static str> {
    ["btrfs", "xfs"].into_iter().find(|format| name.contains(format))
}

fn crates(tables: &Tables, packages: &[Package], report: &mut Report) {
    let product: Vec<&Package> = packages.iter().filter(|package| is_product(package)).collect();
    let drawn = product
        .iter()
        .flat_map(|package| package.needs.iter().map(|need| (&*package.name, &**need)));
    let code: BTreeMap<(&str, &str), String> = drawn
        .map(|(from, to)| {
            (
                (from, to),
                format!(
                    "{}/Cargo.toml",
                    product.iter().find(|p| p.name == from).unwrap().dir.display()
                ),
            )
        })
        .collect();
    let names: BTreeSet<&str> = product.iter().map(|package| &*package.name).collect();
    compare("crates", &tables.crates, &names, &code, &mut report.faults);
    for ((from, to), place) in &code {
        let is_foreign = match (format_of(from), format_of(to)) {
            (Some(from), Some(to)) => from != to,
            (None, Some(_)) => *from != "cowshed",
            (_, None) => false,
        };
        if is_foreign {
            report.faults.push(format!("{place}: {from} names a format: {to}"));
        }
    }
    report.arrows += code.len();
}

fn modules(package: &Package, block: &Block, arrows: &[Arrow<'_>], report: &mut Report) {
    let line_of = |name: &str| {
        block
            .line_of(name)
            .map(|line| line.name.clone())
            .unwrap_or_else(|| top(name).to_owned())
    };
    let drawn: Vec<(String, String, &Arrow<'_>)> = arrows
        .iter()
        .map(|arrow| (line_of(&arrow.from.name), line_of(&arrow.to.name), arrow))
        .collect();
    let mut code: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for (from, to, arrow) in drawn.iter().filter(|(from, to, _)| from != to) {
        let place = || format!("{}:{}", arrow.from.file.display(), arrow.line);
        code.entry((from, to)).or_insert_with(place);
    }
    // A face needs no line: arrows to it lead to what is behind it.
    let drawn_ones = package.modules.iter().filter(|module| !module.is_face());
    let names: Vec<String> = drawn_ones.map(|module| line_of(&module.name)).collect();
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    compare(&package.name, &block.lines, &names, &code, &mut report.faults);
    for line in &block.lines {
        let inside = drawn
            .iter()
            .filter(|(from, to, _)| *from == line.name && *to == line.name);
        let files: Vec<(String, String)> = inside
            .map(|(_, _, arrow)| (file_of(arrow.from), file_of(arrow.to)))
            .collect();
        let files = files.iter().map(|(from, to)| (&**from, &**to));
        let mut faults = Vec::new();
        circle_faults(&package.name, files, &mut faults);
        match (line.is_one_thing, faults.is_empty()) {
            (false, _) => report.faults.extend(faults),
            (true, true) => report.faults.push(format!(
                "{TABLES}:{}: {}: {} has no circle and need not be one thing",
                line.number, package.name, line.name
            )),
            (true, false) => {}
        }
    }
    report.modules += names.len();
    report.arrows += code.len();
}

/// The lines of a table against the nodes and arrows of the code.
fn compare(
    what: &str,
    lines: &[Line],
    names: &BTreeSet<&str>,
    code: &BTreeMap<(&str, &str), String>,
    faults: &mut Vec<String>,
) {
    for name in names
        .iter()
        .filter(|name| !lines.iter().any(|line| line.name == **name))
    {
        faults.push(format!("{TABLES}: {what}: {name} is missing"));
    }
    for (i, line) in lines.iter().enumerate() {
        let at = format!("{TABLES}:{}: {what}", line.number);
        if !names.contains(&*line.name) {
            faults.push(format!("{at}: there is no {}", line.name));
            continue;
        }
        for import in &line.imports {
            if !lines[i + 1..].iter().any(|below| below.name == *import) {
                faults.push(format!("{at}: {} -> {import} does not point down", line.name));
            }
            if !code.contains_key(&(&*line.name, &**import)) {
                faults.push(format!("{at}: {} -> {import} is not used", line.name));
            }
        }
    }
    for ((from, to), place) in code {
        let line = lines.iter().find(|line| line.name == *from);
        if line.is_some_and(|line| !line.imports.contains(*to)) {
            faults.push(format!("{place}: {what}: {from} -> {to} is not in the table"));
        }
    }
}

fn circle_faults<'a>(what: &str, arrows: impl Iterator<Item = (&'a str, &'a str)>, faults: &mut Vec<String>) {
    faults.extend(
        circles(arrows)
            .iter()
            .map(|circle| format!("{what}: circle of {}", circle.join(", "))),
    );
}

/// How many modules stand in circles, at the top level of a crate.
pub fn modules_in_circles(arrows: &[Arrow<'_>]) -> usize {
    circles(arrows.iter().map(|arrow| (top(&arrow.from.name), top(&arrow.to.name))))
        .iter()
        .map(Vec::len)
        .sum()
}

fn file_of(module: &crate::sources::Module) -> String {
    module.file.display().to_string()
}

fn top(module: &str) -> &str {
    module.split('/').next().unwrap_or(module)
}
