//! `exchange` on our mounts, beside XFS, whose call it is.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use cowshed_harness::{KernelMount, need, shell};

use crate::extents::{Change, Dice, Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::support::cowshed;

/// An XFS that the kernel mounted, in a file; unmounted and given back when dropped.
struct Xfs {
    // In this order they go.
    mount: KernelMount,
    _dir: tempfile::TempDir,
}

/// The bit of the superblock that says that exchanges may be made; mkfs.xfs sets it from version
/// 6.10 on, if asked to.
const EXCHANGE: u32 = 1 << 6;
/// Where that is in the superblock, big-endian, and its checksum, little-endian.
const INCOMPAT: usize = 216;
const CHECKSUM: usize = 224;

impl Xfs {
    /// `None` where this machine's kernel has no XFS with exchanges.
    fn new() -> Option<Xfs> {
        need::loop_devices()?;
        need::tool("mkfs.xfs")?;
        need::kernel_fs("xfs")?;
        let dir = cowshed_harness::scratch_dir().unwrap();
        let (image, mnt) = (dir.path().join("xfs"), dir.path().join("mnt"));
        let file = File::create(&image).unwrap();
        file.set_len(400 << 20).unwrap();
        shell(dir.path(), "mkfs.xfs -q -m reflink=1 xfs; mkdir mnt").unwrap();
        allow_exchanges(&image);
        let mounted = KernelMount::new("xfs", &[&image], &mnt, "loop");
        let why = mounted.as_ref().err().map(|e| format!("{e:#}")).unwrap_or_default();
        need::require(mounted.is_ok(), &format!("an XFS with exchanges ({why})"))?;
        Some(Xfs {
            mount: mounted.ok()?,
            _dir: dir,
        })
    }
}

fn allow_exchanges(image: &Path) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut block = [0; 512];
    file.read_exact_at(&mut block, 0).unwrap();
    let bits = u32::from_be_bytes(block[INCOMPAT..INCOMPAT + 4].try_into().unwrap()) | EXCHANGE;
    block[INCOMPAT..INCOMPAT + 4].copy_from_slice(&bits.to_be_bytes());
    block[CHECKSUM..CHECKSUM + 4].fill(0);
    let sum = crc32c::crc32c(&block);
    block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&block, 0).unwrap();
}

#[derive(Debug)]
enum Step {
    Write { file: u64, at: u64, len: u64, byte: u8 },
    Change { file: u64, how: Change },
    Exchange { files: [u64; 2], words: Vec<String> },
}

fn step(dice: &mut Dice) -> Step {
    let files = [dice.below(3), dice.below(3)];
    let mut number = |max: u64| {
        let n = dice.below(max);
        if n.is_multiple_of(6) { n } else { n & !4095 }
    };
    let [from, len, to] = [number(80_000), number(50_000), number(80_000)];
    let kind = dice.below(12);
    match kind {
        0..=3 => Step::Write {
            file: files[0],
            at: from,
            len: 1 + len,
            byte: 1 + dice.below(250) as u8,
        },
        4..=6 => Step::Change {
            file: files[0],
            how: match kind {
                4 => Change::Truncate(to),
                5 => Change::Punch(from, 1 + len),
                _ => Change::Allocate(from, 1 + len),
            },
        },
        other => {
            let mut words = match other {
                7 => Vec::new(),
                _ => vec!["--range".into(), format!("{from}:{len}:{to}")],
            };
            if dice.below(3) == 0 {
                words.push("--only-written".into());
            }
            if dice.below(5) == 0 {
                words.push("--dry-run".into());
            }
            if dice.below(5) == 0 {
                words.push("--fsync".into());
            }
            Step::Exchange { files, words }
        }
    }
}

/// Applies it; code and words of the command.
fn apply(dir: &Path, step: &Step) -> String {
    let path = |n: u64| dir.join(format!("f{n}"));
    match step {
        Step::Write { file, at, len, byte } => {
            let open = File::options().write(true).open(path(*file)).unwrap();
            open.write_all_at(&vec![*byte; *len as usize], *at).unwrap();
            String::new()
        }
        Step::Change { file, how } => {
            how.apply(&path(*file));
            String::new()
        }
        Step::Exchange { files: [a, b], words } => {
            let paths = [path(*a), path(*b)].map(PathBuf::into_os_string);
            let words = words.iter().map(std::ffi::OsString::from);
            let ran = cowshed(["exchange".into()].into_iter().chain(words).chain(paths));
            format!("{} {} {}", ran.code, ran.text(), ran.err).replace(dir.to_str().unwrap(), "")
        }
    }
}

#[test]
fn exchanges_end_as_on_xfs() {
    let Some(xfs) = Xfs::new() else { return };
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let dirs = [mnt.as_path(), xfs.mount.dir()];
    let (mut done, mut refused) = (0, 0);
    for seed in 0..3 {
        let mut dice = Dice(seed);
        for (n, dir) in (0..3).flat_map(|n| dirs.map(|dir| (n, dir))) {
            fs::write(dir.join(format!("f{n}")), vec![n; 30_000 * usize::from(n)]).unwrap();
        }
        for number in 0..100 {
            let step = step(&mut dice);
            let [ours, theirs] = dirs.map(|dir| apply(dir, &step));
            assert_eq!(ours, theirs, "seed {seed}, step {number}: {step:?}");
            if matches!(step, Step::Exchange { .. }) {
                *(if ours.starts_with('0') { &mut done } else { &mut refused }) += 1;
            }
            for n in 0..3 {
                let [ours, theirs] = dirs.map(|dir| fs::read(dir.join(format!("f{n}"))).unwrap());
                assert!(ours == theirs, "seed {seed}, step {number}: {step:?}: f{n} differs");
            }
        }
    }
    assert!(done > 30 && refused > 10, "{done} exchanges, {refused} refused");
    unmount(&mnt);
    scratch.assert_clean();
}
