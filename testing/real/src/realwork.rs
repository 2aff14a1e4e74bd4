//! Ordinary programs at work on a mount.

use std::path::Path;

use anyhow::{Result, bail};
use cowshed_harness::{KernelVolume, VolumeOptions, need, progs};

use crate::cowshed::{Mount, binary, check, run_in, shell};

#[derive(clap::Args)]
pub struct Args {
    /// The short form of each
    #[arg(long)]
    small: bool,
    /// Only jobs whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Run the same on the kernel's btrfs instead, to see what fails there too
    #[arg(long)]
    kernel: bool,
}

/// A job: name, tool that it needs, script with the mount as working directory. `$SMALL` is 1 in the short form, `$REPO` a git
/// repository of some size.
const JOBS: &[(&str, &str, &str)] = &[
    ("git", "git", "
        git clone -q --no-hardlinks \"$REPO\" clone; cd clone
        git config user.name t; git config user.email t@example.invalid
        for i in $(seq 20); do echo $i >> file; git add file; git commit -qm $i; done
        git fsck --strict; git gc -q; git fsck --strict; git status --porcelain | wc -l | grep -qx 0"),
    ("tar", "tar", "
        tar -C /usr/share -cf a.tar doc; mkdir x; tar -C x -xf a.tar
        diff -r --no-dereference /usr/share/doc x/doc; rm -r x a.tar"),
    ("dpkg", "dpkg-deb", "
        mkdir -p p/DEBIAN p/usr/share/p; cp -a /usr/share/doc p/usr/share/p/
        printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: t <t@example.invalid>\\nDescription: t\\n' > p/DEBIAN/control
        dpkg-deb --build p p.deb > /dev/null; dpkg-deb -x p.deb y; diff -r --no-dereference p/usr y/usr"),
    ("sqlite", "sqlite3", "
        for mode in delete wal truncate; do
          sqlite3 db-$mode \"pragma journal_mode=$mode; create table t(a integer primary key, b text);\" > /dev/null
          n=200; [ \"$SMALL\" = 1 ] && n=30
          for i in $(seq $n); do echo \"insert into t(b) values(hex(randomblob(500)));\"; done | sqlite3 db-$mode
          sqlite3 db-$mode 'pragma integrity_check' | grep -qx ok
          [ $(sqlite3 db-$mode 'select count(*) from t') = $n ]
        done"),
    ("fs_mark", "fs_mark", "
        n=5000; [ \"$SMALL\" = 1 ] && n=500
        mkdir fm; fs_mark -d fm -n $n -s 4096 -t 2 -S 0 -D 10 > /dev/null; fs_mark -d fm -n 100 -s 1000 -t 2 -S 1 > /dev/null"),
    ("cargo", "cargo", "
        export CARGO_TARGET_DIR=$PWD/target
        cargo init -q --vcs none --name hello hello; cd hello; cargo build -q; [ \"$($CARGO_TARGET_DIR/debug/hello)\" = 'Hello, world!' ]"),
    ("fio-verify", "fio", "
        s=256m; [ \"$SMALL\" = 1 ] && s=32m
        fio --name=v --size=$s --rw=randwrite --bs=4k --verify=crc32c --end_fsync=1 --ioengine=psync --output=o1
        fio --name=d --size=$s --rw=randwrite --bs=4k-64k --direct=1 --verify=crc32c --ioengine=psync --output=o2
        fio --name=m --size=$s --rw=randrw --bs=4k --verify=crc32c --ioengine=mmap --output=o3; rm v.* d.* m.*"),
    ("stress-ng", "stress-ng", "
        t=20; [ \"$SMALL\" = 1 ] && t=2
        for s in access chdir chmod chown copy-file dentry dir dirdeep fallocate fiemap file-ioctl filename flock fpunch fstat getdents hdd \\
                 inode-flags io iomix lease link locka lockf mknod open readahead rename seek symlink sync-file touch unlink utime verity xattr; do
          stress-ng --temp-path . --$s 2 --timeout $t --verify -q || { echo \"stressor $s failed\" >&2; exit 1; }
        done"),
];

pub fn main(args: &Args) -> Result<()> {
    if need::root().is_none() || need::fuse().is_none() {
        return Ok(());
    }
    let mut failed = 0;
    let mut ran = 0;
    for (name, tool, script) in JOBS {
        if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) || need::tool(tool).is_none() {
            continue;
        }
        println!("{name}");
        ran += 1;
        if let Err(error) = job(script, args) {
            failed += 1;
            println!("FAILED: {name}: {error:#}");
        }
    }
    println!("{} passed, {failed} failed", ran - failed);
    if failed > 0 {
        bail!("{failed} jobs failed")
    } else {
        Ok(())
    }
}

fn job(script: &str, args: &Args) -> Result<()> {
    let size_bytes = if args.small { 3 << 30 } else { 8 << 30 };
    let volume = KernelVolume::make(&VolumeOptions {
        size_bytes,
        ..VolumeOptions::default()
    })?;
    let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let script = format!("SMALL={}; REPO='{}'; {script}", u8::from(args.small), repo.display());
    if args.kernel {
        return volume.with_mount(|root| shell(root, &script).map(drop));
    }
    let image = volume.image().display().to_string();
    run_in(Path::new("/"), binary()?, &["mkfs", "-q", "-f", &image])?;
    let mount = Mount::new(volume.images(), volume.dir(), "suid,dev")?;
    shell(mount.path(), &script)?;
    mount.unmount()?;
    progs::check(
        volume.image(),
        progs::CheckOptions {
            data_csum: true,
            ..Default::default()
        },
    )?
    .assert_clean();
    check(volume.images())
}
