//! An unlinked inode whose attributes have lost their root: Linux leaves it, we free it.

use std::fs;

use cowshed_harness::run;
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_xfslogs::{is_able, judge_kept};

/// A dirty volume: files 0 and 1 with attributes were at home, then unlinked while they were open.
/// With `breaks`, the root of the first one's attributes is gone, as a cancel leaves it.
fn image(breaks: bool) -> XfsVolume {
    let options = XfsOptions {
        size_bytes: 320 << 20,
        ..XfsOptions::new("-m rmapbt=1,reflink=1")
    };
    let volume = XfsVolume::make(&options).unwrap();
    let first = volume
        .with_mount(|dir| {
            for name in ["0", "1"] {
                let path = dir.join(name);
                fs::write(&path, b"")?;
                for number in 0..3 {
                    let value = vec![b'a'; 3000];
                    rustix::fs::setxattr(&path, format!("user.{number}"), &value, rustix::fs::XattrFlags::empty())?;
                }
            }
            Ok(std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.join("0"))?))
        })
        .unwrap();
    let mounted = volume.mount_with("").unwrap();
    let dir = mounted.dir().to_path_buf();
    let open = ["0", "1"].map(|name| fs::File::open(dir.join(name)).unwrap());
    for name in ["0", "1"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    let args = ["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), dir.as_os_str()];
    run("xfs_io", &args).unwrap();
    drop(open);
    mounted.unmount().unwrap();
    if breaks {
        let mut bytes = fs::read(volume.image()).unwrap();
        let is_root = |block: &&mut [u8]| {
            matches!(block[8..10], [0x3b, 0xee] | [0x3e, 0xbe]) && block[48..56] == first.to_be_bytes()
        };
        let blocks: Vec<_> = bytes.chunks_exact_mut(4096).filter(is_root).collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            block.fill(0);
        }
        fs::write(volume.image(), bytes).unwrap();
    }
    volume
}

#[test]
fn unlinked_inode_without_a_root_of_its_attributes_is_freed() {
    if !is_able() {
        return;
    }
    for (breaks, left) in [(false, 0), (true, 1)] {
        let volume = image(breaks);
        let seen = judge_kept(volume.image()).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!((seen.unlinked, seen.left), (2, left), "{seen}");
        assert_eq!(seen.repaired, 1, "{seen}");
    }
}
