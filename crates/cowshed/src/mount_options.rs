//! The options of `-o`: parsed once, into what volume, engine, file system and FUSE session take.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail};
use btrfs_format::TreeId;
use btrfs_store::volume::Rescue;
use cowshed::formats;
use cowshed_btrfs::DiscardMode;
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_btrfs::fs::SubvolChoice;
use cowshed_btrfs::fs::{AtimePolicy, MountOptions as FsOptions};
use cowshed_fuse::{MountOptions as FuseOptions, TransportChoice};
use cowshed_vfs::{Error as Errno, Failure};

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
    pub source: Option<String>,
    pub log: Option<PathBuf>,
    /// Further devices of the volume, besides the targets.
    pub devices: Vec<PathBuf>,
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
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "barrier",
    "space_cache",
    "autodefrag",
    "noautodefrag",
    "datasum",
    "datacow",
    "iversion",
    "noiversion",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
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

/// Parses all `-o` arguments.
pub fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options::default();
    options.formats.engine.memory_bytes_max = default_memory_bytes();
    options.formats.engine.tree_log = true;
    // The kernel does.
    options.formats.engine.read_ahead = false;
    // As on the kernel's mounts: an image file does not keep what was deleted.
    options.formats.engine.discard = DiscardMode::Async;
    options.formats.fs.owner_uid = rustix::process::geteuid().as_raw();
    for option in arguments.iter().flat_map(|a| a.split(',')).filter(|o| !o.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        one(&mut options, name, value)?;
        options.given.extend(of_volume(name));
    }
    options.formats.fs.read_only = options.formats.open.read_only;
    options.fuse.read_only = options.formats.open.read_only;
    options.formats.fs.subvol = match (&options.subvol, options.subvolid) {
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

    /// The failure of an opening; where the volume is there and the subvolume is not, with the
    /// subvolume's name.
    pub fn explain(&self, failure: Failure) -> anyhow::Error {
        let is_about_subvolume = matches!(
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
        let (engine, fs) = (&self.formats.engine, &self.formats.fs);
        let compress = fs.compress.map_or("no".into(), |policy| {
            format!("{}{}", policy.how, if policy.force { " (forced)" } else { "" })
        });
        let log = self
            .log
            .as_ref()
            .map_or("syslog".into(), |path| path.display().to_string());
        [
            ("commit", engine.commit_interval_s.to_string()),
            ("max_memory", engine.memory_bytes_max.to_string()),
            ("degraded", yes_or_no(self.formats.open.degraded)),
            ("rescue", format!("{:?}", self.formats.open.rescue)),
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
        ("ro", None) => options.formats.set_read_only(true),
        ("subvol", Some(path)) => options.subvol = Some(path.into()),
        ("subvolid", Some(id)) => options.subvolid = Some(subvol_id(id)?),
        ("device", Some(path)) => options.devices.push(path.into()),
        ("commit", Some(seconds)) => options.formats.engine.commit_interval_s = commit_interval_s(seconds)?,
        ("max_memory", Some(size)) => options.formats.engine.memory_bytes_max = memory(size)?,
        ("degraded", None) => options.formats.open.degraded = true,
        ("rescue", Some(modes)) => rescue(&mut options.formats.open.rescue, modes)?,
        ("usebackuproot" | "recovery", None) => options.formats.open.rescue.use_backup_root = true,
        ("nologreplay" | "norecovery", None) => options.formats.open.rescue.no_log_replay = true,
        ("treelog", None) => options.formats.engine.tree_log = true,
        ("notreelog", None) => options.formats.engine.tree_log = false,
        ("nodatasum", None) => options.formats.fs.nodatasum = true,
        ("nodatacow", None) => {
            options.formats.fs.nodatacow = true;
            options.formats.fs.compress = None;
        }
        ("compress", how) => compress(&mut options.formats.fs, how, false)?,
        ("compress-force", how) => compress(&mut options.formats.fs, how, true)?,
        ("fsname", Some(source)) => options.source = Some(source.into()),
        ("log", Some(path)) => options.log = Some(path.into()),
        ("transport", Some(how)) => options.transport = transport(how)?,
        ("noloop", None) => options.no_loop = true,
        ("nobarrier", None) => bail!("nobarrier would let a crash destroy the volume: not supported"),
        ("discard", how) => options.formats.engine.discard = discard(how)?,
        ("nodiscard", None) => options.formats.engine.discard = DiscardMode::Off,
        _ if times(options, name) || kernel_flags(options, name) => {}
        _ if IGNORED.contains(&name) || name.starts_with("x-") => {}
        _ if REFUSED.contains(&name) => bail!("mount option {name:?} of btrfs(5) is not supported"),
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
        "relatime" | "atime" => options.formats.fs.atime = AtimePolicy::Relative,
        "noatime" => options.formats.fs.atime = AtimePolicy::Never,
        "strictatime" => options.formats.fs.atime = AtimePolicy::Always,
        "nodiratime" => options.formats.fs.nodiratime = true,
        "diratime" => options.formats.fs.nodiratime = false,
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

fn rescue(rescue: &mut Rescue, modes: &str) -> Result<()> {
    for mode in modes.split(':') {
        match mode {
            "usebackuproot" => rescue.use_backup_root = true,
            "nologreplay" => rescue.no_log_replay = true,
            "ignorebadroots" | "ibadroots" => rescue.ignore_bad_roots = true,
            "ignoredatacsums" | "idatacsums" => rescue.ignore_data_csums = true,
            "ignoremetacsums" | "imetacsums" => rescue.ignore_meta_csums = true,
            "ignoresuperflags" | "isuperflags" => rescue.ignore_super_flags = true,
            "all" => {
                rescue.ignore_bad_roots = true;
                rescue.ignore_data_csums = true;
                rescue.ignore_meta_csums = true;
                rescue.ignore_super_flags = true;
                rescue.no_log_replay = true;
            }
            _ => bail!(
                "rescue={mode}: unknown; there are usebackuproot, nologreplay, ignorebadroots, \
                        ignoredatacsums, ignoremetacsums, ignoresuperflags, all"
            ),
        }
    }
    Ok(())
}

/// A quarter of the machine's memory, between 64 MiB and 4 GiB.
fn default_memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()));
    (total_kib.unwrap_or(1 << 20) * 1024 / 4).clamp(64 << 20, 4 << 30)
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
        assert!(all.formats.open.read_only && all.formats.fs.read_only && all.fuse.read_only);
        assert!(matches!(all.formats.fs.subvol, SubvolChoice::Id(TreeId::FS)));
        assert_eq!(
            (
                all.formats.engine.commit_interval_s,
                all.formats.engine.memory_bytes_max
            ),
            (5, 64 << 20)
        );
        assert!(!all.formats.engine.read_ahead, "the kernel does");
        assert!(all.formats.open.rescue.no_log_replay && all.formats.open.rescue.ignore_data_csums);
        assert_eq!(all.devices, [PathBuf::from("/dev/x")]);
        assert_eq!(all.transport, TransportChoice::Auto);
        assert_eq!(
            parse(&["transport=dev".into()]).unwrap().transport,
            TransportChoice::Dev
        );
        for (bad, part) in [
            ("wobble", "unknown mount option \"wobble\""),
            ("flushoncommit", "\"flushoncommit\" of btrfs(5) is not supported"),
            ("inode_cache", "\"inode_cache\" of btrfs(5) is not supported"),
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
                parse(&[text.into()]).unwrap().formats.engine.discard,
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn numbers_mean_what_they_mean_to_the_kernel() {
        let id = |text: &str| parse(&[format!("subvolid={text}")]).unwrap().formats.fs.subvol;
        for (text, expected) in [("0", 5), ("256", 256), ("0x100", 256), ("0400", 256)] {
            assert_eq!(id(text), SubvolChoice::Id(TreeId(expected)), "{text}");
        }
        let both = parse(&["subvol=/a".into(), "subvolid=257".into()]).unwrap();
        assert_eq!(
            both.formats.fs.subvol,
            SubvolChoice::PathOf(b"/a".to_vec(), TreeId(257))
        );
        assert_eq!(both.subvol_text(), "the subvolume of subvol=/a,subvolid=257");
        assert_eq!(
            parse(&["commit=0".into()]).unwrap().formats.engine.commit_interval_s,
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
            let fs = parse(&[text.into()]).unwrap().formats.fs;
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
