//! The mount helper: what mount(8) runs for `mount -t cowshed`, `-t fuse.cowshed` and lines of
//! /etc/fstab, `mount.cowshed SOURCE DIR [-sfnvrw] [-o OPTIONS] [-t TYPE]`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::commands::mount::{self, MountArgs};
use crate::mount_options;

/// The names under which this program is the helper.
const NAMES: &[&str] = &["mount.cowshed", "mount.fuse.cowshed", "mount.fuseblk.cowshed"];

/// Exit codes of mount(8): what was asked for is wrong, and the mount failed.
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Options that are for mount(8) itself, and which it may pass on.
const FOR_MOUNT: &[&str] = &[
    "user", "users", "owner", "group", "helper", "uhelper", "comment", "loop",
];

/// What the helper was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    paths: Vec<PathBuf>,
    options: Vec<String>,
    verbose: u8,
    /// Only pretend.
    fake: bool,
    /// Options that are not understood are left out.
    sloppy: bool,
}

/// Is the program called as the helper?
pub fn is_named(program: Option<&OsStr>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| NAMES.iter().any(|helper| name == *helper))
}

/// Runs the helper with the arguments behind the program's name. Returns its exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> u8 {
    let asked = match parse(args) {
        Ok(asked) => asked,
        Err(error) => {
            crate::people::warn(format_args!("mount.cowshed: {error:#}"));
            return USAGE;
        }
    };
    if asked.fake {
        return 0;
    }
    let args = MountArgs {
        paths: asked.paths,
        options: asked.options,
        foreground: false,
        read_only: false,
        verbose: asked.verbose,
        daemon: false,
    };
    match mount::run(&args) {
        Ok(0) => 0,
        Ok(_) => FAILED,
        Err(error) => {
            crate::people::warn(format_args!("mount.cowshed: {error:#}"));
            FAILED
        }
    }
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Asked> {
    let mut asked = Asked::default();
    let mut given = Vec::new();
    let mut is_over = false;
    while let Some(arg) = args.next() {
        let flags = arg.to_str().and_then(|text| text.strip_prefix('-'));
        let Some(flags) = flags.filter(|flags| !flags.is_empty() && !is_over) else {
            asked.paths.push(arg.into());
            continue;
        };
        if flags == "-" {
            is_over = true;
            continue;
        }
        for (at, flag) in flags.char_indices() {
            let mut value = || -> Result<String> {
                let rest = &flags[at + flag.len_utf8()..];
                let value = match rest.is_empty() {
                    true => args.next().with_context(|| format!("-{flag} needs a value"))?,
                    false => rest.into(),
                };
                value.into_string().ok().with_context(|| format!("-{flag}: not UTF-8"))
            };
            match flag {
                'o' => given.push(value()?),
                't' => drop(value()?),
                's' => asked.sloppy = true,
                'f' => asked.fake = true,
                'v' => asked.verbose = asked.verbose.saturating_add(1),
                'r' => given.push("ro".into()),
                // No mtab is written anyway.
                'n' | 'w' => {}
                _ => bail!("unknown option -{flag}"),
            }
            if matches!(flag, 'o' | 't') {
                break;
            }
        }
    }
    if asked.paths.len() != 2 {
        bail!("usage: mount.cowshed SOURCE DIR [-sfnvrw] [-o OPTIONS] [-t TYPE]");
    }
    let words = given.iter().flat_map(|given| given.split(','));
    asked.options = words
        .filter(|word| is_for_us(word, asked.sloppy))
        .map(str::to_owned)
        .collect();
    Ok(asked)
}

fn is_for_us(option: &str, sloppy: bool) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    let is_understood = || mount_options::parse(&[option.to_owned()]).is_ok();
    !option.is_empty() && !FOR_MOUNT.contains(&name) && (!sloppy || is_understood())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Asked> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn helper_is_known_by_its_name() {
        for name in [
            "/sbin/mount.cowshed",
            "mount.fuse.cowshed",
            "/usr/sbin/mount.fuseblk.cowshed",
        ] {
            assert!(is_named(Some(name.as_ref())), "{name}");
        }
        for name in ["cowshed", "/usr/bin/cowshed", "mount.cowshed2", "mount"] {
            assert!(!is_named(Some(name.as_ref())), "{name}");
        }
        assert!(!is_named(None));
    }

    #[test]
    fn arguments_are_those_of_mount_helpers() {
        let asked = parsed("/img /mnt -o rw,subvol=@,user=me,,x-y=z -t fuse.cowshed -nv").unwrap();
        let expected = Asked {
            paths: vec!["/img".into(), "/mnt".into()],
            options: vec!["rw".into(), "subvol=@".into(), "x-y=z".into()],
            verbose: 1,
            ..Asked::default()
        };
        assert_eq!(asked, expected);
        let asked = parsed("-f -orw /img -- -mnt").unwrap();
        assert!(asked.fake);
        assert_eq!(
            (asked.paths[1].clone(), &asked.options[..]),
            ("-mnt".into(), &["rw".to_owned()][..])
        );
        let sloppy = parsed("a b -s -o wobble,noatime").unwrap();
        assert_eq!(sloppy.options, ["noatime"]);
        assert_eq!(
            parsed("a b -o wobble").unwrap().options,
            ["wobble"],
            "refused by the mount"
        );
        for (line, part) in [
            ("a", "usage"),
            ("a b c", "usage"),
            ("a b -o", "-o needs"),
            ("a b -x", "-x"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
