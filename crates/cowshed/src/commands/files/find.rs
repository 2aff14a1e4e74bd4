//! `cowshed find`: tests and actions joined by "and".

use std::ffi::OsString;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use cowshed::{FileKind, Timestamp};
use cowshed_device::OpenMode;

use super::session::{Place, Session};
use super::side::{Follow, Stat};
use super::walk::{Descend, When, walk};

#[derive(Args, Debug)]
#[command(after_help = "\
Tests: -name GLOB, -iname GLOB, -path GLOB, -type [fdlbcps], -size [+-]N[cwbkMG], -empty, -newer PATH, -perm [-/]MODE, \
-uid N, -gid N, -links N, -inum N; ! before a test says the opposite. -mindepth N, -maxdepth N, -depth. \
Actions: -print, -print0, -delete.")]
pub struct FindArgs {
    /// IMAGE:/PATH, then tests and actions as find(1) has them
    #[arg(
        required = true,
        value_name = "WORD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Than {
    Less,
    Same,
    More,
}

impl Than {
    fn holds(self, have: u64, want: u64) -> bool {
        match self {
            Than::Less => have < want,
            Than::Same => have == want,
            Than::More => have > want,
        }
    }
}

enum Test {
    Name {
        glob: Vec<u8>,
        ignores_case: bool,
    },
    Path(Vec<u8>),
    Kinds(Vec<FileKind>),
    Size {
        than: Than,
        count: u64,
        unit_bytes: u64,
    },
    Empty,
    Newer(Timestamp),
    /// All these bits, some of them, or exactly they.
    Perm {
        bits: u32,
        how: char,
    },
    Number {
        of: fn(&Stat) -> u64,
        than: Than,
        count: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Print(&'static [u8]),
    Delete,
}

#[derive(Default)]
struct Plan {
    tests: Vec<(bool, Test)>,
    actions: Vec<Action>,
    depth_min: usize,
    depth_max: Option<usize>,
    is_depth_first: bool,
}

pub fn run(args: &FindArgs, session: &Session<'_>) -> Result<()> {
    let is_word = |word: &OsString| word.as_bytes().starts_with(b"-") || word == "!";
    let split = args.words.iter().position(is_word).unwrap_or(args.words.len());
    let (starts, words) = args.words.split_at(split);
    let plan = parse(session, words)?;
    let mode = match plan.actions.contains(&Action::Delete) {
        true => OpenMode::ReadWrite,
        false => OpenMode::ReadOnly,
    };
    if starts.is_empty() {
        bail!("no path to start at");
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for start in starts {
        let (_, place) = session.in_image(&PathBuf::from(start), mode)?;
        let mut result = Ok(());
        let _ = walk(&place, Follow::No, &mut |seen| {
            let visit = match seen {
                Ok(visit) => visit,
                Err((place, error)) => {
                    session.complain(format_args!("{}: {}", place.quoted(), super::session::reason(&error)));
                    return ControlFlow::Continue(Descend::No);
                }
            };
            let is_time = match visit.stat.is_dir() && plan.is_depth_first {
                true => visit.when == When::After,
                false => visit.when == When::Before,
            };
            if is_time && visit.depth >= plan.depth_min {
                result = act(&plan, session, &mut out, visit.place, visit.stat);
            }
            let is_deep_enough = plan.depth_max.is_some_and(|max| visit.depth >= max);
            match result {
                Err(_) => ControlFlow::Break(()),
                Ok(()) if is_deep_enough => ControlFlow::Continue(Descend::No),
                Ok(()) => ControlFlow::Continue(Descend::Yes),
            }
        });
        result?;
    }
    out.flush()?;
    Ok(())
}

fn act(plan: &Plan, session: &Session<'_>, out: &mut impl std::io::Write, place: &Place, stat: &Stat) -> Result<()> {
    let mut rest = plan.tests.iter();
    if !rest.all(|(wanted, test)| test.holds(place, stat) == *wanted) {
        return Ok(());
    }
    for action in &plan.actions {
        match action {
            Action::Print(end) => {
                out.write_all(place.shown.as_bytes())?;
                out.write_all(end)?;
            }
            Action::Delete => {
                let done = match stat.is_dir() {
                    true => place.side.remove_dir(&place.path),
                    false => place.side.unlink(&place.path),
                };
                if let Err(error) = done {
                    session.cannot("delete", place, &error);
                }
            }
        }
    }
    Ok(())
}

impl Test {
    fn holds(&self, place: &Place, stat: &Stat) -> bool {
        match self {
            Test::Name { glob, ignores_case } => {
                let name = place.name();
                let name = if name.is_empty() { "/".into() } else { name };
                match ignores_case {
                    true => matches(&glob.to_ascii_lowercase(), &name.as_bytes().to_ascii_lowercase()),
                    false => matches(glob, name.as_bytes()),
                }
            }
            Test::Path(glob) => matches(glob, place.shown.as_bytes()),
            Test::Kinds(kinds) => kinds.contains(&stat.kind),
            Test::Size {
                than,
                count,
                unit_bytes,
            } => than.holds(stat.size_bytes.div_ceil(*unit_bytes), *count),
            Test::Empty => match stat.kind {
                FileKind::Regular => stat.size_bytes == 0,
                FileKind::Directory => place.side.names(&place.path).is_ok_and(|names| names.is_empty()),
                _ => false,
            },
            Test::Newer(than) => stat.mtime > *than,
            Test::Perm { bits, how } => match how {
                '-' => stat.perm & bits == *bits,
                '/' => *bits == 0 || stat.perm & bits != 0,
                _ => stat.perm == *bits,
            },
            Test::Number { of, than, count } => than.holds(of(stat), *count),
        }
    }
}

fn number(text: &str) -> Option<(Than, u64)> {
    let (than, digits) = match text.split_at_checked(1) {
        Some(("+", digits)) => (Than::More, digits),
        Some(("-", digits)) => (Than::Less, digits),
        _ => (Than::Same, text),
    };
    Some((than, digits.parse().ok()?))
}

fn parse(session: &Session<'_>, words: &[OsString]) -> Result<Plan> {
    let mut plan = Plan::default();
    let mut wanted = true;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(name) = word.to_str() else {
            bail!("unknown predicate '{}'", word.display());
        };
        if matches!(name, "!" | "-not") {
            wanted = !wanted;
            continue;
        }
        let mut value = || match words.next() {
            Some(value) => Ok(value),
            None => Err(anyhow::anyhow!("missing argument to '{name}'")),
        };
        let bad = |value: &OsString| anyhow::anyhow!("invalid argument '{}' to '{name}'", value.display());
        let test = match name {
            "-a" | "-and" => continue,
            "-print" => {
                plan.actions.push(Action::Print(b"\n"));
                continue;
            }
            "-print0" => {
                plan.actions.push(Action::Print(b"\0"));
                continue;
            }
            "-delete" => {
                plan.actions.push(Action::Delete);
                plan.is_depth_first = true;
                continue;
            }
            "-depth" | "-d" => {
                plan.is_depth_first = true;
                continue;
            }
            "-maxdepth" | "-mindepth" => {
                let value = value()?;
                let depth = value
                    .to_str()
                    .and_then(|text| text.parse().ok())
                    .ok_or_else(|| bad(value))?;
                match name {
                    "-maxdepth" => plan.depth_max = Some(depth),
                    _ => plan.depth_min = depth,
                }
                continue;
            }
            "-name" | "-iname" => Test::Name {
                glob: value()?.as_bytes().to_vec(),
                ignores_case: name == "-iname",
            },
            "-path" | "-wholename" => Test::Path(value()?.as_bytes().to_vec()),
            "-empty" => Test::Empty,
            "-type" => {
                let value = value()?;
                let kind = |letter: &[u8]| match letter {
                    b"f" => Some(FileKind::Regular),
                    b"d" => Some(FileKind::Directory),
                    b"l" => Some(FileKind::Symlink),
                    b"b" => Some(FileKind::BlockDevice),
                    b"c" => Some(FileKind::CharDevice),
                    b"p" => Some(FileKind::Fifo),
                    b"s" => Some(FileKind::Socket),
                    _ => None,
                };
                let kinds: Option<Vec<_>> = value.as_bytes().split(|byte| *byte == b',').map(kind).collect();
                Test::Kinds(kinds.ok_or_else(|| bad(value))?)
            }
            "-size" => {
                let value = value()?;
                let text = value.to_str().ok_or_else(|| bad(value))?;
                let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let unit_bytes = match &text[digits.len()..] {
                    "" | "b" => 512,
                    "c" => 1,
                    "w" => 2,
                    "k" => 1 << 10,
                    "M" => 1 << 20,
                    "G" => 1 << 30,
                    _ => return Err(bad(value)),
                };
                let (than, count) = number(digits).ok_or_else(|| bad(value))?;
                Test::Size {
                    than,
                    count,
                    unit_bytes,
                }
            }
            "-newer" => {
                let value = value()?;
                let place = session.place(&PathBuf::from(value), OpenMode::ReadOnly)?;
                match place.stat(Follow::No) {
                    Ok(stat) => Test::Newer(stat.mtime),
                    Err(error) => bail!("{}: {}", place.quoted(), super::session::reason(&error)),
                }
            }
            "-perm" => {
                let value = value()?;
                let text = value.to_str().ok_or_else(|| bad(value))?;
                let how = text.chars().next().filter(|c| matches!(c, '-' | '/')).unwrap_or('=');
                let mode = text.strip_prefix(['-', '/']).unwrap_or(text);
                let change: super::modes::ModeChange = mode.parse().map_err(|_| bad(value))?;
                Test::Perm {
                    bits: change.apply(0, false, 0),
                    how,
                }
            }
            "-uid" | "-gid" | "-links" | "-inum" => {
                let value = value()?;
                let (than, count) = value.to_str().and_then(number).ok_or_else(|| bad(value))?;
                let of: fn(&Stat) -> u64 = match name {
                    "-uid" => |stat| stat.uid.into(),
                    "-gid" => |stat| stat.gid.into(),
                    "-links" => |stat| stat.nlink.into(),
                    _ => |stat| stat.ino,
                };
                Test::Number { of, than, count }
            }
            _ => bail!("unknown predicate '{name}'"),
        };
        plan.tests.push((wanted, test));
        wanted = true;
    }
    if plan.actions.is_empty() {
        plan.actions.push(Action::Print(b"\n"));
    }
    Ok(plan)
}

/// A shell pattern over all of a name: `*`, `?`, `[...]`, and a backslash before what is meant as
/// it is.
fn matches(glob: &[u8], name: &[u8]) -> bool {
    // Where to go on if what follows the last star does not fit.
    let (mut at, mut in_name) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while in_name < name.len() || at < glob.len() {
        if glob.get(at) == Some(&b'*') {
            retry = Some((at, in_name + 1));
            at += 1;
            continue;
        }
        if let Some(byte) = name.get(in_name)
            && let Some(len) = one(&glob[at..], *byte)
        {
            at += len;
            in_name += 1;
            continue;
        }
        match retry {
            Some((star, next)) if next <= name.len() => {
                retry = Some((star, next + 1));
                (at, in_name) = (star + 1, next);
            }
            _ => return false,
        }
    }
    true
}

/// The length of the pattern's first part if it takes the byte.
fn one(glob: &[u8], byte: u8) -> Option<usize> {
    match glob {
        [b'?', ..] => Some(1),
        [b'\\', own, ..] => (*own == byte).then_some(2),
        [b'[', rest @ ..] => {
            let negated = matches!(rest.first(), Some(b'!' | b'^'));
            let start = usize::from(negated);
            let end = rest.iter().skip(start + 1).position(|own| *own == b']');
            let Some(end) = end.map(|end| end + start + 1) else {
                return (byte == b'[').then_some(1);
            };
            let set = &rest[start..end];
            let (mut at, mut is_in) = (0, false);
            while at < set.len() {
                match set.get(at..at + 3) {
                    Some([low, b'-', high]) => {
                        is_in |= (*low..=*high).contains(&byte);
                        at += 3;
                    }
                    _ => {
                        is_in |= set[at] == byte;
                        at += 1;
                    }
                }
            }
            (is_in != negated).then_some(end + 2)
        }
        [own, ..] => (*own == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn globs_fit_whole_names() {
        for (glob, name, fits) in [
            ("*.rs", "a.rs", true),
            ("*.rs", "a.rst", false),
            ("a?c", "abc", true),
            ("[a-c]*z", "buzz", true),
            ("[!a-c]*", "buzz", false),
            ("*a*b*", "xxaxxbxx", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("", "", true),
            ("*", "", true),
        ] {
            assert_eq!(matches(glob.as_bytes(), name.as_bytes()), fits, "{glob} {name}");
        }
    }
}
