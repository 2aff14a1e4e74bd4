//! Parts of files: allocated, shared, exchanged, compressed; and how far they reach.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::sync::Arc;

use cowshed::{BlockDevice, Dedupe, Exchange, ExtentKind, FallocateFlags, File, FileOptions, OpenOptions, Volume};

use crate::{Disk, Result, assert_clean, disk, made, opened};

/// A file of these bytes, open for reading and writing.
fn file_of(volume: &Volume, name: &str, bytes: &[u8]) -> cowshed::Result<File> {
    volume.write(name, bytes)?;
    volume.open_file(name, &FileOptions::new().read(true).write(true))
}

fn errno<T: std::fmt::Debug>(result: cowshed::Result<T>) -> i32 {
    result.unwrap_err().errno()
}

/// Extents as the map has them, without their places on disk.
fn map(file: &File) -> Vec<(Range<u64>, ExtentKind, bool)> {
    let mut found = Vec::new();
    file.extents(0..u64::MAX, true, |e| {
        found.push((e.start..e.start + e.len_bytes, e.kind, e.is_shared));
    })
    .unwrap();
    found
}

const BLOCK: u64 = 4096;

#[test]
fn ranges_are_allocated_punched_and_zeroed() -> Result {
    let disk = disk();
    let volume = made(&disk);
    let file = file_of(&volume, "f", &[7; 3 * 4096])?;
    file.sync()?;
    file.allocate(2 * BLOCK..5 * BLOCK)?;
    assert_eq!(file.metadata()?.len(), 5 * BLOCK);
    let unwritten = (3 * BLOCK..5 * BLOCK, ExtentKind::Unwritten, false);
    assert_eq!(map(&file), [(0..3 * BLOCK, ExtentKind::Data, false), unwritten.clone()]);
    file.punch_hole(100..2 * BLOCK)?;
    assert_eq!(file.metadata()?.len(), 5 * BLOCK);
    volume.sync()?;
    let ends = [
        (0..BLOCK, ExtentKind::Data, false),
        (2 * BLOCK..3 * BLOCK, ExtentKind::Data, false),
    ];
    assert_eq!(map(&file), [&ends[..], std::slice::from_ref(&unwritten)].concat());
    file.zero_range(2 * BLOCK..6 * BLOCK)?;
    assert_eq!(file.metadata()?.len(), 6 * BLOCK);
    let zeroed = map(&file);
    assert_eq!(zeroed[0], ends[0]);
    assert!(
        zeroed[1..].iter().all(|e| e.1 == ExtentKind::Unwritten)
            && zeroed[1].0.start == 2 * BLOCK
            && zeroed.last().unwrap().0.end == 6 * BLOCK,
        "{zeroed:?}"
    );
    let keeps = FallocateFlags::KEEP_SIZE;
    file.fallocate(keeps, 6 * BLOCK..7 * BLOCK)?;
    assert_eq!(file.metadata()?.len(), 6 * BLOCK);
    let mut want = vec![7; 100];
    want.resize(6 * 4096, 0);
    assert!(volume.read("f")? == want);

    // What the kernel's btrfs refuses, too.
    use FallocateFlags as F;
    for mode in [F::COLLAPSE_RANGE, F::INSERT_RANGE, F::UNSHARE_RANGE, F::PUNCH_HOLE] {
        assert_eq!(errno(file.fallocate(mode, 0..BLOCK)), libc::EOPNOTSUPP, "{mode:?}");
    }
    for call in [File::allocate, File::punch_hole, File::zero_range] {
        assert_eq!(errno(call(&file, BLOCK..BLOCK)), libc::EINVAL);
        assert_eq!(errno(call(&file, 0..u64::MAX)), libc::EFBIG);
        assert_eq!(errno(call(&volume.open("f")?, 0..BLOCK)), libc::EBADF);
    }
    assert_eq!(errno(file.allocate(0..1 << 30)), libc::ENOSPC);
    assert!(volume.read("f")? == want);
    drop(file);
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

#[test]
fn data_and_holes_are_sought() -> Result {
    let disk = disk();
    let volume = made(&disk);
    let file = file_of(&volume, "f", b"")?;
    file.allocate(0..2 * BLOCK)?;
    file.write_at(4 * BLOCK, &[1; 4096])?;
    file.set_len(8 * BLOCK)?;
    for then in ["dirty", "on disk"] {
        assert_eq!(
            file.seek_data(0)?,
            Some(4 * BLOCK),
            "{then}: what is allocated is a hole"
        );
        assert_eq!(file.seek_hole(0)?, Some(0), "{then}");
        assert_eq!(file.seek_data(4 * BLOCK + 5)?, Some(4 * BLOCK + 5), "{then}");
        assert_eq!(file.seek_hole(4 * BLOCK)?, Some(5 * BLOCK), "{then}");
        assert_eq!(file.seek_data(5 * BLOCK)?, None, "{then}: holes alone");
        assert_eq!((file.seek_data(8 * BLOCK)?, file.seek_hole(8 * BLOCK)?), (None, None));
        volume.sync()?;
    }
    let full = file_of(&volume, "full", &[1; 5000])?;
    assert_eq!(full.seek_hole(0)?, Some(5000), "the end is a hole");
    Ok(())
}

#[test]
fn ranges_are_copied_and_shared_where_blocks_allow_it() -> Result {
    let (disk, elsewhere) = (disk(), disk());
    let volume = made(&disk);
    let content: Vec<u8> = (0..5 * 4096_u32).map(|n| (n / 64) as u8).collect();
    let src = file_of(&volume, "src", &content)?;
    let dst = file_of(&volume, "dst", b"")?;
    assert_eq!(dst.copy_range(BLOCK, &src, BLOCK, 2 * BLOCK)?, 2 * BLOCK);
    volume.sync()?;
    assert_eq!(map(&dst), [(BLOCK..3 * BLOCK, ExtentKind::Data, true)]);
    assert_eq!(dst.copy_range(0, &src, 10, 100)?, 100, "copied");
    assert_eq!(
        dst.copy_range(3 * BLOCK, &src, 4 * BLOCK, 1 << 20)?,
        BLOCK,
        "the source ends there"
    );
    assert_eq!(dst.copy_range(0, &src, 1 << 20, 10)?, 0, "behind its end");
    let mut want = content[10..110].to_vec();
    want.resize(4096, 0);
    want.extend_from_slice(&content[4096..3 * 4096]);
    want.extend_from_slice(&content[4 * 4096..]);
    assert!(volume.read("dst")? == want);

    assert_eq!(errno(src.copy_range(100, &src, 0, BLOCK)), libc::EINVAL);
    // As on Linux.
    let last = i64::MAX as u64;
    assert_eq!(errno(dst.copy_range(u64::MAX - 5, &src, 0, BLOCK)), libc::EOVERFLOW);
    assert_eq!(errno(dst.copy_range(last + 1, &src, 0, BLOCK)), libc::EINVAL);
    assert_eq!(errno(dst.copy_range(last, &src, 0, BLOCK)), libc::EFBIG);
    assert_eq!(errno(dst.clone_range(last + 1 - BLOCK, &src, 0, BLOCK)), libc::EINVAL);
    refused_of_wrong_files(&volume, &elsewhere, &|to, from| {
        to.copy_range(0, from, 0, BLOCK).map(drop)
    })?;
    drop((src, dst));
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

/// As write(2) on Linux (watched on btrfs, 6.18).
#[test]
fn a_write_ends_at_the_largest_size() -> cowshed::Result<()> {
    const LAST: u64 = i64::MAX as u64;
    let disk = disk();
    let volume = made(&disk);
    volume.write("f", "")?;
    let mut file = volume.open_file("f", &FileOptions::new().read(true).write(true))?;
    for (offset, len) in [
        (LAST - 99, 100),
        (LAST - 5000, 2 << 20),
        (LAST, 1),
        (LAST + 1, 1),
        (u64::MAX - 3, 10),
    ] {
        let data = vec![b'x'; len];
        assert_eq!(errno(file.write_at(offset, &data)), libc::EINVAL, "{len} at {offset}");
        assert_eq!(file.metadata()?.len(), 0, "nothing is written");
    }
    file.write_at(LAST, b"")?;
    file.seek(SeekFrom::Start(LAST - 5)).unwrap();
    let refused = file.write(b"seven..").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);

    file.write_at(LAST - 100, &[b'y'; 100])?;
    assert_eq!(file.metadata()?.len(), LAST);
    let mut last = [0; 200];
    assert_eq!(file.read_at(LAST - 150, &mut last)?, 150);
    assert!(last[..50] == [0; 50] && last[50..150] == [b'y'; 100]);

    // Appending knows no offset: what fits is written.
    file.set_len(LAST - 10)?;
    let appending = volume.open_file("f", &FileOptions::new().append(true))?;
    assert_eq!(errno(appending.write_at(u64::MAX, &[b'z'; 1000])), libc::EFBIG);
    assert_eq!(file.metadata()?.len(), LAST);
    assert_eq!(errno(appending.write_at(0, b"z")), libc::EFBIG);
    assert_eq!(file.read_at(LAST - 20, &mut last)?, 20);
    assert_eq!(&last[..20], b"yyyyyyyyyyzzzzzzzzzz");
    drop((file, appending));
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

/// What every call between two files, `src` and `dst`, refuses: other volumes, and files that are
/// not open for it.
fn refused_of_wrong_files(
    volume: &Volume,
    elsewhere: &Disk,
    call: &dyn Fn(&File, &File) -> cowshed::Result<()>,
) -> cowshed::Result<()> {
    let options = FileOptions::new();
    let open = |name: &str, how: FileOptions| volume.open_file(name, &how);
    let both = options.read(true).write(true);
    let other = made(elsewhere);
    let stranger = file_of(&other, "stranger", &[1; 4096])?;
    let (src, dst) = (open("src", both)?, open("dst", both)?);
    assert_eq!(errno(call(&dst, &stranger)), libc::EXDEV);
    assert_eq!(errno(call(&stranger, &src)), libc::EXDEV);
    assert_eq!(errno(call(&dst, &open("src", options.write(true))?)), libc::EBADF);
    assert_eq!(errno(call(&open("dst", options.read(true))?, &src)), libc::EBADF);
    Ok(())
}

#[test]
fn ranges_are_cloned() -> Result {
    let (disk, elsewhere) = (disk(), disk());
    let volume = made(&disk);
    let content: Vec<u8> = (0..5 * 4096_u32 + 100).map(|n| (n / 64) as u8).collect();
    let src = file_of(&volume, "src", &content)?;
    let dst = file_of(&volume, "dst", &[9; 3 * 4096])?;
    dst.clone_range(BLOCK, &src, 2 * BLOCK, BLOCK)?;
    let mut want = vec![9; 3 * 4096];
    want[4096..8192].copy_from_slice(&content[8192..12_288]);
    assert!(volume.read("dst")? == want);
    volume.sync()?;
    assert_eq!(map(&dst)[1], (BLOCK..2 * BLOCK, ExtentKind::Data, true));
    dst.clone_range(0, &src, 0, 0)?;
    assert!(volume.read("dst")? == content, "all of it, with the size");

    let end = content.len() as u64;
    for (to, from, len) in [
        (1, 0, BLOCK),
        (0, 1, BLOCK),
        (0, 0, 100),
        (0, 0, end + BLOCK),
        (0, 8 * BLOCK, 0),
    ] {
        assert_eq!(
            errno(dst.clone_range(to, &src, from, len)),
            libc::EINVAL,
            "{from}+{len} to {to}"
        );
    }
    assert_eq!(errno(src.clone_range(BLOCK, &src, 0, 2 * BLOCK)), libc::EINVAL);
    let appending = volume.open_file("dst", &FileOptions::new().append(true))?;
    assert_eq!(errno(appending.clone_range(0, &src, 0, 0)), libc::EBADF);
    assert_eq!(errno(appending.copy_range(0, &src, 0, 1)), libc::EBADF);
    refused_of_wrong_files(&volume, &elsewhere, &|to, from| to.clone_range(0, from, 0, 0))?;
    assert!(volume.read("dst")? == content);
    drop((src, dst, appending));
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

#[test]
fn what_is_the_same_is_shared() -> Result {
    let (disk, elsewhere) = (disk(), disk());
    let volume = made(&disk);
    let src = file_of(&volume, "src", &[5; 4 * 4096])?;
    let dst = file_of(&volume, "dst", &[5; 3 * 4096])?;
    assert_eq!(dst.dedupe_range(0, &src, BLOCK, 2 * BLOCK)?, Dedupe::Same(2 * BLOCK));
    volume.sync()?;
    let shared: Vec<_> = map(&dst)
        .into_iter()
        .map(|(range, _, shared)| (range, shared))
        .collect();
    assert_eq!(shared, [(0..2 * BLOCK, true), (2 * BLOCK..3 * BLOCK, false)]);
    src.write_at(3 * BLOCK + 7, b"other")?;
    assert_eq!(dst.dedupe_range(0, &src, 3 * BLOCK, BLOCK)?, Dedupe::Differs);
    assert!(volume.read("dst")? == [5; 3 * 4096]);

    for (to, from, len) in [
        (1, 0, BLOCK),
        (0, 1, BLOCK),
        (0, 0, 8 * BLOCK),
        (2 * BLOCK, 0, 2 * BLOCK),
    ] {
        assert_eq!(
            errno(dst.dedupe_range(to, &src, from, len)),
            libc::EINVAL,
            "{from}+{len} to {to}"
        );
    }
    let (to, from) = (&dst, volume.open_file("src", &FileOptions::new().write(true))?);
    assert_eq!(errno(to.dedupe_range(0, &from, 0, BLOCK)), libc::EBADF);
    let other = made(&elsewhere);
    let stranger = file_of(&other, "stranger", &[5; 4096])?;
    assert_eq!(errno(dst.dedupe_range(0, &stranger, 0, BLOCK)), libc::EXDEV);
    drop((src, dst, from));
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

#[test]
fn ranges_are_exchanged_unless_the_file_has_changed() -> Result {
    let (disk, elsewhere) = (disk(), disk());
    let volume = made(&disk);
    let (one, two) = (vec![1; 3 * 4096], vec![2; 5 * 4096 + 7]);
    let src = file_of(&volume, "src", &one)?;
    let dst = file_of(&volume, "dst", &two)?;
    let whole = Exchange {
        a_offset: 0,
        b_offset: 0,
        len_bytes: 0,
        to_eof: true,
        only_written: false,
        fresh_b: None,
        dry_run: false,
    };
    let part = Exchange {
        b_offset: BLOCK,
        len_bytes: BLOCK,
        to_eof: false,
        ..whole
    };
    src.exchange_range(&dst, &Exchange { dry_run: true, ..whole })?;
    assert!(volume.read("src")? == one);
    src.exchange_range(&dst, &part)?;
    let (a, b) = (volume.read("src")?, volume.read("dst")?);
    assert!(a[..4096] == [2; 4096] && a[4096..] == one[4096..]);
    assert!(b[..4096] == two[..4096] && b[4096..8192] == [1; 4096] && b[8192..] == two[8192..]);
    // Read, found good, and exchanged only if it was not written since.
    let fresh = Exchange {
        fresh_b: Some(dst.freshness()?),
        ..whole
    };
    assert_eq!(dst.freshness()?, volume.open("dst")?.freshness()?);
    src.exchange_range(&dst, &fresh)?;
    assert!(volume.read("src")? == b && volume.read("dst")? == a);
    assert_ne!(Some(dst.freshness()?), fresh.fresh_b);
    assert_eq!(errno(src.exchange_range(&dst, &fresh)), libc::EBUSY);
    let refused = [
        Exchange { a_offset: 1, ..part },
        Exchange { len_bytes: 100, ..part },
        Exchange {
            len_bytes: 8 * BLOCK,
            ..part
        },
        Exchange {
            a_offset: 8 * BLOCK,
            ..whole
        },
    ];
    for what in refused {
        assert_eq!(errno(src.exchange_range(&dst, &what)), libc::EINVAL, "{what:?}");
    }
    let overlapping = Exchange {
        len_bytes: 2 * BLOCK,
        ..part
    };
    assert_eq!(errno(src.exchange_range(&src, &overlapping)), libc::EINVAL);
    refused_of_wrong_files(&volume, &elsewhere, &|to, from| to.exchange_range(from, &whole))?;
    assert!(volume.read("src")? == b && volume.read("dst")? == a);
    drop((src, dst));
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

#[test]
fn a_volume_compresses_what_it_is_opened_to_compress() -> Result {
    let disk = disk();
    made(&disk).close()?;
    let mut noise = vec![0; 512 << 10];
    let mut state = 1_u64;
    for byte in &mut noise {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    let text = b"the same words over and over\n".repeat(20_000);
    let [zstd, lzo] = ["zstd:3", "lzo"].map(|how| how.parse().unwrap());
    let plain = OpenOptions::new();
    let ways = [
        ("plain", plain.clone(), 0),
        ("zstd", plain.clone().compress(zstd), 3),
        ("lzo", plain.compress_force(lzo), 2),
    ];
    for (name, options, number) in ways {
        let device: Arc<dyn BlockDevice> = disk.clone();
        let volume = Volume::open([device], &options)?;
        for (kind, content, expected) in [("text", &text, number), ("noise", &noise, 0)] {
            let file = file_of(&volume, &format!("{kind} {name}"), content)?;
            file.sync()?;
            let mut kinds = Vec::new();
            file.extents(0..u64::MAX, false, |e| kinds.push(e.compression))?;
            kinds.dedup();
            assert_eq!(kinds, [expected], "{kind} {name}");
        }
        volume.close()?;
    }
    let volume = opened(&disk);
    for name in ["plain", "zstd", "lzo"] {
        assert!(volume.read(format!("text {name}"))? == text && volume.read(format!("noise {name}"))? == noise);
    }
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

#[test]
fn files_are_defragmented_and_compressed() -> Result {
    let disk = disk();
    let volume = made(&disk);
    let file = file_of(&volume, "f", b"")?;
    let content: Vec<u8> = (0..64 * 4096_u32).map(|n| (n / 4096) as u8).collect();
    for block in (0..64).step_by(2).chain((1..64).step_by(2)) {
        file.write_at(block * BLOCK, &content[block as usize * 4096..][..4096])?;
        file.sync()?;
    }
    assert_eq!(map(&file).len(), 64);
    let before = file.metadata()?.timestamps();
    assert_eq!(file.defragment(0..32 * BLOCK, 1 << 20, None)?, 32 * BLOCK);
    assert_eq!(map(&file).len(), 33, "the first half");
    assert_eq!(file.defragment(0..u64::MAX, 1 << 20, None)?, 64 * BLOCK);
    assert_eq!(map(&file).len(), 1);
    assert_eq!(file.defragment(0..u64::MAX, 1 << 20, None)?, 0, "it is as it should be");
    let zstd = "zstd:3".parse()?;
    assert_eq!(file.defragment(0..u64::MAX, 1 << 20, Some(zstd))?, 64 * BLOCK);
    let mut packed = 0;
    file.extents(0..u64::MAX, false, |e| packed += u32::from(e.disk_bytes < e.ram_bytes))?;
    assert_eq!(packed, 2, "two of 128 KiB");
    assert!(volume.read("f")? == content);
    // We have read it, which is one of them.
    assert_eq!(file.metadata()?.timestamps()[1..], before[1..], "and times stay");
    let reader = volume.open("f")?;
    assert_eq!(errno(reader.defragment(0..BLOCK, 0, None)), libc::EBADF);
    drop((file, reader));
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}
