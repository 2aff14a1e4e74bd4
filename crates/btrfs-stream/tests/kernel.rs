//! Streams of the kernel: each is read to its end, and what is written from it is the same, byte
//! for byte.

use std::fs;
use std::path::Path;

use btrfs_stream::{Reader, Writer};
use cowshed_harness::tree::{MakeOptions, make};
use cowshed_harness::{KernelVolume, VolumeOptions, need, run_in, shell};

/// What is written from what is read.
fn rewritten(stream: &[u8]) -> Vec<u8> {
    let mut reader = Reader::new(stream);
    let mut writer = None;
    let mut out = Vec::new();
    while let Some(item) = reader.next_command().unwrap() {
        let command = item.command;
        let is_end = command == btrfs_stream::Command::End;
        let mut to = writer.take().unwrap_or_else(|| {
            let version = u32::from_le_bytes(*stream[13..].first_chunk().unwrap());
            let version = btrfs_stream::Version::from_number(version).unwrap();
            Writer::new(std::mem::take(&mut out), version).unwrap()
        });
        to.write(&command).unwrap();
        match is_end {
            true => out = to.into_inner(),
            false => writer = Some(to),
        }
    }
    out
}

fn send(dir: &Path, args: &str) -> Vec<u8> {
    let line = format!("send -q {args} -f stream");
    run_in(dir, "btrfs", &line.split(' ').collect::<Vec<_>>()).unwrap();
    let stream = fs::read(dir.join("stream")).unwrap();
    fs::remove_file(dir.join("stream")).unwrap();
    stream
}

#[test]
fn streams_of_the_kernel_are_read_and_written_byte_for_byte() {
    if need::kernel_btrfs().is_none() {
        return;
    }
    let options = VolumeOptions {
        mount_options: "compress-force=zstd",
        ..VolumeOptions::default()
    };
    let volume = KernelVolume::make(&options).unwrap();
    let work = |dir: &Path| {
        shell(dir, "btrfs subvolume create s")?;
        make(&dir.join("s"), &MakeOptions::new(5, 60))?;
        shell(
            dir,
            "yes abcdefgh | head -c 700000 > s/text; btrfs subvolume snapshot -r s s1
             fallocate -p -o 4096 -l 8192 s/text; cp --reflink=always s/text s/copy; mv s/text s/moved
             touch s/fixed; btrfs subvolume snapshot -r s s2; chattr +i s/fixed; btrfs subvolume snapshot -r s s3
             chattr -i s/fixed",
        )?;
        let mut sent = 0;
        for what in [
            "s1",
            "s2",
            "-p s1 s2",
            "-p s2 s3",
            "-c s1 s3",
            "s1 s2",
            "-e s1 s2",
            "-p s1 --no-data s2",
        ] {
            for how in ["--proto 1", "--proto 2", "--proto 2 --compressed-data"] {
                let stream = send(dir, &format!("{how} {what}"));
                let again = rewritten(&stream);
                let differ = stream.iter().zip(&again).position(|(a, b)| a != b);
                let lens = (stream.len(), again.len());
                assert!(again == stream, "{how} {what}: {differ:?} of {lens:?}");
                sent += stream.len();
            }
        }
        assert!(sent > 1 << 20, "{sent} bytes");
        Ok(())
    };
    volume.with_mount(work).unwrap();
}
