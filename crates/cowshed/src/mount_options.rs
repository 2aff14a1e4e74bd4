//! The options of `-o`: parsed once, into what volume, engine, file system and FUSE session take.
//! Some belong to one format: given for a volume of another one, they are refused by name.

mod front_end;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail};
use btrfs_format::{LogicalAddr, TreeId};
use cowshed::formats::{self, Format};
use cowshed_btrfs::DiscardMode;
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_btrfs::fs::SubvolChoice;
use cowshed_btrfs::fs::{AtimePolicy, MountOptions as FsOptions};
use cowshed_vfs::{Error as Errno, Failure};

use crate::sys;
use front_end::{FuseOptions, TransportChoice};

/// Everything that a mount can be told.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub formats: formats::Options,
    pub fuse: FuseOptions,
    pub transport: TransportChoice,
    /// `default_permissions` was asked for, or `private` and `allow_other` (`None`: not said).
    pub default_permissions: bool,
    pub allow_other: Option<bool>,
    pub no_loop: bool,
    /// The mount shows no extended attributes, and costs no requests for them.
    pub no_xattrs: bool,
    pub source: Option<String>,
    pub log: Option<PathBuf>,
    /// Further devices of the volume, besides the targets.
    pub devices: Vec<PathBuf>,
    /// The device of the log, where it is not that of the volume.
    pub log_device: Option<PathBuf>,
    /// Options of one format that were given.
    of_format: Vec<(Format, String)>,
    subvol: Option<String>,
    subvolid: Option<TreeId>,
    /// Options of the whole volume that were given.
    given: BTreeSet<&'static str>,
}

/// Options that change nothing here: what fstab and mount(8) add, tuning that we do not need, and
/// permissions for what a mount cannot do anyhow.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nofail",
    "_netdev",
    "rw",
    "async",
    "iversion",
    "noiversion",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "barrier",
];

/// The same, of btrfs(5).
const IGNORED_OF_BTRFS: &[&str] = &[
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "space_cache",
    "autodefrag",
    "noautodefrag",
    "datasum",
    "datacow",
    "acl",
    "thread_pool",
    "max_inline",
    "metadata_ratio",
    "enospc_debug",
    "noenospc_debug",
    "noflushoncommit",
    "skip_balance",
    "rescan_uuid_tree",
    "user_subvol_rm_allowed",
];

/// The same, of xfs(5): they are about writing, or about memory that is not used here.
const IGNORED_OF_XFS: &[&str] = &[
    "allocsize",
    "attr2",
    "noattr2",
    "filestreams",
    "ikeep",
    "noikeep",
    "inode32",
    "inode64",
    "largeio",
    "nolargeio",
    "logbufs",
    "logbsize",
    "noalign",
    "nouuid",
    "noquota",
    "sunit",
    "swidth",
    "swalloc",
    "wsync",
];

/// Options of btrfs(5) that would promise what is not there.
const REFUSED: &[&str] = &[
    "flushoncommit",
    "noacl",
    "clear_cache",
    "nospace_cache",
    "inode_cache",
    "fatal_errors",
    "remount",
];

/// Options of xfs(5) that would promise what is not there.
const REFUSED_OF_XFS: &[&str] = &[
    "dax",
    "rtdev",
    "quota",
    "uquota",
    "usrquota",
    "uqnoenforce",
    "qnoenforce",
    "gquota",
    "grpquota",
    "gqnoenforce",
    "pquota",
    "prjquota",
    "pqnoenforce",
];

/// The format that an option is of; `None`: all formats have it, or it is none of theirs.
fn format_of(name: &str) -> Option<Format> {
    match name {
        "subvol" | "subvolid" | "device" | "commit" | "degraded" | "usebackuproot" | "recovery" | "treelog"
        | "notreelog" | "nodatasum" | "nodatacow" | "compress" | "compress-force" => Some(Format::Btrfs),
        "logdev" => Some(Format::Xfs),
        _ if IGNORED_OF_BTRFS.contains(&name) => Some(Format::Btrfs),
        _ if IGNORED_OF_XFS.contains(&name) => Some(Format::Xfs),
        _ => None,
    }
}

/// Parses all `-o` arguments.
pub fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options::default();
    options.formats.memory_bytes_max = Some(default_memory_bytes());
    options.formats.btrfs.engine.tree_log = true;
    // The kernel does.
    options.formats.btrfs.engine.read_ahead = false;
    // As on the kernel's mounts: an image file does not keep what was deleted.
    options.formats.btrfs.engine.discard = DiscardMode::Async;
    options.formats.btrfs.engine.return_memory = Some(crate::memory::return_freed_memory);
    options.formats.btrfs.fs.owner_uid = rustix::process::geteuid().as_raw();
    for option in arguments.iter().flat_map(|a| a.split(',')).filter(|o| !o.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        one(&mut options, name, value)?;
        options.given.extend(of_volume(name));
        options
            .of_format
            .extend(format_of(name).map(|format| (format, name.to_owned())));
    }
    options.fuse.read_only = options.formats.read_only;
    options.formats.btrfs.fs.subvol = match (&options.subvol, options.subvolid) {
        (None, None) => SubvolChoice::Default,
        (None, Some(id)) => SubvolChoice::Id(id),
        (Some(path), None) => SubvolChoice::Path(path.clone().into()),
        (Some(path), Some(id)) => SubvolChoice::PathOf(path.clone().into(), id),
    };
    Ok(options)
}

impl Options {
    /// What was to be mounted, for the message where that fails.
    fn subvol_text(&self) -> String {
        let path = self.subvol.as_ref().map(|path| format!("subvol={path}"));
        let id = self.subvolid.map(|id| format!("subvolid={}", id.0));
        let said: Vec<_> = path.into_iter().chain(id).collect();
        match said.is_empty() {
            true => "the volume's default subvolume".into(),
            false => format!("the subvolume of {}", said.join(",")),
        }
    }

    /// Nothing can be changed through the mount.
    pub fn set_read_only(&mut self) {
        self.formats.read_only = true;
        self.fuse.read_only = true;
    }

    /// Were all options made for volumes of this format?
    ///
    /// # Errors
    /// By name, an option of another format.
    pub fn check_format(&self, format: Format) -> Result<()> {
        match self.of_format.iter().find(|(of, _)| *of != format) {
            Some((of, name)) => bail!("mount option {name:?} is one of {of}, and the volume is {format}"),
            None => Ok(()),
        }
    }

    /// The failure of an opening; where the volume is there and the subvolume is not, with the
    /// subvolume's name.
    pub fn explain(&self, format: Format, failure: Failure) -> anyhow::Error {
        let is_about_subvolume = format == Format::Btrfs
            && matches!(
                failure.error(),
                Errno::NotFound | Errno::NotDirectory | Errno::Invalid | Errno::NameTooLong
            );
        let error = anyhow::Error::new(failure);
        match is_about_subvolume {
            true => error.context(self.subvol_text()),
            false => error,
        }
    }
}

/// The option of the whole volume that an option sets. Others are those of one mount.
fn of_volume(name: &str) -> Option<&'static str> {
    Some(match name {
        "commit" => "commit",
        "max_memory" => "max_memory",
        "degraded" => "degraded",
        "rescue" | "usebackuproot" | "recovery" | "nologreplay" | "norecovery" => "rescue",
        "treelog" | "notreelog" => "treelog",
        "nodatasum" => "nodatasum",
        "nodatacow" => "nodatacow",
        "compress" | "compress-force" => "compress",
        "discard" | "nodiscard" => "discard",
        "log" => "log",
        _ => return None,
    })
}

impl Options {
    /// The options of the whole volume, as text.
    fn volume_options(&self) -> [(&'static str, String); 10] {
        let yes_or_no = |set: bool| if set { "on" } else { "off" }.to_owned();
        let (engine, fs) = (&self.formats.btrfs.engine, &self.formats.btrfs.fs);
        let compress = fs.compress.map_or("no".into(), |policy| {
            format!("{}{}", policy.how, if policy.force { " (forced)" } else { "" })
        });
        let log = self
            .log
            .as_ref()
            .map_or("syslog".into(), |path| path.display().to_string());
        [
            ("commit", engine.commit_interval_s.to_string()),
            (
                "max_memory",
                self.formats.memory_bytes_max.unwrap_or_default().to_string(),
            ),
            ("degraded", yes_or_no(self.formats.btrfs.open.degraded)),
            ("rescue", rescue_text(&self.formats)),
            ("treelog", yes_or_no(engine.tree_log)),
            ("nodatasum", yes_or_no(fs.nodatasum)),
            ("nodatacow", yes_or_no(fs.nodatacow)),
            ("compress", compress),
            ("discard", format!("{:?}", engine.discard).to_lowercase()),
            ("log", log),
        ]
    }

    /// Can a volume that was opened with these options be mounted with others, too? What was not
    /// given is as it is.
    ///
    /// # Errors
    /// By name, an option of the whole volume that differs.
    pub fn check_beside(&self, other: &Options) -> Result<()> {
        for ((name, own), (_, asked)) in self.volume_options().iter().zip(other.volume_options()) {
            if other.given.contains(name) && *own != asked {
                bail!(
                    "mount option \"{name}\" is one of the whole volume, which is mounted already: \
                     there it is {own}, here {asked}"
                );
            }
        }
        Ok(())
    }
}

fn one(options: &mut Options, name: &str, value: Option<&str>) -> Result<()> {
    match (name, value) {
        ("ro", None) => options.formats.read_only = true,
        ("subvol", Some(path)) => options.subvol = Some(path.into()),
        ("subvolid", Some(id)) => options.subvolid = Some(subvol_id(id)?),
        ("device", Some(path)) => options.devices.push(path.into()),
        ("commit", Some(seconds)) => options.formats.btrfs.engine.commit_interval_s = commit_interval_s(seconds)?,
        ("max_memory", Some(size)) => options.formats.memory_bytes_max = Some(memory(size)?),
        ("degraded", None) => options.formats.btrfs.open.degraded = true,
        ("rescue", Some(modes)) => rescue(options, modes)?,
        ("usebackuproot" | "recovery", None) => options.formats.btrfs.open.rescue.use_backup_root = true,
        ("nologreplay" | "norecovery", None) => options.formats.no_log_replay = true,
        ("treelog", None) => options.formats.btrfs.engine.tree_log = true,
        ("notreelog", None) => options.formats.btrfs.engine.tree_log = false,
        ("nodatasum", None) => options.formats.btrfs.fs.nodatasum = true,
        ("nodatacow", None) => {
            options.formats.btrfs.fs.nodatacow = true;
            options.formats.btrfs.fs.compress = None;
        }
        ("compress", how) => compress(&mut options.formats.btrfs.fs, how, false)?,
        ("compress-force", how) => compress(&mut options.formats.btrfs.fs, how, true)?,
        ("logdev", Some(path)) => options.log_device = Some(path.into()),
        ("fsname", Some(source)) => options.source = Some(source.into()),
        ("log", Some(path)) => options.log = Some(path.into()),
        ("transport", Some(how)) => options.transport = transport(how)?,
        ("no_open", None) => options.formats.btrfs.fs.stateless_open = true,
        ("noxattr", None) => options.no_xattrs = true,
        ("noloop", None) => options.no_loop = true,
        ("nobarrier", None) => bail!("nobarrier would let a crash destroy the volume: not supported"),
        ("discard", how) => options.formats.btrfs.engine.discard = discard(how)?,
        ("nodiscard", None) => options.formats.btrfs.engine.discard = DiscardMode::Off,
        _ if times(options, name) || kernel_flags(options, name) => {}
        _ if IGNORED.contains(&name) || name.starts_with("x-") => {}
        _ if IGNORED_OF_BTRFS.contains(&name) || IGNORED_OF_XFS.contains(&name) => {}
        _ if REFUSED.contains(&name) => bail!("mount option {name:?} of btrfs(5) is not supported"),
        _ if REFUSED_OF_XFS.contains(&name) => bail!("mount option {name:?} of xfs(5) is not supported"),
        _ => bail!("unknown mount option {name:?}; `cowshed mount --help` lists them"),
    }
    Ok(())
}

fn discard(how: Option<&str>) -> Result<DiscardMode> {
    match how {
        None | Some("sync") => Ok(DiscardMode::Sync),
        Some("async") => Ok(DiscardMode::Async),
        Some("no") => Ok(DiscardMode::Off),
        Some(other) => bail!("discard={other}: unknown; there are sync, async, no"),
    }
}

fn transport(how: &str) -> Result<TransportChoice> {
    match how {
        "auto" => Ok(TransportChoice::Auto),
        "uring" => Ok(TransportChoice::Uring),
        "dev" => Ok(TransportChoice::Dev),
        other => bail!("transport={other}: unknown; there are auto, uring, dev"),
    }
}

/// The last option wins, and compression and writing in place exclude each other, as on the
/// kernel's side.
fn compress(fs: &mut FsOptions, how: Option<&str>, force: bool) -> Result<()> {
    fs.compress = match how {
        Some("no" | "none") => None,
        how => Some(CompressPolicy {
            how: how.unwrap_or("zlib").parse()?,
            force,
        }),
    };
    if fs.compress.is_some() {
        (fs.nodatacow, fs.nodatasum) = (false, false);
    }
    Ok(())
}

fn times(options: &mut Options, name: &str) -> bool {
    match name {
        "relatime" | "atime" => options.formats.btrfs.fs.atime = AtimePolicy::Relative,
        "noatime" => options.formats.btrfs.fs.atime = AtimePolicy::Never,
        "strictatime" => options.formats.btrfs.fs.atime = AtimePolicy::Always,
        "nodiratime" => options.formats.btrfs.fs.nodiratime = true,
        "diratime" => options.formats.btrfs.fs.nodiratime = false,
        _ => return false,
    }
    true
}

/// Options for the kernel's side of the mount.
fn kernel_flags(options: &mut Options, name: &str) -> bool {
    let fuse = &mut options.fuse;
    match name {
        "allow_other" => options.allow_other = Some(true),
        "private" => options.allow_other = Some(false),
        "default_permissions" => options.default_permissions = true,
        "suid" => fuse.allow_suid = true,
        "nosuid" => fuse.allow_suid = false,
        "dev" => fuse.allow_dev = true,
        "nodev" => fuse.allow_dev = false,
        "exec" => fuse.no_exec = false,
        "noexec" => fuse.no_exec = true,
        "sync" => fuse.sync = true,
        "dirsync" => fuse.dir_sync = true,
        _ => return false,
    }
    true
}

fn commit_interval_s(text: &str) -> Result<u32> {
    let seconds = text.parse().or_else(|_| bail!("commit={text}: not a number"))?;
    // As in the kernel's option: 0 is the default. The engine would take it as never.
    Ok(if seconds == 0 {
        EngineOptions::default().commit_interval_s
    } else {
        seconds
    })
}

fn subvol_id(text: &str) -> Result<TreeId> {
    let parsed = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8),
        _ => text.parse(),
    };
    let id = parsed.or_else(|_| bail!("subvolid={text}: not a number"))?;
    // As in the kernel's option: 0 is the top level.
    Ok(if id == 0 { TreeId::FS } else { TreeId(id) })
}

fn memory(text: &str) -> Result<u64> {
    /// Below this, a commit every few operations would be all there is.
    const MEMORY_BYTES_MIN: u64 = 16 << 20;
    let bytes = btrfs_image::size::parse_size_bytes(text)?;
    if bytes < MEMORY_BYTES_MIN {
        bail!("max_memory={text}: at least 16m");
    }
    Ok(bytes)
}

fn rescue(options: &mut Options, modes: &str) -> Result<()> {
    for mode in modes.split(':') {
        let of_btrfs = &mut options.formats.btrfs.open.rescue;
        let format = match mode {
            "usebackuproot" => {
                of_btrfs.use_backup_root = true;
                Some(Format::Btrfs)
            }
            "ignorebadroots" | "ibadroots" => {
                of_btrfs.ignore_bad_roots = true;
                Some(Format::Btrfs)
            }
            "ignoredatacsums" | "idatacsums" => {
                of_btrfs.ignore_data_csums = true;
                Some(Format::Btrfs)
            }
            "ignoremetacsums" | "imetacsums" => {
                of_btrfs.ignore_meta_csums = true;
                Some(Format::Btrfs)
            }
            "ignoresuperflags" | "isuperflags" => {
                of_btrfs.ignore_super_flags = true;
                Some(Format::Btrfs)
            }
            "salvage" => {
                of_btrfs.salvage = true;
                Some(Format::Btrfs)
            }
            _ if mode.starts_with("root=") => {
                of_btrfs.tree_root = Some(root_address(mode)?);
                Some(Format::Btrfs)
            }
            _ if mode.starts_with("fsroot=") => {
                of_btrfs.top_level_root = Some(root_address(mode)?);
                Some(Format::Btrfs)
            }
            "needsrepair" => {
                options.formats.xfs.needs_repair = true;
                Some(Format::Xfs)
            }
            "usebackupsuper" => {
                options.formats.xfs.use_superblock_copy = true;
                Some(Format::Xfs)
            }
            "nologreplay" | "norecovery" => {
                options.formats.no_log_replay = true;
                None
            }
            "all" => {
                options.formats.rescue_all = true;
                None
            }
            _ => bail!(
                "rescue={mode}: unknown; there are nologreplay (norecovery), all; for btrfs usebackuproot, \
                 ignorebadroots, ignoredatacsums, ignoremetacsums, ignoresuperflags, salvage, root=ADDRESS, \
                 fsroot=ADDRESS; for XFS needsrepair, usebackupsuper"
            ),
        };
        let named = format.map(|format| (format, format!("rescue={mode}")));
        options.of_format.extend(named);
    }
    Ok(())
}

/// The address of a root of the root tree, or of the top level, as `cowshed inspect find-root`
/// names it.
fn root_address(mode: &str) -> Result<LogicalAddr> {
    let (_, text) = mode.split_once('=').unwrap_or_default();
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(addr) => Ok(LogicalAddr(addr)),
        Err(_) => bail!("rescue={mode}: not an address"),
    }
}

/// What is overlooked, in words.
fn rescue_text(formats: &formats::Options) -> String {
    format!(
        "{:?}, no log replay: {}, XFS that needs repair: {}, copies of its superblock: {}, all: {}",
        formats.btrfs.open.rescue,
        formats.no_log_replay,
        formats.xfs.needs_repair,
        formats.xfs.use_superblock_copy,
        formats.rescue_all
    )
}

/// A quarter of the machine's memory, between 64 MiB and 4 GiB.
fn default_memory_bytes() -> u64 {
    (sys::memory_bytes().unwrap_or(1 << 30) / 4).clamp(64 << 20, 4 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_their_places_and_unknown_ones_are_named() {
        let all = parse(&[
            "ro,subvolid=0,commit=5,device=/dev/x".into(),
            "max_memory=64m,rescue=nologreplay:idatacsums".into(),
        ])
        .unwrap();
        assert!(all.formats.read_only && all.fuse.read_only);
        assert!(matches!(all.formats.btrfs.fs.subvol, SubvolChoice::Id(TreeId::FS)));
        assert_eq!(
            (all.formats.btrfs.engine.commit_interval_s, all.formats.memory_bytes_max),
            (5, Some(64 << 20))
        );
        assert!(!all.formats.btrfs.engine.read_ahead, "the kernel does");
        for (text, expected) in [("root=4096:salvage", 4096), ("all:root=0x1000", 4096)] {
            let by_root = parse(&[format!("ro,rescue={text}")]).unwrap();
            let rescue = by_root.formats.btrfs.open.rescue;
            assert_eq!(rescue.tree_root, Some(LogicalAddr(expected)), "{text}");
        }
        assert!(all.formats.no_log_replay && all.formats.btrfs.open.rescue.ignore_data_csums);
        assert_eq!(all.devices, [PathBuf::from("/dev/x")]);
        assert_eq!(all.transport, TransportChoice::Auto);
        assert!(!all.no_xattrs && parse(&["noxattr".into()]).unwrap().no_xattrs);
        assert_eq!(
            parse(&["transport=dev".into()]).unwrap().transport,
            TransportChoice::Dev
        );
        for (bad, part) in [
            ("wobble", "unknown mount option \"wobble\""),
            ("flushoncommit", "\"flushoncommit\" of btrfs(5) is not supported"),
            ("inode_cache", "\"inode_cache\" of btrfs(5) is not supported"),
            ("rtdev=/dev/x", "\"rtdev\" of xfs(5) is not supported"),
            ("rescue=wobble", "rescue=wobble: unknown"),
            ("rescue=root=x", "rescue=root=x: not an address"),
            ("rescue=fsroot=", "rescue=fsroot=: not an address"),
            ("discard=fast", "discard=fast: unknown"),
            ("transport=tcp", "auto, uring, dev"),
            ("subvolid=0xg", "subvolid=0xg"),
            ("commit=x", "commit=x"),
            ("nobarrier", "crash"),
            ("max_memory=1", "16m"),
        ] {
            let error = parse(&[bad.into()]).unwrap_err().to_string();
            assert!(error.contains(part), "{bad}: {error}");
        }
        for bad in ["compress=gzip", "compress=lzo:", "compress-force=zstd:x", "compress="] {
            assert!(parse(&[bad.into()]).unwrap_err().to_string().contains("zstd"), "{bad}");
        }
        assert!(parse(&["defaults,noatime,x-systemd.automount,space_cache=v2,compress=no".into()]).is_ok());
    }

    #[test]
    fn the_last_of_options_about_discard_counts() {
        for (text, expected) in [
            ("ro", DiscardMode::Async),
            ("discard", DiscardMode::Sync),
            ("nodiscard,discard=sync", DiscardMode::Sync),
            ("discard,discard=async", DiscardMode::Async),
            ("discard=sync,nodiscard", DiscardMode::Off),
            ("discard=no", DiscardMode::Off),
        ] {
            assert_eq!(
                parse(&[text.into()]).unwrap().formats.btrfs.engine.discard,
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn options_of_another_format_are_named() {
        let check = |text: &str, format| {
            let options = parse(&[text.into()]).unwrap();
            options.check_format(format).map_err(|error| error.to_string())
        };
        for text in [
            "ro,noatime,norecovery,rescue=all,discard,max_memory=64m",
            "x-systemd.automount",
        ] {
            assert_eq!(
                (check(text, Format::Btrfs), check(text, Format::Xfs)),
                (Ok(()), Ok(())),
                "{text}"
            );
        }
        for (text, option) in [
            ("compress=zstd", "compress"),
            ("ro,subvolid=5", "subvolid"),
            ("space_cache=v2", "space_cache"),
            ("rescue=norecovery:ibadroots", "rescue=ibadroots"),
            ("rescue=root=0x4000", "rescue=root=0x4000"),
        ] {
            assert_eq!(check(text, Format::Btrfs), Ok(()), "{text}");
            let refused = check(text, Format::Xfs).unwrap_err();
            assert_eq!(
                refused,
                format!("mount option {option:?} is one of btrfs, and the volume is XFS")
            );
        }
        for (text, option) in [
            ("logdev=/dev/x", "logdev"),
            ("nouuid,inode64", "nouuid"),
            ("rescue=needsrepair", "rescue=needsrepair"),
            ("rescue=usebackupsuper", "rescue=usebackupsuper"),
        ] {
            assert_eq!(check(text, Format::Xfs), Ok(()), "{text}");
            let refused = check(text, Format::Btrfs).unwrap_err();
            assert_eq!(
                refused,
                format!("mount option {option:?} is one of XFS, and the volume is btrfs")
            );
        }
    }

    #[test]
    fn numbers_mean_what_they_mean_to_the_kernel() {
        let id = |text: &str| parse(&[format!("subvolid={text}")]).unwrap().formats.btrfs.fs.subvol;
        for (text, expected) in [("0", 5), ("256", 256), ("0x100", 256), ("0400", 256)] {
            assert_eq!(id(text), SubvolChoice::Id(TreeId(expected)), "{text}");
        }
        let both = parse(&["subvol=/a".into(), "subvolid=257".into()]).unwrap();
        assert_eq!(
            both.formats.btrfs.fs.subvol,
            SubvolChoice::PathOf(b"/a".to_vec(), TreeId(257))
        );
        assert_eq!(both.subvol_text(), "the subvolume of subvol=/a,subvolid=257");
        assert_eq!(
            parse(&["commit=0".into()])
                .unwrap()
                .formats
                .btrfs
                .engine
                .commit_interval_s,
            30
        );
    }

    #[test]
    fn options_of_the_whole_volume_have_to_agree_where_they_are_given() {
        let check = |first: &str, second: &str| {
            let options = |text: &str| parse(&[text.into()]).unwrap();
            options(first).check_beside(&options(second)).map_err(|e| e.to_string())
        };
        for (first, second) in [
            ("", "subvol=a,ro,noatime,nosuid,private,transport=dev,noloop"),
            ("compress=zstd,commit=5", "subvol=b"),
            ("compress=zstd:3", "compress=zstd"),
            ("", "commit=30,discard=async,treelog,compress=no"),
            ("notreelog,nodiscard", "discard=no"),
        ] {
            check(first, second).unwrap_or_else(|e| panic!("{first} beside {second}: {e}"));
        }
        for (first, second, name) in [
            ("", "commit=5", "commit"),
            ("", "compress=lzo", "compress"),
            ("compress=lzo", "compress-force=lzo", "compress"),
            ("compress=lzo", "compress=no", "compress"),
            ("", "nodatacow", "nodatacow"),
            ("", "nodatasum", "nodatasum"),
            ("discard", "discard=async", "discard"),
            ("", "nodiscard", "discard"),
            ("", "notreelog", "treelog"),
            ("", "max_memory=64m", "max_memory"),
            ("", "ro,rescue=nologreplay", "rescue"),
            ("", "degraded", "degraded"),
            ("", "log=/tmp/x", "log"),
        ] {
            let refused = check(first, second).unwrap_err();
            assert!(
                refused.contains(&format!("{name:?} is one of the whole volume")),
                "{refused}"
            );
        }
    }

    /// What /proc/mounts shows of the same options on the kernel's mounts.
    #[test]
    fn the_last_of_options_about_compression_counts() {
        for (text, shown) in [
            ("compress", "zlib:3"),
            ("compress-force=lzo:4", "lzo force"),
            ("compress-force=zstd,compress=zlib:12", "zlib:9"),
            ("compress=zstd,compress-force=no", "nothing"),
            ("nodatacow,compress=zstd:-20", "zstd:-15"),
            ("compress=lzo,nodatacow", "nothing nodatacow"),
            ("compress=lzo,nodatasum", "lzo nodatasum"),
        ] {
            let fs = parse(&[text.into()]).unwrap().formats.btrfs.fs;
            let mut found = fs.compress.map_or("nothing".into(), |policy| policy.how.to_string());
            let force = fs.compress.is_some_and(|policy| policy.force);
            for (is_set, name) in [
                (force, " force"),
                (fs.nodatacow, " nodatacow"),
                (fs.nodatasum, " nodatasum"),
            ] {
                found += if is_set { name } else { "" };
            }
            assert_eq!(found, shown, "{text}");
        }
    }
}
