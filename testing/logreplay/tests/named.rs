//! Single situations, each the smallest that shows its rule.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use anyhow::Result;
use cowshed_harness::{VolumeOptions, need, run};
use cowshed_logreplay::{Crash, judge};

fn replay(
    options: &VolumeOptions,
    before: impl FnOnce(&Crash) -> Result<()>,
    after: impl FnOnce(&Crash) -> Result<()>,
) {
    let Some(()) = need::kernel_btrfs() else { return };
    let crash = Crash::new(options).unwrap();
    before(&crash).unwrap();
    crash.commit().unwrap();
    after(&crash).unwrap();
    let image = crash.image().unwrap();
    match judge::judge(&image) {
        Ok(is_replayed) => assert!(is_replayed, "the kernel wrote no log"),
        Err(error) => {
            let kept = std::env::var_os("COWSHED_KEEP");
            if let Some(path) = kept {
                fs::copy(image.image(), path).unwrap();
            }
            panic!("{error:#}");
        }
    }
}

fn plain() -> VolumeOptions {
    VolumeOptions {
        size_bytes: 256 << 20,
        ..VolumeOptions::default()
    }
}

fn data(len: usize) -> Vec<u8> {
    cowshed_model::pattern(len as u64, len)
}

#[test]
fn new_files_and_directories() {
    replay(
        &plain(),
        |c| Ok(fs::create_dir(c.path("old"))?),
        |c| {
            fs::create_dir_all(c.path("old/a/b"))?;
            fs::write(c.path("old/a/b/file"), data(70_000))?;
            fs::write(c.path("old/small"), b"inline")?;
            symlink("target", c.path("old/link"))?;
            run("mkfifo", &[c.path("old/fifo")])?;
            c.fsync("old/a/b/file")?;
            c.fsync("old/small")?;
            c.fsync("old")
        },
    );
}

#[test]
fn overwrite_append_truncate_and_punch() {
    replay(
        &plain(),
        |c| {
            for name in ["over", "append", "cut", "punch", "pre", "both"] {
                fs::write(c.path(name), data(300_000))?;
            }
            Ok(())
        },
        |c| {
            use std::io::{Seek, Write};
            let mut f = fs::OpenOptions::new().write(true).open(c.path("over"))?;
            f.seek(std::io::SeekFrom::Start(100_000))?;
            f.write_all(&data(50_001))?;
            f.sync_all()?;
            let mut f = fs::OpenOptions::new().append(true).open(c.path("append"))?;
            f.write_all(&data(123_456))?;
            f.sync_all()?;
            let f = fs::OpenOptions::new().write(true).open(c.path("cut"))?;
            f.set_len(1234)?;
            f.sync_all()?;
            run(
                "fallocate",
                &[
                    "-p".as_ref(),
                    "-o65536".as_ref(),
                    "-l131072".as_ref(),
                    c.path("punch").as_os_str(),
                ],
            )?;
            c.fsync("punch")?;
            run(
                "fallocate",
                &[
                    "-n".as_ref(),
                    "-o400000".as_ref(),
                    "-l200000".as_ref(),
                    c.path("pre").as_os_str(),
                ],
            )?;
            c.fsync("pre")?;
            let f = fs::OpenOptions::new().write(true).open(c.path("both"))?;
            f.set_len(0)?;
            f.set_len(900_000)?;
            f.sync_all()?;
            Ok(())
        },
    );
}

fn with_names(c: &Crash) -> Result<()> {
    fs::create_dir_all(c.path("d/sub"))?;
    fs::create_dir(c.path("e"))?;
    for name in ["a", "b", "c", "x", "y", "sub/z"] {
        fs::write(c.path("d").join(name), name)?;
    }
    Ok(())
}

#[test]
fn names_that_are_gone_from_a_directory() {
    replay(&plain(), with_names, |c| {
        fs::remove_file(c.path("d/a"))?;
        fs::rename(c.path("d/b"), c.path("d/b2"))?;
        fs::write(c.path("d/a"), b"another one of the name")?;
        c.fsync("d")
    });
}

#[test]
fn two_files_swap_their_names() {
    replay(&plain(), with_names, |c| {
        fs::rename(c.path("d/x"), c.path("d/t"))?;
        fs::rename(c.path("d/y"), c.path("d/x"))?;
        fs::rename(c.path("d/t"), c.path("d/y"))?;
        c.fsync("d/x")
    });
}

#[test]
fn a_rename_over_another_file_makes_an_orphan_of_it() {
    replay(&plain(), with_names, |c| {
        fs::rename(c.path("d/b"), c.path("d/c"))?;
        c.fsync("d")
    });
}

#[test]
fn a_hard_link_in_another_directory() {
    replay(&plain(), with_names, |c| {
        fs::hard_link(c.path("d/c"), c.path("e/c2"))?;
        c.fsync("d/c")
    });
}

#[test]
fn xattrs_and_an_inode_that_is_only_said_to_exist() {
    replay(
        &plain(),
        |c| {
            fs::create_dir(c.path("d"))?;
            for name in ["one", "two", "d/three"] {
                fs::write(c.path(name), data(9000))?;
                run(
                    "setfattr",
                    &["-nuser.old".as_ref(), "-vold".as_ref(), c.path(name).as_os_str()],
                )?;
            }
            run(
                "fallocate",
                &[
                    "-n".as_ref(),
                    "-o12288".as_ref(),
                    "-l1M".as_ref(),
                    c.path("two").as_os_str(),
                ],
            )?;
            Ok(())
        },
        |c| {
            run("setfattr", &["-xuser.old".as_ref(), c.path("one").as_os_str()])?;
            run(
                "setfattr",
                &["-nuser.new".as_ref(), "-vnew".as_ref(), c.path("one").as_os_str()],
            )?;
            c.fsync("one")?;
            run(
                "setfattr",
                &["-nuser.old".as_ref(), "-vother".as_ref(), c.path("two").as_os_str()],
            )?;
            fs::rename(c.path("two"), c.path("zwei"))?;
            fs::set_permissions(c.path("d/three"), fs::Permissions::from_mode(0o600))?;
            fs::rename(c.path("d/three"), c.path("three"))?;
            c.fsync(".")
        },
    );
}
