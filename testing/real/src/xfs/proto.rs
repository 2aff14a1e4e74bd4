//! Kinds of volumes that this kernel does not mount, filled by mkfs.xfs from a list: V4, names
//! without case, a realtime device.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use cowshed_harness::tree::{Compare, snapshot};
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_harness::{run, scratch_dir};

use crate::cowshed::{Mount, binary, run_in};

const KINDS: [&str; 8] = [
    "-m crc=0 -n ftype=0",
    "-m crc=0 -n ftype=1",
    "-m crc=0 -b size=512 -i size=256",
    "-m crc=0 -b size=64k -s size=4k -i size=2048",
    "-m crc=0,finobt=0 -i size=256,attr=1,projid32bit=0 -l lazy-count=0",
    "-m crc=0 -n version=ci",
    "-n version=ci",
    "-m crc=0 -n size=64k",
];

/// Looks at all kinds. Returns how many are right, and how many are not.
pub fn all() -> Result<(usize, usize)> {
    let (mut right, mut wrong) = (0, 0);
    let tree = scratch_dir()?;
    let root = tree.path().join("tree");
    fs::create_dir(&root)?;
    grow(&root)?;
    for mkfs in KINDS {
        print!("[filled by mkfs.xfs] {mkfs}");
        match one(mkfs, &root, tree.path()) {
            Ok(entries) => {
                println!(": {entries} entries");
                right += 1;
            }
            Err(error) => {
                println!("\nFAILED: {mkfs}: {error:#}");
                wrong += 1;
            }
        }
    }
    print!("[filled by mkfs.xfs] a realtime device");
    match realtime(&root, tree.path()) {
        Ok(()) => {
            println!(": as expected");
            right += 1;
        }
        Err(error) => {
            println!("\nFAILED: a realtime device: {error:#}");
            wrong += 1;
        }
    }
    Ok((right, wrong))
}

/// What a list of mkfs.xfs can say: no links, holes, attributes or times.
fn grow(root: &Path) -> Result<()> {
    for (dir, count, stem) in [
        ("short", 3, "Name"),
        ("block", 25, "Entry_"),
        ("leaf", 200, "A_name_of_some_length_"),
        ("node", 5000, "A_longer_name_of_an_entry_"),
    ] {
        let dir = root.join(dir);
        fs::create_dir(&dir)?;
        for n in 0..count {
            let path = dir.join(format!("{stem}{n}"));
            fs::write(&path, format!("{n}").repeat(n % 50))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + (n as u32 * 7) % 0o200))?;
        }
    }
    for bytes in [0, 1, 255, 4096, 4097, 70_000, 3_000_000] {
        let content: Vec<u8> = (0..bytes).map(|n: u32| (n / 3) as u8).collect();
        fs::write(root.join(format!("bytes_{bytes}")), content)?;
    }
    for len in [1, 50, 300, 1023] {
        symlink("t".repeat(len), root.join(format!("link_{len}")))?;
    }
    run("mkfifo", &[root.join("fifo")])?;
    for (name, kind, major, minor) in [("char", "c", "1", "3"), ("block_device", "b", "200", "70000")] {
        let path = root.join(name);
        run(
            "mknod",
            &[path.as_os_str(), kind.as_ref(), major.as_ref(), minor.as_ref()],
        )?;
    }
    std::os::unix::fs::chown(root.join("short/Name1"), Some(65_000), Some(1001))?;
    fs::create_dir(root.join("n".repeat(255)))?;
    Ok(())
}

/// The lines of a directory's entries, and of all below.
fn list(dir: &Path, depth: usize, is_v5: bool, out: &mut String) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.collect::<std::io::Result<_>>()?;
    entries.retain(|entry| !is_v5 || entry.file_name() != LONG_LINK);
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let meta = entry.metadata()?;
        let kind = meta.file_type();
        use std::os::unix::fs::FileTypeExt as _;
        let letter = match () {
            () if kind.is_dir() => 'd',
            () if kind.is_symlink() => 'l',
            () if kind.is_fifo() => 'p',
            () if kind.is_char_device() => 'c',
            () if kind.is_block_device() => 'b',
            () => '-',
        };
        let mode = meta.mode() & 0o777;
        let name = entry.file_name();
        let name = name.to_str().context("a name in UTF-8")?;
        write!(
            out,
            "{}{name} {letter}--{mode:03o} {} {}",
            " ".repeat(depth),
            meta.uid(),
            meta.gid()
        )?;
        match letter {
            '-' => writeln!(out, " {}", path.display())?,
            'l' => writeln!(out, " {}", fs::read_link(&path)?.display())?,
            'b' | 'c' => {
                let device = meta.rdev();
                writeln!(out, " {} {}", rustix::fs::major(device), rustix::fs::minor(device))?;
            }
            'd' => {
                writeln!(out)?;
                list(&path, depth + 1, is_v5, out)?;
                writeln!(out, "{}$", " ".repeat(depth + 1))?;
            }
            _ => writeln!(out)?,
        }
    }
    Ok(())
}

/// Its target lies outside of the inode, where mkfs.xfs 6.1 forgets the header that V5 has: neither
/// Linux nor Cowshed reads it there.
const LONG_LINK: &str = "link_1023";

fn write_list(root: &Path, scratch: &Path, is_v5: bool) -> Result<String> {
    let mut text = String::from("/\n0 0\nd--755 0 0\n");
    list(root, 0, is_v5, &mut text)?;
    text += "$\n";
    let path = scratch.join("list");
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

/// What a list can say is compared: contents, types, sizes, modes, owners, targets, numbers of
/// devices.
fn compare() -> Compare {
    Compare {
        directory_times: false,
        xattrs: false,
        ..Compare::copy()
    }
}

fn one(mkfs: &str, root: &Path, scratch: &Path) -> Result<usize> {
    let is_v5 = !mkfs.contains("crc=0");
    let list = write_list(root, scratch, is_v5)?;
    let volume = XfsVolume::make(&XfsOptions::new(format!("{mkfs} -p {list}")))?;
    let mount = Mount::new(&[volume.image().to_owned()], volume.dir(), "ro")?;
    let mut expected = snapshot(root)?;
    if is_v5 {
        expected.nodes.remove(std::ffi::OsStr::new(LONG_LINK));
    }
    let mut ours = snapshot(mount.path()).context("reading")?;
    ensure!(ours.len() > 5000, "{} entries", ours.len());
    if mkfs.contains("version=ci") {
        // Names are found however they are written.
        let found = fs::read(mount.path().join("BYTES_4097"))?;
        ensure!(
            found == fs::read(root.join("bytes_4097"))?,
            "BYTES_4097 has other contents"
        );
        let found = fs::read(mount.path().join("NODE/a_LONGER_name_of_an_entry_4711"))?;
        ensure!(!found.is_empty(), "nothing in entry 4711");
    }
    mount.unmount()?;
    // mkfs.xfs sets times of its own.
    for node in expected.nodes.values_mut().chain(ours.nodes.values_mut()) {
        (node.mtime.seconds, node.mtime.nanoseconds) = (0, 0);
    }
    let expected_root = expected.nodes.get_mut(std::ffi::OsStr::new("")).context("the root")?;
    expected_root.mode = 0o755;
    let differences = expected.diff(&ours, &compare());
    ensure!(
        differences.is_empty(),
        "the list (left) and Cowshed's view (right):\n{differences}"
    );
    Ok(ours.len())
}

/// A volume with a realtime device: its data section is read; a realtime file answers EIO, with a
/// line in the log.
fn realtime(root: &Path, scratch: &Path) -> Result<()> {
    let list = write_list(root, scratch, true)?;
    let options = XfsOptions {
        realtime_bytes: Some(64 << 20),
        ..XfsOptions::new(format!("-p {list}"))
    };
    let volume = XfsVolume::make(&options)?;
    let image = volume.image().display().to_string();
    let mount = || Mount::new(&[volume.image().to_owned()], volume.dir(), "ro");
    let same = |mount: &Mount, name: &str| -> Result<()> {
        let found = fs::read(mount.path().join(name)).context(name.to_owned())?;
        ensure!(found == fs::read(root.join(name))?, "{name}: other contents");
        Ok(())
    };
    let mounted = mount()?;
    same(&mounted, "bytes_4097")?;
    mounted.unmount()?;
    let ino = run_in(Path::new("/"), binary()?, &["stat", "--json", &image, "bytes_4097"])?;
    let ino: serde_json::Value = serde_json::from_str(&ino)?;
    let ino = ino[0]["inode"].as_u64().context("an inode")?;
    // As if its data lay on the realtime device.
    let flag = format!("inode {ino}");
    run("xfs_db", &["-x", "-c", &flag, "-c", "write core.realtime 1", &image])?;
    let mounted = mount()?;
    // It is shown, and its contents alone are refused.
    let path = mounted.path().join("bytes_4097");
    ensure!(fs::metadata(&path)?.len() == 4097, "another size");
    match fs::read(&path) {
        Ok(_) => bail!("a realtime file is read"),
        Err(error) => ensure!(
            error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()),
            "a realtime file fails with {error}, not with EIO"
        ),
    }
    same(&mounted, "bytes_4096")?;
    // Each refusal leaves a line that says why.
    let log = match mounted.unmount() {
        Ok(()) => bail!("no line in the log"),
        Err(log) => log.to_string(),
    };
    let said = format!("realtime device, which is not read inode={ino}");
    ensure!(log.contains(&said), "{log}");
    Ok(())
}
