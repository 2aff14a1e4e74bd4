//! `cowshed setfattr`, `getfattr`, `chattr`, `lsattr`: extended attributes and flags.

use std::ffi::OsString;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use cowshed_device::OpenMode;

use super::image::Image;
use super::session::{Place, Session, reason};
use super::side::{Follow, Side as _};
use super::walk::{Descend, When, walk};
use crate::people::printable;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct SetfattrArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The attribute to set
    #[arg(short, long, conflicts_with = "remove", required_unless_present = "remove")]
    name: Option<OsString>,
    /// Its value: text, 0xHEX, or 0sBASE64
    #[arg(short, long, requires = "name")]
    value: Option<OsString>,
    /// The attribute to remove
    #[arg(short = 'x', long)]
    remove: Option<OsString>,
    /// Symbolic links themselves
    #[arg(short = 'h', long)]
    no_dereference: bool,
}

/// The place itself, or what the symbolic link there leads to.
fn resolved(image: &Image, place: &Place, is_itself: bool) -> std::io::Result<PathBuf> {
    let mut path = place.path.clone();
    let mut hops = 0;
    while !is_itself && image.stat(&path, Follow::No)?.is_symlink() {
        hops += 1;
        if hops > 40 {
            return Err(std::io::Error::from_raw_os_error(libc::ELOOP));
        }
        let target = image.read_link(&path)?;
        path = path.parent().unwrap_or(&path).join(target);
    }
    Ok(path)
}

pub fn run_setfattr(args: &SetfattrArgs, session: &Session<'_>) -> Result<()> {
    let value = match &args.value {
        None => Vec::new(),
        Some(value) => match decoded(value.as_bytes()) {
            Some(value) => value,
            None => bail!("bad input encoding"),
        },
    };
    for path in &args.paths {
        let (image, place) = session.in_image(path, OpenMode::ReadWrite)?;
        let done = resolved(&image, &place, args.no_dereference).and_then(|path| match (&args.name, &args.remove) {
            (Some(name), _) => image.set_xattr(&path, name.as_bytes(), &value),
            (None, Some(name)) => image.remove_xattr(&path, name.as_bytes()),
            (None, None) => Ok(()),
        });
        if let Err(error) = done {
            session.complain(format_args!("{}: {}", printable(&place.shown), reason(&error)));
        }
    }
    Ok(())
}

/// A value as setfattr(1) takes it.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    if let Some(hex) = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) {
        let digits: Vec<u8> = hex
            .iter()
            .map(|byte| char::from(*byte).to_digit(16).map(|digit| digit as u8))
            .collect::<Option<_>>()?;
        return digits
            .len()
            .is_multiple_of(2)
            .then(|| digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect());
    }
    if let Some(text) = text.strip_prefix(b"0s").or(text.strip_prefix(b"0S")) {
        let mut value = Vec::new();
        let (mut bits, mut count) = (0_u32, 0);
        for byte in text.iter().filter(|byte| **byte != b'=') {
            let digit = BASE64.iter().position(|known| known == byte)?;
            bits = bits << 6 | digit as u32;
            count += 6;
            if count >= 8 {
                count -= 8;
                value.push((bits >> count) as u8);
            }
        }
        return Some(value);
    }
    let text = text
        .strip_prefix(b"\"")
        .and_then(|text| text.strip_suffix(b"\""))
        .unwrap_or(text);
    Some(text.to_vec())
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(value: &[u8]) -> String {
    let mut text = String::from("0s");
    for three in value.chunks(3) {
        let bits = three
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for at in 0..4 {
            let digit = BASE64[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= three.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct GetfattrArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// With values
    #[arg(short, long)]
    dump: bool,
    /// This attribute
    #[arg(short, long)]
    name: Option<OsString>,
    /// Names that begin with user. (the default is that), or - for all
    #[arg(short, long = "match", value_name = "PREFIX", allow_hyphen_values = true)]
    matching: Option<String>,
    /// The value alone, with --name
    #[arg(long)]
    only_values: bool,
    /// How values are shown: text, hex or base64
    #[arg(short, long)]
    encoding: Option<String>,
    /// Symbolic links themselves
    #[arg(short = 'h', long)]
    no_dereference: bool,
}

pub fn run_getfattr(args: &GetfattrArgs, session: &Session<'_>) -> Result<()> {
    let prefix = match args.matching.as_deref() {
        None => "user.",
        Some("-") => "",
        Some(prefix) => prefix
            .trim_start_matches('^')
            .trim_end_matches("\\.")
            .trim_end_matches('.'),
    };
    let mut out = std::io::stdout().lock();
    for path in &args.paths {
        let (image, place) = session.in_image(path, OpenMode::ReadOnly)?;
        let found = resolved(&image, &place, args.no_dereference).and_then(|path| image.xattrs(&path));
        let mut found = match found {
            Ok(found) => found,
            Err(error) => {
                session.complain(format_args!("{}: {}", printable(&place.shown), reason(&error)));
                continue;
            }
        };
        match &args.name {
            Some(name) => found.retain(|(own, _)| own == name.as_bytes()),
            None => found.retain(|(own, _)| own.starts_with(prefix.as_bytes())),
        }
        if found.is_empty() {
            if let Some(name) = &args.name {
                session.complain(format_args!(
                    "{}: {}: No such attribute",
                    printable(&place.shown),
                    printable(name)
                ));
            }
            continue;
        }
        if args.only_values {
            for (_, value) in &found {
                out.write_all(value)?;
            }
            continue;
        }
        writeln!(out, "# file: {}", printable(&place.shown))?;
        for (name, value) in &found {
            out.write_all(name)?;
            if args.dump || args.name.is_some() {
                writeln!(out, "={}", encoded(value, args.encoding.as_deref()))?;
            } else {
                writeln!(out)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn encoded(value: &[u8], how: Option<&str>) -> String {
    let is_text = value.iter().all(|byte| (0x20..0x7f).contains(byte));
    match how {
        Some("hex") => {
            let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{digits}")
        }
        Some("base64") => base64(value),
        Some(_) => format!("\"{}\"", escaped(value)),
        None if is_text => format!("\"{}\"", escaped(value)),
        None => base64(value),
    }
}

fn escaped(value: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(*byte)),
        0x20..0x7f => char::from(*byte).to_string(),
        byte => format!("\\{byte:03o}"),
    };
    value.iter().map(escape).collect()
}

/// Letters of chattr(1) with the `FS_*_FL` bit of each, in the order of lsattr(1).
const FLAGS: [(char, u32); 9] = [
    ('s', 0x1),
    ('u', 0x2),
    ('S', 0x8),
    ('D', 0x1_0000),
    ('i', 0x10),
    ('a', 0x20),
    ('d', 0x40),
    ('A', 0x80),
    ('c', 0x4),
];
/// Behind those, and what lies between shown as dashes: compress, no compression, no copy on write.
const MORE_FLAGS: [(char, u32); 2] = [('m', 0x400), ('C', 0x80_0000)];

#[derive(Args, Debug)]
pub struct ChattrArgs {
    /// +FLAGS, -FLAGS or =FLAGS of aAcCdDiSm
    #[arg(allow_hyphen_values = true)]
    change: String,
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What is in directories, too
    #[arg(short = 'R')]
    recursive: bool,
}

pub fn run_chattr(args: &ChattrArgs, session: &Session<'_>) -> Result<()> {
    let mut letters = args.change.chars();
    let op = letters.next().filter(|op| matches!(op, '+' | '-' | '='));
    let mut bits = 0;
    for letter in letters {
        match FLAGS.iter().chain(&MORE_FLAGS).find(|(known, _)| *known == letter) {
            Some((_, bit)) => bits |= bit,
            None => bail!("no flag '{letter}'"),
        }
    }
    let Some(op) = op else {
        bail!("must use '-', '=' or '+'")
    };
    let all: u32 = FLAGS.iter().chain(&MORE_FLAGS).map(|(_, bit)| bit).sum();
    for path in &args.paths {
        let (image, place) = session.in_image(path, OpenMode::ReadWrite)?;
        visit_each(session, &place, args.recursive, &mut |place| {
            let set = image.flags(&place.path).and_then(|old| {
                let new = match op {
                    '+' => old | bits,
                    '-' => old & !bits,
                    _ => (old & !all) | bits,
                };
                image.set_flags(&place.path, new)
            });
            if let Err(error) = set {
                session.complain(format_args!(
                    "{} while setting flags on {}",
                    reason(&error),
                    printable(&place.shown)
                ));
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Files and directories, below a start where it is asked for.
fn visit_each(
    session: &Session<'_>,
    start: &Place,
    is_deep: bool,
    run: &mut dyn FnMut(&Place) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut result = Ok(());
    let _ = walk(start, Follow::No, &mut |seen| match seen {
        Ok(visit) if visit.when == When::Before => {
            if matches!(
                visit.stat.kind,
                cowshed::FileKind::Regular | cowshed::FileKind::Directory
            ) {
                result = run(visit.place);
            }
            match result.is_ok() {
                true if is_deep => ControlFlow::Continue(Descend::Yes),
                true => ControlFlow::Continue(Descend::No),
                false => ControlFlow::Break(()),
            }
        }
        Ok(_) => ControlFlow::Continue(Descend::No),
        Err((place, error)) => {
            session.complain(format_args!(
                "{} while trying to stat {}",
                reason(&error),
                printable(&place.shown)
            ));
            ControlFlow::Continue(Descend::No)
        }
    });
    result
}

#[derive(Args, Debug)]
pub struct LsattrArgs {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What is in directories, too
    #[arg(short = 'R')]
    recursive: bool,
}

pub fn run_lsattr(args: &LsattrArgs, session: &Session<'_>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for path in &args.paths {
        let (image, place) = session.in_image(path, OpenMode::ReadOnly)?;
        visit_each(
            session,
            &place,
            args.recursive,
            &mut |place| match image.flags(&place.path) {
                Ok(flags) => {
                    let letter = |(letter, bit): &(char, u32)| if flags & bit != 0 { *letter } else { '-' };
                    let text: String = FLAGS.iter().chain(&MORE_FLAGS).map(letter).collect();
                    writeln!(out, "{text} {}", printable(&place.shown))
                }
                Err(error) => {
                    session.complain(format_args!(
                        "{} while reading flags on {}",
                        reason(&error),
                        printable(&place.shown)
                    ));
                    Ok(())
                }
            },
        )?;
    }
    Ok(())
}
