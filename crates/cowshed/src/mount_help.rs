//! The options of `mount -o`, described once: for `mount --help` and for the manual page.

use clap_mangen::roff::{Roff, bold, roman};

/// One option, or several that belong together, and what they do.
pub struct MountOption {
    pub names: &'static [&'static str],
    pub help: &'static str,
}

const fn option(names: &'static [&'static str], help: &'static str) -> MountOption {
    MountOption { names, help }
}

/// Options that do something, as in btrfs(5), xfs(5) and mount(8). A value is in capitals.
pub const OPTIONS: &[MountOption] = &[
    option(&["ro", "rw"], "read-only, read-write (default)"),
    option(
        &["subvol=PATH"],
        "the subvolume to show (default: the volume's default subvolume)",
    ),
    option(
        &["subvolid=ID"],
        "the subvolume to show, by number; with subvol= both must agree",
    ),
    option(&["device=PATH"], "a further device of the volume, besides the targets"),
    option(
        &["commit=SECONDS"],
        "seconds between commits that no sync asks for (default 30)",
    ),
    option(
        &["relatime"],
        "reading sets atime where it is older than mtime, or than a day (default)",
    ),
    option(&["noatime"], "reading never sets atime"),
    option(&["strictatime"], "reading always sets atime"),
    option(
        &["nodiratime", "diratime"],
        "reading directories does not set atime, or does (default)",
    ),
    option(&["nodatasum"], "files made from now on have no checksums"),
    option(
        &["nodatacow"],
        "files made from now on are overwritten in place, without checksums and compression",
    ),
    option(
        &["compress=HOW"],
        "compress what is written, where a sample says that it helps: zlib[:1-9], lzo, zstd[:-15..15], no",
    ),
    option(
        &["compress-force=HOW"],
        "as compress, without looking at a sample first",
    ),
    option(
        &["treelog", "notreelog"],
        "fsync writes a log (default), or makes a commit each time",
    ),
    option(
        &["discard=MODE"],
        "give freed space back to the device, an image file gets holes: async (some seconds later, default), \
         sync (with each commit; also discard alone), no",
    ),
    option(&["nodiscard"], "as discard=no"),
    option(&["degraded"], "mount although devices are missing"),
    option(
        &["rescue=MODES"],
        "for damaged volumes, separated by colons: norecovery (or nologreplay), all; btrfs: usebackuproot, \
         ignorebadroots, ignoredatacsums, ignoremetacsums, ignoresuperflags, salvage, root=ADDRESS and \
         fsroot=ADDRESS (roots of an earlier commit, see inspect find-root); XFS: needsrepair, usebackupsuper",
    ),
    option(
        &["norecovery"],
        "leave the log alone: what was synced last before a crash does not show",
    ),
    option(
        &["logdev=PATH"],
        "XFS: the device of the log, where it is not that of the volume",
    ),
    option(
        &["max_memory=SIZE"],
        "bound for pending changes and cached blocks, with k, m or g (default: a quarter of RAM)",
    ),
    option(
        &["allow_other", "private"],
        "let other users enter (root: default), or only the user who mounts",
    ),
    option(&["default_permissions"], "the kernel checks permissions"),
    option(&["suid", "nosuid"], "set-id bits work (root only), or not (default)"),
    option(&["dev", "nodev"], "device nodes work (root only), or not (default)"),
    option(&["exec", "noexec"], "programs can be run (default), or not"),
    option(&["sync"], "each write is durable when it returns"),
    option(&["dirsync"], "each change of a directory is durable when it returns"),
    option(
        &["transport=KIND"],
        "how requests come from the kernel: auto (over io_uring where the kernel offers it, default), \
         uring (only so), dev (by /dev/fuse)",
    ),
    option(
        &["no_open"],
        "programs open files without asking the server: small files are read at the kernel's speed; \
         what may not be written is refused by the first write, and there are no atomic groups",
    ),
    option(
        &["noxattr"],
        "the mount shows no extended attributes and access lists, and none can be set: listings as of \
         ls -l, which ask for two of each file, cost no requests; modes alone permit",
    ),
    option(&["fsname=NAME"], "shown as the source instead of the first target"),
    option(&["noloop"], "do not attach a loop device to an image file (root only)"),
    option(
        &["log=FILE"],
        "where the background process writes its messages (default: syslog)",
    ),
];

/// Where descriptions begin in `--help`, and where lines end.
const INDENT: usize = 26;
const LINE_CHARS_MAX: usize = 80;

/// The list for `--help`.
pub fn text() -> String {
    let mut out = String::from(
        "Options of -o, as in btrfs(5), xfs(5) and mount(8). Volumes of XFS are\n\
         read-only. Options about subvolumes, devices, commits, logs, compression and\n\
         checksums are btrfs' own:",
    );
    for option in OPTIONS {
        let mut line = format!("  {:<width$}", option.names.join(", "), width = INDENT - 2);
        let mut is_bare = true;
        for word in option.help.split_whitespace() {
            if !is_bare && line.len() + 1 + word.len() > LINE_CHARS_MAX {
                out += &format!("\n{line}");
                line = " ".repeat(INDENT);
                is_bare = true;
            }
            if !is_bare || !line.ends_with(' ') {
                line.push(' ');
            }
            line += word;
            is_bare = false;
        }
        out += &format!("\n{line}");
    }
    out
}

/// The section of the manual page, one entry for each option.
pub fn manual() -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["MOUNT OPTIONS"]);
    roff.text([roman(
        "For -o, separated by commas; as in btrfs(5), xfs(5) and mount(8). Volumes of XFS are read-only. Those \
         about subvolumes, devices, commits, logs, compression and checksums are btrfs' own.",
    )]);
    for option in OPTIONS {
        roff.control("TP", []);
        let mut tag = Vec::new();
        for name in option.names {
            if !tag.is_empty() {
                tag.push(roman(", "));
            }
            tag.push(bold(*name));
        }
        roff.text(tag);
        roff.text([roman(option.help)]);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_options::parse;

    #[test]
    fn described_options_are_understood() {
        for name in OPTIONS.iter().flat_map(|option| option.names) {
            let (key, value) = name.split_once('=').unwrap_or((name, ""));
            let text = match value {
                "" => key.to_owned(),
                "PATH" | "FILE" => format!("{key}=/x"),
                "ID" | "SECONDS" => format!("{key}=5"),
                "SIZE" => format!("{key}=64m"),
                "HOW" => format!("{key}=zstd:3"),
                "MODES" => format!("{key}=all"),
                "MODE" => format!("{key}=async"),
                "NAME" => format!("{key}=x"),
                "KIND" => format!("{key}=dev"),
                other => panic!("{other} in {name}"),
            };
            parse(&[text]).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn help_has_a_line_for_each_option_and_none_too_long() {
        let text = text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= LINE_CHARS_MAX), "{text}");
        for option in OPTIONS {
            let head = format!("  {} ", option.names.join(", "));
            assert!(lines.iter().any(|line| line.starts_with(&head)), "{head} in {text}");
        }
        let continued = |line: &&&str| line.starts_with("   ");
        assert!(
            lines
                .iter()
                .filter(continued)
                .all(|line| line.len() - line.trim_start().len() == INDENT)
        );
    }
}
