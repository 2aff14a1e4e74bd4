//! The library face: what it writes is judged by the independent checker, by btrfs-progs and by the
//! kernel.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use cowshed::{
    BlockDevice, CheckOptions, FileDevice, FileKind, FileOptions, MemDevice, MkfsOptions, OpenMode, OpenOptions,
    Timestamp, Volume,
};
use cowshed_harness::{KernelVolume, need};

mod ranges;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

type Disk = Arc<MemDevice>;

fn disk() -> Disk {
    Arc::new(MemDevice::new("disk", 256 << 20))
}

fn bytes(disk: &Disk) -> Vec<u8> {
    let mut bytes = vec![0; 256 << 20];
    disk.read_at(0, &mut bytes).unwrap();
    bytes
}

fn made(disk: &Disk) -> Volume {
    let devices: [Arc<dyn BlockDevice>; 1] = [disk.clone()];
    cowshed::mkfs(&devices, &MkfsOptions::new([7; 16])).unwrap();
    opened(disk)
}

fn opened(disk: &Disk) -> Volume {
    let device: Arc<dyn BlockDevice> = disk.clone();
    Volume::open([device], &OpenOptions::new()).unwrap()
}

fn assert_clean(disk: &Disk) {
    let options = CheckOptions {
        data_csums: true,
        ..CheckOptions::default()
    };
    let device: Arc<dyn BlockDevice> = disk.clone();
    let report = cowshed::check(&[device], &options);
    assert!(report.is_clean(), "{report}");
}

/// Some of everything.
fn fill(volume: &Volume) -> cowshed::Result<()> {
    volume.create_dir_all("a/b/c")?;
    volume.write("a/small", b"inline")?;
    volume.write("a/big", vec![0x5a; 3 << 20])?;
    volume.write("a/empty", b"")?;
    let holes = volume.create("a/holes")?;
    holes.write_at(1 << 20, b"far out")?;
    holes.set_len(2 << 20)?;
    volume.symlink("../small", "a/b/link")?;
    volume.hard_link("a/small", "a/b/small-too")?;
    volume.make_node("a/fifo", FileKind::Fifo, 0o600, (0, 0))?;
    volume.make_node("a/null", FileKind::CharDevice, 0o666, (1, 3))?;
    volume.set_owner("a/big", 1234, 4321)?;
    volume.set_mode("a/big", 0o4751)?;
    volume.set_times(
        "a/big",
        Timestamp::new(-5, 123_456_789),
        Timestamp::new(1_000_000_000, 1),
    )?;
    volume.set_xattr("a/small", "user.comment", b"a \0 value")?;
    for n in 0..300 {
        volume.write(format!("a/b/c/file {n:03}"), format!("number {n}").repeat(n))?;
    }
    Ok(())
}

#[test]
fn what_is_written_is_read_back_now_and_after_reopening() -> Result {
    let disk = disk();
    let volume = made(&disk);
    fill(&volume)?;
    let mut first = Some(volume);
    for _ in 0..3 {
        let volume = first.take().unwrap_or_else(|| opened(&disk));
        assert_eq!(volume.read("a/b/link")?, b"inline", "through the link");
        assert_eq!(volume.read_link("a/b/link")?, Path::new("../small"));
        assert_eq!(volume.read("/a/b/../b/./small-too")?, b"inline");
        assert_eq!(volume.read("a/big")?, vec![0x5a; 3 << 20]);
        let holes = volume.read("a/holes")?;
        assert_eq!(
            (holes.len(), &holes[1 << 20..(1 << 20) + 7]),
            (2 << 20, &b"far out"[..])
        );
        assert!(holes[..1 << 20].iter().all(|b| *b == 0));
        let meta = volume.metadata("a/big")?;
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o4751, 1234, 4321));
        assert_eq!(meta.timestamps()[1], Timestamp::new(1_000_000_000, 1));
        assert_eq!(volume.metadata("a/small")?.nlink(), 2);
        assert_eq!(volume.symlink_metadata("a/null")?.device(), (1, 3));
        assert_eq!(volume.get_xattr("a/small", "user.comment")?.unwrap(), b"a \0 value");
        assert_eq!(volume.list_xattrs("a/small")?, [b"user.comment".to_vec()]);
        assert_eq!(volume.get_xattr("a/small", "user.none")?, None);
        let names: Vec<_> = volume
            .read_dir("a/b/c")?
            .map(|e| e.unwrap().name().to_owned())
            .collect();
        assert_eq!(names.len(), 300);
        assert_eq!(
            (names[0].to_str(), names[299].to_str()),
            (Some("file 000"), Some("file 299"))
        );
        assert_eq!(volume.open_dir("a/b")?.read("c/file 007")?, b"number 7".repeat(7));
        volume.close()?;
        assert_clean(&disk);
    }
    Ok(())
}

#[test]
fn names_are_renamed_and_removed() -> Result {
    let disk = disk();
    let volume = made(&disk);
    fill(&volume)?;
    volume.rename("a/big", "a/b/bigger")?;
    assert!(!volume.exists("a/big")? && volume.exists("a/b/bigger")?);
    volume.rename("a/b/bigger", "a/empty")?;
    assert_eq!(volume.metadata("a/empty")?.len(), 3 << 20, "renaming replaces");
    volume.remove_file("a/empty")?;
    assert_eq!(volume.remove_dir("a/b").unwrap_err().errno(), libc::ENOTEMPTY);
    volume.remove_dir_all("a")?;
    assert_eq!(volume.read_dir("")?.count(), 0);
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

#[test]
fn files_read_write_and_seek_at_their_own_position() -> Result {
    let disk = disk();
    let volume = made(&disk);
    let mut file = volume.create("f")?;
    writeln!(file, "one")?;
    writeln!(file, "two")?;
    file.seek(SeekFrom::Start(4))?;
    let mut rest = String::new();
    file.read_to_string(&mut rest)?;
    assert_eq!(rest, "two\n");
    let mut log = volume.open_file("f", &FileOptions::new().append(true))?;
    log.write_all(b"three\n")?;
    assert_eq!(
        log.read_at(0, &mut [0]).unwrap_err().errno(),
        libc::EBADF,
        "opened for writing only"
    );
    file.sync()?;
    assert_eq!(volume.read("f")?, b"one\ntwo\nthree\n");
    // What was synced is on the disk, whatever becomes of the rest.
    let copy = Arc::new(disk.snapshot());
    assert_eq!(opened(&copy).read("f")?, b"one\ntwo\nthree\n");
    Ok(())
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() -> Result {
    let disk = disk();
    let volume = made(&disk);
    let file = volume.create("f")?;
    file.write_at(0, &[1; 100_000])?;
    volume.remove_file("f")?;
    let mut buf = [0; 10];
    assert_eq!(file.read_at(99_995, &mut buf)?, 5);
    drop(file);
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}

#[test]
fn errors_name_the_path_and_the_reason() -> Result {
    let disk = disk();
    let volume = made(&disk);
    volume.write("file", b"x")?;
    volume.symlink("loop", "loop")?;
    volume.symlink("nowhere", "dangling")?;
    let error = volume.read("no/such").unwrap_err();
    assert_eq!(error.to_string(), "no/such: not found");
    let io: std::io::Error = error.into();
    assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    let errno = |result: cowshed::Result<()>| result.unwrap_err().errno();
    assert_eq!(errno(volume.read("file/x").map(drop)), libc::ENOTDIR);
    assert_eq!(errno(volume.read("file/").map(drop)), libc::ENOTDIR);
    assert_eq!(errno(volume.read("").map(drop)), libc::EISDIR);
    assert_eq!(errno(volume.read("loop").map(drop)), libc::ELOOP);
    assert_eq!(errno(volume.read("dangling").map(drop)), libc::ENOENT);
    assert_eq!(errno(volume.create_dir("file")), libc::EEXIST);
    assert_eq!(errno(volume.create_dir_all("file/x")), libc::ENOTDIR);
    assert_eq!(errno(volume.remove_dir("/")), libc::EBUSY);
    assert_eq!(errno(volume.remove_file("..")), libc::EBUSY);
    assert_eq!(errno(volume.write("n".repeat(256), b"")), libc::ENAMETOOLONG);
    let new = FileOptions::new().write(true).create_new(true);
    assert_eq!(errno(volume.open_file("file", &new).map(drop)), libc::EEXIST);
    assert!(!volume.exists("file/x")?);
    Ok(())
}

#[test]
fn read_only_changes_nothing() -> Result {
    let disk = disk();
    made(&disk).close()?;
    let before = bytes(&disk);
    let device: Arc<dyn BlockDevice> = disk.clone();
    let volume = Volume::open([device], &OpenOptions::new().read_only(true))?;
    assert_eq!(volume.write("f", b"x").unwrap_err().errno(), libc::EROFS);
    assert_eq!(volume.create_dir("d").unwrap_err().errno(), libc::EROFS);
    volume.sync()?;
    volume.close()?;
    assert!(bytes(&disk) == before);
    Ok(())
}

#[test]
fn what_is_no_volume_is_refused() {
    let disk = disk();
    let device: Arc<dyn BlockDevice> = disk;
    let error = Volume::open([device], &OpenOptions::new()).unwrap_err().to_string();
    assert!(error.contains("superblock"), "{error}");
}

#[test]
fn a_second_writer_is_refused_and_the_lock_goes_with_the_volume() -> Result {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::create(&image, 128 << 20)?);
    cowshed::mkfs(&[device], &MkfsOptions::new([7; 16]))?;
    let volume = Volume::open_image(&image, &OpenOptions::new())?;
    let error = Volume::open_image(&image, &OpenOptions::new()).unwrap_err();
    assert_eq!(error.errno(), libc::EBUSY, "{error}");
    volume.close()?;
    FileDevice::open(&image, OpenMode::ReadWrite)?;
    Ok(())
}

#[test]
fn the_kernel_reads_what_the_library_wrote_and_finds_no_fault() -> Result {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let disk = disk();
    let volume = made(&disk);
    fill(&volume)?;
    volume.close()?;
    let kernel = KernelVolume::from_memory(&[disk.snapshot()])?;
    kernel.assert_clean();
    kernel.with_mount(|root| {
        assert_eq!(std::fs::read(root.join("a/b/link"))?, b"inline");
        assert_eq!(std::fs::read(root.join("a/big"))?, vec![0x5a; 3 << 20]);
        assert_eq!(std::fs::read(root.join("a/holes"))?.len(), 2 << 20);
        let big = std::fs::metadata(root.join("a/big"))?;
        assert_eq!(
            (big.permissions().mode() & 0o7777, big.uid(), big.gid()),
            (0o4751, 1234, 4321)
        );
        assert_eq!((big.mtime(), big.mtime_nsec()), (1_000_000_000, 1));
        assert!(std::fs::symlink_metadata(root.join("a/fifo"))?.file_type().is_fifo());
        assert_eq!(std::fs::metadata(root.join("a/null"))?.rdev(), 0x103);
        assert_eq!(std::fs::read_dir(root.join("a/b/c"))?.count(), 300);
        for n in 0..300 {
            let content = std::fs::read(root.join(format!("a/b/c/file {n:03}")))?;
            assert_eq!(content, format!("number {n}").repeat(n).into_bytes());
        }
        std::fs::write(root.join("from-the-kernel"), b"hello")?;
        Ok(())
    })?;
    // And back: what the kernel added is read here.
    let volume = Volume::open_image(kernel.image(), &OpenOptions::new())?;
    assert_eq!(volume.read("from-the-kernel")?, b"hello");
    volume.remove_dir_all("a")?;
    volume.close()?;
    kernel.assert_clean();
    Ok(())
}

#[test]
fn a_group_of_writes_happens_whole_or_not() -> Result {
    let (disk, elsewhere) = (disk(), disk());
    let volume = made(&disk);
    volume.write("from", vec![1; 10_000])?;
    volume.write("to", vec![2; 10_000])?;
    let options = FileOptions::new().read(true).write(true);
    let (from, to) = (volume.open_file("from", &options)?, volume.open_file("to", &options)?);
    let mut dropped = volume.atomic();
    dropped.write_at(&from, 0, b"never")?;
    drop(dropped);
    let mut group = volume.atomic();
    group.write_at(&from, 4000, b"taken")?;
    group.write_at(&to, 12_000, b"given")?;
    assert_eq!(volume.read("from")?, vec![1; 10_000]);
    assert_eq!(volume.metadata("to")?.len(), 10_000);
    let reader = volume.open_file("to", &FileOptions::new().read(true))?;
    let refused = group.write_at(&reader, 0, b"x").unwrap_err();
    assert_eq!(refused.kind(), std::io::Error::from_raw_os_error(9).kind(), "{refused}");
    let other = made(&elsewhere);
    let stranger = other.create("stranger")?;
    let refused = group.write_at(&stranger, 0, b"x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::CrossesDevices, "{refused}");
    group.commit()?;
    assert_eq!(&volume.read("from")?[3999..4006], b"\x01taken\x01");
    let all = volume.read("to")?;
    assert_eq!((all.len(), &all[12_000..]), (12_005, &b"given"[..]));
    drop((from, to, reader, volume));
    // Durable without another word.
    assert_eq!(opened(&disk).read("to")?, all);
    assert_clean(&disk);
    Ok(())
}

#[test]
fn cloned_tree_shares_extents_and_can_be_cancelled() -> Result {
    use std::ops::ControlFlow;
    let disk = disk();
    let volume = made(&disk);
    fill(&volume)?;
    volume.sync()?;
    let before = volume.stat()?.blocks_free;
    let mut seen = cowshed::TreeCloneProgress::default();
    let is_whole = volume.clone_tree("a", "copy", |progress, left_out| {
        assert!(left_out.is_none());
        seen = *progress;
        ControlFlow::Continue(())
    })?;
    assert!(is_whole && seen.entries > 5, "{seen:?}");
    assert_eq!(volume.read("copy/big")?, volume.read("a/big")?);
    assert_eq!(volume.read("copy/holes")?, volume.read("a/holes")?);
    volume.sync()?;
    assert!(before - volume.stat()?.blocks_free < 256, "3 MiB are shared");
    let is_whole = volume.clone_tree("a", "half", |_, _| ControlFlow::Break(()))?;
    assert!(!is_whole);
    let error = volume
        .clone_tree("a", "copy", |_, _| ControlFlow::Continue(()))
        .unwrap_err();
    assert_eq!(error.errno(), libc::EEXIST);
    volume.close()?;
    assert_clean(&disk);
    Ok(())
}
