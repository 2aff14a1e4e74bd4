//! Images in memory that mkfs.xfs makes and the kernel fills.

use std::path::{Path, PathBuf};

use cowshed_harness::{need, run_raw};

/// `None`, with a line that says so, where the machine cannot mount XFS.
pub fn need_kernel() -> Option<()> {
    need_progs()?;
    need::loop_devices()?;
    need::kernel_fs("xfs")
}

/// `None`, with a line that says so, without xfsprogs.
pub fn need_progs() -> Option<()> {
    need::tool("mkfs.xfs")?;
    need::tool("xfs_db")?;
    need::tool("xfs_io")
}

/// Runs a shell script; its failure is the test's.
pub fn sh(script: &str) -> String {
    cowshed_harness::run("bash", &["-euc", script]).unwrap_or_else(|e| panic!("{e:#}"))
}

/// An image, mounted for a while, gone with the value.
pub struct Lab {
    dir: tempfile::TempDir,
    pub image: PathBuf,
}

impl Lab {
    pub fn new(mkfs: &str, size_mib: u32) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let image = dir.path().join("image");
        let path = image.display();
        sh(&format!("truncate -s {size_mib}M {path}; mkfs.xfs -q -f {mkfs} {path}"));
        Self { dir, image }
    }

    /// An image of `tests/data`, as it was left there.
    pub fn stored(name: &str) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.tar.xz"));
        sh(&format!("tar -C {} -xJf {}", dir.path().display(), archive.display()));
        let image = dir.path().join("image");
        Self { dir, image }
    }

    /// Sets bits that this mkfs.xfs does not know, as newer ones do at once.
    pub fn set_incompat(&self, bits: u64) {
        self.change_incompat(|old| old | bits);
    }

    /// Takes bits back that this xfsprogs does not know, so that it looks at the volume.
    pub fn clear_incompat(&self, bits: u64) {
        self.change_incompat(|old| old & !bits);
    }

    fn change_incompat(&self, change: impl Fn(u64) -> u64) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&self.image)
            .unwrap();
        let geometry = super::Volume::open(&self.image).geometry;
        for group in 0..geometry.ag_count {
            let daddr = geometry.header_daddr(xfs_format::AgNumber(group), 0);
            let mut sector = vec![0; geometry.sector_bytes as usize];
            let at = daddr.checked_bytes().unwrap();
            file.read_exact_at(&mut sector, at).unwrap();
            let mut sb = xfs_format::Superblock::verify_copy(&sector).unwrap();
            let bits = change(sb.features_incompat.get().into());
            sb.features_incompat.set(bits as u32);
            file.write_all_at(&sb.seal().unwrap(), at).unwrap();
        }
    }

    pub fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Mounts, runs the script in the mount with `$M`, unmounts.
    pub fn run(&self, options: &str, script: &str) {
        let (m, image) = (self.mnt(), self.image.display());
        let m = m.display();
        sh(&format!(
            "mkdir -p {m}; mount -t xfs -o 'loop,{options}' {image} {m}; export M={m}; cd $M; {script}\ncd /; sync -f {m}; umount {m}"
        ));
    }

    /// Mounts, runs the script in the mount with `$M`, and shuts the volume down: its log is dirty.
    pub fn leave_dirty(&self, options: &str, script: &str) {
        let (m, image) = (self.mnt(), self.image.display());
        let m = m.display();
        sh(&format!(
            "mkdir -p {m}; mount -t xfs -o 'loop,{options}' {image} {m}; export M={m}; cd $M; {script}\ncd /; xfs_io -x -c 'shutdown -f' {m}; umount {m}"
        ));
    }

    /// What xfs_db says.
    pub fn db(&self, commands: &[&str]) -> String {
        let image = self.image.display();
        let commands: String = commands.iter().map(|command| format!(" -c '{command}'")).collect();
        sh(&format!("TZ=UTC xfs_db -r {commands} {image}"))
    }

    pub fn path(&self) -> &Path {
        &self.image
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = run_raw("umount", &["-q".as_ref(), self.mnt().as_os_str()]);
    }
}

/// A tree of everything: each form of directory, attribute and fork.
pub const POPULATE: &str = r#"
mkdir -p short/sub; for i in $(seq 1 4); do : > short/name$i; done
mkdir block; for i in $(seq 1 30); do : > block/entry$i; done; rm block/entry2 block/entry7 block/entry8
mkdir leaf; for i in $(seq 1 260); do : > leaf/a_name_of_some_length_$i; done; rm leaf/a_name_of_some_length_{3,9,10,11,200}
mkdir node; python3 -c '
import os
for i in range(9000): open("node/a_longer_name_of_an_entry_%d" % i, "w").close()
for i in range(0, 9000, 7): os.unlink("node/a_longer_name_of_an_entry_%d" % i)
'
head -c 300000 /dev/urandom > big; truncate -s 10M sparse; echo x | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
fallocate -l 1M prealloc; dd if=/dev/urandom of=prealloc bs=4096 seek=7 count=3 conv=notrunc status=none
python3 -c '
import os
f = os.open("fragments", os.O_CREAT | os.O_RDWR)
for i in range(3000): os.pwrite(f, b"x" * 100, i * 2 * 65536 // 4)
os.fsync(f)
'
mkdir linked; python3 -c 'import os
for i in range(300): os.link("big", f"linked/hard_link_with_a_rather_long_name_{i}")'
ln -s aaaa link; ln -s $(printf 'a%.0s' $(seq 1 1000)) longlink; mkfifo fifo; mknod null c 1 3; mknod blk b 7 0
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
python3 -c '
import os
os.setxattr("short", "user.a", b"b"); os.setxattr("short", "trusted.t", b"1")
for i in range(20): os.setxattr("block", "user.attribute_%d" % i, b"v" * 40)
for i in range(600): os.setxattr("leaf", "user.attribute_%d" % i, b"v" * 100)
for i in range(0, 600, 5): os.removexattr("leaf", "user.attribute_%d" % i)
os.setxattr("big", "user.large", b"v" * 60000); os.setxattr("big", "user.other", b"v" * 9000)
open("names_with_attrs", "w").close()
for i in range(40): os.setxattr("names_with_attrs", "user.%d" % i, b"v" * 3000)
'
touch -d 1960-01-01T00:00:00.123456789 old; touch -d 2100-01-01 future 2>/dev/null || touch future
chattr +i future; chattr +a old; chown 1000:1001 fifo; chattr +d sparse || true
touch $(printf 'n%.0s' $(seq 1 255)); touch 'Ümläut' $'new\nline'
mkdir many; python3 -c '
import os
for i in range(1500): open("many/%d" % i, "w").close()
for i in range(0, 1500, 3): os.unlink("many/%d" % i)
'
sync -f $M
"#;

/// Shared extents, on volumes that can have them.
pub const SHARE: &str = r#"
cp --reflink=always big clone; dd if=/dev/urandom of=clone bs=4096 seek=3 count=2 conv=notrunc status=none
for i in $(seq 1 30); do cp --reflink=always fragments shared$i; done; sync -f $M
python3 -c '
import os
f = os.open("shared3", os.O_RDWR)
for i in range(0, 3000, 3): os.pwrite(f, b"y" * 100, i * 2 * 65536 // 4)
'
sync -f $M
"#;
