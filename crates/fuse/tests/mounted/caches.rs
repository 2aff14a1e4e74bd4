//! What the kernel remembers, and that it stays true.
//!
//! Tests that map files do so in a child process: unmapping waits for pages to be written while it
//! holds the lock on the process's memory, and the workers that are to write them could not
//! allocate any in the same process.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use cowshed_fuse::Permissions;
use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags};

use crate::support::*;

#[test]
fn mapped_writes_arrive() {
    let Some(_turn) = turn("mapped_writes_arrive") else {
        return;
    };
    for writeback_cache in [false, true] {
        let mount = Mount::new(|o| o.writeback_cache = writeback_cache);
        in_child(|| {
            let path = mount.path("mapped");
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
                .unwrap();
            file.set_len(64 << 10).unwrap();
            let mut map = Map::shared(&file, 64 << 10).unwrap();
            map.bytes()[5000..5005].copy_from_slice(b"hello");
            map.sync().unwrap();
            let direct = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_DIRECT)
                .open(&path)
                .unwrap();
            let mut got = [0; 5];
            direct.read_exact_at(&mut got, 5000).unwrap();
            assert_eq!(&got, b"hello");
            file.write_all_at(b"world", 6000).unwrap();
            assert_eq!(&map.bytes()[6000..6005], b"world", "a write shows in the mapping");
            map.bytes()[7000] = 7;
            drop(map);
            drop(file);
            assert_eq!(fs::read(&path).unwrap()[7000], 7);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn direct_files_can_be_mapped() {
    let Some(_turn) = turn("direct_files_can_be_mapped") else {
        return;
    };
    for skip_open in [true, false] {
        let mount = Mount::new(|o| o.skip_open = skip_open);
        in_child(|| {
            let path = mount.path("f");
            fs::write(&path, [1; 8192]).unwrap();
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(&path)
                .unwrap();
            let mut map = Map::shared(&file, 8192).unwrap();
            assert_eq!(map.bytes()[8191], 1);
            map.bytes()[0] = 2;
            map.sync().unwrap();
            assert_eq!(fs::read(&path).unwrap()[0], 2);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn truncation_drops_cached_pages() {
    let Some(_turn) = turn("truncation_drops_cached_pages") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let path = mount.path("f");
    fs::write(&path, vec![9; 20_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut buf = vec![0; 20_000];
    file.read_exact_at(&mut buf, 0).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(20_000).unwrap();
    file.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf[..5_000].iter().all(|b| *b == 9) && buf[5_000..].iter().all(|b| *b == 0));
    file.write_all_at(&[8; 10], 30_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 30_010);
    assert_eq!(fs::read(&path).unwrap()[20_000..30_000], [0; 10_000]);
}

#[test]
fn sizes_and_times_are_fresh_after_writes() {
    let Some(_turn) = turn("sizes_and_times_are_fresh_after_writes") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let path = mount.path("f");
    let file = File::create_new(&path).unwrap();
    let mut last = fs::metadata(&path).unwrap().modified().unwrap();
    for i in 1..20u64 {
        file.write_all_at(&[0; 1000], (i - 1) * 1000).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), i * 1000);
        assert!(meta.modified().unwrap() > last);
        last = meta.modified().unwrap();
    }
    let dir = || fs::metadata(mount.dir.path()).unwrap().modified().unwrap();
    let before = dir();
    fs::write(mount.path("another"), b"").unwrap();
    assert!(dir() > before, "a directory's time changes with its names");
}

#[test]
fn absent_names_are_remembered_until_created() {
    let Some(_turn) = turn("absent_names_are_remembered_until_created") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let path = mount.path("later");
    for _ in 0..3 {
        assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
        fs::write(&path, b"").unwrap();
        fs::metadata(&path).unwrap();
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn listings_are_fresh_after_changes() {
    let Some(_turn) = turn("listings_are_fresh_after_changes") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let count = || fs::read_dir(mount.dir.path()).unwrap().count();
    for i in 0..10 {
        fs::write(mount.path(&format!("f{i}")), b"").unwrap();
        assert_eq!((count(), count()), (i + 1, i + 1));
    }
    fs::rename(mount.path("f0"), mount.path("f1")).unwrap();
    assert_eq!(count(), 9);
    fs::remove_file(mount.path("f2")).unwrap();
    assert_eq!(count(), 8);
}

/// Random numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }
}

/// Content as it must be.
#[derive(Default)]
struct Model(Vec<u8>);

impl Model {
    fn write(&mut self, at: usize, data: &[u8]) {
        self.0.resize(self.0.len().max(at + data.len()), 0);
        self.0[at..at + data.len()].copy_from_slice(data);
    }

    fn part(&self, at: usize, len: usize) -> &[u8] {
        let end = (at + len).min(self.0.len());
        &self.0[at.min(end)..end]
    }
}

/// The same file through the cache, past it and mapped, with sizes changing underneath: all see one
/// content.
#[test]
fn all_doors_show_one_content() {
    let Some(_turn) = turn("all_doors_show_one_content") else {
        return;
    };
    for (seed, skip_open, writeback_cache) in [(1, true, false), (2, false, false), (3, true, false), (4, false, true)]
    {
        let mount = Mount::new(|o| (o.skip_open, o.writeback_cache) = (skip_open, writeback_cache));
        in_child(|| {
            let path = mount.path("f");
            let mut open = OpenOptions::new();
            let cached = open
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .unwrap();
            let direct = open.custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let (mut dice, mut model) = (Dice(seed), Model::default());
            for step in 0..1500 {
                one_step(&mut dice, &mut model, &cached, &direct);
                let size = cached.metadata().unwrap().len() as usize;
                assert_eq!(size, model.0.len(), "size after step {step} of seed {seed}");
            }
            drop((cached, direct));
            assert!(fs::read(&path).unwrap() == model.0, "content after seed {seed}");
            Ok(())
        })
        .unwrap();
        mount.end();
    }
}

#[repr(align(4096))]
struct Block([u8; 65536]);

fn one_step(dice: &mut Dice, model: &mut Model, cached: &File, direct: &File) {
    const SIZE_MAX: usize = 300_000;
    let (at, len, fill) = (dice.roll(SIZE_MAX), 1 + dice.roll(60_000), dice.roll(255) as u8 + 1);
    let (block_at, block_len) = (at & !4095, len.next_multiple_of(4096));
    let mut block = Block([fill; 65536]);
    match dice.roll(10) {
        0 | 1 => {
            cached.write_all_at(&block.0[..len], at as u64).unwrap();
            model.write(at, &block.0[..len]);
        }
        2 => {
            direct.write_all_at(&block.0[..block_len], block_at as u64).unwrap();
            model.write(block_at, &block.0[..block_len]);
        }
        3 | 4 => {
            let n = cached.read_at(&mut block.0[..len], at as u64).unwrap();
            assert!(block.0[..n] == *model.part(at, len), "cached read of {len} at {at}");
        }
        5 => {
            let n = direct.read_at(&mut block.0[..block_len], block_at as u64).unwrap();
            assert!(
                block.0[..n] == *model.part(block_at, block_len),
                "direct read of {block_len} at {block_at}"
            );
        }
        6 => {
            cached.set_len(at as u64).unwrap();
            model.0.resize(at, 0);
        }
        7 => {
            let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            fallocate(cached, hole, at as i64, len as i64).unwrap();
            let end = (at + len).min(model.0.len());
            model.0[at.min(end)..end].fill(0);
        }
        _ if model.0.is_empty() => {}
        kind => {
            let mut map = Map::shared(cached, model.0.len()).unwrap();
            assert!(map.bytes() == model.0, "mapped content");
            let end = (at + len).min(model.0.len());
            if kind == 9 && at < end {
                map.bytes()[at..end].fill(fill);
                model.0[at..end].fill(fill);
            }
        }
    }
}

/// The mode that the kernel knows. Asks for nothing else: an attribute that the kernel knows to be
/// old makes it fetch all.
fn known_mode(path: &std::path::Path) -> u32 {
    let stat = rustix::fs::statx(
        rustix::fs::CWD,
        path,
        rustix::fs::AtFlags::empty(),
        rustix::fs::StatxFlags::MODE,
    );
    u32::from(stat.unwrap().stx_mode) & 0o7777
}

#[test]
fn set_id_bits_are_gone_at_the_next_stat_whichever_side_checks_permissions() {
    let Some(_turn) = turn("set_id_bits_are_gone_at_the_next_stat_whichever_side_checks_permissions") else {
        return;
    };
    type Call = fn(&File, &File) -> std::io::Result<()>;
    const CALLS: [(&str, Call); 5] = [
        ("write", |f, _| f.write_all_at(b"new", 100)),
        ("allocate", |f, _| fallocate(f, 0, 0, 4096)),
        ("punch", |f, _| {
            fallocate(f, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 4096)
        }),
        ("truncate", |f, _| f.set_len(500)),
        ("copy", |f, from| {
            Ok(rustix::fs::copy_file_range(from, Some(&mut 0), f, Some(&mut 0), 4096).map(drop)?)
        }),
    ];
    for (permissions, writeback_cache) in [
        (Permissions::Kernel, false),
        (Permissions::FileSystem, false),
        (Permissions::Kernel, true),
    ] {
        let mount = Mount::new(|o| {
            o.mount.allow_other = true;
            o.permissions = permissions;
            o.writeback_cache = writeback_cache;
        });
        let from = mount.path("from");
        fs::write(&from, [1; 8192]).unwrap();
        fs::set_permissions(&from, fs::Permissions::from_mode(0o644)).unwrap();
        for (name, call) in CALLS {
            for (uid, mode, after) in [(1000, 0o6755, 0o755), (1000, 0o2745, 0o2745), (0, 0o6755, 0o6755)] {
                let path = mount.path(&format!("{name}-{uid}-{mode:o}"));
                fs::write(&path, [7; 8192]).unwrap();
                std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                as_user(uid, uid, &[], || {
                    let file = OpenOptions::new().read(true).write(true).open(&path)?;
                    call(&file, &File::open(&from)?)
                })
                .unwrap();
                assert_eq!(known_mode(&path), after, "{name} by {uid} on {mode:o}, {permissions:?}");
            }
        }
        mount.end();
    }
}

/// The kernel forgets the mode itself where it checks permissions, and not where the file system
/// does.
#[test]
fn an_access_list_shows_in_the_mode_whichever_side_checks_permissions() {
    let Some(_turn) = turn("an_access_list_shows_in_the_mode_whichever_side_checks_permissions") else {
        return;
    };
    for permissions in [Permissions::Kernel, Permissions::FileSystem] {
        let mount = Mount::new(|o| {
            o.mount.allow_other = true;
            o.permissions = permissions;
        });
        let path = mount.path("f");
        fs::write(&path, b"").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(known_mode(&path), 0o600);
        let mut list = 2_u32.to_le_bytes().to_vec();
        // user::rw-, group::r--, other::r--
        for (tag, perm) in [(1_u16, 6_u16), (4, 4), (0x20, 4)] {
            list.extend(tag.to_le_bytes());
            list.extend(perm.to_le_bytes());
            list.extend(u32::MAX.to_le_bytes());
        }
        set_xattr(&path, "system.posix_acl_access", &list, 0).unwrap();
        assert_eq!(known_mode(&path), 0o644, "{permissions:?}");
        mount.end();
    }
}

#[test]
fn attributes_from_before_a_change_that_overtakes_their_reply_do_not_stay() {
    let Some(_turn) = turn("attributes_from_before_a_change_that_overtakes_their_reply_do_not_stay") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let path = mount.path("f");
    File::create(&path).unwrap();
    let ctime = |flags| {
        let stat = rustix::fs::statx(CWD, &path, flags, StatxFlags::CTIME).unwrap();
        (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec)
    };
    for value in [b"1", b"2"] {
        let before = ctime(AtFlags::STATX_FORCE_SYNC);
        mount.fs.getattr_waits_for_xattr.store(true, SeqCst);
        thread::scope(|scope| {
            let asking = scope.spawn(|| ctime(AtFlags::STATX_FORCE_SYNC));
            while mount.fs.getattr_waits_for_xattr.load(SeqCst) {
                thread::yield_now();
            }
            rustix::fs::setxattr(&path, "user.note", value, XattrFlags::empty()).unwrap();
            asking.join().unwrap();
        });
        let known = ctime(AtFlags::empty());
        assert!(known > before);
        assert_eq!(known, ctime(AtFlags::STATX_FORCE_SYNC));
    }
    mount.end();
}
