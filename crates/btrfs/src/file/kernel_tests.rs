//! Files that the kernel made: read here, written to here, and read by the kernel again.

use std::path::Path;
use std::sync::Arc;

use cowshed_device::{FileDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need, run_in};
use cowshed_vfs::{Context, FileSystem, Lookup, NodeId};

use super::WriteCtx;
use super::tests::mount_device;
use crate::fs::{Fs, MountOptions};
use crate::object::Inode;

pub(super) fn run(program: &str, args: &[&str], dir: &Path) {
    run_in(dir, program, args).unwrap_or_else(|e| panic!("{e:#}"));
}

pub(super) fn lookup(fs: &Fs, name: &str) -> Arc<Inode> {
    match fs.lookup(&Context::root(), NodeId::ROOT, name.as_bytes()).unwrap() {
        Lookup::Found(entry) => fs.inode(entry.node).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

pub(super) fn content(fs: &Fs, name: &str) -> Vec<u8> {
    let inode = lookup(fs, name);
    let mut all = vec![0xee; inode.attr_now().size as usize];
    let len = super::read(fs.mount(), &inode, 0, &mut all).unwrap();
    assert_eq!(len, all.len());
    all
}

/// Compressible, and different everywhere.
fn text(len: usize) -> Vec<u8> {
    (0..)
        .flat_map(|i: u32| format!("line {i} of a text\n").into_bytes())
        .take(len)
        .collect()
}

fn write(fs: &Fs, name: &str, model: &mut Vec<u8>, at: usize, data: &[u8]) {
    let written = super::write(fs.mount(), &lookup(fs, name), at as u64, data, WriteCtx::default()).unwrap();
    assert_eq!(written, data.len());
    if model.len() < at + data.len() {
        model.resize(at + data.len(), 0);
    }
    model[at..at + data.len()].copy_from_slice(data);
}

#[test]
fn writing_into_shared_and_compressed_extents_changes_one_file() {
    let Some(()) = need::kernel_btrfs() else { return };
    for compression in [
        "compress-force=zlib",
        "compress-force=lzo",
        "compress-force=zstd",
        "compress=no",
    ] {
        let options = VolumeOptions {
            mount_options: compression,
            ..VolumeOptions::default()
        };
        let volume = KernelVolume::make(&options).unwrap();
        let text = text(1 << 20);
        let fill = |dir: &Path| {
            std::fs::write(dir.join("text"), &text)?;
            std::fs::write(dir.join("small"), &text[..900])?;
            for name in ["before", "after"] {
                if name == "after" {
                    run("btrfs", &["subvolume", "snapshot", ".", "snap"], dir);
                }
                run("fallocate", &["-l", "1M", name], dir);
                run(
                    "dd",
                    &[
                        "if=text",
                        &format!("of={name}"),
                        "bs=64k",
                        "count=1",
                        "conv=notrunc,fsync",
                    ],
                    dir,
                );
            }
            run("cp", &["--reflink=always", "after", "clone"], dir);
            run("cp", &["--reflink=always", "text", "text clone"], dir);
            run("fallocate", &["-l", "1M", "alone"], dir);
            Ok(())
        };
        volume.with_mount(fill).unwrap();
        let mut half = text[..64 << 10].to_vec();
        half.resize(1 << 20, 0);
        let names = ["text", "small", "before", "after", "clone", "alone", "text clone"];
        let mut models = [&text[..], &text[..900], &half, &half, &half, &vec![0; 1 << 20], &text].map(<[u8]>::to_vec);

        let device = FileDevice::open(volume.image(), OpenMode::ReadWrite).unwrap();
        let fs = mount_device(Arc::new(device), &MountOptions::default());
        for (name, model) in names.iter().zip(&models) {
            assert!(content(&fs, name) == *model, "{compression}: {name}");
        }
        for (name, model) in names.iter().zip(&mut models).take(6) {
            write(&fs, name, model, model.len() / 2 + 100, &[7; 20_000]);
            write(&fs, name, model, 10, b"unaligned");
            fs.mount().sync().unwrap();
            write(&fs, name, model, 300_000, &[8; 5000]);
        }
        for (name, model) in names.iter().zip(&models) {
            assert!(content(&fs, name) == *model, "{compression}: {name} after writing");
        }
        fs.mount().close().unwrap();
        drop(fs);
        volume.assert_clean();
        let read = |dir: &Path| {
            for (name, model) in names.iter().zip(&models) {
                assert!(
                    std::fs::read(dir.join(name))? == *model,
                    "{compression}: the kernel reads {name}"
                );
            }
            assert!(
                std::fs::read(dir.join("snap/text"))? == text,
                "{compression}: the snapshot's text"
            );
            assert!(
                std::fs::read(dir.join("snap/small"))? == text[..900],
                "{compression}: the snapshot's small file"
            );
            assert!(
                std::fs::read(dir.join("snap/before"))? == half,
                "{compression}: the snapshot's preallocation"
            );
            Ok(())
        };
        volume.with_mount(read).unwrap();
    }
}
